"""Hilbert's curve over a grid of any size, as an expression: a permutation of the numbers of its cells.

The curve covers the enclosing square whose side is a power of two, and skips cells outside the grid. It visits a square quarter by quarter:
near and far along one axis, and within each half back and forth along the other. In the first and the last quarter the axes are exchanged,
and in the last both run backwards, so that each quarter begins next to the end of the previous one.
"""

from __future__ import annotations

from typing import Any

from fireiron.values.expr.nodes import INT_MAX, ONE, Atoms, Expr, as_expr, constant, integer, node, range_fields, set_range


@node
class Hilbert(Expr):
    """The cell, numbered row by row, with position `number` on the curve through `lines` x `columns` cells.

    For numbers from 0 to `lines * columns - 1`, which is at most 2**31 - 1.
    """

    number: Expr
    lines: Expr
    columns: Expr
    low: int = range_fields()
    high: int = range_fields()
    factor: int = range_fields()

    def __attrs_post_init__(self) -> None:
        set_range(self, 0, min(max(self.lines.high * self.columns.high - 1, 0), INT_MAX))

    @property
    def children(self) -> Atoms:
        return (self.number, self.lines, self.columns)

    def rebuilt(self, children: Atoms) -> Expr:
        return hilbert(*children)


def hilbert(number: Expr | int, lines: Expr | int, columns: Expr | int) -> Expr:
    """The cell, numbered row by row, at position `number` of Hilbert's curve through `lines` x `columns` cells.

    Any two sizes are legal; in a grid of one row or one column it is the number itself.

    >>> [hilbert(number, 2, 3).value for number in range(6)]
    [0, 3, 4, 1, 2, 5]
    """
    number, lines, columns = as_expr(number), as_expr(lines), as_expr(columns)
    if ONE in (lines, columns):
        return number
    at, height, width = constant(number), constant(lines), constant(columns)
    if at is None or height is None or width is None:
        return Hilbert(number, lines, columns)
    return integer(place_on_curve(at, height, width))


def place_on_curve(number: Any, lines: Any, columns: Any) -> Any:
    """The definition of `hilbert`, for integers or NumPy arrays."""
    if not (_is_scalar(lines) and _is_scalar(columns)):
        import numpy  # slow to import, and only needed here

        return numpy.vectorize(_place, otypes=[numpy.int64])(number, lines, columns)
    return _place(number, int(lines), int(columns))


def _is_scalar(size: Any) -> bool:
    return getattr(size, "ndim", 0) == 0


def _place(number: Any, lines: int, columns: int) -> Any:
    # `first` and `second` are the axes in the order of the curve; `inside` is the part of the current square in the grid.
    first, second, first_inside, second_inside = number * 0, number * 0, number * 0 + lines, number * 0 + columns
    swapped = backward = number * 0
    side = 1 << (max(lines, columns) - 1).bit_length() >> 1
    while side:
        near = _least(first_inside, side)
        before = _chosen(backward, first_inside - near, near) * second_inside
        half = (number >= before) * 1
        number = number - half * before
        far = half ^ backward
        first, first_inside = first + far * side, _chosen(far, first_inside - near, near)
        near = _least(second_inside, side)
        before = _chosen(far, second_inside - near, near) * first_inside
        quarter = (number >= before) * 1
        number = number - quarter * before
        far = far ^ quarter
        second, second_inside = second + far * side, _chosen(far, second_inside - near, near)
        exchanged = 1 - (half ^ quarter)
        first, second = _chosen(exchanged, second, first), _chosen(exchanged, first, second)
        first_inside, second_inside = _chosen(exchanged, second_inside, first_inside), _chosen(exchanged, first_inside, second_inside)
        swapped, backward = swapped ^ exchanged, backward ^ (exchanged & half)
        side >>= 1
    return _chosen(swapped, second, first) * columns + _chosen(swapped, first, second)


def _chosen(condition: Any, yes: Any, no: Any) -> Any:
    return no + condition * (yes - no)


def _least(value: Any, limit: int) -> Any:
    return value - (value > limit) * (value - limit)
