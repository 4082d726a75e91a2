"""Temporaries in shared memory that blocks of one row all need: each block has its own (oracle: the definition in float64)."""

import random

import numpy as np
import pytest
from fused_examples import inputs

from fireiron import *
from fireiron.check import safety
from fireiron.sim import simulate

each = Move.tile(1, 1).to(Thread).done()
small = MatMul.tile(2, 2).to(Thread).split(1).tile(1, 1).done()

normalized = Fused(
    name="normalized",
    dims="m n k",
    operands={"A": "m k", "B": "k n", "D": "m n", "y": "m"},
    each={
        "exp": "p[m,k] = exp(A[m,k])",
        "sum": "r[m] = sum(k, p[m,k])",
        "product": "acc[m,n] = sum(k, p[m,k] * B[k,n])",
        "D": "D[m,n] = acc[m,n] / r[m]",
        "y": "y[m] = r[m]",
    },
)


@pytest.mark.parametrize("placed", ["p", "p r"])
def test_each_block_of_a_row_computes_its_own(placed):
    """Only one block stores y, and all of them have p."""
    chain = normalized.tile(m=16, n=16).to(Block)
    for name in placed.split():
        chain = chain.place(name, SH)
    program = chain.step("product", small).step("exp", each).done()(normalized(m=33, n=40, k=24, dtype=float32)).program("sm_80")
    assert safety(program.lowered) == ()
    assert program.cuda.count("if (block_n == 0") == 1
    given = inputs(program.spec)
    made = simulate(program.ir, given, order=random.Random(1)).outputs
    for name, wanted in zip(("D", "y"), program.spec.reference(*given.values()), strict=True):
        np.testing.assert_allclose(made[name], wanted, rtol=1e-4, atol=1e-5)
