"""Tiles of which several blocks compute parts, and how their results are combined."""

from __future__ import annotations

import enum

import attrs

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


@attrs.frozen
class JointTiles(Effect):
    """How blocks combine the parts of a tile, or the values that they add to one element."""

    combination: Combination = Combination.ATOMIC


__all__ = ["Combination", "JointTiles"]
