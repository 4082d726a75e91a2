"""Fill indices, stages and conditions with assumed trip counts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from fireiron.check.access_trace import linear
from fireiron.values.expr import Expr, Mod, as_expr, constant, mod, replaced


def at_lengths(value: Expr, lengths: Mapping[Expr, Expr]) -> Expr:
    """An expression with assumed trip counts in place of extents. It is built from extents, or is a constant distance from one."""
    # A software-pipelined loop has one iteration less than the original, whose fills are counted.
    result = replaced(value, {extent + distance: length + distance for extent, length in lengths.items() for distance in (0, 1)})
    for extent, length in lengths.items():
        if result.variables() & extent.variables():
            at = _at_length(result, extent, length)
            result = result if at is None else at
    return result


def _at_length(value: Expr, extent: Expr, length: Expr) -> Expr | None:
    """A value at an assumed trip count, if it is a multiple of an extent plus other values, or the stage of such a fill; else None.

    Inside another loop, the multiple is the iteration of that loop.
    """
    in_sum = _in_sum(value, extent, length)
    if in_sum is not None:
        return in_sum
    stages = constant(value.right) if isinstance(value, Mod) else None
    if not isinstance(value, Mod) or stages is None:
        return None
    fill = _in_sum(value.left, extent, length)
    if fill is not None:
        return mod(fill, as_expr(stages))
    reduced = mod(extent, as_expr(stages))  # this is how the stage of a sum with the extent is expressed
    rest = value.left - (reduced.left if isinstance(reduced, Mod) and reduced.right == value.right else reduced)
    if extent.variables().isdisjoint(rest.variables()):
        return mod(length + rest, as_expr(stages))
    return next(
        (mod(length + distance, as_expr(stages)) for distance in range(stages) if mod(extent + distance, as_expr(stages)) == value), None
    )


def _in_sum(value: Expr, extent: Expr, length: Expr) -> Expr | None:
    """A value at an assumed trip count, if it is a multiple of an extent plus values of other variables; else None."""
    times = _times(value, extent)
    rest = value - extent * times
    both = extent.variables()
    return length * times + rest if both.isdisjoint(rest.variables()) and both.isdisjoint(times.variables()) else None


def _times(value: Expr, extent: Expr) -> Expr:
    """How often an extent occurs in a value, by its first term: a number, or an expression of the variables of outer loops."""
    (atoms, each), *_ = linear(extent)[0]
    times = as_expr(0)
    for factors, coefficient in linear(value)[0]:
        others = _without(factors, atoms)
        if others is not None and coefficient % each == 0:
            times += math.prod(others, start=as_expr(coefficient // each))
    return times


def _without(factors: Iterable[Expr], atoms: Iterable[Expr]) -> list[Expr] | None:
    """The factors of a term without those of another term; None if one of these is missing."""
    others = list(factors)
    for atom in atoms:
        if atom not in others:
            return None
        others.remove(atom)
    return others


__all__ = ["at_lengths"]
