"""Tiles of which several blocks compute parts, and how their results are combined."""

from __future__ import annotations

import enum

from fireiron.frozen import frozen
from fireiron.ir.effect import Effect


class Combination(enum.Enum):
    """How blocks combine their results.

    - ATOMIC: each block adds atomically, in any order.
    - ORDERED: each block adds atomically, in the order of the block indices.
    - LAST_BLOCK: the block that finishes last reads all partial results, in the order of the parts.
    - LOOK_BACK: a block combines its part of a scan with the parts of the blocks before it, in a fixed order.
    """

    ATOMIC = "atomic"
    ORDERED = "ordered"
    LAST_BLOCK = "last block"
    LOOK_BACK = "look-back"

    __hash__ = object.__hash__


@frozen
class JointTiles(Effect):
    """How blocks combine the parts of a tile, or the values that they add to one element."""

    combination: Combination = Combination.ATOMIC


@frozen
class StreamedTiles(Effect):
    """Stream-K: each block computes a range of the iterations of all tiles; the names of the variables that describe it.

    Attributes:
        segment: the variable of the loop over the segments of a block. A segment is a part of a tile's iterations along k.
        tile: the tile of a segment.
        first, number: the first iteration of a segment, and the number of its iterations.
        parts: the number of segments of the tile.
        slot: the place in the workspace of the partial result of a segment.
        first_slot: the place of the first partial result of the tile; the others follow in the order of k.
        last: whether the block has counted the last segment of the tile.
        tiles, iterations: the number of tiles, and of iterations per tile.
    """

    segment: str = ""
    tile: str = ""
    first: str = ""
    number: str = ""
    parts: str = ""
    slot: str = ""
    first_slot: str = ""
    last: str = ""
    tiles: int = 0
    iterations: int = 0


__all__ = ["Combination", "JointTiles", "StreamedTiles"]
