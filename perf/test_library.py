"""Every library strategy on its own problem relative to cuBLAS, which uses tensor cores where the types allow; float32 without TF32."""

import pytest

from fireiron.language import library
from fireiron.measure.timing import cublas


@pytest.mark.parametrize("name", library.names())
def test_library(gpu_benchmark, name):
    entry = library.find(name)
    strategy = library.bind(entry)
    gpu_benchmark(strategy, against={"cuBLAS": cublas})


@pytest.mark.parametrize("values", [{"bk": 16}, {"bk": 8}], ids=str)
@pytest.mark.parametrize("name", ["gemm_nn", "gemm_nt", "gemm_tn", "gemm_tt", "sgemm"])
def test_fp32(gpu_benchmark, name, values):
    """The float32 GEMMs at 4096 x 4096 x 4096."""
    strategy = library.bind(library.find(name), {"M": 4096, "N": 4096, "K": 4096}, values=values)
    gpu_benchmark(strategy, against={"cuBLAS": cublas})
