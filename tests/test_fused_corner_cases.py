"""Corner cases of fused kernels: fully masked blocks, replicas, extents smaller than a tile, error messages."""

import numpy as np
import pytest
from fused_examples import copy, fragments
from near import Near

from fireiron import *
from fireiron.check import check
from fireiron.errors import ArgumentError, DecompositionError
from fireiron.strategies import attention
from fireiron.strategies import softmax as softmax_file

SINGLE = {"X": float32, "y": float32}


def rows(by="sum", **words):
    """Row reductions."""
    usual = {
        "name": "rows", "dims": "m n", "operands": {"X": "m n", "y": "m"},
        "body": {"part": f"t[m] = {by}(n, X[m,n])", "y": "y[m] = t[m]"},
    }  # fmt: skip
    return Fused(**usual | words)


def drawn(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def run(strategy, spec, *arrays):
    """The outputs of a kernel that passes all checks."""
    kernel = strategy(spec).compile("sm_80")
    assert not [one for one in check(kernel.program.ir) if one.severity == "error"]
    return kernel(*arrays)


def softmax(scores):
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


# ---------------------------------------------------------------------------------------------- attention


@pytest.mark.sampled(6)
@pytest.mark.parametrize("m, n", [(64, 65), (64, 129), (1, 33), (1, 1), (3, 2), (2, 3)])
def test_fully_masked_last_block_of_keys(m, n):
    definition = attention.definition(causal=True)
    strategy = attention.by_rows(definition).with_(bm=64, bn=32, wm=16, stages=2)
    q, k, v = drawn(1, m, 1, 1, 64), drawn(1, n, 1, 64), drawn(1, n, 1, 64)
    q, k, v = (one.astype(np.float16) for one in (q, k, v))
    scores = q[0, :, 0, 0].astype(float) @ k[0, :, 0].astype(float).T / 8
    wanted = softmax(np.where(np.arange(n) <= np.arange(m)[:, None], scores, -np.inf)) @ v[0, :, 0].astype(float)
    spec = attention.spec(m, n, 64, fused=definition)
    arrays = {"Q": q, "K": k, "V": v, "scale": np.float32(0.125)}
    Near(spec, arrays, {"O": wanted[None, :, None, None]}).require({"O": run(strategy, spec, q, k, v, 0.125)})


@pytest.mark.parametrize("m, n", [(65, 64), (70, 3)])
def test_window_past_the_last_key(m, n):
    definition = attention.definition(window=1)
    q, k, v = (drawn(*shape, dtype=np.float16) for shape in ((1, m, 1, 1, 64), (1, n, 1, 64), (1, n, 1, 64)))
    strategy = attention.by_rows(definition).with_(bm=64, bn=32, wm=16, stages=2)
    got = run(strategy, attention.spec(m, n, 64, fused=definition), q, k, v, 0.125)[0, :, 0, 0]
    np.testing.assert_array_equal(got, np.concatenate([v[0, :, 0], np.zeros((m - n, 64))]))


# ---------------------------------------------------------------------------------------------- ownership


@pytest.mark.parametrize("n", [1, 2, 3, 5])
@pytest.mark.parametrize("by", ["sum", "max"])
def test_rows_shorter_than_a_vector(by, n):
    definition = rows(by)
    strategy = definition.tile(m=1).to(Block).load("X", RF, Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()).done()
    x = drawn(3, n)
    np.testing.assert_allclose(run(strategy, definition(m=3, n=n, types=SINGLE), x), getattr(x, by)(1), rtol=1e-6)


def test_single_element_rows():
    """One lane per row owns the element, in every later step."""
    x = drawn(3, 1, dtype=np.float16)
    strategy = softmax_file.strategy.with_(**softmax_file.values(softmax_file.spec(3, 1)))
    np.testing.assert_array_equal(run(strategy, softmax_file.spec(3, 1), x), np.ones((3, 1)))


def test_first_replica_in_a_partly_used_warp():
    """Two rows of nine pieces in a warp: 18 lanes own elements, and the row digit is not a bit of the lane index."""
    definition = rows(
        body={"part": "p[m,n] = X[m,n] * w[n]", "sum": "t[m] = sum(n, p[m,n])", "y": "y[m] = t[m]"},
        operands={"X": "m n", "w": "n", "y": "m"},
    )
    strategy = definition.tile(m=4).to(Block).tile(m=2).to(Warp).load("X", RF, Move.tile(1, 4).to(Lane).done()).done()
    x, w = drawn(5, 33), drawn(33)
    np.testing.assert_allclose(run(strategy, definition(m=5, n=33, types=SINGLE | {"w": float32}), x, w), x @ w, rtol=1e-5)


def test_load_that_omits_replicas_is_refused():
    definition = rows(
        body={"part": "p[m,n] = X[m,n] * w[n]", "sum": "t[m] = sum(n, p[m,n])", "y": "y[m] = t[m]"},
        operands={"X": "m n", "w": "n", "y": "m"},
    )
    spec = definition(m=4, n=64, types=SINGLE | {"w": float32})
    chain = definition.tile(m=2).to(Block).load("X", RF, Move.tile(1, 64).to(Warp).tile(1, 2).to(Lane).done())
    x, w = drawn(4, 64), drawn(64)
    np.testing.assert_allclose(run(chain.load("w", RF, Move.done()).done(), spec, x, w), x @ w, rtol=1e-5)
    with pytest.raises(DecompositionError) as caught:
        _ = chain.load("w", RF, Move.tile(64).to(Warp).tile(2).to(Lane).done()).done()(spec).program("sm_80").ir
    assert "do      Move.done() as the strategy of the load of w_rf" in str(caught.value)


def test_accumulator_that_is_no_multiple_of_tiles():
    definition = Fused(
        name="top", dims="m n k", operands={"A": "m k", "B": "k n", "y": "m"},
        body={"mm": "acc[m,n] = sum(k, A[m,k] * B[k,n])", "top": "t[m] = max(n, acc[m,n])", "y": "y[m] = t[m]"},
    )  # fmt: skip

    def built(n, columns, last):
        loop = MatMul.split(16).load(A, SH, copy).load(B, SH, copy).tile(16, columns).to(Warp)
        return definition.tile(m=32).to(Block).step("mm", loop.load(A, RF, fragments).load(B, RF, fragments).then(last)).done(), definition(
            m=32, n=n, k=32
        )

    strategy, spec = built(40, 16, MatMul.tile(16, 16).unroll().mma_tile().done())
    with pytest.raises(DecompositionError, match="accesses all elements of C") as caught:
        _ = strategy(spec).program("sm_80").ir
    assert "legal   tiles of 8 or 40 along n" in str(caught.value)
    a, b = drawn(32, 32, dtype=np.float16), drawn(32, 40, dtype=np.float16)
    got = run(*built(40, 8, MatMul.tile(16, 8).done()), a, b)
    np.testing.assert_allclose(got, (a.astype(float) @ b.astype(float)).max(1), rtol=2e-3)
    strategy, spec = built(20, 16, MatMul.tile(16, 8).done())
    with pytest.raises(DecompositionError, match="accesses all elements of C") as caught:
        _ = strategy(spec).program("sm_80").ir
    assert "do      registers contain complete tiles: pad the operands along n" in str(caught.value)


# ---------------------------------------------------------------------------------------------- chains


def test_tile_spans_a_reduced_dimension():
    definition, spread = rows(), Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()
    x = drawn(4, 64)
    for sizes in ({"m": 1, "n": 64}, {"m": 1, "n": 100}, {"n": 64}):
        strategy = definition.tile(**sizes).to(Block).load("X", RF, spread).done()
        np.testing.assert_allclose(run(strategy, definition(m=4, n=64, types=SINGLE), x), x.sum(1), rtol=1e-5)
    for n, legal in ((64, "legal   tile(n=64), the whole dimension"), (sym("n"), "n is a reduction dimension")):
        with pytest.raises(DecompositionError) as caught:
            _ = definition.tile(m=1, n=32).to(Block).done()(definition(m=4, n=n)).program("sm_80").ir
        assert legal in str(caught.value)


@pytest.mark.parametrize(
    "refinements, parts",
    [
        (lambda: rows().to(Block), ("to refines a step", "legal   tile(...).to(...)", "do      rows.tile(...).to(...)")),
        (lambda: rows()(m=4, n=4).swizzle_storage(), ("swizzle_storage refines a step", "legal   load(...).swizzle_storage(...)")),
        (lambda: MatMul.split(4).to(Block), ("to does not refine split", "got     'split(4)'")),
        (
            lambda: rows().tile(m=1).to(Block).done().skip_masked_tiles(),
            ("skip_masked_tiles does not refine done", "do      split(...) first"),
        ),
    ],
)
def test_refinements_without_a_target_are_refused(refinements, parts):
    with pytest.raises(DecompositionError) as caught:
        refinements()
    assert all(part in str(caught.value) for part in parts) and "test_fused_corner_cases.py:" in str(caught.value)
    with pytest.raises(AttributeError, match="no attribute 'program'"):
        _ = rows().program
    assert not hasattr(rows(), "to") and hasattr(rows().tile(m=1), "to")


# ---------------------------------------------------------------------------------------------- positive numbers


def test_definition_declares_positive_numbers():
    definition = attention.definition()
    assert eval(repr(definition)) == definition and "scale > 0" in str(definition) and "positive='scale'" in repr(definition)
    strategy = attention.by_rows(definition).with_(bm=64, bn=32, wm=16, stages=1)
    assert Strategy.from_json(strategy.to_json()) == strategy
    kernel = strategy(attention.spec(16, 16, 64)).compile("sm_80")
    q, k, v = (drawn(*shape, dtype=np.float16) for shape in ((1, 16, 1, 1, 64), (1, 16, 1, 64), (1, 16, 1, 64)))
    for scale in (-0.125, 0, float("inf"), float("nan")):
        with pytest.raises(ArgumentError, match="scale: the definition requires a positive number"):
            kernel(q, k, v, scale)
    with pytest.raises(ArgumentError, match="positive must be a text with names of different operands without dimensions"):
        rows(positive="X")
    words = {"name": "f", "dims": "i", "operands": {"x": "i", "a": "", "y": "i"}, "body": {"y": "y[i] = log(a) * x[i]"}}
    assert Fused(**words) != Fused(**words, positive="a") and "positive" not in Fused(**words).tile(i=1).to_json()
