"""How many threads perform what one thread has to perform, and the reverse: loads into rings, arrivals of producers, other work.

A full barrier counts the bytes of a load once (PTX ISA, `mbarrier.arrive.expect_tx`), so one thread issues the loads of an engine and
arrives for them: that of an elected role. Each fill is announced, as consumers wait for each: an arrival that a producer makes under a
condition is missing where the condition does not hold. What threads copy to a ring each of them says for itself, so all threads of their
role arrive. All else that threads perform needs all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fireiron.check.access_trace import AccessTrace
from fireiron.check.finding import Finding
from fireiron.ir import Barrier, Exec, Release, Role, Roles, StageState, statements
from fireiron.values.expr import TRUE, Expr, all_of, conjuncts


def wrong_thread_counts(access_trace: AccessTrace) -> Iterator[Finding]:
    """An error for each statement that other threads perform than have to."""
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
    """The roles of a kernel, and the threads of the block with what is outside of roles."""
    kernel = access_trace.kernel
    yield Role("the block", 0, kernel.threads, tuple(one for one in kernel.body if not isinstance(one, Roles)))
    for one in kernel.body:
        if isinstance(one, Roles):
            yield from one.roles


def _load(access_trace: AccessTrace, role: Role, load: Exec) -> Iterator[Finding]:
    count = _count(access_trace, role, load.active)
    if count != 1:
        text = (
            f"{load.accesses[-1].buffer}: {load.instruction.name} {load.spec} at turn {load.fill_index} of {load.ring} is issued by "
            f"{count} threads of {role.name}, and the full barrier counts the bytes of one; one elected thread has to issue it"
        )
        yield Finding("race", "error", load.accesses[-1].buffer, text, load.origin)


def _arrival(access_trace: AccessTrace, role: Role, release: Release) -> Iterator[Finding]:
    what = f"{release.ring}: the arrival at turn {release.fill_index} to be full"
    if release.active != TRUE:
        text = f"{what} is made only where {release.active} holds, and consumers wait for each turn; it has to hold always"
        yield _of_ring(access_trace, release.ring, text)
    count = _count(access_trace, role, TRUE)
    if count != 1:
        text = f"{what} is made by {count} threads of {role.name}, and the full barrier counts one; one elected thread has to make it"
        yield _of_ring(access_trace, release.ring, text)


def _own_arrival(access_trace: AccessTrace, role: Role, release: Release) -> Iterator[Finding]:
    """An arrival for what each thread fills by itself: of all threads of the role, at each turn, in the block itself."""
    what = f"{release.ring}: the arrival at turn {release.fill_index} to be full, by {release.by}"
    others = [one for one in conjuncts(release.active) if not access_trace.roots(one) <= {access_trace.kernel.thread.name}]
    if others or release.to or release.part is not None:
        wrong = f"only where {all_of(others)} holds" if others else "for other blocks" if release.to else f"for {release.part} bytes"
        yield _of_ring(
            access_trace, release.ring, f"{what} is made {wrong}; each thread that fills has to make it at each turn, for itself"
        )
    count = _count(access_trace, role, release.active)
    if count != role.threads or role.elected:
        text = f"{what} is made by {count} of {role.threads} threads of {role.name}; all of them fill, and have to make it"
        yield _of_ring(access_trace, release.ring, text)


def _for_several(role: Role, statement: Exec | Barrier) -> Finding:
    if isinstance(statement, Barrier):
        text = f"a barrier of {statement.scope.threads or 'all'} threads is in role {role.name}, which one elected thread performs"
        return Finding("race", "error", None, text)
    text = f"{statement.instruction.name} {statement.spec} is work of several threads, and one elected thread performs role {role.name}"
    buffer = next((access.buffer for access in statement.accesses if access.write), None)
    return Finding("race", "error", buffer, text, statement.origin)


def _of_ring(access_trace: AccessTrace, ring: str, text: str) -> Finding:
    """A finding about a ring, at the line of what fills it."""
    loads = [one for one in statements(access_trace.kernel.body) if isinstance(one, Exec) and one.ring == ring]
    buffers = access_trace.kernel.ring(ring).buffers
    return Finding("race", "error", buffers[0] if buffers else None, text, next((one.origin for one in loads), None))


def _count(access_trace: AccessTrace, role: Role, active: Expr) -> int:
    """For how many threads of a role a condition holds, where what is not about threads does."""
    if role.elected:
        return 1
    threads = np.arange(role.first, role.first + role.threads)
    own = all_of([one for one in conjuncts(active) if access_trace.roots(one) <= {access_trace.kernel.thread.name}])
    return int(np.count_nonzero(access_trace.frame([(access_trace.kernel.thread.name, threads)]).full(own)))


__all__ = ["wrong_thread_counts"]
