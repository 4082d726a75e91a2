"""Roles of several threads beside those to which tiles are dealt: the race check counts them among the threads of the block.

In the program such a role has the work of others dealt to it anew, by expressions of the thread's number that are right for its threads
alone. Here all threads of all roles are looked at together, so each statement says which threads perform it.
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
    """The scene with all threads of the block among its workers, where a role beside these has several; else the scene itself."""
    kernel = access_trace.kernel
    if not any(role.first >= kernel.workers and not role.elected for role in _roles(kernel)):
        return access_trace
    thread = Var(THREAD.name, 0, kernel.threads - 1)

    def parted(statement: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(statement, Roles):
            return (statement,)
        return (Roles(tuple(one if one.elected else attrs.evolve(one, body=_performed_by(one, thread)) for one in statement.roles)),)

    return AccessTrace(attrs.evolve(kernel, body=tuple(part for one in kernel.body for part in parted(one)), workers=kernel.threads))


def _performed_by(role: Role, thread: Var) -> tuple[Stmt, ...]:
    """The program of a role whose statements name the threads that perform them."""
    own: Expr = less(thread, as_expr(role.first + role.threads))
    own = own if not role.first else all_of((less(as_expr(role.first - 1), thread), own))

    def edit(statement: Stmt) -> tuple[Stmt, ...]:
        if isinstance(statement, (Exec, Release)):
            return (attrs.evolve(statement, active=all_of((own, statement.active))),)
        return (statement,)

    return rewritten(role.body, edit)


def _roles(kernel: Kernel) -> Iterable[Role]:
    return (role for one in kernel.body if isinstance(one, Roles) for role in one.roles)


def agent_count(kernel: Kernel, before: Role | None = None) -> int:
    """The agents of a block: its warps, but of a role that one thread performs one; with `before` those in front of a role."""
    count = 0
    for role in _roles(kernel):
        if role is before:
            return count
        count += 1 if role.elected else -(-role.threads // WARP)
    return count


def issuers(kernel: Kernel) -> Mapping[int, tuple[int, int]]:
    """By the identity of a statement the thread, and the agent, of the role that one thread performs."""
    return {
        id(one): (role.first, agent_count(kernel, role))
        for role in _roles(kernel)
        if role.elected
        for one in statements(role.body)
        if isinstance(one, Exec)
    }


__all__ = ["agent_count", "issuers", "include_extra_roles"]
