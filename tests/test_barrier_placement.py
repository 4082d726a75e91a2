"""Minimum sets of positions that cover arcs, compared with all sets of positions."""

import itertools
import random

import pytest

from fireiron.lower.barrier_placement import fewest_of_scopes


def fewest(arcs, preferred):
    """The fewest positions that cover all arcs, of one scope."""
    return tuple(fewest_of_scopes([(arc, 0) for arc in arcs], preferred))


def by_hand(arcs, preferred):
    """The first of the smallest sets that cover all arcs, with sets and members in the order of `preferred`."""
    for size in range(len(preferred) + 1):
        for chosen in itertools.combinations(preferred, size):
            if all(any(position in arc for position in chosen) for arc in arcs):
                return chosen
    return None


def drawn(generator, positions, around):
    """Random arcs of adjacent positions, across the end if `around`."""
    arcs = []
    for _ in range(generator.randrange(8)):
        start, length = generator.randrange(len(positions)), generator.randint(1, len(positions))
        if around:
            arcs.append(frozenset(positions[(start + step) % len(positions)] for step in range(length)))
        else:
            arcs.append(frozenset(positions[start : start + length]))
    return arcs


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("gaps", [False, True])
def test_placement_compared_with_all_sets(around, gaps):
    sizes = set()
    for seed in range(400):
        generator = random.Random(seed)
        count = generator.randint(1, 9)
        positions = sorted(generator.sample(range(count), generator.randint(1, count))) if gaps else list(range(count))
        arcs = drawn(generator, positions, around)
        preferred = generator.sample(positions, len(positions))
        expected = by_hand(arcs, preferred)
        assert fewest(arcs, preferred) == expected, (seed, arcs, preferred)
        sizes.add(len(expected))
    assert sizes >= ({0, 1, 2, 3} if around else {0, 1, 2, 3, 4})


@pytest.mark.parametrize("count", [*range(1, 13), 200])
def test_disjoint_arcs(count):
    """One position per arc: the preferred one of each."""
    arcs = [frozenset((2 * number, 2 * number + 1)) for number in range(count)]
    latest = range(2 * count - 1, -1, -1)
    assert fewest(arcs, latest) == tuple(range(2 * count - 1, -1, -2))
    assert sorted(fewest(arcs, range(2 * count))) == list(range(0, 2 * count, 2))


def test_the_circle_is_cut_at_the_smallest_arc():
    """Arcs across the end: two positions cover all three, one is not enough."""
    arcs = [frozenset((5, 0)), frozenset((4, 5)), frozenset((1, 2))]
    assert fewest(arcs, range(6)) == (1, 5)
    assert fewest(arcs, (4, 3, 2, 1, 0, 5)) == (2, 5)
    assert fewest([frozenset((3,)), frozenset((5, 0)), frozenset((1, 2))], range(6)) == (0, 1, 3), "the order starts after the cut"


def test_no_arcs_need_no_positions():
    assert fewest([], range(4)) == ()


def test_an_arc_without_a_position_is_rejected():
    with pytest.raises(ValueError, match="an arc without a position"):
        fewest([frozenset((1,)), frozenset()], range(3))
