"""Derivatives of formulas with respect to a scalar, as formulas.

>>> print(derivative("30 * tanh(s / 30) - 0.5 * (m - n)", "s"))
1 - tanh(s / 30) * tanh(s / 30)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fireiron.errors import ArgumentError
from fireiron.specs.formula import Element, Number, Operation, Value, elements_of, formula_of

ZERO, ONE, LN_2 = Number(0), Number(1), Number(0.6931471805599453)


def derivative(text: str, name: str) -> Value:
    """Return the derivative of a value with respect to the scalar `name`.

    At a kink, such as 0 for `abs`, it is one of the one-sided derivatives or 0, as in PyTorch.

    Raises: ArgumentError for a function without a derivative here, such as `bits`.
    """
    if not isinstance(text, str) or not isinstance(name, str):
        raise ArgumentError("derivative: not the text of a value and a name", got=text if isinstance(name, str) else name)
    value = formula_of(f"derivative_of = {text}").value
    assert value is not None
    return _derivative(value, name, text)


def _derivative(value: Value, name: str, text: str) -> Value:
    if isinstance(value, Element):
        return ONE if value.tensor == name else ZERO
    if isinstance(value, Number) or name not in {element.tensor for element in elements_of(value)}:
        return ZERO
    parts = value.arguments
    if value.name == "where":
        condition, left, right = parts
        return _where(condition, *(_derivative(part, name, text) for part in (left, right)))
    rule = _RULES.get(value.name)
    if rule is None:
        raise ArgumentError(f"the function {value.name} has no derivative", got=text, legal=sorted(_RULES))
    total: Value = ZERO
    for part, factor in zip(parts, rule(*parts), strict=True):
        inner = _derivative(part, name, text)
        total = total if inner == ZERO else _sum(total, _product(factor, inner))
    return total


def _of(name: str, *parts: Value) -> Value:
    return Operation(name, parts)


def _sum(left: Value, right: Value) -> Value:
    return right if left == ZERO else left if right == ZERO else _of("+", left, right)


def _difference(left: Value, right: Value) -> Value:
    return left if right == ZERO else _of("-", left, right)


def _product(left: Value, right: Value) -> Value:
    """Return a product; a number times a quotient by the same number is the dividend."""
    if ZERO in (left, right):
        return ZERO
    if ONE in (left, right):
        return right if left == ONE else left
    if isinstance(left, Number) and isinstance(right, Number):
        product = left.value * right.value
        return ONE if abs(product - 1) < 1e-12 else Number(product)
    for first, second in ((left, right), (right, left)):
        inner = second.arguments if isinstance(second, Operation) and second.name == "*" else ()
        number = next((one for one in inner if isinstance(one, Number)), None)
        if isinstance(first, Number) and number is not None:
            (other,) = [one for one in inner if one is not number] or [ONE]
            return _product(_product(first, number), other)
    return _of("*", left, right)


def _where(condition: Value, left: Value, right: Value) -> Value:
    return left if left == right else _of("where", condition, left, right)


def _square(value: Value) -> Value:
    return _of("*", value, value)


def _inverse(value: Value) -> Value:
    return Number(1 / value.value) if isinstance(value, Number) else _of("/", ONE, value)


def _sign(value: Value) -> Value:
    return _where(_of(">", value, ZERO), ONE, _where(_of("<", value, ZERO), Number(-1), ZERO))


def _quotient(left: Value, right: Value) -> tuple[Value, Value]:
    return _inverse(right), _of("-", _of("/", left, _square(right)))


def _logistic(value: Value) -> Value:
    return _product(_of("sigmoid", value), _difference(ONE, _of("sigmoid", value)))


def _larger(left: Value, right: Value) -> tuple[Value, Value]:
    first = _of(">=", left, right)
    return _where(first, ONE, ZERO), _where(first, ZERO, ONE)


def _clamped(value: Value, low: Value, high: Value) -> tuple[Value, Value, Value]:
    """Return the factors of the arguments of `clamp`, which is min(max(value, low), high)."""
    above, below = _of(">", value, high), _of("<", value, low)
    return (
        _where(above, ZERO, _where(below, ZERO, ONE)),
        _where(above, ZERO, _where(below, ONE, ZERO)),
        _where(above, ONE, ZERO),
    )


_RULES: Final[Mapping[str, Callable[..., tuple[Value, ...]]]] = {
    "+": lambda left, right: (ONE, ONE),
    "-": lambda *parts: (ONE, Number(-1)) if len(parts) == 2 else (Number(-1),),
    "*": lambda left, right: (right, left),
    "/": _quotient,
    "abs": lambda value: (_sign(value),),
    "clamp": _clamped,
    "cos": lambda value: (_of("-", _of("sin", value)),),
    "exp": lambda value: (_of("exp", value),),
    "exp2": lambda value: (_product(LN_2, _of("exp2", value)),),
    "floor": lambda value: (ZERO,),
    "log": lambda value: (_inverse(value),),
    "log1p": lambda value: (_inverse(_of("+", ONE, value)),),
    "log2": lambda value: (_inverse(_of("*", LN_2, value)),),
    "max": _larger,
    "min": lambda left, right: _larger(right, left),
    "relu": lambda value: (_where(_of(">", value, ZERO), ONE, ZERO),),
    "round": lambda value: (ZERO,),
    "rsqrt": lambda value: (_product(Number(-0.5), _of("/", _of("rsqrt", value), value)),),
    "sigmoid": lambda value: (_logistic(value),),
    "silu": lambda value: (_sum(_of("sigmoid", value), _product(value, _logistic(value))),),
    "sin": lambda value: (_of("cos", value),),
    "sqrt": lambda value: (_of("/", Number(0.5), _of("sqrt", value)),),
    "tanh": lambda value: (_difference(ONE, _square(_of("tanh", value))),),
    "tanh_approx": lambda value: (_difference(ONE, _square(_of("tanh_approx", value))),),
}
"""The derivatives with respect to each argument, by function or operator."""

__all__ = ["derivative"]
