"""The race check: happens-before over atoms of memory, for all run-time sizes and all blocks at once.

    places     who touches what: grains of memory, by thread          loops    which iterations decide about all of them
    traces     what each warp does, in order                          atoms    pieces of memory that the same warps touch alike
    order      what each warp may rely on when it touches memory      segments   many touches as one operation
    crews      warps that act alike as one agent                  clusters   blocks that reach into each other, followed together
    holding    who may touch, and release, the stages of rings
    performers how many threads issue loads of rings, arrive for them, and do all other work
    meetings, findings   which threads met where, and its text

Control flow does not depend on data, so traces are known. Conditions on the block and on run-time sizes are taken as true; they
only remove accesses, so "no race" holds for all blocks and all M, N, K. What cannot be decided is an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fireiron.check.access_trace import AccessTrace
from fireiron.check.blocks import between_blocks, local_coordinates
from fireiron.check.finding import Finding
from fireiron.check.persistence import fetched
from fireiron.check.races.atoms import split
from fireiron.check.races.clusters import cluster_blocks, uneven_loops, with_free_ranks
from fireiron.check.races.conflicts import Conflicts
from fireiron.check.races.extra_roles import include_extra_roles
from fireiron.check.races.findings import Report, trusted, undecided
from fireiron.check.races.footprints import Footprints, Space
from fireiron.check.races.issuing_threads import wrong_thread_counts
from fireiron.check.races.loops import Loops
from fireiron.check.races.order import HappensBefore, Race, mark
from fireiron.check.races.segments import SegmentOrder, Segments
from fireiron.check.races.stage_ownership import ownership_violations
from fireiron.check.races.traces import AccessEvent, InFlight, Kind, Trace, Tracer, Traces
from fireiron.check.races.warpgroup_agents import WarpgroupOrder
from fireiron.ir.effects.unchecked import Unchecked

ENOUGH = 64
"""Findings about ring barriers after which no other loop lengths are followed: they report the same for other fills."""

NOTHING_NEW = 16
"""Consecutive lengths without a new finding after which no others are followed: the kernel is refused in any case."""


def check_races(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """All races inside a block and between blocks; what could not be decided is an error too."""
    findings = [*wrong_thread_counts(access_trace), *_inside_a_block(access_trace), *between_blocks(access_trace)]
    return tuple(trusted(findings) if access_trace.kernel.effects[Unchecked].reasons else findings)


def _inside_a_block(access_trace: AccessTrace) -> list[Finding]:
    access_trace = include_extra_roles(with_free_ranks(access_trace))
    places = Footprints(access_trace, local_coordinates(access_trace))
    doubts = _not_placed(access_trace, places)
    uses = [use for use in access_trace.uses if _shared(access_trace, use.access.buffer) and use.access.buffer not in doubts]
    if access_trace.kernel.workers == 1:  # its accesses are ordered, but for copies under way, which go to shared memory
        doubts, uses = {}, [use for use in uses if places.space(use.access.buffer).shared]
    loops = Loops(access_trace, places, uses)
    tracer = Tracer(access_trace, places, loops)
    traces = [tracer.traces(lengths) for lengths in loops.lengths()]
    findings = [
        *_races(access_trace, places, traces),
        *(ownership_violations(traces, places.ring_of_buffer) if access_trace.kernel.rings else ()),
    ]
    findings += [Finding("race", "error", None, text) for text in uneven_loops(access_trace)]
    origin = {buffer.name: buffer.tensor.origin for buffer in access_trace.kernel.buffers}
    return [*findings, *(undecided(name, why, origin[name]) for name, why in {**doubts, **loops.undecided}.items())]


def _not_placed(access_trace: AccessTrace, places: Footprints) -> dict[str, str]:
    """Why threads cannot be told apart by the addresses of a buffer, for those of which it is so."""
    doubts = {name: local.problem for name, local in places.local.items() if local.problem is not None}
    for use in access_trace.uses:
        if _shared(access_trace, use.access.buffer) and use.access.buffer not in doubts:
            known = {
                "thread",
                *(loop.var.name for loop in use.loops),
                *cluster_blocks(access_trace.kernel).names,
                *fetched(access_trace.kernel),
            }
            foreign = access_trace.needs(places.parts(use.access)) - known
            if foreign:
                doubts[use.access.buffer] = f"its addresses depend on {', '.join(sorted(foreign))}"
    return doubts


def _shared(access_trace: AccessTrace, name: str) -> bool:
    """Whether threads share a buffer, and some of them write it."""
    buffer = access_trace.kernel.buffer(name)
    return buffer.memory.of_block or (buffer.memory.of_grid and buffer.written)


def _races(access_trace: AccessTrace, places: Footprints, traces: Sequence[Traces]) -> list[Finding]:
    """All pairs of accesses that conflict somewhere, each once."""
    for space in places.spaces.values():
        if space.patterns:
            space.settle()
    conflicts = Conflicts(places)
    report = Report(access_trace, conflicts)
    findings: dict[Any, Finding] = {}
    _in_one_step(traces, conflicts, report, findings)
    spaces = _met_again(traces)
    broken: dict[str, None] = {}
    blocks = cluster_blocks(access_trace.kernel).count
    unordered = Segments(spaces, blocks).unordered(traces, (WarpgroupOrder, SegmentOrder))
    if unordered:
        for key, race in _unordered(unordered, spaces, blocks, conflicts, broken).items():
            findings.setdefault(key, report.race(race))
    return [*findings.values(), *(Finding("race", "error", None, text) for text in broken), *_reading_at_the_end(traces)]


def _reading_at_the_end(traces: Sequence[Traces]) -> Iterator[Finding]:
    """The stores that an engine may still read shared memory for when the block, and its memory, is gone; each once."""
    found: dict[int, AccessEvent] = {}
    for trace in itertools.chain(*(_different(agents) for agents in traces)):
        flight = InFlight(lambda mechanism: mechanism.outlives)
        for event in trace:
            flight.follow(event)
        found.update((id(one.use.statement), one) for one in flight.touches)
    for one in found.values():
        statement = one.use.statement
        buffer = one.use.access.buffer
        text = f"{buffer}: {statement.instruction.name} {statement.spec} reads it beyond the end of the kernel: nobody waits for its group"
        yield Finding("race", "error", buffer, text, statement.origin)


def _unordered(
    traces: Sequence[Traces], spaces: Sequence[Space], blocks: int, conflicts: Conflicts, broken: dict[str, None]
) -> dict[Any, Race]:
    """All pairs of touches that conflict and that nothing orders; what is wrong with the barriers of rings goes to `broken`."""
    count = 0
    for space in spaces:
        count += split(list(space.footprints.values()), len(traces[0]) // blocks, count)
    found: dict[Any, Race] = {}
    told, idle = 0, 0
    for agents in traces:
        HappensBefore(agents, blocks, count, conflicts.same_thread, found, broken).run()
        idle = idle + 1 if told and told == len(found) + len(broken) else 0
        told = len(found) + len(broken)
        if idle == NOTHING_NEW or len(broken) > ENOUGH:
            break
    return found


def _met_again(traces: Sequence[Traces]) -> list[Space]:
    """The spaces that more than one step touches."""
    spaces: dict[int, Space] = {}
    for agents in traces:
        first: dict[int, int] = {}
        for event in itertools.chain(*_different(agents)):
            if isinstance(event, AccessEvent) and first.setdefault(id(event.footprint.space), event.step) != event.step:
                spaces[id(event.footprint.space)] = event.footprint.space
    return list(spaces.values())


def _different(agents: Traces) -> Iterable[Trace]:
    """The traces of agents, each once."""
    return {id(one): one for one in agents}.values()


def _in_one_step(traces: Sequence[Traces], conflicts: Conflicts, report: Report, findings: dict[Any, Finding]) -> None:
    """Threads, or units of threads that act together, that meet in one execution of a statement; and copies of one thread that do."""
    known: set[Any] = set()
    for one, other in _pairs(traces):
        pair = id(one.footprint.pattern), id(other.footprint.pattern), one.footprint.shift - other.footprint.shift
        if pair in known or mark(one, other) in findings:
            continue
        known.add(pair)
        distinct_threads = conflicts.distinct_threads(one.footprint, other.footprint)
        meeting = distinct_threads or (other.footprint.pattern.doubled if other.in_flight else None)
        if meeting is not None:
            findings[mark(one, other)] = report.in_one_step(one, other, meeting, distinct_threads is None)


def _pairs(traces: Sequence[Traces]) -> Iterator[tuple[AccessEvent, AccessEvent]]:
    """The touches of each step with themselves and each other, where they must not meet."""
    for trace in itertools.chain(*(_different(agents) for agents in traces)):
        step: list[AccessEvent] = []
        for event in trace:
            if isinstance(event, AccessEvent):
                step = [*(one for one in step if one.step == event.step), event]
                yield from ((one, event) for one in step if _must_be_ordered(one, event))


def _must_be_ordered(one: AccessEvent, other: AccessEvent) -> bool:
    """Whether two touches of one step conflict where they meet."""
    kinds = {one.kind, other.kind}
    return kinds not in ({Kind.READ}, {Kind.ADD}) and one.footprint.space is other.footprint.space


__all__ = ["check_races"]
