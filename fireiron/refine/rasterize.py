"""Orders of output tiles for reuse in the L2 cache: `rasterize` and `hilbert` on a tile distributed over blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.language.dividing import Step
from fireiron.language.grid import Names, place_on_curve, rasterized_place
from fireiron.language.tile_assignment import Place
from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, count, integral
from fireiron.spec import Spec
from fireiron.values.expr import Expr

GROUP_M, GROUP_N, CURVE = RASTERS = (0, 1, 2)
"""Groups of tile rows, groups of tile columns, Hilbert's curve. They are integers, so that a tunable can select one."""


@frozen
class GroupedRows(Place):
    """The order down a group of `rows` tile rows, then down the next tile column.

    Tiles of one dimension keep the order of their numbers. Tiles of more dimensions have no rows and columns, so an order that differs
    from that of their numbers is refused.
    """

    name: ClassVar[str] = "rasterize"
    proved: ClassVar[bool] = True
    rows: int

    @property
    def differs(self) -> bool:
        """Whether the order can differ from that of the tiles' numbers."""
        return self.rows > 1

    def require(self, spec: Spec, digits: Sequence[Step]) -> None:
        if len(digits) > 2 and self.differs:
            labels = [spec.labels[spec.dims.index(digit.dim)] for digit in reversed(digits)]
            raise DecompositionError(
                f"{self.call}: the tiles form a grid of {len(digits)} dimensions, not of rows and columns",
                got=", ".join(f"{digit.size} tiles along {label}" for digit, label in zip(reversed(digits), labels, strict=True)),
                legal="tiles along two dimensions",
                hint=f".tile({labels[0]}=1).to(Block), then the tile of the other dimensions with .{self.call}"
                if len(set(labels)) == len(labels)
                else "a tile of contiguous elements",
            )

    @property
    def call(self) -> str:
        """The refinement with this order, as users write it."""
        return f"rasterize(group_m={self.rows})"

    def cell(self, unit: Expr, lines: Expr, columns: Expr, names: Names) -> tuple[Expr, Expr]:
        """Return the row and the column of tile number `unit` in a grid."""
        return rasterized_place(unit, lines, columns, self.rows, names)

    def tile(self, spec: Spec, digits: Sequence[Step], unit: Expr, names: Names) -> Sequence[tuple[Step, Expr]]:
        if len(digits) != 2:
            return super().tile(spec, digits, unit, names)
        columns, lines = digits
        line, column = self.cell(unit, lines.size, columns.size, names)
        return ((columns, column), (lines, line))

    def of_clusters(self, lines: int, columns: int) -> GroupedRows:
        return attrs.evolve(self, rows=max(self.rows // lines, 1))


@frozen
class GroupedColumns(GroupedRows):
    """The order along a group of `rows` tile columns, then along the next tile row."""

    @property
    def differs(self) -> bool:
        return True

    @property
    def call(self) -> str:
        return f"rasterize(group_n={self.rows})"

    def cell(self, unit: Expr, lines: Expr, columns: Expr, names: Names) -> tuple[Expr, Expr]:
        column, line = rasterized_place(unit, columns, lines, self.rows, names)
        return line, column

    def tile(self, spec: Spec, digits: Sequence[Step], unit: Expr, names: Names) -> Sequence[tuple[Step, Expr]]:
        placed = super().tile(spec, digits, unit, names)
        return placed[::-1] if len(digits) == 2 else placed  # the row is named first

    def of_clusters(self, lines: int, columns: int) -> GroupedRows:
        return super().of_clusters(columns, lines)


@frozen
class HilbertOrder(GroupedRows):
    """The order along Hilbert's curve through the grid."""

    rows: int = 1

    @property
    def differs(self) -> bool:
        return True

    @property
    def call(self) -> str:
        return "hilbert()"

    def cell(self, unit: Expr, lines: Expr, columns: Expr, names: Names) -> tuple[Expr, Expr]:
        return place_on_curve(unit, lines, columns, names)


RASTER_ORDERS = (GroupedRows, GroupedColumns, HilbertOrder)
"""The order of tiles for each of `RASTERS`."""


def _group(value: Any) -> Any:
    return integral(value, "rasterize")


def _raster(value: Any) -> Any:
    return integral(value, "rasterize: raster")


@frozen
class Rasterize(Refinement):
    """Compute output tiles in groups of `group` tile rows, one tile column after the other, for reuse in the L2 cache.

    If `raster` is GROUP_N (1), the groups consist of tile columns, one tile row after the other. If it is CURVE (2), the tiles follow
    Hilbert's curve through the whole grid; the curve has no groups, so `group` must be 1.
    Legal on a tile of two dimensions that is distributed over blocks, for any number of tiles; both numbers may be tunables.
    rewrite: block u: tile (u // columns, u % columns) --> block u: tile (first row + u % group, u // group) in each group

    Source: Triton's `GROUP_SIZE_M`; decision 30.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).rasterize(group_m=2)
    >>> text = blocks.tile(1, 1).to(Thread).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "int block_m" in line]
    ['const int block_m = blockIdx.x / 8 * 2 + blockIdx.x % 2;']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((1,), (2,), (3,), (8,), (2, GROUP_N), (3, GROUP_N), (1, CURVE))
    group: Any = attrs.field(converter=_group)
    raster: Any = attrs.field(default=GROUP_M, converter=_raster)

    def plan(self, plan: Any) -> Any:
        group, raster = chosen(self.group, "rasterize"), chosen(self.raster, "rasterize: raster", 0, max(RASTERS))
        if raster == CURVE and group != 1:
            raise DecompositionError(
                f"rasterize({group}, {raster}): Hilbert's curve has no groups", legal="rasterize(1, 2)", hint="hilbert()"
            )
        return plan.with_order(RASTER_ORDERS[raster](group))

    def __str__(self) -> str:
        if self.raster in (GROUP_M, GROUP_N):
            return f"rasterize({'group_n' if self.raster == GROUP_N else 'group_m'}={self.group})"
        return "hilbert()" if (self.group, self.raster) == (1, CURVE) else f"rasterize({self.group}, {self.raster})"


@verb()
def rasterize(group_m: Integer | None = None, raster: Integer = GROUP_M, *, group_n: Integer | None = None) -> Rasterize:
    """Compute output tiles in groups of `group_m` tile rows, one tile column after the other, or in groups of `group_n` tile columns.

    Concurrent blocks then share rows and columns in the L2 cache.

    Args: group_m: tile rows per group, or a tunable. raster: 0 for groups of tile rows, 1 for groups of tile columns, 2 for `hilbert` (with
    `group_m=1`), or a tunable that selects one. group_n: tile columns per group. Legal on a tile of two dimensions that is distributed over
    blocks.
    rewrite: block u: tile (u // columns, u % columns) --> block u: tile (first row + u % group, u // group) in each group
    """
    if (group_m is None) == (group_n is None):
        raise ArgumentError(
            "rasterize needs either group_m or group_n",
            got=(group_m, group_n),
            legal="rasterize(group_m=8), rasterize(group_n=8)",
            at=call_site(),
        )
    if group_n is not None:
        if not (isinstance(raster, int) and raster == GROUP_M):
            raise ArgumentError("rasterize: group_n excludes raster", got=raster, legal="rasterize(group_n=8)", at=call_site())
        return Rasterize(count(group_n, "rasterize: group_n"), GROUP_N)
    return Rasterize(count(group_m, "rasterize"), count(raster, "rasterize: raster", 0, max(RASTERS)))


@verb()
def hilbert() -> Rasterize:
    """Compute output tiles along Hilbert's curve through the grid: consecutive tiles are adjacent, in rows or in columns.

    Legal on a tile of two dimensions that is distributed over blocks, for any number of tiles. If the grid is not a square whose side is a
    power of two, the curve skips the cells that are out of bounds.
    rewrite: block u: tile (u // columns, u % columns) --> block u: tile (p // columns, p % columns), p = hilbert(u, rows, columns)
    """
    return Rasterize(1, CURVE)


__all__ = ["Rasterize"]
