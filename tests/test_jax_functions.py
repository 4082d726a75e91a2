"""Gradients of kernels and of kernel graphs in JAX, without a GPU: XLA calls the handler on the host, and a simulated driver launches."""

import numpy as np
import pytest
from graph_examples import of_elements
from test_graph_calls import scaled
from test_jax import COMPILER, close, driver, floats, gpu  # noqa: F401

from fireiron import *
from fireiron.errors import ArgumentError

jax = pytest.importorskip("jax", reason="needs JAX")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs a C++ compiler")


def by_threads(n, name, operands, **steps):
    definition = Fused(name=name, dims="n", operands=operands, body=steps)
    return definition.tile(n=32).to(Block).tile(n=1).to(Thread).done()(definition(n=n, dtype=float32))


@pytest.mark.parametrize("n", [90, "run-time size"])
def test_gradient_of_a_graph(gpu, n):  # noqa: F811
    """`Z = X * X + f * X` by two kernels, and its gradient by one; under `jit`, between other operations, and of a sum."""
    graph, backward = scaled(sym("n") if isinstance(n, str) else n)
    function = graph.compile("sm_90").as_jax_function(gradient=backward.compile("sm_90"))
    x = floats(90)
    close(jax.jit(lambda x: function(x, 0.5))(x), x * x + 0.5 * x)
    loss = lambda x: (jax.numpy.sin(x) * function(x * 2, 0.5)).sum()
    right = lambda x: (jax.numpy.sin(x) * (4 * x * x + x)).sum()
    for transformed in (jax.jit(jax.grad(loss)), jax.jit(jax.grad(jax.jit(loss))), jax.jit(jax.grad(jax.checkpoint(loss)))):
        close(transformed(x), jax.grad(right)(x))
    close(jax.jit(jax.grad(lambda x: function(x, 0.5).sum()))(x), 2 * x + 0.5)
    names = {name for name, *_ in gpu.launches}
    assert len(names) >= 3, "two kernels of the graph, and one of the gradient"


def test_gradient_of_a_kernel_by_a_graph(gpu):  # noqa: F811
    """The outputs of the kernel are kept, and a gradient that nothing uses is zero."""
    kernel = by_threads(70, "both", {"X": "n", "W": "n", "Y": "n", "Z": "n"}, y="Y[n] = X[n] * W[n]", z="Z[n] = X[n] + W[n]")
    half = by_threads(70, "half", {"W": "n", "dY": "n", "part": "n"}, d="part[n] = W[n] * dY[n]")
    rest = by_threads(
        70, "rest", {"X": "n", "dY": "n", "dZ": "n", "part": "n", "dX": "n", "dW": "n"},
        x="dX[n] = part[n] + dZ[n]", w="dW[n] = X[n] * dY[n] + dZ[n]",
    )  # fmt: skip
    backward = KernelGraph("backward", {"half": half, "rest": rest}, {"rest.part": "half.part", "rest.dY": "half.dY"})
    assert set(backward.outputs) == {"rest.dX", "rest.dW"}
    function = kernel.compile("sm_90").as_jax_function(gradient=backward.compile("sm_90"))
    x, w = floats(70), floats(7, 10).reshape(70)
    for loss, right in (
        (lambda x, w: (function(x, w)[0] * x).sum(), lambda x, w: (x * w * x).sum()),
        (lambda x, w: (function(x, w)[0] - 3 * function(x, w)[1]).sum(), lambda x, w: (x * w - 3 * (x + w)).sum()),
    ):
        for got, expected in zip(jax.jit(jax.grad(loss, (0, 1)))(x, w), jax.grad(right, (0, 1))(x, w), strict=True):
            close(got, expected)


def test_vmap(gpu):  # noqa: F811
    graph, backward = scaled(90)
    function = graph.compile("sm_90").as_jax_function(gradient=backward.compile("sm_90"))
    x = floats(3, 90)
    close(jax.jit(jax.vmap(lambda x: function(x, 2.0)))(x), x * x + 2 * x)
    close(jax.jit(jax.vmap(jax.grad(lambda x: function(x, 2.0).sum())))(x), 2 * x + 2)


def test_refused(gpu):  # noqa: F811
    graph, backward = scaled(90)
    compiled, gradient = graph.compile("sm_90"), backward.compile("sm_90")
    function = compiled.as_jax_function(gradient=gradient)
    x = floats(90)
    with pytest.raises(ArgumentError, match="f is passed by value, and JAX traces it"):
        jax.jit(function)(x, 0.5)
    with pytest.raises(ArgumentError, match="1 arrays and numbers given"):
        function(x)
    other = of_elements(90, d="Z[n] = W[n] * X[n]")
    with pytest.raises(ArgumentError, match="as_jax_function: the gradient reads W, which the operator does not have"):
        compiled.as_jax_function(gradient=other.compile("sm_90"))
    with pytest.raises(ArgumentError, match="as_jax_function: the gradient writes Y, which is no gradient of an input"):
        compiled.as_jax_function(gradient=of_elements(90, d="Y[n] = X[n] * 2").compile("sm_90"))


def test_a_missing_gradient_is_an_error(gpu):  # noqa: F811
    """Only of inputs that require one: `W` has no gradient."""
    kernel = by_threads(70, "product", {"X": "n", "W": "n", "Y": "n"}, y="Y[n] = X[n] * W[n]")
    backward = by_threads(70, "of_x", {"W": "n", "dY": "n", "dX": "n"}, d="dX[n] = W[n] * dY[n]")
    function = kernel.compile("sm_90").as_jax_function(gradient=backward.compile("sm_90"))
    x, w = floats(70), floats(7, 10).reshape(70)
    close(jax.jit(jax.grad(lambda x: function(x, w).sum()))(x), w)
    close(jax.jit(jax.grad(lambda x: function(x, jax.lax.stop_gradient(w * x)).sum()))(x), w * x)
    for transform in (lambda function: function, jax.jit):
        with pytest.raises(ArgumentError, match=r"has no output dW, and W requires a gradient[\s\S]*stop_gradient\(W\)"):
            jax.jit(jax.grad(transform(lambda x, w: function(x, w).sum()), (0, 1)))(x, w)


def test_a_wrong_gradient_is_found(gpu):  # noqa: F811
    """An injected fault: finite differences of the function differ from its gradient."""
    graph, _ = scaled(90)
    backward = by_threads(90, "gradient", {"X": "n", "dZ": "n", "f": "", "dX": "n"}, d="dX[n] = (X[n] + f) * dZ[n]")
    function = graph.compile("sm_90").as_jax_function(gradient=backward.compile("sm_90"))
    x = floats(90)
    with pytest.raises(AssertionError):
        close(jax.jit(jax.grad(lambda x: function(x, 0.5).sum()))(x), 2 * x + 0.5)
    assert np.isfinite(np.asarray(x)).all()
