"""E6: the WMMA strategies relative to cuBLAS (Fireiron, section 5.2).

The paper: 61 % of cuBLAS on Volta, 68 % on Turing. On Hopper cuBLAS uses wgmma, which WMMA cannot reach.
"""

from fireiron import sweep
from fireiron.measure.timing import cublas

SIZES = (4096, 4096, 4096)


@sweep(["wmma_optimized", "wmma_simple"], [SIZES])
def test_e6(gpu_benchmark, case):
    gpu_benchmark(case, against={"cuBLAS": cublas})
