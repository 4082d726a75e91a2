"""Regions of an array, for which readers in the same launch wait, and the memory that the GPUs of a node access in a launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from fireiron.frozen import frozen
from fireiron.values.expr import ONE, ZERO, Expr, Var, equal, less

GRANULE: Final = 1 << 21
"""Bytes by which the driver maps memory of GPUs."""

SLACK: Final = 2 * GRANULE
"""Bytes by which an allocation may exceed the bytes that it was requested for."""


@frozen
class Regions:
    """The regions of a copied array.

    Attributes:
        buffer: the name of the copied array.
        shape: its sizes.
        tile: the sizes of a region, which divide those of the array.
        copies: the number of copies that warps make of parts of a region.
        rank: the parameter with the number of the launch's GPU, if GPUs store equal parts along `axis`, and readers load the part of
            their own GPU from where it is stored. Such a part is not copied.
        axis, part: the dimension of the parts, and their size.
    """

    buffer: str
    shape: tuple[int, ...]
    tile: tuple[int, ...]
    copies: int
    rank: Var | None = None
    axis: int = 0
    part: int = 0

    @property
    def count(self) -> int:
        """The number of regions."""
        return math.prod(size // part for size, part in zip(self.shape, self.tile, strict=True))

    @property
    def gpus(self) -> int:
        """The number of parts."""
        return self.shape[self.axis] // self.part if self.part else 1

    def distance(self, coordinates: Sequence[Expr]) -> Expr:
        """Return how many GPUs after the launch's own one is the GPU that stores an element: 0 for its own part."""
        return ONE if self.rank is None else (coordinates[self.axis] // self.part + self.gpus - self.rank) % self.gpus

    def is_own(self, coordinates: Sequence[Expr]) -> Expr:
        """Return the condition that an element is in the part of the launch's GPU."""
        return equal(self.distance(coordinates), 0)

    def is_copied(self, coordinates: Sequence[Expr]) -> Expr:
        """Return the condition that readers load an element from the copy."""
        return less(0, self.distance(coordinates))

    def index(self, coordinates: Sequence[Expr]) -> Expr:
        """Return the number of the region that contains an element."""
        number: Expr = ZERO
        for coordinate, size, part in zip(coordinates, self.shape, self.tile, strict=True):
            number = number * (size // part) + coordinate // part
        return number


@frozen
class Exchange:
    """The memory that the GPUs of a node access in a launch.

    The workspaces of all GPUs are mapped at equal distances, in their order. Each has semaphores, then rows. If GPUs exchange sums, these
    are, for launches with even and odd numbers and for each GPU that computes them, the rows of the result that the owner of the workspace
    stores. If GPUs copy their parts to others, they are the rows of the copied array, for launches with even and odd numbers.

    Attributes:
        gpus: the number of GPUs.
        rank: the parameter with the number of the launch's GPU.
        part: the rows of the result, or of the copied array, that each GPU stores.
        distance: the bytes from the workspace of a GPU to that of the next one, a multiple of the bytes of a row.
        row: the bytes of a row.
        used: the number of rows of a GPU.
    """

    gpus: int
    rank: Var
    part: int
    distance: int
    row: int
    used: int

    @property
    def rows(self) -> int:
        """The rows from the sums of a GPU to those of the next one."""
        return self.distance // self.row

    @property
    def stored(self) -> int:
        """The bytes that a launch stores in the memory of other GPUs."""
        return (self.gpus - 1) * self.part * self.row

    @staticmethod
    def of(gpus: int, rank: Var, part: int, row: int, used: int, before: int) -> Exchange:
        """Return the memory for `used` rows of `row` bytes after `before` bytes, at distances that the driver can map."""
        step, needed = math.lcm(GRANULE, row), before + used * row + SLACK
        return Exchange(gpus, rank, part, -(-needed // step) * step, row, used)

    def sums(self, owner: Expr, launch: Expr, source: Expr, row: Expr) -> Expr:
        """Return the row of the sums that the GPU `source` computes in a launch for a row of its result that `owner` stores."""
        return owner * self.rows + (launch % 2 * self.gpus + source) * self.part + row

    def copies(self, gpu: Expr, launch: Expr, row: Expr) -> Expr:
        """Return the row of the copies of a launch on a GPU, for a row of the copied array."""
        return gpu * self.rows + launch % 2 * (self.used // 2) + row


__all__ = ["Exchange", "Regions"]
