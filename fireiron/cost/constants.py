"""Define the constants of the cost model that no data sheet specifies, each with its unit.

They are calibrated on half of the shapes of a sweep on an H200. See docs/cost-model.md for the method and for the accuracy on the other
half. `perf/cost_model.py --calibrate` repeats the calibration.
"""

from __future__ import annotations

from typing import Final

from fireiron.frozen import frozen


@frozen
class Constants:
    """The constants of the model. The defaults are the calibrated values, rounded."""

    launch_us: float = 1.1
    """Time between two kernels of a CUDA graph, including start and end of the blocks (microseconds; an empty kernel takes 0.7)."""
    cluster_us: float = 0.7
    """Additional time of a kernel with clusters: their blocks start together, and wait for each other at the end (microseconds)."""
    l2_latency: float = 250.0
    """Latency of a load that hits in L2 (clocks)."""
    memory_latency: float = 390.0
    """Additional latency of a load from device memory (nanoseconds)."""
    shared_latency: float = 30.0
    """Latency of a load from shared memory (clocks)."""
    mma_latency: float = 50.0
    """Latency of the tensor cores (clocks)."""
    chained_mma: float = 28.0
    """Time after which `wgmma` adds to a sum that an earlier one of the same kernel computes: they are pipelined (clocks)."""
    stage: float = 150.0
    """Time of a consumer for each stage of a ring: test of the mbarrier, first result of the MMAs, release (clocks)."""
    fma_latency: float = 4.0
    """Latency of a multiply-add (clocks)."""
    barrier: float = 12.0
    """Time of a block barrier, for the warp that arrives last (clocks)."""
    drain: float = 80.0
    """Time that an SM loses at each barrier of its only block, until all warps run again (clocks)."""
    extra_instructions: float = 1.1
    """Number of additional instructions per load or store: addresses, predicates, conversions."""
    order: float = 2.0
    """Order of the norm that combines the parts of an SM with one block. An infinite order would mean that they overlap perfectly."""
    growth: float = 0.15
    """Exponent by which that order grows with the number of blocks per SM. Blocks run while others wait."""
    ring_order: float = 4.2
    """Value of `order` and `alone_order` for a kernel with a ring, because producer, async proxy and consumers run concurrently."""
    alone_order: float = 2.6
    """Order of the norm that combines the time of a single warp and that of the SM."""
    tiles_order: float = 3.0
    """Order of the norm that combines device memory with all else in a kernel with a ring whose SMs compute several tiles each."""
    read_share: float = 0.85
    """Share of the data sheet's memory bandwidth that reads reach (a copy of 1 GiB on an H200: 4.2 of 4.8 TB/s)."""
    write_share: float = 0.70
    """Share of the data sheet's memory bandwidth that writes reach (a fill of 1 GiB on an H200: 3.4 of 4.8 TB/s)."""


CONSTANTS: Final = Constants()
