"""Orders of tiles on the grid that keep neighbours in time near each other: `bands`, `column_bands`, `hilbert` on a tile dealt to Block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError
from fireiron.language.dealing import Place
from fireiron.language.dividing import Step
from fireiron.language.grid import Names, place_in_bands, place_on_curve
from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, count, integral
from fireiron.spec import Spec
from fireiron.values.expr import Expr

BY_ROWS, BY_COLUMNS, BY_CURVE = WALKS = (0, 1, 2)
"""How blocks walk: in bands of tile rows, in bands of tile columns, along Hilbert's curve. Numbers, so that a tunable may choose."""


@attrs.frozen
class InBands(Place):
    """Down `rows` tile rows, then one tile column on; of tiles that have no two digits, as their number."""

    name: ClassVar[str] = "bands"
    proved: ClassVar[bool] = True
    rows: int

    def cell(self, unit: Expr, lines: Expr, columns: Expr, names: Names) -> tuple[Expr, Expr]:
        """The row and the column of tile number `unit` in a grid."""
        return place_in_bands(unit, lines, columns, self.rows, names)

    def tile(self, spec: Spec, digits: Sequence[Step], unit: Expr, names: Names) -> Sequence[tuple[Step, Expr]]:
        if len(digits) != 2:
            return super().tile(spec, digits, unit, names)
        columns, lines = digits
        line, column = self.cell(unit, lines.size, columns.size, names)
        return ((columns, column), (lines, line))

    def of_clusters(self, lines: int, columns: int) -> InBands:
        return attrs.evolve(self, rows=max(self.rows // lines, 1))


@attrs.frozen
class InColumnBands(InBands):
    """Along `rows` tile columns, then one tile row on."""

    def cell(self, unit: Expr, lines: Expr, columns: Expr, names: Names) -> tuple[Expr, Expr]:
        column, line = place_in_bands(unit, columns, lines, self.rows, names)
        return line, column

    def tile(self, spec: Spec, digits: Sequence[Step], unit: Expr, names: Names) -> Sequence[tuple[Step, Expr]]:
        placed = super().tile(spec, digits, unit, names)
        return placed[::-1] if len(digits) == 2 else placed  # the row is named first

    def of_clusters(self, lines: int, columns: int) -> InBands:
        return super().of_clusters(columns, lines)


@attrs.frozen
class OnCurve(InBands):
    """Along Hilbert's curve through the grid."""

    rows: int = 1

    def cell(self, unit: Expr, lines: Expr, columns: Expr, names: Names) -> tuple[Expr, Expr]:
        return place_on_curve(unit, lines, columns, names)


WALKING = (InBands, InColumnBands, OnCurve)
"""The place of each of `WALKS`."""


def _rows(value: Any) -> Any:
    return integral(value, "bands")


def _walk(value: Any) -> Any:
    return integral(value, "bands: walk")


@attrs.frozen
class Bands(Refinement):
    """Blocks walk down `rows` tile rows before they go one tile column on, so that blocks that run together share the L2 cache.

    With the `walk` BY_COLUMNS (1) they walk along as many tile columns before they go one tile row on. With BY_CURVE (2) they follow
    Hilbert's curve through the whole grid, which has no bands: `rows` is 1.
    Legal on a tile of two dimensions that is dealt to Block, for any number of tiles; tunables may stand for both numbers.
    rewrite: block u: tile (u // columns, u % columns) --> block u: tile (band * rows + u % rows, u // rows) in each band

    Source: decision 30.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).bands(2)
    >>> text = blocks.tile(1, 1).to(Thread).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "int block_m" in line]
    ['const int block_m = blockIdx.x / 8 * 2 + blockIdx.x % 2;']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((1,), (2,), (3,), (8,), (2, BY_COLUMNS), (3, BY_COLUMNS), (1, BY_CURVE))
    rows: Any = attrs.field(converter=_rows)
    walk: Any = attrs.field(default=BY_ROWS, converter=_walk)

    def plan(self, plan: Any) -> Any:
        rows, walk = chosen(self.rows, "bands"), chosen(self.walk, "bands: walk", 0, max(WALKS))
        if walk == BY_CURVE and rows != 1:
            raise DecompositionError(
                f"bands({rows}, {walk}): Hilbert's curve goes through the whole grid, in no bands", legal="bands(1, 2)", hint="hilbert()"
            )
        return plan.placing(WALKING[walk](rows))

    def __str__(self) -> str:
        if self.walk in (BY_ROWS, BY_COLUMNS):
            return f"{'column_' * (self.walk == BY_COLUMNS)}bands({self.rows})"
        return "hilbert()" if (self.rows, self.walk) == (1, BY_CURVE) else f"bands({self.rows}, {self.walk})"


@verb()
def bands(rows: Integer, walk: Integer = BY_ROWS) -> Bands:
    """Let blocks walk down `rows` tile rows before they go one tile column on: neighbours in time share the L2 cache.

    Args: tile rows, or a tunable; `walk` chooses among this order (0), `column_bands` (1) and `hilbert` (2, with 1 row), for a tunable.
    Legal on a tile of two dimensions that is dealt to Block.
    rewrite: block u: tile (u // columns, u % columns) --> block u: tile (band * rows + u % rows, u // rows) in each band
    """
    return Bands(count(rows, "bands"), count(walk, "bands: walk", 0, max(WALKS)))


@verb()
def column_bands(columns: Integer) -> Bands:
    """Let blocks walk along `columns` tile columns before they go one tile row on: `bands` with rows and columns exchanged.

    Args: tile columns, or a tunable. Legal on a tile of two dimensions that is dealt to Block.
    rewrite: block u: tile (u // columns, u % columns) --> block u: tile (u // columns, band * columns + u % columns) in each band
    """
    return Bands(count(columns, "column_bands"), BY_COLUMNS)


@verb()
def hilbert() -> Bands:
    """Let blocks follow Hilbert's curve through the grid of tiles: neighbours in time are neighbours on the grid, in both directions.

    Legal on a tile of two dimensions that is dealt to Block, for any number of tiles; of a grid that is no square of a power of two
    the curve passes over what lies outside.
    rewrite: block u: tile (u // columns, u % columns) --> block u: tile (p // columns, p % columns), p = hilbert(u, rows, columns)
    """
    return Bands(1, BY_CURVE)


__all__ = ["Bands"]
