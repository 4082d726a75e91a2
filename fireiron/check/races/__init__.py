"""The race check: happens-before over atoms of memory, for all run-time sizes and all blocks at once.

    footprints       which grains of memory each thread accesses       loops     which iterations decide for all
    traces           the events of each agent, in program order        atoms     grains with the same accesses by the same warps
    order            which operations each agent knows                 segments  many accesses as one operation
    warpgroup_agents warps with equal traces, as one agent             clusters  blocks of a cluster, followed together
    stage_ownership  which agent may access and release a stage
    issuing_threads  how many threads issue loads, arrive, and do other work
    conflicts, findings  the threads of a conflict, and its text

Control flow does not depend on data, so traces are known. The check assumes that conditions on the block and on run-time sizes hold. Such
conditions only remove accesses, so "no race" holds for all blocks and all M, N, K. Undecided cases are errors.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from fireiron.check.access_trace import AccessTrace, Use
from fireiron.check.blocks import between_blocks, local_coordinates
from fireiron.check.finding import Finding, described, line_of
from fireiron.check.joint_tiles import before_last_block, last_block, stores_of_parts, whole_results
from fireiron.check.persistence import dynamic_tiles
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
from fireiron.check.races.traces import AccessEvent, Kind, PendingAccesses, StageEvent, Trace, Tracer, Traces
from fireiron.check.races.warpgroup_agents import WarpgroupOrder
from fireiron.check.streamed_tiles import persistent_tiles, stores_of_segment, streamed, whole_tiles
from fireiron.ir import Kernel
from fireiron.ir.effects.unchecked import Unchecked

MAX_VIOLATIONS = 64
"""After this many violations of ring mbarriers, no other trip counts are followed, because they report the same for other fills."""

MAX_UNCHANGED = 16
"""After this many consecutive trip counts without a new finding, no others are followed, because the kernel is rejected anyway."""


def check_races(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """An error for each race within a block or between blocks, and for each undecided case."""
    findings = [*wrong_thread_counts(access_trace), *_inside_a_block(access_trace), *_between_blocks(access_trace)]
    findings += _mixed_atomics(access_trace)
    return tuple(trusted(findings) if access_trace.kernel.effects[Unchecked].reasons else findings)


def _between_blocks(access_trace: AccessTrace) -> list[Finding]:
    """Races between blocks. If the last block of a result continues alone, first those of the parts, then those of the results."""
    kernel = access_trace.kernel
    if streamed(kernel) is not None:
        return between_blocks(AccessTrace(whole_tiles(kernel)))
    if last_block(kernel) is None:
        return between_blocks(access_trace)
    of_parts, whole = between_blocks(AccessTrace(before_last_block(kernel))), whole_results(kernel)
    if isinstance(whole, str):
        return [*of_parts, Finding("race", "error", None, whole)]
    return [*of_parts, *between_blocks(AccessTrace(whole))]


def _mixed_atomics(access_trace: AccessTrace) -> Iterator[Finding]:
    """An error for each array that statements combine with in several ways: the result of a sum and a maximum depends on their order."""
    kinds: dict[str, dict[str, Use]] = {}
    for use in access_trace.uses:
        if use.atomic:
            kinds.setdefault(use.access.buffer, {}).setdefault(use.statement.spec.title, use)
    for name, uses in kinds.items():
        if len(uses) > 1:
            text = f"{' and '.join(uses)} combine with {name}, so the result depends on their order"
            use = next(reversed(uses.values()))
            yield Finding("race", "error", name, text, line_of(use.statement, use.access), described(use.statement, use.access))


def _inside_a_block(access_trace: AccessTrace) -> list[Finding]:
    """Races between the threads of a block.

    A barrier is between the stores of partial results and their loads, so only the stores are compared.
    """
    if streamed(access_trace.kernel) is not None:
        return _between_segments(access_trace.kernel)
    if last_block(access_trace.kernel) is None:
        return _between_threads(access_trace, frozenset())
    partial = frozenset(buffer.name for buffer in access_trace.kernel.buffers if buffer.workspace)
    return [*_between_threads(access_trace, partial), *_between_threads(AccessTrace(stores_of_parts(access_trace.kernel)), frozenset())]


def _between_segments(kernel: Kernel) -> list[Finding]:
    """Races between the threads of a block that computes segments of tiles, each of which may or may not be the last one of its tile."""
    results = frozenset(buffer.name for buffer in kernel.buffers if buffer.memory.of_grid and buffer.written)
    findings = [finding for number in (True, False) for finding in _between_threads(AccessTrace(persistent_tiles(kernel, number)), results)]
    findings += [f for one in (whole_tiles(kernel), stores_of_segment(kernel)) for f in _between_threads(AccessTrace(one), frozenset())]
    return list(dict.fromkeys(findings))


def _between_threads(access_trace: AccessTrace, left_out: frozenset[str]) -> list[Finding]:
    """Races between the threads of a block on all buffers but those that are left out."""
    access_trace = include_extra_roles(with_free_ranks(access_trace))
    footprints = Footprints(access_trace, local_coordinates(access_trace))
    conflicting = _conflicting(access_trace) - left_out
    undecided_buffers = _unlocated(access_trace, footprints, conflicting)
    uses = [use for use in access_trace.uses if use.access.buffer in conflicting and use.access.buffer not in undecided_buffers]
    if access_trace.kernel.workers == 1:  # program order covers all accesses except asynchronous copies, which write shared memory
        undecided_buffers, uses = {}, [use for use in uses if footprints.space(use.access.buffer).shared]
    loops = Loops(access_trace, footprints, uses)
    tracer = Tracer(access_trace, footprints, loops)
    traces = [tracer.traces(lengths) for lengths in loops.lengths()]
    findings = [
        *_races(access_trace, footprints, traces),
        *(ownership_violations(traces, footprints.ring_of_buffer) if access_trace.kernel.rings else ()),
    ]
    findings += [Finding("race", "error", None, text) for text in uneven_loops(access_trace)]
    origin = {buffer.name: buffer.tensor.origin for buffer in access_trace.kernel.buffers}
    return [*findings, *(undecided(name, why, origin[name]) for name, why in {**undecided_buffers, **loops.undecided}.items())]


def _unlocated(access_trace: AccessTrace, footprints: Footprints, conflicting: Collection[str]) -> dict[str, str]:
    """The buffers whose addresses do not distinguish threads, with the reason."""
    undecided_buffers = {
        name: local.problem for name, local in footprints.local.items() if name in conflicting and local.problem is not None
    }
    for use in access_trace.uses:
        if use.access.buffer in conflicting and use.access.buffer not in undecided_buffers:
            known = {
                "thread",
                *(loop.var.name for loop in use.loops),
                *cluster_blocks(access_trace.kernel).names,
                *dynamic_tiles(access_trace.kernel),
            }
            foreign = access_trace.needs(footprints.parts(use.access)) - known
            if foreign:
                undecided_buffers[use.access.buffer] = f"its addresses depend on {', '.join(sorted(foreign))}"
    return undecided_buffers


def _conflicting(access_trace: AccessTrace) -> frozenset[str]:
    """The buffers that threads share, except for arrays of which all accesses are atomic additions: these need no order, at any address."""
    stored = {use.access.buffer for use in access_trace.uses if not use.atomic}
    return frozenset(name for name in stored if _shared(access_trace, name))


def _shared(access_trace: AccessTrace, name: str) -> bool:
    """Whether threads share a buffer and some of them write it."""
    buffer = access_trace.kernel.buffer(name)
    return buffer.memory.of_block or (buffer.memory.of_grid and buffer.written)


def _races(access_trace: AccessTrace, footprints: Footprints, traces: Sequence[Traces]) -> list[Finding]:
    """All pairs of conflicting, unordered accesses, each once."""
    for space in footprints.spaces.values():
        if space.patterns:
            space.number_grains()
    conflicts = Conflicts(footprints)
    report = Report(access_trace, conflicts)
    findings: dict[Any, Finding] = {}
    _in_one_step(traces, conflicts, report, findings)
    spaces = _accessed_in_several_steps(traces)
    violations: dict[str, None] = {}
    blocks = cluster_blocks(access_trace.kernel).count
    unordered = Segments(spaces, blocks).unordered(traces, (WarpgroupOrder, SegmentOrder))
    if unordered:
        for key, race in _unordered(unordered, spaces, blocks, conflicts, violations).items():
            findings.setdefault(key, report.race(race))
    return [*findings.values(), *(Finding("race", "error", None, text) for text in violations), *_reads_past_the_end(traces)]


def _reads_past_the_end(traces: Sequence[Traces]) -> Iterator[Finding]:
    """The stores that may still read shared memory when the block exits, each once."""
    stores: dict[int, AccessEvent] = {}
    for trace in itertools.chain(*(_distinct_traces(agents) for agents in traces)):
        pending = PendingAccesses(lambda mechanism: mechanism.outlives)
        for event in trace:
            if event.__class__ is not StageEvent:
                pending.follow(event)
        stores.update((id(store.use.statement), store) for store in pending.accesses)
    for store in stores.values():
        statement = store.use.statement
        buffer = store.use.access.buffer
        text = f"{buffer}: {statement.instruction.name} {statement.spec} may read it after the block exits: no thread waits for its group"
        yield Finding("race", "error", buffer, text, statement.origin)


def _unordered(
    traces: Sequence[Traces], spaces: Sequence[Space], blocks: int, conflicts: Conflicts, violations: dict[str, None]
) -> dict[Any, Race]:
    """All pairs of conflicting accesses that nothing orders. Protocol violations of ring mbarriers are added to `violations`."""
    count = 0
    for space in spaces:
        count += split(list(space.footprints.values()), len(traces[0]) // blocks, count)
    races: dict[Any, Race] = {}
    reported, unchanged = 0, 0
    for agents in traces:
        HappensBefore(agents, blocks, count, conflicts.same_thread, races, violations).run()
        unchanged = unchanged + 1 if reported and reported == len(races) + len(violations) else 0
        reported = len(races) + len(violations)
        if unchanged == MAX_UNCHANGED or len(violations) > MAX_VIOLATIONS:
            break
    return races


def _accessed_in_several_steps(traces: Sequence[Traces]) -> list[Space]:
    """The spaces that more than one step accesses."""
    spaces: dict[int, Space] = {}
    for agents in traces:
        first: dict[int, int] = {}
        for event in itertools.chain(*_distinct_traces(agents)):
            if event.__class__ is AccessEvent and first.setdefault(id(event.footprint.space), event.step) != event.step:
                spaces[id(event.footprint.space)] = event.footprint.space
    return list(spaces.values())


def _distinct_traces(agents: Traces) -> Iterable[Trace]:
    """The distinct traces of the agents."""
    return {id(trace): trace for trace in agents}.values()


def _in_one_step(traces: Sequence[Traces], conflicts: Conflicts, report: Report, findings: dict[Any, Finding]) -> None:
    """Report conflicts between threads, or between units of threads, in one execution of a statement; and between copies of one thread."""
    compared: set[Any] = set()
    for access, other in _pairs(traces):
        pair = id(access.footprint.pattern), id(other.footprint.pattern), access.footprint.shift - other.footprint.shift
        if pair in compared or mark(access, other) in findings:
            continue
        compared.add(pair)
        distinct_threads = conflicts.distinct_threads(access.footprint, other.footprint)
        conflict = distinct_threads or (other.footprint.pattern.repeated if other.in_flight else None)
        if conflict is not None:
            findings[mark(access, other)] = report.in_one_step(access, other, conflict, distinct_threads is None)


def _pairs(traces: Sequence[Traces]) -> Iterator[tuple[AccessEvent, AccessEvent]]:
    """The pairs of accesses of one step that must not overlap; an access is also paired with itself."""
    for trace in itertools.chain(*(_distinct_traces(agents) for agents in traces)):
        step: list[AccessEvent] = []
        for event in trace:
            if event.__class__ is AccessEvent:
                step = [*(one for one in step if one.step == event.step), event]
                yield from ((one, event) for one in step if _must_be_ordered(one, event))


def _must_be_ordered(access: AccessEvent, other: AccessEvent) -> bool:
    """Whether two accesses of one step conflict if they overlap."""
    is_conflict = access.kind is not other.kind or access.kind is Kind.WRITE
    return is_conflict and access.footprint.space is other.footprint.space


__all__ = ["check_races"]
