"""Atoms by hand: pieces of memory are told apart exactly where other warps, or other accesses, touch them."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from fireiron.check.races.atoms import split

pytestmark = pytest.mark.sampled(1)


def placed(first, *warps):
    """Grains from `first` on, each with the warps that touch it as bits."""
    warps = np.array(warps, dtype=np.uint32)
    inside = [number for number in range(1, len(warps)) if warps[number] != warps[number - 1]]
    return SimpleNamespace(first=first, warps=warps, changes=np.array([0, *inside, len(warps)]), atoms=())


def expected(every, warps):
    """For each grain that is touched, by whom: a set of numbers of accesses and of warps."""
    found = {}
    for number, one in enumerate(every):
        for grain, bits in enumerate(one.warps.tolist(), one.first):
            for warp in range(warps):
                if bits >> warp & 1:
                    found.setdefault(grain, set()).add((number, warp))
    return found


def by_atoms(every):
    """The same of each atom."""
    found = {}
    for number, one in enumerate(every):
        for warp, atoms in enumerate(one.atoms):
            assert list(atoms) == sorted(set(atoms))
            for atom in atoms:
                found.setdefault(atom, set()).add((number, warp))
    return found


@pytest.mark.parametrize("multipliers", [None, "zeros", "ones"])
def test_drawn_accesses(multipliers):
    for seed in range(150):
        chance = random.Random(seed)
        warps = chance.choice((1, 2, 4, 32))
        every = []
        for _ in range(chance.choice((1, 2, 3, 4))):
            run = [chance.choice((0, 1, (1 << warps) - 1, chance.randrange(1 << warps))) for _ in range(chance.choice((1, 2, 5, 9)))]
            every.append(placed(chance.choice((0, 3, 7, 100)), *run))
        first = chance.choice((0, 5))
        chosen = {None: None, "zeros": np.zeros(len(every), np.uint64), "ones": np.ones(len(every), np.uint64)}[multipliers]
        count = split(every, warps, first, chosen)
        assert all(len(one.atoms) == warps for one in every)
        found, sets = by_atoms(every), {frozenset(one) for one in expected(every, warps).values()}
        assert {frozenset(one) for one in found.values()} == sets and len(found) == len(sets), seed
        assert len(found) <= count and all(first <= atom < first + count for atom in found)


def test_nothing_is_touched():
    assert split([], 4, 7) == 0
    empty = placed(3)
    assert split([empty], 4, 7) == 0 and list(empty.atoms) == []
    other = placed(5, 1, 1, 2)
    assert split([empty, other], 2, 7) == 2 and sorted(other.atoms) == [[7], [8]]
    assert list(empty.atoms) == []


def test_different_accesses_get_different_numbers():
    """So that sums seldom have to be compared access by access: no two subsets of many have the same."""
    from fireiron.check.races.atoms import _multipliers

    numbers = _multipliers(64).tolist()
    assert len(set(numbers)) == 64 and all(one % 2 for one in numbers) and numbers == _multipliers(70).tolist()[:64]
    assert min(one.bit_length() for one in numbers) > 50
    spread = [sum(one >> bit & 1 for one in numbers) for bit in range(1, 64)]
    assert all(12 <= count <= 52 for count in spread)
    pairs = {one + other & (1 << 64) - 1 for position, one in enumerate(numbers) for other in numbers[:position]}
    assert len(pairs) == 64 * 63 // 2
