"""Constants of the cost model that no data sheet specifies, each with its unit, calibrated on half of the shapes of a sweep on an H200.

See docs/cost-model.md for the method and for the accuracy on the other half; `perf/cost_model.py --calibrate` repeats it.
"""

from __future__ import annotations

from typing import Final

import attrs


@attrs.frozen
class Constants:
    """The constants of the model; the defaults are the calibrated ones, rounded."""

    launch_us: float = 1.1
    """From one kernel of a CUDA graph to the next, including start and end of its blocks (microseconds; an empty kernel takes 0.7)."""
    l2_latency: float = 250.0
    """A load that hits in L2 (clocks)."""
    memory_latency: float = 390.0
    """The additional latency of a load from device memory (nanoseconds)."""
    shared_latency: float = 30.0
    """A load from shared memory (clocks)."""
    mma_latency: float = 50.0
    """The result of tensor cores (clocks)."""
    fma_latency: float = 4.0
    """The result of a multiply-add (clocks)."""
    barrier: float = 12.0
    """A block barrier, for the warp that arrives last (clocks)."""
    drain: float = 80.0
    """The loss of an SM at each barrier of its only block, until all warps run again (clocks)."""
    extra_instructions: float = 1.1
    """Additional instructions per load or store: addresses, predicates, conversions."""
    order: float = 2.0
    """Order of the norm that combines the parts of an SM with one block: at infinity they would overlap perfectly."""
    growth: float = 0.15
    """How that order grows with the number of blocks per SM, which fill each other's gaps (exponent)."""
    ring_order: float = 8.0
    """Both orders for a kernel with a ring: producer, async proxy and consumers run concurrently."""
    alone_order: float = 2.6
    """Order of the norm of the time of a single warp and that of the SM."""
    read_share: float = 0.85
    """The share of the data sheet's memory bandwidth that kernels read (a copy of 1 GiB on an H200: 4.2 of 4.8 TB/s)."""
    write_share: float = 0.70
    """The same for writes (a fill of 1 GiB on an H200: 3.4 of 4.8 TB/s)."""


CONSTANTS: Final = Constants()
