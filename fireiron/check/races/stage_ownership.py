"""Who holds which stage of a ring: an agent may touch those that it holds, fill what it holds empty, and release what it holds.

An agent holds a stage from the wait for one of its turns until it says that it has emptied it; of one that it has waited for to be empty
it says once that it will be full. What it says is that nothing of it reads the stage any more: no product under way, and no lane where one
of them speaks for its warp. What breaks this need not be a race at the lengths of loops that are followed, where nobody fills the stage
again: it is right by chance.

Stages are told apart, not turns: of long loops some iterations are left out (see `loops`), and behind them the stage is the same. But what
a producer does with a stage that it has waited for is of the turn that it has waited for: loads and arrivals of another turn of the same
stage are an iteration early or late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs

from fireiron.check.finding import Finding, described, line_of
from fireiron.check.races.footprints import WARP
from fireiron.check.races.traces import AccessEvent, InFlight, Kind, StageEvent, Trace, Traces
from fireiron.ir import Barrier, ClusterBarrier, Mechanism, StageState

Place: TypeAlias = "tuple[str, int]"
"""A ring and the number of a stage."""


def ownership_violations(traces: Iterable[Traces], ring_of: Mapping[str, str]) -> Iterator[Finding]:
    """What agents do with stages of rings that they do not hold, or give back too early, each once; `ring_of` are the buffers of rings."""
    found: dict[str, Finding] = {}
    for trace in {id(trace): trace for agents in traces for trace in agents}.values():
        for one in StageOwner(trace, ring_of).findings():
            found.setdefault(one.message, one)
    yield from found.values()


@attrs.define(eq=False)
class StageOwner:
    """An agent on its way through its trace: the stages that it holds, full or empty, and those that it has said to be full.

    `products` are its products under way; `apart` are the stages that its lanes have read, each for itself, since the last barrier;
    `filled` are the stages that its threads have said, by an arrival of theirs, to be full as far as they fill them.
    """

    trace: Trace
    ring_of: Mapping[str, str]
    held: dict[tuple[Place, StageState], int] = attrs.field(factory=dict)
    """The turns of the stages that it holds."""
    announced: set[tuple[Place, Mechanism | None]] = attrs.field(factory=set)
    products: InFlight = attrs.field(factory=lambda: InFlight(lambda mechanism: mechanism.in_registers))
    apart: set[Place] = attrs.field(factory=set)
    filled: set[Place] = attrs.field(factory=set)

    def findings(self) -> Iterator[Finding]:
        """All that it does wrong."""
        for event in self.trace:
            self.products.follow(event)
            if isinstance(event, StageEvent):
                if event.arrivals is None:
                    self._acquire(event)
                else:
                    yield from self._release(event, event.arrivals)
            elif isinstance(event, AccessEvent) and event.use.access.buffer in self.ring_of:
                yield from self._touch(event)
            elif isinstance(event, (Barrier, ClusterBarrier)):
                self.apart.clear()
        for (ring, stage), side in self.held:
            if side is StageState.FULL:
                yield Finding("race", "error", None, f"{ring}: an agent ends that holds stage {stage} full")

    def _acquire(self, event: StageEvent) -> None:
        self.held[(event.ring.name, event.stage), event.side] = event.number
        if event.side is StageState.EMPTY:
            self.announced = {one for one in self.announced if one[0] != (event.ring.name, event.stage)}
            self.filled.discard((event.ring.name, event.stage))

    def _release(self, event: StageEvent, arrivals: Sequence[int]) -> Iterator[Finding]:
        ring = event.ring
        # Of an order, which is never full, a group says at its turn what the next one waits for, as many turns later as it has stages.
        number = event.number + ring.stages - 1 if ring.is_order else event.number
        side = StageState.EMPTY if event.side is StageState.FULL or ring.is_order else StageState.FULL
        place = ring.name, number % ring.stages
        if (place, side) not in self.held or (place, event.by) in self.announced:
            yield Finding("race", "error", None, f"{event} is by an agent that does not hold it {side.value}")
        if event.side is StageState.FULL:
            self.announced.add((place, event.by))
            self.filled |= set() if event.by is None else {place}
            if (awaited := self.held.get((place, side), number)) != number:
                yield Finding("race", "error", None, f"{event} is by an agent that has waited for turn {awaited} of the stage")
            return
        self.held.pop((place, side), None)
        if any(self._place(one) == place and one.mechanism is not event.by for one in self.products.touches):
            yield Finding("race", "error", None, f"{event} is by an agent of which a product that reads it is under way")
        if place in self.apart and any(0 < count < WARP for count in arrivals):
            yield Finding("race", "error", None, f"{event} is by one lane of a warp whose others may still read it")

    def _place(self, touch: AccessEvent) -> Place:
        return self.ring_of.get(touch.use.access.buffer, ""), touch.stage

    def _touch(self, event: AccessEvent) -> Iterator[Finding]:
        side = StageState.FULL if event.kind is Kind.READ else StageState.EMPTY
        place = self._place(event)
        if side is StageState.FULL and not event.by_engine:
            self.apart.add(place)
        if (place, side) not in self.held:
            verb = "read" if side is StageState.FULL else "written"
            yield self._wrong(event, f"stage {event.stage} is {verb} by an agent that does not hold it {side.value}")
        elif side is StageState.EMPTY and place in self.filled:
            yield self._wrong(event, f"stage {event.stage} is written by an agent behind its arrival that says it is full")
        elif event.turn is not None and event.turn.number != self.held[place, side]:
            yield self._wrong(event, f"turn {event.turn.number} is loaded by an agent that has waited for turn {self.held[place, side]}")

    @staticmethod
    def _wrong(event: AccessEvent, why: str) -> Finding:
        use = event.use
        line, statement = line_of(use.statement, use.access), use.statement
        what = f"{statement.instruction.name} {statement.spec} at {line or 'an unknown line'}"
        return Finding("race", "error", use.access.buffer, f"{use.access.buffer}: {why} ({what})", line, described(statement, use.access))


__all__ = ["ownership_violations"]
