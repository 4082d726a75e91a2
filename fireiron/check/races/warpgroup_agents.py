"""Crews: the warps of a warpgroup that run one trace, as one agent that takes each step for all of them.

A crew knows of an operation what each of its warps knows: of its own operations `seen` says what each warp may rely on of its *own* part,
`every` what each may rely on of the parts of *all*. A barrier of several warps brings all parts, a wait for copies or products the own
one. An arrival of all warps of a crew lets others know the parts of all of them; of some, only what each of these knows of all. Of an
atom that one warp alone touches in the whole kernel the own parts decide; of others all parts must be known.

If all segments are ordered for crews, they are for their warps, which take the same steps, at a quarter of the work. The converse does
not hold.
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
from fireiron.ir import Barrier, Fence, FenceKind, Mechanism

TOGETHER = 4
"""Warps of a warpgroup: a barrier of at least this many includes the whole warpgroup."""


@attrs.define(eq=False)
class WarpgroupAgent(Agent):
    """So many `warps`, of which `warp` is the first; `fenced_every` is to `fenced` what `every` is to `seen`."""

    warps: int = 1
    every: int = 0
    fenced_every: int = 0

    @property
    def members(self) -> range:
        """The numbers of its warps in their block."""
        return range(self.warp, self.warp + self.warps)


@attrs.frozen(eq=False)
class Reached:
    """The atoms of an area that a crew touches: those that one warp alone touches, and others; `twice` if two of its warps touch one."""

    own: Sequence[int]
    others: Sequence[int]
    twice: bool


class WarpgroupOrder(SegmentOrder):
    """Segments of crews on their way."""

    def __init__(self, traces: Sequence[Sequence[Any]], blocks: int, atoms: int) -> None:
        super().__init__(traces, blocks, atoms)
        self.warpgroups = list(self._warpgroups(traces))
        self.agents = [*self.warpgroups]
        self.reached_by: dict[tuple[int, int], Reached] = {}
        self.touching = Counter(itertools.chain.from_iterable(self._touched_by_warps()))

    def run_all(self) -> bool:
        try:
            return super().run_all()
        except VerificationError:  # together they may wait where one warp alone goes on
            return False

    def _warpgroups(self, traces: Sequence[Sequence[Any]]) -> Iterator[WarpgroupAgent]:
        def place(number: int) -> tuple[int, int, int]:
            rank, warp = divmod(number, self.each)
            return rank, warp // TOGETHER, id(traces[number])

        for agent, (_, numbers) in enumerate(itertools.groupby(range(len(traces)), place)):
            first, *others = numbers
            yield WarpgroupAgent(agent, traces[first], *divmod(first, self.each), warps=1 + len(others))

    def _touched_by_warps(self) -> Iterator[set[int]]:
        """The atoms that each warp touches."""
        for agent in self.warpgroups:
            areas = {id(one.footprint): one.footprint for one in agent.trace if isinstance(one, Segment) and one.footprint.atoms}
            for warp in agent.members:
                yield set(itertools.chain.from_iterable(area.atoms[warp] for area in areas.values()))

    def _reached(self, agent: WarpgroupAgent, event: Segment) -> Reached:
        found = self.reached_by.get((id(event.footprint), agent.number))
        if found is None:
            atoms = event.footprint.atoms
            times = Counter(itertools.chain.from_iterable(atoms[warp] for warp in agent.members)) if atoms else Counter()
            alone = {atom for atom in times if agent.warps == 1 or self.touching[atom] == 1}
            found = Reached(sorted(alone), sorted(times.keys() - alone), any(count > 1 for count in times.values()))
            self.reached_by[id(event.footprint), agent.number] = found
        return found

    # -------------------------------------------------------------------------------------- rules

    def _touch_together(self, agent: WarpgroupAgent, event: Any) -> bool:
        reached = self._reached(agent, event)
        if reached.twice and event.step == SEVERAL and event.kind is Kind.WRITE:
            raise Unordered
        within = self._ordered_within(event)
        for atoms, seen, fenced in ((reached.own, agent.seen, agent.fenced), (reached.others, agent.every, agent.fenced_every)):
            met = self._met(event, atoms)
            if met & ~(seen | within) or (event.by_engine and met & self.written & ~fenced):
                raise Unordered
        if reached.own or reached.others:
            self._record(agent, event, (*reached.own, *reached.others))
        return True

    def _barrier_together(self, agent: WarpgroupAgent, event: Barrier) -> bool:
        size = event.scope.threads
        if size is None or size % WARP or size >= agent.warps * WARP:
            return self._barrier(agent, event)
        agent.seen |= agent.own  # it holds each warp at least
        return True

    def _of_warps(self, start: int, end: int) -> Sequence[Agent]:
        firsts = [agent.rank * self.each + agent.warp for agent in self.warpgroups]
        if any(first < bound < first + agent.warps for first, agent in zip(firsts, self.warpgroups, strict=True) for bound in (start, end)):
            raise Unordered
        return [agent for first, agent in zip(firsts, self.warpgroups, strict=True) if start <= first < end]

    def _join(self, members: Sequence[Agent]) -> None:
        super()._join(members)
        for one in members:
            assert isinstance(one, WarpgroupAgent)
            one.every, one.fenced_every = one.own, one.fenced

    def _learn(self, agent: Agent, known: int, fenced: int) -> None:
        super()._learn(agent, known, fenced)
        assert isinstance(agent, WarpgroupAgent)
        agent.every |= known
        agent.fenced_every |= fenced

    def _told(self, agent: Agent, arrivals: Sequence[int], by: Mechanism | None) -> tuple[int, int]:
        assert isinstance(agent, WarpgroupAgent)
        counts = [arrivals[warp] if warp < len(arrivals) else 0 for warp in agent.members]
        if by is not None and not any(count % WARP for count in counts):
            return sum(counts), self._done(agent, by)
        return sum(counts), agent.seen if all(counts) else agent.every

    def _fence(self, agent: Agent, event: Fence) -> bool:
        assert isinstance(agent, WarpgroupAgent)
        if event.kind is FenceKind.ASYNC_PROXY:
            agent.fenced_every |= agent.every & self.deferred
        return super()._fence(agent, event)

    def _arrive(self, agent: Agent, event: StageEvent, phases: MbarrierState) -> None:
        # A phase that is over with a part of a crew would say what the others know, too.
        if self._told(agent, event.arrivals or (), event.by)[0] > min(self._left(event, rank) for rank in event.ranks or (agent.rank,)):
            raise Unordered
        super()._arrive(agent, event, phases)

    def _left(self, event: StageEvent, rank: int) -> int:
        return self._phases_of(event, rank).left if rank < len(self.reached) else 0

    rules = MappingProxyType({**SegmentOrder.rules, Segment: _touch_together, Barrier: _barrier_together, Fence: _fence})


__all__ = ["WarpgroupOrder"]
