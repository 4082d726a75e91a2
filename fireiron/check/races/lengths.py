"""Numbers of turns, stages and conditions where loops have lengths that are assumed."""

from __future__ import annotations

from collections.abc import Mapping

from fireiron.check.access_trace import linear
from fireiron.values.expr import Expr, Mod, as_expr, constant, mod, replaced


def at_lengths(value: Expr, lengths: Mapping[Expr, Expr]) -> Expr:
    """The number of a turn, or a stage, with assumed lengths for extents: of those it is made, or it is so many turns away from one."""
    # A rotated loop has a turn less than what it was made of, whose turns are counted.
    found = replaced(value, {extent + away: length + away for extent, length in lengths.items() for away in (0, 1)})
    for extent, length in lengths.items():
        if found.variables() & extent.variables():
            at = _at_length(found, extent, length)
            found = found if at is None else at
    return found


def _at_length(value: Expr, extent: Expr, length: Expr) -> Expr | None:
    """A value that is so many turns away from an extent, or from a multiple of it, or the stage of such a turn, at an assumed length; None
    if it is none of these.
    """
    times = _times(value, extent)
    rest = value - extent * times
    if extent.variables().isdisjoint(rest.variables()):
        return length * times + rest
    stages = constant(value.right) if isinstance(value, Mod) else None
    if not isinstance(value, Mod) or stages is None:
        return None
    reduced = mod(extent, as_expr(stages))  # which is what the stage of a sum with it is made of
    rest = value.left - (reduced.left if isinstance(reduced, Mod) and reduced.right == value.right else reduced)
    if extent.variables().isdisjoint(rest.variables()):
        return mod(length + rest, as_expr(stages))
    return next((mod(length + away, as_expr(stages)) for away in range(stages) if mod(extent + away, as_expr(stages)) == value), None)


def _times(value: Expr, extent: Expr) -> int:
    """How many times an extent is in a value, by its first term."""
    (atoms, each), *_ = linear(extent)[0]
    return dict(linear(value)[0]).get(atoms, 0) // each


__all__ = ["at_lengths"]
