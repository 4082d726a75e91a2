"""E1: the generated HGEMM_NT kernel relative to a handwritten one with the same plan (Fireiron, section 5.1, Figure 4).

The paper: 94.4 % of the hand-written kernel on Maxwell, 98 % on Volta, 99 % on Turing, at M=1536 N=1024 K=2048. Our hand-written
kernel is `handwritten/hgemm_nt.cu`.
"""

from contenders import handwritten

from fireiron import sweep

SIZES = (1536, 1024, 2048)


@sweep("hgemm_nt", [SIZES])
def test_e1(gpu_benchmark, case):
    gpu_benchmark(case, against={"written by hand": handwritten("hgemm_nt", SIZES)})
