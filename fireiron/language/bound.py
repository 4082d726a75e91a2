"""Errors for calling a strategy with other arguments than one spec: sizes or arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fireiron.errors import ArgumentError, call_site, shown
from fireiron.spec import AnyStarter, Spec, Starter
from fireiron.values.expr import Expr

LEGAL: Final = "one spec, such as MatMul(M, N, K)"


def not_a_spec(given: tuple[Any, ...], named: Mapping[str, Any]) -> ArgumentError:
    """Return the error for calling a strategy with these arguments."""
    values = (*given, *named.values())
    hint = "kernel = strategy(spec).compile(); then call kernel(a, b) with arrays"
    if values and all(isinstance(value, (int, Expr)) for value in values):
        sizes = ", ".join(str(value) if isinstance(value, Expr) else shown(value) for value in values)
        hint = f"sizes belong to the spec: strategy(MatMul({sizes}))"
    got = ", ".join([*(_argument(value) for value in given), *(f"{name}={_argument(value)}" for name, value in named.items())])
    return ArgumentError(f"a strategy is bound to a spec, not to ({got})", legal=LEGAL, at=call_site(), hint=hint)


def _argument(value: object) -> str:
    """Return an argument for messages: numbers and specs unchanged, arrays by their shapes, and the type of anything else."""
    if isinstance(value, (int, Starter, AnyStarter)):
        return shown(value)
    if isinstance(value, (Expr, Spec)):
        return str(value)
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__} {'x'.join(map(str, shape))}" if isinstance(shape, tuple) and shape else type(value).__name__
