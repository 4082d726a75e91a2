"""The effect of an iteration whose elements are fully masked (`stepping.masked_tile_effects`): each law of the real numbers, and where it does not hold."""

import math
import types

import pytest

from fireiron.specs.formula import Number, formula_of
from fireiron.stepping.masked_tile_effects import Values

NUMBERS = {"low": -math.inf, "high": math.inf, "zero": 0, "one": 1, "two": 2}


def known(text, **before):
    """The known value of a formula's output, as text; other tensors are constants, by name, or results of the formulas `before`.

    `low`, `high`, `zero`, `one` and `two` are numbers; `p` and `q` are positive; all others are known to be finite.
    """
    values = Values(types.SimpleNamespace(positive=("p", "q")))
    for name, number in NUMBERS.items():
        formula = formula_of(f"{name}[m,n] = 0")
        values.perform(types.SimpleNamespace(formula=formula), Number(number))
    for earlier in before.values():
        values.perform(types.SimpleNamespace(formula=formula_of(earlier)))
    formula = formula_of(text)
    values.perform(types.SimpleNamespace(formula=formula))
    return str(values.known[formula.output])


SAME = "x[m,n]"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("max(x[m,n], low[m,n])", SAME), ("max(low[m,n], x[m,n])", SAME), ("max(x[m,n], x[m,n])", SAME),
        ("min(x[m,n], high[m,n])", SAME), ("min(high[m,n], x[m,n])", SAME), ("min(x[m,n], x[m,n])", SAME),
        ("x[m,n] + zero[m,n]", SAME), ("zero[m,n] + x[m,n]", SAME), ("x[m,n] - zero[m,n]", SAME),
        ("x[m,n] * one[m,n]", SAME), ("one[m,n] * x[m,n]", SAME), ("x[m,n] / one[m,n]", SAME),
        ("x[m,n] - x[m,n]", "0"), ("x[m,n] * zero[m,n]", "0"), ("zero[m,n] * x[m,n]", "0"), ("zero[m,n] / p[m,n]", "0"),
        ("low[m,n] + x[m,n]", "-inf"), ("x[m,n] + low[m,n]", "-inf"), ("low[m,n] - x[m,n]", "-inf"), ("high[m,n] - x[m,n]", "inf"),
        ("low[m,n] * p[m,n]", "-inf"), ("p[m,n] * high[m,n]", "inf"), ("low[m,n] / q[m,n]", "-inf"), ("high[m,n] / 2", "inf"),
        ("low[m,n] * (p[m,n] + q[m,n])", "-inf"), ("low[m,n] * (p[m,n] * max(q[m,n], 2))", "-inf"),
        ("zero[m,n] * abs(x[m,n] - y[m,n])", "0"), ("(x[m,n] * y[m,n]) - (x[m,n] * y[m,n])", "0"),
        ("one[m,n] + two[m,n]", "3.0"), ("exp2(low[m,n])", "0.0"), ("exp(low[m,n] - x[m,n])", "0.0"),
        ("exp2(x[m,n] - x[m,n]) * y[m,n]", "y[m,n]"),
    ],
)  # fmt: skip
def test_laws(value, expected):
    assert known(f"t[m,n] = {value}") == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "value",
    [
        "max(x[m,n], high[m,n])", "max(x[m,n], y[m,n])", "min(x[m,n], low[m,n])",
        "x[m,n] + one[m,n]", "zero[m,n] - x[m,n]", "x[m,n] - y[m,n]", "x[m,n] * two[m,n]", "one[m,n] / x[m,n]", "x[m,n] / two[m,n]",
        "zero[m,n] / x[m,n]", "zero[m,n] * exp(x[m,n])", "low[m,n] * x[m,n]", "high[m,n] / x[m,n]", "low[m,n] + exp2(x[m,n])",
        "low[m,n] * (p[m,n] - q[m,n])", "low[m,n] * abs(p[m,n])", "exp2(x[m,n]) - exp2(x[m,n])", "x[m,n] - low[m,n]", "exp2(x[m,n])",
    ],
)  # fmt: skip
def test_without_a_law_nothing_is_concluded(value):
    """For any x: a factor may be negative or 0, a function infinite."""
    assert known(f"t[m,n] = {value}") not in (SAME, "y[m,n]", "0", "inf", "-inf", "1")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("low[m,n] < x[m,n]", True), ("low[m,n] <= x[m,n]", True), ("x[m,n] < high[m,n]", True), ("x[m,n] > low[m,n]", True),
        ("high[m,n] >= x[m,n]", True), ("x[m,n] < low[m,n]", False), ("high[m,n] < x[m,n]", False), ("low[m,n] > x[m,n]", False),
        ("x[m,n] >= high[m,n]", False), ("x[m,n] < y[m,n]", None), ("low[m,n] < exp(x[m,n])", None), ("exp(x[m,n]) < high[m,n]", None),
        ("x[m,n] == low[m,n]", None), ("x[m,n] != low[m,n]", None), ("exp(x[m,n]) < low[m,n]", None), ("high[m,n] < exp(x[m,n])", None),
    ],
)  # fmt: skip
def test_conditions_hold_where_one_side_is_infinite_and_the_other_finite(condition, holds):
    effect = known(f"t[m,n] = where({condition}, x[m,n], y[m,n])")
    assert effect == {True: "x[m,n]", False: "y[m,n]"}.get(holds, f"where({condition}, x[m,n], y[m,n])")


def test_a_condition_makes_no_difference_between_equals():
    assert known("t[m,n] = where(x[m,n] < y[m,n], x[m,n] + zero[m,n], x[m,n])") == SAME
    assert known("t[m,n] = where(x[m,n] < y[m,n], x[m,n] + one[m,n], x[m,n])").startswith("where(")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("t[m] = sum(n, zero[m,n])", "0"), ("t[m] = sum(n, one[m,n])", "sum(n, 1)"), ("t[m] = sum(n, x[m,n])", "sum(n, x[m,n])"),
        ("t[m] = max(n, low[m,n])", "-inf"), ("t[m] = max(n, two[m,n])", "2"), ("t[m] = min(n, high[m,n])", "inf"),
        ("t[m] = max(n, x[m,n])", "max(n, x[m,n])"),
        ("t[m] += sum(n, zero[m,n])", "t[m]"), ("t[m] += sum(n, one[m,n])", "t[m] + sum(n, 1)"),
    ],
)  # fmt: skip
def test_reductions_of_a_constant_are_known_if_independent_of_the_extent(formula, expected):
    """A sum of zeros, a maximum or minimum of equal numbers; a sum of ones is the extent."""
    assert known(formula) == expected


def test_a_written_tensor_has_the_value_of_its_formula():
    assert known("t[m] = s[m] - s[m]", s="s[m] = f[m] * g[m]") == "0"
    assert known("t[m] = max(s[m], f[m])", s="s[m] = f[m]") == "f[m]"


def test_other_elements_of_a_written_tensor_are_unknown():
    """Constants are equal at all coordinates; other values are not."""
    assert known("t[m,n] = s[n,m] - x[m,n]", s="s[m,n] = x[m,n]") != "0"
    assert known("t[m,n] = s[n,m]", s="s[m,n] = 0") == "0"
