"""Prove for all sizes that blocks which add to one result have the positions 0, 1, ... in the order of their indices.

The digits of a block index in mixed radix are the coordinates of its tile. Assume that some digits number the result,
and that the others are the position, in the order of their weights. Then

- each result and each position belongs to exactly one block;
- of two blocks with the same result, the one with the larger position has the larger index.

Loops count as digits of the result, so each iteration has separate results.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs

from fireiron.frozen import frozen
from fireiron.ir import For
from fireiron.values.expr import ONE, ZERO, Expr, FloorDiv, Mod, Var, replaced


@frozen
class Digit:
    """A digit of the block index: `block // weight % size`. `size` is None for the quotient `block // weight`."""

    text: Expr
    weight: Expr
    size: Expr | None


@frozen
class Radix:
    """A digit with a name and a size, of a number in mixed radix."""

    var: Var
    size: Expr


MOST_DIGITS = 5
"""Maximum number of digits of a result, whose orders are tried."""


def positions_are_ordered(
    block: Var, grid: Expr, index: Expr, count: Expr, position: Expr, blocks: Expr, loops: Sequence[For], first: Expr = ZERO
) -> bool:
    """Return whether it is proved that the `blocks` blocks of each of `count` results have the positions 0 to `blocks - 1`, in order.

    `index` and `position` are those of a block, in an iteration of `loops`; the results have the indices `first` and following.
    """
    digits = _in_order([*dict.fromkeys((*_digits(index, block), *_digits(position, block)))], grid, (blocks, count))
    if digits is None or any((loop.first, loop.step) != (0, 1) for loop in loops):
        return False
    names = {digit.text: Var(f"digit {number}", 0) for number, digit in enumerate(digits)}
    radixes = [Radix(names[digit.text], digit.size) for digit in digits if digit.size is not None]
    index, position = replaced(index, names), replaced(position, names)
    of_index = [radix for radix in radixes if radix.var in index.variables()]
    of_position = [radix for radix in radixes if radix not in of_index and radix.var in position.variables()]
    of_loops = [Radix(loop.var, loop.extent) for loop in loops]
    if len(of_index) + len(of_position) != len(digits) or len(of_index) + len(of_loops) > MOST_DIGITS:
        return False
    return _number(of_position) == (position, blocks) and any(
        _number(order) == (index - first, count) for order in itertools.permutations((*of_index, *of_loops))
    )


def _digits(value: Expr, block: Var) -> Iterator[Digit]:
    """Yield the largest parts of an expression that are digits of the block index."""
    digit = _digit(value, block)
    if digit is not None:
        yield digit
        return
    for child in value.children:
        yield from _digits(child, block)


def _digit(value: Expr, block: Var) -> Digit | None:
    """Return an expression as a digit of the block index; None if it is none."""
    quotient, size = (value.left, value.right) if isinstance(value, Mod) else (value, None)
    weight: Expr = ONE
    while isinstance(quotient, FloorDiv):
        weight = weight * quotient.right
        quotient = quotient.left
    return Digit(value, weight, size) if quotient == block else None


def _in_order(digits: list[Digit], grid: Expr, products: Sequence[Expr]) -> list[Digit] | None:
    """Return digits of all blocks from the smallest to the largest weight, each with its size; None if some part of the index is missing.

    `products` are products of sizes, from which the size of the last digit may follow.
    """
    ordered: list[Digit] = []
    weight: Expr = ONE
    while digits:
        following = [digit for digit in digits if digit.weight == weight]
        if len(following) != 1:
            return None
        (digit,) = following
        digits = [other for other in digits if other is not digit]
        size = digit.size if digit.size is not None else _last_size(weight, grid, products)
        if size is None or (digits and digit.size is None):
            return None
        ordered.append(attrs.evolve(digit, size=size))
        weight = weight * size
    return ordered if weight == grid else None


def _last_size(weight: Expr, grid: Expr, products: Sequence[Expr]) -> Expr | None:
    """Return the number of values of the digit with the largest weight; None if no expression for it is known."""
    quotients = (value // divisor for value in (grid, *products) for divisor in (weight, ONE, *products))
    return next((size for size in quotients if size * weight == grid), None)


def _number(radixes: Sequence[Radix]) -> tuple[Expr, Expr]:
    """Return the number with these digits, the fastest first, and how many numbers there are."""
    number: Expr = ZERO
    count: Expr = ONE
    for radix in radixes:
        number, count = number + radix.var * count, count * radix.size
    return number, count


__all__ = ["positions_are_ordered"]
