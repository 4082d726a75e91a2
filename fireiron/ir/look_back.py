"""Words in global memory by which the blocks of a scan exchange the totals of their tiles.

The words are in a separate workspace, which has no partial results. It is 0 before the first launch. Launches alternate between two areas
of words, word i of an area at position 2 * i or 2 * i + 1. A launch sets the words of the other area to 0, which the launch before it used.
So no block waits for the end of others, and launches of several kernels may follow each other.
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

HEADER: Final = 4
"""Ints before the words: the number of blocks that have started, with the area of the launch in its upper bit; padding; and the number of
words that the last launch with each area has used.
"""

KINDS: Final = (TilePrefix.kind, StatePrefix.kind)


def looks_back(statement: Exec) -> bool:
    """Whether a statement waits for the totals of other blocks."""
    return statement.spec.kind in KINDS


def words_per_row(tiles: Expr) -> Expr:
    """Return an upper bound of the nodes of a tree with 32 children per node and `tiles` leaves, for any number of tiles."""
    return tiles + tiles // 16 + 8


def words_of(array: Buffer) -> Expr:
    """Return the words of an array in one area: a flag with each 32 bits of a total."""
    *rows, tiles = array.tensor.shape
    total = words_per_row(tiles) * (array.dtype.bits // 32)
    for size in rows:
        total = total * size
    return total


def words_of_all(arrays: Iterable[Buffer]) -> Expr:
    """Return the words of all arrays in one area."""
    return sum((words_of(array) for array in arrays), as_expr(0))


def ints_of_all(arrays: Iterable[Buffer]) -> Expr:
    """Return the ints of a workspace: the header, and two areas of words."""
    return words_of_all(arrays) * 4 + HEADER


__all__ = ["FANOUT", "HEADER", "ints_of_all", "looks_back", "words_of", "words_of_all", "words_per_row"]
