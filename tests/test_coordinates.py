"""Sums of coordinates in formulas, such as the slopes of ALiBi: one integer sum that is converted once, and a multiply-add."""

import random

import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.sim import simulate

ROWS, COLUMNS = 3, 100
M, N = np.arange(float(ROWS))[:, None], np.arange(float(COLUMNS))
SLOPE = np.float32(0.7)

FORMULAS = {
    "X[m,n] - slope * (m - n)": lambda x: x - SLOPE * (M - N),
    "(n - m) * slope + X[m,n]": lambda x: (N - M) * SLOPE + x,
    "X[m,n] + (slope + 1) * (2 + n - m - (n + 3 - m + n))": lambda x: x + (SLOPE + 1) * (-1 - N),
    "X[m,n] - (slope + m) * (m - n)": lambda x: x - (SLOPE + M) * (M - N),
    "X[m,n] * (m - n) + abs(n - m - 1)": lambda x: x * (M - N) + abs(N - M - 1),
    "where(m - n < 0.5, X[m,n], m + n)": lambda x: np.where(M - N < 0.5, x, M + N),
    "X[m,n] - slope * (m - n - 0.5)": lambda x: x - SLOPE * (M - N - 0.5),
}
DISTRIBUTED = (True, True, True, False, False, False, False)
"""In the last ones the factor is not uniform, no product is a term of a sum, or a number is not an integer."""


def program_of(n=COLUMNS):
    operands = {"X": "m n", "slope": "", **{f"Y{number}": "m n" for number in range(len(FORMULAS))}}
    steps = {f"t{number}": f"t{number}[m,n] = {formula}" for number, formula in enumerate(FORMULAS)}
    steps |= {f"y{number}": f"Y{number}[m,n] = t{number}[m,n]" for number in range(len(FORMULAS))}
    definition = Fused(name="slopes", dims="m n", operands=operands, body=steps)
    by_lanes = Move.tile(1, 64).to(Warp).tile(1, 2).to(Lane).done()
    return definition.tile(m=4, n=128).to(Block).load("X", RF, by_lanes).done()(definition(m=ROWS, n=n, dtype=float32)).program("sm_80")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_values(tmp_path):
    """In the simulator and in the printed text: as close to float64 as the rounding of each operation and of the preceding product allows.

    Sums of coordinates are below 2 * COLUMNS, and so are the first terms of unrolled loops; factors are below ROWS + 1.
    """
    program = program_of()
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    given = {"X": x, "slope": SLOPE}
    bound = 2.0**-24 * 4 * 2 * COLUMNS * (ROWS + 1 + abs(x))
    for outputs in (
        simulate(program.ir, given, order=random.Random(0)).outputs,
        HostProgram([Printed.of(program)], tmp_path).run(0, given),
    ):
        for number, (text, right) in enumerate(FORMULAS.items()):
            assert (abs(outputs[f"Y{number}"] - right(x.astype(float))) <= bound).all(), text


def test_one_conversion_and_one_multiply_add():
    """The first term of an unrolled loop is converted once for all iterations; the added terms are constants."""
    text = program_of().cuda.split(";")
    for number, (formula, is_fused) in enumerate(zip(FORMULAS, DISTRIBUTED, strict=True)):
        lines = [one for one in text if f"t{number}[t{number}_n] =" in one]
        assert lines and all(("fmaf(" in one) == is_fused for one in lines), formula
        assert not is_fused or all(one.count("static_cast<float>(") == 2 for one in lines), formula


def test_sums_that_are_not_exact_in_float_use_integers():
    """Integers from 2^24 on are not exact in a float: their sum is computed exactly, and converted once."""
    (line, *_) = (one for one in program_of(n=(1 << 24) + 64).cuda.split(";") if "t0[t0_n] =" in one)
    assert "fmaf(" not in line and line.count("static_cast<float>(") == 1
