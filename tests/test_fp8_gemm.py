"""`fp8_gemm`: 8-bit floats with scales of blocks, at sizes that fill no tile, compared with float64."""

import ml_dtypes
import numpy as np
import pytest

from fireiron import *
from fireiron.strategies import fp8_gemm

CASES = [
    ("strategy", (70, 200, 384)),
    ("few", (70, 200, 384)),
    ("strategy", (3, 130, 128)),
    ("few", (3, 130, 128)),
    ("few_parts", (3, 130, 256)),
]


@pytest.mark.parametrize(("form", "sizes"), CASES, ids=str)
def test_against_float64(form, sizes):
    M, N, K = sizes
    generator = np.random.default_rng(sizes)
    a, b = (generator.standard_normal((rows, K // 128, 128)).astype(ml_dtypes.float8_e4m3fn) for rows in (M, N))
    of_a, of_b = (generator.random((rows, K // 128)).astype(np.float32) for rows in (M, -(-N // 128)))
    small = {"epi_n": 32, "bm": 128, "stages": 2, "bn": 256 if sizes[1] > 150 else 128} if form == "strategy" else {"stages": 4}
    c = getattr(fp8_gemm, form).with_(**small)(fp8_gemm.spec(*sizes)).compile("sm_90a")(a, of_a, b, of_b)
    want = np.einsum("mqk,mq,nqk,nq->mn", a.astype(float), of_a, b.astype(float), np.repeat(of_b, 128, axis=0)[:N], optimize=True)
    assert np.abs(c.astype(float) - want).max() < 5e-3 * np.abs(want).max()
