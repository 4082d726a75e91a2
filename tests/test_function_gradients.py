"""Functions of rows and their gradients, compared with float64, and the statements of backward passes."""

import numpy as np
import pytest

import fireiron
from fireiron import *
from fireiron.function_gradients import Step, gradient_of

EPSILON = 1e-5
ROWS = ((5, 512), (3, 77))


def random(*shape, kind=np.float16, seed=0):
    return np.random.default_rng((*shape, seed)).standard_normal(shape).astype(kind)


def wide(*arrays):
    return tuple(np.asarray(one, np.float64) for one in arrays)


def normalized(x):
    """Centered rows, and the factor of each."""
    centered = x - x.mean(1, keepdims=True)
    return centered, 1 / np.sqrt((centered**2).mean(1, keepdims=True) + EPSILON)


def close(got, want):
    assert np.abs(np.asarray(got, np.float64) - want).max() < 3e-3 * max(np.abs(want).max(), 1)


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_rmsnorm(shape):
    x, w, dy = random(*shape), random(shape[1]), random(*shape, seed=1)
    dx, scale = fireiron.function("rmsnorm_input_gradient")(x, w, EPSILON, dy)
    dw = fireiron.function("rmsnorm_weight_gradient")(x, scale, dy)
    x, w, dy = wide(x, w, dy)
    r = 1 / np.sqrt((x * x).mean(1, keepdims=True) + EPSILON)
    g, n = dy * w, x * r
    close(dx, (g - n * (g * n).mean(1, keepdims=True)) * r)
    close(dw, (dy * n).sum(0))


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_layernorm(shape):
    x, w, dy = random(*shape) + np.float16(1), random(shape[1]), random(*shape, seed=1)
    dx, mean, scale = fireiron.function("layernorm_input_gradient")(x, w, EPSILON, dy)
    dw, db = fireiron.function("layernorm_weight_gradient")(x, mean, scale, dy)
    x, w, dy = wide(x, w, dy)
    c, r = normalized(x)
    g, n = dy * w, c * r
    close(dx, (g - g.mean(1, keepdims=True) - n * (g * n).mean(1, keepdims=True)) * r)
    close(dw, (dy * n).sum(0))
    close(db, dy.sum(0))


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_rmsnorm_of_a_sum(shape):
    x, r, w, dy, dz = random(*shape), random(*shape, seed=1), random(shape[1]), random(*shape, seed=2), random(*shape, seed=3)
    z, y = fireiron.function("rmsnorm_residual")(x, r, w, EPSILON)
    dx, _ = fireiron.function("rmsnorm_residual_input_gradient")(z, w, EPSILON, dy, dz)
    eight_z, eight_y, scale = fireiron.function("rmsnorm_residual:eight_bit")(x, r, w, EPSILON)
    total, w, dy, dz = wide(x, w, dy, dz)
    total = total + r
    factor = 1 / np.sqrt((total**2).mean(1, keepdims=True) + EPSILON)
    close(z, total)
    close(y, total * factor * w)
    np.testing.assert_array_equal(eight_z, z)
    steps = np.abs(eight_y.astype(np.float64)) * scale[:, None] / 16 + scale[:, None] * 2.0**-9  # half of the distance of 8-bit floats
    assert (np.abs(eight_y.astype(np.float64) * scale[:, None] - total * factor * w) <= steps + 1e-3).all()
    g, n = dy * w, total * factor
    close(dx, (g - n * (g * n).mean(1, keepdims=True)) * factor + dz)


@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_softmax(shape):
    y, dy = fireiron.function("softmax")(random(*shape)), random(*shape, seed=1)
    p, g = wide(y, dy)
    close(fireiron.function("softmax_gradient")(y, dy), p * (g - (p * g).sum(1, keepdims=True)))


@pytest.mark.parametrize("columns", (777, 4097, 5000))
def test_cross_entropy(columns):
    """Large logits, excluded rows, the last class."""
    x = random(6, columns) * np.float16(8)
    label = np.array([3, 700, -100, 0, columns - 1, 5])
    dloss, dlse = random(6, kind=np.float32), random(6, kind=np.float32, seed=1)
    loss, lse = fireiron.function("cross_entropy")(x, label)
    dx = fireiron.function("cross_entropy_gradient")(x, label, lse, dloss, dlse)
    (x,) = wide(x)
    top = x.max(1)
    want = np.log(np.exp(x - top[:, None]).sum(1)) + top
    kept = label != -100
    np.testing.assert_allclose(lse, want, rtol=2e-6)
    np.testing.assert_allclose(loss, np.where(kept, want - x[np.arange(6), label.clip(0)], 0), rtol=1e-5, atol=1e-5)
    of_loss = np.where(kept, dloss, 0)[:, None]
    close(dx, np.exp(x - want[:, None]) * (of_loss + dlse[:, None]) - (np.arange(columns) == label[:, None]) * of_loss)


def test_dropout():
    """The mask depends on seed and element only; the four words of a counter belong to adjacent elements."""
    from fireiron.specs.philox import uniform

    x = random(9, 520)
    y = fireiron.function("dropout")(x, 7, 0.75)
    n = np.arange(520)
    kept = uniform(7, np.arange(9)[:, None], n // 4, 0, 0, word=n % 4) < np.float32(0.75)
    np.testing.assert_array_equal(y != 0, kept & (x != 0))
    close(y, np.where(kept, x.astype(np.float64) / 0.75, 0))
    text = fireiron.function("dropout").kernel(x, 7, 0.75, arch="sm_90a").asm["cuda"]
    assert "out_n / 4)" in text and "out_n % 4)" in text, "unrolled iterations share the counter"


@pytest.mark.parametrize("shape", ((3, 2, 40), (2, 2, 2, 7)), ids=str)
def test_swiglu(shape):
    """The product with silu, and its gradient, which has both halves in one array."""
    x, dy = random(*shape), random(*shape[:-2], shape[-1])
    y, dx = fireiron.function("swiglu")(x), fireiron.function("swiglu_gradient")(dy, x)
    first, second, slope_of_y = wide(x[..., 0, :], x[..., 1, :], dy)
    s = 1 / (1 + np.exp(-first))
    assert y.dtype == x.dtype == dx.dtype and y.shape == dy.shape
    close(y, first * s * second)
    close(dx, np.stack([slope_of_y * second * s * (1 + first * (1 - s)), slope_of_y * first * s], axis=-2))
    x[..., 0, :] = np.inf
    assert np.array_equal(fireiron.function("swiglu")(x), np.copysign(np.inf, x[..., 1, :])), "no half is added to the other"
    with pytest.raises(fireiron.errors.ArgumentError, match="3 elements along q"):
        fireiron.function("swiglu")(random(2, 3, 40))


@pytest.mark.parametrize("shape", ((2, 5, 3, 2, 32), (1, 3, 32, 2, 64), (1, 2, 5, 2, 9)), ids=str)
def test_rope(shape):
    """A rotation, and its gradient, which is the rotation back."""
    x = random(*shape)
    angles = np.random.default_rng(0).random((shape[1], shape[-1])) * 6
    cosines, sines = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    y = fireiron.function("rope")(x, cosines, sines)
    first, second = wide(x[..., 0, :], x[..., 1, :])
    c, s = np.cos(angles)[:, None], np.sin(angles)[:, None]
    close(y, np.stack([first * c - second * s, second * c + first * s], axis=3))
    close(fireiron.function("rope_gradient")(y, cosines, sines), x.astype(np.float64))


# ---------------------------------------------------------------------------------------------- statements


def test_stated_backward_passes():
    backward = fireiron.function("rmsnorm_residual").gradient
    assert backward.results == ("dX", "scale", "dweight", "dR")
    assert [step.function for step in backward.needed(("dR",))] == ["rmsnorm_residual_input_gradient"]
    assert [step.function for step in backward.needed(("dweight",))] == ["rmsnorm_residual_input_gradient", "rmsnorm_weight_gradient"]
    assert fireiron.function("dropout").gradient.steps == (Step("dropout", ("dY", "seed", "keep"), ("dX",)),)
    assert fireiron.function("gemm_row_sum").gradient.steps == ()
    assert fireiron.function("layernorm:at_once").gradient == fireiron.function("layernorm").gradient
    assert fireiron.function("rmsnorm_residual:eight_bit").gradient.steps == (), "its Y is divided by a scale"


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (("rmsnorm input gradient",), "illegal step"),
        (("rmsnorm_weight_gradient",), "reads scale"),
        (("dX = rmsnorm_input_gradient",), "names 1 results"),
        (("rmsnorm_input_gradient(dY=dZ)",), "reads dZ"),
        (("rmsnorm_input_gradient",), "writes scale, which is no gradient"),
        (("dX, scale = rmsnorm_input_gradient", "rmsnorm_weight_gradient", "dQ = dX"), "writes dQ, which is no gradient"),
    ],
)
def test_refused_statements(stated, message):
    with pytest.raises(ArgumentError, match=message):
        gradient_of(fireiron.function("rmsnorm"), stated, fireiron.function)


def test_own_definitions():
    """A function of a user states other functions as its gradient."""
    squared = Fused(name="squared", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"y": "Y[m,n] = X[m,n] * X[m,n]"})
    slope = Fused(name="slope", dims="m n", operands={"X": "m n", "dY": "m n", "dX": "m n"}, body={"dx": "dX[m,n] = 2 * X[m,n] * dY[m,n]"})
    lanes = Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()
    of_slope = fireiron.function(slope, (slope.tile(m=1).to(Block).load("X", RF, lanes).done(),))
    function = fireiron.function(squared, (squared.tile(m=1).to(Block).load("X", RF, lanes).done(),), gradient=(of_slope,))
    assert function.gradient.steps[0].reads == ("X", "dY") and function.gradient.results == ("dX",)


def test_vectors_are_converted_in_one_launch():
    from fireiron.strategies import _converted

    definition = _converted.converted(2)
    convert = fireiron.function(definition, (_converted.by_elements(definition),))
    values = random(300, kind=np.float32), random(300, kind=np.float32, seed=1)
    results = tuple(np.zeros(300, np.float16) for _ in values)
    assert convert(*values, out=results) is results
    for value, result in zip(values, results, strict=True):
        np.testing.assert_array_equal(result, value.astype(np.float16))
    assert len(convert.kernel(*values, out=results).program.launches) == 1
