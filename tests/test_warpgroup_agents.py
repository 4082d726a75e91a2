"""Crews against warps: where crews find all segments ordered, warps one by one do, in kernels that are right and with planted faults."""

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


def found_ordered(kernel, way):
    """Whether the segments of a kernel are ordered, as one way to follow them says."""
    answers = []

    class Asked(Segments):
        def unordered(self, traces, ways):
            answers.append(not super().unordered(traces, (way,)))
            return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(races, "Segments", Asked)
        races.check_races(AccessTrace(kernel))
    return all(answers)


def faulty(kernel):
    """The kernel without each statement that orders threads, and with narrower barriers."""

    def replaced(one, others):
        return attrs.evolve(kernel, body=rewritten(kernel.body, lambda statement: others if statement is one else (statement,)))

    for one in {id(one): one for one in statements(kernel.body) if isinstance(one, ORDERING)}.values():
        yield replaced(one, ())
        if isinstance(one, Barrier):
            yield from (replaced(one, (attrs.evolve(one, scope=scope),)) for scope in (WARP_SCOPE, WARPGROUP_SCOPE))


@pytest.mark.parametrize("name", KERNELS)
def test_crews_find_no_more_than_warps(name):
    kernel = KERNELS[name]().program("sm_90a").lowered
    assert found_ordered(kernel, WarpgroupOrder)
    answers = [(found_ordered(one, WarpgroupOrder), found_ordered(one, SegmentOrder)) for one in faulty(kernel)]
    assert all(warps for warpgroups, warps in answers if warpgroups)
    assert any(not warps for _, warps in answers)
    # They are no good if they seldom decide.
    assert sum(warpgroups for warpgroups, _ in answers) >= sum(warps for _, warps in answers) - 2


EACH_ITS_OWN = [[0], [1], [2], [3], []]
ALL_ONE = [[0], [0], [0], [0], []]
ALL = [[0, 1, 2, 3]] * 4 + [[]]
BY_ANOTHER = [[], [], [], [], [0, 1, 2, 3]]


def touch(step, atoms, kind=Kind.WRITE, in_flight=False, by_engine=False):
    """A segment of four warps of one trace and a fifth one, by the atoms that each touches."""
    completion = WGMMA_GROUPS if in_flight else AT_ONCE
    return Segment(step, Area(0, None, atoms), kind, in_flight, by_engine, completion, None, 0)


def answers(together, other=()):
    """What crews and warps find, where the first four warps run one trace and the fifth another."""
    return tuple(way([together] * 4 + [other], 1, 4).run_all() for way in (WarpgroupOrder, SegmentOrder))


def handed_on(arrivals):
    """Products of four warps read what each of them holds, and the fifth warp writes there when they say so."""
    ring = making.ring("r", 1, ("a",), consumers=sum(arrivals))
    products = [
        touch(1, EACH_ITS_OWN, Kind.READ, in_flight=True),
        making.commit(WGMMA_GROUPS),
        making.wait(0, mechanism=WGMMA_GROUPS),
    ]
    first, second = (StageEvent(ring, StageState.EMPTY, number) for number in (0, 1))
    filled, freed = StageEvent(ring, StageState.FULL, 0, (1,) * 5), StageEvent(ring, StageState.EMPTY, 0, arrivals)
    return answers([StageEvent(ring, StageState.FULL, 0), *products, freed], [first, filled, second, touch(2, BY_ANOTHER)])


@pytest.mark.parametrize("step, ordered", [(SEVERAL, False), (1, True)])
def test_two_warps_that_write_at_once(step, ordered):
    assert answers([touch(step, ALL_ONE)]) == (ordered, ordered)


def test_an_arrival_of_one_warp_says_nothing_of_the_others():
    assert handed_on((1, 1, 1, 1)) == (True, True)
    assert handed_on((1, 0, 0, 0)) == (False, False)


@pytest.mark.parametrize("fence_first", [False, True])
def test_a_fence_is_one_of_what_a_warp_wrote_itself(fence_first):
    order = [making.fence(FenceKind.ASYNC_PROXY), making.barrier(WARPGROUP_SCOPE)]
    events = [touch(1, EACH_ITS_OWN), *(order if fence_first else order[::-1]), touch(2, ALL, Kind.READ, by_engine=True)]
    assert answers(events) == (fence_first, fence_first)
