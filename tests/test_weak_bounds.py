"""Bounds of elements that are too weak to detect a missing part of a sum: the norm of all elements, exact inputs, and the report."""

import numpy as np
import pytest

from fireiron import *
from fireiron.language.library import bind, find
from fireiron.measure.inputs import random_inputs
from fireiron.measure.judge import Judge
from fireiron.measure.simulated import data_for, integer_operands
from fireiron.spec import as_spec

pytest.importorskip("ml_dtypes")


def product(terms):
    """A product of 8-bit floats, its inputs, and the result without the first terms."""
    spec = MatMul(32, 32, terms, dtype=float8_e4m3, c_dtype=bfloat16, A=RowMajor, B=ColMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    arrays = random_inputs(spec, {}, np.random.default_rng(0))
    a, b = (arrays[name].astype(np.float64) for name in "AB")
    return spec, arrays, lambda missing: (a[:, missing:] @ b[missing:]).astype(bfloat16.to_numpy())


@pytest.mark.parametrize("terms", [256, 4096])
@pytest.mark.parametrize("missing", [0, 16, 32])
def test_a_missing_step_of_a_long_sum(terms, missing):
    """With 4096 terms no element exceeds its bound, but all elements together do."""
    spec, arrays, result = product(terms)
    judge = Judge(spec, {}, arrays, float32)
    wrong = judge.wrong("C", result(missing))
    assert (wrong is not None) == bool(missing)
    if terms == 4096 and missing:
        assert "the relative error of all 1024 elements" in wrong["message"]
    assert "relative error of all elements" in judge.summary("C") or terms == 256


def test_a_definition_of_8_bit_floats_has_exact_sums():
    """Its bounds are the later roundings only; normally distributed numbers have weak bounds, and the report states it."""
    program = bind(find("fp8_gemm"), {"M": 64, "N": 128, "K": 2048}).program("sm_90a")
    spec = program.spec
    assert integer_operands(spec) == ("A", "B")
    for normal in (False, True):
        arrays, judge = data_for(program, {}, 0, normal)
        a, b, sa, sb = (arrays[name].astype(np.float64) for name in ("A", "B", "SA", "SB"))
        products = np.einsum("mqk,nqk->mnq", a, b)
        right = np.einsum("mnq,mq,nq->mn", products, sa, sb[np.arange(128) // 128])
        wrong = judge.wrong("C", right.astype(bfloat16.to_numpy()))
        assert wrong is None and ("WEAK" in judge.summary("C")) <= normal
        less = np.einsum("mqk,nqk->mnq", a[:, :, 16:], b[:, :, 16:])
        products[:, :, -1] = less[:, :, -1]
        missing = np.einsum("mnq,mq,nq->mn", products, sa, sb[np.arange(128) // 128])
        assert (judge.wrong("C", missing.astype(bfloat16.to_numpy())) is not None) or normal


def test_the_report_of_an_element():
    spec = MatMul(32, 32, 16, dtype=float16, c_dtype=float16, order=RowMajor)(GL, GL, GL)(Kernel)
    arrays = random_inputs(spec, {}, np.random.default_rng(0))
    judge = Judge(spec, {}, arrays, float32)
    assert judge.wrong("C", (arrays["A"].astype(np.float32) @ arrays["B"].astype(np.float32)).astype(np.float16)) is None
    text = judge.summary("C")
    assert ", expected " in text and ": off by " in text and "% of its bound; relative error of all elements " in text
    third = Fused(name="third", dims="n", operands={"x": "n", "y": "n"}, body={"out": "y[n] = x[n] / 3"})
    spec = as_spec(third(n=100, dtype=float16))
    arrays = random_inputs(spec, {}, np.random.default_rng(0))
    judge = Judge(spec, {}, arrays)
    assert judge.wrong("y", (arrays["x"].astype(np.float64) / 3).astype(np.float16)) is None
    assert "(the rounding to float16 alone: " in judge.summary("y")
