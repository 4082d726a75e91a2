"""Affine indices of stored arrays, and the windows of coordinates whose index is inside of the array.

The index `p*2 + r - 1` is a sum of coordinates times factors, plus an offset. It changes the strides of a tensor, and the address of its
first element. If it may leave the array, a `Window` states where it is inside; elements outside of the array read as zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from fireiron.values.expr import TRUE, ZERO, Expr, all_of, as_expr, constant, less


@attrs.frozen(cache_hash=True)
class AffineIndex:
    """The sum of the coordinates of dimensions times factors, `terms`, and of an offset."""

    terms: tuple[tuple[int, int], ...]
    offset: Expr = attrs.field(default=ZERO, converter=as_expr)

    def of(self, coordinates: Sequence[Any]) -> Any:
        """The index for coordinates: expressions; or, if the offset is a number, integers or arrays of integers."""
        exact = any(isinstance(coordinates[dim], Expr) for dim, _ in self.terms)
        total: Any = self.offset if exact else constant(self.offset)
        for dim, factor in self.terms:
            total = total + coordinates[dim] * factor
        return total

    def has(self, dim: int) -> bool:
        """Whether the index depends on the coordinate of a dimension."""
        return any(own == dim for own, _ in self.terms)

    def evaluated(self, sizes: Mapping[str, int]) -> AffineIndex:
        """The index with a number in place of an offset that is known only at run time."""
        return AffineIndex(self.terms, self.offset.evaluate(sizes))


@attrs.frozen(cache_hash=True)
class Window:
    """The coordinates at which an index is inside of an array, from 0 to below `extent`.

    `from_zero`, `below_end`: which of both sides is tested, because the index may leave the array there.
    """

    index: AffineIndex
    extent: Expr = attrs.field(converter=as_expr)
    from_zero: bool = True
    below_end: bool = True

    def inside(self, coordinates: Sequence[Expr]) -> Expr:
        """The condition that an element is in the array."""
        place = self.index.of(coordinates)
        low = [less(ZERO, place + 1)] if self.from_zero else []
        return all_of((*low, *([less(place, self.extent)] if self.below_end else [])))

    def misses(self, coordinates: Sequence[Any]) -> Any:
        """Where elements at coordinates, integers or arrays of them, are not in the array; sizes are numbers."""
        place = self.index.of(coordinates)
        return (place < 0) | (place >= constant(self.extent))

    def same(self, steps: Iterable[Sequence[int]]) -> bool:
        """Whether elements at these steps from a coordinate have the same index."""
        return len({sum(step[dim] * factor for dim, factor in self.index.terms) for step in steps}) == 1

    def evaluated(self, sizes: Mapping[str, int]) -> Window:
        """The window with numbers in place of run-time sizes."""
        return Window(self.index.evaluated(sizes), self.extent.evaluate(sizes), self.from_zero, self.below_end)


def window(index: AffineIndex, shape: Sequence[Expr], extent: Expr) -> Window | None:
    """The window of an index of a tensor with this shape; None if the index never leaves the array.

    >>> print(window(AffineIndex(((0, 2), (1, 1)), -1), (as_expr(4), as_expr(3)), as_expr(10)).below_end)
    False
    """
    least = most = index.offset
    for dim, factor in index.terms:
        least, most = (least + (shape[dim] - 1) * factor, most) if factor < 0 else (least, most + (shape[dim] - 1) * factor)
    from_zero, below_end = least.low < 0, less(most, extent) != TRUE
    return Window(index, extent, from_zero, below_end) if from_zero or below_end else None


def affine_text(terms: Iterable[tuple[str, int]], offset: object) -> str:
    """The text of an affine index by the names of its terms: `p * 2 + r - 1`; an offset of run-time sizes comes first.

    >>> affine_text([("p", 2), ("r", 1)], -1)
    'p * 2 + r - 1'
    """
    number = constant(offset) if isinstance(offset, Expr) else offset
    parts = [(factor < 0, name if abs(factor) == 1 else f"{name} * {abs(factor)}") for name, factor in terms]
    if not isinstance(number, int):
        parts.insert(0, (False, str(offset)))
    elif number:
        parts.append((number < 0, str(abs(number))))
    text = " ".join(f"{'-' if negative else '+'} {part}" for negative, part in parts)
    return text.removeprefix("+ ")


__all__ = ["AffineIndex", "Window", "affine_text", "window"]
