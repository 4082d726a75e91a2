"""How many threads perform what one thread has to perform, and the reverse: loads into rings, arrivals of producers, other work.

A full barrier counts the bytes of a load once (PTX ISA, `mbarrier.arrive.expect_tx`), so one thread issues the loads of an engine and
arrives for them: that of an elected role. Each fill is announced, as consumers wait for each: an arrival that a producer makes under a
condition is missing where the condition does not hold. What threads copy to a ring each of them says for itself, so all threads of their
role arrive. All else that threads perform needs all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fireiron.check.finding import Finding
from fireiron.check.scene import Scene
from fireiron.ir import Barrier, Exec, Release, Role, Roles, StageState, statements
from fireiron.values.expr import TRUE, Expr, all_of, conjuncts


def not_performed_so(scene: Scene) -> Iterator[Finding]:
    """An error for each statement that other threads perform than have to."""
    for role in _roles(scene):
        for statement in statements(role.body):
            match statement:
                case Exec() if statement.ring and statement.mechanism.counted:
                    yield from _load(scene, role, statement)
                case Release(state=StageState.FULL, by=None):
                    yield from _arrival(scene, role, statement)
                case Release(state=StageState.FULL):
                    yield from _own_arrival(scene, role, statement)
                case Exec() | Barrier() if role.elected:
                    yield _for_several(role, statement)


def _roles(scene: Scene) -> Iterator[Role]:
    """The roles of a kernel, and the threads of the block with what is outside of roles."""
    kernel = scene.kernel
    yield Role("the block", 0, kernel.threads, tuple(one for one in kernel.body if not isinstance(one, Roles)))
    for one in kernel.body:
        if isinstance(one, Roles):
            yield from one.roles


def _load(scene: Scene, role: Role, load: Exec) -> Iterator[Finding]:
    count = _count(scene, role, load.active)
    if count != 1:
        text = (
            f"{load.accesses[-1].buffer}: {load.instruction.name} {load.spec} at turn {load.fill_index} of {load.ring} is issued by "
            f"{count} threads of {role.name}, and the full barrier counts the bytes of one; one elected thread has to issue it"
        )
        yield Finding("race", "error", load.accesses[-1].buffer, text, load.origin)


def _arrival(scene: Scene, role: Role, release: Release) -> Iterator[Finding]:
    what = f"{release.ring}: the arrival at turn {release.fill_index} to be full"
    if release.active != TRUE:
        text = f"{what} is made only where {release.active} holds, and consumers wait for each turn; it has to hold always"
        yield _of_ring(scene, release.ring, text)
    count = _count(scene, role, TRUE)
    if count != 1:
        text = f"{what} is made by {count} threads of {role.name}, and the full barrier counts one; one elected thread has to make it"
        yield _of_ring(scene, release.ring, text)


def _own_arrival(scene: Scene, role: Role, release: Release) -> Iterator[Finding]:
    """An arrival for what each thread fills by itself: of all threads of the role, at each turn, in the block itself."""
    what = f"{release.ring}: the arrival at turn {release.fill_index} to be full, by {release.by}"
    others = [one for one in conjuncts(release.active) if not scene.roots(one) <= {scene.kernel.thread.name}]
    if others or release.to or release.part is not None:
        wrong = f"only where {all_of(others)} holds" if others else "for other blocks" if release.to else f"for {release.part} bytes"
        yield _of_ring(scene, release.ring, f"{what} is made {wrong}; each thread that fills has to make it at each turn, for itself")
    count = _count(scene, role, release.active)
    if count != role.threads or role.elected:
        text = f"{what} is made by {count} of {role.threads} threads of {role.name}; all of them fill, and have to make it"
        yield _of_ring(scene, release.ring, text)


def _for_several(role: Role, statement: Exec | Barrier) -> Finding:
    if isinstance(statement, Barrier):
        text = f"a barrier of {statement.scope.threads or 'all'} threads is in role {role.name}, which one elected thread performs"
        return Finding("race", "error", None, text)
    text = f"{statement.instruction.name} {statement.spec} is work of several threads, and one elected thread performs role {role.name}"
    buffer = next((access.buffer for access in statement.accesses if access.write), None)
    return Finding("race", "error", buffer, text, statement.origin)


def _of_ring(scene: Scene, ring: str, text: str) -> Finding:
    """A finding about a ring, at the line of what fills it."""
    loads = [one for one in statements(scene.kernel.body) if isinstance(one, Exec) and one.ring == ring]
    buffers = scene.kernel.ring(ring).buffers
    return Finding("race", "error", buffers[0] if buffers else None, text, next((one.origin for one in loads), None))


def _count(scene: Scene, role: Role, active: Expr) -> int:
    """For how many threads of a role a condition holds, where what is not about threads does."""
    if role.elected:
        return 1
    threads = np.arange(role.first, role.first + role.threads)
    own = all_of([one for one in conjuncts(active) if scene.roots(one) <= {scene.kernel.thread.name}])
    return int(np.count_nonzero(scene.frame([(scene.kernel.thread.name, threads)]).full(own)))


__all__ = ["not_performed_so"]
