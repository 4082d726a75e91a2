"""Stage ownership: an agent accesses only ring stages that it has acquired, fills only stages that it acquired empty, and releases only
what it acquired.

An agent owns a stage from its wait for a fill until it releases the stage. After it acquires a stage empty, it arrives once to mark it
full. A release requires that nothing of the agent still reads the stage: no MMA and no TMA store in flight, and, if one lane arrives for
its warp, no other lane. A violation need not be a race at the trip counts that are followed, since the stage may never be refilled there;
the result is then correct by chance.

If TMA fills the stage, a proxy fence must follow the reads by threads: an explicit one, or the implicit one after the completion of a wgmma
(PTX ISA, "Async Proxy"). Otherwise TMA may write to the stage before loads in flight have read it.

Ownership is tracked by stage, not by fill: some iterations of long loops are skipped (see `loops`), after which the stage is the same. But
loads and arrivals of a producer must belong to the fill that it has waited for: the same stage with another fill is an iteration early or
late.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from fireiron.check.finding import Finding, described, line_of
from fireiron.check.races.footprints import WARP
from fireiron.check.races.traces import AccessEvent, Kind, PendingAccesses, StageEvent, Trace, Traces
from fireiron.ir import Barrier, ClusterBarrier, Commit, Fence, FenceKind, Mechanism, StageState, Wait

Stage: TypeAlias = "tuple[str, int]"
"""A ring and the index of a stage."""


def ownership_violations(traces: Iterable[Traces], ring_of: Mapping[str, str]) -> Iterator[Finding]:
    """Accesses and releases of stages that the agent does not own, or releases that are too early, each once. `ring_of` maps buffers to
    rings.
    """
    findings: dict[str, Finding] = {}
    different = {id(trace): trace for agents in traces for trace in agents}.values()
    accesses = [event for trace in different for event in trace if isinstance(event, AccessEvent) and event.fill is not None]
    filled_by_tma = frozenset(event.fill.ring.name for event in accesses if event.fill is not None and event.by_engine)
    for trace in different:
        for finding in StageOwner(trace, ring_of, filled_by_tma).findings():
            findings.setdefault(finding.message, finding)
    yield from findings.values()


@attrs.define(eq=False)
class StageOwner:
    """An agent that executes its trace: the stages that it owns, full or empty, and those that it has marked full.

    `reads_in_flight` are its MMAs and stores in flight; `read_by_lanes` are the stages that its lanes have read individually since the last
    barrier; `filled` are the stages that its threads have marked full by their own arrivals. `unfenced_reads` are the stages that its
    threads have read since the last proxy fence; `refilled` are the rings whose stages are filled again. `groups` are its wgmma groups in
    flight, and `issued` records one that is not committed.
    """

    trace: Trace
    ring_of: Mapping[str, str]
    filled_by_tma: frozenset[str] = frozenset()
    owned: dict[tuple[Stage, StageState], int] = attrs.field(factory=dict)
    """The fill indices of the stages that it owns."""
    marked_full: set[tuple[Stage, Mechanism | None]] = attrs.field(factory=set)
    reads_in_flight: PendingAccesses = attrs.field(factory=lambda: PendingAccesses(lambda mechanism: mechanism.reads_late))
    read_by_lanes: set[Stage] = attrs.field(factory=set)
    filled: set[Stage] = attrs.field(factory=set)
    refilled: set[str] = attrs.field(factory=set)
    unfenced_reads: set[Stage] = attrs.field(factory=set)
    groups: int = 0
    issued: bool = False

    def findings(self) -> Iterator[Finding]:
        """All violations of the agent."""
        for event in self.trace:
            if isinstance(event, StageEvent):
                if event.arrivals is None:
                    self._acquire(event)
                else:
                    yield from self._release(event, event.arrivals)
                continue
            self.reads_in_flight.follow(event)
            self._follow_fences(event)
            if isinstance(event, AccessEvent):
                if event.use.access.buffer in self.ring_of:
                    yield from self._access(event)
            elif isinstance(event, (Barrier, ClusterBarrier)):
                self.read_by_lanes.clear()
        for (ring, stage), state in self.owned:
            if state is StageState.FULL and ring in self.refilled:
                yield Finding("race", "error", None, f"{ring}: an agent ends without releasing stage {stage}")

    def _follow_fences(self, event: Any) -> None:
        """Follow proxy fences, and the completion of wgmmas, which implies one."""
        match event:
            case Fence(kind=FenceKind.ASYNC_PROXY):
                self.unfenced_reads.clear()
            case Commit(mechanism=mechanism) if mechanism.in_registers:
                self.groups, self.issued = self.groups + self.issued, False
            case Wait(groups=groups, mechanism=mechanism) if mechanism.in_registers and self.groups > groups:
                self.groups = groups
                self.unfenced_reads.clear()
            case AccessEvent() if event.by_engine and event.mechanism.in_registers:
                self.issued = True

    def _acquire(self, event: StageEvent) -> None:
        self.owned[(event.ring.name, event.stage), event.state] = event.number
        self.refilled |= {event.ring.name} if event.ring.refilled else set()
        if event.state is StageState.EMPTY:
            self.marked_full = {entry for entry in self.marked_full if entry[0] != (event.ring.name, event.stage)}
            self.filled.discard((event.ring.name, event.stage))

    def _release(self, event: StageEvent, arrivals: Sequence[int]) -> Iterator[Finding]:
        ring = event.ring
        # An order has no full state: at its fill, a group arrives for the fill that the next group waits for, `stages - 1` later.
        number = event.number + ring.stages - 1 if ring.is_order else event.number
        state = StageState.EMPTY if event.state is StageState.FULL or ring.is_order else StageState.FULL
        stage = ring.name, number % ring.stages
        if (stage, state) not in self.owned or (stage, event.by) in self.marked_full:
            yield Finding("race", "error", None, f"{event} is by an agent that has not acquired it {state.value}")
        if event.state is StageState.FULL:
            self.marked_full.add((stage, event.by))
            self.filled |= set() if event.by is None else {stage}
            if (awaited := self.owned.get((stage, state), number)) != number:
                yield Finding("race", "error", None, f"{event} is by an agent that has waited for fill {awaited} of the stage")
            return
        self.owned.pop((stage, state), None)
        if any(self._stage(access) == stage and access.mechanism is not event.by for access in self.reads_in_flight.accesses):
            yield Finding("race", "error", None, f"{event} is by an agent with an asynchronous read of the stage in flight")
        if stage in self.read_by_lanes and any(0 < count < WARP for count in arrivals):
            yield Finding("race", "error", None, f"{event} is by one lane, and other lanes of its warp may still read the stage")
        if ring.name in self.filled_by_tma and stage in self.unfenced_reads:
            why = "follows loads by threads without fence.proxy.async between; TMA may write to the stage before they have read it"
            yield Finding("race", "error", None, f"{event} {why}")

    def _stage(self, access: AccessEvent) -> Stage:
        return self.ring_of.get(access.use.access.buffer, ""), access.stage

    def _access(self, event: AccessEvent) -> Iterator[Finding]:
        state = StageState.FULL if event.kind is Kind.READ else StageState.EMPTY
        stage = self._stage(event)
        if state is StageState.FULL and not event.by_engine:
            self.read_by_lanes.add(stage)
            self.unfenced_reads.add(stage)
        if (stage, state) not in self.owned:
            verb = "read" if state is StageState.FULL else "written"
            yield self._finding(event, f"stage {event.stage} is {verb} by an agent that has not acquired it {state.value}")
        elif state is StageState.EMPTY and stage in self.filled:
            yield self._finding(event, f"stage {event.stage} is written by an agent after its arrival marked it full")
        elif event.fill is not None and event.fill.number != self.owned[stage, state]:
            yield self._finding(
                event, f"fill {event.fill.number} is loaded by an agent that has waited for fill {self.owned[stage, state]}"
            )

    @staticmethod
    def _finding(event: AccessEvent, why: str) -> Finding:
        use = event.use
        line, statement = line_of(use.statement, use.access), use.statement
        what = f"{statement.instruction.name} {statement.spec} at {line or 'an unknown line'}"
        return Finding("race", "error", use.access.buffer, f"{use.access.buffer}: {why} ({what})", line, described(statement, use.access))


__all__ = ["ownership_violations"]
