"""Warpgroup agents and warps on hand-made traces: where they agree, where only warps decide, and that agents never order more than warps."""

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
    """A segment of each warp by its atoms: equal for all warps, or by warp."""
    by_warp = [atoms.get(warp, []) for warp in range(12)] if isinstance(atoms, dict) else [atoms] * 12
    return Segment(step, Area(0, None, by_warp), kind, mechanism is not AT_ONCE, by_engine, mechanism, fill, size)


def own_atoms(first=0):
    """A separate atom for each warp."""
    return {warp: [warp + first] for warp in range(12)}


def other_atoms():
    """The atom of another warp of the same warpgroup."""
    return {warp: [warp // 4 * 4 + (warp + 1) % 4] for warp in range(12)}


def orders(*traces, blocks=1):
    """Whether agents and warps find the traces ordered; warps with equal traces pass the same object."""
    warpgroups, warps = (order(traces, blocks, 24).run_all() for order in (WarpgroupOrder, SegmentOrder))
    assert warps or not warpgroups, "agents order no more than warps"
    return warpgroups, warps


BOTH, NONE, WARPS = (True, True), (False, False), (False, True)


def four(*events, other=None):
    """Four warps with one trace, and optionally a fifth with another."""
    trace = list(events)
    return orders(*[trace] * 4, *(() if other is None else (other,)))


def test_accesses_of_separate_warps():
    assert four(touch(1, own_atoms()), WARP_BARRIER, touch(2, own_atoms(), Kind.READ)) == BOTH
    assert four(touch(1, own_atoms()), touch(2, own_atoms(), Kind.READ)) == NONE, "lanes of one warp"
    assert four(touch(1, own_atoms()), WARP_BARRIER, touch(2, other_atoms(), Kind.READ)) == NONE
    assert four(touch(1, own_atoms()), GROUP, touch(2, other_atoms(), Kind.READ)) == BOTH
    assert four(touch(1, own_atoms()), BLOCK_BARRIER, touch(2, other_atoms(), Kind.READ)) == BOTH
    assert four(touch(1, own_atoms()), PAIR, touch(2, own_atoms(), Kind.READ)) == BOTH
    pairs = {warp: [warp ^ 1] for warp in range(4)}
    assert four(touch(1, own_atoms()), PAIR, touch(2, pairs, Kind.READ)) == WARPS, (
        "a barrier of a part of an agent counts as one of each warp"
    )
    assert four(touch(1, own_atoms(), Kind.READ), touch(2, other_atoms(), Kind.READ)) == BOTH


def test_two_warps_that_write_one_atom():
    """Within one execution of a collective statement the accesses are ordered."""
    for step, expected in ((SEVERAL, NONE), (1, BOTH)):
        assert four(touch(step, [0])) == expected
    assert four(touch(SEVERAL, own_atoms())) == BOTH and four(touch(SEVERAL, [0], Kind.READ)) == BOTH
    assert four(touch(1, [0]), touch(1, [0], Kind.READ)) == BOTH and four(touch(1, [0]), touch(2, [0], Kind.READ)) == NONE


def test_barriers_of_several_agents():
    trace, other = [touch(1, own_atoms()), BLOCK_BARRIER], [BLOCK_BARRIER, touch(2, {warp: [warp - 4] for warp in range(4, 8)}, Kind.READ)]
    assert orders(*[trace] * 4, *[other] * 4) == BOTH
    trace, other = [touch(1, own_atoms()), GROUP], [GROUP, other[1]]
    assert orders(*[trace] * 4, *[other] * 4) == NONE, "each warpgroup has a separate barrier"
    wide = making.barrier(making.scope("two", 256))
    trace, other = [touch(1, own_atoms()), wide], [wide, other[1]]
    assert orders(*[trace] * 4, *[other] * 4, *[[]] * 4) == BOTH
    assert orders(*[trace] * 4, *[other] * 4) == BOTH
    three = making.barrier(making.scope("six", 192))
    late = [touch(1, own_atoms()), three, WARP_BARRIER, touch(3, own_atoms(), Kind.READ)]
    assert orders(*[late] * 4, *[late] * 4, *[late] * 4) == WARPS, "it splits an agent"
    assert orders(*[[touch(1, own_atoms()), PAIR, touch(2, own_atoms(), Kind.READ)]] * 2) == BOTH, "an agent of two warps"
    assert orders(*[[touch(1, own_atoms()), PAIR, touch(2, {0: [1], 1: [0]}, Kind.READ)]] * 2) == BOTH


def test_eight_warps_are_two_agents():
    """Even with one trace: a barrier of four warps synchronizes each agent separately."""
    trace = [touch(1, own_atoms()), GROUP, touch(2, {warp: [(warp + 4) % 8] for warp in range(8)}, Kind.READ)]
    assert orders(*[trace] * 8) == NONE
    inside = [touch(1, own_atoms()), GROUP, touch(2, other_atoms(), Kind.READ)]
    assert orders(*[inside] * 8) == BOTH
    blocks = [
        [touch(1, {0: [rank * 4], 1: [rank * 4 + 1]}), GROUP, touch(2, {0: [rank * 4 + 1], 1: [rank * 4]}, Kind.READ)] for rank in range(2)
    ]
    assert orders(*[blocks[0]] * 2, *[blocks[1]] * 2, blocks=2) == BOTH


def test_barriers_in_separate_traces():
    """Warps with separate traces may wait for each other; agents that would deadlock decide nothing."""
    first, second = [GROUP, touch(1, [0])], [touch(2, [0]), GROUP]
    assert orders(first, first, second, second) == BOTH
    assert orders(first, second, first, second) == BOTH


@pytest.mark.parametrize("completion, kind", [(CP_ASYNC_GROUPS, Kind.WRITE), (WGMMA_GROUPS, Kind.READ)])
def test_copies_and_mma_of_an_agent(completion, kind):
    issued = (touch(1, own_atoms(), kind, completion), making.commit(completion))
    done, use = making.wait(0, mechanism=completion), touch(2, own_atoms())
    assert four(*issued, use) == NONE
    own = BOTH if completion is WGMMA_GROUPS else NONE
    assert four(*issued, done, use) == own
    assert four(*issued, done, WARP_BARRIER, use) == BOTH
    assert four(*issued, done, touch(2, other_atoms())) == NONE and four(*issued, done, WARP_BARRIER, touch(2, other_atoms())) == NONE
    assert four(*issued, done, GROUP, touch(2, other_atoms())) == BOTH
    assert four(*issued, GROUP, done, touch(2, other_atoms())) == NONE
    assert four(*issued, making.wait(1, mechanism=completion), GROUP, touch(2, other_atoms())) == NONE


def test_async_proxy_and_fences_of_an_agent():
    engine = touch(3, own_atoms(), Kind.READ, by_engine=True)
    all_of_them = touch(3, [0, 1, 2, 3], Kind.READ, by_engine=True)
    assert four(touch(1, own_atoms()), PROXY, WARP_BARRIER, engine) == BOTH and four(touch(1, own_atoms()), WARP_BARRIER, engine) == NONE
    assert four(touch(1, own_atoms()), WARP_BARRIER, PROXY, engine) == BOTH
    assert four(touch(1, own_atoms()), PROXY, GROUP, all_of_them) == BOTH
    assert four(touch(1, own_atoms()), GROUP, PROXY, all_of_them) == NONE, "each fence covers the writes of its warp"
    assert four(touch(1, own_atoms()), GROUP, PROXY, GROUP, all_of_them) == BOTH
    assert four(touch(1, own_atoms()), GROUP, all_of_them) == NONE
    assert four(touch(1, own_atoms()), PROXY, WARP_BARRIER, all_of_them) == NONE
    assert four(touch(1, own_atoms()), PROXY, PAIR, engine) == BOTH
    reading = [BLOCK_BARRIER, touch(3, [0, 1, 2, 3], Kind.READ, by_engine=True)]
    assert (
        four(touch(1, own_atoms()), PROXY, BLOCK_BARRIER, other=reading) == BOTH
        and four(touch(1, own_atoms()), BLOCK_BARRIER, PROXY, other=reading) == NONE
    )


# ---------------------------------------------------------------------------------------------- rings


def ring_orders(arrivals, before=(WARP_BARRIER,), consumers=None, reading=None, writing=None, kind=Kind.READ):
    """Four warps read separate atoms, and a fifth one writes all of them after their arrivals."""
    ring = making.ring("r", 1, ("a",), consumers=sum(arrivals[:5]) if consumers is None else consumers)
    first, second = (StageEvent(ring, StageState.EMPTY, number) for number in (0, 1))
    filled, freed = StageEvent(ring, StageState.FULL, 0, (1,) * 5), StageEvent(ring, StageState.EMPTY, 0, arrivals)
    trace = [StageEvent(ring, StageState.FULL, 0), touch(1, own_atoms() if reading is None else reading, kind), *before, freed]
    writer = [first, filled, second, touch(2, {4: [0, 1, 2, 3]} if writing is None else writing)]
    return orders(*[trace] * 4, writer)


def test_arrivals_of_an_agent():
    """Arrivals of all warps release the accesses of each; arrivals of some release only what they have synchronized with."""
    assert ring_orders((1, 1, 1, 1)) == BOTH and ring_orders((32, 32, 32, 32)) == BOTH
    assert ring_orders((1, 0, 0, 0)) == NONE and ring_orders((1, 1, 1, 0)) == NONE and ring_orders((0, 1, 1, 1)) == NONE
    assert ring_orders((1, 0, 0, 0), before=(GROUP,)) == BOTH and ring_orders((0, 0, 0, 1), before=(GROUP,)) == BOTH
    assert ring_orders((1, 1, 1, 1), before=()) == NONE
    assert ring_orders((1, 0, 0, 0), writing={4: [0]}) == WARPS, "warps distinguish the arrivals"
    assert ring_orders((1, 1), before=(GROUP,)) == BOTH, "of fewer warps than the block has"
    assert ring_orders((1, 1)) == NONE
    assert ring_orders((1, 1, 1, 1), consumers=2)[0] is False, "a phase that completes with a part of an agent"
    assert ring_orders((1, 1, 1, 1), consumers=5) == NONE


def test_loads_of_an_agent():
    """A wait for a stage orders its loads with all warps of the agent."""
    ring = making.ring("r", 1, ("a",), bytes=16, consumers=4)
    load = touch(5, {4: [0, 1, 2, 3]}, mechanism=TMA_LOADS, fill=StageEvent(ring, StageState.FULL, 0, None, (0,)), size=16)
    producer = [StageEvent(ring, StageState.EMPTY, 0), StageEvent(ring, StageState.FULL, 0, (1,) * 5), load]
    for reading, expected in ((own_atoms(), BOTH), (other_atoms(), BOTH), ([0, 1, 2, 3], BOTH)):
        consumer = [
            StageEvent(ring, StageState.FULL, 0),
            touch(6, reading, Kind.READ),
            WARP_BARRIER,
            StageEvent(ring, StageState.EMPTY, 0, (1,) * 4),
        ]
        assert orders(*[consumer] * 4, producer) == expected
        early = [consumer[1], consumer[0], *consumer[2:]]
        assert orders(*[early] * 4, producer) == NONE
    short = [*producer[:2], touch(5, {4: [0]}, mechanism=TMA_LOADS, fill=load.fill, size=12)]
    assert orders(*[[StageEvent(ring, StageState.FULL, 0)]] * 4, short) == NONE


def test_blocks_of_a_cluster():
    """Agents arrive in other blocks, where a phase must not complete with a part of one, and not in missing blocks."""
    for consumers, expected in ((8, BOTH), (6, WARPS)):
        ring = making.ring("r", 1, ("a",), consumers=consumers)
        arrive = StageEvent(ring, StageState.EMPTY, 0, (1,) * 4, (0, 1))
        trace = [making.cluster_barrier(), arrive, making.cluster_barrier()]
        result = orders(*[trace] * 8, blocks=2)
        assert result == (expected if consumers == 8 else NONE)
    ring = making.ring("r", 1, ("a",), consumers=4)
    missing_block = [making.cluster_barrier(), StageEvent(ring, StageState.EMPTY, 0, (1,) * 4, (0, 2)), making.cluster_barrier()]
    assert orders(*[missing_block] * 4, *[[making.cluster_barrier()] * 2] * 4, blocks=2) == NONE


# ---------------------------------------------------------------------------------------------- random traces


def random_traces(chance):
    """Six warps with two random traces that have the same barriers."""
    barriers = [chance.choice((BLOCK_BARRIER, BLOCK_BARRIER, GROUP, GROUP, WARP_BARRIER, PAIR)) for _ in range(chance.choice((0, 1, 2, 3)))]
    steps = itertools.count()
    patterns = (own_atoms(), other_atoms(), [0], {warp: [warp % 4] for warp in range(12)}, {warp: [4 + warp // 2] for warp in range(12)})

    def part():
        for _ in range(chance.choice((0, 1, 1, 2))):
            kind = chance.random()
            completion = chance.choice((CP_ASYNC_GROUPS, WGMMA_GROUPS))
            if kind < 0.7:
                is_asynchronous = chance.random() < 0.2
                what = chance.choice((Kind.WRITE, Kind.READ, Kind.READ, Kind.ADD))
                how = completion if is_asynchronous and what is not Kind.ADD else AT_ONCE
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


def test_agents_order_no_more_than_warps():
    seen = [orders(*random_traces(random.Random(f"crews {seed}"))) for seed in range(400)]
    assert min(seen.count(outcome) for outcome in (BOTH, NONE)) >= 40 and seen.count(WARPS) <= seen.count(BOTH)
