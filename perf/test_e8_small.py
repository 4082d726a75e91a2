"""E8: small matrices relative to cuBLAS (Fireiron, section 5.3, Figure 7).

The paper: up to more than twice as fast as cuBLAS for M, N, K <= 1024, with tiles of 16 x 16 and 64 along k, which it found by
an exhaustive search over powers of two. The values of the tunables are those of the tuned records, for sizes without a record
those of the nearest one.
"""

import itertools

import pytest
from tuned import tuned

from fireiron.measure.timing import cublas
from fireiron.strategies import small

CUBES = [(size, size, size) for size in (64, 128, 256, 512, 768, 1024)]
OTHERS = [shape for shape in itertools.product((64, 256, 1024), repeat=3) if shape not in CUBES]


@pytest.mark.parametrize("shape", CUBES + OTHERS, ids=lambda shape: "x".join(map(str, shape)))
def test_e8(gpu_benchmark, shape):
    gpu_benchmark(tuned(small.spec(*shape), shape), against={"cuBLAS": cublas})
