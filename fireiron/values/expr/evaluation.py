"""Expressions as functions of integers or of NumPy arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from fireiron.values.expr.hilbert import Hilbert, place_on_curve
from fireiron.values.expr.lookup import Lookup
from fireiron.values.expr.nodes import All, AnyOf, BitAnd, BitOr, BitXor, Const, Equal, Expr, FloorDiv, Less, Min, Mod, Positive, Sum, Var


def source(value: Expr) -> str:
    """Python source that evaluates with NumPy for `&`, conditions and minimum alike; a `TypeError` for a node it has no rule for."""
    match value:
        case Const():
            return str(value.value) if value.value >= 0 else f"({value.value})"
        case Var():
            return f"e[{value.name!r}]"
        case Sum():
            parts = ["*".join([*(_number_source(a) for a in atoms), *([str(c)] if c != 1 else [])]) for atoms, c in value.terms]
            return f"({'+'.join([*parts, *([str(value.constant)] if value.constant else [])])})"
        case FloorDiv(left=left, right=right):
            return f"({source(left)}//{source(right)})"
        case Mod(left=left, right=right):
            return f"({source(left)}%{source(right)})"
        case BitAnd(left=left, right=right):
            return f"({source(left)}&{source(right)})"
        case BitOr(left=left, right=right):
            return f"({source(left)}|{source(right)})"
        case BitXor(left=left, right=right):
            return f"({source(left)}^{source(right)})"
        case Positive(value=inner):
            return source(inner)
        case Min(left=left, right=right):
            return f"_min({source(left)},{source(right)})"
        case Hilbert(number=number, lines=lines, columns=columns):
            return f"_hilbert({source(number)},{source(lines)},{source(columns)})"
        case Lookup(table=Var(name=name), index=index, most=most):
            return f"_min(e[{name!r}]({source(index)}),{most})"
        case Less(left=left, right=right):
            return f"({source(left)}<{source(right)})"
        case Equal(left=left, right=right):
            return f"({source(left)}=={source(right)})"
        case All():
            # `and` asks NumPy arrays for one truth value; `&` joins them element by element, and agrees on truth values
            return f"({'&'.join(source(c) for c in value.conditions)})"
        case AnyOf():
            return f"({'|'.join(source(c) for c in value.conditions)})"
    raise TypeError(type(value))


def _number_source(value: Expr) -> str:
    """A truth value as a number: NumPy's sum of two truth values is their disjunction."""
    return f"({source(value)}*1)" if isinstance(value, (Less, Equal, All, AnyOf)) else source(value)


def _numeric_minimum(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    import numpy  # takes longer to load than the language, which needs it only here

    return numpy.minimum(left, right)


@functools.lru_cache(maxsize=20_000)
def compiled(value: Expr) -> Callable[[Mapping[str, Any]], Any]:
    """A function from an environment (name to integer or array) to the value."""
    # The simulator and the checks evaluate one expression in thousands of environments: Python compiles its source once for all.
    scope: dict[str, Any] = {"_min": _numeric_minimum, "_hilbert": place_on_curve}
    exec(f"def f(e): return {source(value)}", scope)
    return scope["f"]  # type: ignore[no-any-return]
