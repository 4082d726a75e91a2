"""`fence`: order accesses of threads to shared memory before accesses by the async proxy: its reads of what threads wrote, and its writes
to what threads read.

A thread fences its own writes, and a barrier makes other threads wait for it. So a fence precedes the first barrier after writes to a
buffer that an asynchronous engine accesses. Copies count as writes where a wait may find their group complete. Loops are analyzed to a
fixed point, so writes of an iteration reach the barriers of the next one.

Threads fence their writes to a ring before the arrival that signals them. If the arrival is deferred until their copies complete, they
cannot fence the copies: these complete after all their instructions. So the threads that wait for the stage execute the fence, before the
engine reads. A fence on the path from the write to the read suffices, whichever thread executes it (PTX ISA, "Memory Consistency Model":
proxy-preserved base causality order).

A stage of a ring that threads have read, by `ld.shared` or `ldmatrix`, and that TMA fills again, needs a fence before it is released: loads
of a thread may still be in flight when its arrival is visible, and an mbarrier alone does not order them before writes of the async proxy.
Each thread that read fences, before its warp synchronizes for the arrival of one lane.

An implicit generic-async proxy fence follows the completion of a wgmma (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions",
"Async Proxy"). So a write by threads after a read by wgmma needs no fence, nor does a release with a wait between it and the reads that
completes a wgmma. A release that needs a fence therefore moves after the next such wait of the iteration, if there is one: the fence would
cost 2 to 4 % of the time of a kernel whose iterations release several stages (decision 137).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs

from fireiron.frozen import evolve, frozen
from fireiron.ir import (
    WARP_SCOPE,
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
    statements,
    unknown,
)
from fireiron.lower.outstanding import Outstanding

Place: TypeAlias = "tuple[str, int]"
"""The name of a buffer, and the identity of a statement that accesses it."""


def fence(kernel: Kernel) -> Kernel:
    """The kernel with the proxy fences that it needs."""
    engines = [statement for statement, _ in execs(kernel.body) if statement.instruction.mechanism.by_engine]
    read = {access.buffer for statement in engines for access in statement.accesses}
    read = {name for name in read if kernel.buffer(name).memory.of_block}
    if not read:
        return kernel
    loads = [statement for statement in engines if statement.ring and statement.mechanism.counted]
    filled = {access.buffer for statement in loads for access in statement.accesses if access.write}
    rings = {ring.name: filled.intersection(ring.buffers) for ring in kernel.rings}
    positions = _FencePositions(frozenset(read), rings)
    positions.analyze(kernel.body, _AccessState())
    if positions.releases:
        kernel = evolve(kernel, body=positions.with_late_releases(kernel.body))
        positions = _FencePositions(frozenset(read), rings)
        positions.analyze(kernel.body, _AccessState())
    copied = _copied(kernel, read)

    def fenced(statement: Stmt) -> tuple[Stmt, ...]:
        if isinstance(statement, Acquire) and statement.state is StageState.FULL and (late := copied.get(statement.ring)):
            names = ", ".join(dict.fromkeys(name for name, _ in late))
            return (
                statement,
                Fence(FenceKind.ASYNC_PROXY, f"make {names}, copied by threads, visible to the async proxy", orders=_orders(late, engines)),
            )
        # by identity: equal statements occur at several positions
        written, freed = positions.barriers.get(id(statement)), positions.releases.get(id(statement))
        if not written and not freed:
            return (statement,)
        reasons = [f"make {_names(written)} visible to the async proxy"] if written else []
        reasons += [f"reads of {_names(freed)} precede the next TMA load"] if freed else []
        orders = (*_orders(positions.named(written or ()), engines), *_orders(positions.named(freed or ()), loads, write=False))
        return (Fence(FenceKind.ASYNC_PROXY, "; ".join(reasons), orders=orders), statement)

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


def _names(accessed: Iterable[Place]) -> str:
    return ", ".join(dict.fromkeys(name for name, _ in accessed))


def _orders(accessed: Iterable[tuple[str, Exec]], engines: Iterable[Exec], write: bool = True) -> tuple[Dependence, ...]:
    """Dependences from each access, all writes or all reads, to each engine that accesses the buffer, if one of both writes."""
    places = tuple(accessed)
    return tuple(
        Dependence(access.buffer, statement, engine, (write, access.write))
        for engine in engines
        for access in engine.accesses
        for name, statement in places
        if name == access.buffer and (write or access.write)
    )


@frozen
class _AccessState:
    """The writes and the reads of stages since the last fence, in order, and the copies in flight.

    `issued`: wgmmas were issued since the last commit. `groups` is a lower bound of the groups of wgmmas in flight.
    """

    written: Mapping[Place, None] = attrs.field(factory=dict)
    outstanding: Outstanding[Place] = attrs.field(factory=Outstanding)
    read: Mapping[Place, None] = attrs.field(factory=dict)
    issued: bool = False
    groups: int = 0

    def with_writes(self, written: Iterable[Place]) -> _AccessState:
        """The state after more writes."""
        return evolve(self, written={**self.written, **dict.fromkeys(written)})

    def with_reads(self, read: Iterable[Place]) -> _AccessState:
        """The state after more reads of stages."""
        return evolve(self, read={**self.read, **dict.fromkeys(read)})

    def committed(self) -> _AccessState:
        """The state after a group of wgmmas."""
        return evolve(self, issued=False, groups=self.groups + self.issued)

    def waited(self, groups: int) -> _AccessState:
        """The state after a wait for all groups of wgmmas but the last ones: if one completes, a fence follows it."""
        return evolve(self, groups=min(self.groups, groups), read={} if self.groups > groups else self.read)

    def joined(self, other: _AccessState) -> _AccessState:
        """The join of two states, at the head of a loop or after it."""
        return _AccessState(
            {**self.written, **other.written},
            self.outstanding.joined(other.outstanding, widened=True),
            {**self.read, **other.read},
            self.issued and other.issued,
            min(self.groups, other.groups),
        )


class _FencePositions:
    """Finds the barriers and the releases that need a fence before them, and the accesses that each fence orders.

    `read` are the buffers that engines access, `filled` by ring those that TMA fills. `groups` are the statements from a release that needs
    a fence to the end of its list, `completes` the waits for wgmmas, with whether a group completes.
    """

    def __init__(self, read: frozenset[str], filled: Mapping[str, set[str]]) -> None:
        self.read = read
        self.filled = filled
        self.stages = frozenset().union(*filled.values())
        self.barriers: dict[int, dict[Place, None]] = {}
        self.releases: dict[int, dict[Place, None]] = {}
        self.groups: dict[int, tuple[Stmt, ...]] = {}
        self.completes: dict[int, bool] = {}
        self.statements: dict[int, Exec] = {}

    def named(self, accessed: Iterable[Place]) -> Iterator[tuple[str, Exec]]:
        """Accesses with their statements."""
        return ((name, self.statements[number]) for name, number in accessed)

    def analyze(self, body: tuple[Stmt, ...], known: _AccessState) -> _AccessState:
        """The state after a list, given the state before it."""
        for number, statement in enumerate(body):
            match statement:
                case Commit(mechanism=mechanism) if mechanism.in_registers:
                    known = known.committed()
                case Wait(groups=groups, mechanism=mechanism) if mechanism.in_registers:
                    self.completes[id(statement)] = known.groups > groups
                    known = known.waited(groups)
                case Exec():
                    known = self._exec(statement, known)
                case Commit(mechanism=mechanism):
                    known = evolve(known, outstanding=known.outstanding.commit(mechanism))
                case Wait(groups=groups, mechanism=mechanism):
                    known = known.with_writes(sorted(known.outstanding.done_by(mechanism, groups), key=self._place))
                    known = evolve(known, outstanding=known.outstanding.wait(mechanism, groups))
                case Barrier() | Release(state=StageState.FULL):
                    self.barriers.setdefault(id(statement), {}).update(known.written)
                    known = evolve(known, written={}, read={} if known.written else known.read)
                case Release(ring=ring):
                    if any(name in self.filled.get(ring, ()) for name, _ in known.read):
                        first = _first_of_release(body, number)
                        self.releases.setdefault(id(body[first]), {}).update(known.read)
                        self.groups[id(body[first])] = body[first:]
                        known = evolve(known, read={})
                case For():
                    known = self._loop(statement, known)
                case Roles():
                    for child in statement.children:
                        self.analyze(child, _AccessState())
                case Let() | Comment() | Fence() | Acquire() | ClaimTile() | ExitIfDone() | IfAnyLane():
                    pass
                case _:
                    raise unknown(statement, "fence")
        return known

    def with_late_releases(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """Move releases that need a fence after the next wait of their list that completes a wgmma."""
        moved: dict[int, list[Stmt]] = {}
        gone: set[int] = set()
        for start in self.groups.values():
            group = tuple(itertools.takewhile(lambda each: isinstance(each, (Barrier, Release)), start))
            wait = self._wait_after(group, start[len(group) :])
            if wait is not None and not any(self.barriers.get(id(each)) for each in group):
                moved.setdefault(id(wait), []).extend(group)
                gone |= {*map(id, group)}

        def placed(statement: Stmt) -> tuple[Stmt, ...]:
            return (*(() if id(statement) in gone else (statement,)), *moved.get(id(statement), ()))

        return rewritten(body, placed)

    def _wait_after(self, group: tuple[Stmt, ...], rest: tuple[Stmt, ...]) -> Wait | None:
        """Return the first wait of a list that completes a wgmma, if the group of releases may move after it.

        Stages that the list acquires before must have the same fill index: the producer fills them before it waits for these releases.
        """
        releases = [each for each in group if isinstance(each, Release)]
        if any(isinstance(each, Barrier) and each.scope != WARP_SCOPE for each in group):
            return None
        for statement in rest:
            if isinstance(statement, Wait) and self.completes.get(id(statement)):
                return statement
            is_later = isinstance(statement, Acquire) and any(statement.fill_index != each.fill_index for each in releases)
            inner = statements(itertools.chain.from_iterable(statement.children))
            is_synchronizing = isinstance(statement, (Roles, ClaimTile, ExitIfDone)) or any(
                isinstance(s, (Acquire, Release)) for s in inner
            )
            if is_later or is_synchronizing:
                return None
        return None

    def _loop(self, loop: For, before: _AccessState) -> _AccessState:
        """The state after a loop, which may have no iteration: analyzed until its head is a fixed point."""
        head = before
        while True:
            after = self.analyze(loop.body, head)
            joined = head.joined(after)
            if joined == head:
                return after if loop.extent.low > loop.first else before.joined(after)
            head = joined

    def _exec(self, statement: Exec, known: _AccessState) -> _AccessState:
        if statement.instruction.mechanism.by_engine:
            return evolve(known, issued=known.issued or statement.mechanism.in_registers)
        self.statements[id(statement)] = statement
        known = known.with_reads((access.buffer, id(statement)) for access in statement.accesses if access.buffer in self.stages)
        written = [(access.buffer, id(statement)) for access in statement.accesses if access.write and access.buffer in self.read]
        if not statement.asynchronous:
            return known.with_writes(written)
        return evolve(known, outstanding=known.outstanding.issue(statement.mechanism, written))

    def _place(self, write: Place) -> int:
        """The position of a write, in the order in which statements were analyzed."""
        return [*self.statements].index(write[1])


def _first_of_release(body: tuple[Stmt, ...], number: int) -> int:
    """The position of the first statement of the releases that end with statement `number`: the warp barrier before them, if any."""
    while number and isinstance(body[number - 1], (Release, Barrier)):
        number -= 1
        if isinstance(body[number], Barrier):
            break
    return number
