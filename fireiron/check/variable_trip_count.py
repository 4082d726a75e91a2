"""Find loops whose trip count varies between blocks. `skip_masked_tiles` creates such loops: a block iterates only over tiles that are not
fully masked for its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import numpy as np

from fireiron.check.access_trace import AccessTrace
from fireiron.ir import For, Let, statements

Array = Any

MAX_BLOCKS: Final = 1 << 14
"""Maximum number of blocks whose iterations are counted. If there are more, this many evenly spaced blocks are sampled."""


@attrs.frozen(eq=False)
class TripCounts:
    """The trip counts of a loop: `counts` for each of the sampled `blocks`, and `maximum`, the trip count without masking."""

    loop: For
    blocks: Array
    counts: Array
    maximum: int

    @property
    def mean(self) -> float:
        """Iterations per block on average."""
        return float(self.counts.mean())

    def __str__(self) -> str:
        low, high = int(self.counts.min()), int(self.counts.max())
        executed = f"{low} to {high}" if low < high else str(low)
        share = self.mean / max(self.maximum, 1)
        count = f"a block executes {executed} of {self.maximum} iterations, {self.mean:.4g} on average ({share:.0%})"
        return f"loop over {self.loop.var.name}: {count}; the others are fully masked"


def varying_trip_counts(access_trace: AccessTrace, sizes: Mapping[str, int]) -> tuple[TripCounts, ...]:
    """The loops of a kernel whose trip count depends on the block, except loops over the tiles of persistent blocks."""
    grid = int(access_trace.kernel.grid.evaluate(sizes))
    blocks = np.unique(np.linspace(0, grid - 1, min(grid, MAX_BLOCKS)).astype(int))
    frame, known, loops = access_trace.frame([("block", blocks)], sizes), {"block", *sizes}, {}
    for loop in statements(access_trace.kernel.body):
        if (
            isinstance(loop, For)
            and "block" in (roots := access_trace.roots(loop.extent))
            and roots <= known
            and not _is_tile_loop(access_trace, loop)
        ):
            counts = np.maximum(np.broadcast_to(np.asarray(frame.value(loop.extent)), blocks.shape), 0)
            loops[loop.var.name] = TripCounts(loop, blocks, counts, max(loop.var.high + 1, int(counts.max())))
    return tuple(loops.values())


def typical_block(trip_counts: tuple[TripCounts, ...]) -> int:
    """The block whose trip counts are closest to the average; the first block if all are equal."""
    if not trip_counts:
        return 0
    total = np.sum([one.counts for one in trip_counts], axis=0)
    return int(trip_counts[0].blocks[np.argmin(np.abs(total - total.mean()))])


def _is_tile_loop(access_trace: AccessTrace, loop: For) -> bool:
    """Whether a loop iterates over the tiles of a persistent block."""
    return any(isinstance(one, Let) and {"block", loop.var.name} <= access_trace.roots(one.value) for one in loop.body)


__all__ = ["TripCounts", "typical_block", "varying_trip_counts"]
