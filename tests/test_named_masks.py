"""Conditions with a name in a definition, and both kernels of the causal attention backward, which skip masked tiles (oracle: NumPy)."""

import random

import numpy as np
import pytest

from fireiron import *
from fireiron.check import safety
from fireiron.errors import ArgumentError, DecompositionError
from fireiron.language.store import dumps, loads, loads_spec
from fireiron.sim import simulate
from fireiron.specs.formula import condition
from fireiron.specs.steps import shown
from fireiron.tune.record import strategy_hash

OPERANDS = {"Q": "m d", "K": "n d", "V": "n d", "dO": "m d", "L": "m", "D": "m"}
LOG2_E = 1.4426950408889634

query_gradient = Fused(
    name="query_gradient", dims="m n d", loop="n", operands={**OPERANDS, "dQ": "m d"}, mask={"causal": "n <= m"},
    init={"zero": "acc[m,d] = 0"},
    body={
        "s": "s[m,n] = sum(d, Q[m,d] * K[n,d])",
        "p": f"p[m,n] = where(causal, exp2(s[m,n] * {LOG2_E} - L[m]), 0)",
        "dp": "dp[m,n] = sum(d, dO[m,d] * V[n,d])",
        "ds": "ds[m,n] = where(causal, p[m,n] * (dp[m,n] - D[m]), 0)",
        "dq": "acc[m,d] += sum(n, ds[m,n] * K[n,d])",
    },
    final={"dQ": "dQ[m,d] = acc[m,d]"},
)  # fmt: skip

key_gradient = Fused(
    name="key_gradient", dims="n m d", loop="m", operands={**OPERANDS, "dK": "n d", "dV": "n d"}, mask={"causal": "n <= m"},
    init={"zero_k": "k[n,d] = 0", "zero_v": "v[n,d] = 0"},
    body={
        "s": "s[n,m] = sum(d, K[n,d] * Q[m,d])",
        "p": f"p[n,m] = where(causal, exp2(s[n,m] * {LOG2_E} - L[m]), 0)",
        "round": "q[n,m] = p[n,m]",
        "dv": "v[n,d] += sum(m, q[n,m] * dO[m,d])",
        "dp": "dp[n,m] = sum(d, V[n,d] * dO[m,d])",
        "ds": "ds[n,m] = where(causal, p[n,m] * (dp[n,m] - D[m]), 0)",
        "dk": "k[n,d] += sum(m, ds[n,m] * Q[m,d])",
    },
    final={"dK": "dK[n,d] = k[n,d]", "dV": "dV[n,d] = v[n,d]"},
)  # fmt: skip

copy, fragments = Move.coalesced_copy(8).done(), Move.done()
tiles = MatMul.tile(16, 16).unroll().mma_tile().done()
from_shared = MatMul.split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(tiles)
from_registers = MatMul.split(16).unroll().load(B, RF, fragments).then(tiles)
BLOCK = 32


def backward(definition, skip=True):
    """The strategy of one of the kernels: probabilities and their gradients are fragments in registers."""
    own, across, stays, streams = ("m", "n", "Q dO", "K V") if definition is query_gradient else ("n", "m", "K V", "Q dO")
    steps = definition.tile(**{own: BLOCK}).to(Block)
    for name in stays.split():
        steps = steps.load(name, SH, copy).swizzle_storage()
    steps = steps.split(**{across: BLOCK}).pipeline(2)
    steps = steps.skip_masked_tiles() if skip else steps
    for name in streams.split():
        steps = steps.load(name, SH, copy).swizzle_storage()
    steps = steps.tile(**{own: 16}).to(Warp)
    names = {step.name for step in definition.fused_definition.steps}
    for step in sorted(names & {"s", "dp"}):
        steps = steps.step(step, from_shared)
    for step in sorted(names & {"dq", "dv", "dk"}):
        steps = steps.step(step, from_registers)
    return steps.done()


def spec(definition, m, n):
    types = {name: float32 for name in ("L", "D", "dQ", "dK", "dV") if name in definition.fused_definition.uses}
    return definition(m=m, n=n, d=32, types=types)


def gradients(Q, K, V, dO):
    """The inputs that the forward kernel leaves, and the gradients, in float64."""
    q, k, v, do = (array.astype(np.float64) for array in (Q, K, V, dO))
    scores = np.where(np.arange(len(k)) <= np.arange(len(q))[:, None], q @ k.T, -np.inf)
    norm = np.log(np.exp(scores).sum(1))
    p = np.exp(scores - norm[:, None])
    dp = do @ v.T
    total = (p * dp).sum(1)
    ds = p * (dp - total[:, None])
    return {"L": norm * LOG2_E, "D": total}, {"dQ": ds @ k, "dK": ds.T @ q, "dV": p.T @ do}


def arrays_of(m, n):
    rng = np.random.default_rng(3)
    inputs = {name: (rng.standard_normal((size, 32)) / 3).astype(np.float16) for name, size in (("Q", m), ("K", n), ("V", n), ("dO", m))}
    numbers, results = gradients(*inputs.values())
    return inputs | {name: value.astype(np.float32) for name, value in numbers.items()}, results


@pytest.mark.parametrize("size", [96, 80], ids=str)
@pytest.mark.parametrize("definition", [query_gradient, key_gradient], ids=lambda one: one.kind.title)
def test_causal_backward_skips_masked_tiles(definition, size):
    arrays, results = arrays_of(size, size)
    skipping, plain = (backward(definition, skip)(spec(definition, size, size)).program("sm_80") for skip in (True, False))
    assert safety(skipping.lowered) == ()
    given = {name: arrays[name] for name in OPERANDS}
    outputs, every = (simulate(program.ir, given, order=random.Random(2)).outputs for program in (skipping, plain))
    for name, computed in outputs.items():
        np.testing.assert_allclose(computed, results[name], rtol=2e-2, atol=4e-3)
        assert np.array_equal(computed, every[name])


@pytest.mark.parametrize(
    ("definition", "loop"),
    [(query_gradient, "for (int n = 0; n < block + 1; ++n) {"), (key_gradient, "for (int m = 0; m < 4 - m_hidden / 32; ++m) {")],
    ids=["queries", "keys"],
)
def test_half_of_the_tiles_run(definition, loop):
    """Block i of the queries sees the first i + 1 blocks of keys; block i of the keys is seen by all blocks of queries from i on."""
    text = backward(definition)(spec(definition, 128, 128)).cuda("sm_80")
    assert loop in text and "mma.sync" in text and "where(n <= m, exp2(" in text


# ---------------------------------------------------------------------------------------------- names


def masked(**changes):
    arguments = {
        "name": "masked", "dims": "m n", "operands": {"X": "m n", "k": "m", "Y": "m n"}, "mask": {"causal": "n <= m"},
        "body": {"x": "x[m,n] = where(causal, X[m,n], 0)", "y": "Y[m,n] = where(causal and n < size(n) - 1, x[m,n], k[m])"},
    }  # fmt: skip
    return Fused(**arguments | changes)


def test_a_named_mask_is_printed_and_stored():
    definition = masked()
    assert eval(repr(definition)) == definition and hash(eval(repr(definition))) == hash(definition)
    assert "mask={'causal': 'n <= m'}" in repr(definition) and "where(causal and n < size(n) - 1, x[m,n], k[m])" in repr(definition)
    assert "  mask causal: n <= m" in str(definition).splitlines()
    strategy = definition.tile(m=1, n=32).to(Block).tile(m=1, n=1).to(Thread).done()
    assert loads(dumps(strategy)) == strategy and '"mask"' in dumps(strategy)
    bound = definition(m=5, n=32)
    assert loads_spec(dumps(bound)) == bound and eval(repr(bound)) == bound


def test_a_mask_without_a_name_is_stored_as_before():
    definition = masked(mask={}, body={"y": "Y[m,n] = where(n <= m, X[m,n], k[m])"})
    strategy = definition.tile(m=1, n=32).to(Block).tile(m=1, n=1).to(Thread).done()
    assert "mask" not in dumps(strategy).replace('"masked"', "") and loads(dumps(strategy)) == strategy


def test_equal_conditions_have_one_meaning():
    """A name is printed wherever its condition occurs; a definition without the name is another value."""
    texts = {"x": "x[m,n] = where(n <= m, X[m,n], 0)", "y": "Y[m,n] = where((n <= m) and n < size(n) - 1, x[m,n], k[m])"}
    assert masked(body=texts) == masked() != masked(body=texts, mask={})
    assert strategy_hash(masked(body=texts).tile(m=1).to(Block).done()) == strategy_hash(masked().tile(m=1).to(Block).done())


def test_a_mask_may_use_an_earlier_one():
    body = {"y": "Y[m,n] = where(window or k[m] > 2, X[m,n], k[m])"}
    definition = masked(mask={"causal": "n <= m", "window": "causal and (m - 4 < n)"}, body=body)
    assert eval(repr(definition)) == definition
    assert "'window': 'causal and m - 4 < n'" in repr(definition)
    x, k = np.arange(80.0).reshape(8, 10), np.arange(8.0) - 3
    computed = definition(m=8, n=10, dtype=float64).reference(x, k)
    m, n = np.ogrid[:8, :10]
    assert np.array_equal(computed, np.where(((n <= m) & (m - 4 < n)) | (k > 2)[:, None], x, k[:, None]))


def test_a_mask_on_inputs():
    definition = masked(mask={"early": "n < k[m]"}, body={"y": "Y[m,n] = where(early, X[m,n], 0)"})
    computed = definition(m=3, n=4, dtype=float64).reference(np.ones((3, 4)), np.array([0.0, 2, 9]))
    assert computed.sum(1).tolist() == [0, 2, 4]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": {"causal": "n <="}}, "mask causal: formula: expected a value, got the end"),
        ({"mask": {"causal": "n <= m) or (n < 3"}}, "mask causal: formula: expected the end, got '\\)'"),
        ({"mask": {"causal": "n <= m", "x2": "n < 3"}}, "no formula uses the mask x2"),
        ({"mask": {"causal": "n <= m", "again": "(n <= m)"}}, "the masks causal and again are equal"),
        ({"mask": {"causal": "n <= m", "w": "causal + 1 < 2"}}, "mask w: causal is a mask, and not a number"),
        ({"mask": {"causal": "size(q) < n"}}, "mask causal: size\\(q\\) names no dimension"),
        ({"mask": {"causal": "x[m,n] < 3"}}, "mask causal reads x\\[m,n\\], which is not an input"),
        ({"mask": {"causal": "Y[m,n] < 3"}}, "mask causal reads Y\\[m,n\\], which is not an input"),
        ({"mask": {"causal": "n <= m", "n": "n < 3"}}, "n is a mask and a dimension"),
        ({"mask": {"causal": "n <= m", "X": "n < 3"}}, "X is a mask and an operand"),
        ({"mask": {"causal": "n <= m", "x": "n < 3"}}, "step y: x is a mask, and not a number"),
        ({"mask": {"max": "n <= m"}}, "mask names a condition 'max'"),
        ({"mask": {"causal": 3}}, "mask causal is a text"),
        ({"mask": 3}, "mask must be a mapping"),
        ({"mask": {}}, "causal is not an operand"),
        ({"body": {"y": "Y[m,n] = where(causal, causal * X[m,n], k[m])"}}, "step y: causal is a mask, and not a number"),
    ],
    ids=str,
)
def test_refused_masks(changes, message):
    with pytest.raises(ArgumentError, match=message):
        masked(**changes)


@pytest.mark.parametrize("text", ["n <= m", "(n <= m)", "causal", "n <= m and (m < 3 or causal)", "(n + 1) * 2 <= m", "((n < m))"])
def test_conditions_are_read_as_in_a_formula(text):
    from fireiron.specs.formula import formula_of

    assert condition(text) == formula_of(f"x[m] = where({text}, 1, 0)").value.arguments[0]


# ---------------------------------------------------------------------------------------------- scanned loops

of_groups = Fused(
    name="of_groups", dims="m n g", scan="g", operands={"X": "m n", "W": "g n", "begin": "g", "end": "g", "y": "m"},
    mask={"inside": "begin[g] <= m and m < end[g]"}, init={"zero": "total[m] = 0"},
    body={
        "x": "x[m,n] = where(inside, X[m,n], 0)", "w": "w[m,n] = where(inside and n < size(n) - 1, W[g,n], 0)",
        "t": "t[m,n] = x[m,n] * w[m,n]", "s": "s[m] = sum(n, t[m,n])", "add": "total[m] = total[m] + s[m]",
    },
    final={"y": "y[m] = total[m]"},
)  # fmt: skip


def test_a_tighter_mask_of_a_scanned_loop_fails_with_the_other_one():
    """Both factors are 0 in an iteration whose group has no row of the tile, so the kernel skips it."""
    strategy = of_groups.tile(m=8).to(Block).split(g=1).skip_masked_tiles().tile(m=1).to(Thread).done()
    bound = strategy(of_groups(m=40, n=6, g=4, dtype=float32, types={"begin": int32, "end": int32}))
    program = bound.program("sm_80")
    assert "begin_here" in program.cuda and safety(program.lowered) == ()
    rng = np.random.default_rng(5)
    arrays = {"X": rng.standard_normal((40, 6)), "W": rng.standard_normal((4, 6))}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    arrays |= {"begin": np.array([0, 5, 20, 20], np.int32), "end": np.array([5, 20, 20, 37], np.int32)}
    computed = simulate(program.ir, arrays, order=random.Random(4)).outputs["y"]
    np.testing.assert_allclose(computed, bound.spec.reference(*arrays.values()), rtol=1e-5, atol=1e-5)


def test_a_looser_mask_of_a_scanned_loop_is_refused():
    body = {step.name: shown(step.formula) for step in of_groups.fused_definition.steps if step.part == "body"}
    body["w"] = "w[m,n] = where(begin[g] <= m, W[g,n], 0)"
    definition = Fused(
        name="looser", dims="m n g", scan="g", operands={"X": "m n", "W": "g n", "begin": "g", "end": "g", "y": "m"},
        init={"zero": "total[m] = 0"}, body=body, final={"y": "y[m] = total[m]"},
    )  # fmt: skip
    with pytest.raises(DecompositionError, match="masks all elements changes total"):
        strategy = definition.tile(m=8).to(Block).split(g=1).skip_masked_tiles().tile(m=1).to(Thread).done()
        strategy(definition(m=40, n=6, g=4, dtype=float32, types={"begin": int32, "end": int32})).cuda("sm_80")
