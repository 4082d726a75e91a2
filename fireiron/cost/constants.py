"""What no data sheet says: a few numbers with a meaning and a unit, calibrated on half of the shapes of a sweep on an H200.

How, and what they are worth on the other half, is in docs/cost-model.md; `perf/cost_model.py --calibrate` repeats it.
"""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen
class Constants:
    """The constants of the model; the defaults are the calibrated ones, rounded."""

    launch_us: float = 1.1
    """From one kernel of a CUDA graph to the next, start and end of its blocks included (microseconds; an empty kernel takes 0.7)."""
    l2_latency: float = 250.0
    """A load that L2 has (clocks)."""
    memory_latency: float = 390.0
    """How much longer a load takes that comes from device memory (nanoseconds)."""
    shared_latency: float = 30.0
    """A load from shared memory (clocks)."""
    mma_latency: float = 50.0
    """The result of tensor cores (clocks)."""
    fma_latency: float = 4.0
    """The result of a multiply-add (clocks)."""
    barrier: float = 12.0
    """A barrier of a block, for a warp that comes last (clocks)."""
    drain: float = 80.0
    """What a multiprocessor loses at each barrier of its only block, until all warps work again (clocks)."""
    beside: float = 1.1
    """Instructions beside each load or store: addresses, predicates, conversions."""
    order: float = 2.0
    """Order of the norm that combines the parts of a multiprocessor with one block: at infinity they would overlap perfectly."""
    growth: float = 0.15
    """How that order grows with the blocks on a multiprocessor, which fill each other's gaps (exponent)."""
    ring_order: float = 8.0
    """Both orders for a kernel with a ring: a producer, engines and consumers are busy at once, by themselves."""
    alone_order: float = 2.6
    """Order of the norm of the time of one warp alone and that of the multiprocessor."""
    read_share: float = 0.85
    """Of the memory bandwidth of the data sheet, what kernels read (a copy of 1 GiB on an H200: 4.2 of 4.8 TB/s)."""
    write_share: float = 0.70
    """The same for writing (a fill of 1 GiB on an H200: 3.4 of 4.8 TB/s)."""


CONSTANTS: Final = Constants()
