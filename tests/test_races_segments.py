"""Segments of hand-made kernels: accesses that form one operation, the memory that they cover, and traces that need a pass by access."""

import itertools

import attrs
import making
import numpy as np
import pytest
from handrings import J, consume, load, produce, ringed
from touching import BLOCK_BARRIER, WARP_BARRIER, Engine, T, buffer, copies, i, kernel, loop, reads, touch, writes

from fireiron import *
from fireiron.check import AccessTrace
from fireiron.check.blocks import local_coordinates
from fireiron.check.races.footprints import Footprints
from fireiron.check.races.loops import Loops
from fireiron.check.races.segments import SEVERAL, Area, Segment, SegmentOrder, Segments, Shape
from fireiron.check.races.traces import Kind, Tracer
from fireiron.check.races.warpgroup_agents import WarpgroupOrder
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.values.expr import Var, less

pytestmark = pytest.mark.sampled(1)

BUFFERS = (buffer("s", 4096), buffer("g", 4096, memory=GL))


def traced(program):
    """The traces of a program, and its spaces by the names of their buffers."""
    access_trace = AccessTrace(program)
    footprints = Footprints(access_trace, local_coordinates(access_trace))
    all_traces = Tracer(access_trace, footprints, Loops(access_trace, footprints, access_trace.uses)).traces({})
    for space in footprints.spaces.values():
        if space.patterns:
            space.number_grains()
    return all_traces, footprints.spaces


def joined(*body, spaces=None, **options):
    """The segments of the first warp with the other events between them, or None if it has no segments."""
    all_traces, spaces_by_name = traced(kernel(*body, **{"buffers": BUFFERS, **options}))
    chosen = [space for name, space in spaces_by_name.items() if spaces is None or name in spaces]
    return Segments(chosen, 1)._joined(all_traces[0])


def shown(events):
    return [event.kind if isinstance(event, Segment) else type(event).__name__ for event in events]


def test_accesses_of_one_kind_form_a_segment():
    assert shown(joined(writes(T), writes(T + 128), writes(T + 256))) == [Kind.WRITE]
    assert shown(joined(writes(T), reads(T + 128), writes(T + 256), reads(T))) == [Kind.WRITE, Kind.READ]
    assert shown(joined(writes(T), BLOCK_BARRIER, WARP_BARRIER, reads(T), reads(T + 1))) == [Kind.WRITE, "Barrier", "Barrier", Kind.READ]
    assert shown(joined(writes(T), making.commit(), writes(T))) == [Kind.WRITE, "Commit", Kind.WRITE]
    (segment, second_segment) = joined(writes(T), copies(T + 128))
    assert (segment.in_flight, segment.mechanism, second_segment.in_flight, second_segment.mechanism) == (
        False,
        AT_ONCE,
        True,
        CP_ASYNC_GROUPS,
    )
    (segment, second_segment) = joined(reads(T), reads(T, instruction=Engine()))
    assert (segment.by_engine, second_segment.by_engine) == (False, True)
    (segment, second_segment) = joined(reads(T), reads(T, mechanism=WGMMA_GROUPS))
    assert (segment.in_flight, second_segment.in_flight) == (False, True)
    assert shown(joined(writes(T), writes(T, name="g"))) == [Kind.WRITE, Kind.WRITE], "of two spaces"
    assert joined() == []


def test_omitted_address_spaces():
    body = writes(T), reads(T, name="g")
    assert (
        shown(joined(*body, spaces=[""])) == [Kind.WRITE]
        and shown(joined(*body, spaces=["g"])) == [Kind.READ]
        and joined(*body, spaces=[]) == []
    )
    assert joined(writes(T, active=less(T, 0))) == [], "an inactive access"


def test_memory_of_a_segment():
    (segment,) = joined(reads(T + 64), reads(T + 32, active=less(T, 40)))
    assert isinstance(segment.footprint, Area) and segment.footprint.first == 32
    grains = [0b1] * 32 + [0b11] * 8 + [0b1] * 24 + [0b10] * 32 + [0b100] * 32 + [0b1000] * 32
    assert segment.footprint.warps.tolist() == grains
    changes = [0] + [place for place in range(1, len(grains)) if grains[place] != grains[place - 1]] + [len(grains)]
    assert segment.footprint.changes.tolist() == changes == [0, 32, 40, 64, 96, 128, 160]
    (segment,) = joined(writes(T + 7))
    assert (segment.footprint.first, len(segment.footprint.warps)) == (7, 128)
    separate = joined(reads(T, active=less(T, 2)), reads(T + 100, active=less(T, 1)))[0].footprint
    assert separate.first == 0 and separate.warps.tolist() == [1, 1, *[0] * 98, 1]


def test_equal_segments_share_their_areas():
    staged_buffer = attrs.evolve(buffer("s", 128), tensor=attrs.evolve(buffer("s", 128).tensor, copies=2))
    events = joined(loop(4, writes(T, copy=i % 2), reads(T, copy=i % 2), BLOCK_BARRIER), buffers=(staged_buffer,))
    written = [event.footprint for event in events if isinstance(event, Segment) and event.kind is Kind.WRITE]
    assert written[0] is written[2] is not written[1] is written[3] and written[0].shape is written[1].shape
    assert [event.first for event in written] in ([0, 128, 0, 128], [0, 32, 0, 32])


def test_the_step_of_a_segment():
    """That of its only execution; none for several."""
    both = attrs.evolve(writes(T, level=Warp), accesses=(writes(T).accesses[0], writes(T + 128).accesses[0]))
    (segment,) = joined(both)
    assert segment.step == 0
    first, _, second = joined(both, BLOCK_BARRIER, both)
    assert (first.step, second.step) == (0, 1)
    (segment,) = joined(writes(T), writes(T + 128))
    assert segment.step == SEVERAL


def test_two_writes_of_a_warp_to_one_element():
    """The same thread or two threads may write it, so there is no segment. For reads it does not matter."""
    assert joined(writes(T), writes(T)) is None and joined(writes(T), writes(T + 1)) is None
    assert joined(writes(T), reads(T), writes(T)) is None
    assert joined(writes(T), BLOCK_BARRIER, writes(T)) is not None
    assert joined(reads(T), reads(T)) is not None and joined(copies(T), copies(T)) is None
    (segment,) = joined(writes(T), writes(127 - T, active=less(T, 32)))
    assert segment.footprint.shape.doubled is False, "warps 0 and 3 write it"
    assert joined(writes(T), writes(T + 127)) is not None, "the last warp and another one write it"
    adds = attrs.evolve(writes(T), spec=AtomicAdd(1, 1)(RF, SH)(Thread))
    assert joined(adds, adds) is not None
    assert Shape(np.array([1, 1, 2]), True).changes.tolist() == [0, 2, 3]


def test_loads_of_a_fill_form_a_segment():
    program = ringed([loop(2, *consume(J), var=J)], [*produce(0)[:2], load(0, width=64), load(0, width=64, active=less(T, 0)), *produce(1)])
    all_traces, spaces = traced(program)
    producer = Segments(list(spaces.values()), 1)._joined(all_traces[-1])
    loads = [segment for segment in producer if isinstance(segment, Segment)]
    assert [(segment.fill.number, segment.kind, segment.in_flight, segment.mechanism) for segment in loads] == [
        (0, Kind.WRITE, True, TMA_LOADS), (1, Kind.WRITE, True, TMA_LOADS),
    ]  # fmt: skip
    assert [segment.bytes for segment in loads][-1] == 512


def test_bytes_of_a_segment():
    """The bytes of all loads of a fill; other accesses have none."""
    half_loads = [attrs.evolve(load(0, width=64)), attrs.evolve(load(0, width=64), accesses=(touch(64, write=True, width=64).accesses[0],))]
    program = ringed([], [*produce(0)[:2], *half_loads, load(1), load(2, width=64)], stages=3)
    all_traces, spaces = traced(program)
    segments = [segment for segment in Segments(list(spaces.values()), 1)._joined(all_traces[-1]) if isinstance(segment, Segment)]
    assert [(segment.fill.number, segment.bytes) for segment in segments] == [(0, 512), (1, 512), (2, 256)]
    assert [segment.bytes for segment in joined(writes(T), copies(T + 128))] == [0, 0]


def unordered(*body, ways=(SegmentOrder,), **options):
    program = kernel(*body, **{"buffers": BUFFERS, **options})
    all_traces, spaces = traced(program)
    return bool(Segments(list(spaces.values()), 1).unordered([all_traces], ways))


def test_unordered_traces():
    right = writes(T), BLOCK_BARRIER, reads(127 - T)
    assert not unordered(*right) and unordered(*right[::2])
    assert unordered(writes(T), writes(T)), "only a pass by access decides this"
    assert unordered(*right, ways=()), "without a method nothing is ordered"
    for ways in itertools.permutations((SegmentOrder, WarpgroupOrder)):
        assert not unordered(*right, ways=ways) and unordered(writes(T), reads(T), ways=ways)
    pair = making.barrier(making.scope("pair", 64))
    separate = writes(T), pair, reads(T // 64 * 64 + 63 - T % 64)
    assert unordered(*separate, ways=(WarpgroupOrder,)) and not unordered(*separate, ways=(WarpgroupOrder, SegmentOrder)), (
        "one method that finds everything ordered is enough"
    )
    assert not unordered(reads(T)) and not unordered(reads(T), reads(T + 1))


def test_unordered_lengths_are_returned():
    program = kernel(writes(T), loop(Var("N", 0, 9, 1, True), BLOCK_BARRIER), reads(127 - T), symbols=(Var("N", 0, 9, 1, True),))
    access_trace = AccessTrace(program)
    footprints = Footprints(access_trace, local_coordinates(access_trace))
    loops = Loops(access_trace, footprints, access_trace.uses)
    tracer = Tracer(access_trace, footprints, loops)
    choices = [tracer.traces(lengths) for lengths in loops.lengths()]
    for space in footprints.spaces.values():
        space.number_grains()
    assert Segments(list(footprints.spaces.values()), 1).unordered(choices, (WarpgroupOrder, SegmentOrder)) == [choices[0]], (
        "for zero iterations"
    )


def test_analysis_stops_at_the_first_unordered_segment():
    """It only returns that there is one."""
    all_traces, spaces = traced(kernel(writes(T), BLOCK_BARRIER, reads(127 - T)))
    segments = Segments(list(spaces.values()), 1)
    trace = segments._joined(all_traces[0])
    assert not segments.unordered([all_traces], (SegmentOrder,))
    assert SegmentOrder([trace] * 4, 1, 8).run_all() is True
    assert SegmentOrder([[trace[0], trace[2]]] * 4, 1, 8).run_all() is False
    broken = ringed([loop(2, *consume(J), var=J)], [*produce(0)])
    all_traces, spaces = traced(broken)
    segments = Segments(list(spaces.values()), 1)
    assert segments.unordered([all_traces], (SegmentOrder,)) == [all_traces], "incorrect rings are returned too"
