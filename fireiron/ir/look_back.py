"""Words in global memory by which the blocks of a scan exchange the totals of their tiles.

All words are 0 before and after a launch. They are in a separate workspace, which has no partial results.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fireiron.ir.access import Buffer
from fireiron.ir.statement import Exec
from fireiron.specs.tile_prefix import StatePrefix, TilePrefix
from fireiron.values.expr import Expr, as_expr

FANOUT: Final = 32
"""Tiles, or nodes, whose totals a warp combines in one step: the children of a node of the tree."""

HEADER: Final = 2
"""Ints before the words: the numbers of blocks that have started, and that have finished."""

KINDS: Final = (TilePrefix.kind, StatePrefix.kind)


def looks_back(statement: Exec) -> bool:
    """Whether a statement waits for the totals of other blocks."""
    return statement.spec.kind in KINDS


def words_per_row(tiles: Expr) -> Expr:
    """Return an upper bound of the nodes of a tree with 32 children per node and `tiles` leaves, for any number of tiles."""
    return tiles + tiles // 16 + 8


def ints_of(words: Buffer) -> Expr:
    """Return the ints of an array of words: a flag with each 32 bits of a total."""
    *rows, tiles = words.tensor.shape
    total = words_per_row(tiles) * (words.dtype.bits // 32)
    for size in rows:
        total = total * size
    return total * 2


def ints_of_all(words: Iterable[Buffer]) -> Expr:
    """Return the ints of a workspace."""
    return sum((ints_of(buffer) for buffer in words), as_expr(HEADER))


__all__ = ["FANOUT", "HEADER", "ints_of", "ints_of_all", "looks_back", "words_per_row"]
