"""Temporaries in shared memory that all blocks of a row need: each block has its own copy (oracle: the definition in float64)."""

import random

import numpy as np
import pytest
from fused_examples import inputs

from fireiron import *
from fireiron.check import check, safety
from fireiron.sim import simulate

each = Move.tile(1, 1).to(Thread).done()
small = MatMul.tile(2, 2).to(Thread).split(1).tile(1, 1).done()

normalized = Fused(
    name="normalized",
    dims="m n k",
    operands={"A": "m k", "B": "k n", "D": "m n", "y": "m"},
    body={
        "exp": "p[m,k] = exp(A[m,k])",
        "sum": "r[m] = sum(k, p[m,k])",
        "product": "acc[m,n] = sum(k, p[m,k] * B[k,n])",
        "D": "D[m,n] = acc[m,n] / r[m]",
        "y": "y[m] = r[m]",
    },
)


@pytest.mark.parametrize("placed", ["p", "p r"])
def test_each_block_computes_its_shared_temporary(placed):
    """Only one block stores y, and all blocks need p."""
    chain = normalized.tile(m=16, n=16).to(Block)
    for name in placed.split():
        chain = chain.set_memory(name, SH)
    program = chain.step("product", small).step("exp", each).done()(normalized(m=33, n=40, k=24, dtype=float32)).program("sm_80")
    assert safety(program.lowered) == ()
    assert program.cuda.count("if (block_n == 0") == 1
    given = inputs(program.spec)
    outputs = simulate(program.ir, given, order=random.Random(1)).outputs
    for name, wanted in zip(("D", "y"), program.spec.reference(*given.values()), strict=True):
        np.testing.assert_allclose(outputs[name], wanted, rtol=1e-4, atol=1e-5)


doubled = Fused(name="doubled", dims="m n", operands={"row": "m", "Y": "m n"}, body={"s": "t[m] = row[m] * 2", "o": "Y[m,n] = t[m]"})
BLOCK = doubled.tile(m=16, n=32).to(Block)
BELOW = {
    "threads": BLOCK.tile(m=1, n=2).to(Thread),
    "warps": BLOCK.tile(m=4, n=16).to(Warp),
    "warpgroups": BLOCK.tile(m=8, n=16).to(Warpgroup),
    "lanes": BLOCK.tile(m=8, n=16).to(Warp).tile(m=2, n=2).to(Lane),
    "threads of warps": BLOCK.tile(m=8, n=16).to(Warpgroup).tile(m=4, n=16).to(Warp).tile(m=1, n=2).to(Thread),
    "in loops": BLOCK.tile(m=8, n=8).tile(m=1, n=4).to(Thread),
}


@pytest.mark.parametrize("chain", BELOW.values(), ids=BELOW)
def test_each_unit_writes_its_copy_of_a_temporary(chain):
    """`n` is not a dimension of t: units that differ along it have the same elements, and each has a copy."""
    program = chain.set_memory("t", SH).done()(doubled(m=35, n=64, dtype=float32)).program("sm_90a")
    assert not [finding for finding in check(program.lowered) if finding.severity == "error"]
    row = np.arange(1, 36, dtype=np.float32)
    computed = simulate(program.ir, {"row": row}, order=random.Random(3)).outputs["Y"]
    assert np.array_equal(computed, np.broadcast_to(2 * row[:, None], (35, 64)))


def test_a_thread_writes_its_copy_without_a_condition():
    text = BELOW["threads"].set_memory("t", SH).done()(doubled(m=16, n=32, dtype=float32)).cuda("sm_80")
    assert "\n  t[thread] = row[" in text and "if (" not in text


def test_units_that_share_a_copy_write_it_once():
    """One copy per warp: of its lanes, which share the copy, only those with the first `n` write."""
    chain = BLOCK.tile(m=8, n=16).to(Warp).set_memory("t", SH).tile(m=2, n=2).to(Lane)
    text = chain.done()(doubled(m=16, n=32, dtype=float32)).cuda("sm_80")
    assert "if (lane_n == 0)" in text and "warp_n == 0" not in text
