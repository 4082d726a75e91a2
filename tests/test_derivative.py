"""Derivatives of formulas (oracle: differences of values)."""

import math

import pytest

from fireiron.errors import ArgumentError
from fireiron.specs.derivative import derivative

FUNCTIONS = {
    "abs": abs, "clamp": lambda x, low, high: min(max(x, low), high), "cos": math.cos, "exp": math.exp, "exp2": lambda x: 2**x,
    "floor": math.floor, "log": math.log, "log1p": math.log1p, "log2": math.log2, "max": max, "min": min, "relu": lambda x: max(x, 0), "round": round,
    "rsqrt": lambda x: x**-0.5, "sigmoid": lambda x: 1 / (1 + math.exp(-x)), "silu": lambda x: x / (1 + math.exp(-x)), "sin": math.sin,
    "sqrt": math.sqrt, "tanh": math.tanh, "tanh_approx": math.tanh, "where": lambda condition, left, right: left if condition else right,
}  # fmt: skip

FORMULAS = (
    "30 * tanh(s / 30) - 0.5 * (m - n)", "s - 0.1 * abs(m - n)", "max(s, 0.3) * s - min(s, m)", "where(m > n, s * s, exp(-s))",
    "clamp(s * 2, -1, n)", "clamp(n, s, s + m)", "silu(s) + sigmoid(s * 2)", "rsqrt(abs(s) + 1)", "log2(s * s + 1) / sqrt(s * s + 2)",
    "1 / (1 + s * s)", "sin(s) * cos(s) + exp2(s)", "log(s * s + m) * relu(s)", "20 * tanh_approx(s / 20) + floor(s) + round(s)", "m - n",
)  # fmt: skip


@pytest.mark.parametrize("text", FORMULAS)
def test_derivatives_equal_differences(text):
    slope, step = str(derivative(text, "s")), 1e-5
    for s in (-1.7, -0.23, 0.41, 2.1):
        names = {**FUNCTIONS, "m": 3, "n": 1}
        above, below = (eval(text, names, {"s": s + sign * step}) for sign in (1, -1))
        assert math.isclose(eval(slope, names, {"s": s}), (above - below) / (2 * step), abs_tol=1e-5)


@pytest.mark.parametrize(("text", "short"), [("s - 0.1 * (m - n)", "1"), ("m - n", "0"), ("3 * s", "3"), ("30 * (s / 30)", "1")])
def test_constant_derivatives_are_numbers(text, short):
    assert str(derivative(text, "s")) == short


def test_a_function_without_derivative_is_refused():
    with pytest.raises(ArgumentError, match="the function from_bits has no derivative") as refused:
        derivative("from_bits(bits(s) + 1) - bits(s)", "s")
    assert "tanh" in str(refused.value)
