"""Create traces: the events of each agent of a block, in program order, for one choice of run-time trip counts.

An *agent* is a warp, or the elected thread of a role. Each kind of statement has a rule that appends its events to a trace. A kind without
a rule is rejected.
"""

from __future__ import annotations

import collections
import enum
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from fireiron.check.access_trace import AccessTrace, Array, Use
from fireiron.check.persistence import persistence
from fireiron.check.races.clusters import cluster_blocks
from fireiron.check.races.extra_roles import agent_count
from fireiron.check.races.footprints import WARP, Footprint, Footprints, Pattern, Space, Test, element_tests, stages
from fireiron.check.races.lengths import at_lengths
from fireiron.check.races.loops import Lengths, Loops, decided
from fireiron.check.races.tiles import BLOCK_TILES, SEQUENCE_PART
from fireiron.frozen import frozen
from fireiron.ir import (
    Acquire,
    Barrier,
    ClaimTile,
    ClusterBarrier,
    Comment,
    Commit,
    Exec,
    ExitIfDone,
    Fence,
    For,
    GridDepControl,
    IfAnyLane,
    Let,
    Mechanism,
    Release,
    Ring,
    Roles,
    SemaphoreBarrier,
    StageState,
    Stmt,
    Wait,
    statements,
    unknown,
)
from fireiron.values.expr import TRUE, ZERO, Expr, Var, compiled, conjuncts, constant


class Kind(enum.IntEnum):
    """The kind of an access. Atomic additions need no order among each other."""

    WRITE = 0
    READ = 1
    ADD = 2


@attrs.frozen(eq=False, slots=False)
class AccessEvent:
    """An access in some iteration. Events of one `step` belong to one execution of one statement, whose own threads need no mutual order.

    `in_flight`: it completes after the statement, at the wait for its group or when `fill` of its ring is full. `stage` is the
    stage of the ring that its buffer belongs to.
    """

    step: int
    footprint: Footprint
    fixed: Mapping[str, int]
    kind: Kind
    in_flight: bool
    fill: StageEvent | None = None
    stage: int = 0

    @property
    def bytes(self) -> int:
        """The bytes of a load into a ring."""
        access = self.use.access
        return math.prod(access.shape) * self.footprint.pattern.width

    @property
    def use(self) -> Use:
        """The access."""
        return self.footprint.pattern.use

    @property
    def mechanism(self) -> Mechanism:
        """The completion mechanism."""
        return self.footprint.pattern.mechanism

    @property
    def by_engine(self) -> bool:
        """Whether the access uses the async proxy."""
        return self.footprint.pattern.by_engine


@attrs.frozen(eq=False, slots=False)
class StageEvent:
    """A wait for a stage of a ring, or its release by `arrivals` threads of each warp, for fill `number`.

    In a cluster, a release or a load goes to the blocks with these `ranks`; none: to its own block. `own` are the fill indices by warp, if
    they differ. `barrier` identifies the mbarrier: ring, state and stage. `fill_sequence` identifies the sequence of fills in which the
    event counts: ring, state, whether it is a wait, and `by`, the mechanism that a deferred arrival waits for. `part` are the bytes that an
    arrival expects, if these are not all bytes of the ring.
    """

    ring: Ring
    state: StageState
    number: int
    arrivals: tuple[int, ...] | None = None
    ranks: tuple[int, ...] = ()
    own: tuple[int, ...] = ()
    by: Mechanism | None = None
    part: int | None = None

    stage: int = attrs.field(init=False)
    barrier: tuple[str, StageState, int] = attrs.field(init=False)
    fill_sequence: tuple[Any, ...] = attrs.field(init=False)

    @stage.default
    def _default_stage(self) -> int:
        return self.number % self.ring.stages

    @barrier.default
    def _default_barrier(self) -> tuple[str, StageState, int]:
        return self.ring.name, self.state, self.stage

    @fill_sequence.default
    def _default_fill_sequence(self) -> tuple[Any, ...]:
        own = () if self.by is None else (self.by,)
        return self.ring.name, self.state, self.arrivals is None, *own

    @property
    def phase(self) -> int:
        """The phase of its mbarrier that it waits for or completes."""
        return self.number // self.ring.stages + (self.state is StageState.FULL)

    def __str__(self) -> str:
        verb = "the wait for" if self.arrivals is None else "the arrival for"
        return f"{self.ring.name}: {verb} fill {self.number} to be {self.state.value}"


Event: TypeAlias = "AccessEvent | StageEvent | Barrier | ClusterBarrier | Commit | Wait | Fence"
Trace: TypeAlias = "tuple[Event, ...]"
Traces: TypeAlias = "tuple[Trace, ...]"
"""The trace of each agent."""


@attrs.frozen(eq=False, slots=False)
class AccessSite:
    """An access, prepared for tracing.

    - `loops`: the surrounding loops that are taken as a whole.
    - `guards`: the conditions that its pattern applies. `tests`: those of single elements. `scalar`: those that ordered loops and trip
      counts decide.
    - `needed`: the names of the ordered loops that the pattern depends on.
    - `stage`, `copy`: the two parts of the copy index. `stride`: the bytes of a copy. `stages`: the number of stages of its ring.
    """

    use: Use
    space: Space
    loops: tuple[For, ...]
    guards: tuple[Expr, ...]
    tests: tuple[Test, ...]
    scalar: tuple[Expr, ...]
    needed: tuple[str, ...]
    stage: Expr
    copy: Expr
    stride: int
    stages: int = 1

    @functools.cached_property
    def kind(self) -> Kind:
        """The kind of the access."""
        return Kind.ADD if self.use.atomic else Kind.WRITE if self.use.access.write else Kind.READ

    @functools.cached_property
    def in_flight(self) -> bool:
        """Whether it completes after its statement."""
        return self.use.statement.mechanism.is_late(self.use.access.write)


@frozen(eq=False)
class TraceState:
    """The position of a trace in the program: the surrounding loops, the iterations of ordered loops, and the events so far.

    `rank` is the cluster rank of the block; `prior_iterations` counts the executed iterations of loops by counter name.
    """

    loops: tuple[For, ...]
    fixed: Mapping[str, int]
    lengths: Lengths
    events: list[Event]
    rank: int = 0
    prior_iterations: dict[str, int] = attrs.field(factory=dict)

    def into(self, loop: For, value: int | None = None) -> TraceState:
        """The state inside a loop, in the given iteration if the loop is ordered."""
        fixed = self.fixed if value is None else {**self.fixed, loop.var.name: value}
        return TraceState((*self.loops, loop), fixed, self.lengths, self.events, self.rank, self.prior_iterations)


@attrs.define(eq=False)
class PendingAccesses:
    """The accesses in flight at a position of a trace, for some completion mechanisms.

    By mechanism, `issued` contains those since the last commit, and `groups` the committed groups that no wait has completed, oldest first.
    """

    includes: Callable[[Mechanism], bool]
    issued: dict[Mechanism, list[AccessEvent]] = attrs.field(factory=lambda: collections.defaultdict(list))
    groups: dict[Mechanism, list[list[AccessEvent]]] = attrs.field(factory=lambda: collections.defaultdict(list))

    def follow(self, event: Event) -> None:
        """Advance past an event."""
        if isinstance(event, AccessEvent):
            if event.in_flight and self.includes(mechanism := event.mechanism):
                self.issued[mechanism].append(event)
        elif isinstance(event, Commit) and self.includes(event.mechanism):
            self.groups[event.mechanism].append(self.issued.pop(event.mechanism, []))
        elif isinstance(event, Wait) and self.includes(event.mechanism):
            groups = self.groups[event.mechanism]
            del groups[: max(len(groups) - event.groups, 0)]

    @property
    def accesses(self) -> Iterator[AccessEvent]:
        """All accesses in flight."""
        groups = (event for stage_events in self.groups.values() for event in stage_events)
        return itertools.chain(*groups, *self.issued.values())


class Tracer:
    """Converts the program to traces. Patterns are computed once and reused in all iterations."""

    def __init__(self, access_trace: AccessTrace, footprints: Footprints, loops: Loops) -> None:
        self.access_trace, self.footprints, self.loops, self.blocks = access_trace, footprints, loops, cluster_blocks(access_trace.kernel)
        for statement in statements(access_trace.kernel.body):
            if type(statement) not in _RULES:
                raise unknown(statement, "the race check")
        self.tile_loops = {id(one.loop) for one in persistence(access_trace.kernel)}
        self.used_by_several_roles = self._used_by_several_roles()
        self.rings = {one.name: one for one in access_trace.kernel.rings}
        self.sites: dict[tuple[int, ...], list[AccessSite]] = {}
        for use in loops.uses:
            sites = self.sites.setdefault(_key(use.statement, use.loops), [])
            if all(one.use.access is not use.access for one in sites):
                sites.append(self._site(use))
        self.patterns: dict[Any, Pattern] = {}
        self.stage_events: dict[Any, StageEvent] = {}
        self.arrivals_of: dict[Any, tuple[int, ...]] = {}
        self.deciding_names: dict[Expr, tuple[str, ...]] = {}
        self.numbers: dict[Expr, Callable[[Mapping[str, Any]], Any]] = {}
        self.conditions: dict[Expr, Expr] = {}
        self.named: Mapping[str, int] = {}
        self.programs: dict[int, tuple[Sequence[Stmt], Sequence[tuple[Callable[..., None], Stmt]]]] = {}
        self.steps = 0

    def _used_by_several_roles(self) -> frozenset[str]:
        """The buffers that several roles access in their loops over tiles: one is ahead of the other, in another tile."""
        loops: dict[str, set[int]] = {}
        for use in self.loops.uses:
            loops.setdefault(use.access.buffer, set()).update(id(loop) for loop in use.loops if id(loop) in self.tile_loops)
        return frozenset(name for name, tile_loops in loops.items() if len(tile_loops) > 1)

    def traces(self, lengths: Lengths) -> Traces:
        """The trace of each agent, block after block. All warps of a role run the same statements."""
        # The names cannot clash with variables. The same loops have trip counts each time.
        self.named = {f"length {number}": length for number, length in enumerate(lengths.values())}
        return tuple(itertools.chain(*(self._of_block(lengths, rank) for rank in range(self.blocks.count))))

    def _of_block(self, lengths: Lengths, rank: int) -> Traces:
        kernel = self.access_trace.kernel
        position = next((index for index, stmt in enumerate(kernel.body) if isinstance(stmt, Roles)), None)
        if position is None:
            return (self._trace(kernel.body, lengths, rank),) * -(-kernel.workers // WARP)
        roles = kernel.body[position]
        assert isinstance(roles, Roles)
        traces: list[Trace] = []
        for role in roles.roles:
            body = (*kernel.body[:position], *role.body, *kernel.body[position + 1 :])
            traces += _by_warp(self._trace(body, lengths, rank), 1 if role.elected else -(-role.threads // WARP))
        return tuple(traces)

    def _trace(self, body: Sequence[Stmt], lengths: Lengths, rank: int) -> Trace:
        state = TraceState((), self.blocks.coordinates(rank), lengths, [], rank)
        self._list(body, state)
        return tuple(state.events)

    def _list(self, body: Sequence[Stmt], state: TraceState) -> None:
        for rule, statement in self._relevant(body):
            rule(self, statement, state)

    def _relevant(self, body: Sequence[Stmt]) -> Sequence[tuple[Callable[..., None], Stmt]]:
        """The statements of a list that append events, with their rules."""
        relevant = self.programs.get(id(body))
        if relevant is None:
            rules = [(_RULES[type(stmt)], stmt) for stmt in body if not isinstance(stmt, For) or self._runs(stmt)]
            relevant = self.programs[id(body)] = body, [(rule, stmt) for rule, stmt in rules if rule is not Tracer._no_event]
        return relevant[1]

    def _runs(self, loop: For) -> bool:
        return constant(loop.extent) != 0 and self.loops.matters(loop)

    def _ordering(self, statement: Any, state: TraceState) -> None:
        state.events.append(statement)

    def _no_event(self, statement: Any, state: TraceState) -> None:
        pass

    def _acquire_or_release(self, statement: Acquire | Release, state: TraceState) -> None:
        ring = self.rings[statement.ring]
        first_threads = range(0, self.access_trace.kernel.workers, WARP) if ring.each else (0,)
        numbers = tuple([self._fill_index(statement.fill_index, state, thread) for thread in first_threads])
        arrivals = self._arrivals(statement, state) if isinstance(statement, Release) else None
        if arrivals is None or any(arrivals):
            ranks = self.blocks.ranks(statement.to, state.rank) if isinstance(statement, Release) else ()
            how = (statement.by, statement.part) if isinstance(statement, Release) else ()
            state.events.append(self._interned(ring.name, statement.state, numbers[0], arrivals, ranks, numbers if ring.each else (), *how))

    def _interned(self, ring: str, *fields: Any) -> StageEvent:
        """A stage event; equal events are the same object."""
        event = self.stage_events.get((ring, *fields))
        if event is None:
            event = self.stage_events[ring, *fields] = StageEvent(self.rings[ring], *fields)
        return event

    def _fill_index(self, value: Expr, state: TraceState, thread: int = 0) -> int:
        """The fill index of a thread, with assumed trip counts."""
        function = self.numbers.get(value)
        if function is None:
            lengths = {extent: Var(name) for name, extent in zip(self.named, state.lengths, strict=True)}
            function = self.numbers[value] = compiled(at_lengths(self.loops.opened(value), {**lengths, **self.loops.tile_lengths}))
        try:
            return int(function({"thread": thread, **self.named, **state.fixed}))
        except KeyError as unknown_name:
            self.loops.mark_all_undecided(f"the fill index {value} depends on {unknown_name.args[0]}, which is known only at run time")
            return 0

    def _arrivals(self, statement: Release, state: TraceState) -> tuple[int, ...]:
        """The number of threads of each warp that release a stage. A producer's elected thread arrives once for a fill."""
        if statement.state is StageState.FULL and statement.by is None:
            return (1,) * max(self.access_trace.kernel.workers // WARP + 1, agent_count(self.access_trace.kernel))
        if statement.active == TRUE:
            return self.all_threads
        values = [state.fixed.get(name) for name in self._deciding_names(statement.active)]
        # Assumed trip counts may decide what ordered loops do not.
        key = statement.active, *values, *(self.named.values() if None in values else ())
        if key not in self.arrivals_of:
            self.arrivals_of[key] = self._arrivals_if(statement.active, state)
        return self.arrivals_of[key]

    def _deciding_names(self, active: Expr) -> tuple[str, ...]:
        """The names that decide for which threads a condition holds: the names that it reads, and those of tile lengths."""
        deciding = self.deciding_names.get(active)
        if deciding is None:
            names = self.access_trace.roots(active) - {"thread"}
            if self.loops.tile_lengths:
                names |= {var.name for part in conjuncts(active) for var in self._at_tile_length(part).variables()}
            deciding = self.deciding_names[active] = tuple(sorted(names))
        return deciding

    def _arrivals_if(self, active: Expr, state: TraceState) -> tuple[int, ...]:
        """The number of threads of each warp for which a condition holds, or may hold."""
        threads = self.access_trace.threads
        decisions = {condition: self._decided(condition, state) for condition in conjuncts(active)}
        if False in decisions.values():
            return (0,)
        conditions = [condition for condition, holds in decisions.items() if holds is None]
        if others := sorted(self.access_trace.needs(conditions) - {"thread", *state.fixed}):
            self.loops.mark_all_undecided(f"whether a stage is released depends on {', '.join(others)}")
            return (0,)
        frame = self.access_trace.frame([("thread", threads)], state.fixed)
        arrives = np.ones(threads.shape, dtype=bool)
        for condition in conditions:
            arrives &= frame.full(condition).astype(bool)
        return _by_warps(arrives)

    def _decided(self, condition: Expr, state: TraceState) -> bool | None:
        """Whether a condition holds, if ordered loops, assumed trip counts and the length of the tile decide it; else None."""
        result = decided(condition, self.access_trace, state.fixed, state.lengths)
        if result is not None or not self.loops.tile_lengths:
            return result
        value = self._at_tile_length(condition)
        return bool(compiled(value)(state.fixed)) if {var.name for var in value.variables()} <= state.fixed.keys() else None

    def _at_tile_length(self, condition: Expr) -> Expr:
        """A condition in terms of the trip counts of the tile's loops."""
        value = self.conditions.get(condition)
        if value is None:
            value = self.conditions[condition] = at_lengths(self.loops.opened(condition), self.loops.tile_lengths)
        return value

    @functools.cached_property
    def all_threads(self) -> tuple[int, ...]:
        """The arrivals of each warp if every thread arrives."""
        return _by_warps(np.ones(self.access_trace.threads.shape, dtype=bool))

    def _loop(self, statement: For, state: TraceState) -> None:
        if id(statement) not in self.loops.ordered:
            self._list(statement.body, state.into(statement))
            return
        value = -1
        for value in self.loops.iterations(statement, state.fixed, state.lengths):
            inside = state.into(statement, value)
            if statement.prior_iterations is not None or id(statement) in self.loops.varying_tiles:
                inside = attrs.evolve(inside, fixed=self._with_counts(statement, inside))
                if statement.prior_iterations is not None:
                    state.prior_iterations[statement.prior_iterations.name] = state.prior_iterations.get(
                        statement.prior_iterations.name, 0
                    ) + self._fill_index(statement.increment, inside)
            self._list(statement.body, inside)
        # A block determines in one more iteration that no tile is left.
        last = next((number for number, one in enumerate(statement.body) if isinstance(one, ExitIfDone)), 0)
        self._list(statement.body[:last], state.into(statement, value + 1))

    def _with_counts(self, loop: For, state: TraceState) -> Mapping[str, int]:
        """The values of loop variables and of the iteration counters inside; and the tile index, if tiles differ."""
        counts = (
            dict(state.fixed)
            if loop.prior_iterations is None
            else {**state.fixed, loop.prior_iterations.name: state.prior_iterations.get(loop.prior_iterations.name, 0)}
        )
        tiles = self.loops.varying_tiles.get(id(loop))
        if tiles is None:
            return counts
        number = state.lengths[SEQUENCE_PART]
        return counts | {
            tiles.varied_by.name: tiles.tile_at(number, state.fixed[loop.var.name]),
            BLOCK_TILES.name: tiles.iterations(number),
        }

    def _exec(self, statement: Exec, state: TraceState) -> None:
        for site in self.sites.get(_key(statement, state.loops), ()):
            if not site.space.shared and state.rank:  # another check compares blocks in global memory
                continue
            if not site.scalar or all(self._decided(guard, state) is not False for guard in site.scalar):
                if statement.ring and statement.mechanism.counted and site.kind is Kind.WRITE:
                    self._load(statement, site, state)
                else:
                    state.events.append(self._access(site, state, state.rank))
                # All accesses of a collective statement are one step. Each access of a per-thread statement is a separate step, because a
                # thread may write an element before another thread reads it.
                self.steps += not statement.collective
        self.steps += statement.collective

    def _load(self, statement: Exec, site: AccessSite, state: TraceState) -> None:
        """A load, in each block that receives it."""
        number = self._fill_index(statement.fill_index, state)
        peers = () if statement.multicast is None else (statement.multicast,)
        for rank in self.blocks.ranks(peers, state.rank) or (state.rank,):
            fill = self._interned(statement.ring, StageState.FULL, number, None, (rank,))
            state.events.append(self._access(site, state, rank, fill))

    def _access(self, site: AccessSite, state: TraceState, rank: int, fill: StageEvent | None = None) -> AccessEvent:
        """An access to the memory of the block with this rank."""
        copy = self._fill_index(site.stage, state) if site.stride else 0
        footprint = self._footprint(site, state, copy, rank)
        return AccessEvent(self.steps, footprint, state.fixed, site.kind, site.in_flight, fill, copy % site.stages)

    # -------------------------------------------------------------------------------------- accesses

    def _site(self, use: Use) -> AccessSite:
        ordered = self.loops.in_order(use.loops)
        whole = tuple(loop for loop in use.loops if loop.var.name not in ordered)
        ordered |= self.blocks.names
        known = frozenset({"thread", *(loop.var.name for loop in use.loops), *self.blocks.names})
        conditions = [one for one in conjuncts(use.statement.performed) if self.loops.is_trusted(one, use.loops)]
        guards = tuple(one for one in conditions if self.access_trace.roots(one) <= known and not self.access_trace.roots(one) <= ordered)
        buffer = self.access_trace.kernel.buffer(use.access.buffer)
        ring = buffer.name in self.footprints.ring_of_buffer
        stage, copy = (use.access.copy, ZERO) if ring else stages(self.access_trace, use.access.copy, ordered)
        parts = (*use.access.base, copy) if buffer.memory.of_block else self.footprints.parts(use.access)
        tests = tuple(
            (test, elements)
            for test, elements in element_tests(use)
            if self.access_trace.roots(test) <= known and self.loops.is_trusted(test, use.loops)
        )
        needed = tuple(sorted(self.access_trace.needs((*parts, *guards, *(one for one, _ in tests))) & ordered))
        # Stages differ only by a shift, so all iterations of a ring use one pattern.
        stride = buffer.elements.high * buffer.dtype.bytes if buffer.memory.of_block else 0
        tile_loop = next((loop for loop in use.loops if id(loop) in self.tile_loops), None)
        alternating = tile_loop is not None and (tile_loop.step > 1 or buffer.name in self.used_by_several_roles)
        if tile_loop is not None and alternating and buffer.name in self.footprints.local:
            # Other iterations handle other tiles; a separate check compares the tiles of a block with those of others.
            stage, stride = tile_loop.var, self.footprints.local_bytes(buffer)
        return AccessSite(
            use,
            self.footprints.space(use.access.buffer),
            whole,
            guards,
            tests,
            tuple(one for one in conditions if one not in guards),
            needed,
            stage,
            copy,
            stride,
            self.rings[self.footprints.ring_of_buffer[buffer.name]].stages if ring else 1,
        )

    def _footprint(self, site: AccessSite, state: TraceState, copy: int, rank: int) -> Footprint:
        """The footprint of an access to a copy, in the memory of the block with this rank."""
        values = {name: state.fixed[name] for name in site.needed}
        key = (id(site), *values.values())
        pattern = self.patterns.get(key)
        if pattern is None:
            pattern = self.patterns[key] = self.footprints.pattern(site.use, site.copy, site.loops, values, site.guards, site.tests)
        shift = copy * site.stride
        shift += rank * self.blocks.memory_stride if site.space.shared else 0
        return site.space.footprint(pattern, shift)


def _by_warp(trace: Trace, warps: int) -> list[Trace]:
    """The trace of each warp of a role: the same trace, except for stage events whose fill indices differ by warp."""
    stage_events = [(position, event) for position, event in enumerate(trace) if isinstance(event, StageEvent) and event.own]
    if not stage_events:
        return [trace] * warps
    keys = list(itertools.islice(zip(*(event.own for _, event in stage_events), strict=True), warps))
    traces = {key: _with_fill_indices(trace, stage_events, key) for key in dict.fromkeys(keys)}
    return [traces[key] for key in keys]


def _with_fill_indices(trace: Trace, stage_events: Sequence[tuple[int, StageEvent]], numbers: Sequence[int]) -> Trace:
    """A trace with one warp's fill indices in the stage events at these positions."""
    events = list(trace)
    for (position, fill), number in zip(stage_events, numbers, strict=True):
        events[position] = StageEvent(fill.ring, fill.state, number, fill.arrivals, fill.ranks, by=fill.by, part=fill.part)
    return tuple(events)


def _by_warps(threads: Array) -> tuple[int, ...]:
    """The number of true threads in each warp."""
    return tuple(int(count) for count in np.add.reduceat(threads, np.arange(0, threads.size, WARP)))


def _key(statement: Exec, loops: Sequence[For]) -> tuple[int, ...]:
    """The key of a statement at a position: one object may occur at several positions."""
    return id(statement), *map(id, loops)


_RULES: Mapping[type[Stmt], Callable[..., None]] = {
    Exec: Tracer._exec,
    For: Tracer._loop,
    Let: Tracer._no_event,
    Comment: Tracer._no_event,
    Barrier: Tracer._ordering,
    ClusterBarrier: Tracer._ordering,
    SemaphoreBarrier: Tracer._ordering,
    Commit: Tracer._ordering,
    Wait: Tracer._ordering,
    Fence: Tracer._ordering,
    Acquire: Tracer._acquire_or_release,
    Release: Tracer._acquire_or_release,
    Roles: Tracer._no_event,
    GridDepControl: Tracer._no_event,
    ClaimTile: Tracer._no_event,  # between the waits for its ring's stage, see `dynamic_scheduler`
    ExitIfDone: Tracer._no_event,  # a loop adds the iteration without a tile
    IfAnyLane: Tracer._no_event,  # affects one thread's registers only
}
"""The rule that appends the events of each kind of statement."""
