"""Gradients of attention of packed sequences in the simulator (oracle: float64, whose gradients are compared with differences)."""

import itertools

import numpy as np
import pytest

from fireiron import *
from fireiron.errors import ArgumentError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.strategies import attention_packed, attention_packed_backward

OFFSETS = np.array([0, 20, 21, 21, 90, 128, 140], np.int32)
"""Six sequences: one of one token, an empty one, some that begin and end inside a tile, and a tile that is not full."""


def inputs(tokens, heads, groups, d, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.standard_normal((tokens, count, d)).astype(np.float16) for count in (heads, groups, groups, heads)]


def forward(q, k, v, offsets, causal=False, window=None):
    """The result and the log-sum-exp of each sequence in float64, and the gradients for `do` and `dlse` by a function of both."""
    result, logs, parts = np.zeros(q.shape), np.full(q.shape[:2], -np.inf), []
    scale, shared = q.shape[2] ** -0.5, q.shape[1] // k.shape[1]
    for begin, end in itertools.pairwise(offsets):
        m, n = np.ogrid[: end - begin, : end - begin]
        seen = ((n <= m) | (not causal and window is None)) & (m < n + (window or end))
        for head in range(q.shape[1] if end > begin else 0):
            rows, place = (slice(begin, end), head), (slice(begin, end), head // shared)
            s = np.where(seen, q[rows] @ k[place].T * scale, -np.inf)
            weights = np.exp(s - s.max(1, keepdims=True))
            total = weights.sum(1, keepdims=True)
            result[rows], logs[rows] = weights / total @ v[place], (s.max(1, keepdims=True) + np.log(total))[:, 0]
            parts.append((rows, place, weights / total))
    return result, logs, parts


def by_numpy(q, k, v, do, dlse, offsets, **options):
    """The gradients in float64."""
    q, k, v, do = (array.astype(float) for array in (q, k, v, do))
    dq, dk, dv = (np.zeros(array.shape) for array in (q, k, v))
    for rows, place, p in forward(q, k, v, offsets, **options)[2]:
        dp = do[rows] @ v[place].T
        ds = p * (dp - (p * dp).sum(1, keepdims=True) + dlse[rows][:, None]) * q.shape[2] ** -0.5
        dq[rows] = ds @ k[place]
        dk[place] += ds.T @ q[rows]
        dv[place] += p.T @ do[rows]
    return dq, dk, dv


def test_the_oracle_equals_differences():
    q, k, v, do = (array.astype(float) for array in inputs(20, 2, 1, 8))
    generator, offsets = np.random.default_rng(1), np.array([0, 7, 20])
    dlse = generator.standard_normal((20, 2))

    def value(*arrays):
        result, logs, _ = forward(*arrays, offsets, causal=True, window=5)
        return (result * do).sum() + (logs * dlse).sum()

    directions, step = [generator.standard_normal(array.shape) for array in (q, k, v)], 1e-6
    above, below = (value(*(x + sign * step * way for x, way in zip((q, k, v), directions, strict=True))) for sign in (1, -1))
    gradients = by_numpy(q, k, v, do, dlse, offsets, causal=True, window=5)
    slope = sum((gradient * way).sum() for gradient, way in zip(gradients, directions, strict=True))
    assert np.isclose(slope, (above - below) / (2 * step), rtol=1e-6)


CASES = {
    "sm_80": ("sm_80", 1, 1, 32, {"causal": True}),
    "shared keys, window": ("sm_90a", 2, 1, 64, {"window": 30}),
    "sequences": ("sm_90a", 1, 1, 64, {}),
    "128": ("sm_90a", 1, 1, 128, {"causal": True}),
    "256": ("sm_90a", 1, 1, 256, {"causal": True}),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_float64(name):
    """The gradients of the result and of the log-sum-exp; tiles of keys and queries are partial."""
    arch, heads, groups, d, options = CASES[name]
    q, k, v, do = inputs(140, heads, groups, d)
    dlse = np.random.default_rng(2).standard_normal((140, heads)).astype(np.float32)
    right, logs, _ = forward(*(array.astype(float) for array in (q, k, v)), OFFSETS, **options)
    result, lse = attention_packed.attend(q, k, v, OFFSETS, architecture=arch, lse=True, **options)
    assert np.linalg.norm(result - right) < 8e-4 * np.linalg.norm(right) and np.allclose(lse, logs, atol=2e-3)
    given = do, q, k, v, result, lse, OFFSETS
    got = attention_packed_backward.gradients(*given, architecture=arch, lse_grad=dlse, **options)
    for gradient, other in zip(got, by_numpy(q, k, v, do, dlse, OFFSETS, **options), strict=True):
        assert gradient.shape == other.shape
        assert np.linalg.norm(gradient.astype(float) - other) <= 2e-3 * np.linalg.norm(other)


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 9}])
def test_ranges_of_queries_are_those_of_keys(options):
    """A query is in the range of a key if and only if the key is in the range of the query; keys have other offsets than queries."""
    keys = np.array([0, 5, 25, 26, 30, 70, 90], np.int32)
    low, high = attention_packed.ranges(OFFSETS, 140, keys, **options)
    first, last = attention_packed_backward.query_ranges(OFFSETS, 128, keys, **options)
    m, n = np.ogrid[:140, :128]
    assert (((low[:, None] <= n) & (n < high[:, None])) == ((first <= m) & (m < last))).all()
    assert (first <= last).all() and (last <= 140).all()


@pytest.mark.parametrize(("change", "words"), [
    ({"o": np.zeros((3, 1, 32), np.float16)}, "the shape of o does not match"),
    ({"lse": np.zeros((1, 140), np.float32)}, "the shape of lse does not match"),
    ({"deterministic": True}, "no kernel adds gradients of packed sequences in a fixed order"),
])  # fmt: skip
def test_refusals(change, words):
    q, k, v, do = inputs(140, 1, 1, 32)
    given = {"grad": do, "q": q, "k": k, "v": v, "o": q, "lse": np.zeros((140, 1), np.float32), "offsets": OFFSETS} | change
    with pytest.raises(ArgumentError, match=words):
        attention_packed_backward.gradients(**given)
    large = np.zeros((4, 1, 264), np.float16)
    with pytest.raises(ArgumentError, match="heads"):
        attention_packed_backward.gradients(large, large, large, large, large, np.zeros((4, 1), np.float32), OFFSETS)


SPILLED = {(64, 1): 100, (128, 1): 192, (128, 2): 192, (256, 1): 16}
"""Bytes by elements of a head and query heads of a group: separate loops for masked tiles spill some, and are faster."""


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("shared", [1, 2])
@pytest.mark.parametrize("d", attention_packed_backward.HEADS)
def test_kernels_compile(d, shared):
    """MMAs are not serialized, and at most `SPILLED` bytes are spilled."""
    strategy = attention_packed_backward.chosen(d, True, shared > 1)
    spec = attention_packed_backward.spec(sym("M", multiple_of=128), 128, d, sym("T"), 2, shared, strategy.start)
    (resources,) = compile_cuda(strategy(spec).cuda("sm_90a"), "sm_90a").resources.values()
    assert resources.spill_stores <= SPILLED.get((d, shared), 0)
