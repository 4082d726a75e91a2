"""The watch over memory, by hand: what engines read, what they cannot see yet, and what its messages name (`fireiron.sim.watch`)."""

import random
import types

import attrs
import numpy as np
import pytest
from engines import copied, numbered, stored, streamed

from fireiron import *
from fireiron import ir
from fireiron.errors import SimulationError
from fireiron.sim.places import Group
from fireiron.sim.shadow import Clock
from fireiron.sim.watch import Watch, _Repeated

GIVEN = numbered((64, 64))
RIGHT = ir.TensorMap("dst_map", "dst", (1, 0), (64, 64), 128)
FILL, FENCE, BARRIER, STORE, COMMIT, WAIT = range(6)


def rewritten(*order):
    """The store by an engine, its statements in another order, or others in their place, each at a line of its own."""
    kernel = stored(RIGHT)
    body = [_at(one, f"line {number}") for number, one in enumerate(kernel.body)]
    return attrs.evolve(kernel, body=tuple(body[one] if isinstance(one, int) else one for one in order))


def _at(statement, line):
    if isinstance(statement, ir.For):
        return attrs.evolve(statement, body=tuple(_at(one, line) for one in statement.body))
    return attrs.evolve(statement, origin=line) if isinstance(statement, ir.Exec) else statement


def fails(kernel, message):
    for order in (None, 0):
        with pytest.raises(SimulationError, match=message):
            copied(kernel, GIVEN, None if order is None else random.Random(order))


def test_it_is_right():
    for order in (None, random.Random(0)):
        np.testing.assert_array_equal(copied(rewritten(FILL, FENCE, BARRIER, STORE, COMMIT, WAIT), GIVEN, order), GIVEN)
    twice = rewritten(FILL, FENCE, BARRIER, STORE, COMMIT, WAIT, BARRIER, FILL, FENCE, BARRIER, STORE, COMMIT, WAIT)
    np.testing.assert_array_equal(copied(twice, GIVEN), GIVEN)


HIDDEN = r"tile is read through the asynchronous proxy, and what was written to it is not there yet: (?s:.*) at line 0,(?s:.*)at +line 3"


@pytest.mark.parametrize("order", [(FILL, BARRIER, STORE), (FILL, BARRIER, FENCE, STORE), (FENCE, FILL, BARRIER, STORE)], ids=str)
def test_a_fence_of_the_proxy_between_the_write_and_the_barrier(order):
    fails(rewritten(*order, COMMIT, WAIT), HIDDEN)


def test_a_barrier_between_the_write_and_the_engine():
    fails(rewritten(FILL, FENCE, STORE, COMMIT, WAIT), r"race on tile.*no barrier orders them(?s:.*)at +line 3|" + HIDDEN)


READ = r"tile is written while a product that reads it is under way: TMA_STORE .* at line 3,(?s:.*)at +line 0"


@pytest.mark.parametrize(
    "order",
    [(STORE, COMMIT, BARRIER, FILL), (STORE, COMMIT, ir.Wait(1, completion=ir.Completion.BULK), BARRIER, FILL), (STORE, FILL)],
    ids=str,
)
def test_what_is_being_read_is_not_written(order):
    fails(rewritten(FILL, FENCE, BARRIER, *order, WAIT), READ)


def test_who_waits_orders_readers_with_those_behind_a_barrier():
    """The engine read for those who issued the store: others may write behind a barrier with them."""
    fails(
        rewritten(FILL, FENCE, BARRIER, STORE, COMMIT, WAIT, FILL, FENCE, BARRIER, STORE, COMMIT, WAIT),
        r"race on tile.*reads it \(TMA_STORE .* at line 3, .*writes it \(.* at line 0",
    )


def test_a_store_that_nobody_waits_for():
    """In step as well as by warps; one that is in no group, too."""
    for order in ((STORE, COMMIT), (STORE,), (STORE, WAIT), (STORE, COMMIT, ir.Wait(1, completion=ir.Completion.BULK))):
        fails(rewritten(FILL, FENCE, BARRIER, *order), "a store by TMA reads shared memory beyond the end of the kernel")


def test_what_was_never_written():
    kernel = rewritten(STORE, COMMIT, WAIT)
    with pytest.raises(SimulationError, match=r"tile .*is read before anything was written to it: thread 0 of block 0(?s:.*)at +line 3"):
        copied(kernel, GIVEN)


# ---------------------------------------------------------------------------------------------- parts of it


def test_touches_that_repeat_settle_at_the_third():
    """The first meets what came before, the second what the first left; a place that moves begins anew, for the others too."""
    run = _Repeated("site", clock := Clock(), "group")
    a, b, place, other, moved = object(), object(), object(), object(), object()
    assert [run.settled(a, place) for _ in range(4)] == [False, False, True, True]
    assert [run.settled(b, other) for _ in range(2)] == [False, False]
    assert not run.settled(a, place) and not run.settled(b, other)
    assert run.settled(a, place) or run.settled(a, place)
    assert not run.settled(a, moved)
    assert not run.settled(b, other), "all must be where they were, twice"
    assert run.goes_on("site", clock, "group")
    assert (
        not run.goes_on("other", clock, "group") and not run.goes_on("site", Clock(), "group") and not run.goes_on("site", clock, "other")
    )


@pytest.mark.parametrize(
    "spread, ends", [(1, [(0, 0), (5, 5), (33, 33), (95, 95)]), (32, [(0, 31), (0, 31), (32, 63), (64, 95)]), (128, [(0, 95)] * 4)]
)
def test_who_may_have_touched_what_is_spread(spread, ends):
    """Units of threads, of which the last one may not be whole."""
    watch = types.SimpleNamespace(plan=types.SimpleNamespace(kernel=types.SimpleNamespace(threads=96)))
    low, high = Watch._actors(watch, types.SimpleNamespace(spread=spread), Group(np.array([0, 5, 33, 95]), {}))
    assert [*zip(low.tolist(), high.tolist(), strict=True)] == ends


def test_a_ring_that_others_read_is_no_race():
    for warps in (1, 2):
        given = numbered((5 * 8, 64))
        np.testing.assert_array_equal(copied(streamed(5, 2, warps), given), given)
