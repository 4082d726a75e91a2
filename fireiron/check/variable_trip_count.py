"""Loops of which blocks take different numbers of turns, as `skip` makes them: those turns that a block's rows see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import numpy as np

from fireiron.check.access_trace import AccessTrace
from fireiron.ir import For, Let, statements

Array = Any

MOST_BLOCKS: Final = 1 << 14
"""Most blocks whose iterations are counted; of more, this many evenly spaced ones."""


@attrs.frozen(eq=False)
class TripCounts:
    """The turns of a loop that each block takes, of `most` that there are; `blocks` are the blocks that were asked."""

    loop: For
    blocks: Array
    counts: Array
    most: int

    @property
    def mean(self) -> float:
        """Turns of a block on average."""
        return float(self.counts.mean())

    def __str__(self) -> str:
        low, high = int(self.counts.min()), int(self.counts.max())
        taken = f"{low} to {high}" if low < high else str(low)
        share = self.mean / max(self.most, 1)
        text = f"loop over {self.loop.var.name}: a block takes {taken} of {self.most} turns, {self.mean:.4g} on average ({share:.0%})"
        return f"{text}; a mask hides the others"


def varying_trip_counts(access_trace: AccessTrace, sizes: Mapping[str, int]) -> tuple[TripCounts, ...]:
    """The loops of a kernel whose turns depend on the block, but for those over tiles that a block takes one after the other."""
    grid = int(access_trace.kernel.grid.evaluate(sizes))
    blocks = np.unique(np.linspace(0, grid - 1, min(grid, MOST_BLOCKS)).astype(int))
    frame, known, found = access_trace.frame([("block", blocks)], sizes), {"block", *sizes}, {}
    for loop in statements(access_trace.kernel.body):
        if (
            isinstance(loop, For)
            and "block" in (roots := access_trace.roots(loop.extent))
            and roots <= known
            and not _over_tiles(access_trace, loop)
        ):
            counts = np.maximum(np.broadcast_to(np.asarray(frame.value(loop.extent)), blocks.shape), 0)
            found[loop.var.name] = TripCounts(loop, blocks, counts, max(loop.var.high + 1, int(counts.max())))
    return tuple(found.values())


def typical_block(turns: tuple[TripCounts, ...]) -> int:
    """The block that has nearest to as many turns as blocks have on average; the first, where all have as many."""
    if not turns:
        return 0
    total = np.sum([one.counts for one in turns], axis=0)
    return int(turns[0].blocks[np.argmin(np.abs(total - total.mean()))])


def _over_tiles(access_trace: AccessTrace, loop: For) -> bool:
    """Whether a block that stays takes another tile in each turn."""
    return any(isinstance(one, Let) and {"block", loop.var.name} <= access_trace.roots(one.value) for one in loop.body)


__all__ = ["TripCounts", "varying_trip_counts", "typical_block"]
