"""Rings in the simulator, by hand: barriers and their phases, who holds which turn, and what it says of each fault (`fireiron.sim.rings`)."""

import functools
import random
import re

import attrs
import numpy as np
import pytest
from campaign.faults.kernels import case
from engines import ROWS, copied, numbered, streamed
from ringed import TARGET, cluster_faults, halves, inputs_of, outcome, product

from fireiron import *
from fireiron import ir
from fireiron.errors import SimulationError
from fireiron.sim import simulate
from fireiron.sim.places import Flight
from fireiron.sim.rings import Phases, warps
from fireiron.values.expr import TRUE, as_expr

FULL, EMPTY = ir.Side.FULL, ir.Side.EMPTY
TURNS = 5
GIVEN = numbered((TURNS * ROWS, 64))


def right(kernel, given=GIVEN):
    """The copy is one, in step and with warps and loads in random orders."""
    for order in (None, *map(random.Random, range(3))):
        np.testing.assert_array_equal(copied(kernel, given, order), given)


def fails(kernel, message, given=GIVEN, orders=(None, 0, 1)):
    """The simulator says this, in step and in random orders."""
    for order in orders:
        with pytest.raises(SimulationError, match=message):
            copied(kernel, given, None if order is None else random.Random(order))


# ---------------------------------------------------------------------------------------------- right kernels


@pytest.mark.parametrize("stages", [1, 2, 3, 8])
@pytest.mark.parametrize("warps", [1, 2, 4])
def test_rings_that_are_right(stages, warps):
    right(streamed(TURNS, stages, warps))


def without(*dropped):
    """A turn without the statements at these places."""
    return lambda body: tuple(one for number, one in enumerate(body) if number not in {place % len(body) for place in dropped})


def at_turn(place, more):
    """The statement at a place, for a turn so many further on."""
    return lambda body: (*body[:place], attrs.evolve(body[place], number=body[place].number + more), *body[place + 1 :])


# ---------------------------------------------------------------------------------------------- faults of consumers


def test_a_stage_is_read_without_its_wait():
    fails(streamed(consumer=without(0)), r"tile: stage 0 is read by a group that does not hold it, full")


def test_a_stage_is_released_twice():
    fails(streamed(consumer=lambda body: (*body, body[-1])), "ring: turn 0 is released by a group that does not hold it")


NOT_ANNOUNCED = "warp 0 waits for turn 2 of ring to be full (tile; 1 phases over, 1 of 1 arrivals and 0 bytes missing): the producer has not announced it"
NOT_RELEASED = "the producer waits for turn 2 of ring to be empty (tile; 0 phases over, 1 of 1 arrivals and 0 bytes missing): turn 0 has not been released by warp 0"


def stuck(kernel, *waits):
    """Nobody goes on, and each of these is said."""
    for order in (None, 0, 1):
        with pytest.raises(SimulationError, match="^deadlock: ") as caught:
            copied(kernel, GIVEN, None if order is None else random.Random(order))
        said = str(caught.value).partition("\n")[0].removeprefix("deadlock: ")
        assert sorted(said.split("; ")) == sorted("; ".join(waits).split("; "))


def test_a_stage_is_never_released():
    stuck(streamed(consumer=without(3)), NOT_RELEASED, NOT_ANNOUNCED)


def test_a_stage_is_released_while_lanes_read():
    fails(streamed(consumer=without(2)), "ring: turn 0 is released by one lane, and the others of its warp may still read it")


def test_all_lanes_release():
    """Each lane for itself: 32 arrivals are 32 phases of a barrier that counts one."""
    often = "the producer waits for turn 2 of ring to be empty (tile; 32 phases over, 1 of 1 arrivals and 0 bytes missing): "
    stuck(
        streamed(consumer=lambda body: (*body[:-1], attrs.evolve(body[-1], active=TRUE))),
        f"{often}turn 0 has been released by warp 0, by some of them more than once",
        NOT_ANNOUNCED,
    )


def test_the_barrier_of_the_warp_is_needed_for_one_lane_alone():
    """Whoever arrives with all of its lanes has read."""
    right(streamed(consumer=lambda body: (body[0], body[1], attrs.evolve(body[3], active=TRUE)), consumers=32))


@pytest.mark.parametrize(
    "more, message", [(1, "ring: turn 1 is released by a group that does not hold it"), (2, "ring: turn 2 is released")]
)
def test_another_turn_is_released(more, message):
    fails(streamed(consumer=at_turn(3, more)), message)


def test_the_wait_is_for_the_next_turn():
    fails(streamed(consumer=at_turn(0, 1)), "tile: stage 0 is read by a group that does not hold it, full")


def test_a_wait_a_round_further_on_passes_by_parity():
    """Two rounds further on the parity is the same: of the right phase nobody knows."""
    fails(streamed(consumer=at_turn(0, 4)), r"the wait for turn 4 to be full passes by parity alone: 1 phases are over, not 3")


# ---------------------------------------------------------------------------------------------- faults of the producer


def test_a_stage_is_filled_without_its_wait():
    fails(streamed(producer=without(0)), "ring: turn 0 is released by a group that does not hold it")


@pytest.mark.parametrize("place, turn", [(0, 0), (1, 1)])
def test_the_producer_means_the_next_turn(place, turn):
    fails(streamed(producer=at_turn(place, 1)), f"ring: turn {turn} is released by a group that does not hold it")


def test_a_load_that_nobody_announces():
    first = "warp 0 waits for turn 0 of ring to be full (tile; 0 phases over, 1 of 1 arrivals and -1024 bytes missing): "
    stuck(streamed(producer=without(1)), f"{first}the producer has not announced it", NOT_RELEASED)


@pytest.mark.parametrize(
    "missing, kernel", [(1024, streamed(producer=without(2))), (16, streamed(bytes=1040)), (-16, streamed(bytes=1008))]
)
def test_other_bytes_than_are_announced(missing, kernel):
    first = f"warp 0 waits for turn 0 of ring to be full (tile; 0 phases over, 0 of 1 arrivals and {missing} bytes missing): "
    stuck(kernel, f"{first}the producer has announced it", NOT_RELEASED)


def test_the_load_comes_before_the_announcement():
    """Bytes may arrive before they are announced: a phase is over when both are there."""
    right(streamed(producer=lambda body: (body[0], body[2], body[1])))


def test_two_loads_to_a_stage():
    """The first one's bytes are all that the stage has, and the second one is to it as well."""
    fails(
        streamed(producer=lambda body: (*body, body[-1])),
        r"ring: turn 0 counts as full while a load to it is under way(?s:.*)a stage has more than 1024 bytes",
    )


def test_two_loads_of_which_the_ring_counts_both():
    right(streamed(producer=lambda body: (*body, body[-1]), bytes=2048))


def test_more_arrivals_than_consumers():
    counted = "the producer waits for turn 2 of ring to be empty (tile; 0 phases over, 1 of 2 arrivals and 0 bytes missing): "
    stuck(streamed(consumers=2), f"{counted}turn 0 has been released by warp 0, and the ring counts 2 consumers", NOT_ANNOUNCED)


def test_fewer_arrivals_than_consumers():
    counted = "the producer waits for turn 2 of ring to be empty (tile; 2 phases over, 1 of 1 arrivals and 0 bytes missing): "
    waiting = NOT_ANNOUNCED.replace("warp 0 waits", "warps 0, 1 wait")
    often = "turn 0 has been released by warps 0, 1, by some of them more than once"
    stuck(streamed(warps=2, consumers=1), f"{counted}{often}", waiting)


def test_a_turn_that_nobody_waits_for():
    """A load beyond the last turn may arrive when the block is gone."""
    kernel = streamed(TURNS, 8)
    (roles,) = kernel.body
    consumers, producer = roles.roles
    (loop,) = consumers.body
    shorter = attrs.evolve(consumers, body=(attrs.evolve(loop, extent=as_expr(TURNS - 1)),))
    fails(attrs.evolve(kernel, body=(ir.Roles((shorter, producer)),)), f"ring: turn {TURNS - 1} is filled, and nobody waits for it")


def test_a_turn_that_is_held_at_the_end():
    kernel = streamed(TURNS, 8, consumer=without(3))
    fails(kernel, "ring: a group ends that holds turn 0 full")


# ---------------------------------------------------------------------------------------------- phases


def test_phases_of_a_barrier():
    barrier = Phases(2, 2)
    barrier.arrive()
    assert (barrier.left, barrier.over) == (1, 0)
    barrier.arrive()
    assert (barrier.left, barrier.over) == (2, 1), "the next phase lacks all arrivals again"
    barrier.bytes += 32
    barrier.arrive()
    barrier.bring(16)
    barrier.arrive()
    assert (barrier.left, barrier.bytes, barrier.over) == (0, 16, 1), "bytes are missing"
    barrier.bring(16)
    assert (barrier.left, barrier.bytes, barrier.over) == (2, 0, 2)


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


def test_groups_of_a_flight_arrive_in_order():
    flight = Flight()
    for copy in "abc":
        flight.issued.append(copy)
        flight.commit()
    assert flight.issued == []
    assert flight.arrived(5) == []
    assert flight.arrived(1) == ["a", "b"]
    assert flight.arrived(0) == ["c"]


# ---------------------------------------------------------------------------------------------- barriers in memory


def placed(offset, **fields):
    """The kernel with its barriers, four of 8 bytes, at a place; the tile is bytes 1024 to 3071."""
    kernel = streamed()
    return attrs.evolve(kernel, rings=(attrs.evolve(kernel.rings[0], offset=offset),), **fields)


@pytest.mark.parametrize("offset", [0, 8, 1024 - 32, 3072])
def test_barriers_lie_in_bytes_of_their_own(offset):
    right(placed(offset, shared_bytes=3072 + 32))


@pytest.mark.parametrize("offset", [4, 1, 1024 - 28])
def test_barriers_begin_at_multiples_of_8(offset):
    fails(placed(offset), f"the barriers of ring begin at byte {offset} of shared memory\n +legal +a multiple of 8")


@pytest.mark.parametrize("offset, first", [(1024 - 24, 1024), (1024, 1024), (2048, 2048), (3072 - 8, 3064)])
def test_barriers_in_the_bytes_of_a_buffer(offset, first):
    fails(placed(offset, shared_bytes=4096), f"the barriers of ring and tile lie in the same bytes of shared memory, from byte {first} on")


@pytest.mark.parametrize("offset, size", [(3072, 3072 + 24), (-8, 4096)])
def test_barriers_end_in_the_shared_memory_of_the_block(offset, size):
    message = rf"the barriers of ring are bytes {offset} ... {offset + 31} of shared memory\n +legal +0 ... {size - 1}"
    fails(placed(offset, shared_bytes=size), message)


@pytest.mark.parametrize("offset, right_there", [(0, False), (24, False), (32, True), (16, False)])
def test_barriers_of_two_rings(offset, right_there):
    kernel = streamed()
    both = attrs.evolve(kernel, rings=(*kernel.rings, ir.Ring("order", 2, (), 0, 1, offset=offset)))
    if right_there:
        right(both)
    else:
        fails(both, f"the barriers of ring and the barriers of order lie in the same bytes of shared memory, from byte {offset} on")


def test_a_buffer_that_nobody_touches_may_lie_there():
    kernel = placed(0)
    tile = kernel.buffer("tile")
    other = attrs.evolve(tile, tensor=attrs.evolve(tile.tensor, name="other"), offset=0)
    right(attrs.evolve(kernel, buffers=(*kernel.buffers, other)))


@pytest.mark.parametrize("form, seed", [("ring", 1), ("cluster", 0), ("turns", 0), ("dynamic", 1), ("attention", 1), ("hopper-tasks", 2)])
def test_barriers_moved_in_kernels(form, seed):
    """Upon each buffer and each other ring, and by four bytes."""
    drawn = case(form, seed)
    kernel = drawn.kernel
    for number, ring in enumerate(kernel.rings):
        others = {one.offset for one in kernel.buffers if one.memory.of_block} | {one.offset for one in kernel.rings if one is not ring}
        for offset in {*others, ring.offset + 4} - {ring.offset}:
            rings = (*kernel.rings[:number], attrs.evolve(ring, offset=offset), *kernel.rings[number + 1 :])
            with pytest.raises(SimulationError, match="the barriers of .* (begin at byte|in the same bytes|are bytes)"):
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
    program = product((64, 64, 64), (64, 64), 2, cluster=(2, 1), tma=False)(halves(128, 64, 320)).program(TARGET)
    return program.ir, *inputs_of(program.spec)


def outcomes(kernel):
    """What comes of it in step, and by warps."""
    return {outcome(kernel, *of_cluster()[1:], order) for order in (None, 0, 1)}


def test_a_cluster_that_is_right():
    assert outcomes(of_cluster()[0]) == {"right"}


SAID = {
    "dropped: the cluster's barrier at the start": "whose barriers may not be made yet",
    "dropped: the cluster's barrier at the end": "block . of the cluster ends, and others may still arrive at its barriers or send loads",
    "a block beyond": "in block 2 of a cluster of 2",
    "only its own block's consumers": "which has not emptied turn|passes by parity alone|deadlock|released",
}


def of_a_turn_that_is_the_last(name):
    """Behind the loop stands the arrival of its last turn, for which no load of another block waits."""
    return name.startswith("arrival 1: ") and name.endswith("left out")


@pytest.mark.parametrize(
    "name, faulty", [pytest.param(*one, id=one[0]) for one in cluster_faults(of_cluster()[0]) if not of_a_turn_that_is_the_last(one[0])]
)
def test_what_orders_the_blocks_of_a_cluster(name, faulty):
    found = outcomes(faulty)
    assert not found & {"right", "wrong"}, found
    for part, message in SAID.items():
        if part in name:
            assert all(re.search(message, one) for one in found), found


def test_a_load_comes_when_all_warps_have_emptied():
    """Whoever sends to another block waits for the warps of both."""
    kernel = of_cluster()[0]
    less = attrs.evolve(kernel, rings=tuple(attrs.evolve(one, consumers=one.consumers - 1) for one in kernel.rings))
    assert not outcomes(less) & {"right", "wrong"}
