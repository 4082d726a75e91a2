"""Check how many threads execute each statement that one thread, or all threads of a role, must execute: loads into rings, producer
arrivals, other work.

A FULL mbarrier counts the bytes of a load once (PTX ISA, `mbarrier.arrive.expect_tx`). So one elected thread issues the loads and arrives
for them. Each fill needs its arrival, because consumers wait for each fill: a conditional producer arrival would be missing where the
condition is false. If threads copy into a ring themselves, each of them arrives for its own copies, so all threads of the role must arrive.
All other collective work needs all threads.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fireiron.check.access_trace import AccessTrace
from fireiron.check.finding import Finding
from fireiron.ir import Barrier, Exec, Release, Role, Roles, StageState, statements
from fireiron.values.expr import TRUE, Expr, all_of, conjuncts


def wrong_thread_counts(access_trace: AccessTrace) -> Iterator[Finding]:
    """An error for each statement that the wrong number of threads executes."""
    for role in _roles(access_trace):
        for statement in statements(role.body):
            match statement:
                case Exec() if statement.ring and statement.mechanism.counted:
                    yield from _load(access_trace, role, statement)
                case Release(state=StageState.FULL, by=None):
                    yield from _arrival(access_trace, role, statement)
                case Release(state=StageState.FULL):
                    yield from _own_arrival(access_trace, role, statement)
                case Exec() | Barrier() if role.elected:
                    yield _for_several(role, statement)


def _roles(access_trace: AccessTrace) -> Iterator[Role]:
    """The roles of a kernel, and a role for the statements outside of roles."""
    kernel = access_trace.kernel
    yield Role("the block", 0, kernel.threads, tuple(one for one in kernel.body if not isinstance(one, Roles)))
    for stmt in kernel.body:
        if isinstance(stmt, Roles):
            yield from stmt.roles


def _load(access_trace: AccessTrace, role: Role, load: Exec) -> Iterator[Finding]:
    count = _count(access_trace, role, load.active)
    if count != 1:
        text = (
            f"{load.accesses[-1].buffer}: {load.instruction.name} {load.spec} for fill {load.fill_index} of {load.ring} is issued by "
            f"{count} threads of {role.name}, but the full mbarrier counts the bytes of one; one elected thread must issue it"
        )
        yield Finding("race", "error", load.accesses[-1].buffer, text, load.origin)


def _arrival(access_trace: AccessTrace, role: Role, release: Release) -> Iterator[Finding]:
    what = f"{release.ring}: the arrival for fill {release.fill_index} to be full"
    if release.active != TRUE:
        text = f"{what} is executed only if {release.active}, but consumers wait for each fill; it must be unconditional"
        yield _of_ring(access_trace, release.ring, text)
    count = _count(access_trace, role, TRUE)
    if count != 1:
        text = f"{what} is executed by {count} threads of {role.name}, but the full mbarrier counts one; one elected thread must execute it"
        yield _of_ring(access_trace, release.ring, text)


def _own_arrival(access_trace: AccessTrace, role: Role, release: Release) -> Iterator[Finding]:
    """Check the arrival of threads that fill a stage themselves: all threads of the role, at each fill, in their own block."""
    what = f"{release.ring}: the arrival for fill {release.fill_index} to be full, by {release.by}"
    others = [
        condition for condition in conjuncts(release.active) if not access_trace.roots(condition) <= {access_trace.kernel.thread.name}
    ]
    if others or release.to or release.part is not None:
        wrong = f"only if {all_of(others)}" if others else "for other blocks" if release.to else f"for {release.part} bytes"
        yield _of_ring(
            access_trace, release.ring, f"{what} is executed {wrong}; each filling thread must execute it at each fill, for its own block"
        )
    count = _count(access_trace, role, release.active)
    if count != role.threads or role.elected:
        text = f"{what} is executed by {count} of {role.threads} threads of {role.name}; all of them fill, so all must execute it"
        yield _of_ring(access_trace, release.ring, text)


def _for_several(role: Role, statement: Exec | Barrier) -> Finding:
    if isinstance(statement, Barrier):
        text = f"a barrier of {statement.scope.threads or 'all'} threads is in role {role.name}, which one elected thread executes"
        return Finding("race", "error", None, text)
    text = f"{statement.instruction.name} {statement.spec} needs several threads, but one elected thread executes role {role.name}"
    buffer = next((access.buffer for access in statement.accesses if access.write), None)
    return Finding("race", "error", buffer, text, statement.origin)


def _of_ring(access_trace: AccessTrace, ring: str, text: str) -> Finding:
    """A finding about a ring, at the line of the load that fills it."""
    loads = [stmt for stmt in statements(access_trace.kernel.body) if isinstance(stmt, Exec) and stmt.ring == ring]
    buffers = access_trace.kernel.ring(ring).buffers
    return Finding("race", "error", buffers[0] if buffers else None, text, next((stmt.origin for stmt in loads), None))


def _count(access_trace: AccessTrace, role: Role, active: Expr) -> int:
    """The number of threads of a role for which a condition can hold; only its thread-dependent parts count."""
    if role.elected:
        return 1
    threads = np.arange(role.first, role.first + role.threads)
    own = all_of([one for one in conjuncts(active) if access_trace.roots(one) <= {access_trace.kernel.thread.name}])
    return int(np.count_nonzero(access_trace.frame([(access_trace.kernel.thread.name, threads)]).full(own)))


__all__ = ["wrong_thread_counts"]
