"""Conflicts of two accesses in hand-made kernels: their threads, grains and witnesses."""

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

WARPS = range(4)


def accesses_of(*body, **options):
    """The access events of the first warp's trace, and the conflict analysis."""
    access_trace = AccessTrace(kernel(*body, **options))
    footprints = Footprints(access_trace, local_coordinates(access_trace))
    all_traces = Tracer(access_trace, footprints, Loops(access_trace, footprints, access_trace.uses)).traces({})
    for space in footprints.spaces.values():
        space.number_grains()
    return [event for event in all_traces[0] if isinstance(event, AccessEvent)], Conflicts(footprints)


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
def test_same_thread_at_each_grain_of_a_warp(place, other, same):
    """At each grain that both access; accesses of other warps do not matter."""
    (first, second), conflicts = accesses_of(writes(place), reads(other))
    assert {warp for warp in WARPS if conflicts.same_thread(first, second, warp)} == same
    assert {warp for warp in WARPS if conflicts.same_thread(second, first, warp)} == same, "in the other order"
    assert {warp for warp in WARPS if conflicts.same_thread(first, second, warp)} == same, "cached"


def test_same_thread_of_shifted_accesses():
    """Stages share one pattern: the result depends on the distance between them."""
    import attrs

    staged_buffer = attrs.evolve(buffer("s", 32), tensor=attrs.evolve(buffer("s", 32).tensor, copies=8))
    events, conflicts = accesses_of(loop(4, writes(T % 32 + T // 32 * 32, copy=i), BLOCK_BARRIER), buffers=(staged_buffer,))
    assert len(events) == 4
    assert all(conflicts.same_thread(events[0], events[0], warp) for warp in WARPS)
    for first, other in itertools.combinations(events, 2):
        assert all(conflicts.same_thread(first, other, warp) for warp in WARPS), "only other warps access the same grains, if any"
    shorter = attrs.evolve(buffer("s", 1), tensor=attrs.evolve(buffer("s", 1).tensor, copies=200))
    events, conflicts = accesses_of(loop(3, writes(T, copy=i), BLOCK_BARRIER), buffers=(shorter,))
    assert (
        conflicts.same_thread(events[0], events[0], 1)
        and not conflicts.same_thread(events[0], events[1], 1)
        and not conflicts.same_thread(events[2], events[0], 1)
    )


def test_collective_accesses_are_not_by_the_same_thread():
    (first, second), conflicts = accesses_of(writes(T // 32 * 32, width=32, level=Warp), reads(T))
    assert not any(conflicts.same_thread(first, second, warp) for warp in WARPS)
    (first, second), conflicts = accesses_of(writes(T, spread=True), reads(T))
    assert not any(conflicts.same_thread(first, second, warp) for warp in WARPS)


def test_distinct_threads_of_accesses():
    """For one access or two: a grain and the rows of both."""
    (first,), conflicts = accesses_of(writes(T // 2))
    key, row, other_row = conflicts.distinct_threads(first.footprint, first.footprint)
    assert key == row // 2 == other_row // 2 and row != other_row
    (first,), conflicts = accesses_of(writes(T))
    assert conflicts.distinct_threads(first.footprint, first.footprint) is None
    (first, second), conflicts = accesses_of(writes(T), reads(T + 127))
    key, row, other_row = conflicts.distinct_threads(first.footprint, second.footprint)
    assert (key, row, other_row) == (127, 127, 0)
    key, row, other_row = conflicts.distinct_threads(second.footprint, first.footprint)
    assert (key, row, other_row) == (127, 0, 127)
    (first, second), conflicts = accesses_of(writes(T), reads(T))
    assert conflicts.distinct_threads(first.footprint, second.footprint) is None, "each thread accesses its element"
    (first, second), conflicts = accesses_of(writes(T), reads(T + 128))
    assert conflicts.distinct_threads(first.footprint, second.footprint) is None, "no common element"
    (first, second), conflicts = accesses_of(writes(T), reads(T + less(99, T) * 5))
    key, row, other_row = conflicts.distinct_threads(first.footprint, second.footprint)
    assert row == key and other_row + 5 == key


def points(first, second, conflicts, warps, same_thread=False):
    return [
        (tuple((point.thread, point.element[0], point.address) for point in pair))
        for pair in conflicts.witnesses(first, second, warps, same_thread)
    ]


def test_witnesses_are_conflicting_threads():
    (first, second), conflicts = accesses_of(writes(T), reads(127 - T))
    for first_warp, second_warp in itertools.product(WARPS, repeat=2):
        pairs = points(first, second, conflicts, (first_warp, second_warp))
        assert bool(pairs) == (first_warp == 3 - second_warp)
        for (thread, element, address), (other, place, other_address) in pairs:
            assert (
                thread // 32 == first_warp
                and other // 32 == second_warp
                and thread == element == address == place == other_address == 127 - other
            )
    assert len(points(first, second, conflicts, (0, 3))) == 8, "at most 8"
    (first, second), conflicts = accesses_of(writes(T), reads(T))
    assert points(first, second, conflicts, (1, 1)) == []
    same = points(first, second, conflicts, (1, 1), True)
    assert (
        len(same) == 8
        and all(first_point == second_point for first_point, second_point in same)
        and same[0][0][0] == 32
        and same[-1][0][0] == 63
    )
    (first, second), conflicts = accesses_of(writes(T, active=equal(T, 5)), reads(5, active=equal(T, 9)))
    assert points(first, second, conflicts, (0, 0)) == [((5, 5, 5), (9, 5, 5))]


def test_witnesses_of_collective_accesses():
    """If both sides are the whole warp, the witnesses are its first and last threads."""
    of_warp = T // 32 * 32
    (first, second), conflicts = accesses_of(writes(of_warp, width=32, level=Warp), reads(of_warp, width=32, level=Warp))
    for first_point, second_point in points(first, second, conflicts, (1, 1)):
        assert {first_point[0], second_point[0]} == {32, 63}
    (first, second), conflicts = accesses_of(writes(of_warp, width=32, level=Warp), reads(T))
    pairs = points(first, second, conflicts, (1, 1))
    assert pairs and all(
        first_point[0] != second_point[0] and second_point[0] == second_point[1] == first_point[1] for first_point, second_point in pairs
    )


def test_a_point_names_its_element_and_address():
    """A point has the values of vectorized and ordered loops, the element, and the address in the buffer."""
    (first, second, *_), conflicts = accesses_of(
        loop(3, writes(T + i * 128)), reads(127 - T + 256), buffers=(buffer("s", 4096, offset=512),)
    )
    ((first_point, second_point), *_) = conflicts.witnesses(first, second, (0, 3), False)
    assert (
        first_point.loops == {"i": 2}
        and first_point.element == second_point.element == (256 + first_point.thread,)
        and first_point.address == 256 + first_point.thread
        and second_point.loops == {}
    )
    (first, second), conflicts = accesses_of(
        writes(T * 2, width=2, name="g"), reads(127 - T, name="g"), buffers=(buffer("g", 4096, memory=GL),)
    )
    ((first_point, second_point), *_) = conflicts.witnesses(first, second, (0, 3), False)
    assert first_point.address is None and second_point.address is None and first_point.element[0] == second_point.element[0]
    (first,), conflicts = accesses_of(writes(T))
    point = conflicts.at_row(first, 40, 40)
    assert (point.thread, point.unit, point.element, point.address) == (40, 40, (40,), 40)
    assert conflicts.at_row(first, 40, 40, thread=7).thread == 7
    assert conflicts.point(first, 40, 40).thread == 40 and conflicts.point(first, 40, 40).element == (40,)
    (first,), conflicts = accesses_of(writes(T // 32 * 32, width=32, level=Warp))
    point = conflicts.point(first, 17, 69)
    assert (point.thread, point.unit, point.element) == (69, 2, (68,))


@pytest.mark.parametrize("chunk", range(3))
def test_random_pairs_compared_with_enumeration(chunk):
    for seed in range(chunk * 25, chunk * 25 + 25):
        chance = random.Random(f"meetings {seed}")
        choices = (T, 127 - T, T // 2 * 2, T + 31, T // 32 * 32 + (T + 1) % 32, T % 64, T // 4 * 4)
        place, other = chance.choice(choices), chance.choice(choices)
        limit = less(T, chance.choice((10, 50, 128)))
        (first, second), conflicts = accesses_of(writes(place, active=limit), reads(other, width=chance.choice((1, 2))))
        width = len(second.use.access.elements())
        first_elements = {thread: place.evaluate({"thread": thread}) for thread in range(128) if limit.evaluate({"thread": thread})}
        second_elements = {thread: range(start := other.evaluate({"thread": thread}), start + width) for thread in range(128)}
        pairs = [
            (first_thread, second_thread)
            for first_thread, at in first_elements.items()
            for second_thread, elements in second_elements.items()
            if at in elements
        ]
        for first_warp, second_warp in itertools.product(WARPS, repeat=2):
            pairs_of_warps = {(a, b) for a, b in pairs if a // 32 == first_warp and b // 32 == second_warp}
            witnesses = list(conflicts.witnesses(first, second, (first_warp, second_warp), False))
            assert bool(witnesses) == any(a != b for a, b in pairs_of_warps), (seed, first_warp, second_warp)
            assert {(pair[0].thread, pair[1].thread) for pair in witnesses} <= {(a, b) for a, b in pairs_of_warps if a != b}
        for warp in WARPS:
            alone = not any(a != b for a, b in pairs if a // 32 == b // 32 == warp)
            assert conflicts.same_thread(first, second, warp) == alone, (seed, warp)
