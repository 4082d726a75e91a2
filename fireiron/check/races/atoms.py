"""Atoms: the pieces of a space that the same warps touch in the same accesses, so that what holds of one holds of all.

Grains get the sum of numbers drawn for the accesses that touch them, times the warps that do; equal sums are then compared
access by access, so that nothing rests on sums being different.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from fireiron.check.races.places import Footprint, Space
from fireiron.check.scene import Array

_SEED = 20261122


def split(space: Space, warps: int, first: int, multipliers: Array | None = None) -> int:
    """Give each footprint of a space the atoms that its warps touch, numbered from `first`; how many there are."""
    footprints = [one for one in space.footprints.values() if one.pattern.span[1]]
    if not footprints:
        return 0
    if multipliers is None:
        multipliers = np.random.default_rng(_SEED).integers(1, 1 << 63, len(footprints), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    sums = np.zeros(space.length, dtype=np.uint64)
    for one, number in zip(footprints, multipliers, strict=True):
        sums[_range(one)] += one.pattern.warps * number
    _, one_of, group = np.unique(sums, return_index=True, return_inverse=True)
    alike = one_of[group]
    if any((touched != touched[alike]).any() for touched in map(_touched, footprints)):
        _, one_of = np.unique(np.stack([_touched(one) for one in footprints]), axis=1, return_index=True)
    for one in footprints:
        one.atoms = _by_warp(_touched(one)[one_of], warps, first)
    return len(one_of)


def _range(one: Footprint) -> slice:
    start, length = one.pattern.span
    start += one.shift - one.space.first
    return slice(start, start + length)


def _touched(one: Footprint) -> Array:
    """For each grain of the space, the warps that touch it, as bits."""
    result = np.zeros(one.space.length, dtype=np.uint32)
    result[_range(one)] = one.pattern.warps
    return result


def _by_warp(touched: Array, warps: int, first: int) -> Sequence[Sequence[int]]:
    bits = (touched[None, :] >> np.arange(warps, dtype=np.uint32)[:, None]) & np.uint32(1)
    rows, atoms = np.nonzero(bits)
    ends = np.searchsorted(rows, np.arange(warps + 1)).tolist()
    numbers = (atoms + first).tolist()
    return [numbers[start:end] for start, end in itertools.pairwise(ends)]
