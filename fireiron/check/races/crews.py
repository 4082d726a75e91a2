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

from fireiron.check.races.order import Agent, Phases
from fireiron.check.races.places import WARP
from fireiron.check.races.segments import SEVERAL, Late, Screened, Segment
from fireiron.check.races.traces import Kind, Turn
from fireiron.errors import VerificationError
from fireiron.ir import Barrier, Fence, FenceKind, Mechanism

TOGETHER = 4
"""Warps of a warpgroup: a barrier of at least this many includes the whole warpgroup."""


@attrs.define(eq=False)
class Crew(Agent):
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


class Crews(Screened):
    """Segments of crews on their way."""

    def __init__(self, traces: Sequence[Sequence[Any]], blocks: int, atoms: int) -> None:
        super().__init__(traces, blocks, atoms)
        self.crews = list(self._crews(traces))
        self.agents = [*self.crews]
        self.reached_by: dict[tuple[int, int], Reached] = {}
        self.touching = Counter(itertools.chain.from_iterable(self._touched_by_warps()))

    def run_all(self) -> bool:
        try:
            return super().run_all()
        except VerificationError:  # together they may wait where one warp alone goes on
            return False

    def _crews(self, traces: Sequence[Sequence[Any]]) -> Iterator[Crew]:
        def place(number: int) -> tuple[int, int, int]:
            rank, warp = divmod(number, self.each)
            return rank, warp // TOGETHER, id(traces[number])

        for crew, (_, numbers) in enumerate(itertools.groupby(range(len(traces)), place)):
            first, *others = numbers
            yield Crew(crew, traces[first], *divmod(first, self.each), warps=1 + len(others))

    def _touched_by_warps(self) -> Iterator[set[int]]:
        """The atoms that each warp touches."""
        for crew in self.crews:
            areas = {id(one.footprint): one.footprint for one in crew.trace if isinstance(one, Segment) and one.footprint.atoms}
            for warp in crew.members:
                yield set(itertools.chain.from_iterable(area.atoms[warp] for area in areas.values()))

    def _reached(self, crew: Crew, event: Segment) -> Reached:
        found = self.reached_by.get((id(event.footprint), crew.number))
        if found is None:
            atoms = event.footprint.atoms
            times = Counter(itertools.chain.from_iterable(atoms[warp] for warp in crew.members)) if atoms else Counter()
            alone = {atom for atom in times if crew.warps == 1 or self.touching[atom] == 1}
            found = Reached(sorted(alone), sorted(times.keys() - alone), any(count > 1 for count in times.values()))
            self.reached_by[id(event.footprint), crew.number] = found
        return found

    # -------------------------------------------------------------------------------------- rules

    def _touch_together(self, crew: Crew, event: Any) -> bool:
        reached = self._reached(crew, event)
        if reached.twice and event.step == SEVERAL and event.kind is Kind.WRITE:
            raise Late
        within = self._ordered_within(event)
        for atoms, seen, fenced in ((reached.own, crew.seen, crew.fenced), (reached.others, crew.every, crew.fenced_every)):
            met = self._met(event, atoms)
            if met & ~(seen | within) or (event.by_engine and met & self.written & ~fenced):
                raise Late
        if reached.own or reached.others:
            self._record(crew, event, (*reached.own, *reached.others))
        return True

    def _barrier_together(self, crew: Crew, event: Barrier) -> bool:
        size = event.scope.threads
        if size is None or size % WARP or size >= crew.warps * WARP:
            return self._barrier(crew, event)
        crew.seen |= crew.own  # it holds each warp at least
        return True

    def _of_warps(self, start: int, end: int) -> Sequence[Agent]:
        firsts = [crew.rank * self.each + crew.warp for crew in self.crews]
        if any(first < bound < first + crew.warps for first, crew in zip(firsts, self.crews, strict=True) for bound in (start, end)):
            raise Late
        return [crew for first, crew in zip(firsts, self.crews, strict=True) if start <= first < end]

    def _join(self, members: Sequence[Agent]) -> None:
        super()._join(members)
        for one in members:
            assert isinstance(one, Crew)
            one.every, one.fenced_every = one.own, one.fenced

    def _learn(self, agent: Agent, known: int, fenced: int) -> None:
        super()._learn(agent, known, fenced)
        assert isinstance(agent, Crew)
        agent.every |= known
        agent.fenced_every |= fenced

    def _told(self, agent: Agent, arrivals: Sequence[int], by: Mechanism | None) -> tuple[int, int]:
        assert isinstance(agent, Crew)
        counts = [arrivals[warp] if warp < len(arrivals) else 0 for warp in agent.members]
        if by is not None and not any(count % WARP for count in counts):
            return sum(counts), self._done(agent, by)
        return sum(counts), agent.seen if all(counts) else agent.every

    def _fence(self, agent: Agent, event: Fence) -> bool:
        assert isinstance(agent, Crew)
        if event.kind is FenceKind.ASYNC_PROXY:
            agent.fenced_every |= agent.every & self.deferred
        return super()._fence(agent, event)

    def _arrive(self, agent: Agent, event: Turn, phases: Phases) -> None:
        # A phase that is over with a part of a crew would say what the others know, too.
        if self._told(agent, event.arrivals or (), event.by)[0] > min(self._left(event, rank) for rank in event.ranks or (agent.rank,)):
            raise Late
        super()._arrive(agent, event, phases)

    def _left(self, event: Turn, rank: int) -> int:
        return self._phases_of(event, rank).left if rank < len(self.reached) else 0

    rules = MappingProxyType({**Screened.rules, Segment: _touch_together, Barrier: _barrier_together, Fence: _fence})


__all__ = ["Crews"]
