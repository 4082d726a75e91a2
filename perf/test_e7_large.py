"""E7: large matrices relative to cuBLAS (Fireiron, section 5.3, Figure 6).

The paper: tiles searched for each size, on average 93.1 % of cuBLAS for 1024 <= M, N, K <= 4096, at least 88.3 %. The values of the
tunables are those of the tuned records (`strategies/records`), for sizes without a record those of the nearest one. On Hopper cuBLAS uses
wgmma; these strategies use mma.sync, whose peak is lower, so they are also compared with Triton on mma.sync for cubes.
"""

import itertools

import pytest
from contenders import triton
from tuned import tuned

from fireiron.measure.timing import cublas
from fireiron.strategies import hmma_ampere

SHAPES = list(itertools.product((1024, 2048, 4096), repeat=3))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_e7(gpu_benchmark, shape):
    gpu_benchmark(tuned(hmma_ampere.spec(*shape), shape), against={"cuBLAS": cublas})


@pytest.mark.parametrize("size", [2048, 4096])
def test_e7_mma_sync(gpu_benchmark, size):
    """The two configurations of Triton that were fastest in a sweep over its eight."""
    import peers

    rivals = {f"Triton, {config}": triton(config) for config in (peers.CONFIGS[2], peers.CONFIGS[0])}
    gpu_benchmark(tuned(hmma_ampere.spec(size, size, size), (size, size, size)), against=rivals)
