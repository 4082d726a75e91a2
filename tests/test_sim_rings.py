"""Rings in the simulator, on hand-made kernels: mbarriers and their phases, ownership of fills, and the report of each fault
(`fireiron.sim.rings`).
"""

import functools
import random
import re
import types

import attrs
import making
import numpy as np
import pytest
from campaign.faults.kernels import case
from engines import ROWS, copied, numbered, streamed
from ringed import TARGET, cluster_faults, float16_gemm, inputs_of, outcome, product

from fireiron import *
from fireiron import ir
from fireiron.errors import SimulationError
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.sim import simulate
from fireiron.sim.locations import PendingGroups, PendingMma, ThreadGroup
from fireiron.sim.rings import Load, MbarrierState, Rings, require_released, require_stored, warps
from fireiron.values.expr import TRUE, Var, as_expr, equal, less

FULL, EMPTY = ir.StageState.FULL, ir.StageState.EMPTY
FILLS = 5
GIVEN = numbered((FILLS * ROWS, 64))


def right(kernel, given=GIVEN):
    """The copy is correct, in lockstep and with warps and loads in random order."""
    for order in (None, *map(random.Random, range(3))):
        np.testing.assert_array_equal(copied(kernel, given, order), given)


def fails(kernel, message, given=GIVEN, orders=(None, 0, 1)):
    """The simulator reports this, in lockstep and in random orders."""
    for order in orders:
        with pytest.raises(SimulationError, match=message):
            copied(kernel, given, None if order is None else random.Random(order))


# ---------------------------------------------------------------------------------------------- correct rings


@pytest.mark.parametrize("stages", [1, 2, 3, 8])
@pytest.mark.parametrize("warps", [1, 2, 4])
def test_correct_rings(stages, warps):
    right(streamed(FILLS, stages, warps))


def without(*dropped):
    """An iteration without the statements at these positions."""
    return lambda body: tuple(one for number, one in enumerate(body) if number not in {place % len(body) for place in dropped})


def at_fill(place, more):
    """The statement at a position, changed to a fill a given number later."""
    return lambda body: (*body[:place], attrs.evolve(body[place], fill_index=body[place].fill_index + more), *body[place + 1 :])


# ---------------------------------------------------------------------------------------------- faults of consumers


def test_a_stage_is_read_without_its_wait():
    fails(streamed(consumer=without(0)), r"tile: stage 0 is read by a group that has not acquired it full")


def test_a_stage_is_released_twice():
    fails(streamed(consumer=lambda body: (*body, body[-1])), "ring: fill 0 is released by a group that has not acquired it")


NOT_ANNOUNCED = "warp 0 waits for fill 2 of ring to be full (tile; 1 phases complete, 1 of 1 arrivals and 0 bytes missing): the producer has not arrived"
NOT_RELEASED = "the producer waits for fill 2 of ring to be empty (tile; 0 phases complete, 1 of 1 arrivals and 0 bytes missing): fill 0 has not been released by warp 0"


def stuck(kernel, *waits):
    """Deadlock, with a report of each wait."""
    for order in (None, 0, 1):
        with pytest.raises(SimulationError, match="^deadlock: ") as caught:
            copied(kernel, GIVEN, None if order is None else random.Random(order))
        report = str(caught.value).partition("\n")[0].removeprefix("deadlock: ")
        assert sorted(report.split("; ")) == sorted("; ".join(waits).split("; "))


def test_a_stage_is_never_released():
    stuck(streamed(consumer=without(4)), NOT_RELEASED, NOT_ANNOUNCED)


def test_a_stage_is_released_while_lanes_read():
    fails(streamed(consumer=without(3)), "ring: fill 0 is released by one lane, and other lanes of its warp may still read it")


def test_a_stage_is_released_after_loads_without_a_fence():
    """Loads in flight may read the stage after TMA has written to it."""
    fails(
        streamed(consumer=without(2)), "ring: fill 0 is released after loads by threads, which may still read when TMA writes to the stage"
    )
    right(streamed(consumer=lambda body: (body[0], body[1], body[3], body[2], body[4])))


def test_all_lanes_release():
    """Each lane for itself: 32 arrivals are 32 phases of a barrier that counts one."""
    often = "the producer waits for fill 2 of ring to be empty (tile; 32 phases complete, 1 of 1 arrivals and 0 bytes missing): "
    stuck(
        streamed(consumer=lambda body: (*body[:-1], attrs.evolve(body[-1], active=TRUE))),
        f"{often}fill 0 has been released by warp 0, by some of them more than once",
        NOT_ANNOUNCED,
    )


def test_a_warp_barrier_is_needed_if_one_lane_arrives():
    """A warp that arrives with all of its lanes has read."""
    right(streamed(consumer=lambda body: (*body[:3], attrs.evolve(body[4], active=TRUE)), consumers=32))


@pytest.mark.parametrize(
    "more, message", [(1, "ring: fill 1 is released by a group that has not acquired it"), (2, "ring: fill 2 is released")]
)
def test_another_fill_is_released(more, message):
    fails(streamed(consumer=at_fill(4, more)), message)


def test_the_wait_is_for_the_next_fill():
    fails(streamed(consumer=at_fill(0, 1)), "tile: stage 0 is read by a group that has not acquired it full")


def test_a_wait_one_cycle_later_passes_by_parity():
    """Two cycles later the parity is equal, so the right phase is unknown."""
    fails(streamed(consumer=at_fill(0, 4)), r"the wait for fill 4 to be full passes by parity alone: 1 phases are complete, not 3")


# ---------------------------------------------------------------------------------------------- faults of the producer


def test_a_stage_is_filled_without_its_wait():
    fails(streamed(producer=without(0)), "ring: fill 0 is released by a group that has not acquired it")


@pytest.mark.parametrize("place, fill", [(0, 0), (1, 1)])
def test_the_producer_uses_the_next_fill(place, fill):
    fails(streamed(producer=at_fill(place, 1)), f"ring: fill {fill} is released by a group that has not acquired it")


def test_a_load_without_expected_bytes():
    first = "warp 0 waits for fill 0 of ring to be full (tile; 0 phases complete, 1 of 1 arrivals and -1024 bytes missing): "
    stuck(streamed(producer=without(1)), f"{first}the producer has not arrived", NOT_RELEASED)


@pytest.mark.parametrize(
    "missing, kernel", [(1024, streamed(producer=without(2))), (16, streamed(bytes=1040)), (-16, streamed(bytes=1008))]
)
def test_other_bytes_than_expected(missing, kernel):
    first = f"warp 0 waits for fill 0 of ring to be full (tile; 0 phases complete, 0 of 1 arrivals and {missing} bytes missing): "
    stuck(kernel, f"{first}the producer has arrived", NOT_RELEASED)


def test_the_load_comes_before_the_expected_bytes():
    """Bytes may arrive before they are expected: a phase completes when both are present."""
    right(streamed(producer=lambda body: (body[0], body[2], body[1])))


def test_two_loads_to_a_stage():
    """The first one's bytes are all that the stage has, and the second one is to it as well."""
    fails(
        streamed(producer=lambda body: (*body, body[-1])),
        r"ring: fill 0 becomes full while a load to it is in flight(?s:.*)expects 1024 bytes, fewer than",
    )


def test_two_loads_that_the_ring_expects():
    right(streamed(producer=lambda body: (*body, body[-1]), bytes=2048))


def test_more_arrivals_than_consumers():
    counted = "the producer waits for fill 2 of ring to be empty (tile; 0 phases complete, 1 of 2 arrivals and 0 bytes missing): "
    stuck(streamed(consumers=2), f"{counted}fill 0 has been released by warp 0, and the ring counts 2 consumers", NOT_ANNOUNCED)


def test_fewer_arrivals_than_consumers():
    counted = "the producer waits for fill 2 of ring to be empty (tile; 2 phases complete, 1 of 1 arrivals and 0 bytes missing): "
    waiting = NOT_ANNOUNCED.replace("warp 0 waits", "warps 0, 1 wait")
    often = "fill 0 has been released by warps 0, 1, by some of them more than once"
    stuck(streamed(warps=2, consumers=1), f"{counted}{often}", waiting)


def test_a_fill_without_a_wait():
    """A load after the last fill may complete after the block has ended."""
    kernel = streamed(FILLS, 8)
    (roles,) = kernel.body
    consumers, producer = roles.roles
    (loop,) = consumers.body
    shorter = attrs.evolve(consumers, body=(attrs.evolve(loop, extent=as_expr(FILLS - 1)),))
    fails(attrs.evolve(kernel, body=(making.roles((shorter, producer)),)), f"ring: no group waits for fill {FILLS - 1}")


def test_a_fill_owned_at_the_end():
    kernel = streamed(FILLS, 8, consumer=without(4))
    fails(kernel, "ring: a group exits without releasing fill 0")


# ---------------------------------------------------------------------------------------------- phases


def test_phases_of_a_barrier():
    barrier = MbarrierState(2, 2)
    barrier.arrive()
    assert (barrier.pending_arrivals, barrier.completed) == (1, 0)
    barrier.arrive()
    assert (barrier.pending_arrivals, barrier.completed) == (2, 1), "the next phase lacks all arrivals again"
    barrier.bytes += 32
    barrier.arrive()
    barrier.complete_bytes(16)
    barrier.arrive()
    assert (barrier.pending_arrivals, barrier.bytes, barrier.completed) == (0, 16, 1), "bytes are missing"
    barrier.complete_bytes(16)
    assert (barrier.pending_arrivals, barrier.bytes, barrier.completed) == (2, 0, 2)


@pytest.mark.parametrize(
    "numbers, text",
    [
        ([3], "warp 3"),
        ([0, 1], "warps 0, 1"),
        ([4, 2, 3], "warps 2 to 4"),
        ([0, 1, 2, 5, 7, 8], "warps 0 to 2, 5, 7, 8"),
        ([1, 1], "warp 1"),
    ],
)
def test_names_of_warps(numbers, text):
    assert warps(numbers) == text


def test_pending_groups_complete_in_order():
    pending = PendingGroups()
    for copy in "abc":
        pending.issued.append(copy)
        pending.commit()
    assert pending.issued == []
    assert pending.complete_groups(5) == []
    assert pending.complete_groups(1) == ["a", "b"]
    assert pending.complete_groups(0) == ["c"]


# ---------------------------------------------------------------------------------------------- mbarriers in shared memory


def placed(offset, **fields):
    """The kernel with its barriers, four of 8 bytes, at a place; the tile is bytes 1024 to 3071."""
    kernel = streamed()
    return attrs.evolve(kernel, rings=(attrs.evolve(kernel.rings[0], offset=offset),), **fields)


@pytest.mark.parametrize("offset", [0, 8, 1024 - 32, 3072])
def test_mbarriers_have_separate_bytes(offset):
    right(placed(offset, shared_bytes=3072 + 32))


@pytest.mark.parametrize("offset", [4, 1, 1024 - 28])
def test_mbarriers_start_at_multiples_of_8(offset):
    fails(placed(offset), f"the mbarriers of ring start at byte {offset} of shared memory\n +legal +a multiple of 8")


@pytest.mark.parametrize("offset, first", [(1024 - 24, 1024), (1024, 1024), (2048, 2048), (3072 - 8, 3064)])
def test_mbarriers_in_the_bytes_of_a_buffer(offset, first):
    fails(placed(offset, shared_bytes=4096), f"the mbarriers of ring and tile overlap in shared memory, from byte {first} on")


@pytest.mark.parametrize("offset, size", [(3072, 3072 + 24), (-8, 4096)])
def test_mbarriers_are_inside_shared_memory(offset, size):
    message = rf"the mbarriers of ring occupy bytes {offset} ... {offset + 31} of shared memory\n +legal +0 ... {size - 1}"
    fails(placed(offset, shared_bytes=size), message)


@pytest.mark.parametrize("offset, right_there", [(0, False), (24, False), (32, True), (16, False)])
def test_mbarriers_of_two_rings(offset, right_there):
    kernel = streamed()
    both = attrs.evolve(kernel, rings=(*kernel.rings, making.ring("order", 2, (), bytes=0, consumers=1, offset=offset)))
    if right_there:
        right(both)
    else:
        fails(both, f"the mbarriers of ring and the mbarriers of order overlap in shared memory, from byte {offset} on")


def test_an_unused_buffer_may_share_the_bytes():
    kernel = placed(0)
    tile = kernel.buffer("tile")
    other = attrs.evolve(tile, tensor=attrs.evolve(tile.tensor, name="other"), offset=0)
    right(attrs.evolve(kernel, buffers=(*kernel.buffers, other)))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form, seed", [("ring", 1), ("cluster", 0), ("turns", 0), ("dynamic", 1), ("attention", 1), ("hopper-tasks", 2)])
def test_mbarriers_moved_in_kernels(form, seed):
    """Upon each buffer and each other ring, and by four bytes."""
    drawn = case(form, seed)
    kernel = drawn.kernel
    for number, ring in enumerate(kernel.rings):
        others = {one.offset for one in kernel.buffers if one.memory.of_block} | {one.offset for one in kernel.rings if one is not ring}
        for offset in {*others, ring.offset + 4} - {ring.offset}:
            rings = (*kernel.rings[:number], attrs.evolve(ring, offset=offset), *kernel.rings[number + 1 :])
            with pytest.raises(SimulationError, match="the mbarriers of .* (start at byte|.* overlap in shared memory|occupy bytes)"):
                simulate(
                    attrs.evolve(kernel, rings=rings),
                    drawn.arrays,
                    drawn.symbols,
                    blocks=range(1 if kernel.cluster is None else kernel.cluster.blocks),
                )


# ---------------------------------------------------------------------------------------------- clusters


@functools.cache
def of_cluster():
    """Two blocks that load halves of B for each other."""
    program = product((64, 64, 64), (64, 64), 2, cluster=(2, 1), tma=False)(float16_gemm(128, 64, 320)).program(TARGET)
    return program.ir, *inputs_of(program.spec)


def outcomes(kernel):
    """The outcomes in lockstep and by warps."""
    return {outcome(kernel, *of_cluster()[1:], order) for order in (None, 0, 1)}


def test_a_correct_cluster():
    assert outcomes(of_cluster()[0]) == {"right"}


REPORTS = {
    "dropped: the cluster's barrier at the start": "whose mbarriers may not be initialized yet",
    "dropped: the cluster's barrier at the end": "block . of the cluster exits while others may still arrive at its mbarriers or send loads",
    "a block beyond": "in block 2 of a cluster of 2",
    "only its own block's consumers": "which has not released fill|passes by parity alone|deadlock|released",
}


def of_the_last_fill(name):
    """After the loop is the arrival for its last fill, for which no load of another block waits."""
    return name.startswith("arrival 1: ") and name.endswith("left out")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name, faulty", [pytest.param(*one, id=one[0]) for one in cluster_faults(of_cluster()[0]) if not of_the_last_fill(one[0])]
)
def test_synchronization_of_a_cluster(name, faulty):
    results = outcomes(faulty)
    assert not results & {"right", "wrong"}, results
    for part, message in REPORTS.items():
        if part in name:
            assert all(re.search(message, one) for one in results), results


def test_a_load_waits_until_all_warps_have_released():
    """A sender to another block waits for the warps of both."""
    kernel = of_cluster()[0]
    less = attrs.evolve(kernel, rings=tuple(attrs.evolve(one, consumers=one.consumers - 1) for one in kernel.rings))
    assert not outcomes(less) & {"right", "wrong"}


# ---------------------------------------------------------------------------------------------- parts of it

RING = making.ring("ring", 2, ("tile",), bytes=64, consumers=2)
FILL = Var("k", 0, 9)
WHERE = "outside loops"


def rings_of(*rings, workers=64, blocks=1):
    """The rings of the blocks of a cluster in their initial state."""
    plan = types.SimpleNamespace(kernel=types.SimpleNamespace(rings=rings or (RING,), workers=workers, body=()))
    rings_by_rank = [Rings(plan, rank) for rank in range(blocks)]
    for ring_state in rings_by_rank:
        ring_state.cluster = rings_by_rank
    return rings_by_rank


def warp(number=0, cluster_barriers=0, threads=32):
    group = ThreadGroup(np.arange(32 * number, 32 * number + threads), {})
    group.cluster_barriers = cluster_barriers
    return group


def acquire(side, fill, ring="ring"):
    return making.acquire(ring, side, as_expr(fill))


def release(side, fill, active=TRUE, ring="ring", to=()):
    return making.release(ring, side, as_expr(fill), active=active, to=to)


LANE = Var("thread", 0, 63)
FIRST = equal(LANE % 32, 0)


def env_of(group, **names):
    return {"thread": group.threads[:, None], **names}


@pytest.mark.parametrize("side", [FULL, EMPTY], ids=str)
@pytest.mark.parametrize("fill", range(6))
@pytest.mark.parametrize("over", range(5))
def test_a_wait_passes_by_parity(side, fill, over):
    """It passes after as many phases as it expects; with one more or less it waits, and two are indistinguishable."""
    (rings,), group = rings_of(), warp()
    rings.mbarriers["ring", side, fill % 2].completed = over
    wanted = fill // 2 + (side is FULL)
    if over == wanted:
        assert rings.passes(acquire(side, fill), {}, group, WHERE)
        assert group.owned == {("ring", fill, side)} and rings.awaited == ({("ring", fill)} if side is FULL else set())
    elif abs(over - wanted) % 2:
        assert not rings.passes(acquire(side, fill), {}, group, WHERE) and not group.owned and not rings.awaited
    else:
        message = f"ring: the wait for fill {fill} to be {side.value} passes by parity alone: {over} phases are complete, not {wanted}"
        with pytest.raises(SimulationError, match=message):
            rings.passes(acquire(side, fill), {}, group, WHERE)


def test_a_fill_may_be_a_name():
    (rings,), group = rings_of(), warp()
    assert rings.fill(acquire(FULL, FILL + 1), {"k": 3}) == 4
    assert rings.passes(acquire(EMPTY, FILL - 2), {"k": np.array([[3], [3]])}, group, WHERE) and group.owned == {("ring", 1, EMPTY)}


def test_a_stage_is_filled():
    """By the owner of the empty stage: one arrival, and the expected bytes."""
    (rings,), group = rings_of(), warp(2)
    with pytest.raises(SimulationError, match="ring: fill 3 is released by a group that has not acquired it"):
        rings.release(release(FULL, 3, FIRST), env_of(group), group, WHERE)
    group.owned = {("ring", 3, EMPTY)}
    rings.release(release(FULL, 3, FIRST), env_of(group), group, WHERE)
    full = rings.mbarriers["ring", FULL, 1]
    assert (full.pending_arrivals, full.bytes, full.completed) == (0, 64, 0) and rings.mbarriers["ring", FULL, 0].pending_arrivals == 1
    assert group.owned == {("ring", 3, EMPTY)} and rings.released["ring", FULL, 3] == [(0, 2)]
    landed = []
    for size in (16, 48):
        rings.start_load(Load("ring", 3, size, functools.partial(landed.append, size)))
    assert len(rings.loads) == 2 and [*rings.filled] == [("ring", 3)]
    rings.complete_load(1)
    assert (full.bytes, full.completed, landed) == (16, 0, [48])
    rings.complete_load(0)
    assert (full.bytes, full.pending_arrivals, full.completed, landed, rings.loads) == (0, 1, 1, [48, 16], [])


@pytest.mark.parametrize("other, wrong", [(("ring", 3), True), (("ring", 1), False), (("next", 3), False), (None, False)], ids=str)
def test_a_stage_that_is_full_too_early(other, wrong):
    """While another load to the same fill is in flight."""
    (rings,) = rings_of(RING, attrs.evolve(RING, name="next", buffers=("other",)))
    rings.mbarriers["ring", FULL, 1].bytes, rings.mbarriers["ring", FULL, 1].pending_arrivals = 64, 0
    rings.start_load(Load("ring", 3, 64, lambda: None))
    if other is not None:
        rings.start_load(Load(*other, 64, lambda: None))
    if wrong:
        with pytest.raises(SimulationError, match=r"ring: fill 3 becomes full while a load to it is in flight(?s:.*)expects 64 bytes"):
            rings.complete_load(0)
    else:
        rings.complete_load(0)
        assert rings.mbarriers["ring", FULL, 1].completed == 1


@pytest.mark.parametrize("active, arrivals", [(FIRST, 1), (TRUE, 32), (less(LANE, 3), 3)], ids=str)
def test_a_stage_is_released(active, arrivals):
    """By the owner of the full stage, which ends its ownership: each active lane arrives."""
    (rings,), group = rings_of(attrs.evolve(RING, consumers=40)), warp()
    for owned in (set(), {("ring", 3, EMPTY)}, {("ring", 1, FULL)}):
        group.owned = owned
        with pytest.raises(SimulationError, match="ring: fill 3 is released by a group that has not acquired it"):
            rings.release(release(EMPTY, 3, active), env_of(group), group, WHERE)
    group.owned = {("ring", 3, FULL), ("ring", 1, FULL)}
    rings.release(release(EMPTY, 3, active), env_of(group), group, WHERE)
    assert group.owned == {("ring", 1, FULL)} and rings.released_warps == {("ring", 3): arrivals}
    assert rings.mbarriers["ring", EMPTY, 1].pending_arrivals == 40 - arrivals and rings.mbarriers["ring", EMPTY, 0].pending_arrivals == 40
    assert rings.released["ring", EMPTY, 3] == [(0, 0)] * arrivals
    group.owned = {("ring", 3, FULL)}
    rings.release(release(EMPTY, 3, FIRST), env_of(group), group, WHERE)
    assert rings.released_warps == {("ring", 3): arrivals + 1}


def test_a_group_without_active_lanes_releases_nothing():
    """A group without active lanes need not own the stage, and keeps its ownership."""
    (rings,), group = rings_of(), warp(1)
    rings.release(release(EMPTY, 3, less(LANE, 32)), env_of(group), group, WHERE)
    group.owned = {("ring", 3, FULL)}
    rings.release(release(EMPTY, 3, less(LANE, 32)), env_of(group), group, WHERE)
    assert group.owned == {("ring", 3, FULL)} and not rings.released_warps and not rings.released


def test_lanes_that_have_read_separately():
    """One lane arrives for all after a barrier, all lanes for themselves, and any lane for another stage."""
    for apart, active, right in ((1, FIRST, False), (1, TRUE, True), (0, FIRST, True)):
        (rings,), group = rings_of(attrs.evolve(RING, consumers=40)), warp()
        group.owned, group.read_by_lanes = {("ring", 3, FULL)}, {("ring", apart)}
        if right:
            rings.release(release(EMPTY, 3, active), env_of(group), group, WHERE)
        else:
            with pytest.raises(
                SimulationError, match="ring: fill 3 is released by one lane, and other lanes of its warp may still read it"
            ):
                rings.release(release(EMPTY, 3, active), env_of(group), group, WHERE)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("stage, right", [(1, False), (0, True)])
@pytest.mark.parametrize(("mechanism", "what"), [(WGMMA_GROUPS, "MMAs"), (TMA_STORES, "stores")])
def test_pending_mmas_and_stores_that_read_a_stage(mechanism, what, stage, right, committed):
    (rings,), group = rings_of(), warp()
    group.owned = {("ring", 3, FULL)}
    group.in_flight[mechanism].issued.append(PendingMma(1, frozenset(), lambda clock: None, frozenset({("ring", stage)})))
    if committed:
        group.in_flight[mechanism].commit()
        group.in_flight[mechanism].commit()
    if right:
        rings.release(release(EMPTY, 3, FIRST), env_of(group), group, WHERE)
    else:
        with pytest.raises(SimulationError, match=f"ring: fill 3 is released while {what} that read it are in flight"):
            rings.release(release(EMPTY, 3, FIRST), env_of(group), group, WHERE)


def test_ordered_mma_rings():
    """The owner of a tile's position determines what the next one waits for: its own number plus the number of groups."""
    order = making.ring("order", 3, (), bytes=0, consumers=1)
    (rings,), group = rings_of(order), warp()
    assert rings.passes(acquire(EMPTY, 2, "order"), {}, group, WHERE) and group.owned == {("order", 2, EMPTY)}
    for fill in (1, 2):
        with pytest.raises(SimulationError, match=f"order: fill {fill} is released by a group that has not acquired it"):
            rings.release(release(EMPTY, fill, FIRST, "order"), env_of(group), group, WHERE)
    rings.release(release(EMPTY, 0, FIRST, "order"), env_of(group), group, WHERE)
    assert not group.owned and rings.mbarriers["order", EMPTY, 0].completed == 1
    assert rings.passes(acquire(EMPTY, 3, "order"), {}, group, WHERE)


# ---------------------------------------------------------------------------------------------- numbers of tiles

TILES = making.ring("tiles", 2, (), bytes=0, consumers=1, tiles=True)


def test_numbers_of_tiles_in_stages():
    """The claiming thread stores the number in the stage, where the others read it; after the last tile there is none."""
    plan = types.SimpleNamespace(kernel=types.SimpleNamespace(rings=(TILES,), workers=32, body=()))
    rings, producer, consumer = Rings(plan, 0, (4, 7)), warp(1), warp()
    take, read = (making.claim_tile(Var("tile", 0, 9), as_expr(9), "tiles", FILL, takes=takes) for takes in (True, False))
    for fill, number in ((0, 4), (1, 7), (2, 9), (3, 9)):
        env = {"k": fill}
        with pytest.raises(
            SimulationError, match=f"tiles: the tile index of fill {fill} is stored by a group that has not acquired it empty"
        ):
            rings.tile(take, env, producer, WHERE)
        producer.owned = {("tiles", fill, EMPTY)}
        assert rings.tile(take, env, producer, WHERE) == number
        with pytest.raises(SimulationError, match=f"tiles: the tile index of fill {fill} is read by a group that has not acquired it full"):
            rings.tile(read, env, consumer, WHERE)
        consumer.owned = {("tiles", fill, FULL)}
        assert rings.tile(read, env, consumer, WHERE) == number
    consumer.owned = {("tiles", 2, FULL)}
    assert rings.tile(read, {"k": 2}, consumer, WHERE) == 9
    consumer.owned = {("tiles", 1, FULL)}
    assert rings.tile(read, {"k": 1}, consumer, WHERE) == 9, "the stage has the number of its last fill"


# ---------------------------------------------------------------------------------------------- other blocks

PLACE = Var("rank", 0, 3)
CLUSTER = making.block_cluster((4,), (PLACE,))
ALL = CLUSTER.block_set((0,))


def test_blocks_that_a_group_accesses():
    """Each once, in order; its own where none are named."""
    rings_by_rank = rings_of(blocks=4)
    group, env = warp(cluster_barriers=2), {"rank": 1}
    assert rings_by_rank[1].reached_rings((), env, warp(), "it arrives", WHERE) == [rings_by_rank[1]]
    reached_blocks = rings_by_rank[1].reached_rings((ALL,), env, group, "it arrives", WHERE)
    assert [one.rank for one in reached_blocks] == [*dict.fromkeys(ALL.ranks(ALL.first.evaluate(env)))] and {
        reached.rank for reached in reached_blocks
    } == {
        0,
        1,
        2,
        3,
    }
    assert rings_by_rank[1].reached_rings((ALL, ALL), env, group, "it arrives", WHERE) == reached_blocks
    assert [one.last_accessed for one in rings_by_rank] == [2, -1, 2, 2]
    rings_by_rank[1].reached_rings((ALL,), env, warp(cluster_barriers=1), "it arrives", WHERE)
    assert [one.last_accessed for one in rings_by_rank] == [2, -1, 2, 2], "the maximum over all"
    with pytest.raises(SimulationError, match="it arrives in block 0 of the cluster, whose mbarriers may not be initialized yet"):
        rings_by_rank[1].reached_rings((ALL,), env, warp(), "it arrives", WHERE)
    for block in (0, 2):
        rings_by_rank[block].require_not_accessed(3)
    with pytest.raises(SimulationError, match="block 0 of the cluster exits while others may still arrive at its mbarriers or send loads"):
        rings_by_rank[0].require_not_accessed(2)
    rings_by_rank[1].require_not_accessed(0)


def test_missing_blocks():
    rings_by_rank = rings_of(blocks=3)
    with pytest.raises(SimulationError, match="it arrives in block 3 of a cluster of 3"):
        rings_by_rank[0].reached_rings((ALL,), {"rank": 0}, warp(cluster_barriers=1), "it arrives", WHERE)


def test_arrivals_at_other_blocks():
    """For a stage that is released to all its producers."""
    rings_by_rank, group = rings_of(attrs.evolve(RING, consumers=4), blocks=4), warp(1, cluster_barriers=1)
    group.owned = {("ring", 0, FULL)}
    rings_by_rank[2].release(release(EMPTY, 0, equal(LANE % 32, 0), to=(ALL,)), env_of(group, rank=2), group, WHERE)
    assert [one.mbarriers["ring", EMPTY, 0].pending_arrivals for one in rings_by_rank] == [3] * 4
    assert [one.released["ring", EMPTY, 0] for one in rings_by_rank] == [[(2, 1)]] * 4
    assert [one.released_warps.get(("ring", 0)) for one in rings_by_rank] == [None, None, 1, None]


@pytest.mark.parametrize("workers", [64, 33])
def test_a_load_from_another_block_needs_an_empty_stage(workers):
    """All warps of the block have released it, or it is the first fill of its stage."""
    (rings,) = rings_of(workers=workers)
    rings.require_empty("ring", 0, WHERE)
    rings.require_empty("ring", 1, WHERE)
    for count in (0, 1):
        rings.released_warps["ring", 0] = count
        with pytest.raises(SimulationError, match="ring: fill 2 is sent to block 0 of the cluster, which has not released fill 0"):
            rings.require_empty("ring", 2, WHERE)
    rings.released_warps["ring", 0] = 2
    rings.require_empty("ring", 2, WHERE)
    with pytest.raises(SimulationError, match="fill 3 is sent to block 0 of the cluster, which has not released fill 1"):
        rings.require_empty("ring", 3, WHERE)


# ---------------------------------------------------------------------------------------------- accesses to stages


def access_to(copy, write=False, engine=False, name="tile"):
    operand = types.SimpleNamespace(buffer=types.SimpleNamespace(name=name), write=write, copy=lambda env: copy)
    statement = types.SimpleNamespace(instruction=types.SimpleNamespace(mechanism=types.SimpleNamespace(by_engine=engine)), origin="line 1")
    return types.SimpleNamespace(statement=statement, what="what"), operand


@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize("engine", [False, True])
def test_stages_are_owned_by_the_accessing_group(write, engine):
    """Full stages by readers, empty ones by producers; lanes that read separately are recorded."""
    (rings,), group = rings_of(), warp()
    side, verb = (EMPTY, "written") if write else (FULL, "read")
    for copy, stages in ((1, {1}), (np.array([[0], [3]]), {0, 1}), (4, {0})):
        site, operand = access_to(copy, write, engine)
        assert rings.stages_of(operand, {}) == {("ring", stage) for stage in stages}
        group.owned = {("ring", 4 + stage, EMPTY if side is FULL else FULL) for stage in (0, 1)}
        with pytest.raises(
            SimulationError, match=rf"tile: stage {min(stages)}|tile: stage 1 is {verb} by a group that has not acquired it {side.value}"
        ):
            rings.require_owned(site, operand, {}, group, WHERE)
        group.owned, group.read_by_lanes = {("ring", 4 + stage, side) for stage in stages}, set()
        rings.require_owned(site, operand, {}, group, WHERE)
        assert group.read_by_lanes == (set() if write or engine else {("ring", stage) for stage in stages})
        for owned in ({("ring", 4 + stage, side) for stage in {0, 1} - {max(stages)}}, {("other", 4 + stage, side) for stage in stages}):
            group.owned = owned
            with pytest.raises(SimulationError, match=f"is {verb} by a group that has not acquired it"):
                rings.require_owned(site, operand, {}, group, WHERE)
    site, operand = access_to(1, write, engine, "elsewhere")
    assert rings.stages_of(operand, {}) == frozenset()
    rings.require_owned(site, operand, {}, warp(), WHERE)


def test_each_of_several_warps_owns_a_stage_accessed_together():
    (rings,) = rings_of()
    site, operand = access_to(1, engine=True)
    members = warp(0), warp(1)
    team = ThreadGroup(np.arange(64), {}, members=members)
    members[0].owned = {("ring", 1, FULL)}
    with pytest.raises(SimulationError, match="tile: stage 1 is read by a group that has not acquired it full"):
        rings.require_owned(site, operand, {}, team, WHERE)
    members[1].owned = {("ring", 3, FULL)}
    rings.require_owned(site, operand, {}, team, WHERE)


# ---------------------------------------------------------------------------------------------- the end of the kernel


def test_remains_at_the_end():
    """No phase is half over, and each load was waited for."""
    (rings,) = rings_of()
    rings.require_complete()
    rings.mbarriers["ring", EMPTY, 1].arrive()
    with pytest.raises(
        SimulationError, match="ring: the empty mbarrier of stage 1 ends with an incomplete phase: 1 of 2 arrivals and 0 bytes missing"
    ):
        rings.require_complete()
    rings.mbarriers["ring", EMPTY, 1].arrive()
    rings.require_complete()
    rings.mbarriers["ring", FULL, 0].bytes = -16
    with pytest.raises(
        SimulationError, match="the full mbarrier of stage 0 ends with an incomplete phase: 1 of 1 arrivals and -16 bytes missing"
    ):
        rings.require_complete()
    rings.mbarriers["ring", FULL, 0].bytes = 0
    rings.start_load(Load("ring", 4, 64, lambda: None))
    with pytest.raises(SimulationError, match="ring: no group waits for fill 4"):
        rings.require_complete()
    rings.awaited.add(("ring", 4))
    rings.require_complete()


def test_fills_owned_at_the_end():
    """Empty ones may be owned; of full ones the first is reported."""
    group = warp()
    group.owned = {("ring", 4, EMPTY), ("order", 2, EMPTY)}
    require_released(group, {"ring", "order"})
    group.owned |= {("ring", 5, FULL), ("ring", 3, FULL), ("stage", 0, FULL)}
    with pytest.raises(SimulationError, match="ring: a group exits without releasing fill 3"):
        require_released(group, {"ring", "stage"})
    with pytest.raises(SimulationError, match="stage: a group exits without releasing fill 0"):
        require_released(group, {"stage"})
    require_released(group, {"order"})


@pytest.mark.parametrize(
    "steps, right",
    [("", True), ("issue", False), ("issue commit", False), ("issue commit commit", False), ("commit", True), ("commit issue", False)],
)
def test_stores_pending_at_the_end(steps, right):
    group = warp()
    pending = group.in_flight[TMA_STORES]
    for step in steps.split():
        pending.issued.append("store") if step == "issue" else pending.commit()
    group.in_flight[CP_ASYNC_GROUPS].issued.append("copy")
    if right:
        require_stored(group)
    else:
        with pytest.raises(SimulationError, match="a TMA store may read shared memory after the block exits"):
            require_stored(group)


DESCRIBED = [
    ({}, FULL, 3, [], "fill 3 of ring to be full (tile; 0 phases complete, 1 of 1 arrivals and 0 bytes missing): the producer has not arrived"),
    ({}, FULL, 3, [(FULL, 3, 2)], "fill 3 of ring to be full (tile; 0 phases complete, 1 of 1 arrivals and 0 bytes missing): the producer has arrived"),
    ({}, FULL, 3, [(FULL, 1, 2)], "fill 3 of ring to be full (tile; 0 phases complete, 1 of 1 arrivals and 0 bytes missing): the producer has not arrived"),
    ({}, EMPTY, 1, [], "fill 1 of ring to be empty (tile; 0 phases complete, 2 of 2 arrivals and 0 bytes missing): it is the first fill of its stage"),
    ({}, EMPTY, 2, [], "fill 2 of ring to be empty (tile; 0 phases complete, 2 of 2 arrivals and 0 bytes missing): fill 0 has not been released by warps 0, 1"),
    ({}, EMPTY, 3, [(EMPTY, 1, 1)], "fill 3 of ring to be empty (tile; 0 phases complete, 2 of 2 arrivals and 0 bytes missing): fill 1 has not been released by warp 0"),
    ({}, EMPTY, 2, [(EMPTY, 0, 1), (EMPTY, 0, 0)], "fill 2 of ring to be empty (tile; 0 phases complete, 2 of 2 arrivals and 0 bytes missing): fill 0 has been released by warps 0, 1"),
    ({}, EMPTY, 2, [(EMPTY, 0, 1), (EMPTY, 0, 0), (EMPTY, 0, 1)], "fill 2 of ring to be empty (tile; 0 phases complete, 2 of 2 arrivals and 0 bytes missing): fill 0 has been released by warps 0, 1, by some of them more than once"),
    ({"consumers": 3}, EMPTY, 2, [(EMPTY, 0, 1), (EMPTY, 0, 0)], "fill 2 of ring to be empty (tile; 0 phases complete, 3 of 3 arrivals and 0 bytes missing): fill 0 has been released by warps 0, 1, and the ring counts 3 consumers"),
    ({"buffers": ("tile", "other")}, EMPTY, 0, [], "fill 0 of ring to be empty (tile, other; 0 phases complete, 2 of 2 arrivals and 0 bytes missing): it is the first fill of its stage"),
    ({"buffers": (), "tiles": True}, EMPTY, 0, [], "fill 0 of ring to be empty (tile indices; 0 phases complete, 2 of 2 arrivals and 0 bytes missing): it is the first fill of its stage"),
    ({"buffers": ()}, EMPTY, 0, [], "fill 0 of ring to be empty (0 phases complete, 2 of 2 arrivals and 0 bytes missing): it is the first fill of its stage"),
    ({"buffers": (), "each": 32}, EMPTY, 2, [], "fill 2 of ring to be empty (0 phases complete, 2 of 2 arrivals and 0 bytes missing): fill 0 has not been released"),
    ({"buffers": (), "each": 32}, EMPTY, 2, [(EMPTY, 0, 1)], "fill 2 of ring to be empty (0 phases complete, 2 of 2 arrivals and 0 bytes missing): fill 0 has been released by warp 1"),
]  # fmt: skip


@pytest.mark.parametrize("fields, side, fill, done, text", DESCRIBED)
def test_the_description_of_a_wait(fields, side, fill, done, text):
    (rings,) = rings_of(attrs.evolve(RING, **fields))
    for where, number, warp_number in done:
        rings.released.setdefault(("ring", where, number), []).append((0, warp_number))
    assert rings.described(acquire(side, fill), {}) == text


def test_the_description_of_a_wait_in_a_cluster():
    """The message names the warps that have released it, by block."""
    rings_by_rank = rings_of(attrs.evolve(RING, consumers=4), blocks=2)
    assert (
        rings_by_rank[1].described(acquire(EMPTY, 2), {}).endswith("fill 0 has been released by no warp, and the ring counts 4 consumers")
    )
    rings_by_rank[1].released["ring", EMPTY, 0] = [(1, 1), (0, 0), (1, 0)]
    expected = "fill 0 has been released by warp 0 of block 0 of the cluster and warps 0, 1 of block 1 of the cluster, and the ring counts 4 consumers"
    assert rings_by_rank[1].described(acquire(EMPTY, 2), {}).endswith(expected)
