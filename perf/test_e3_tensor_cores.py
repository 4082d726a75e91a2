"""E3: tensor cores instead of multiply-adds, for the problem of E1 (Fireiron, section 5.1).

The paper: up to five times as fast as the kernel of E1; the peak of the tensor cores is eight times that of multiply-adds.
"""

from tuned import tuned

from fireiron import ColMajor, RowMajor, float16
from fireiron.strategies import hgemm_nt, hmma_ampere

SIZES = (1536, 1024, 2048)
STORAGE = {"dtype": float16, "c_dtype": float16, "A": ColMajor, "B": RowMajor, "C": ColMajor}


def test_e3(gpu_benchmark):
    fma = hgemm_nt.strategy(hgemm_nt.spec(*SIZES)).compile()
    gpu_benchmark(tuned(hmma_ampere.spec(*SIZES, **STORAGE), SIZES), against={"HFMA2, the kernel of E1": fma})
