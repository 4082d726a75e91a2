"""Interval arithmetic, and masks of the bits that a value may have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Ranged(Protocol):
    """A value with bounds and a factor that divides it."""

    @property
    def low(self) -> int:
        """The lowest value."""
        ...

    @property
    def high(self) -> int:
        """The highest value."""
        ...

    @property
    def factor(self) -> int:
        """A divisor of all values; 0 divides only 0."""
        ...


def product_range(atoms: Sequence[Ranged], coefficient: int) -> tuple[int, int, int]:
    """Low, high and factor of `coefficient` times the product of atoms.

    Interval arithmetic treats the atoms as independent, also in `x * x`. So the range may be too wide, but is never too narrow.
    """
    if len(atoms) == 1:
        atom = atoms[0]
        if coefficient < 0:
            return coefficient * atom.high, coefficient * atom.low, -coefficient * atom.factor
        return coefficient * atom.low, coefficient * atom.high, coefficient * atom.factor
    low = high = coefficient
    factor = abs(coefficient)
    for atom in atoms:
        ends = (low * atom.low, low * atom.high, high * atom.low, high * atom.high)
        low, high, factor = min(ends), max(ends), factor * atom.factor
    return low, high, factor


def bits_below(high: int, factor: int) -> int:
    """The bits that may be set in values `0..high` that are multiples of a factor: none below the factor's lowest bit."""
    trailing = factor & -factor if factor else 1
    return ((1 << high.bit_length()) - 1) & ~(trailing - 1)


def term_bits(atoms: Sequence[Ranged], coefficient: int) -> int:
    """The bits that may be set in `coefficient` times a product; all bits (-1) if it may be negative."""
    low, high, factor = product_range(atoms, coefficient)
    return -1 if low < 0 else bits_below(high, factor)
