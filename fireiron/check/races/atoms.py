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
    starts = _starts(space, footprints)
    touched = [_touched(one, starts) for one in footprints]
    sums = np.zeros(len(starts), dtype=np.uint64)
    for warps_of, number in zip(touched, multipliers, strict=True):
        sums += warps_of * number
    _, one_of, group = np.unique(sums, return_index=True, return_inverse=True)
    alike = one_of[group]
    if any((warps_of != warps_of[alike]).any() for warps_of in touched):
        _, one_of = np.unique(np.stack(touched), axis=1, return_index=True)
    for one, warps_of in zip(footprints, touched, strict=True):
        one.atoms = _by_warp(warps_of[one_of], warps, first)
    return len(one_of)


def _start(one: Footprint) -> int:
    return one.pattern.span[0] + one.shift - one.space.first


def _starts(space: Space, footprints: Sequence[Footprint]) -> Array:
    """The grains at which, for some footprint, other warps begin to touch: up to the next of them all grains are alike."""
    begins = np.zeros(space.length + 1, dtype=bool)
    for one in footprints:
        begins[one.pattern.changes + _start(one)] = True
    begins[0] = True
    return np.flatnonzero(begins[:-1])


def _touched(one: Footprint, grains: Array) -> Array:
    """For each of some ascending grains, the warps that touch it, as bits."""
    start, length = _start(one), one.pattern.span[1]
    low, high = np.searchsorted(grains, (start, start + length))
    result = np.zeros(len(grains), dtype=np.uint32)
    result[low:high] = one.pattern.warps[grains[low:high] - start]
    return result


def _by_warp(touched: Array, warps: int, first: int) -> Sequence[Sequence[int]]:
    held = np.flatnonzero(touched)
    bits = (touched[held] >> np.arange(warps, dtype=np.uint32)[:, None]) & np.uint32(1)
    rows, atoms = np.nonzero(bits)
    ends = np.searchsorted(rows, np.arange(warps + 1)).tolist()
    numbers = (held[atoms] + first).tolist()
    return [numbers[start:end] for start, end in itertools.pairwise(ends)]
