"""Comparisons, conjunctions and disjunctions; evaluated at once if ranges determine the result."""

from __future__ import annotations

import math
from collections.abc import Iterable

from fireiron.errors import ArgumentError, shown
from fireiron.values.expr.arithmetic import subtract
from fireiron.values.expr.nodes import FALSE, TRUE, All, AnyOf, Atoms, Const, Equal, Expr, Less, Min, as_expr
from fireiron.values.expr.normal import in_order, polynomial, terms_of
from fireiron.values.expr.ranges import product_range


def minimum(left: Expr | int, right: Expr | int) -> Expr:
    """The smaller of two values."""
    first, second = as_expr(left), as_expr(right)
    if first.high <= second.low:
        return first
    if second.high <= first.low:
        return second
    return first if first == second else Min(*in_order(first, second))


def less(left: Expr | int, right: Expr | int) -> Expr:
    """The truth of `left < right`; evaluated at once if the range of the difference determines it."""
    first, second = as_expr(left), as_expr(right)
    if first.high < second.low:
        return TRUE
    if first.low >= second.high:
        return FALSE
    gap = subtract(second, first)
    if gap.low > 0:
        return TRUE
    if gap.high <= 0:
        return FALSE
    return Less(_rounded(first, second), second)


def _rounded(left: Expr, right: Expr) -> Expr:
    """The left side of a comparison without the irrelevant part of its constant: `8*x + 3 < 8*y` if and only if `8*x < 8*y`."""
    terms, number = terms_of(left)
    step = right.factor
    for atoms, coefficient in terms:
        step = math.gcd(step, product_range(atoms, coefficient)[2])
    rest = number % step if terms and step else 0
    return polynomial(dict(terms), number - rest) if rest else left


def equal(left: Expr | int, right: Expr | int) -> Expr:
    """The truth of `left == right`."""
    first, second = as_expr(left), as_expr(right)
    gap = subtract(first, second)
    if gap.low > 0 or gap.high < 0:
        return FALSE
    if gap.low == gap.high:
        return TRUE
    return Equal(first, second)


def _parts(conditions: Iterable[Expr], kind: type[All] | type[AnyOf]) -> Iterable[Expr]:
    try:
        every = iter(conditions)
    except TypeError:
        legal = "all_of((less(a, b), equal(c, d)))"
        raise ArgumentError("conditions to join must come in a sequence", got=conditions, legal=legal) from None
    for condition in every:
        if not isinstance(condition, Expr) or condition.low < 0 or condition.high > 1:
            raise ArgumentError(f"{shown(condition)} is not a condition", legal="less(a, b), equal(a, b), all_of or any_of of conditions")
        yield from condition.conditions if isinstance(condition, kind) else (condition,)


def all_of(conditions: Iterable[Expr]) -> Expr:
    """The conjunction; true if there are no conditions. Equal conditions occur once, in order of first appearance."""
    flat: dict[Expr, None] = {}
    for part in _parts(conditions, All):
        if part.__class__ is not Const:  # most parts; a comparison of other classes would take two calls
            flat[part] = None
        elif part == FALSE:
            return FALSE
        elif part != TRUE:
            flat[part] = None
    parts = tuple(flat)
    return TRUE if not parts else parts[0] if len(parts) == 1 else All(parts)


def any_of(conditions: Iterable[Expr]) -> Expr:
    """The disjunction; false if there are no conditions."""
    flat: dict[Expr, None] = {}
    for part in _parts(conditions, AnyOf):
        if part == TRUE:
            return TRUE
        if part != FALSE:
            flat[part] = None
    parts = tuple(flat)
    return FALSE if not parts else parts[0] if len(parts) == 1 else AnyOf(parts)


def conjuncts(condition: Expr) -> Atoms:
    """The parts of a conjunction; none for true."""
    if condition.__class__ is Const and condition == TRUE:
        return ()
    return condition.conditions if isinstance(condition, All) else (condition,)
