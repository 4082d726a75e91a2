"""Which tile of a grid is a block's: in bands of rows or along Hilbert's curve; and blocks that stay, and take tiles in turns."""

from __future__ import annotations

from typing import TypeAlias

from fireiron.ir import For, Let, ask
from fireiron.ir.asks.dynamic_tiles import DynamicTiles
from fireiron.language.tree import Draft
from fireiron.values.expr import Expr, Var, as_expr, assume_positive, constant, hilbert, less, minimum


class Inside:
    """Names for values inside a loop, as statements of its body."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.lets: list[Let] = []

    def let(self, wanted: str, value: Expr, high: int | None = None) -> Expr:
        """A name for a value; the value itself where a name says no more."""
        if constant(value) is not None or isinstance(value, Var):
            return value
        var = Var(self.draft.fresh(wanted), max(value.low, 0), value.high if high is None else min(high, value.high))
        self.lets.append(Let(var, value))
        return var

    def define(self, var: Var, value: Expr) -> None:
        """Say the value of a name that a step before made."""
        self.draft.claim(var)
        self.lets.append(Let(var, value))


class Unnamed:
    """No names: values as they are, for whoever evaluates them."""

    def let(self, wanted: str, value: Expr, high: int | None = None) -> Expr:
        """The value itself."""
        return value


Names: TypeAlias = "Draft | Inside | Unnamed"
"""Where values get names."""


def taken_in_turns(tiles: Expr, blocks: int, dynamic: bool, draft: Draft) -> tuple[Let, For]:
    """The number of a block's tile in each of its turns, and the loop over them; where `dynamic`, a block may take all tiles."""
    launched = constant(minimum(tiles, as_expr(blocks)))
    block = draft.block if launched is None else Var(draft.block.name, 0, launched - 1)
    tiles = draft.let("tiles", tiles, high=2**31 - 1)
    # The first blocks take one tile more than the others; a quotient of the difference would be one of a number that may be negative.
    turns = tiles // blocks + less(block, tiles % blocks)
    # The launcher checks that tiles are fewer than 2**31, as blocks have to be.
    turn = Var(draft.fresh("turn"), 0, min(max((tiles + 1 if dynamic else turns).high - 1, 0), 2**31 - 1))
    tile = Var(draft.fresh("tile"), 0, min(max(tiles.high - 1, 0), 2**31 - 1))
    asks = ask.Asks((DynamicTiles(tile.name, tiles),)) if dynamic else ask.NOTHING
    return Let(tile, block + turn * blocks), For(turn, turns, (), False, draft.origin, asks=asks)


def place_on_curve(unit: Expr, lines: Expr, columns: Expr, draft: Names) -> tuple[Expr, Expr]:
    """The line and the column of the tile that is number `unit` on Hilbert's curve through the grid."""
    place = draft.let("place", hilbert(unit, lines, columns))
    return _inside(place // columns, place % columns, lines, columns)


def place_in_bands(unit: Expr, lines: Expr, columns: Expr, rows: int, draft: Names) -> tuple[Expr, Expr]:
    """The line and the column of a tile by its number, down `rows` tile rows, then one column on; the last band may have fewer rows."""
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
    """A line and a column with limits that never hold, which keep them inside the grid at all sizes."""
    if constant(lines) is None or constant(columns) is None:
        return minimum(line, lines - 1), minimum(column, columns - 1)
    return line, column


def let_of_grid(name: str, index: Expr, size: Expr, draft: Names) -> Expr:
    """A name for the index of a tile along a dimension of so many."""
    return draft.let(name, index, high=max(size.high - 1, 0))
