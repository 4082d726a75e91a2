"""Happens-before analysis: which operations each agent knows when it accesses memory.

An *operation* is one access of one statement, executed once by one agent. An agent is a warp. It *knows* an operation that is ordered
before its next event. Operations are numbered in issue order. The knowledge of an agent is an integer with one bit per operation: `own`
contains what the issuing thread knows, `seen` what every thread of the warp knows. OR joins knowledge. Each kind of event has a rule. A new
kind of synchronization needs one more rule here. Agents may run different traces.

Before an access, its agent must know the earlier operations that conflict with it: for a read the writes, for a write also the reads, and
for an atomic addition everything except other additions. For operations of the same warp, `seen` decides, unless the same thread accesses
each address.
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
from fireiron.frozen import frozen
from fireiron.ir import Barrier, ClusterBarrier, Commit, Fence, FenceKind, Mechanism, Scope, SemaphoreBarrier, StageState, Stmt, Wait

SameThread: TypeAlias = Callable[[AccessEvent, AccessEvent, int], bool]
"""Whether the same thread of a warp accesses each address that two accesses share."""

_ORDERED_WITH = {
    Kind.WRITE: (Kind.WRITE, Kind.READ, Kind.ADD),
    Kind.READ: (Kind.WRITE, Kind.ADD),
    Kind.ADD: (Kind.WRITE, Kind.READ),
}
"""For each kind of operation, the kinds of earlier operations that must be known before it."""


@attrs.define(eq=False)
class Agent:
    """A warp that executes its trace, or the first warp of a warpgroup that acts as one agent (`warpgroup_agents`).

    - `warp`: its number in the block with cluster rank `rank`. `cluster_barriers`: the number of cluster barriers that it has passed.
    - `own`, `seen`: the operations that its issuing thread, and all its threads, know.
    - `issued`: its operations in flight since the last commit. `groups`: its committed groups, oldest first. Both are by mechanism.
    - `event_counts`: the number of its waits and arrivals in each sequence of fills.
    - `completed`: if agents alternate fills, the set of mbarrier phases (`PhaseSets`) that it knows to be complete. `last_waited`: the last
      fill that it waited for, by ring.
    - `wrote`: its own operations through the generic proxy. `fenced`: the operations of all agents that are visible to the async proxy when
      this agent issues work.
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
    event_counts: dict[Any, int] = attrs.field(factory=dict)
    completed: int = 0
    last_waited: dict[str, int] = attrs.field(factory=dict)
    wrote: int = 0
    fenced: int = 0


@attrs.define(eq=False)
class MbarrierState:
    """An mbarrier of a ring stage: pending arrivals and bytes of its phase, knowledge of the arriving agents, and the number of completed
    phases.

    `known` are the operations that an agent knows after a wait for the last completed phase, `known_completed` the phases, and
    `known_fenced` the fenced operations. The `arriving` fields collect all three for the phase in progress.
    """

    arrivals: int
    pending_arrivals: int
    bytes: int = 0
    completed: int = 0
    arriving: int = 0
    known: int = 0
    arriving_completed: int = 0
    known_completed: int = 0
    arriving_fenced: int = 0
    known_fenced: int = 0

    def arrive(self, known: int, completed: int, count: int, fenced: int = 0) -> None:
        """Count `count` arrivals of an agent with this knowledge."""
        while count:
            # Arrivals beyond the pending ones count to the next phase, which may stay incomplete.
            together = min(count, self.pending_arrivals) if self.pending_arrivals > 0 else count
            count -= together
            self.pending_arrivals -= together
            self.arriving |= known
            self.arriving_completed |= completed
            self.arriving_fenced |= fenced
            if not self.pending_arrivals:
                self._complete_phase()

    def complete_bytes(self, operation: int, size: int) -> None:
        """Count the bytes of a load."""
        self.bytes -= size
        self.arriving |= operation
        self._complete_phase()

    def _complete_phase(self) -> None:
        if self.pending_arrivals == 0 and self.bytes == 0:
            self.pending_arrivals = self.arrivals
            self.completed += 1
            self.known |= self.arriving
            self.arriving = 0
            self.known_completed |= self.arriving_completed
            self.known_fenced |= self.arriving_fenced


class PhaseSets:
    """Sets of mbarrier phases as bits of an integer. A set holds the first n phases of each mbarrier, so that OR takes the larger n."""

    def __init__(self, barriers: Iterable[Any]) -> None:
        self.firsts: dict[Any, list[int]] = {barrier: [0] for barrier in barriers}
        self.positions = {barrier: position for position, barrier in enumerate(self.firsts)}

    def first_phases(self, barrier: Any, number: int) -> int:
        """The set of phases up to `number` of an mbarrier."""
        firsts = self.firsts[barrier]
        while len(firsts) <= number:
            firsts.append(firsts[-1] | 1 << ((len(firsts) - 1) * len(self.positions) + self.positions[barrier]))
        return firsts[max(number, 0)]

    def count(self, barrier: Any, completed: int) -> int:
        """The number of phases of an mbarrier in a set."""
        return sum(1 for one in bits(completed) if one % len(self.positions) == self.positions[barrier])


@frozen(eq=False)
class Race:
    """Two conflicting operations that no event orders.

    `in_flight`: the first one has not completed for its own thread. `unfenced`: barriers order them, but no proxy fence makes the write
    visible to the async proxy that reads.
    """

    before: AccessEvent
    after: AccessEvent
    warps: tuple[int, int]
    in_flight: bool
    unfenced: bool = False

    @property
    def reversed(self) -> Race:
        """The same race with the other operation first."""
        return attrs.evolve(self, before=self.after, after=self.before, warps=self.warps[::-1])


class HappensBefore:
    """Run all agents and compare each access with what its agent knows."""

    def __init__(
        self,
        traces: Sequence[Sequence[Any]],
        blocks: int,
        atoms: int,
        same_thread: SameThread,
        races: dict[Any, Race],
        violations: dict[str, None],
    ) -> None:
        self.each = len(traces) // blocks
        self.agents = [Agent(number, trace, *divmod(number, self.each)) for number, trace in enumerate(traces)]
        self.reached = [-1] * blocks
        self.count = atoms
        self.same_thread = same_thread
        self.races = races
        self.violations = violations
        self.mbarriers: dict[tuple[int, tuple[str, StageState, int]], MbarrierState] = {}
        self.numbers = _numbered(traces)
        self.phase_sets = PhaseSets(event.barrier for event in _events(traces) if self.numbers and isinstance(event, StageEvent))
        self.operations_on: list[list[int]] = []
        self.kinds: set[Kind] = set()
        self.latest_equal: dict[tuple[int, int], int] = {}
        self.ordered_pairs: set[Any] = set()
        self.operations: list[tuple[AccessEvent, int]] = []
        self.operations_of_step: dict[int, int] = {}
        self.waiting: dict[tuple[Scope | None, int], set[int]] = {}
        self.deferred = 0
        self.uses_async_proxy = any(event.by_engine for event in _events(traces) if not isinstance(event, (Stmt, StageEvent)))
        self._forget()

    def run(self) -> None:
        """Run all agents to the end. Raise `VerificationError` if one waits forever."""
        moving = True
        while moving:
            moving = False
            for agent in self.agents:
                moving = self._advance(agent) or moving
        waiting = [(agent, agent.trace[agent.position]) for agent in self.agents if agent.position < len(agent.trace)]
        for agent, event in waiting:
            if isinstance(event, StageEvent):
                self.violations.setdefault(
                    f"{event.ring.name}: {self._agent_name(agent)} waits forever for fill {event.number} to be {event.state.value}"
                )
        for agent, event in waiting:
            if not self.violations:
                raise VerificationError(f"warp {agent.number} waits forever at {event}")
        for fill_sequence in {key: None for agent in self.agents for key in agent.event_counts if key[1] is StageState.FULL and not key[2]}:
            name, state, *_ = fill_sequence
            filled, awaited = (max(agent.event_counts.get(one, 0) for agent in self.agents) for one in (fill_sequence, (name, state, True)))
            if awaited < filled:
                self.violations.setdefault(f"{name}: no agent waits for fill {awaited}")
        for rank, reached in enumerate(self.reached):
            if reached >= min(agent.cluster_barriers for agent in self.agents if agent.rank == rank):
                self.violations.setdefault(
                    "a block exits while other blocks of its cluster may still arrive at its mbarriers or send loads to it"
                )
        for (_, (name, state, stage)), mbarrier in self.mbarriers.items():
            if mbarrier.pending_arrivals != mbarrier.arrivals or mbarrier.bytes:
                self.violations.setdefault(f"{name}: the {state.value} mbarrier of stage {stage} ends with an incomplete phase")

    def _agent_name(self, agent: Agent) -> str:
        return f"agent {agent.warp}" + (f" of block {agent.rank} of the cluster" if len(self.reached) > 1 else "")

    def _advance(self, agent: Agent) -> bool:
        start, trace, rules = agent.position, agent.trace, self.rules
        while agent.position < len(trace):
            event = trace[agent.position]
            if not rules[event.__class__](self, agent, event):
                break
            agent.position += 1
        return agent.position > start

    # -------------------------------------------------------------------------------------- rules

    def _commit(self, agent: Agent, event: Commit) -> bool:
        """Make a group of the operations issued since the last commit."""
        agent.groups[event.mechanism].append(agent.issued[event.mechanism])
        agent.issued[event.mechanism] = 0
        return True

    def _wait(self, agent: Agent, event: Wait) -> bool:
        """Complete all groups but the last `event.groups` ones, for the threads that issued them."""
        groups = agent.groups[event.mechanism]
        done = max(len(groups) - event.groups, 0)
        for group in groups[:done]:
            agent.own |= group
            if event.mechanism.shared_wait:  # all lanes issued it, and all lanes wait
                agent.seen |= group
        del groups[:done]
        return True

    def _stage_event(self, agent: Agent, event: StageEvent) -> bool:
        """Pass a wait if its phase is complete, and add the knowledge of the arriving agents; or arrive with that of the arriving lane."""
        mbarrier = self.mbarriers.get((agent.rank, event.barrier)) or self._mbarrier(event, agent.rank)
        count = agent.event_counts.get(event.fill_sequence, 0)
        numbers = self.numbers.get(event.ring.name)
        number = count if numbers is None else numbers[event.number]
        if event.arrivals is None and (mbarrier.completed - event.phase) % 2:
            return False
        agent.event_counts[event.fill_sequence] = max(count, number + 1)
        expected = event.phase if number == event.number else number // event.ring.stages + (event.state is StageState.FULL)
        if event.stage != number % event.ring.stages:
            self.violations.setdefault(f"{event} uses stage {event.stage}, but the agent is at fill {number}")
        elif event.arrivals is None and mbarrier.completed != expected:
            self.violations.setdefault(f"{event} passes by parity alone: {mbarrier.completed} phases are complete, not {expected}")
        if self.numbers:
            self._require_known_phases(agent, event, mbarrier, expected)
        if event.arrivals is None:
            self._learn_from_phase(agent, mbarrier.known, mbarrier.known_fenced)
            agent.last_waited[event.ring.name] = event.number
        else:
            self._arrive(agent, event, mbarrier)
        return True

    def _learn_from_phase(self, agent: Agent, known: int, fenced: int) -> None:
        """Add the knowledge that a wait for a phase provides."""
        agent.own |= known
        agent.seen |= known
        agent.fenced |= fenced

    def _arrive(self, agent: Agent, event: StageEvent, mbarrier: MbarrierState) -> None:
        """Arrive at the mbarrier of each block that the event names."""
        count, known = self._arrival_knowledge(agent, event.arrivals or (), event.by)
        fenced = 0 if event.by is None else agent.fenced & known
        if event.state is StageState.FULL and event.by is None:
            mbarrier.bytes += event.ring.bytes if event.part is None else event.part
        if count and event.ring.is_order:
            self._require_order_handoff(agent, event)
        for rank in (event.ranks or (agent.rank,)) if count else ():
            if rank == agent.rank or self._require_rank(agent, rank, str(event)):
                target = mbarrier if rank == agent.rank else self._mbarrier(event, rank)
                target.arrive(known, agent.completed, count, fenced)

    def _arrival_knowledge(self, agent: Agent, arrivals: Sequence[int], by: Mechanism | None) -> tuple[int, int]:
        """The number of arrivals of an agent, and the operations that a waiting agent then knows. If all lanes arrive by a mechanism, these
        include the operations of each lane that are in flight by this mechanism.
        """
        count = arrivals[agent.warp] if agent.warp < len(arrivals) else 0
        return count, agent.seen if by is None or count % WARP else self._known_after_deferred(agent, by)

    def _known_after_deferred(self, agent: Agent, by: Mechanism) -> int:
        """The operations that are known after a deferred arrival of all lanes. Copies by threads are not yet visible to the async proxy."""
        late = agent.issued[by]
        for group in agent.groups[by]:
            late |= group
        self.deferred |= late
        return agent.own | late

    def _require_known_phases(self, agent: Agent, event: StageEvent, mbarrier: MbarrierState, expected: int) -> None:
        """Require that an agent knows the phases before the one that it waits for, or arrives at, to be complete.

        If agents alternate fills, an agent does not pass each phase itself, and in another schedule the other agents may be late. Rings
        with alternating fills are not used across a cluster, so only the agent's own block matters.
        """
        if event.arrivals is None:
            before = self.phase_sets.first_phases(event.barrier, expected - 1)
            if agent.completed & before != before:
                known = self.phase_sets.count(event.barrier, agent.completed)
                self.violations.setdefault(
                    f"{event} may pass by parity alone: the agent knows that {known} of {expected - 1} earlier phases are complete"
                )
            agent.completed |= mbarrier.known_completed | self.phase_sets.first_phases(event.barrier, expected)
        elif event.state is StageState.EMPTY:
            before = self.phase_sets.first_phases(event.barrier, expected)
            if agent.completed & before != before:
                known = self.phase_sets.count(event.barrier, agent.completed)
                self.violations.setdefault(
                    f"{event} may count to an earlier phase: the agent knows that {known} of {expected} earlier phases are complete"
                )

    def _require_order_handoff(self, agent: Agent, event: StageEvent) -> None:
        """Require that an agent that releases a fill of an order has waited for the fill `stages - 1` later: that fill is released when the
        preceding one is complete.
        """
        awaited = event.number + event.ring.stages - 1
        if agent.last_waited.get(event.ring.name) != awaited:
            self.violations.setdefault(f"{event} is by an agent that has not waited for fill {awaited}, which completes the preceding one")

    def _mbarrier(self, event: StageEvent, rank: int) -> MbarrierState:
        key = rank, event.barrier
        state = self.mbarriers.get(key)
        if state is None:
            arrivals = event.ring.producers if event.state is StageState.FULL else event.ring.consumers
            state = self.mbarriers[key] = MbarrierState(arrivals, arrivals)
        return state

    def _require_rank(self, agent: Agent, rank: int, what: str) -> bool:
        """Whether the cluster has a block of this rank; report a missing block, and a remote access before the first cluster barrier."""
        if rank >= len(self.reached):
            self.violations.setdefault(f"{what}, in block {rank} of a cluster of {len(self.reached)}")
            return False
        if rank != agent.rank:
            self.reached[rank] = max(self.reached[rank], agent.cluster_barriers)
            if not agent.cluster_barriers:
                self.violations.setdefault(f"{what}, in another block of the cluster, whose mbarriers may not be initialized yet")
        return True

    def _cluster_barrier(self, agent: Agent, event: ClusterBarrier) -> bool:
        """Synchronize all agents of all blocks of the cluster."""
        if not self._is_last_arrival(agent, (None, 0), self.agents):
            return False
        for other in self.agents:
            other.cluster_barriers += 1
        self._pass_barrier(agent, self.agents)
        return True

    def _fence(self, agent: Agent, event: Fence) -> bool:
        """Make the completed writes of the agent to shared memory visible to the async proxy. Register fences affect no other agent."""
        if event.kind is FenceKind.ASYNC_PROXY:
            # A thread may also fence what other threads copied and deferred arrivals published: a fence between the arrival and the
            # async-proxy access suffices (PTX ISA, "Memory Consistency Model": proxy-preserved base causality order).
            agent.fenced |= agent.own & (agent.wrote | self.deferred)
        return True

    def _barrier(self, agent: Agent, event: Barrier) -> bool:
        """Synchronize the agents of a scope: each of them then knows all operations that any of them knew."""
        size = event.scope.threads
        if size is not None and size % WARP:
            raise VerificationError(f"the race check has no rule for a barrier of {event.scope.threads} threads, a part of a warp")
        each = self.each if size is None else size // WARP
        first, after = agent.rank * self.each, (agent.rank + 1) * self.each
        start = first + agent.warp // each * each
        members = self._of_warps(start, min(start + each, after))
        if not self._is_last_arrival(agent, (event.scope, start), members):
            return False
        self._pass_barrier(agent, members)
        return True

    def _of_warps(self, start: int, end: int) -> Sequence[Agent]:
        """The agents of a range of warps, numbered through all blocks."""
        return self.agents[start:end]

    def _is_last_arrival(self, agent: Agent, place: tuple[Scope | None, int], members: Sequence[Agent]) -> bool:
        """Whether an agent is the last arrival that a barrier waits for."""
        arrived = self.waiting.setdefault(place, set())
        arrived.add(agent.number)
        if len(arrived) < len(members):
            return False
        arrived.clear()
        return True

    def _pass_barrier(self, agent: Agent, members: Sequence[Agent]) -> None:
        self._join_knowledge(members)
        for other in members:
            other.position += other is not agent

    def _join_knowledge(self, members: Sequence[Agent]) -> None:
        known = fenced = completed = 0
        for member in members:
            known |= member.own
            fenced |= member.fenced
            completed |= member.completed
        for member in members:
            member.own = member.seen = known
            member.fenced = fenced
            member.completed = completed
        everything = (1 << len(self.operations)) - 1
        if len(members) == len(self.agents) and known == everything and not self.written & ~fenced:
            self._forget()

    def _forget(self) -> None:
        """Drop all operations: every agent knows all of them."""
        self.operations_on = [[0] * self.count for _ in Kind]
        self.kinds.clear()
        self.latest_equal.clear()
        self.operations.clear()
        self.operations_of_step.clear()
        self.written = self.deferred = 0
        for agent in self.agents:
            agent.own = agent.seen = agent.wrote = agent.fenced = 0
            for groups in agent.groups.values():
                groups[:] = [0] * len(groups)

    def _access(self, agent: Agent, event: AccessEvent) -> bool:
        atoms = event.footprint.atoms[agent.warp] if event.footprint.atoms else ()
        if not atoms:
            return True
        conflicting = self._conflicting(event, atoms)
        # `own` would not suffice: it is the knowledge of the issuing thread, and lanes are not distinguished here. `_report_unordered`
        # compares the threads.
        late = conflicting & ~(agent.seen | self._ordered_within(event))
        if late:
            self._report_unordered(agent, event, late)
        if event.by_engine and (unfenced := conflicting & self.written & ~agent.fenced):  # also by the same thread
            self._report_unordered(agent, event, unfenced, unfenced=True)
        self._record(agent, event, atoms)
        return True

    def _conflicting(self, event: AccessEvent, atoms: Sequence[int]) -> int:
        """The operations on these atoms that an access of this kind must know."""
        conflicting = 0
        for other in _ORDERED_WITH[event.kind]:
            if other in self.kinds:
                earlier = self.operations_on[other]
                for atom in atoms:
                    conflicting |= earlier[atom]
        return conflicting

    def _ordered_within(self, event: AccessEvent) -> int:
        """The operations of the same execution of the same statement, which need no order."""
        return self.operations_of_step.get(event.step, 0)

    def _record(self, agent: Agent, event: AccessEvent, atoms: Sequence[int]) -> None:
        bit = 1 << len(self.operations)
        self.operations.append((event, agent.number))
        self.operations_of_step[event.step] = self.operations_of_step.get(event.step, 0) | bit
        known = agent.own
        if self.uses_async_proxy and event.kind != Kind.READ and not event.by_engine:
            self.written |= bit
            agent.wrote |= bit
        if event.fill is not None:
            self._complete_bytes(agent, event.fill, bit, event.bytes)
        elif event.in_flight:
            agent.issued[event.mechanism] |= bit
        else:
            agent.own |= bit
        self.kinds.add(event.kind)
        operations = self.operations_on[event.kind]
        if event.kind != Kind.WRITE:
            previous_bit = self._previous_equal(agent, event, bit)
            # Of equal reads or additions, the last one suffices: an agent that knows the last one also knows the previous one.
            either = previous_bit | bit
            for atom in atoms:
                operations[atom] = (operations[atom] | either) ^ previous_bit  # clears the former bit; a complement would take longer
            return
        # An agent that knows this write also knows the operations that this agent knew, and these have been compared with the write.
        for kind in self.kinds:
            earlier = self.operations_on[kind]
            for atom in atoms:
                if earlier[atom]:
                    earlier[atom] = (earlier[atom] | known) ^ known
        for atom in atoms:
            operations[atom] |= bit

    def _complete_bytes(self, agent: Agent, fill: StageEvent, bit: int, size: int) -> None:
        """Count the bytes of a load in each block that receives it."""
        for rank in fill.ranks:
            if rank == agent.rank or self._require_rank(agent, rank, f"{fill.ring.name}: fill {fill.number} is loaded"):
                self._mbarrier(fill, rank).complete_bytes(bit, size)

    def _previous_equal(self, agent: Agent, event: AccessEvent, bit: int) -> int:
        """The previous equal operation. An agent that knows the new operation also knows the previous one."""
        key = agent.number, id(event.footprint)
        earlier = self.latest_equal.get(key, 0)
        self.latest_equal[key] = bit
        return earlier

    def _report_unordered(self, agent: Agent, event: AccessEvent, late: int, unfenced: bool = False) -> None:
        """Report conflicting operations that an agent does not know; or, if `unfenced`, that are not visible to the async proxy."""
        for number in bits(late):
            before, other = self.operations[number]
            warp = self.agents[other].warp
            if unfenced:
                self.races.setdefault(mark(before, event), Race(before, event, (warp, agent.warp), False, unfenced=True))
                continue
            pair = before.footprint, event.footprint, other, agent.number
            in_flight = before.in_flight and not self.agents[other].own >> number & 1
            if (not in_flight and pair in self.ordered_pairs) or mark(before, event) in self.races:
                continue
            if other != agent.number or in_flight or not self.same_thread(before, event, warp):
                race = Race(before, event, (warp, agent.warp), in_flight)
                self.races[mark(before, event)] = race if before.step <= event.step or in_flight else race.reversed
            else:
                self.ordered_pairs.add(pair)

    rules: ClassVar[Mapping[type, Callable[..., bool]]] = MappingProxyType(
        {
            AccessEvent: _access,
            Barrier: _barrier,
            SemaphoreBarrier: _barrier,
            ClusterBarrier: _cluster_barrier,
            Commit: _commit,
            Wait: _wait,
            Fence: _fence,
            StageEvent: _stage_event,
        }
    )
    """The effect of each kind of event on its agent; False if the agent must wait."""


def _events(traces: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """The events of traces; equal traces count once."""
    return itertools.chain.from_iterable({id(one): one for one in traces}.values())


def _numbered(traces: Sequence[Sequence[Any]]) -> Mapping[str, Mapping[int, int]]:
    """For each ring whose fills agents alternate, numbers from 0 of the followed fills, by fill index. In other rings, each agent counts
    its own fills.

    Warpgroups of one role alternate the fills of their order, and all of them use each fill of other rings. Iterations of long loops are
    skipped, so fill indices have gaps. The followed fills are those that a producer fills, and those of an order that are released. Any
    other index keeps its distance to the nearest of these.
    """
    stage_events = [event for event in _events(traces) if event.__class__ is StageEvent]
    if not any(event.ring.is_order and not event.ring.each for event in stage_events):
        stage_events = [event for event in stage_events if event.ring.is_order]
    filled: dict[str, set[int]] = {}
    for event in stage_events:
        if event.arrivals is not None and (event.state is StageState.FULL or event.ring.is_order):
            filled.setdefault(event.ring.name, set()).add(event.number)
    indices: dict[str, dict[int, int]] = {event.ring.name: {} for event in stage_events}
    sorted_fills = {name: sorted(index_of) for name, index_of in filled.items()}
    for event in stage_events:
        index_of = indices[event.ring.name]
        if event.number not in index_of:
            fills = sorted_fills.get(event.ring.name, [event.number])
            after = bisect.bisect_left(fills, event.number)
            candidates = range(max(after - 1, 0), min(after + 1, len(fills)))
            position = min(candidates, key=lambda one: abs(fills[one] - event.number))
            index_of[event.number] = position + event.number - fills[position]
    return indices


def mark(access: AccessEvent, other: AccessEvent) -> Any:
    """The key of a conflict: the statements and accesses of both sides. Conflicts with equal keys are reported once."""
    return frozenset((id(touch.use.statement), touch.use.access) for touch in (access, other))


def bits(value: int) -> Iterator[int]:
    """The indices of the set bits, lowest first."""
    while value:
        low = value & -value
        yield low.bit_length() - 1
        value ^= low
