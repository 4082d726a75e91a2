"""Where two accesses meet, by hand: which threads do, at which grains, and what is shown of them."""

import itertools
import random

import pytest
from touching import BLOCK_BARRIER, T, buffer, i, kernel, loop, reads, writes

from fireiron import *
from fireiron.check import AccessTrace
from fireiron.check.blocks import local_coordinates
from fireiron.check.races.conflicts import Conflicts
from fireiron.check.races.footprints import Footprints
from fireiron.check.races.loops import Loops
from fireiron.check.races.traces import AccessEvent, Tracer
from fireiron.values.expr import equal, less

pytestmark = pytest.mark.sampled(1)

EVERY = range(4)


def touches(*body, **options):
    """The touches of the first warp's trace, and their meetings."""
    access_trace = AccessTrace(kernel(*body, **options))
    places = Footprints(access_trace, local_coordinates(access_trace))
    found = Tracer(access_trace, places, Loops(access_trace, places, access_trace.uses)).traces({})
    for space in places.spaces.values():
        space.number_grains()
    return [one for one in found[0] if isinstance(one, AccessEvent)], Conflicts(places)


@pytest.mark.parametrize(
    ("place", "other", "same"),
    [
        (T, T, {0, 1, 2, 3}),
        (T, T // 2 * 2, set()),
        (T, T + 1, set()),
        (T, T + 32, {0, 1, 2, 3}),
        (T, 127 - T, {0, 1, 2, 3}),
        (T, T + less(T, 33) * (1 - T % 2 * 2) * less(T, 32), {1, 2, 3}),
        (T, T // 32 * 32 + 31 - T % 32, set()),
        (T, T // 64 * 64 + less(T, 64) * (63 - T % 64) + less(63, T) * (T % 64), {0, 1, 2, 3}),
    ],
    ids=str,
)
def test_the_same_thread_of_a_warp(place, other, same):
    """Of each grain that both touch; what another warp touches does not matter."""
    (one, two), conflicts = touches(writes(place), reads(other))
    assert {warp for warp in EVERY if conflicts.same_thread(one, two, warp)} == same
    assert {warp for warp in EVERY if conflicts.same_thread(two, one, warp)} == same, "the other way round"
    assert {warp for warp in EVERY if conflicts.same_thread(one, two, warp)} == same, "asked again"


def test_the_same_thread_of_moved_accesses():
    """Stages are one pattern: what holds depends on how far they are apart."""
    import attrs

    several = attrs.evolve(buffer("s", 32), tensor=attrs.evolve(buffer("s", 32).tensor, copies=8))
    found, conflicts = touches(loop(4, writes(T % 32 + T // 32 * 32, copy=i), BLOCK_BARRIER), buffers=(several,))
    assert len(found) == 4
    assert all(conflicts.same_thread(found[0], found[0], warp) for warp in EVERY)
    for one, other in itertools.combinations(found, 2):
        assert all(conflicts.same_thread(one, other, warp) for warp in EVERY), "other warps touch there, if any"
    shorter = attrs.evolve(buffer("s", 1), tensor=attrs.evolve(buffer("s", 1).tensor, copies=200))
    found, conflicts = touches(loop(3, writes(T, copy=i), BLOCK_BARRIER), buffers=(shorter,))
    assert (
        conflicts.same_thread(found[0], found[0], 1)
        and not conflicts.same_thread(found[0], found[1], 1)
        and not conflicts.same_thread(found[2], found[0], 1)
    )


def test_threads_that_act_together_are_not_the_same():
    (one, two), conflicts = touches(writes(T // 32 * 32, width=32, level=Warp), reads(T))
    assert not any(conflicts.same_thread(one, two, warp) for warp in EVERY)
    (one, two), conflicts = touches(writes(T, spread=True), reads(T))
    assert not any(conflicts.same_thread(one, two, warp) for warp in EVERY)


def test_two_units_in_one_execution():
    """Of one access, or of two; a grain and the rows of both."""
    (one,), conflicts = touches(writes(T // 2))
    key, row, other = conflicts.distinct_threads(one.footprint, one.footprint)
    assert key == row // 2 == other // 2 and row != other
    (one,), conflicts = touches(writes(T))
    assert conflicts.distinct_threads(one.footprint, one.footprint) is None
    (one, two), conflicts = touches(writes(T), reads(T + 127))
    key, row, other = conflicts.distinct_threads(one.footprint, two.footprint)
    assert (key, row, other) == (127, 127, 0)
    key, row, other = conflicts.distinct_threads(two.footprint, one.footprint)
    assert (key, row, other) == (127, 0, 127)
    (one, two), conflicts = touches(writes(T), reads(T))
    assert conflicts.distinct_threads(one.footprint, two.footprint) is None, "each its own"
    (one, two), conflicts = touches(writes(T), reads(T + 128))
    assert conflicts.distinct_threads(one.footprint, two.footprint) is None, "nowhere"
    (one, two), conflicts = touches(writes(T), reads(T + less(99, T) * 5))
    key, row, other = conflicts.distinct_threads(one.footprint, two.footprint)
    assert row == key and other + 5 == key


def points(one, two, conflicts, warps, alike=False):
    return [
        (tuple((point.thread, point.element[0], point.address) for point in pair)) for pair in conflicts.witnesses(one, two, warps, alike)
    ]


def test_witnesses_are_threads_that_meet():
    (one, two), conflicts = touches(writes(T), reads(127 - T))
    for first, second in itertools.product(EVERY, repeat=2):
        found = points(one, two, conflicts, (first, second))
        assert bool(found) == (first == 3 - second)
        for (thread, element, address), (other, place, there) in found:
            assert thread // 32 == first and other // 32 == second and thread == element == address == place == there == 127 - other
    assert len(points(one, two, conflicts, (0, 3))) == 8, "some of them"
    (one, two), conflicts = touches(writes(T), reads(T))
    assert points(one, two, conflicts, (1, 1)) == []
    alike = points(one, two, conflicts, (1, 1), True)
    assert len(alike) == 8 and all(mine == theirs for mine, theirs in alike) and alike[0][0][0] == 32 and alike[-1][0][0] == 63
    (one, two), conflicts = touches(writes(T, active=equal(T, 5)), reads(5, active=equal(T, 9)))
    assert points(one, two, conflicts, (0, 0)) == [((5, 5, 5), (9, 5, 5))]


def test_witnesses_of_threads_that_act_together():
    """Both sides may be the whole warp: then its first and its last."""
    of_warp = T // 32 * 32
    (one, two), conflicts = touches(writes(of_warp, width=32, level=Warp), reads(of_warp, width=32, level=Warp))
    for mine, theirs in points(one, two, conflicts, (1, 1)):
        assert {mine[0], theirs[0]} == {32, 63}
    (one, two), conflicts = touches(writes(of_warp, width=32, level=Warp), reads(T))
    found = points(one, two, conflicts, (1, 1))
    assert found and all(mine[0] != theirs[0] and theirs[0] == theirs[1] == mine[1] for mine, theirs in found)


def test_a_point_names_its_place():
    """The loops that are taken as a whole, and those in order; the element, and the address in the buffer."""
    (one, two, *_), conflicts = touches(loop(3, writes(T + i * 128)), reads(127 - T + 256), buffers=(buffer("s", 4096, offset=512),))
    ((mine, theirs), *_) = conflicts.witnesses(one, two, (0, 3), False)
    assert (
        mine.loops == {"i": 2}
        and mine.element == theirs.element == (256 + mine.thread,)
        and mine.address == 256 + mine.thread
        and theirs.loops == {}
    )
    (one, two), conflicts = touches(writes(T * 2, width=2, name="g"), reads(127 - T, name="g"), buffers=(buffer("g", 4096, memory=GL),))
    ((mine, theirs), *_) = conflicts.witnesses(one, two, (0, 3), False)
    assert mine.address is None and theirs.address is None and mine.element[0] == theirs.element[0]
    (one,), conflicts = touches(writes(T))
    point = conflicts.at_row(one, 40, 40)
    assert (point.thread, point.unit, point.element, point.address) == (40, 40, (40,), 40)
    assert conflicts.at_row(one, 40, 40, thread=7).thread == 7
    assert conflicts.point(one, 40, 40).thread == 40 and conflicts.point(one, 40, 40).element == (40,)
    (one,), conflicts = touches(writes(T // 32 * 32, width=32, level=Warp))
    point = conflicts.point(one, 17, 69)
    assert (point.thread, point.unit, point.element) == (69, 2, (68,))


@pytest.mark.parametrize("chunk", range(3))
def test_drawn_pairs_meet_where_their_threads_do(chunk):
    for seed in range(chunk * 25, chunk * 25 + 25):
        chance = random.Random(f"meetings {seed}")
        choices = (T, 127 - T, T // 2 * 2, T + 31, T // 32 * 32 + (T + 1) % 32, T % 64, T // 4 * 4)
        place, other = chance.choice(choices), chance.choice(choices)
        limit = less(T, chance.choice((10, 50, 128)))
        (one, two), conflicts = touches(writes(place, active=limit), reads(other, width=chance.choice((1, 2))))
        width = len(two.use.access.elements())
        mine = {thread: place.evaluate({"thread": thread}) for thread in range(128) if limit.evaluate({"thread": thread})}
        theirs = {thread: range(start := other.evaluate({"thread": thread}), start + width) for thread in range(128)}
        met = [(one_, two_) for one_, at in mine.items() for two_, there in theirs.items() if at in there]
        for first, second in itertools.product(EVERY, repeat=2):
            here = {(a, b) for a, b in met if a // 32 == first and b // 32 == second}
            found = list(conflicts.witnesses(one, two, (first, second), False))
            assert bool(found) == any(a != b for a, b in here), (seed, first, second)
            assert {(pair[0].thread, pair[1].thread) for pair in found} <= {(a, b) for a, b in here if a != b}
        for warp in EVERY:
            alone = not any(a != b for a, b in met if a // 32 == b // 32 == warp)
            assert conflicts.same_thread(one, two, warp) == alone, (seed, warp)
