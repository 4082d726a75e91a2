"""Happens-before: which operations each agent may rely on when it touches memory.

An *operation* is one access of one statement, executed once by one agent, which is a warp. Operations are numbered as they are
issued, and what an agent knows is an integer with a bit for each: `own`, what the thread that issued an operation may rely on,
and `seen`, what every thread of the warp may. Knowledge is joined by OR. Each kind of event has a rule; another way to
order threads is another rule here, and agents may run traces of their own.

An access must know what it conflicts with: for a read the writes before it, for a write the reads as well, for an atomic
addition all but other additions. Operations of one warp need `seen` too, unless the same thread touches each address.
"""

from __future__ import annotations

import bisect
import collections
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import attrs

from fireiron.check.races.footprints import WARP
from fireiron.check.races.traces import AccessEvent, Kind, StageEvent
from fireiron.errors import VerificationError
from fireiron.ir import Barrier, ClusterBarrier, Commit, Fence, FenceKind, Mechanism, Scope, StageState, Stmt, Wait

SameThread: TypeAlias = Callable[[AccessEvent, AccessEvent, int], bool]
"""Whether of a warp the same thread touches each address that two touches share."""

_ORDERED_WITH = {
    Kind.WRITE: (Kind.WRITE, Kind.READ, Kind.ADD),
    Kind.READ: (Kind.WRITE, Kind.ADD),
    Kind.ADD: (Kind.WRITE, Kind.READ),
}
"""The kinds of earlier operations that one of a kind must know."""


@attrs.define(eq=False)
class Agent:
    """A warp on its way through its trace: number `warp` of the block of a `rank`, behind so many `meetings` of its cluster; or the
    first of several warps together (see `crews`).

    `issued` are its operations under way that no commit has put into a group yet, `groups` the groups not waited for, oldest first; copies
    and products apart. `turns` counts the turns of rings that it waited for, and arrived at. Where groups take turns, `over` are the
    phases of barriers that it knows to be over, as bits of `Rounds`, and `passed` by ring the last turn that it waited for.
    `wrote` are its own operations in ordinary memory accesses, `fenced` those of all agents that engines which it sets to work may rely on.
    """

    number: int
    trace: Sequence[Any]
    rank: int
    warp: int
    position: int = 0
    cluster_barriers: int = 0
    own: int = 0
    seen: int = 0
    issued: dict[Mechanism, int] = attrs.field(factory=lambda: collections.defaultdict(int))
    groups: dict[Mechanism, list[int]] = attrs.field(factory=lambda: collections.defaultdict(list))
    turns: dict[Any, int] = attrs.field(factory=dict)
    over: int = 0
    passed: dict[str, int] = attrs.field(factory=dict)
    wrote: int = 0
    fenced: int = 0


@attrs.define(eq=False)
class MbarrierState:
    """A barrier of a ring's stage: what its phase still lacks, what those know who arrived, and how many phases are over.

    `known` is what whoever waited for the last phase may rely on. `coming_over` and `known_over` are the same of phases that are over,
    `coming_fenced` and `known_fenced` of what engines may rely on.
    """

    arrivals: int
    left: int
    bytes: int = 0
    over: int = 0
    coming: int = 0
    known: int = 0
    coming_over: int = 0
    known_over: int = 0
    coming_fenced: int = 0
    known_fenced: int = 0

    def arrive(self, known: int, over: int, count: int, fenced: int = 0) -> None:
        """So many arrivals of an agent that knows so much, of which it `fenced` a part."""
        while count:
            # Of more arrivals than a phase waits for, the others are at the next one; or it is left in its middle.
            together = min(count, self.left) if self.left > 0 else count
            count -= together
            self.left -= together
            self.coming |= known
            self.coming_over |= over
            self.coming_fenced |= fenced
            if not self.left:
                self._settle()

    def bring(self, operation: int, size: int) -> None:
        """Bytes of a load."""
        self.bytes -= size
        self.coming |= operation
        self._settle()

    def _settle(self) -> None:
        if self.left == 0 and self.bytes == 0:
            self.left = self.arrivals
            self.over += 1
            self.known |= self.coming
            self.coming = 0
            self.known_over |= self.coming_over
            self.known_fenced |= self.coming_fenced


class PhaseSets:
    """Sets of phases as the bits of an integer: of each barrier those up to some number, so that the larger of two numbers is an OR."""

    def __init__(self, barriers: Iterable[Any]) -> None:
        self.firsts: dict[Any, list[int]] = {barrier: [0] for barrier in barriers}
        self.places = {barrier: place for place, barrier in enumerate(self.firsts)}

    def up_to(self, barrier: Any, number: int) -> int:
        """The first phases of a barrier."""
        firsts = self.firsts[barrier]
        while len(firsts) <= number:
            firsts.append(firsts[-1] | 1 << ((len(firsts) - 1) * len(self.places) + self.places[barrier]))
        return firsts[max(number, 0)]

    def count(self, barrier: Any, over: int) -> int:
        """How many phases of a barrier a set has."""
        return sum(1 for one in bits(over) if one % len(self.places) == self.places[barrier])


@attrs.frozen(eq=False)
class Race:
    """Two operations that conflict and that nothing orders; `under_way` where the first has not completed for its own thread.

    `hidden` where barriers order them, and an engine reads what no fence has brought to its proxy.
    """

    before: AccessEvent
    behind: AccessEvent
    warps: tuple[int, int]
    in_flight: bool
    hidden: bool = False

    @property
    def reversed(self) -> Race:
        """The same with the other operation first."""
        return attrs.evolve(self, before=self.behind, behind=self.before, warps=self.warps[::-1])


class HappensBefore:
    """Agents run their traces; each touch is held against what its agent knows."""

    def __init__(
        self,
        traces: Sequence[Sequence[Any]],
        blocks: int,
        atoms: int,
        same_thread: SameThread,
        found: dict[Any, Race],
        broken: dict[str, None],
    ) -> None:
        self.each = len(traces) // blocks
        self.agents = [Agent(number, trace, *divmod(number, self.each)) for number, trace in enumerate(traces)]
        self.reached = [-1] * blocks
        self.count = atoms
        self.same_thread = same_thread
        self.found = found
        self.broken = broken
        self.phases: dict[tuple[int, tuple[str, StageState, int]], MbarrierState] = {}
        self.numbers = _numbered(traces)
        self.rounds = PhaseSets(event.barrier for event in _events(traces) if self.numbers and isinstance(event, StageEvent))
        self.touched: list[list[int]] = []
        self.kinds: set[Kind] = set()
        self.latest: dict[tuple[int, int], int] = {}
        self.fine: set[Any] = set()
        self.operations: list[tuple[AccessEvent, int]] = []
        self.of_step: dict[int, int] = {}
        self.waiting: dict[tuple[Scope | None, int], set[int]] = {}
        self.deferred = 0
        self.engines = any(event.by_engine for event in _events(traces) if not isinstance(event, (Stmt, StageEvent)))
        self._forget()

    def run(self) -> None:
        """Run all agents to the end; a `VerificationError` where one waits for ever."""
        moving = True
        while moving:
            moving = False
            for agent in self.agents:
                moving = self._advance(agent) or moving
        waiting = [(agent, agent.trace[agent.position]) for agent in self.agents if agent.position < len(agent.trace)]
        for agent, event in waiting:
            if isinstance(event, StageEvent):
                self.broken.setdefault(
                    f"{event.ring.name}: {self._named(agent)} waits for ever for turn {event.number} to be {event.side.value}"
                )
        for agent, event in waiting:
            if not self.broken:
                raise VerificationError(f"warp {agent.number} waits for ever at {event}")
        for way in {key: None for agent in self.agents for key in agent.turns if key[1] is StageState.FULL and not key[2]}:
            name, side, *_ = way
            filled, awaited = (max(agent.turns.get(one, 0) for agent in self.agents) for one in (way, (name, side, True)))
            if awaited < filled:
                self.broken.setdefault(f"{name}: turn {awaited} is filled, and nobody waits for it")
        for rank, reached in enumerate(self.reached):
            if reached >= min(agent.cluster_barriers for agent in self.agents if agent.rank == rank):
                self.broken.setdefault("a block ends while others of its cluster may arrive at its barriers, or send loads to it")
        for (_, (name, side, stage)), phases in self.phases.items():
            if phases.left != phases.arrivals or phases.bytes:
                self.broken.setdefault(f"{name}: the {side.value} barrier of stage {stage} is left in the middle of a phase")

    def _named(self, agent: Agent) -> str:
        return f"agent {agent.warp}" + (f" of block {agent.rank} of the cluster" if len(self.reached) > 1 else "")

    def _advance(self, agent: Agent) -> bool:
        start, trace, rules = agent.position, agent.trace, self.rules
        while agent.position < len(trace):
            event = trace[agent.position]
            if not rules[type(event)](self, agent, event):
                break
            agent.position += 1
        return agent.position > start

    # -------------------------------------------------------------------------------------- rules

    def _commit(self, agent: Agent, event: Commit) -> bool:
        """The operations issued since the last commit become a group."""
        agent.groups[event.mechanism].append(agent.issued[event.mechanism])
        agent.issued[event.mechanism] = 0
        return True

    def _wait(self, agent: Agent, event: Wait) -> bool:
        """All groups but the last ones complete, for the threads that issued them."""
        groups = agent.groups[event.mechanism]
        done = max(len(groups) - event.groups, 0)
        for group in groups[:done]:
            agent.own |= group
            if event.mechanism.shared_wait:  # all lanes performed it, and all of them wait
                agent.seen |= group
        del groups[:done]
        return True

    def _turn(self, agent: Agent, event: StageEvent) -> bool:
        """A wait passes when its phase is over, and brings what those knew who arrived.

        An arrival brings what the lane knows that arrives.
        """
        phases = self.phases.get((agent.rank, event.barrier)) or self._phases_of(event, agent.rank)
        count = agent.turns.get(event.way, 0)
        numbers = self.numbers.get(event.ring.name)
        number = count if numbers is None else numbers[event.number]
        if event.arrivals is None and (phases.over - event.phase) % 2:
            return False
        agent.turns[event.way] = max(count, number + 1)
        meant = event.phase if number == event.number else number // event.ring.stages + (event.side is StageState.FULL)
        if event.stage != number % event.ring.stages:
            self.broken.setdefault(f"{event} is at stage {event.stage}, and it is the agent's turn {number}")
        elif event.arrivals is None and phases.over != meant:
            self.broken.setdefault(f"{event} passes by parity alone: {phases.over} phases are over, not {meant}")
        if self.numbers:
            self._know(agent, event, phases, meant)
        if event.arrivals is None:
            self._learn(agent, phases.known, phases.known_fenced)
            agent.passed[event.ring.name] = event.number
        else:
            self._arrive(agent, event, phases)
        return True

    def _learn(self, agent: Agent, known: int, fenced: int) -> None:
        """What a wait for a phase brings."""
        agent.own |= known
        agent.seen |= known
        agent.fenced |= fenced

    def _arrive(self, agent: Agent, event: StageEvent, phases: MbarrierState) -> None:
        """What an arrival does, in each block that it reaches."""
        count, known = self._told(agent, event.arrivals or (), event.by)
        fenced = 0 if event.by is None else agent.fenced & known
        if event.side is StageState.FULL and event.by is None:
            phases.bytes += event.ring.bytes if event.part is None else event.part
        if count and event.ring.is_order:
            self._give_on(agent, event)
        for rank in (event.ranks or (agent.rank,)) if count else ():
            if rank == agent.rank or self._reaches(agent, rank, str(event)):
                there = phases if rank == agent.rank else self._phases_of(event, rank)
                there.arrive(known, agent.over, count, fenced)

    def _told(self, agent: Agent, arrivals: Sequence[int], by: Mechanism | None) -> tuple[int, int]:
        """How often an agent arrives, and what whoever waits then knows: of arrivals by a mechanism, where all lanes arrive, what each lane
        did, and what it has under way by the mechanism.
        """
        count = arrivals[agent.warp] if agent.warp < len(arrivals) else 0
        return count, agent.seen if by is None or count % WARP else self._done(agent, by)

    def _done(self, agent: Agent, by: Mechanism) -> int:
        """What is done when a deferred arrival of all lanes happens; engines do not see yet what threads copied."""
        late = agent.issued[by]
        for group in agent.groups[by]:
            late |= group
        self.deferred |= late
        return agent.own | late

    def _know(self, agent: Agent, event: StageEvent, phases: MbarrierState, meant: int) -> None:
        """Where groups take turns, an agent has not been at each phase itself, and others may be behind in another run than this one.

        So it must know of the phase before the one that it waits for that it is over, and so of that before the one that it arrives at.
        Blocks that take turns are in no cluster: an agent comes to barriers of its own block alone.
        """
        if event.arrivals is None:
            before = self.rounds.up_to(event.barrier, meant - 1)
            if agent.over & before != before:
                known = self.rounds.count(event.barrier, agent.over)
                self.broken.setdefault(
                    f"{event} may pass by parity alone: of {meant - 1} phases before it the agent knows {known} to be over"
                )
            agent.over |= phases.known_over | self.rounds.up_to(event.barrier, meant)
        elif event.side is StageState.EMPTY:
            before = self.rounds.up_to(event.barrier, meant)
            if agent.over & before != before:
                known = self.rounds.count(event.barrier, agent.over)
                self.broken.setdefault(f"{event} may count to an earlier phase: of {meant} before it the agent knows {known} to be over")

    def _give_on(self, agent: Agent, event: StageEvent) -> None:
        """Whoever gives a turn of an order on has waited for the one before, which is as many turns later as there are others."""
        awaited = event.number + event.ring.stages - 1
        if agent.passed.get(event.ring.name) != awaited:
            self.broken.setdefault(f"{event} is by an agent that has not waited for turn {awaited}, by which the one before it is over")

    def _phases_of(self, event: StageEvent, rank: int) -> MbarrierState:
        place = rank, event.barrier
        found = self.phases.get(place)
        if found is None:
            arrivals = event.ring.producers if event.side is StageState.FULL else event.ring.consumers
            found = self.phases[place] = MbarrierState(arrivals, arrivals)
        return found

    def _reaches(self, agent: Agent, rank: int, what: str) -> bool:
        """Whether there is a block of this rank, for an agent that reaches into it."""
        if rank >= len(self.reached):
            self.broken.setdefault(f"{what}, in block {rank} of a cluster of {len(self.reached)}")
            return False
        if rank != agent.rank:
            self.reached[rank] = max(self.reached[rank], agent.cluster_barriers)
            if not agent.cluster_barriers:
                self.broken.setdefault(f"{what}, in another block of the cluster, whose barriers may not be made yet")
        return True

    def _meeting(self, agent: Agent, event: ClusterBarrier) -> bool:
        """All agents of all blocks of the cluster."""
        if not self._arrived(agent, (None, 0), self.agents):
            return False
        for one in self.agents:
            one.cluster_barriers += 1
        self._pass(agent, self.agents)
        return True

    def _fence(self, agent: Agent, event: Fence) -> bool:
        """Engines may rely on what the agent wrote to shared memory, and has not under way, once they are set to work by who knows of it.

        Registers are nobody else's.
        """
        if event.kind is FenceKind.ASYNC_PROXY:
            # What others copied, and deferred arrivals told: no thread could fence that before, and a fence on the way to the engine serves
            # (PTX ISA, "Memory Consistency Model": proxy-preserved base causality order).
            agent.fenced |= agent.own & (agent.wrote | self.deferred)
        return True

    def _barrier(self, agent: Agent, event: Barrier) -> bool:
        """The last of its scope that arrives lets all go, and each then knows what any of them did."""
        size = event.scope.threads
        if size is not None and size % WARP:
            raise VerificationError(f"the race check has no rule for a barrier of {event.scope.threads} threads, a part of a warp")
        each = self.each if size is None else size // WARP
        first, behind = agent.rank * self.each, (agent.rank + 1) * self.each
        start = first + agent.warp // each * each
        members = self._of_warps(start, min(start + each, behind))
        if not self._arrived(agent, (event.scope, start), members):
            return False
        self._pass(agent, members)
        return True

    def _of_warps(self, start: int, end: int) -> Sequence[Agent]:
        """The agents of some warps, counted through all blocks."""
        return self.agents[start:end]

    def _arrived(self, agent: Agent, place: tuple[Scope | None, int], members: Sequence[Agent]) -> bool:
        """Whether an agent is the last that a barrier waited for."""
        arrived = self.waiting.setdefault(place, set())
        arrived.add(agent.number)
        if len(arrived) < len(members):
            return False
        arrived.clear()
        return True

    def _pass(self, agent: Agent, members: Sequence[Agent]) -> None:
        self._join(members)
        for other in members:
            other.position += other is not agent

    def _join(self, members: Sequence[Agent]) -> None:
        known = fenced = over = 0
        for one in members:
            known |= one.own
            fenced |= one.fenced
            over |= one.over
        for one in members:
            one.own = one.seen = known
            one.fenced = fenced
            one.over = over
        everything = (1 << len(self.operations)) - 1
        if len(members) == len(self.agents) and known == everything and not self.written & ~fenced:
            self._forget()

    def _forget(self) -> None:
        """All agents know all operations: none of them matters any more."""
        self.touched = [[0] * self.count for _ in Kind]
        self.kinds.clear()
        self.latest.clear()
        self.operations.clear()
        self.of_step.clear()
        self.written = self.deferred = 0
        for agent in self.agents:
            agent.own = agent.seen = agent.wrote = agent.fenced = 0
            for groups in agent.groups.values():
                groups[:] = [0] * len(groups)

    def _touch(self, agent: Agent, event: AccessEvent) -> bool:
        atoms = event.footprint.atoms[agent.warp] if event.footprint.atoms else ()
        if not atoms:
            return True
        met = self._met(event, atoms)
        # `own` would not do: it is what an issuing thread knows, and lanes are not told apart here. `_meet` compares them.
        late = met & ~(agent.seen | self._ordered_within(event))
        if late:
            self._meet(agent, event, late)
        if event.by_engine and (hidden := met & self.written & ~agent.fenced):  # of the same thread, too
            self._meet(agent, event, hidden, hidden=True)
        self._record(agent, event, atoms)
        return True

    def _met(self, event: AccessEvent, atoms: Sequence[int]) -> int:
        """The operations on atoms that one of this kind must know."""
        met = 0
        for other in _ORDERED_WITH[event.kind]:
            if other in self.kinds:
                former = self.touched[other]
                for atom in atoms:
                    met |= former[atom]
        return met

    def _ordered_within(self, event: AccessEvent) -> int:
        """The operations of the same execution of the same statement, which its own threads order."""
        return self.of_step.get(event.step, 0)

    def _record(self, agent: Agent, event: AccessEvent, atoms: Sequence[int]) -> None:
        bit = 1 << len(self.operations)
        self.operations.append((event, agent.number))
        self.of_step[event.step] = self.of_step.get(event.step, 0) | bit
        known = agent.own
        if self.engines and event.kind != Kind.READ and not event.by_engine:
            self.written |= bit
            agent.wrote |= bit
        if event.turn is not None:
            self._bring(agent, event.turn, bit, event.bytes)
        elif event.in_flight:
            agent.issued[event.mechanism] |= bit
        else:
            agent.own |= bit
        self.kinds.add(event.kind)
        mine = self.touched[event.kind]
        if event.kind != Kind.WRITE:
            former_bit = self._again(agent, event, bit)
            # Of reads, or additions, that are the same the last is enough: whoever knows it knows the one before.
            either = former_bit | bit
            for atom in atoms:
                mine[atom] = (mine[atom] | either) ^ former_bit  # without the former bit; a complement would take longer
            return
        for kind in self.kinds:  # whoever knows this write knows what this agent knew, and was held against it by now
            former = self.touched[kind]
            for atom in atoms:
                if former[atom]:
                    former[atom] = (former[atom] | known) ^ known
        for atom in atoms:
            mine[atom] |= bit

    def _bring(self, agent: Agent, turn: StageEvent, bit: int, size: int) -> None:
        """The bytes of a load, in each block that it arrives in."""
        for rank in turn.ranks:
            if rank == agent.rank or self._reaches(agent, rank, f"{turn.ring.name}: turn {turn.number} is loaded"):
                self._phases_of(turn, rank).bring(bit, size)

    def _again(self, agent: Agent, event: AccessEvent, bit: int) -> int:
        """The last operation that was the same, which whoever knows this one knows."""
        key = agent.number, id(event.footprint)
        former = self.latest.get(key, 0)
        self.latest[key] = bit
        return former

    def _meet(self, agent: Agent, event: AccessEvent, late: int, hidden: bool = False) -> None:
        """Operations that an agent does not know and that touch what it touches; or that its engine does not, if they are `hidden`."""
        for number in bits(late):
            before, other = self.operations[number]
            warp = self.agents[other].warp
            if hidden:
                self.found.setdefault(mark(before, event), Race(before, event, (warp, agent.warp), False, hidden=True))
                continue
            pair = before.footprint, event.footprint, other, agent.number
            in_flight = before.in_flight and not self.agents[other].own >> number & 1
            if (not in_flight and pair in self.fine) or mark(before, event) in self.found:
                continue
            if other != agent.number or in_flight or not self.same_thread(before, event, warp):
                race = Race(before, event, (warp, agent.warp), in_flight)
                self.found[mark(before, event)] = race if before.step <= event.step or in_flight else race.reversed
            else:
                self.fine.add(pair)

    rules: ClassVar[Mapping[type, Callable[..., bool]]] = MappingProxyType(
        {AccessEvent: _touch, Barrier: _barrier, ClusterBarrier: _meeting, Commit: _commit, Wait: _wait, Fence: _fence, StageEvent: _turn}
    )
    """What an event does to its agent; false where the agent must wait."""


def _events(traces: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """The events of traces, of equal ones once."""
    return itertools.chain.from_iterable({id(one): one for one in traces}.values())


def _numbered(traces: Sequence[Sequence[Any]]) -> Mapping[str, Mapping[int, int]]:
    """The turns of each ring that are followed, counted from 0, where groups of agents take them in turns; else each agent counts its own.

    Warpgroups of one role take those of their order in turns, and all have each turn of other rings.

    Of long loops some iterations are left out, so the numbers have gaps. The turns are those that a producer fills, and those of an
    order that are given on; others are as far from the nearest of these as their numbers are.
    """
    turns = [event for event in _events(traces) if isinstance(event, StageEvent)]
    if not any(event.ring.is_order and not event.ring.each for event in turns):
        turns = [event for event in turns if event.ring.is_order]
    filled: dict[str, set[int]] = {}
    for event in turns:
        if event.arrivals is not None and (event.side is StageState.FULL or event.ring.is_order):
            filled.setdefault(event.ring.name, set()).add(event.number)
    found: dict[str, dict[int, int]] = {event.ring.name: {} for event in turns}
    in_order = {name: sorted(numbers) for name, numbers in filled.items()}
    for event in turns:
        numbers = found[event.ring.name]
        if event.number not in numbers:
            known = in_order.get(event.ring.name, [event.number])
            behind = bisect.bisect_left(known, event.number)
            near = range(max(behind - 1, 0), min(behind + 1, len(known)))
            position = min(near, key=lambda one: abs(known[one] - event.number))
            numbers[event.number] = position + event.number - known[position]
    return found


def mark(one: AccessEvent, other: AccessEvent) -> Any:
    """What two conflicts share that are one to the reader: their statements and accesses."""
    return frozenset((id(touch.use.statement), touch.use.access) for touch in (one, other))


def bits(value: int) -> Iterator[int]:
    """The numbers of the bits that are set, the lowest first."""
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low
