"""`fence`: make writes of threads to shared memory visible to the async proxy before TMA or wgmma reads them.

A thread fences its own writes, and a barrier makes other threads wait for it. So a fence precedes the first barrier after writes to a
buffer that an asynchronous engine accesses. Copies count as writes where a wait may find their group complete. Loops are analyzed to a
fixed point, so writes of an iteration reach the barriers of the next one.

Threads fence their writes to a ring before the arrival that signals them. If the arrival is deferred until their copies complete, they
cannot fence the copies: these complete after all their instructions. So the threads that wait for the stage execute the fence, before the
engine reads. A fence on the path from the write to the read suffices, whichever thread executes it (PTX ISA, "Memory Consistency Model":
proxy-preserved base causality order).

A write by threads after a read by wgmma needs no fence: an implicit generic-async proxy fence follows the completion of a wgmma (PTX ISA,
"Asynchronous Warpgroup Level Matrix Instructions", "Async Proxy"), so waiting for it suffices.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs

from fireiron.frozen import evolve, frozen
from fireiron.ir import (
    Acquire,
    Barrier,
    ClaimTile,
    Comment,
    Commit,
    Dependence,
    Exec,
    ExitIfDone,
    Fence,
    FenceKind,
    For,
    IfAnyLane,
    Kernel,
    Let,
    Release,
    Roles,
    StageState,
    Stmt,
    Wait,
    execs,
    rewritten,
    unknown,
)
from fireiron.lower.outstanding import Outstanding

Write: TypeAlias = "tuple[str, int]"
"""The name of a buffer, and the identity of a statement that writes to it."""


def fence(kernel: Kernel) -> Kernel:
    """The kernel with the proxy fences that it needs."""
    engines = [statement for statement, _ in execs(kernel.body) if statement.instruction.mechanism.by_engine]
    read = {access.buffer for statement in engines for access in statement.accesses}
    read = {name for name in read if kernel.buffer(name).memory.of_block}
    if not read:
        return kernel
    positions = _FencePositions(frozenset(read))
    positions.analyze(kernel.body, _WriteState())
    copied = _copied(kernel, read)

    def fenced(statement: Stmt) -> tuple[Stmt, ...]:
        if isinstance(statement, Acquire) and statement.state is StageState.FULL and (late := copied.get(statement.ring)):
            names = ", ".join(dict.fromkeys(name for name, _ in late))
            return (
                statement,
                Fence(FenceKind.ASYNC_PROXY, f"make {names}, copied by threads, visible to the async proxy", orders=_orders(late, engines)),
            )
        written = positions.barriers.get(id(statement))  # by identity: equal barriers occur at several positions
        if not written:
            return (statement,)
        names = ", ".join(dict.fromkeys(name for name, _ in written))
        return (
            Fence(FenceKind.ASYNC_PROXY, f"make {names} visible to the async proxy", orders=_orders(positions.named(written), engines)),
            statement,
        )

    return evolve(kernel, body=rewritten(kernel.body, fenced))


def _copied(kernel: Kernel, read: set[str]) -> dict[str, list[tuple[str, Exec]]]:
    """By ring, the buffers that threads copy with deferred arrivals and that asynchronous engines read."""
    copied: dict[str, list[tuple[str, Exec]]] = {}
    for stmt, _ in execs(kernel.body):
        if stmt.ring and stmt.mechanism.arrives and not stmt.mechanism.by_engine:
            copied.setdefault(stmt.ring, []).extend(
                (access.buffer, stmt) for access in stmt.accesses if access.write and access.buffer in read
            )
    return {ring: late for ring, late in copied.items() if late}


def _orders(written: Iterable[tuple[str, Exec]], engines: Iterable[Exec]) -> tuple[Dependence, ...]:
    """Dependences from each write to each engine that accesses the written buffer."""
    writes = tuple(written)
    return tuple(
        Dependence(access.buffer, writer, engine, (True, access.write))
        for engine in engines
        for access in engine.accesses
        for name, writer in writes
        if name == access.buffer
    )


@frozen
class _WriteState:
    """The writes since the last fence, in order, and the copies in flight."""

    written: Mapping[Write, None] = attrs.field(factory=dict)
    outstanding: Outstanding[Write] = attrs.field(factory=Outstanding)

    def with_writes(self, written: Iterable[Write]) -> _WriteState:
        """The state after more writes."""
        return evolve(self, written={**self.written, **dict.fromkeys(written)})

    def joined(self, other: _WriteState) -> _WriteState:
        """The join of two states, at the head of a loop or after it."""
        return _WriteState({**self.written, **other.written}, self.outstanding.joined(other.outstanding, widened=True))


class _FencePositions:
    """Finds the barriers that need a fence before them, and the writes that each fence makes visible."""

    def __init__(self, read: frozenset[str]) -> None:
        self.read = read
        self.barriers: dict[int, dict[Write, None]] = {}
        self.statements: dict[int, Exec] = {}

    def named(self, written: Iterable[Write]) -> Iterator[tuple[str, Exec]]:
        """Writes with their statements."""
        return ((name, self.statements[number]) for name, number in written)

    def analyze(self, body: tuple[Stmt, ...], known: _WriteState) -> _WriteState:
        """The state after a list, given the state before it."""
        for statement in body:
            match statement:
                case Exec():
                    known = self._exec(statement, known)
                case Commit(mechanism=mechanism):
                    known = evolve(known, outstanding=known.outstanding.commit(mechanism))
                case Wait(groups=groups, mechanism=mechanism):
                    known = known.with_writes(sorted(known.outstanding.done_by(mechanism, groups), key=self._place))
                    known = evolve(known, outstanding=known.outstanding.wait(mechanism, groups))
                case Barrier() | Release(state=StageState.FULL):
                    self.barriers.setdefault(id(statement), {}).update(known.written)
                    known = evolve(known, written={})
                case For():
                    known = self._loop(statement, known)
                case Roles():
                    for child in statement.children:
                        self.analyze(child, _WriteState())
                case Let() | Comment() | Fence() | Acquire() | Release() | ClaimTile() | ExitIfDone() | IfAnyLane():
                    pass
                case _:
                    raise unknown(statement, "fence")
        return known

    def _loop(self, loop: For, before: _WriteState) -> _WriteState:
        """The state after a loop, which may have no iteration: analyzed until its head is a fixed point."""
        head = before
        while True:
            after = self.analyze(loop.body, head)
            joined = head.joined(after)
            if joined == head:
                return after if loop.extent.low > loop.first else before.joined(after)
            head = joined

    def _exec(self, statement: Exec, known: _WriteState) -> _WriteState:
        if statement.instruction.mechanism.by_engine:
            return known
        self.statements[id(statement)] = statement
        written = [(access.buffer, id(statement)) for access in statement.accesses if access.write and access.buffer in self.read]
        if not statement.asynchronous:
            return known.with_writes(written)
        return evolve(known, outstanding=known.outstanding.issue(statement.mechanism, written))

    def _place(self, write: Write) -> int:
        """The position of a write, in the order in which statements were analyzed."""
        return [*self.statements].index(write[1])
