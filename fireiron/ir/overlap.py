"""Regions of a copied array, for which readers in the same launch wait."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fireiron.frozen import frozen
from fireiron.values.expr import ZERO, Expr


@frozen
class Regions:
    """The regions of a copied array.

    Attributes:
        buffer: the name of the copied array.
        shape: its sizes.
        tile: the sizes of a region, which divide those of the array.
        copies: the number of copies that warps make of parts of a region.
    """

    buffer: str
    shape: tuple[int, ...]
    tile: tuple[int, ...]
    copies: int

    @property
    def count(self) -> int:
        """The number of regions."""
        return math.prod(size // part for size, part in zip(self.shape, self.tile, strict=True))

    def index(self, coordinates: Sequence[Expr]) -> Expr:
        """Return the number of the region that contains an element."""
        number: Expr = ZERO
        for coordinate, size, part in zip(coordinates, self.shape, self.tile, strict=True):
            number = number * (size // part) + coordinate // part
        return number


__all__ = ["Regions"]
