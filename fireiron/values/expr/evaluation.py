"""Expressions as functions of integers or of NumPy arrays."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from fireiron.values.expr.hilbert import Hilbert, place_on_curve
from fireiron.values.expr.lookup import Lookup
from fireiron.values.expr.nodes import All, AnyOf, BitAnd, BitOr, BitXor, Const, Equal, Expr, FloorDiv, Less, Min, Mod, Positive, Sum, Var

Evaluation: TypeAlias = Callable[[Mapping[str, Any]], Any]

COMPILE_AFTER: Final = 24
"""Evaluations after which an expression is compiled; compiling takes about as long as this many evaluations."""


def source(value: Expr) -> str:
    """Python source that evaluates with NumPy, using `&` for conjunctions; a `TypeError` for an unknown kind of node."""
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
        case Lookup(table=Var(name=name), index=index, most=most, ends=True):
            return f"_ending(e[{name!r}].signed({source(index)}),{most})"
        case Lookup(table=Var(name=name), index=index, promised=True):
            return f"e[{name!r}]({source(index)})"
        case Lookup(table=Var(name=name), index=index, most=most):
            return f"_min(e[{name!r}]({source(index)}),{most})"
        case Less(left=left, right=right):
            return f"({source(left)}<{source(right)})"
        case Equal(left=left, right=right):
            return f"({source(left)}=={source(right)})"
        case All():
            # `and` needs one truth value of a NumPy array; `&` works elementwise, and agrees on truth values
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
    import numpy  # slow to import, and only needed here

    return numpy.minimum(left, right)


def _ending(value: Any, most: int) -> Any:
    """A number in 0 to `most - 1`, or `most`."""
    return _numeric_minimum(value + (value < 0) * (most - value), most)


@functools.lru_cache(maxsize=20_000)
def compiled(value: Expr) -> Callable[[Mapping[str, Any]], Any]:
    """A function from an environment (name to integer or array) to the value."""
    # Passes evaluate most expressions for all threads at once, a few times; compiling the source takes ten times as long. The simulator
    # evaluates an expression in thousands of environments, so then it is compiled.
    function, calls = _function(value), 0

    def evaluated(environment: Mapping[str, Any]) -> Any:
        nonlocal function, calls
        calls += 1
        if calls == COMPILE_AFTER:
            function = of_source(value)
        return function(environment)

    return evaluated


def of_source(value: Expr) -> Evaluation:
    """The function compiled from source."""
    scope: dict[str, Any] = {"_min": _numeric_minimum, "_hilbert": place_on_curve, "_ending": _ending}
    exec(f"def f(e): return {source(value)}", scope)
    return scope["f"]  # type: ignore[no-any-return]


def _function(value: Expr) -> Evaluation:
    """The function composed of the functions of its parts, with the same operations in the same order as `source`."""
    match value:
        case Const(value=number):
            return lambda e: number
        case Var(name=name):
            return lambda e: e[name]
        case Sum():
            return _sum(value)
        case FloorDiv(left=left, right=right):
            return _by_bits(operator.floordiv, operator.rshift, left, right, lambda divisor: divisor.bit_length() - 1)
        case Mod(left=left, right=right):
            return _by_bits(operator.mod, operator.and_, left, right, lambda divisor: divisor - 1)
        case BitAnd(left=left, right=right):
            return _joined(operator.and_, left, right)
        case BitOr(left=left, right=right):
            return _joined(operator.or_, left, right)
        case BitXor(left=left, right=right):
            return _joined(operator.xor, left, right)
        case Less(left=left, right=right):
            return _joined(operator.lt, left, right)
        case Equal(left=left, right=right):
            return _joined(operator.eq, left, right)
        case Min(left=left, right=right):
            return _joined(_numeric_minimum, left, right)
        case Positive(value=inner):
            return _function(inner)
        case All(conditions=conditions):
            return functools.partial(_folded, operator.and_, tuple(map(_function, conditions)))
        case AnyOf(conditions=conditions):
            return functools.partial(_folded, operator.or_, tuple(map(_function, conditions)))
    return of_source(value)


def _by_bits(
    join: Callable[[Any, Any], Any], by_bits: Callable[[Any, Any], Any], left: Expr, right: Expr, number_of: Callable[[int], int]
) -> Evaluation:
    """A quotient or a remainder; a power of two as divisor uses bit operations, which NumPy vectorizes."""
    divisor = right.value if isinstance(right, Const) else 0
    if divisor < 1 or divisor & divisor - 1:
        return _joined(join, left, right)
    of_left, number = _function(left), number_of(divisor)
    return lambda e: by_bits(of_left(e), number)


def _joined(join: Callable[[Any, Any], Any], left: Expr, right: Expr) -> Evaluation:
    of_left = _function(left)
    if isinstance(right, Const):
        number = right.value
        return lambda e: join(of_left(e), number)
    of_right = _function(right)
    return lambda e: join(of_left(e), of_right(e))


def _folded(join: Callable[[Any, Any], Any], parts: tuple[Evaluation, ...], environment: Mapping[str, Any]) -> Any:
    return functools.reduce(join, [part(environment) for part in parts])


def _sum(value: Sum) -> Evaluation:
    """The terms in order, then the constant; in each term the atoms, then the coefficient."""
    terms = tuple((tuple(map(_number, atoms)), coefficient) for atoms, coefficient in value.terms)
    number = value.constant

    def added(e: Mapping[str, Any]) -> Any:
        total: Any = None
        for (first, *others), coefficient in terms:
            product = first(e)
            for other in others:
                product = product * other(e)
            if coefficient != 1:
                product = product * coefficient
            total = product if total is None else total + product
        return total + number if number else total

    return added


def _number(value: Expr) -> Evaluation:
    """A truth value as a number, as in the source."""
    function = _function(value)
    return (lambda e: function(e) * 1) if isinstance(value, (Less, Equal, All, AnyOf)) else function
