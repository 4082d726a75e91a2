"""Indices of stored arrays: coordinates, digits of coordinates, and numbers that a kernel reads from arrays of integers.

An indirect tensor has the dimensions of a formula, `K[b,n,g,d]`, and another storage: `K[table[b,n // 16],n % 16,g,d]`. Its address is the
sum of a direct part, a layout, and a part for each table: the number in the table times a stride. Coordinates, tiles and bounds are those
of the formula. So only addresses depend on data.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from fireiron.errors import ArgumentError
from fireiron.values.affine import AffineIndex
from fireiron.values.expr import ONE, TRUE, ZERO, Expr, as_expr, constant, less, lookup, minimum
from fireiron.values.layout import Layout


@attrs.frozen(cache_hash=True)
class DimIndex:
    """The coordinate of dimension number `dim`, its quotient by `divisor`, and the remainder of this by `modulus` (0: not a remainder)."""

    dim: int
    divisor: int = 1
    modulus: int = 0

    def of(self, coordinate: Any) -> Any:
        """The index for a coordinate: an integer or an array of integers."""
        quotient = coordinate if self.divisor == 1 else coordinate // self.divisor
        return quotient % self.modulus if self.modulus else quotient


@attrs.frozen(cache_hash=True)
class TableIndex:
    """An element of an array of integers. `index`, `sizes` and `strides` (in elements) are those of its dimensions.

    `promised`: each of its elements is an index of the dimension. Otherwise a kernel clamps the element; or, of a tensor that it writes
    (`drops`), it writes no element whose number is not an index.
    """

    array: str
    index: tuple[DimIndex, ...]
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    promised: bool = False
    drops: bool = False


ArrayIndex = DimIndex | TableIndex | AffineIndex
"""The index along one dimension of a stored array."""


@attrs.frozen(cache_hash=True)
class Table:
    """The part of an address that an array of integers determines: `stride` elements times the number at a place of the array.

    - `layout`: the place by coordinates of the tensor, one mode per dimension.
    - `most`: the largest legal number; the smallest is 0. `promised`: the numbers are legal, so the kernel does not clamp them.
    - `drops`: elements by other numbers are not written (`inside`).
    """

    array: str
    layout: Layout
    stride: Expr = attrs.field(converter=as_expr)
    most: Expr = attrs.field(converter=as_expr)
    promised: bool = False
    drops: bool = False

    def has(self, dim: int) -> bool:
        """Whether the place depends on the coordinate of a dimension."""
        return bool(list(self.layout)[dim].digits)

    def place(self, coordinates: Sequence[Any]) -> Any:
        """The place in the array, by coordinates: expressions, integers or arrays of integers.

        Out-of-bounds coordinates have places inside the array, too: `cp.async` evaluates the address of an element that it does not copy.
        Quotients are limited, not coordinates. So the compiler recognizes equal places of adjacent coordinates.
        """
        total: Any = ZERO if all(isinstance(one, Expr) for one in coordinates) else 0
        for coordinate, mode in zip(coordinates, self.layout, strict=True):
            for digit in mode.digits:
                total = total + _limited(digit.of(coordinate), digit.size) * digit.weight
        return total

    def number(self, coordinates: Sequence[Expr]) -> Expr:
        """The number that the kernel reads, from 0 to `most`; if it may be another one, `most + 1` or more in a tensor that is written."""
        if self.drops and not self.promised:
            return lookup(self.array, self.place(coordinates), self.most + 1, ends=True)
        value = lookup(self.array, self.place(coordinates), self.most, self.promised)
        return value if constant(self.most) is not None or self.promised else minimum(value, self.most)

    def unclamped(self, coordinates: Sequence[Expr]) -> Expr:
        """The number as it is in the array."""
        return lookup(self.array, self.place(coordinates), self.most, promised=True)

    def inside(self, coordinates: Sequence[Expr]) -> Expr:
        """The condition that an element is written: that its number is an index."""
        return less(self.number(coordinates), self.most + 1) if self.drops and not self.promised else TRUE

    def evaluated(self, sizes: Mapping[str, int]) -> Table:
        """The table with numbers in place of run-time sizes and strides."""
        numbers = self.layout.evaluated(sizes), self.stride.evaluate(sizes), self.most.evaluate(sizes)
        return Table(self.array, *numbers, self.promised, self.drops)


def _limited(value: Any, size: int | Expr) -> Any:
    """A digit, at most its size minus 1."""
    if isinstance(value, Expr):
        return minimum(value, as_expr(size) - 1)
    import numpy  # slow to import, and only needed here

    return numpy.minimum(value, (constant(size) or 1) - 1)


def layout_by_digits(shape: Sequence[Expr], parts: Iterable[tuple[DimIndex, Expr]]) -> Layout:
    """The layout with one mode per dimension that adds, for each part, its index times its stride.

    >>> print(layout_by_digits((as_expr(8), as_expr(128)), [(DimIndex(0), as_expr(2)), (DimIndex(1, 64), as_expr(1))]))
    (8,(64,2)):(2,(0,1))

    Raises: ArgumentError if the divisors of a dimension do not divide each other.
    """
    given = list(parts)
    modes = [_mode(size, [(index, stride) for index, stride in given if index.dim == dim]) for dim, size in enumerate(shape)]
    return Layout(tuple(sizes for sizes, _ in modes), tuple(strides for _, strides in modes))


def _mode(size: Expr, parts: Sequence[tuple[DimIndex, Expr]]) -> tuple[Any, Any]:
    """The sizes and strides of the digits of a coordinate."""
    ends = {index.divisor * index.modulus for index, _ in parts if index.modulus}
    bases = sorted({1} | {index.divisor for index, _ in parts} | ends)
    for base, larger in itertools.pairwise(bases):
        if larger % base:
            raise ArgumentError(f"digits of a dimension by {base} and by {larger}", legal="divisors that divide each other")
    sizes = [as_expr(larger // base) for base, larger in itertools.pairwise(bases)]
    sizes.append((size + (bases[-1] - 1)) // bases[-1])
    strides = [sum((_weight(index, stride, base) for index, stride in parts), start=ZERO) for base in bases]
    plain = [_plain(one) for one in sizes], [_plain(one) for one in strides]
    return (plain[0][0], plain[1][0]) if len(bases) == 1 else (tuple(plain[0]), tuple(plain[1]))


def _weight(index: DimIndex, stride: Expr, base: int) -> Expr:
    """The elements that a step of `base` coordinates adds to an address."""
    end = index.divisor * index.modulus
    return stride * (base // index.divisor) if base >= index.divisor and (not end or base < end) else ZERO


def _plain(value: Expr) -> int | Expr:
    number = constant(value)
    return value if number is None else number


def tables_of_index(
    shape: Sequence[Expr], index: Sequence[ArrayIndex], sizes: Sequence[Expr], strides: Sequence[Expr]
) -> tuple[Layout, tuple[Table, ...]]:
    """The direct part of an address and its tables, from the indices, sizes and strides of an array; `shape` is that of the tensor."""
    direct = [pair for part, stride in zip(index, strides, strict=True) for pair in _direct(part, stride)]
    tables = tuple(
        Table(
            part.array, layout_by_digits(shape, zip(part.index, part.strides, strict=True)), stride, size - ONE, part.promised, part.drops
        )
        for part, size, stride in zip(index, sizes, strides, strict=True)
        if isinstance(part, TableIndex)
    )  # fmt: skip
    return layout_by_digits(shape, direct), tables


def _direct(index: ArrayIndex, stride: Expr) -> list[tuple[DimIndex, Expr]]:
    """The digits of an index that add to the direct part of an address, each with its stride."""
    if isinstance(index, AffineIndex):
        direct = [(DimIndex(dim), stride * factor) for dim, factor in index.terms if factor > 0]
        return direct + [(DimIndex(term.dim, term.divisor, term.modulus), stride * term.factor) for term in index.digits]
    return [(index, stride)] if isinstance(index, DimIndex) else []
