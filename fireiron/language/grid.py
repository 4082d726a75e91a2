"""Orders of a grid's tiles, in groups of rows or along a Hilbert curve, and the loop of persistent blocks over tiles."""

from __future__ import annotations

from typing import TypeAlias

from fireiron.errors import ResourceError
from fireiron.ir import For, Let, ask
from fireiron.ir.asks.dynamic_tiles import DynamicTiles
from fireiron.language.tree import Draft
from fireiron.values.expr import FALSE, TRUE, Expr, Var, as_expr, assume_positive, constant, hilbert, less, minimum


class BodyNames:
    """Names values by `Let` statements of a loop body."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.lets: list[Let] = []

    def let(self, wanted: str, value: Expr, high: int | None = None) -> Expr:
        """Return a name for a value; the value itself if it needs no name."""
        if constant(value) is not None or isinstance(value, Var):
            return value
        var = Var(self.draft.fresh(wanted), max(value.low, 0), value.high if high is None else min(high, value.high))
        self.lets.append(Let(var, value))
        return var

    def define(self, var: Var, value: Expr) -> None:
        """Define the value of a name that an earlier step made."""
        self.draft.claim(var)
        self.lets.append(Let(var, value))


class NoNames:
    """Names no values, so that expressions can be evaluated."""

    def let(self, wanted: str, value: Expr, high: int | None = None) -> Expr:
        """Return the value itself."""
        return value


Names: TypeAlias = "Draft | BodyNames | NoNames"
"""An object that gives names to values."""


def most_tiles(stride: int) -> int:
    """Return the largest number of tiles for which the index after the last tile fits 32 bits, if blocks compute each `stride`-th tile."""
    return 2**31 - 1 - stride


def grid_facts(tiles: Expr, stride: int, hint: str = "larger tiles for Block") -> tuple[tuple[str, Expr], ...]:
    """Return the condition on sizes under which a grid can be launched, with its text; nothing if it always can be launched.

    Args:
        tiles: the number of tiles.
        stride: persistent blocks compute each `stride`-th tile; 0 if each block computes one tile.

    Raises: `ResourceError` if the grid can never be launched.
    """
    most = most_tiles(stride)
    fits = less(tiles, as_expr(most + 1))
    if fits == FALSE:
        raise ResourceError(f"{tiles} {'tiles' if stride else 'blocks'}: a grid has at most 2**31 - {2**31 - most}", hint=hint)
    return () if fits == TRUE else ((f"the grid has at most 2**31 - {2**31 - most} {'tiles' if stride else 'blocks'}", fits),)


def persistent_tile_loop(tiles: Expr, blocks: int, groups: int, dynamic: bool, draft: Draft) -> tuple[Let, For]:
    """Return the index of a block's tile in each iteration, and the loop over its tiles. If `dynamic`, one block may compute all tiles.

    The launcher must check `grid_facts(tiles, blocks * groups)`.
    """
    launched = constant(minimum(tiles, as_expr(blocks)))
    block = draft.block if launched is None else Var(draft.block.name, 0, launched - 1)
    tiles = draft.let("num_tiles", tiles, high=most_tiles(blocks * groups))
    # The first blocks have one more tile. (tiles - block) may be negative, so the count is not computed by dividing it.
    num_iterations = tiles // blocks + less(block, tiles % blocks)
    # The launcher checks the number of tiles.
    iteration = Var(draft.fresh("iteration"), 0, min(max((tiles + 1 if dynamic else num_iterations).high - 1, 0), 2**31 - 1))
    tile = Var(draft.fresh("tile"), 0, min(max(tiles.high - 1, 0), 2**31 - 1))
    asks = ask.Asks((DynamicTiles(tile.name, tiles),)) if dynamic else ask.NOTHING
    return Let(tile, block + iteration * blocks), For(iteration, num_iterations, (), False, draft.origin, asks=asks)


def place_on_curve(unit: Expr, lines: Expr, columns: Expr, draft: Names) -> tuple[Expr, Expr]:
    """Return the line and the column of tile `unit` along a Hilbert curve through the grid."""
    place = draft.let("place", hilbert(unit, lines, columns))
    return _inside(place // columns, place % columns, lines, columns)


def rasterized_place(unit: Expr, lines: Expr, columns: Expr, rows: int, draft: Names) -> tuple[Expr, Expr]:
    """Return the line and the column of tile `unit` in groups of `rows` lines, column by column; the last group may have fewer lines."""
    band, inside = unit // (columns * rows), unit % (columns * rows)
    number = constant(lines)
    height: Expr = as_expr(rows)
    if number is None or number % rows:
        band = draft.let("band", band)
        height = assume_positive(minimum(height, lines - band * rows))
    column = inside // height
    if constant(lines) is None or constant(columns) is None:
        inside = draft.let("inside", inside)
        height = draft.let("height", height)
        column = draft.let("column", inside // height)
    return _inside(band * rows + inside % height, column, lines, columns)


def _inside(line: Expr, column: Expr, lines: Expr, columns: Expr) -> tuple[Expr, Expr]:
    """Limit a line and a column to the grid. The limits have no effect; they bound the ranges of the expressions for run-time sizes."""
    if constant(lines) is None or constant(columns) is None:
        return minimum(line, lines - 1), minimum(column, columns - 1)
    return line, column


def let_of_grid(name: str, index: Expr, size: Expr, draft: Names) -> Expr:
    """Return a name for the index of a tile along a dimension with `size` tiles."""
    return draft.let(name, index, high=max(size.high - 1, 0))
