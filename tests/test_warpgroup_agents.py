"""Warpgroup agents compared with warps: segments that agents find ordered are ordered for single warps, in right and in faulty kernels."""

import attrs
import making
import pytest

from fireiron.check import races
from fireiron.check.access_trace import AccessTrace
from fireiron.check.races.segments import SEVERAL, Area, Segment, SegmentOrder, Segments
from fireiron.check.races.traces import Kind, StageEvent
from fireiron.check.races.warpgroup_agents import WarpgroupOrder
from fireiron.ir import (
    WARP_SCOPE,
    WARPGROUP_SCOPE,
    Acquire,
    Barrier,
    Commit,
    Fence,
    FenceKind,
    Release,
    StageState,
    Wait,
    rewritten,
    statements,
)
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.strategies import dual, gemm_row_sum, hopper_attention

ORDERING = (Acquire, Barrier, Commit, Fence, Release, Wait)

KERNELS = {
    "dual": lambda: dual.hopper(dual.spec(512, 512, 128)),
    "row sum": lambda: gemm_row_sum.hopper(gemm_row_sum.spec(512, 512, 128)),
    "attention": lambda: hopper_attention.strategy.with_(bm=128, bn=64, stages=2, epi_n=64)(hopper_attention.spec(256, 128, 64)),
}


def all_ordered(kernel, way):
    """Whether the segments of a kernel are ordered according to one of the analyses."""
    orders_found = []

    class Recorder(Segments):
        def unordered(self, traces, ways):
            orders_found.append(not super().unordered(traces, (way,)))
            return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(races, "Segments", Recorder)
        races.check_races(AccessTrace(kernel))
    return all(orders_found)


def faulty(kernel):
    """Variants of the kernel: without one statement that orders threads, or with a narrower barrier."""

    def replaced(target, others):
        return attrs.evolve(kernel, body=rewritten(kernel.body, lambda statement: others if statement is target else (statement,)))

    for stmt in {id(stmt): stmt for stmt in statements(kernel.body) if isinstance(stmt, ORDERING)}.values():
        yield replaced(stmt, ())
        if isinstance(stmt, Barrier):
            yield from (replaced(stmt, (attrs.evolve(stmt, scope=scope),)) for scope in (WARP_SCOPE, WARPGROUP_SCOPE))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", KERNELS)
def test_agents_find_no_more_orders_than_warps(name):
    kernel = KERNELS[name]().program("sm_90a").lowered
    assert all_ordered(kernel, WarpgroupOrder)
    orders_found = [(all_ordered(one, WarpgroupOrder), all_ordered(one, SegmentOrder)) for one in faulty(kernel)]
    assert all(warps for warpgroups, warps in orders_found if warpgroups)
    assert any(not warps for _, warps in orders_found)
    # Agents are useless if they seldom decide.
    assert sum(warpgroups for warpgroups, _ in orders_found) >= sum(warps for _, warps in orders_found) - 2


EACH_ITS_OWN = [[0], [1], [2], [3], []]
ALL_ONE = [[0], [0], [0], [0], []]
ALL = [[0, 1, 2, 3]] * 4 + [[]]
BY_ANOTHER = [[], [], [], [], [0, 1, 2, 3]]


def touch(step, atoms, kind=Kind.WRITE, in_flight=False, by_engine=False):
    """A segment of four warps with one trace and of a fifth warp, by the atoms that each accesses."""
    completion = WGMMA_GROUPS if in_flight else AT_ONCE
    return Segment(step, Area(0, None, atoms), kind, in_flight, by_engine, completion, None, 0)


def orders_found(together, other=()):
    """Results for agents and for warps, where the first four warps run one trace and the fifth another."""
    return tuple(way([together] * 4 + [other], 1, 4).run_all() for way in (WarpgroupOrder, SegmentOrder))


def handed_over(arrivals):
    """MMAs of four warps read what each of them wrote, and the fifth warp writes there after their arrivals."""
    ring = making.ring("r", 1, ("a",), consumers=sum(arrivals))
    products = [
        touch(1, EACH_ITS_OWN, Kind.READ, in_flight=True),
        making.commit(WGMMA_GROUPS),
        making.wait(0, mechanism=WGMMA_GROUPS),
    ]
    first, second = (StageEvent(ring, StageState.EMPTY, number) for number in (0, 1))
    filled, freed = StageEvent(ring, StageState.FULL, 0, (1,) * 5), StageEvent(ring, StageState.EMPTY, 0, arrivals)
    return orders_found([StageEvent(ring, StageState.FULL, 0), *products, freed], [first, filled, second, touch(2, BY_ANOTHER)])


@pytest.mark.parametrize("step, ordered", [(SEVERAL, False), (1, True)])
def test_two_warps_that_write_at_once(step, ordered):
    assert orders_found([touch(step, ALL_ONE)]) == (ordered, ordered)


def test_an_arrival_of_one_warp_does_not_order_the_others():
    assert handed_over((1, 1, 1, 1)) == (True, True)
    assert handed_over((1, 0, 0, 0)) == (False, False)


@pytest.mark.parametrize("fence_first", [False, True])
def test_a_fence_covers_only_the_writes_of_its_warp(fence_first):
    order = [making.fence(FenceKind.ASYNC_PROXY), making.barrier(WARPGROUP_SCOPE)]
    events = [touch(1, EACH_ITS_OWN), *(order if fence_first else order[::-1]), touch(2, ALL, Kind.READ, by_engine=True)]
    assert orders_found(events) == (fence_first, fence_first)
