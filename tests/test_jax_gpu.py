"""Kernels and `fireiron.matmul` in programs that JAX compiles for a GPU."""

import numpy as np
import pytest
from test_graph_calls import scaled

from fireiron import *
from fireiron.gpu import launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]


@pytest.fixture
def jax(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax_module = pytest.importorskip("jax", reason="needs JAX")
    if jax_module.default_backend() not in ("gpu", "cuda"):
        pytest.skip("needs JAX for CUDA")
    return jax_module


def values(jax, *shape, dtype="float16"):
    drawn = np.random.default_rng(shape).standard_normal(shape) * (shape[-2] ** -0.5 if len(shape) > 1 else 1)
    return jax.numpy.asarray(drawn.astype(dtype))


def close(got, expected):
    assert got.shape == expected.shape
    wide, right = np.asarray(got).astype(np.float64), np.asarray(expected).astype(np.float64)
    assert np.linalg.norm(wide - right) / np.linalg.norm(right) < 2e-3


SHAPES = [
    ((256, 192), (192, 320)),
    ((9, 127, 127), (9, 127, 127)),
    ((4, 64, 96), (96, 128)),
    ((2, 1, 64, 48), (3, 48, 80)),
    ((128,), (128, 96)),
]
"""Those of 127 are copied by a preceding kernel on Hopper."""


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_matmul(jax, shapes):
    """Under `jit`, with surrounding XLA operations, and its gradients."""
    a, b = (values(jax, *shape) for shape in shapes)
    wide = [np.asarray(one, np.float64) for one in (a, b)]
    close(jax.jit(lambda a, b: 2 * matmul(a, b))(a, b), 2 * np.matmul(*wide))
    weight = values(jax, *np.matmul(*wide).shape)

    def loss(product):
        return lambda a, b: (product(a, b).astype("float32") * weight).sum()

    for got, expected in zip(jax.jit(jax.grad(loss(matmul), (0, 1)))(a, b), jax.grad(loss(jax.numpy.matmul), (0, 1))(a, b), strict=True):
        close(got, expected)


def test_gradients_of_a_graph(jax):
    """The function of a kernel graph, whose gradient is a kernel: under `jit`, and without."""
    graph, backward = scaled(sym("n"))
    function = graph.compile().as_jax_function(gradient=backward.compile())
    x = values(jax, 1000, dtype="float32")
    close(function(x, 0.5), x * x + 0.5 * x)
    gradient = jax.grad(lambda x: (jax.numpy.sin(x) * function(2 * x, 0.5)).sum())
    expected = jax.grad(lambda x: (jax.numpy.sin(x) * (4 * x * x + x)).sum())(x)
    close(gradient(x), expected)
    close(jax.jit(gradient)(x), expected)


def test_kernels(jax):
    """A user-defined kernel in a loop, and mapped; an epilogue; results are right in memory that XLA reuses."""
    x, weight, bias = values(jax, 128, 128, dtype="float32"), values(jax, 128, 128, dtype="float32"), values(jax, 128, dtype="float32")
    kernel = matmul.kernel(x, weight)
    looped = jax.jit(lambda x: jax.lax.fori_loop(0, 5, lambda _, x: jax.numpy.tanh(kernel(x, weight)), x))(x)
    expected = x
    for _ in range(5):
        expected = np.tanh(np.asarray(expected, np.float64) @ np.asarray(weight))
    close(looped, expected)
    stack = values(jax, 3, 128, 128, dtype="float32")
    close(jax.jit(jax.vmap(lambda x: kernel(x, weight)))(stack), np.asarray(stack, np.float64) @ np.asarray(weight))
    finished = jax.jit(lambda x, bias: matmul(x, weight, epilogue="relu(acc + bias[n])", bias=bias))(x, bias)
    close(finished, np.maximum(np.asarray(x, np.float64) @ np.asarray(weight) + np.asarray(bias), 0))
    with pytest.raises(ArgumentError, match="out= is not supported in a call that JAX traces"):
        jax.jit(lambda x: matmul(x, weight, x))(x)
