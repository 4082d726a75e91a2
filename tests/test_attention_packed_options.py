"""Packed sequences that begin at a tile, whose numbers reach no other sequence, and formulas of scores (oracle: float64)."""

import itertools

import numpy as np
import pytest
from test_attention_packed_gradients import inputs

from fireiron.errors import ArgumentError
from fireiron.strategies import _isolated, attention_packed, attention_packed_backward
from fireiron.values.machine import as_architecture

OFFSETS = np.array([0, 20, 21, 21, 70, 80], np.int32)
"""Five sequences: one of one token, an empty one, and some that begin inside a tile; five further tokens belong to none."""

TOKENS, BAD = 85, slice(21, 70)

SCORES = {
    "30 * tanh(s / 30)": (lambda s, m, n: 30 * np.tanh(s / 30), lambda s: 1 - np.tanh(s / 30) ** 2),
    "2 * tanh(s / 2) - 0.1 * (m - n)": (lambda s, m, n: 2 * np.tanh(s / 2) - 0.1 * (m - n), lambda s: 1 - np.tanh(s / 2) ** 2),
}
"""The value of a score, and its derivative."""


def plain(s, m, n):
    return s


def oracle(q, k, v, do, score=plain, slope=np.ones_like):
    """Return the result and the gradients of causal attention of each sequence."""
    q, k, v, do = (array.astype(float) for array in (q, k, v, do))
    result, dq, dk, dv = (np.zeros(array.shape) for array in (q, q, k, v))
    scale, shared = q.shape[2] ** -0.5, q.shape[1] // k.shape[1]
    for begin, end in itertools.pairwise(OFFSETS):
        m, n = np.ogrid[: end - begin, : end - begin]
        for head in range(q.shape[1] if end > begin else 0):
            rows, place = (slice(begin, end), head), (slice(begin, end), head // shared)
            s = q[rows] @ k[place].T * scale
            p = np.where(n <= m, np.exp(score(s, m, n)), 0)
            p /= p.sum(1, keepdims=True)
            result[rows], dp = p @ v[place], do[rows] @ v[place].T
            ds = p * (dp - (p * dp).sum(1, keepdims=True)) * slope(s) * scale
            dq[rows] = ds @ k[place]
            dk[place] += ds.T @ q[rows]
            dv[place] += p.T @ do[rows]
    return result, dq, dk, dv


def is_near(got, want, limit=8e-4):
    return np.linalg.norm(got.astype(float) - want) < limit * np.linalg.norm(want)


def damaged(arrays):
    """Return copies with NaN and infinity in one sequence and past the last offset, and which tokens belong to the others."""
    arrays, others = [array.copy() for array in arrays], np.arange(TOKENS) < OFFSETS[-1]
    for array in arrays:
        array[BAD][::2], array[BAD][1::2], array[OFFSETS[-1] :] = np.nan, np.inf, np.nan
    others[BAD] = False
    return arrays, others


def test_places():
    """Each row is one of its token's sequence, and no tile has rows of two sequences."""
    places = _isolated.placed(OFFSETS, TOKENS, 16)
    known = np.arange(OFFSETS[-1])
    assert (places.tokens[places.rows[known]] == known).all() and places.is_token.sum() == OFFSETS[-1]
    assert (places.is_token[places.rows[known]]).all() and len(set(places.rows[known])) == OFFSETS[-1]
    sequence = places.sequences.reshape(-1, 16)
    assert (sequence == sequence[:, :1]).all()
    low, high = attention_packed.ranges(OFFSETS, TOKENS, causal=True)
    first, last = _isolated.moved(low, high, places, OFFSETS, places.starts)
    assert (last - first)[places.rows[known]].tolist() == (high - low)[known].tolist() and (first <= last).all()
    assert (first[places.is_token] // 16 * 16 >= places.starts[places.sequences[places.is_token]]).all()


def test_isolated(monkeypatch):
    """NaN and infinity stay in their sequence, and tokens of no sequence are zero."""
    monkeypatch.setattr(attention_packed, "TILE", 64)
    arrays = inputs(TOKENS, 1, 1, 32)
    (q, k, v, _), others = damaged(arrays)
    got = attention_packed.attend(q, k, v, OFFSETS, causal=True, architecture="sm_80", isolated=True)
    assert is_near(got[others], oracle(*arrays)[0][others]) and not np.isfinite(got[BAD]).any() and not got[OFFSETS[-1] :].any()


@pytest.mark.parametrize(("arch", "d", "isolated"), [
    ("sm_80", 8, True),
    pytest.param("sm_80", 16, False, marks=pytest.mark.nightly),
    pytest.param("sm_80", 40, False, marks=pytest.mark.nightly),
    pytest.param("sm_90a", 24, True, marks=pytest.mark.nightly),
])  # fmt: skip
def test_heads_that_are_padded(monkeypatch, arch, d, isolated):
    """The scale is that of the elements without padding."""
    monkeypatch.setattr(attention_packed, "TILE", 64)
    arrays = inputs(TOKENS, 1, 1, d)
    q, k, v, _ = arrays
    got, lse = attention_packed.attend(q, k, v, OFFSETS, causal=True, architecture=arch, lse=True, isolated=isolated)
    assert got.shape == q.shape and is_near(got, oracle(*arrays)[0]) and np.isfinite(lse[: OFFSETS[-1]]).all()


@pytest.mark.nightly
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a"])
def test_each_size_of_heads_has_a_kernel(arch):
    target = as_architecture(arch)
    sizes = {attention_packed._elements(d, target) for d in range(1, attention_packed.MOST_ELEMENTS + 1)}
    assert max(sizes) == attention_packed.MOST_ELEMENTS
    for elements in sizes:
        assert attention_packed.kernel(64, elements, 2, 1, architecture=arch).program.text


@pytest.mark.parametrize("d", [0, 257])
def test_refused_heads(d):
    q, k, v, _ = inputs(TOKENS, 1, 1, d)
    with pytest.raises(ArgumentError, match=f"got     '{d} elements'\n  legal   1 to 256"):
        attention_packed.attend(q, k, v, OFFSETS)


@pytest.mark.nightly
@pytest.mark.parametrize(("arch", "heads", "d"), [("sm_80", 2, 32), ("sm_90a", 1, 64)])
def test_isolated_gradients(arch, heads, d):
    """The result, its log-sum-exp and all gradients of other sequences, with two query heads of a key head."""
    arrays = inputs(TOKENS, heads, 1, d)
    (q, k, v, do), others = damaged(arrays)
    right = oracle(*arrays)
    got, lse = attention_packed.attend(q, k, v, OFFSETS, causal=True, architecture=arch, lse=True, isolated=True)
    assert is_near(got[others], right[0][others]) and np.isfinite(lse[others]).all() and np.isneginf(lse[OFFSETS[-1] :]).all()
    results = attention_packed_backward.gradients(do, q, k, v, got, lse, OFFSETS, causal=True, architecture=arch, isolated=True)
    for gradient, other in zip(results, right[1:], strict=True):
        assert is_near(gradient[others], other[others], 2e-3) and not np.isfinite(gradient[BAD]).any()
        assert not gradient[OFFSETS[-1] :].any()


@pytest.mark.nightly
@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("arch", "d"), [("sm_80", 32), ("sm_90a", 64)])
def test_scores(arch, d, score, isolated):
    arrays = inputs(TOKENS, 1, 1, d)
    q, k, v, do = (array * 3 for array in arrays)
    right, words = oracle(q, k, v, do, *SCORES[score]), {"causal": True, "architecture": arch, "score": score, "isolated": isolated}
    got, lse = attention_packed.attend(q, k, v, OFFSETS, lse=True, **words)
    assert is_near(got, right[0], 2e-3)
    for gradient, other in zip(attention_packed_backward.gradients(do, q, k, v, got, lse, OFFSETS, **words), right[1:], strict=True):
        assert is_near(gradient, other, 4e-3)


@pytest.mark.parametrize(("score", "options"), [
    ("s - 0.1 * (m - n)", {}),
    ("s - 0.1 * (m - n)", {"causal": True, "keys": OFFSETS}),
    ("s - 0.1 * m", {"causal": True}),
    ("where(n < 3, s, 0)", {"window": 4}),
    (30, {}),
])  # fmt: skip
def test_refused_scores(score, options):
    q, k, v, do = inputs(TOKENS, 1, 1, 32)
    with pytest.raises(ArgumentError, match="score"):
        attention_packed.attend(q, k, v, OFFSETS, score=score, **options)
    with pytest.raises(ArgumentError, match="score"):
        attention_packed_backward.gradients(do, q, k, v, q, np.zeros((TOKENS, 1), np.float32), OFFSETS, score=score, **options)
