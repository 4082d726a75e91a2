"""E2: the same HGEMM_NT kernel, without tensor cores, relative to cuBLAS, which uses them (Fireiron, section 5.1).

The paper: 37 % of cuBLAS on Volta, 19 % on Turing. On a GPU with faster tensor cores the share is smaller.
"""

from fireiron import sweep
from fireiron.measure.timing import cublas


@sweep("hgemm_nt", [(1536, 1024, 2048)])
def test_e2(gpu_benchmark, case):
    gpu_benchmark(case, against={"cuBLAS": cublas})
