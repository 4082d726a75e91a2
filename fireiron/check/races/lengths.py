"""Fill indices, stages and conditions with assumed trip counts."""

from __future__ import annotations

from collections.abc import Mapping

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
    """A value at an assumed trip count, if it is a constant distance from an extent, or from a multiple of it, or the stage of such a fill;
    else None.
    """
    times = _times(value, extent)
    rest = value - extent * times
    if extent.variables().isdisjoint(rest.variables()):
        return length * times + rest
    stages = constant(value.right) if isinstance(value, Mod) else None
    if not isinstance(value, Mod) or stages is None:
        return None
    reduced = mod(extent, as_expr(stages))  # this is how the stage of a sum with the extent is expressed
    rest = value.left - (reduced.left if isinstance(reduced, Mod) and reduced.right == value.right else reduced)
    if extent.variables().isdisjoint(rest.variables()):
        return mod(length + rest, as_expr(stages))
    return next(
        (mod(length + distance, as_expr(stages)) for distance in range(stages) if mod(extent + distance, as_expr(stages)) == value), None
    )


def _times(value: Expr, extent: Expr) -> int:
    """How often an extent occurs in a value, by its first term."""
    (atoms, each), *_ = linear(extent)[0]
    return dict(linear(value)[0]).get(atoms, 0) // each


__all__ = ["at_lengths"]
