"""Group grains into atoms: sets of grains that the same warps access in the same accesses. A result for one grain holds for its atom.

Each access gets a pseudorandom multiplier. The hash of a grain is the sum, over its accesses, of the multiplier times the bit set of warps
that access the grain. Grains with equal hashes are then compared access by access, so a hash collision cannot cause an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fireiron.check.access_trace import Array

_SEED = 20261122


class GrainMap(Protocol):
    """Grains from `first` on: the bit set of warps per grain, and the grains at which that set changes. `split` stores the atoms here."""

    atoms: Sequence[Sequence[int]]

    @property
    def first(self) -> int:
        """The first grain."""

    @property
    def warps(self) -> Array:
        """For each grain, the warps that access it."""

    @property
    def changes(self) -> Array:
        """The grains at which the set of warps changes; the end is one of them."""


def split(maps: Sequence[GrainMap], warps: int, first: int, multipliers: Array | None = None) -> int:
    """Split the footprints of one space into atoms, numbered from `first`; return their number."""
    maps = [grain_map for grain_map in maps if len(grain_map.warps)]
    if not maps:
        return 0
    if multipliers is None:
        multipliers = _multipliers(len(maps))
    grains = _boundaries(maps)
    accessed = [_accessed(grain_map, grains) for grain_map in maps]
    sums = np.zeros(len(grains), dtype=np.uint64)
    for warps_of, number in zip(accessed, multipliers, strict=True):
        sums += warps_of * number
    _, one_of, group = np.unique(sums, return_index=True, return_inverse=True)
    representatives = one_of[group]
    if any((warps_of != warps_of[representatives]).any() for warps_of in accessed):
        _, one_of = np.unique(np.stack(accessed), axis=1, return_index=True)
    for grain_map, warps_of in zip(maps, accessed, strict=True):
        grain_map.atoms = _by_warp(warps_of[one_of], warps, first)
    return len(one_of)


def _multipliers(count: int) -> Array:
    """Odd multipliers: odd numbers are invertible modulo 2**64, and a fixed seed makes runs reproducible.

    SplitMix64 (Steele, Lea, Flood 2014): loading NumPy's generators takes 15 ms.
    """
    mixed = np.arange(_SEED, _SEED + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)


def _boundaries(maps: Sequence[GrainMap]) -> Array:
    """The grains at which the set of warps of some access changes; between two of them all grains are equivalent."""
    start = min(grain_map.first for grain_map in maps)
    boundaries = np.zeros(max(grain_map.first + len(grain_map.warps) for grain_map in maps) - start + 1, dtype=bool)
    for grain_map in maps:
        boundaries[grain_map.changes + (grain_map.first - start)] = True
    return np.flatnonzero(boundaries[:-1]) + start


def _accessed(grain_map: GrainMap, grains: Array) -> Array:
    """For each of the ascending grains, the bit set of warps that access it."""
    low, high = np.searchsorted(grains, (grain_map.first, grain_map.first + len(grain_map.warps)))
    # A block has at most 32 warps, a bit each.
    result = np.zeros(len(grains), dtype=np.uint32)
    result[low:high] = grain_map.warps[grains[low:high] - grain_map.first]
    return result


def _by_warp(accessed: Array, warps: int, first: int) -> Sequence[Sequence[int]]:
    indices = np.flatnonzero(accessed)
    bits = (accessed[indices] >> np.arange(warps, dtype=np.uint32)[:, None]) & np.uint32(1)
    rows, atoms = np.nonzero(bits)
    ends = np.searchsorted(rows, np.arange(warps + 1)).tolist()
    numbers = (indices[atoms] + first).tolist()
    return [numbers[start:end] for start, end in itertools.pairwise(ends)]
