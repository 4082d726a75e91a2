"""Include roles of several threads beyond the workers, such as a second producer, in the threads that the race check considers.

The program of such a role distributes work by expressions of the thread index that are valid only for its own threads. The race check
considers the threads of all roles at once, so each statement gets a condition that selects the threads of its role.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from fireiron.check.access_trace import AccessTrace
from fireiron.ir import Exec, Kernel, Release, Role, Roles, Stmt, rewritten, statements
from fireiron.values.expr import Expr, Var, all_of, as_expr, less
from fireiron.values.units import THREAD

WARP = 32
"""Threads of a warp."""


def include_extra_roles(access_trace: AccessTrace) -> AccessTrace:
    """The trace with all threads of the block as workers, if a role beyond the workers has several threads; else the trace itself."""
    kernel = access_trace.kernel
    if not any(role.first >= kernel.workers and not role.elected for role in _roles(kernel)):
        return access_trace
    thread = Var(THREAD.name, 0, kernel.threads - 1)

    def conditioned(statement: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(statement, Roles):
            return (statement,)
        return (Roles(tuple(role if role.elected else attrs.evolve(role, body=_performed_by(role, thread)) for role in statement.roles)),)

    return AccessTrace(attrs.evolve(kernel, body=tuple(part for role in kernel.body for part in conditioned(role)), workers=kernel.threads))


def _performed_by(role: Role, thread: Var) -> tuple[Stmt, ...]:
    """The program of a role, with the role's threads as a condition on each statement."""
    own: Expr = less(thread, as_expr(role.first + role.threads))
    own = own if not role.first else all_of((less(as_expr(role.first - 1), thread), own))

    def edit(statement: Stmt) -> tuple[Stmt, ...]:
        if isinstance(statement, (Exec, Release)):
            return (attrs.evolve(statement, active=all_of((own, statement.active))),)
        return (statement,)

    return rewritten(role.body, edit)


def _roles(kernel: Kernel) -> Iterable[Role]:
    return (role for statement in kernel.body if isinstance(statement, Roles) for role in statement.roles)


def agent_count(kernel: Kernel, before: Role | None = None) -> int:
    """The number of agents of a block: one per warp, and one per single-threaded role. With `before`, only the agents of earlier roles."""
    count = 0
    for role in _roles(kernel):
        if role is before:
            return count
        count += 1 if role.elected else -(-role.threads // WARP)
    return count


def issuers(kernel: Kernel) -> Mapping[int, tuple[int, int]]:
    """By statement identity, the thread and the agent of the single-threaded role that executes it."""
    return {
        id(stmt): (role.first, agent_count(kernel, role))
        for role in _roles(kernel)
        if role.elected
        for stmt in statements(role.body)
        if isinstance(stmt, Exec)
    }


__all__ = ["agent_count", "include_extra_roles", "issuers"]
