"""Regions of an array, for which readers in the same launch wait, and the memory by which GPUs exchange sums in a launch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from fireiron.frozen import frozen
from fireiron.values.expr import ZERO, Expr, Var


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


@frozen
class Exchange:
    """The memory by which the GPUs of a node exchange sums in a launch.

    The workspaces of all GPUs are mapped at equal distances, in their order. Each has semaphores, then rows of sums: for launches with even
    and odd numbers, for each GPU that adds, the rows of the result that the owner of the workspace stores.

    Attributes:
        gpus: the number of GPUs.
        rank: the parameter with the number of the launch's GPU.
        part: the rows of the result that each GPU stores.
        distance: the bytes from the workspace of a GPU to that of the next one, a multiple of the bytes of a row.
        row: the bytes of a row.
    """

    gpus: int
    rank: Var
    part: int
    distance: int
    row: int

    @property
    def rows(self) -> int:
        """The rows from the sums of a GPU to those of the next one."""
        return self.distance // self.row

    @property
    def used(self) -> int:
        """The rows of sums of a GPU."""
        return 2 * self.gpus * self.part

    def sums(self, owner: Expr, launch: Expr, source: Expr, row: Expr) -> Expr:
        """Return the row of the sums that the GPU `source` computes in a launch for a row of its result that `owner` stores."""
        return owner * self.rows + (launch % 2 * self.gpus + source) * self.part + row


__all__ = ["Exchange", "Regions"]
