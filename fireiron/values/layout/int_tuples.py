"""Integers and nested tuples of integers: shapes, strides and coordinates; flatten, count and compare them."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

from attrs import frozen

from fireiron.errors import ArgumentError, LayoutError
from fireiron.errors import shown as shown_value
from fireiron.values.expr import Expr, constant

IntTuple: TypeAlias = "int | tuple[IntTuple, ...]"
Mode: TypeAlias = tuple[int, int]
"""One leaf of a layout: size, stride."""


def is_int(x: object) -> bool:
    """Whether `x` is an `int`, and not of a derived class such as bool.

    >>> is_int(3), is_int(True), is_int(3.0)
    (True, False, False)
    """
    return type(x) is int


def is_expression(x: object) -> bool:
    """Whether `x` can represent an unknown integer: it has `+ * // %`, and is neither a plain number nor an array of other values.

    >>> is_expression(3), is_expression(2.5), is_expression("M")
    (False, False, False)
    """
    if isinstance(x, (numbers.Number, str, bytes, tuple, list)) or not all(
        hasattr(x, f"__{operation}__") for operation in ("add", "mul", "floordiv", "mod")
    ):
        return False
    return getattr(getattr(x, "dtype", None), "kind", "i") in "iu"


MAX_DEPTH = 32
"""Maximum nesting of tuples: far above any use, far below Python's recursion limit."""


def check_tree(what: str, x: object, least: int, level: int = 0, expressions: bool = False) -> IntTuple:
    """Return `x` if it is an integer of at least `least`, or a tuple of such; with `expressions`, leaves may be index expressions.

    Raises: `ArgumentError` for another type, `LayoutError` for an integer that is too small.
    """
    if type(x) is int and x >= least:  # the usual case: layouts of one mode, one per tile of each operand
        return x
    if isinstance(x, tuple):
        check_depth(level)
        return tuple(check_tree(what, y, least, level + 1, expressions) for y in x)
    if expressions and isinstance(x, Expr):
        number = constant(x)
        if number is None:
            return cast("IntTuple", x)
        x = number
    if not is_int(x):
        raise ArgumentError(f"a {what} is an integer or a tuple of {what}s", got=x, legal=f"int >= {least}, or tuples of them")
    value = int(cast(int, x))
    if value < least:
        raise LayoutError(f"a {what} is at least {least}", got=value, legal=f"int >= {least}, or tuples of them")
    return value


def check_depth(level: int) -> None:
    """Refuse tuples nested deeper than `MAX_DEPTH`."""
    if level > MAX_DEPTH:
        raise LayoutError(f"tuples nest deeper than {MAX_DEPTH} levels", legal=f"at most {MAX_DEPTH} levels")


def as_shape(x: IntTuple) -> IntTuple:
    return check_tree("shape", x, 1, expressions=True)


def as_stride(x: IntTuple | None) -> IntTuple:
    return cast("IntTuple", None) if x is None else check_tree("stride", x, 0, expressions=True)


def flatten(tree: IntTuple) -> tuple[int, ...]:
    """The leaves of an IntTuple, left to right.

    >>> flatten((4, (2, 4)))
    (4, 2, 4)
    """
    return tuple(leaf for part in tree for leaf in flatten(part)) if isinstance(tree, tuple) else (tree,)


def product(tree: IntTuple) -> int:
    """The product of all leaves of an IntTuple; 1 for `()`.

    >>> product((4, (2, 4)))
    32
    """
    return functools.reduce(lambda x, y: x * y, flatten(tree), 1)


def rank(tree: IntTuple) -> int:
    """The number of modes: the length of a tuple, 1 for an integer.

    >>> rank((4, (2, 4))), rank(8)
    (2, 1)
    """
    return len(tree) if isinstance(tree, tuple) else 1


def depth(tree: IntTuple) -> int:
    """The nesting depth of tuples: 0 for an integer.

    >>> depth((4, (2, 4))), depth(8)
    (2, 0)
    """
    return 1 + max((depth(part) for part in tree), default=0) if isinstance(tree, tuple) else 0


def congruent(a: IntTuple, b: IntTuple) -> bool:
    """Whether two IntTuples have the same structure.

    >>> congruent((4, (2, 4)), (1, (4, 8))), congruent((4, 8), (4, (2, 4)))
    (True, False)
    """
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(congruent, a, b))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def unflatten(leaves: Iterable[int], like: IntTuple) -> IntTuple:
    """The leaves arranged in the structure of `like`.

    >>> unflatten([1, 4, 8], like=(4, (2, 4)))
    (1, (4, 8))
    """
    rest = iter(leaves)

    def build(tree: IntTuple) -> IntTuple:
        return tuple(build(part) for part in tree) if isinstance(tree, tuple) else next(rest)

    return build(like)


def column_major_strides(shape: IntTuple) -> IntTuple:
    """Compact strides, the leftmost leaf contiguous (CuTe's `LayoutLeft`).

    >>> column_major_strides((4, (2, 4)))
    (1, (4, 8))
    """
    return unflatten(running_products(flatten(shape)), shape)


def row_major_strides(shape: IntTuple) -> IntTuple:
    """Compact strides, the rightmost leaf contiguous (CuTe's `LayoutRight`).

    >>> row_major_strides((4, (2, 4)))
    (8, (4, 1))
    """
    return unflatten(running_products(flatten(shape)[::-1])[::-1], shape)


def running_products(leaves: tuple[int, ...]) -> list[int]:
    strides, current = [], 1
    for leaf in leaves:
        strides.append(current)
        current *= leaf
    return strides


def idx2crd(index: int, shape: IntTuple) -> IntTuple:
    """The hierarchical coordinate, congruent to `shape`, of an integer coordinate (colexicographic).

    Legal when: `0 <= index < product(shape)`.

    >>> idx2crd(14, (4, (2, 4)))
    (2, (1, 1))

    Source: CuTe docs, 01_layout, "Coordinate mapping".
    """
    shape = check_tree("shape", shape, 1)
    _check_index(index, product(shape), shape)
    digits = []
    for leaf in flatten(shape):
        digits.append(index % leaf)
        index //= leaf
    return unflatten(digits, shape)


def _check_index(index: object, size: int, shape: object) -> None:
    if not is_int(index):
        raise ArgumentError("a coordinate is an integer or a tuple of coordinates", got=index, within=shown(shape))
    if not 0 <= cast(int, index) < size:
        raise LayoutError(f"coordinate {shown_value(index)} is outside the {size} elements", legal=f"0 to {size - 1}", within=shown(shape))


def offset_of(coordinate: Any, shape: IntTuple, stride: IntTuple, *, symbolic: bool) -> Any:
    """The offset of a coordinate; integers out of range raise a `LayoutError`, expressions (only if `symbolic`) are not checked."""
    if isinstance(coordinate, tuple):
        if not isinstance(shape, tuple) or not isinstance(stride, tuple) or len(coordinate) != len(shape):
            raise LayoutError(
                f"the coordinate has {len(coordinate)} parts, the shape {shown(shape)} has {rank(shape)}",
                got=coordinate,
                legal="an integer, or a tuple with one part per mode",
            )
        parts = [offset_of(c, s, d, symbolic=symbolic) for c, s, d in zip(coordinate, shape, stride, strict=True)]
        return summed(parts)
    if symbolic and is_expression(coordinate):
        return _symbolic_offset(coordinate, list(zip(flatten(shape), flatten(stride), strict=True)))
    _check_index(coordinate, product(shape), shape)
    total = 0
    for size, step in zip(flatten(shape), flatten(stride), strict=True):
        total += coordinate % size * step
        coordinate //= size
    return total


def _symbolic_offset(x: Any, modes: list[Mode]) -> Any:
    """The offset of a coordinate `x` in range, without redundant operations."""
    return sum_of_digits(x, digits_of(merge_modes(modes)))


@frozen
class Digit:
    """Part of a coordinate `c`, which adds `c // step % size * weight` to an offset.

    An `open` digit adds `c // step * weight`: it is the outermost one.
    """

    step: int
    size: int | Expr
    weight: int | Expr
    open: bool

    def of(self, coordinate: Any) -> Any:
        """The digit's value in a coordinate: an integer, an expression, or an array of integers."""
        quotient = coordinate if self.step == 1 else coordinate // self.step
        return quotient if self.open else quotient % self.size


def digits_of(modes: Sequence[tuple[int | Expr, int | Expr]]) -> tuple[Digit, ...]:
    """The digits of a coordinate that enumerates modes, given as (size, stride); modes of stride 0 are omitted."""
    digits, step = [], 1
    for position, (size, stride) in enumerate(modes):
        if position:
            step *= require_integer(modes[position - 1][0])
        if constant(stride) != 0:
            digits.append(Digit(step, size, stride, position == len(modes) - 1))
    return tuple(digits)


def require_integer(leaf: int | Expr) -> int:
    """A leaf of a layout as a number; only the size of a mode's last leaf may be known only at run time."""
    number = constant(leaf)
    if number is None:
        raise LayoutError(f"{leaf} is known only at run time", legal="integers", hint="layout.evaluated(sizes)")
    return number


def sum_of_digits(coordinate: Any, digits: Iterable[Digit]) -> Any:
    """The sum of the digits' contributions to an offset."""
    return summed([digit.of(coordinate) if digit.weight == 1 else digit.of(coordinate) * digit.weight for digit in digits])


def numbers_of_digits(coordinate: Any, digits: Iterable[Digit]) -> Any:
    """The sum of the digits' contributions, for an integer or an array of integers; all digits must be known.

    Digits whose step and size are powers of two use shifts and masks.
    """
    total: Any = None
    for digit in digits:
        part = divided(coordinate, digit.step)
        if not digit.open:
            part = remainder(part, require_integer(digit.size))
        weight = require_integer(digit.weight)
        part = part if weight == 1 else part * weight
        total = part if total is None else total + part
    return 0 if total is None else total


def divided(number: Any, by: int) -> Any:
    """An integer, or an array of them, divided by a positive number, rounded down."""
    # Shifts of arrays are vectorized, divisions are not.
    return number >> by.bit_length() - 1 if by & by - 1 == 0 else number // by


def remainder(number: Any, by: int) -> Any:
    """The remainder of an integer, or of an array of them, divided by a positive number."""
    return number & by - 1 if by & by - 1 == 0 else number % by


def summed(parts: list[Any]) -> Any:
    """The sum, without a leading zero that would show in printed expressions."""
    parts = [part for part in parts if not (is_int(part) and part == 0)]
    return functools.reduce(lambda x, y: x + y, parts) if parts else 0


def shown(tree: object) -> str:
    """An IntTuple in the papers' notation: no blanks, `(8)` for a tuple of one element."""
    return f"({','.join(map(shown, tree))})" if isinstance(tree, tuple) else str(tree)


def merge_modes(modes: Iterable[Mode]) -> list[Mode]:
    """The modes of the same function, as few as possible: modes of size 1 are dropped, contiguous modes are merged."""
    merged: list[Mode] = []
    for size, stride in modes:
        if size == 1:
            continue
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, stride))
    return merged
