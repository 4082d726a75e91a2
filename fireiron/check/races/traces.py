"""Traces: what each agent of a block does, in order, for one choice of lengths of the loops that are known only at run time.

An *agent* is a warp. Each kind of statement has a rule that says what it adds to a trace; a kind without a rule is refused.
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
    StageState,
    Stmt,
    Wait,
    statements,
    unknown,
)
from fireiron.values.expr import TRUE, ZERO, Expr, Var, compiled, conjuncts, constant


class Kind(enum.IntEnum):
    """What an access does; atomic additions need no order among each other."""

    WRITE = 0
    READ = 1
    ADD = 2


@attrs.frozen(eq=False, slots=False)
class AccessEvent:
    """An access in some iteration. Touches of one `step` are one execution of one statement, whose own threads order them.

    `under_way` says that its effect comes later than the statement: at the wait for its group, or when the `turn` of a ring is full.
    `stage` is that of the ring which its buffer belongs to.
    """

    step: int
    footprint: Footprint
    fixed: Mapping[str, int]
    kind: Kind
    in_flight: bool
    turn: StageEvent | None = None
    stage: int = 0

    @property
    def bytes(self) -> int:
        """The bytes of a load to a ring."""
        access = self.use.access
        return math.prod(access.shape) * self.footprint.pattern.width

    @property
    def use(self) -> Use:
        """The access."""
        return self.footprint.use

    @functools.cached_property
    def mechanism(self) -> Mechanism:
        """By what it is done."""
        return self.use.statement.mechanism

    @functools.cached_property
    def by_engine(self) -> bool:
        """Whether it goes through the asynchronous proxy."""
        return self.use.statement.instruction.mechanism.by_engine


@attrs.frozen(eq=False, slots=False)
class StageEvent:
    """A wait for a stage of a ring, or its release by `arrivals` threads of each warp, at turn `number`.

    In a cluster a release goes to the blocks of these `ranks`, and so does what a load brings; none: to its own. `own` are the numbers of
    the warps, where they differ. `barrier` is the one in memory that it is a phase of: ring, side and stage; `way` says of which turns it
    is one: ring, side, whether they are waits, and `by` which mechanism, until whose work is done an arrival is deferred. `part` are the
    bytes that an arrival announces, if not all of the ring's.
    """

    ring: Ring
    side: StageState
    number: int
    arrivals: tuple[int, ...] | None = None
    ranks: tuple[int, ...] = ()
    own: tuple[int, ...] = ()
    by: Mechanism | None = None
    part: int | None = None

    stage: int = attrs.field(init=False)
    barrier: tuple[str, StageState, int] = attrs.field(init=False)
    way: tuple[Any, ...] = attrs.field(init=False)

    @stage.default
    def _its_stage(self) -> int:
        return self.number % self.ring.stages

    @barrier.default
    def _in_memory(self) -> tuple[str, StageState, int]:
        return self.ring.name, self.side, self.stage

    @way.default
    def _kind(self) -> tuple[Any, ...]:
        own = () if self.by is None else (self.by,)
        return self.ring.name, self.side, self.arrivals is None, *own

    @property
    def phase(self) -> int:
        """The phase of its barrier that it waits for, or ends."""
        return self.number // self.ring.stages + (self.side is StageState.FULL)

    def __str__(self) -> str:
        verb = "the wait for" if self.arrivals is None else "the arrival at"
        return f"{self.ring.name}: {verb} turn {self.number} to be {self.side.value}"


Event: TypeAlias = "AccessEvent | StageEvent | Barrier | ClusterBarrier | Commit | Wait | Fence"
Trace: TypeAlias = "tuple[Event, ...]"
Traces: TypeAlias = "tuple[Trace, ...]"
"""What each agent does."""


@attrs.frozen(eq=False, slots=False)
class AccessSite:
    """An access as traces need it.

    `loops` are those around it that are taken as a whole, `guards` the conditions that its pattern applies, `tests` those of single
    elements, `scalar` those that loops in order and lengths decide; `needed` names the loops in order that the pattern depends on,
    `stage` and `copy` are the two parts of its copy's number, `stride` the bytes of a copy; `stages` are those of its buffer's ring.
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
        """What it does."""
        return Kind.ADD if self.use.atomic else Kind.WRITE if self.use.access.write else Kind.READ

    @functools.cached_property
    def in_flight(self) -> bool:
        """Whether its effect comes later."""
        return self.use.statement.mechanism.is_late(self.use.access.write)


@attrs.frozen(eq=False)
class TraceState:
    """Where in the program a trace is: the loops around, the iterations of those in order, and what was done until here.

    `rank` is that of the block in its cluster, `taken` how many turns loops have had until here, by the names that say so.
    """

    loops: tuple[For, ...]
    fixed: Mapping[str, int]
    lengths: Lengths
    events: list[Event]
    rank: int = 0
    taken: dict[str, int] = attrs.field(factory=dict)

    def into(self, loop: For, value: int | None = None) -> TraceState:
        """The walk inside a loop, in one of its iterations if it is in order."""
        fixed = self.fixed if value is None else {**self.fixed, loop.var.name: value}
        return TraceState((*self.loops, loop), fixed, self.lengths, self.events, self.rank, self.taken)


@attrs.define(eq=False)
class InFlight:
    """What is under way by some completion mechanisms at a place of a trace: by mechanism touches that no commit has put into a group yet,
    and those of groups that nobody has waited for, oldest first."""

    is_meant: Callable[[Mechanism], bool]
    issued: dict[Mechanism, list[AccessEvent]] = attrs.field(factory=lambda: collections.defaultdict(list))
    groups: dict[Mechanism, list[list[AccessEvent]]] = attrs.field(factory=lambda: collections.defaultdict(list))

    def follow(self, event: Event) -> None:
        """Go on behind an event."""
        if isinstance(event, AccessEvent):
            if event.in_flight and self.is_meant(event.mechanism):
                self.issued[event.mechanism].append(event)
        elif isinstance(event, Commit) and self.is_meant(event.mechanism):
            self.groups[event.mechanism].append(self.issued.pop(event.mechanism, []))
        elif isinstance(event, Wait) and self.is_meant(event.mechanism):
            groups = self.groups[event.mechanism]
            del groups[: max(len(groups) - event.groups, 0)]

    @property
    def touches(self) -> Iterator[AccessEvent]:
        """All that is under way."""
        groups = (one for several in self.groups.values() for one in several)
        return itertools.chain(*groups, *self.issued.values())


class Tracer:
    """The program as traces; patterns are made once and used in all iterations."""

    def __init__(self, access_trace: AccessTrace, places: Footprints, loops: Loops) -> None:
        self.access_trace, self.places, self.loops, self.blocks = access_trace, places, loops, cluster_blocks(access_trace.kernel)
        for statement in statements(access_trace.kernel.body):
            if type(statement) not in _RULES:
                raise unknown(statement, "the race check")
        self.in_turns = {id(one.loop) for one in persistence(access_trace.kernel) if one.loop.step > 1}
        self.rings = {one.name: one for one in access_trace.kernel.rings}
        self.sites: dict[tuple[int, ...], list[AccessSite]] = {}
        for use in loops.uses:
            sites = self.sites.setdefault(_key(use.statement, use.loops), [])
            if all(one.use.access is not use.access for one in sites):
                sites.append(self._site(use))
        self.patterns: dict[Any, Pattern] = {}
        self.turns: dict[Any, StageEvent] = {}
        self.speaking: dict[Any, tuple[int, ...]] = {}
        self.decisive: dict[Expr, tuple[str, ...]] = {}
        self.numbers: dict[Expr, Callable[[Mapping[str, Any]], Any]] = {}
        self.conditions: dict[Expr, Expr] = {}
        self.named: Mapping[str, int] = {}
        self.programs: dict[int, tuple[Sequence[Stmt], Sequence[tuple[Callable[..., None], Stmt]]]] = {}
        self.steps = 0

    def traces(self, lengths: Lengths) -> Traces:
        """What each agent does, of one block after the other; all warps of a role run the same statements."""
        # By names that no variable has; the same loops have lengths each time.
        self.named = {f"length {number}": length for number, length in enumerate(lengths.values())}
        return tuple(itertools.chain(*(self._of_block(lengths, rank) for rank in range(self.blocks.count))))

    def _of_block(self, lengths: Lengths, rank: int) -> Traces:
        kernel = self.access_trace.kernel
        position = next((number for number, one in enumerate(kernel.body) if isinstance(one, Roles)), None)
        if position is None:
            return (self._trace(kernel.body, lengths, rank),) * -(-kernel.workers // WARP)
        roles = kernel.body[position]
        assert isinstance(roles, Roles)
        found: list[Trace] = []
        for role in roles.roles:
            body = (*kernel.body[:position], *role.body, *kernel.body[position + 1 :])
            found += _by_warp(self._trace(body, lengths, rank), 1 if role.elected else -(-role.threads // WARP))
        return tuple(found)

    def _trace(self, body: Sequence[Stmt], lengths: Lengths, rank: int) -> Trace:
        walk = TraceState((), self.blocks.places(rank), lengths, [], rank)
        self._list(body, walk)
        return tuple(walk.events)

    def _list(self, body: Sequence[Stmt], walk: TraceState) -> None:
        for rule, statement in self._mattering(body):
            rule(self, statement, walk)

    def _mattering(self, body: Sequence[Stmt]) -> Sequence[tuple[Callable[..., None], Stmt]]:
        """The statements of a list that add to a trace, with their rules."""
        found = self.programs.get(id(body))
        if found is None:
            rules = [(_RULES[type(one)], one) for one in body if not isinstance(one, For) or self._runs(one)]
            found = self.programs[id(body)] = body, [(rule, one) for rule, one in rules if rule is not Tracer._nothing]
        return found[1]

    def _runs(self, loop: For) -> bool:
        return constant(loop.extent) != 0 and self.loops.matters(loop)

    def _ordering(self, statement: Any, walk: TraceState) -> None:
        walk.events.append(statement)

    def _nothing(self, statement: Any, walk: TraceState) -> None:
        pass

    def _turn(self, statement: Acquire | Release, walk: TraceState) -> None:
        ring = self.rings[statement.ring]
        firsts = range(0, self.access_trace.kernel.workers, WARP) if ring.each else (0,)
        numbers = tuple(self._number(statement.fill_index, walk, thread) for thread in firsts)
        arrivals = self._arrivals(statement, walk) if isinstance(statement, Release) else None
        if arrivals is None or any(arrivals):
            ranks = self.blocks.ranks(statement.to, walk.rank) if isinstance(statement, Release) else ()
            how = (statement.by, statement.part) if isinstance(statement, Release) else ()
            walk.events.append(self._same(ring.name, statement.state, numbers[0], arrivals, ranks, numbers if ring.each else (), *how))

    def _same(self, ring: str, *how: Any) -> StageEvent:
        """A turn of a ring, one object for all that are equal."""
        found = self.turns.get((ring, *how))
        if found is None:
            found = self.turns[ring, *how] = StageEvent(self.rings[ring], *how)
        return found

    def _number(self, value: Expr, walk: TraceState, thread: int = 0) -> int:
        """The number of a turn of a thread, where loops of unknown length have those that are assumed."""
        function = self.numbers.get(value)
        if function is None:
            lengths = {extent: Var(name) for name, extent in zip(self.named, walk.lengths, strict=True)}
            function = self.numbers[value] = compiled(at_lengths(self.loops.opened(value), {**lengths, **self.loops.tile_lengths}))
        try:
            return int(function({"thread": thread, **self.named, **walk.fixed}))
        except KeyError as unknown_name:
            self.loops.doubt_all(f"the number {value} depends on {unknown_name.args[0]}, which is known at run time only")
            return 0

    def _arrivals(self, statement: Release, walk: TraceState) -> tuple[int, ...]:
        """How many threads of each warp say that a stage is free; a producer's one thread says that it fills one."""
        if statement.state is StageState.FULL and statement.by is None:
            return (1,) * max(self.access_trace.kernel.workers // WARP + 1, agent_count(self.access_trace.kernel))
        if statement.active == TRUE:
            return self.all_threads
        values = [walk.fixed.get(name) for name in self._decisive(statement.active)]
        # What loops in order do not say, assumed lengths may.
        key = statement.active, *values, *(self.named.values() if None in values else ())
        if key not in self.speaking:
            self.speaking[key] = self._speaking(statement.active, walk)
        return self.speaking[key]

    def _decisive(self, active: Expr) -> tuple[str, ...]:
        """The names by which it is decided for which threads a condition holds: of those that it reads, and of the lengths of tiles."""
        found = self.decisive.get(active)
        if found is None:
            names = self.access_trace.roots(active) - {"thread"}
            if self.loops.tile_lengths:
                names |= {var.name for one in conjuncts(active) for var in self._of_tile(one).variables()}
            found = self.decisive[active] = tuple(sorted(names))
        return found

    def _speaking(self, active: Expr, walk: TraceState) -> tuple[int, ...]:
        """For how many threads of each warp a condition holds, or may hold."""
        threads = self.access_trace.threads
        said = {one: self._decided(one, walk) for one in conjuncts(active)}
        if False in said.values():
            return (0,)
        conditions = [one for one, holds in said.items() if holds is None]
        if others := sorted(self.access_trace.needs(conditions) - {"thread", *walk.fixed}):
            self.loops.doubt_all(f"whether a stage is released depends on {', '.join(others)}")
            return (0,)
        frame = self.access_trace.frame([("thread", threads)], walk.fixed)
        speaking = np.ones(threads.shape, dtype=bool)
        for one in conditions:
            speaking &= frame.full(one).astype(bool)
        return _by_warps(speaking)

    def _decided(self, condition: Expr, walk: TraceState) -> bool | None:
        """Whether a condition holds, where loops in order, assumed lengths and the length of the tile say so."""
        found = decided(condition, self.access_trace, walk.fixed, walk.lengths)
        if found is not None or not self.loops.tile_lengths:
            return found
        value = self._of_tile(condition)
        return bool(compiled(value)(walk.fixed)) if {var.name for var in value.variables()} <= walk.fixed.keys() else None

    def _of_tile(self, condition: Expr) -> Expr:
        """A condition by the lengths of the tile's loops."""
        value = self.conditions.get(condition)
        if value is None:
            value = self.conditions[condition] = at_lengths(self.loops.opened(condition), self.loops.tile_lengths)
        return value

    @functools.cached_property
    def all_threads(self) -> tuple[int, ...]:
        """The arrivals of each warp where every thread arrives."""
        return _by_warps(np.ones(self.access_trace.threads.shape, dtype=bool))

    def _loop(self, statement: For, walk: TraceState) -> None:
        if id(statement) not in self.loops.ordered:
            self._list(statement.body, walk.into(statement))
            return
        value = -1
        for value in self.loops.iterations(statement, walk.fixed, walk.lengths):
            inside = walk.into(statement, value)
            if statement.prior_iterations is not None or id(statement) in self.loops.varying_tiles:
                inside = attrs.evolve(inside, fixed=self._counted(statement, inside))
                if statement.prior_iterations is not None:
                    walk.taken[statement.prior_iterations.name] = walk.taken.get(statement.prior_iterations.name, 0) + self._number(
                        statement.increment, inside
                    )
            self._list(statement.body, inside)
        # A block that has no tile left learns so at one turn more.
        last = next((number for number, one in enumerate(statement.body) if isinstance(one, ExitIfDone)), 0)
        self._list(statement.body[:last], walk.into(statement, value + 1))

    def _counted(self, loop: For, walk: TraceState) -> Mapping[str, int]:
        """The numbers that loops say, and how often the loops inside were taken before; and which tile it is, where these differ."""
        found = dict(walk.fixed)
        if loop.prior_iterations is not None:
            found[loop.prior_iterations.name] = walk.taken.get(loop.prior_iterations.name, 0)
        one = self.loops.varying_tiles.get(id(loop))
        if one is None:
            return found
        number = walk.lengths[SEQUENCE_PART]
        return found | {one.said.name: one.at(number, walk.fixed[loop.var.name]), BLOCK_TILES.name: one.turns(number)}

    def _exec(self, statement: Exec, walk: TraceState) -> None:
        for site in self.sites.get(_key(statement, walk.loops), ()):
            if not site.space.shared and walk.rank:  # blocks are told apart in global memory by the check between them
                continue
            if all(self._decided(guard, walk) is not False for guard in site.scalar):
                if statement.ring and statement.mechanism.counted and site.kind is Kind.WRITE:
                    self._load(statement, site, walk)
                else:
                    walk.events.append(self._touch(site, walk, walk.rank))
                # What a group performs together is one step; of single threads one may write what another has yet to read.
                self.steps += not statement.collective
        self.steps += statement.collective

    def _load(self, statement: Exec, site: AccessSite, walk: TraceState) -> None:
        """A load, in each block that it arrives in."""
        number = self._number(statement.fill_index, walk)
        peers = () if statement.multicast is None else (statement.multicast,)
        for rank in self.blocks.ranks(peers, walk.rank) or (walk.rank,):
            turn = self._same(statement.ring, StageState.FULL, number, None, (rank,))
            walk.events.append(self._touch(site, walk, rank, turn))

    def _touch(self, site: AccessSite, walk: TraceState, rank: int, turn: StageEvent | None = None) -> AccessEvent:
        """An access to the memory of the block of a rank."""
        copy = self._number(site.stage, walk) if site.stride else 0
        footprint = self._footprint(site, walk, copy, rank)
        return AccessEvent(self.steps, footprint, walk.fixed, site.kind, site.in_flight, turn, copy % site.stages)

    # -------------------------------------------------------------------------------------- accesses

    def _site(self, use: Use) -> AccessSite:
        ordered = self.loops.in_order(use.loops)
        whole = tuple(loop for loop in use.loops if loop.var.name not in ordered)
        ordered |= self.blocks.names
        known = frozenset({"thread", *(loop.var.name for loop in use.loops), *self.blocks.names})
        conditions = [one for one in conjuncts(use.statement.performed) if self.loops.is_trusted(one, use.loops)]
        guards = tuple(one for one in conditions if self.access_trace.roots(one) <= known and not self.access_trace.roots(one) <= ordered)
        buffer = self.access_trace.kernel.buffer(use.access.buffer)
        ring = buffer.name in self.places.ring_of_buffer
        stage, copy = (use.access.copy, ZERO) if ring else stages(self.access_trace, use.access.copy, ordered)
        parts = (*use.access.base, copy) if buffer.memory.of_block else self.places.parts(use.access)
        tests = tuple(
            (one, elements)
            for one, elements in element_tests(use)
            if self.access_trace.roots(one) <= known and self.loops.is_trusted(one, use.loops)
        )
        needed = tuple(sorted(self.access_trace.needs((*parts, *guards, *(one for one, _ in tests))) & ordered))
        # Stages differ by a shift alone: one pattern serves all iterations of a ring.
        stride = buffer.elements.high * buffer.dtype.bytes if buffer.memory.of_block else 0
        taken = next((loop for loop in use.loops if id(loop) in self.in_turns), None)
        if taken is not None and use.access.buffer in self.places.local:
            # Other turns are other tiles: that those of a block and of others are apart is found between blocks.
            stage, stride = taken.var, self.places.local_bytes(buffer)
        return AccessSite(
            use,
            self.places.space(use.access.buffer),
            whole,
            guards,
            tests,
            tuple(one for one in conditions if one not in guards),
            needed,
            stage,
            copy,
            stride,
            self.rings[self.places.ring_of_buffer[buffer.name]].stages if ring else 1,
        )

    def _footprint(self, site: AccessSite, walk: TraceState, copy: int, rank: int) -> Footprint:
        """What is touched of a copy in the memory of the block of a rank."""
        values = {name: walk.fixed[name] for name in site.needed}
        key = (id(site), *values.values())
        pattern = self.patterns.get(key)
        if pattern is None:
            pattern = self.patterns[key] = self.places.pattern(site.use, site.copy, site.loops, values, site.guards, site.tests)
        shift = copy * site.stride
        shift += rank * self.blocks.apart if site.space.shared else 0
        return site.space.footprint(pattern, shift)


def _by_warp(trace: Trace, warps: int) -> list[Trace]:
    """The trace of each warp of a role: one, but for turns whose numbers differ between them."""
    several = [(position, event) for position, event in enumerate(trace) if isinstance(event, StageEvent) and event.own]
    if not several:
        return [trace] * warps
    keys = list(itertools.islice(zip(*(event.own for _, event in several), strict=True), warps))
    found = {key: _at_turns(trace, several, key) for key in dict.fromkeys(keys)}
    return [found[key] for key in keys]


def _at_turns(trace: Trace, several: Sequence[tuple[int, StageEvent]], numbers: Sequence[int]) -> Trace:
    """A trace with the numbers of one warp at the turns at these positions."""
    events = list(trace)
    for (position, turn), number in zip(several, numbers, strict=True):
        events[position] = StageEvent(turn.ring, turn.side, number, turn.arrivals, turn.ranks, by=turn.by, part=turn.part)
    return tuple(events)


def _by_warps(threads: Array) -> tuple[int, ...]:
    """How many threads of each warp it holds for."""
    return tuple(int(count) for count in np.add.reduceat(threads, np.arange(0, threads.size, WARP)))


def _key(statement: Exec, loops: Sequence[For]) -> tuple[int, ...]:
    """A statement at its place: one object may stand in several."""
    return id(statement), *map(id, loops)


_RULES: Mapping[type[Stmt], Callable[..., None]] = {
    Exec: Tracer._exec,
    For: Tracer._loop,
    Let: Tracer._nothing,
    Comment: Tracer._nothing,
    Barrier: Tracer._ordering,
    ClusterBarrier: Tracer._ordering,
    Commit: Tracer._ordering,
    Wait: Tracer._ordering,
    Fence: Tracer._ordering,
    Acquire: Tracer._turn,
    Release: Tracer._turn,
    Roles: Tracer._nothing,
    GridDepControl: Tracer._nothing,
    ClaimTile: Tracer._nothing,  # between the waits for its ring's stage, see `tickets`
    ExitIfDone: Tracer._nothing,  # whose turn without a tile a loop adds
    IfAnyLane: Tracer._nothing,  # of one thread's registers
}
"""What a statement adds to a trace."""
