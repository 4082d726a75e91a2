"""Atoms: the pieces of a space that the same warps touch in the same accesses, so that what holds of one holds of all.

Grains get the sum of numbers drawn for the accesses that touch them, times the warps that do; equal sums are then compared
access by access, so that nothing rests on sums being different.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from fireiron.check.access_trace import Array

_SEED = 20261122


class Placed(Protocol):
    """Grains from `first` on: which warps touch each, as bits, and from which on others do, counted from the first; the atoms go here."""

    atoms: Sequence[Sequence[int]]

    @property
    def first(self) -> int:
        """The first grain."""

    @property
    def warps(self) -> Array:
        """For each grain, the warps that touch it."""

    @property
    def changes(self) -> Array:
        """The grains from which on other warps touch; the end is one of them."""


def split(placed: Sequence[Placed], warps: int, first: int, multipliers: Array | None = None) -> int:
    """Give what lies in one space the atoms that its warps touch, numbered from `first`; how many there are."""
    placed = [one for one in placed if len(one.warps)]
    if not placed:
        return 0
    if multipliers is None:
        multipliers = _multipliers(len(placed))
    grains = _begins(placed)
    touched = [_touched(one, grains) for one in placed]
    sums = np.zeros(len(grains), dtype=np.uint64)
    for warps_of, number in zip(touched, multipliers, strict=True):
        sums += warps_of * number
    _, one_of, group = np.unique(sums, return_index=True, return_inverse=True)
    alike = one_of[group]
    if any((warps_of != warps_of[alike]).any() for warps_of in touched):
        _, one_of = np.unique(np.stack(touched), axis=1, return_index=True)
    for one, warps_of in zip(placed, touched, strict=True):
        one.atoms = _by_warp(warps_of[one_of], warps, first)
    return len(one_of)


def _multipliers(count: int) -> Array:
    """Odd numbers, so that multiplying loses nothing modulo 2**64, the same each time, so that a kernel takes the same way every time.

    SplitMix64 (Steele, Lea, Flood 2014): NumPy's generators take 15 ms to load.
    """
    mixed = np.arange(_SEED, _SEED + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)


def _begins(placed: Sequence[Placed]) -> Array:
    """The grains at which, somewhere, other warps begin to touch: up to the next of them all grains are alike."""
    start = min(one.first for one in placed)
    begins = np.zeros(max(one.first + len(one.warps) for one in placed) - start + 1, dtype=bool)
    for one in placed:
        begins[one.changes + (one.first - start)] = True
    return np.flatnonzero(begins[:-1]) + start


def _touched(one: Placed, grains: Array) -> Array:
    """For each of some ascending grains, the warps that touch it, as bits."""
    low, high = np.searchsorted(grains, (one.first, one.first + len(one.warps)))
    # A block has at most 32 warps, a bit each.
    result = np.zeros(len(grains), dtype=np.uint32)
    result[low:high] = one.warps[grains[low:high] - one.first]
    return result


def _by_warp(touched: Array, warps: int, first: int) -> Sequence[Sequence[int]]:
    held = np.flatnonzero(touched)
    bits = (touched[held] >> np.arange(warps, dtype=np.uint32)[:, None]) & np.uint32(1)
    rows, atoms = np.nonzero(bits)
    ends = np.searchsorted(rows, np.arange(warps + 1)).tolist()
    numbers = (held[atoms] + first).tolist()
    return [numbers[start:end] for start, end in itertools.pairwise(ends)]
