"""Trace the statements of a kernel. The traces are those of the race check, with a mark for each statement instead of its accesses.

Marks have no addresses, so statements on registers take as much time as others. Loops have their trip counts for given sizes, in one block.
Loops inside a launch are traced once, unless they contain synchronization.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from fireiron.check import AccessTrace
from fireiron.check.races.clusters import cluster_blocks, with_free_ranks
from fireiron.check.races.footprints import WARP
from fireiron.check.races.loops import ORDERING
from fireiron.check.races.traces import Kind, StageEvent, Trace, Tracer, TraceState
from fireiron.errors import VerificationError
from fireiron.frozen import frozen
from fireiron.ir import (
    Acquire,
    Barrier,
    ClaimTile,
    ClusterBarrier,
    Commit,
    Exec,
    ExitIfDone,
    Fence,
    For,
    Mechanism,
    Release,
    SemaphoreBarrier,
    StageState,
    Stmt,
    Wait,
    statements,
)
from fireiron.values.expr import TRUE, Expr, compiled, conjuncts

Path: TypeAlias = "tuple[str, ...]"

TILES = 3
"""Number of tiles that are traced if a block computes several consecutive tiles."""


@attrs.frozen(eq=False, slots=False)
class Mark:
    """An executed statement.

    The executions of a path in a tile are numbered by points. This mark consists of `points` points, from `visit` on. `performed` is the
    same number, counted without executions that conditions on loops prevent. The race check treats a mark as a write to no address. The
    warps `warps` execute it (None: all).
    """

    statement: Exec
    path: Path
    tile: int
    visit: int
    performed: int
    points: int
    fixed: Mapping[str, int]
    warps: frozenset[int] | None
    step: int
    fill: StageEvent | None = None
    width: int = 0
    kind: Kind = Kind.WRITE
    footprint: None = None

    @property
    def mechanism(self) -> Mechanism:
        """Return the completion mechanism of the statement."""
        return self.statement.mechanism

    @property
    def by_engine(self) -> bool:
        """Whether the statement accesses memory through the async proxy."""
        return self.statement.instruction.mechanism.by_engine

    @property
    def in_flight(self) -> bool:
        """Whether an access of the statement completes later than the statement."""
        return any(self.mechanism.is_late(access.write) for access in self.statement.accesses)

    @property
    def bytes(self) -> int:
        """Return the bytes that the statement copies into a ring."""
        return self.width


@frozen
class InnerLoops:
    """The names of the loops inside of launches, and the length of the path to the task program."""

    loops: frozenset[str]
    depth: int


@attrs.define(eq=False)
class PointCounter:
    """Numbers the points of a path: one for each iteration of the loops in its launch. `starts` contains the first point of each visit."""

    total: int = 0
    starts: dict[Any, int] = attrs.field(factory=dict)

    def at(self, key: Any, points: int) -> int:
        """Return the first point of a visit. A new visit gets `points` points."""
        if key not in self.starts:
            self.starts[key] = self.total
            self.total += points
        return self.starts[key]


class Marker(Tracer):
    """Traces a kernel for given sizes: marks, and statements that order them. `visited` counts the points of each path, executed or not."""

    def __init__(self, access_trace: AccessTrace, inner: InnerLoops, sizes: Mapping[str, int], tiles: str | None) -> None:
        self.access_trace = access_trace = with_free_ranks(access_trace)
        self.blocks, self.inner, self.sizes, self.tiles = cluster_blocks(access_trace.kernel), inner, sizes, tiles
        self.rings = {ring.name: ring for ring in access_trace.kernel.rings}
        self.stage_events: dict[Any, StageEvent] = {}
        self.position: list[int] = []
        self.visits: dict[tuple[Path, int], PointCounter] = {}
        self.performed: dict[tuple[Path, int], PointCounter] = {}
        self.visited: dict[Path, int] = {}
        self.counted_loops: dict[int, int] = {}
        self.compiled: dict[Expr, Any] = {}
        self.performing: dict[int, frozenset[int] | None] = {}
        self.steps = 0

    # -------------------------------------------------------------------------------------- walking

    def _trace(self, body: Sequence[Stmt], lengths: Any, rank: int) -> Trace:
        self.visits, self.performed = {}, {}
        walk = TraceState((), {**self.sizes, "block": rank, **self.blocks.coordinates(rank)}, lengths, [], rank)
        self._list(body, walk)
        return tuple(walk.events)

    def _list(self, body: Sequence[Stmt], walk: TraceState) -> None:
        place = 0
        for number, stmt in enumerate(body):
            rule = _RULES.get(type(stmt))
            if rule is not None:
                place = place if number and _are_parts(body[number - 1], stmt) else number
                self.position.append(place)
                rule(self, stmt, walk)
                self.position.pop()

    def _loop(self, statement: For, walk: TraceState) -> None:
        once = statement.var.name in self.inner.loops and not any(isinstance(one, ORDERING) for one in statements(statement.body))
        count = int(self._value(statement.extent, walk))
        if once:
            self.counted_loops[id(statement)] = count
            self._list(statement.body if count else (), walk.into(statement, 0))
            return
        values: Sequence[int] = statement.values(count)
        values = values[:TILES] if statement.var.name == self.tiles else values
        value = -1
        for value in values:
            inside = walk.into(statement, value)
            if statement.prior_iterations is not None:
                before = walk.prior_iterations.get(statement.prior_iterations.name, 0)
                inside = attrs.evolve(inside, fixed={**inside.fixed, statement.prior_iterations.name: before})
                walk.prior_iterations[statement.prior_iterations.name] = before + self._fill_index(statement.increment, inside)
            self._list(statement.body, inside)
        last = next((number for number, one in enumerate(statement.body) if isinstance(one, ExitIfDone)), 0)
        self._list(statement.body[:last], walk.into(statement, value + statement.step))

    def _exec(self, statement: Exec, walk: TraceState) -> None:
        path = (statement.path or ())[self.inner.depth :]
        if not path:
            return
        tile = walk.fixed.get(self.tiles, 0) if self.tiles else 0
        key = tuple(self.position), tuple(walk.fixed[one.var.name] for one in walk.loops if id(one) not in self.counted_loops)
        points = math.prod(self.counted_loops.get(id(one), 1) for one in walk.loops)
        visit = self.visits.setdefault((path, tile), PointCounter()).at(key, points)
        self.visited[path] = max(self.visited.get(path, 0), visit + points)
        if any(self._decided(one, walk) is False for one in conjuncts(statement.active)):
            return
        performed = self.performed.setdefault((path, tile), PointCounter()).at(key, points)
        fill = self._stage_event(statement, walk) if statement.ring else None
        acting, width = self._performing_warps(statement), self._bytes(statement)
        events: list[Any] = walk.events
        events.append(Mark(statement, path, tile, visit, performed, points, walk.fixed, acting, self.steps, fill, width))
        self.steps += 1

    def _stage_event(self, statement: Exec, walk: TraceState) -> StageEvent:
        """Return the event of a load: the fill of its ring, and the blocks that receive it."""
        peers = () if statement.multicast is None else (statement.multicast,)
        ranks = self.blocks.ranks(peers, walk.rank) or (walk.rank,)
        return self._interned(statement.ring, StageState.FULL, self._fill_index(statement.fill_index, walk), None, ranks)

    def _bytes(self, statement: Exec) -> int:
        """Return the bytes of a load."""
        written = (access for access in statement.accesses if access.write)
        return sum(math.prod(access.shape) * self.access_trace.kernel.buffer(access.buffer).dtype.bytes for access in written)

    def _performing_warps(self, statement: Exec) -> frozenset[int] | None:
        """Return the warps of which some thread executes a statement, according to conditions on the thread only; None for all warps."""
        if id(statement) not in self.performing:
            conditions = [one for one in conjuncts(statement.active) if self.access_trace.roots(one) == {"thread"}]
            acting = np.ones(self.access_trace.threads.shape, dtype=bool)
            for condition in conditions:
                acting &= self.access_trace.frame([("thread", self.access_trace.threads)]).full(condition).astype(bool)
            warps = frozenset(int(warp) for warp in self.access_trace.threads[acting] // WARP)
            self.performing[id(statement)] = warps if conditions else None
        return self.performing[id(statement)]

    # -------------------------------------------------------------------------------------- values

    def _value(self, value: Expr, walk: TraceState, **more: int) -> Any:
        function = self.compiled.get(value)
        if function is None:
            function = self.compiled[value] = compiled(self.access_trace.opened(value))
        try:
            return function({"thread": 0, **walk.fixed, **more})
        except KeyError as name:
            raise VerificationError(f"the order of events: {value} depends on {name.args[0]}, which no size determines") from None

    def _fill_index(self, value: Expr, walk: TraceState, thread: int = 0) -> int:
        return int(self._value(value, walk, thread=thread))

    def _decided(self, condition: Expr, walk: TraceState) -> bool | None:
        """Whether a condition on loops and sizes holds; None for conditions that depend on blocks or threads."""
        return bool(self._value(condition, walk)) if self.access_trace.roots(condition) <= walk.fixed.keys() - {"block"} else None

    def _arrivals(self, statement: Release, walk: TraceState) -> tuple[int, ...]:
        if statement.state is StageState.FULL or statement.active == TRUE:
            return super()._arrivals(statement, walk)
        frame = self.access_trace.frame([("thread", self.access_trace.threads)], walk.fixed)
        arriving = np.broadcast_to(frame.full(statement.active).astype(bool), self.access_trace.threads.shape)
        return tuple(int(count) for count in np.add.reduceat(arriving, np.arange(0, arriving.size, WARP)))

    def _tile(self, statement: ClaimTile, walk: TraceState) -> None:
        """Ignore claimed tile indices, because the only block computes all tiles."""


def marks(trace: Trace) -> Iterator[Mark]:
    """Yield the marks of a trace."""
    return (one for one in trace if isinstance(one, Mark))


def _are_parts(first: Stmt, second: Stmt) -> bool:
    """Whether two adjacent statements are loads of parts of one piece. Their launch fills a stage of a ring once."""
    if not (isinstance(first, Exec) and isinstance(second, Exec) and second.ring):
        return False
    return (first.path, first.ring, first.fill_index, first.active) == (second.path, second.ring, second.fill_index, second.active)


_RULES: Mapping[type[Stmt], Any] = {
    Exec: Marker._exec,
    For: Marker._loop,
    Barrier: Marker._ordering,
    ClusterBarrier: Marker._ordering,
    SemaphoreBarrier: Marker._ordering,
    Commit: Marker._ordering,
    Wait: Marker._ordering,
    Fence: Marker._ordering,
    Acquire: Marker._acquire_or_release,
    Release: Marker._acquire_or_release,
}
"""The method that traces each class of statements. Other classes are not traced."""
