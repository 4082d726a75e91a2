"""Atoms: grains of memory are distinguished if and only if different warps or accesses use them."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from fireiron.check.races.atoms import split

pytestmark = pytest.mark.sampled(1)


def placed(first, *warps):
    """Grains from `first` on, each with a bit mask of the warps that access it."""
    warps = np.array(warps, dtype=np.uint32)
    inside = [number for number in range(1, len(warps)) if warps[number] != warps[number - 1]]
    return SimpleNamespace(first=first, warps=warps, changes=np.array([0, *inside, len(warps)]), atoms=())


def expected(accesses, warps):
    """For each accessed grain, the set of (access, warp) pairs."""
    by_grain = {}
    for number, access in enumerate(accesses):
        for grain, bits in enumerate(access.warps.tolist(), access.first):
            for warp in range(warps):
                if bits >> warp & 1:
                    by_grain.setdefault(grain, set()).add((number, warp))
    return by_grain


def by_atoms(accesses):
    """The same for each atom."""
    by_atom = {}
    for number, access in enumerate(accesses):
        for warp, atoms in enumerate(access.atoms):
            assert list(atoms) == sorted(set(atoms))
            for atom in atoms:
                by_atom.setdefault(atom, set()).add((number, warp))
    return by_atom


@pytest.mark.parametrize("multipliers", [None, "zeros", "ones"])
def test_random_accesses(multipliers):
    for seed in range(150):
        chance = random.Random(seed)
        warps = chance.choice((1, 2, 4, 32))
        accesses = []
        for _ in range(chance.choice((1, 2, 3, 4))):
            run = [chance.choice((0, 1, (1 << warps) - 1, chance.randrange(1 << warps))) for _ in range(chance.choice((1, 2, 5, 9)))]
            accesses.append(placed(chance.choice((0, 3, 7, 100)), *run))
        first = chance.choice((0, 5))
        chosen = {None: None, "zeros": np.zeros(len(accesses), np.uint64), "ones": np.ones(len(accesses), np.uint64)}[multipliers]
        count = split(accesses, warps, first, chosen)
        assert all(len(one.atoms) == warps for one in accesses)
        actual, sets = by_atoms(accesses), {frozenset(one) for one in expected(accesses, warps).values()}
        assert {frozenset(one) for one in actual.values()} == sets and len(actual) == len(sets), seed
        assert len(actual) <= count and all(first <= atom < first + count for atom in actual)


def test_without_accesses():
    assert split([], 4, 7) == 0
    empty = placed(3)
    assert split([empty], 4, 7) == 0 and list(empty.atoms) == []
    other = placed(5, 1, 1, 2)
    assert split([empty, other], 2, 7) == 2 and sorted(other.atoms) == [[7], [8]]
    assert list(empty.atoms) == []


def test_different_accesses_get_different_numbers():
    """So that equal sums are rare: different subsets have different sums."""
    from fireiron.check.races.atoms import _multipliers

    numbers = _multipliers(64).tolist()
    assert len(set(numbers)) == 64 and all(one % 2 for one in numbers) and numbers == _multipliers(70).tolist()[:64]
    assert min(one.bit_length() for one in numbers) > 50
    spread = [sum(one >> bit & 1 for one in numbers) for bit in range(1, 64)]
    assert all(12 <= count <= 52 for count in spread)
    pairs = {one + other & (1 << 64) - 1 for position, one in enumerate(numbers) for other in numbers[:position]}
    assert len(pairs) == 64 * 63 // 2
