"""Crews and warps, by hand: where they agree, where warps alone decide, and that crews never find ordered what warps do not."""

import itertools
import random

import making
import pytest
from touching import BLOCK_BARRIER, WARP_BARRIER

from fireiron.check.races.segments import SEVERAL, Area, Segment, SegmentOrder
from fireiron.check.races.traces import Kind, StageEvent
from fireiron.check.races.warpgroup_agents import WarpgroupOrder
from fireiron.ir import (
    WARPGROUP_SCOPE,
    FenceKind,
    StageState,
)
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS

pytestmark = pytest.mark.sampled(1)

GROUP, PROXY = making.barrier(WARPGROUP_SCOPE), making.fence(FenceKind.ASYNC_PROXY)
PAIR = making.barrier(making.scope("pair", 64))


def touch(step, atoms, kind=Kind.WRITE, mechanism=AT_ONCE, by_engine=False, fill=None, size=0):
    """A segment of each warp, by the atoms that it touches: the same for all of them, or by warp."""
    by_warp = [atoms.get(warp, []) for warp in range(12)] if isinstance(atoms, dict) else [atoms] * 12
    return Segment(step, Area(0, None, by_warp), kind, mechanism is not AT_ONCE, by_engine, mechanism, fill, size)


def each(first=0):
    """Each warp an atom of its own."""
    return {warp: [warp + first] for warp in range(12)}


def neighbors():
    """That of another warp of the same four."""
    return {warp: [warp // 4 * 4 + (warp + 1) % 4] for warp in range(12)}


def answers(*traces, blocks=1):
    """What crews and warps find of traces, the same object for warps that run one trace."""
    warpgroups, warps = (way(traces, blocks, 24).run_all() for way in (WarpgroupOrder, SegmentOrder))
    assert warps or not warpgroups, "crews find no more than warps do"
    return warpgroups, warps


BOTH, NONE, WARPS = (True, True), (False, False), (False, True)


def four(*events, other=None):
    """Four warps that run one trace, and perhaps another one."""
    trace = list(events)
    return answers(*[trace] * 4, *(() if other is None else (other,)))


def test_what_each_warp_touches_alone_is_in_order():
    assert four(touch(1, each()), WARP_BARRIER, touch(2, each(), Kind.READ)) == BOTH
    assert four(touch(1, each()), touch(2, each(), Kind.READ)) == NONE, "lanes of one warp"
    assert four(touch(1, each()), WARP_BARRIER, touch(2, neighbors(), Kind.READ)) == NONE
    assert four(touch(1, each()), GROUP, touch(2, neighbors(), Kind.READ)) == BOTH
    assert four(touch(1, each()), BLOCK_BARRIER, touch(2, neighbors(), Kind.READ)) == BOTH
    assert four(touch(1, each()), PAIR, touch(2, each(), Kind.READ)) == BOTH
    pairs = {warp: [warp ^ 1] for warp in range(4)}
    assert four(touch(1, each()), PAIR, touch(2, pairs, Kind.READ)) == WARPS, "a barrier of a part of a crew is counted as one of each warp"
    assert four(touch(1, each(), Kind.READ), touch(2, neighbors(), Kind.READ)) == BOTH


def test_two_warps_that_write_at_once():
    """In one execution of a statement its threads order them."""
    for step, expected in ((SEVERAL, NONE), (1, BOTH)):
        assert four(touch(step, [0])) == expected
    assert four(touch(SEVERAL, each())) == BOTH and four(touch(SEVERAL, [0], Kind.READ)) == BOTH
    assert four(touch(1, [0]), touch(1, [0], Kind.READ)) == BOTH and four(touch(1, [0]), touch(2, [0], Kind.READ)) == NONE


def test_barriers_of_several_crews():
    trace, other = [touch(1, each()), BLOCK_BARRIER], [BLOCK_BARRIER, touch(2, {warp: [warp - 4] for warp in range(4, 8)}, Kind.READ)]
    assert answers(*[trace] * 4, *[other] * 4) == BOTH
    trace, other = [touch(1, each()), GROUP], [GROUP, other[1]]
    assert answers(*[trace] * 4, *[other] * 4) == NONE, "each group has its own"
    wide = making.barrier(making.scope("two", 256))
    trace, other = [touch(1, each()), wide], [wide, other[1]]
    assert answers(*[trace] * 4, *[other] * 4, *[[]] * 4) == BOTH
    assert answers(*[trace] * 4, *[other] * 4) == BOTH
    three = making.barrier(making.scope("six", 192))
    late = [touch(1, each()), three, WARP_BARRIER, touch(3, each(), Kind.READ)]
    assert answers(*[late] * 4, *[late] * 4, *[late] * 4) == WARPS, "it cuts a crew in two"
    assert answers(*[[touch(1, each()), PAIR, touch(2, each(), Kind.READ)]] * 2) == BOTH, "a crew of two"
    assert answers(*[[touch(1, each()), PAIR, touch(2, {0: [1], 1: [0]}, Kind.READ)]] * 2) == BOTH


def test_eight_warps_are_two_crews():
    """Of one trace too: a barrier of four warps holds each of them alone."""
    trace = [touch(1, each()), GROUP, touch(2, {warp: [(warp + 4) % 8] for warp in range(8)}, Kind.READ)]
    assert answers(*[trace] * 8) == NONE
    inside = [touch(1, each()), GROUP, touch(2, neighbors(), Kind.READ)]
    assert answers(*[inside] * 8) == BOTH
    blocks = [
        [touch(1, {0: [rank * 4], 1: [rank * 4 + 1]}), GROUP, touch(2, {0: [rank * 4 + 1], 1: [rank * 4]}, Kind.READ)] for rank in range(2)
    ]
    assert answers(*[blocks[0]] * 2, *[blocks[1]] * 2, blocks=2) == BOTH


def test_barriers_that_warps_meet_apart():
    """Warps that run traces of their own may wait for others in turn; crews that would wait for ever decide nothing."""
    first, second = [GROUP, touch(1, [0])], [touch(2, [0]), GROUP]
    assert answers(first, first, second, second) == BOTH
    assert answers(first, second, first, second) == BOTH


@pytest.mark.parametrize("completion, kind", [(CP_ASYNC_GROUPS, Kind.WRITE), (WGMMA_GROUPS, Kind.READ)])
def test_copies_and_products_of_a_crew(completion, kind):
    issued = (touch(1, each(), kind, completion), making.commit(completion))
    done, use = making.wait(0, mechanism=completion), touch(2, each())
    assert four(*issued, use) == NONE
    own = BOTH if completion is WGMMA_GROUPS else NONE
    assert four(*issued, done, use) == own
    assert four(*issued, done, WARP_BARRIER, use) == BOTH
    assert four(*issued, done, touch(2, neighbors())) == NONE and four(*issued, done, WARP_BARRIER, touch(2, neighbors())) == NONE
    assert four(*issued, done, GROUP, touch(2, neighbors())) == BOTH
    assert four(*issued, GROUP, done, touch(2, neighbors())) == NONE
    assert four(*issued, making.wait(1, mechanism=completion), GROUP, touch(2, neighbors())) == NONE


def test_engines_and_fences_of_a_crew():
    engine = touch(3, each(), Kind.READ, by_engine=True)
    all_of_them = touch(3, [0, 1, 2, 3], Kind.READ, by_engine=True)
    assert four(touch(1, each()), PROXY, WARP_BARRIER, engine) == BOTH and four(touch(1, each()), WARP_BARRIER, engine) == NONE
    assert four(touch(1, each()), WARP_BARRIER, PROXY, engine) == BOTH
    assert four(touch(1, each()), PROXY, GROUP, all_of_them) == BOTH
    assert four(touch(1, each()), GROUP, PROXY, all_of_them) == NONE, "each fence is for what its warp wrote"
    assert four(touch(1, each()), GROUP, PROXY, GROUP, all_of_them) == BOTH
    assert four(touch(1, each()), GROUP, all_of_them) == NONE
    assert four(touch(1, each()), PROXY, WARP_BARRIER, all_of_them) == NONE
    assert four(touch(1, each()), PROXY, PAIR, engine) == BOTH
    reading = [BLOCK_BARRIER, touch(3, [0, 1, 2, 3], Kind.READ, by_engine=True)]
    assert (
        four(touch(1, each()), PROXY, BLOCK_BARRIER, other=reading) == BOTH
        and four(touch(1, each()), BLOCK_BARRIER, PROXY, other=reading) == NONE
    )


# ---------------------------------------------------------------------------------------------- rings


def handed_on(arrivals, before=(WARP_BARRIER,), consumers=None, reading=None, writing=None, kind=Kind.READ):
    """Four warps read each their own, and a fifth one writes all of that when they say so."""
    ring = making.ring("r", 1, ("a",), consumers=sum(arrivals[:5]) if consumers is None else consumers)
    first, second = (StageEvent(ring, StageState.EMPTY, number) for number in (0, 1))
    filled, freed = StageEvent(ring, StageState.FULL, 0, (1,) * 5), StageEvent(ring, StageState.EMPTY, 0, arrivals)
    trace = [StageEvent(ring, StageState.FULL, 0), touch(1, each() if reading is None else reading, kind), *before, freed]
    writer = [first, filled, second, touch(2, {4: [0, 1, 2, 3]} if writing is None else writing)]
    return answers(*[trace] * 4, writer)


def test_arrivals_of_a_crew():
    """All of its warps say what each has done; some of them only what they know of all."""
    assert handed_on((1, 1, 1, 1)) == BOTH and handed_on((32, 32, 32, 32)) == BOTH
    assert handed_on((1, 0, 0, 0)) == NONE and handed_on((1, 1, 1, 0)) == NONE and handed_on((0, 1, 1, 1)) == NONE
    assert handed_on((1, 0, 0, 0), before=(GROUP,)) == BOTH and handed_on((0, 0, 0, 1), before=(GROUP,)) == BOTH
    assert handed_on((1, 1, 1, 1), before=()) == NONE
    assert handed_on((1, 0, 0, 0), writing={4: [0]}) == WARPS, "warps know whose arrival it is"
    assert handed_on((1, 1), before=(GROUP,)) == BOTH, "of fewer warps than there are"
    assert handed_on((1, 1)) == NONE
    assert handed_on((1, 1, 1, 1), consumers=2)[0] is False, "a phase that is over with a part of a crew"
    assert handed_on((1, 1, 1, 1), consumers=5) == NONE


def test_loads_of_a_crew():
    """What a wait for a stage brings is known to all of it."""
    ring = making.ring("r", 1, ("a",), bytes=16, consumers=4)
    load = touch(5, {4: [0, 1, 2, 3]}, mechanism=TMA_LOADS, fill=StageEvent(ring, StageState.FULL, 0, None, (0,)), size=16)
    producer = [StageEvent(ring, StageState.EMPTY, 0), StageEvent(ring, StageState.FULL, 0, (1,) * 5), load]
    for reading, expected in ((each(), BOTH), (neighbors(), BOTH), ([0, 1, 2, 3], BOTH)):
        consumer = [
            StageEvent(ring, StageState.FULL, 0),
            touch(6, reading, Kind.READ),
            WARP_BARRIER,
            StageEvent(ring, StageState.EMPTY, 0, (1,) * 4),
        ]
        assert answers(*[consumer] * 4, producer) == expected
        early = [consumer[1], consumer[0], *consumer[2:]]
        assert answers(*[early] * 4, producer) == NONE
    short = [*producer[:2], touch(5, {4: [0]}, mechanism=TMA_LOADS, fill=load.fill, size=12)]
    assert answers(*[[StageEvent(ring, StageState.FULL, 0)]] * 4, short) == NONE


def test_blocks_of_a_cluster():
    """Crews that arrive in other blocks, where a phase must not be over with a part of one; and in none that is not there."""
    for consumers, expected in ((8, BOTH), (6, WARPS)):
        ring = making.ring("r", 1, ("a",), consumers=consumers)
        arrive = StageEvent(ring, StageState.EMPTY, 0, (1,) * 4, (0, 1))
        trace = [making.cluster_barrier(), arrive, making.cluster_barrier()]
        found = answers(*[trace] * 8, blocks=2)
        assert found == (expected if consumers == 8 else NONE)
    ring = making.ring("r", 1, ("a",), consumers=4)
    gone = [making.cluster_barrier(), StageEvent(ring, StageState.EMPTY, 0, (1,) * 4, (0, 2)), making.cluster_barrier()]
    assert answers(*[gone] * 4, *[[making.cluster_barrier()] * 2] * 4, blocks=2) == NONE


# ---------------------------------------------------------------------------------------------- drawn traces


def drawn(chance):
    """Six warps of two traces with the same barriers."""
    barriers = [chance.choice((BLOCK_BARRIER, BLOCK_BARRIER, GROUP, GROUP, WARP_BARRIER, PAIR)) for _ in range(chance.choice((0, 1, 2, 3)))]
    steps = itertools.count()
    patterns = (each(), neighbors(), [0], {warp: [warp % 4] for warp in range(12)}, {warp: [4 + warp // 2] for warp in range(12)})

    def part():
        for _ in range(chance.choice((0, 1, 1, 2))):
            kind = chance.random()
            completion = chance.choice((CP_ASYNC_GROUPS, WGMMA_GROUPS))
            if kind < 0.7:
                flying = chance.random() < 0.2
                what = chance.choice((Kind.WRITE, Kind.READ, Kind.READ, Kind.ADD))
                how = completion if flying and what is not Kind.ADD else AT_ONCE
                yield touch(chance.choice((next(steps), SEVERAL)), chance.choice(patterns), what, how, chance.random() < 0.3)
            elif kind < 0.85:
                yield making.commit(completion)
                yield making.wait(chance.choice((0, 0, 1)), mechanism=completion)
            else:
                yield PROXY

    traces = []
    for _ in range(2):
        trace = list(part())
        for barrier in barriers:
            trace += [barrier, *part()]
        traces.append(trace)
    return [traces[0]] * 4 + [traces[1]] * 2


def test_crews_find_nothing_ordered_that_warps_do_not():
    seen = [answers(*drawn(random.Random(f"crews {seed}"))) for seed in range(400)]
    assert min(seen.count(one) for one in (BOTH, NONE)) >= 40 and seen.count(WARPS) <= seen.count(BOTH)
