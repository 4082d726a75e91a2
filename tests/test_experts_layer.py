"""`fireiron.experts` and its gradients: routing, empty experts, ragged tiles, errors, in the simulator."""

import numpy as np
import pytest

import fireiron
from fireiron.errors import ArgumentError
from fireiron.experts_kernels import answer_to
from fireiron.experts_routing import chosen_experts, most_tiles, tables_of
from fireiron.front.call import Request

rng = np.random.default_rng(20261130)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def layer(tokens, experts, width, hidden, top_k, chosen=None):
    """Random arrays of a layer. `chosen` are the experts that tokens may choose."""
    x, gate_up, down = (
        (rng.standard_normal(shape) * scale).astype(np.float16)
        for shape, scale in (((tokens, width), 1), ((experts, 2 * hidden, width), 0.2), ((experts, width, hidden), 0.2))
    )
    scores = rng.standard_normal((tokens, experts)).astype(np.float32)
    if chosen is not None:
        scores[:, [one for one in range(experts) if one not in chosen]] -= 100
    return x, scores, gate_up, down


def by_numpy(x, weights, index, gate_up, down, grad=None):
    """The result in float64, and, for a gradient of the result, those of x, weights, gate_up and down."""
    x, gate_up, down = (array.astype(float) for array in (x, gate_up, down))
    hidden, y = down.shape[2], np.zeros(x.shape)
    grads = [np.zeros(array.shape) for array in (x, weights, gate_up, down)]
    for token, choice in np.ndindex(index.shape):
        expert, weight = index[token, choice], weights[token, choice]
        both = gate_up[expert] @ x[token]
        gate, up = both[:hidden], both[hidden:]
        h = gate * sigmoid(gate) * up
        result = down[expert] @ h
        y[token] += weight * result
        if grad is None:
            continue
        grads[1][token, choice] = result @ grad[token]
        grads[3][expert] += np.outer(weight * grad[token], h)
        of_h = down[expert].T @ (weight * grad[token])
        slope = sigmoid(gate) * (1 + gate * (1 - sigmoid(gate)))
        of_both = np.concatenate([of_h * up * slope, of_h * gate * sigmoid(gate)])
        grads[2][expert] += np.outer(of_both, x[token])
        grads[0][token] += gate_up[expert].T @ of_both
    return y, grads


def require_near(got, want, bound=5e-3):
    assert got.shape == want.shape and np.isfinite(got.astype(float)).all()
    assert np.abs(got - want).max() <= bound * max(np.abs(want).max(), 1e-3)


CASES = {
    "few tokens": ((5, 4, 64, 72, 2), None),
    "an empty expert": ((40, 3, 136, 64, 1), (0, 2)),
    "one expert": ((33, 3, 64, 40, 1), (1,)),
    "all experts": ((3, 8, 40, 64, 8), None),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("arch", ["sm_90a", pytest.param("sm_80", marks=pytest.mark.sampled(2))])
def test_right(name, arch):
    sizes, chosen = CASES[name]
    x, scores, gate_up, down = layer(*sizes, chosen)
    got = fireiron.experts(x, scores, gate_up, down, top_k=sizes[4], arch=arch)
    weights, index = chosen_experts(scores, sizes[4], True)
    require_near(got, by_numpy(x, weights, index, gate_up, down)[0])
    again = fireiron.experts(x, (weights, index), gate_up, down, arch=arch)
    assert np.array_equal(got, again)


def test_tiles_of_128_rows_apply_the_activation():
    """With wgmma, the first product applies the activation for tiles of many rows, too."""
    x, scores, gate_up, down = layer(70, 1, 72, 40, 1)
    weights, index = chosen_experts(scores, 1, True)
    require_near(fireiron.experts(x, scores, gate_up, down, top_k=1, arch="sm_90a"), by_numpy(x, weights, index, gate_up, down)[0])
    choices = [fireiron.experts.choice(x, scores, gate_up, down, top_k=1, arch=arch).why for arch in ("sm_90a", "sm_80")]
    assert "gated: gated bm=128" in choices[0] and "up: ampere bm=128" in choices[1]


@pytest.mark.parametrize(
    ("arch", "width"),
    [("sm_90a", 136), pytest.param("sm_90a", 64, marks=pytest.mark.nightly), pytest.param("sm_80", 64, marks=pytest.mark.nightly)],
)
def test_gradients(arch, width):
    x, scores, gate_up, down = layer(40, 3, width, 72, 2, (0, 2))
    weights, index = chosen_experts(scores, 2, True)
    grad = rng.standard_normal(x.shape).astype(np.float16)
    want, grads = by_numpy(x, weights, index, gate_up, down, grad.astype(float))
    bound = answer_to(Request((x, weights, index, gate_up, down), None, None, arch), differentiated=True)
    inputs = bound.prepared((x, weights, index, gate_up, down))
    got, saved = bound.layer.forward(inputs, True)
    require_near(got, want)
    results = bound.layer.backward(grad, inputs[1], gate_up, down, saved)
    for result, right in zip(results, grads, strict=True):
        require_near(result, right)
    assert not results[3][1].any()  # no token chooses expert 1


def test_not_finite_tokens():
    """A token that is not finite changes no other token, also in a tile that both share."""
    x, scores, gate_up, down = layer(6, 2, 64, 64, 1, (1,))
    right = fireiron.experts(x, scores, gate_up, down, top_k=1, arch="sm_90a")
    x[2], x[4] = np.nan, np.inf
    with np.errstate(all="ignore"):
        got = fireiron.experts(x, scores, gate_up, down, top_k=1, arch="sm_90a")
    kept = [0, 1, 3, 5]
    assert np.array_equal(got[kept], right[kept]) and np.isnan(got[2]).all()


def test_storage():
    """Leading dimensions, other strides, and a given result."""
    x, scores, gate_up, down = layer(6, 3, 64, 64, 2)
    right = fireiron.experts(x, scores, gate_up, down, top_k=2, arch="sm_90a")
    shaped = x.reshape(2, 3, 64), scores.reshape(2, 3, 3)
    assert np.array_equal(fireiron.experts(*shaped, gate_up, down, top_k=2, arch="sm_90a"), right.reshape(2, 3, 64))
    strided = np.asfortranarray(x), scores, np.asfortranarray(gate_up), np.asfortranarray(down)
    for out in (np.empty_like(x), np.asfortranarray(np.empty_like(x))):
        assert fireiron.experts(*strided, top_k=2, out=out, arch="sm_90a") is out
        assert np.array_equal(out, right)
    assert "tiles of 16 rows" in fireiron.experts.choice(x, scores, gate_up, down, top_k=2, arch="sm_90a").why
    assert "tma_load_3d" in fireiron.experts.kernel(x, scores, gate_up, down, top_k=2, arch="sm_90a").program.cuda
    assert fireiron.experts(x[:0], scores[:0], gate_up, down, top_k=2).shape == (0, 64)


@pytest.mark.parametrize("rows", [16, 64])
def test_tables(rows):
    """Each choice has one row, in a tile of its expert; rows of an expert are in the order of tokens."""
    index = rng.integers(0, 5, (50, 3))
    index[index == 2] = 4
    tables = tables_of(index, 5, rows)
    assert len(tables.expert) == most_tiles(150, 5, rows) and tables.filled.sum() == 150
    assert sorted(tables.places.reshape(-1)) == sorted(set(tables.places.reshape(-1)))
    for token, choice in np.ndindex(index.shape):
        tile, row = divmod(int(tables.places[token, choice]), rows)
        assert tables.expert[tile] == index[token, choice] and row < tables.filled[tile]
        assert tables.rows[tile, row] == token and tables.choices[tile, row] == 3 * token + choice
    assert np.array_equal(tables.steps > 0, tables.filled > 0)
    if rows == 64:
        assert np.array_equal(tables.last - tables.first, -(-np.bincount(index.reshape(-1), minlength=5) // 64))


def test_weights():
    scores = rng.standard_normal((4, 6)).astype(np.float32)
    shares = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    for normalize in (True, False):
        weights, index = chosen_experts(scores, 3, normalize)
        want = np.take_along_axis(shares, index, 1)
        assert np.array_equal(np.sort(want), np.sort(np.sort(shares)[:, -3:]))
        np.testing.assert_allclose(weights, want / want.sum(1, keepdims=True) if normalize else want, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, s, g, d: fireiron.experts(x, s, g, d), "scores need the number of experts"),
        (lambda x, s, g, d: fireiron.experts(x, s, g, d, top_k=4), "top_k must be a number of experts"),
        (lambda x, s, g, d: fireiron.experts(x, s, g, d, top_k=True), "top_k must be a number of experts"),
        (lambda x, s, g, d: fireiron.experts(x, (s, s), g, d, top_k=1), "not a pair of weights and numbers"),
        (lambda x, s, g, d: fireiron.experts(x, (s, s), g, d), "index has no integers"),
        (lambda x, s, g, d: fireiron.experts(x, (s, np.full(s.shape, -1)), g, d), "a number of an expert is negative"),
        (lambda x, s, g, d: fireiron.experts(x, (s, np.full(s.shape, 3)), g, d), "a number of an expert is too large"),
        (lambda x, s, g, d: fireiron.experts(x, (s.astype(int), np.full(s.shape, 1)), g, d), "weights has no floating-point numbers"),
        (lambda x, s, g, d: fireiron.experts(x, [[1]], g, d, top_k=1), "not a pair of weights and numbers"),
        (lambda x, s, g, d: fireiron.experts(x, "scores", g, d, top_k=1), "scores is not an array"),
        (lambda x, s, g, d: fireiron.experts(x, s, g[:, :30], d, top_k=1), "the shapes of the arrays are incompatible"),
        (lambda x, s, g, d: fireiron.experts(x[:2], s, g, d, top_k=1), "the shapes of the arrays are incompatible"),
        (lambda x, s, g, d: fireiron.experts(x, s, g.astype(float), d, top_k=1), "gate_up has elements of float64"),
        (lambda x, s, g, d: fireiron.experts(x.astype(float), s, g, d, top_k=1), "no kernel supports the element type"),
        (lambda x, s, g, d: fireiron.experts(x, s, g, d, top_k=1, out=x[:2]), "out does not have the shape of x"),
        (lambda x, s, g, d: fireiron.experts(x, s, g, d, top_k=1, arch="sm_75"), "the target has no kernels"),
        (lambda x, s, g, d: fireiron.experts(x[:, :12].copy(), s, g[..., :12].copy(), d[:, :12].copy(), top_k=1), "not a multiple of 16"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ArgumentError, match=message):
        call(*layer(5, 3, 16, 16, 1))
