"""The segment of a block in Stream-K: a part of the iterations of one tile along k, whose start and length are known at run time."""

from __future__ import annotations

from fireiron.frozen import frozen
from fireiron.values.expr import Expr, Var


@frozen
class Segment:
    """The segment that a block computes in an iteration of its loop over segments.

    Attributes:
        step: the elements of k per unit of work.
        dim: the dimension k.
        first, number: the first unit of the segment, and the number of its units, which is at least 1.
        units: the units per tile.
        parts: the number of segments of the tile.
        index, count: the semaphore of the tile, and the number of semaphores.
        slot, first_slot: the places of the partial results of this segment, and of the first segment of the tile, in a workspace of
            `slots` places.
        last: the variable that is 1 in the block that finishes the tile last.
        divided: whether a loop over the units exists.
    """

    step: int
    dim: str
    first: Expr
    number: Expr
    units: int
    parts: Expr
    index: Expr
    count: int
    slot: Expr
    first_slot: Expr
    slots: int
    last: Var
    divided: bool = False


__all__ = ["Segment"]
