"""Affine indices of stored arrays, and the windows of coordinates whose index is inside of the array.

The index `p*2 + r - 1` is a sum of coordinates times factors, plus an offset. It changes the strides of a tensor, and the address of its
first element. If it may leave the array, a `Window` states where it is inside; elements outside of the array read as a constant. A term may
be a digit of a coordinate, `m // 56 % 56 * 2`, so one dimension enumerates several of an array. Three kinds of indices are no layout of
coordinates, and `ComputedIndex` is their part of an address: an exact quotient, `(p + 1 - r) / 2`, an index outside of the array that a
padding mode moves into it, and one that decreases with a digit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.values.expr import TRUE, ZERO, Expr, all_of, as_expr, constant, equal, less, minimum, mod

REPLICATE: Final = "replicate"
REFLECT: Final = "reflect"
CIRCULAR: Final = "circular"
PADDING_MODES: Final = (REPLICATE, REFLECT, CIRCULAR)
"""Padding modes other than a constant: an index outside of the array is moved into it (PyTorch: `torch.nn.functional.pad`)."""


@attrs.frozen(cache_hash=True)
class DigitTerm:
    """A digit of the coordinate of dimension `dim`, times `factor`: `coordinate // divisor % modulus`; a quotient if `modulus` is 0."""

    dim: int
    factor: int
    divisor: int = 1
    modulus: int = 0

    def digit(self, coordinate: Any) -> Any:
        """The digit of a coordinate: an expression, an integer or an array of integers."""
        quotient = coordinate if self.divisor == 1 else coordinate // self.divisor
        return quotient % self.modulus if self.modulus else quotient

    def last(self, size: Expr) -> Expr:
        """The largest digit of a dimension of `size` coordinates, or an upper bound of it."""
        quotient = (size - 1) // self.divisor
        return minimum(quotient, as_expr(self.modulus - 1)) if self.modulus else quotient


@attrs.frozen(cache_hash=True)
class AffineIndex:
    """The sum of the coordinates of dimensions times factors, `terms`, of `digits`, and of an offset; divided by `divisor`.

    If the divisor is not 1, only elements with an exact quotient exist.
    """

    terms: tuple[tuple[int, int], ...]
    offset: Expr = attrs.field(default=ZERO, converter=as_expr)
    divisor: int = 1
    digits: tuple[DigitTerm, ...] = ()

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions whose coordinates it has."""
        return tuple(dict.fromkeys((*(dim for dim, _ in self.terms), *(term.dim for term in self.digits))))

    def of(self, coordinates: Sequence[Any]) -> Any:
        """The index for coordinates: expressions; or, if the offset is a number, integers or arrays of integers."""
        total = self.dividend(coordinates)
        return total if self.divisor == 1 else total // self.divisor

    def dividend(self, coordinates: Sequence[Any]) -> Any:
        """The sum before the division."""
        exact = any(isinstance(coordinates[dim], Expr) for dim in self.dims)
        total: Any = self.offset if exact else constant(self.offset)
        for dim, factor in self.terms:
            total = total + coordinates[dim] * factor
        for term in self.digits:
            total = total + term.digit(coordinates[term.dim]) * term.factor
        return total

    def has(self, dim: int) -> bool:
        """Whether the index depends on the coordinate of a dimension."""
        return dim in self.dims

    def same(self, steps: Iterable[Sequence[int]], starts: Sequence[Expr] | None = None) -> bool:
        """Whether elements at these steps from a coordinate, `starts` if it is known, have the same index.

        A digit is the same for coordinates from a multiple of its divisor on, as far as the divisor.
        """
        given = list(steps)
        return len({sum(step[dim] * factor for dim, factor in self.terms) for step in given}) == 1 and all(
            _same_digit(term, [step[term.dim] for step in given], None if starts is None else starts[term.dim]) for term in self.digits
        )

    def evaluated(self, sizes: Mapping[str, int]) -> AffineIndex:
        """The index with a number in place of an offset that is known only at run time."""
        return AffineIndex(self.terms, self.offset.evaluate(sizes), self.divisor, self.digits)


def _same_digit(term: DigitTerm, steps: Sequence[int], start: Expr | None) -> bool:
    """Whether coordinates at these steps from a start, unknown if None, have the same digit."""
    if len(set(steps)) == 1:
        return True
    first = 0 if start is None else math.gcd(start.factor, term.divisor)
    return first > 0 and len({step // first for step in steps}) == 1


@attrs.frozen(cache_hash=True)
class Window:
    """The coordinates at which an index is inside of an array: its quotient is exact, and from 0 to below `extent`.

    `from_zero`, `below_end`: which of both sides is tested, because the index may leave the array there.
    """

    index: AffineIndex
    extent: Expr = attrs.field(converter=as_expr)
    from_zero: bool = True
    below_end: bool = True

    def inside(self, coordinates: Sequence[Expr]) -> Expr:
        """The condition that an element is in the array."""
        place, divisor = self.index.dividend(coordinates), self.index.divisor
        low = [less(ZERO, place + 1)] if self.from_zero else []
        high = [less(place, self.extent * divisor)] if self.below_end else []
        exact = [equal(mod(place, as_expr(divisor)), ZERO)] if divisor > 1 else []
        return all_of((*low, *high, *exact))

    def misses(self, coordinates: Sequence[Any]) -> Any:
        """Where elements at coordinates, integers or arrays of them, are not in the array; sizes are numbers."""
        place, divisor = self.index.dividend(coordinates), self.index.divisor
        outside = (place < 0) | (place >= constant(self.extent * divisor))
        return outside if divisor == 1 else outside | (place % divisor != 0)

    def same(self, steps: Iterable[Sequence[int]], starts: Sequence[Expr] | None = None) -> bool:
        """Whether elements at these steps from a coordinate, `starts` if it is known, have the same index."""
        return self.index.same(steps, starts)

    def evaluated(self, sizes: Mapping[str, int]) -> Window:
        """The window with numbers in place of run-time sizes."""
        return Window(self.index.evaluated(sizes), self.extent.evaluate(sizes), self.from_zero, self.below_end)


@attrs.frozen(cache_hash=True)
class ComputedIndex:
    """The part of an address that an index adds which is no layout of the coordinates: `stride` elements times the index.

    `mode` is a padding mode that moves the index into an array of `extent` elements; without a mode, the index is an exact quotient, or
    decreases with a digit.
    """

    index: AffineIndex
    extent: Expr = attrs.field(converter=as_expr)
    stride: Expr = attrs.field(converter=as_expr)
    mode: str = ""

    def of(self, coordinates: Sequence[Any]) -> Any:
        """The index in the array for coordinates: expressions; or integers or arrays of integers, if sizes are numbers.

        A negative index, or the quotient of a negative number, is 0, because C++ rounds it toward zero, and because its element is not
        accessed.
        """
        if not self.mode:
            inside = _most(self.index.dividend(coordinates), 0)
            return inside if self.index.divisor == 1 else inside // self.index.divisor
        place = self.index.of(coordinates)
        exact = isinstance(place, Expr)
        return moved_inside(place, self.extent if exact else constant(self.extent), self.mode)

    def has(self, dim: int) -> bool:
        """Whether the index depends on the coordinate of a dimension."""
        return self.index.has(dim)

    def evaluated(self, sizes: Mapping[str, int]) -> ComputedIndex:
        """The index with numbers in place of run-time sizes and strides."""
        return ComputedIndex(self.index.evaluated(sizes), self.extent.evaluate(sizes), self.stride.evaluate(sizes), self.mode)


def moved_inside(place: Any, extent: Any, mode: str) -> Any:
    """The index inside of an array of `extent` elements, at least 1, to which a padding mode moves any index.

    An index beyond the first repetition is moved again, as by `numpy.pad`: `reflect` has a period of 2 * extent - 2.

    >>> [moved_inside(place, 4, "reflect") for place in range(-4, 8)]
    [2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1]
    """
    if mode == REPLICATE:
        return _least(_most(place, 0), extent - 1)
    if mode == CIRCULAR:
        return _remainder(place, extent)
    period = _most(extent * 2 - 2, 1)
    first = _remainder(place, period)
    return _least(first, period - first)


def _least(left: Any, right: Any) -> Any:
    if isinstance(left, Expr) or isinstance(right, Expr):
        return minimum(left, right)
    import numpy

    result = numpy.minimum(left, right)
    return result if numpy.ndim(result) else int(result)


def _most(left: Any, right: Any) -> Any:
    """The larger of two values; `right` is a number."""
    return -1 * _least(left * -1, -right)


def _remainder(place: Any, period: Any) -> Any:
    """The remainder, never negative."""
    if not isinstance(place, Expr):
        return place % period
    size = as_expr(period)
    if place.low >= 0 or constant(size) is not None:
        return mod(place, size)
    # C's `%` has the sign of the dividend, and the period is known only at run time: negative numbers are counted from the end.
    below = less(place, ZERO) * (size - 1 - mod(_most(place * -1 - 1, 0), size))
    return mod(_most(place, 0), size) + below


def window(index: AffineIndex, shape: Sequence[Expr], extent: Expr) -> Window | None:
    """The window of an index of a tensor with this shape; None if the index never leaves the array.

    >>> print(window(AffineIndex(((0, 2), (1, 1)), -1), (as_expr(4), as_expr(3)), as_expr(10)).below_end)
    False
    """
    least = most = index.offset
    for dim, factor in index.terms:
        least, most = (least + (shape[dim] - 1) * factor, most) if factor < 0 else (least, most + (shape[dim] - 1) * factor)
    for term in index.digits:
        end = term.last(shape[term.dim]) * term.factor
        least, most = (least + end, most) if term.factor < 0 else (least, most + end)
    from_zero, below_end = least.low < 0, less(most, extent * index.divisor) != TRUE
    return Window(index, extent, from_zero, below_end) if from_zero or below_end or index.divisor > 1 else None


def digit_text(name: str, divisor: int, modulus: int) -> str:
    """The text of a digit: `m // 56 % 56`."""
    quotient = name if divisor == 1 else f"{name} // {divisor}"
    return f"{quotient} % {modulus}" if modulus else quotient


def affine_text(terms: Iterable[tuple[str, int]], offset: object, divisor: int = 1) -> str:
    """The text of an affine index by the names of its terms: `p * 2 + r - 1`; an offset of run-time sizes comes first.

    >>> affine_text([("p", 2), ("r", 1)], -1)
    'p * 2 + r - 1'
    >>> affine_text([("p", 1), ("r", -1)], 1, 2)
    '(p - r + 1) / 2'
    """
    number = constant(offset) if isinstance(offset, Expr) else offset
    parts = [(factor < 0, name if abs(factor) == 1 else f"{name} * {abs(factor)}") for name, factor in terms]
    if not isinstance(number, int):
        parts.insert(0, (False, str(offset)))
    elif number:
        parts.append((number < 0, str(abs(number))))
    text = " ".join(f"{'-' if negative else '+'} {part}" for negative, part in parts).removeprefix("+ ")
    if divisor == 1:
        return text
    return f"{text} / {divisor}" if text.isidentifier() else f"({text}) / {divisor}"


__all__ = [
    "CIRCULAR",
    "PADDING_MODES",
    "REFLECT",
    "REPLICATE",
    "AffineIndex",
    "ComputedIndex",
    "DigitTerm",
    "Window",
    "affine_text",
    "digit_text",
    "moved_inside",
    "window",
]
