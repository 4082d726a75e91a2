"""Follow the warps of a warpgroup that run the same trace as one agent, which executes each event for all of them.

A warpgroup agent knows what each of its warps knows. For its own operations, `seen` holds what each warp knows about its *own* part, and
`known_to_all` what each warp knows about the parts of *all* warps. A barrier that spans the warps provides all parts; a wait for copies or
MMAs provides the own part only. An arrival of all warps passes on the parts of all of them; an arrival of some passes on only what each
warp knows of all. If a single warp accesses an atom in the whole kernel, the own parts decide; for other atoms all parts must be known.

If all segments are ordered for warpgroup agents, they are ordered for their warps. This takes a quarter of the time of following each warp.
The converse does not hold.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

import attrs

from fireiron.check.races.footprints import WARP
from fireiron.check.races.order import Agent, MbarrierState
from fireiron.check.races.segments import SEVERAL, Segment, SegmentOrder, Unordered
from fireiron.check.races.traces import Kind, StageEvent
from fireiron.errors import VerificationError
from fireiron.frozen import frozen
from fireiron.ir import Barrier, Fence, FenceKind, Mechanism, SemaphoreBarrier

WARPGROUP_WARPS = 4
"""Warps of a warpgroup. A barrier of at least this many warps includes the whole warpgroup."""


@attrs.define(eq=False)
class WarpgroupAgent(Agent):
    """An agent for `warps` warps, of which `warp` is the first.

    `seen` and `fenced` contain operations of which each warp knows its own part, `known_to_all` and `fenced_for_all` operations of which
    each warp knows the parts of all warps.
    """

    warps: int = 1
    known_to_all: int = 0
    fenced_for_all: int = 0

    @property
    def members(self) -> range:
        """The numbers of its warps in the block."""
        return range(self.warp, self.warp + self.warps)


@frozen(eq=False)
class AccessedAtoms:
    """The atoms of an area that an agent accesses: those that a single warp accesses, and the others. `twice`: two of its warps access the
    same atom.
    """

    own: Sequence[int]
    others: Sequence[int]
    twice: bool


class WarpgroupOrder(SegmentOrder):
    """Run segments with warpgroup agents."""

    def __init__(self, traces: Sequence[Sequence[Any]], blocks: int, atoms: int) -> None:
        super().__init__(traces, blocks, atoms)
        self.warpgroups = list(self._warpgroups(traces))
        self.agents = [*self.warpgroups]
        self.accessed_atoms: dict[tuple[int, int], AccessedAtoms] = {}
        self.counted_arrivals: dict[tuple[Sequence[int], int], tuple[int, bool, bool]] = {}
        self.warp_count = Counter(itertools.chain.from_iterable(self._atoms_of_warps()))

    def run_all(self) -> bool:
        try:
            return super().run_all()
        except VerificationError:  # warpgroup agents may deadlock where single warps would proceed
            return False

    def _warpgroups(self, traces: Sequence[Sequence[Any]]) -> Iterator[WarpgroupAgent]:
        def place(number: int) -> tuple[int, int, int]:
            rank, warp = divmod(number, self.each)
            return rank, warp // WARPGROUP_WARPS, id(traces[number])

        for agent, (_, numbers) in enumerate(itertools.groupby(range(len(traces)), place)):
            first, *others = numbers
            yield WarpgroupAgent(agent, traces[first], *divmod(first, self.each), warps=1 + len(others))

    def _atoms_of_warps(self) -> Iterator[set[int]]:
        """The atoms that each warp accesses."""
        for agent in self.warpgroups:
            areas = {id(one.footprint): one.footprint for one in agent.trace if one.__class__ is Segment and one.footprint.atoms}
            for warp in agent.members:
                yield set(itertools.chain.from_iterable(area.atoms[warp] for area in areas.values()))

    def _atoms(self, agent: WarpgroupAgent, event: Segment) -> AccessedAtoms:
        result = self.accessed_atoms.get((id(event.footprint), agent.number))
        if result is None:
            atoms = event.footprint.atoms
            counts = Counter(itertools.chain.from_iterable(atoms[warp] for warp in agent.members)) if atoms else Counter()
            exclusive = {atom for atom in counts if agent.warps == 1 or self.warp_count[atom] == 1}
            result = AccessedAtoms(sorted(exclusive), sorted(counts.keys() - exclusive), any(count > 1 for count in counts.values()))
            self.accessed_atoms[id(event.footprint), agent.number] = result
        return result

    # -------------------------------------------------------------------------------------- rules

    def _access_together(self, agent: WarpgroupAgent, event: Any) -> bool:
        reached = self._atoms(agent, event)
        if reached.twice and event.step == SEVERAL and event.kind is Kind.WRITE:
            raise Unordered
        within = self._ordered_within(event)
        for atoms, seen, fenced in ((reached.own, agent.seen, agent.fenced), (reached.others, agent.known_to_all, agent.fenced_for_all)):
            conflicting = self._conflicting(event, atoms)
            if conflicting & ~(seen | within) or (event.by_engine and conflicting & self.written & ~fenced):
                raise Unordered
        if reached.own or reached.others:
            self._record(agent, event, (*reached.own, *reached.others))
        return True

    def _barrier_together(self, agent: WarpgroupAgent, event: Barrier) -> bool:
        size = event.scope.threads
        if size is None or size % WARP or size >= agent.warps * WARP:
            return self._barrier(agent, event)
        agent.seen |= agent.own  # each warp at least synchronizes with itself
        return True

    def _of_warps(self, start: int, end: int) -> Sequence[Agent]:
        firsts = [agent.rank * self.each + agent.warp for agent in self.warpgroups]
        if any(first < bound < first + agent.warps for first, agent in zip(firsts, self.warpgroups, strict=True) for bound in (start, end)):
            raise Unordered
        return [agent for first, agent in zip(firsts, self.warpgroups, strict=True) if start <= first < end]

    def _join_knowledge(self, members: Sequence[Agent]) -> None:
        super()._join_knowledge(members)
        for member in members:
            assert isinstance(member, WarpgroupAgent)
            member.known_to_all, member.fenced_for_all = member.own, member.fenced

    def _learn_from_phase(self, agent: Agent, known: int, fenced: int) -> None:
        super()._learn_from_phase(agent, known, fenced)
        assert isinstance(agent, WarpgroupAgent)
        agent.known_to_all |= known
        agent.fenced_for_all |= fenced

    def _arrival_knowledge(self, agent: Agent, arrivals: Sequence[int], by: Mechanism | None) -> tuple[int, int]:
        assert isinstance(agent, WarpgroupAgent)
        counted = self.counted_arrivals.get((arrivals, agent.number))
        if counted is None:
            counts = [arrivals[warp] if warp < len(arrivals) else 0 for warp in agent.members]
            counted = sum(counts), all(counts), not any(count % WARP for count in counts)
            self.counted_arrivals[arrivals, agent.number] = counted
        total, of_all_warps, of_all_lanes = counted
        if by is not None and of_all_lanes:
            return total, self._known_after_deferred(agent, by)
        return total, agent.seen if of_all_warps else agent.known_to_all

    def _fence(self, agent: Agent, event: Fence) -> bool:
        assert isinstance(agent, WarpgroupAgent)
        if event.kind is FenceKind.ASYNC_PROXY:
            agent.fenced_for_all |= agent.known_to_all & self.deferred
        return super()._fence(agent, event)

    def _arrive(self, agent: Agent, event: StageEvent, mbarrier: MbarrierState) -> None:
        # If some warps of the agent completed a phase, a wait for the phase would also provide what the other warps know.
        total = self._arrival_knowledge(agent, event.arrivals or (), event.by)[0]
        if total > min([self._pending_arrivals(event, rank) for rank in event.ranks or (agent.rank,)]):
            raise Unordered
        super()._arrive(agent, event, mbarrier)

    def _pending_arrivals(self, event: StageEvent, rank: int) -> int:
        return self._mbarrier(event, rank).pending_arrivals if rank < len(self.reached) else 0

    rules = MappingProxyType(
        {**SegmentOrder.rules, Segment: _access_together, Barrier: _barrier_together, SemaphoreBarrier: _barrier_together, Fence: _fence}
    )


__all__ = ["WarpgroupOrder"]
