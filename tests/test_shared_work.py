"""Steps without the dimension of a tile of units: all units compute a part of a temporary in shared memory."""

import random

import numpy as np
import pytest

from fireiron import *
from fireiron.check import check
from fireiron.inspect.explain import explain
from fireiron.sim import simulate

copy, parts = Move.coalesced_copy(8).done(), Move.done()
mma = MatMul.tile(16, 16).unroll().mma_tile().done()
scores = MatMul.split(16).unroll().load(A, RF, parts).load(B, RF, parts).then(mma)
values = MatMul.split(16).unroll().load(B, RF, parts).then(mma)

rotated = Fused(
    name="rotated", dims="m n d", loop="n", operands={"Q": "m d", "K": "n d", "V": "n d", "f": "d", "O": "m d"}, types={"f": float32},
    init={"zero": "acc[m,d] = 0"},
    body={
        "k": "k[n,d] = K[n,d] * cos(n * f[d])", "s": "s[m,n] = sum(d, Q[m,d] * k[n,d])", "p": "p[m,n] = relu(s[m,n])",
        "pv": "acc[m,d] += sum(n, p[m,n] * V[n,d])",
    },
    final={"o": "O[m,d] = acc[m,d]"},
)  # fmt: skip


def rows_of_warps(tile, **strategies):
    chain = rotated.tile(m=tile).to(Block).load("Q", SH, copy).swizzle_storage().split(n=32).load("V", SH, copy).swizzle_storage()
    chain = chain.set_memory("k", SH).swizzle_storage().tile(m=16).to(Warp)
    for name, strategy in {"s": scores, "pv": values, **strategies}.items():
        chain = chain.step(name, strategy)
    return chain.done()


@pytest.mark.parametrize(("tile", "units"), [(16, 1), (32, 2), (48, 2), (64, 4), (96, 4)])
def test_each_warp_computes_a_part(tile, units):
    bound = rows_of_warps(tile)(rotated(m=50, n=70, d=32))
    program = bound.program("sm_80")
    assert (f"each of {units} units computes a part of k" in program.cuda) == (units > 1)
    assert [finding for finding in check(program.ir) if finding.severity == "error"] == []
    rng = np.random.default_rng(tile)
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((50, 32), (70, 32), (70, 32)))
    f = rng.standard_normal(32).astype(np.float32)
    result = simulate(program.ir, {"Q": q, "K": k, "V": v, "f": f}, order=random.Random(tile)).outputs["O"]
    keys = k * np.cos(np.arange(70)[:, None] * f.astype(float))
    np.testing.assert_allclose(result, np.maximum(q.astype(float) @ keys.T, 0) @ v, rtol=2e-2, atol=0.3)


def test_warpgroups_share_an_operand_of_wgmma():
    """The parts follow the storage that wgmma chooses."""
    weights = Fused(
        name="weights", dims="m n k", loop="k", operands={"A": "m k", "W": "n k", "scale": "n", "C": "m n"},
        init={"zero": "acc[m,n] = 0"}, final={"store": "C[m,n] = acc[m,n]"}, types={"W": int8},
        body={"w": "w[n,k] = W[n,k] * scale[n]", "mm": "acc[m,n] += sum(k, A[m,k] * w[n,k])"},
    )  # fmt: skip
    chain = weights.tile(m=128, n=64).to(Block).split(k=64).load("A", SH, copy).swizzle_storage().set_memory("w", SH)
    bound = chain.tile(m=64).to(Warpgroup).step("mm", MatMul.split(16).unroll().done()).done()(weights(m=128, n=64, k=128))
    program = bound.program("sm_90a")
    assert "each of 2 units computes a part of w" in program.cuda and "wgmma" in program.cuda
    assert [finding for finding in check(program.ir) if finding.severity == "error"] == []
    rng = np.random.default_rng(0)
    given = {"A": rng.standard_normal((128, 128)).astype(np.float16), "W": rng.integers(-8, 8, (64, 128)).astype(np.int8)}
    given["scale"] = rng.standard_normal(64).astype(np.float16)
    result = simulate(program.ir, given).outputs["C"]
    right = given["A"].astype(float) @ (given["W"] * given["scale"].astype(float)[:, None]).T
    np.testing.assert_allclose(result, right, rtol=2e-2, atol=1)


table = Fused(
    name="table", dims="m n", loop="n", operands={"X": "m n", "f": "n", "Y": "m n"},
    body={"t": "t[n] = exp(f[n])", "u": "u[n] = t[n] + 1", "y": "Y[m,n] = X[m,n] * u[n]"},
)  # fmt: skip


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("columns", [16, 24])
def test_threads_share_a_table(rows, columns):
    """A thread has a part of each temporary. `u` reads the parts of other threads."""
    chain = table.tile(m=16).to(Block).split(n=columns).set_memory("t", SH).set_memory("u", SH).tile(m=rows).to(Thread)
    program = chain.done()(table(m=37, n=50, dtype=float32)).program("sm_80")
    assert "units computes a part of t" in program.cuda and "units computes a part of u" in program.cuda
    assert [finding for finding in check(program.ir) if finding.severity == "error"] == []
    rng = np.random.default_rng(0)
    x, f = (rng.standard_normal(shape).astype(np.float32) for shape in ((37, 50), (50,)))
    result = simulate(program.ir, {"X": x, "f": f}, order=random.Random(1)).outputs["Y"]
    np.testing.assert_allclose(result, x * (np.exp(f) + 1), rtol=1e-5)


def test_explain_names_a_step_of_one_unit():
    """With a strategy, a step is not divided: `explain` and the printed kernel report it."""
    bound = rows_of_warps(64, k=Pointwise.tile(1, 1).to(Lane).done())(rotated(m=50, n=70, d=32))
    assert "only the first of 4 units computes k" in " ".join(bound.cuda("sm_80").split())
    (note,) = {leaf.note for leaf in explain(bound, "sm_80").leaves} - {""}
    assert note.startswith("only the first of 4 units computes k. For all: tile in the strategies of steps")
