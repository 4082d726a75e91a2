"""Segments by hand: which touches are one operation, what they cover together, and which traces are left to be followed touch by touch."""

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
    places = Footprints(access_trace, local_coordinates(access_trace))
    found = Tracer(access_trace, places, Loops(access_trace, places, access_trace.uses)).traces({})
    for space in places.spaces.values():
        if space.patterns:
            space.number_grains()
    return found, places.spaces


def joined(*body, spaces=None, **options):
    """The segments of the first warp, and other events between them; None where there are none."""
    found, every = traced(kernel(*body, **{"buffers": BUFFERS, **options}))
    chosen = [one for name, one in every.items() if spaces is None or name in spaces]
    return Segments(chosen, 1)._joined(found[0])


def shown(events):
    return [one.kind if isinstance(one, Segment) else type(one).__name__ for one in events]


def test_touches_of_one_kind_between_events_are_one():
    assert shown(joined(writes(T), writes(T + 128), writes(T + 256))) == [Kind.WRITE]
    assert shown(joined(writes(T), reads(T + 128), writes(T + 256), reads(T))) == [Kind.WRITE, Kind.READ]
    assert shown(joined(writes(T), BLOCK_BARRIER, WARP_BARRIER, reads(T), reads(T + 1))) == [Kind.WRITE, "Barrier", "Barrier", Kind.READ]
    assert shown(joined(writes(T), making.commit(), writes(T))) == [Kind.WRITE, "Commit", Kind.WRITE]
    (one, other) = joined(writes(T), copies(T + 128))
    assert (one.in_flight, one.mechanism, other.in_flight, other.mechanism) == (False, AT_ONCE, True, CP_ASYNC_GROUPS)
    (one, other) = joined(reads(T), reads(T, instruction=Engine()))
    assert (one.by_engine, other.by_engine) == (False, True)
    (one, other) = joined(reads(T), reads(T, mechanism=WGMMA_GROUPS))
    assert (one.in_flight, other.in_flight) == (False, True)
    assert shown(joined(writes(T), writes(T, name="g"))) == [Kind.WRITE, Kind.WRITE], "of two spaces"
    assert joined() == []


def test_spaces_that_are_left_out():
    body = writes(T), reads(T, name="g")
    assert (
        shown(joined(*body, spaces=[""])) == [Kind.WRITE]
        and shown(joined(*body, spaces=["g"])) == [Kind.READ]
        and joined(*body, spaces=[]) == []
    )
    assert joined(writes(T, active=less(T, 0))) == [], "which nobody touches"


def test_what_a_segment_covers():
    (one,) = joined(reads(T + 64), reads(T + 32, active=less(T, 40)))
    assert isinstance(one.footprint, Area) and one.footprint.first == 32
    grains = [0b1] * 32 + [0b11] * 8 + [0b1] * 24 + [0b10] * 32 + [0b100] * 32 + [0b1000] * 32
    assert one.footprint.warps.tolist() == grains
    changes = [0] + [place for place in range(1, len(grains)) if grains[place] != grains[place - 1]] + [len(grains)]
    assert one.footprint.changes.tolist() == changes == [0, 32, 40, 64, 96, 128, 160]
    (one,) = joined(writes(T + 7))
    assert (one.footprint.first, len(one.footprint.warps)) == (7, 128)
    apart = joined(reads(T, active=less(T, 2)), reads(T + 100, active=less(T, 1)))[0].footprint
    assert apart.first == 0 and apart.warps.tolist() == [1, 1, *[0] * 98, 1]


def test_equal_segments_share_their_areas():
    several = attrs.evolve(buffer("s", 128), tensor=attrs.evolve(buffer("s", 128).tensor, copies=2))
    events = joined(loop(4, writes(T, copy=i % 2), reads(T, copy=i % 2), BLOCK_BARRIER), buffers=(several,))
    written = [one.footprint for one in events if isinstance(one, Segment) and one.kind is Kind.WRITE]
    assert written[0] is written[2] is not written[1] is written[3] and written[0].shape is written[1].shape
    assert [one.first for one in written] in ([0, 128, 0, 128], [0, 32, 0, 32])


def test_the_step_of_a_segment():
    """Of one execution its own, of several none."""
    both = attrs.evolve(writes(T, level=Warp), accesses=(writes(T).accesses[0], writes(T + 128).accesses[0]))
    (one,) = joined(both)
    assert one.step == 0
    first, _, second = joined(both, BLOCK_BARRIER, both)
    assert (first.step, second.step) == (0, 1)
    (one,) = joined(writes(T), writes(T + 128))
    assert one.step == SEVERAL


def test_a_warp_that_writes_a_place_twice_in_a_segment():
    """Nobody tells whether the same thread does: it is followed touch by touch. Of reads it does not matter."""
    assert joined(writes(T), writes(T)) is None and joined(writes(T), writes(T + 1)) is None
    assert joined(writes(T), reads(T), writes(T)) is None
    assert joined(writes(T), BLOCK_BARRIER, writes(T)) is not None
    assert joined(reads(T), reads(T)) is not None and joined(copies(T), copies(T)) is None
    (one,) = joined(writes(T), writes(127 - T, active=less(T, 32)))
    assert one.footprint.shape.doubled is False, "warp 0 where warp 3 does"
    assert joined(writes(T), writes(T + 127)) is not None, "the last thread of the first, and another warp"
    adds = attrs.evolve(writes(T), spec=AtomicAdd(1, 1)(RF, SH)(Thread))
    assert joined(adds, adds) is not None
    assert Shape(np.array([1, 1, 2]), True).changes.tolist() == [0, 2, 3]


def test_loads_of_a_turn_are_one():
    program = ringed([loop(2, *consume(J), var=J)], [*produce(0)[:2], load(0, width=64), load(0, width=64, active=less(T, 0)), *produce(1)])
    found, spaces = traced(program)
    producer = Segments(list(spaces.values()), 1)._joined(found[-1])
    loads = [one for one in producer if isinstance(one, Segment)]
    assert [(one.fill.number, one.kind, one.in_flight, one.mechanism) for one in loads] == [
        (0, Kind.WRITE, True, TMA_LOADS), (1, Kind.WRITE, True, TMA_LOADS),
    ]  # fmt: skip
    assert [one.bytes for one in loads][-1] == 512


def test_bytes_of_a_segment():
    """Of all loads of a turn; of what is no load they do not count."""
    halves = [attrs.evolve(load(0, width=64)), attrs.evolve(load(0, width=64), accesses=(touch(64, write=True, width=64).accesses[0],))]
    program = ringed([], [*produce(0)[:2], *halves, load(1), load(2, width=64)], stages=3)
    found, spaces = traced(program)
    segments = [one for one in Segments(list(spaces.values()), 1)._joined(found[-1]) if isinstance(one, Segment)]
    assert [(one.fill.number, one.bytes) for one in segments] == [(0, 512), (1, 512), (2, 256)]
    assert [one.bytes for one in joined(writes(T), copies(T + 128))] == [0, 0]


def unordered(*body, ways=(SegmentOrder,), **options):
    program = kernel(*body, **{"buffers": BUFFERS, **options})
    found, spaces = traced(program)
    return bool(Segments(list(spaces.values()), 1).unordered([found], ways))


def test_traces_that_are_left():
    right = writes(T), BLOCK_BARRIER, reads(127 - T)
    assert not unordered(*right) and unordered(*right[::2])
    assert unordered(writes(T), writes(T)), "by touches alone"
    assert unordered(*right, ways=()), "asked by none"
    for ways in itertools.permutations((SegmentOrder, WarpgroupOrder)):
        assert not unordered(*right, ways=ways) and unordered(writes(T), reads(T), ways=ways)
    pair = making.barrier(making.scope("pair", 64))
    apart = writes(T), pair, reads(T // 64 * 64 + 63 - T % 64)
    assert unordered(*apart, ways=(WarpgroupOrder,)) and not unordered(*apart, ways=(WarpgroupOrder, SegmentOrder)), (
        "one that finds all in order is enough"
    )
    assert not unordered(reads(T)) and not unordered(reads(T), reads(T + 1))


def test_of_several_choices_those_are_left_that_are_out_of_order():
    program = kernel(writes(T), loop(Var("N", 0, 9, 1, True), BLOCK_BARRIER), reads(127 - T), symbols=(Var("N", 0, 9, 1, True),))
    access_trace = AccessTrace(program)
    places = Footprints(access_trace, local_coordinates(access_trace))
    loops = Loops(access_trace, places, access_trace.uses)
    tracer = Tracer(access_trace, places, loops)
    choices = [tracer.traces(one) for one in loops.lengths()]
    for space in places.spaces.values():
        space.number_grains()
    assert Segments(list(places.spaces.values()), 1).unordered(choices, (WarpgroupOrder, SegmentOrder)) == [choices[0]], "of no turn"


def test_a_segment_ends_at_the_first_that_is_out_of_order():
    """Nothing is said of it, but that it is."""
    found, spaces = traced(kernel(writes(T), BLOCK_BARRIER, reads(127 - T)))
    segments = Segments(list(spaces.values()), 1)
    trace = segments._joined(found[0])
    assert not segments.unordered([found], (SegmentOrder,))
    assert SegmentOrder([trace] * 4, 1, 8).run_all() is True
    assert SegmentOrder([[trace[0], trace[2]]] * 4, 1, 8).run_all() is False
    broken = ringed([loop(2, *consume(J), var=J)], [*produce(0)])
    found, spaces = traced(broken)
    segments = Segments(list(spaces.values()), 1)
    assert segments.unordered([found], (SegmentOrder,)) == [found], "rings that are wrong are left, too"
