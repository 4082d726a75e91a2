"""`&`, `|` and `^` of nonnegative values; if no bits overlap, `|` and `^` are sums."""

from __future__ import annotations

from fireiron.values.expr.arithmetic import add, floordiv, mod, mul
from fireiron.values.expr.nodes import ZERO, BitAnd, BitOr, BitXor, Const, Expr, integer, possible_bits
from fireiron.values.expr.normal import in_order


def bit_and(left: Expr, right: Expr) -> Expr:
    """`left & right`; legal when neither is ever negative. A constant mask becomes remainders."""
    if isinstance(left, Const):
        left, right = right, left
    both = possible_bits(left) & possible_bits(right)
    if both == 0:
        return ZERO
    if isinstance(right, Const):
        if isinstance(left, Const):
            return Const(left.value & right.value)
        return _masked(left, right.value & possible_bits(left))
    return left if left == right else BitAnd(*in_order(left, right))


def _masked(value: Expr, mask: int) -> Expr:
    """The masked bits, each run of ones as a shifted remainder."""
    total: Expr = ZERO
    while mask:
        start = (mask & -mask).bit_length() - 1
        run = (~(mask >> start) & -~(mask >> start)).bit_length() - 1
        field = mod(floordiv(value, integer(1 << start)), integer(1 << run))
        total = add(total, mul(field, integer(1 << start)))
        mask &= ~(((1 << run) - 1) << start)
    return total


def bit_or(left: Expr, right: Expr) -> Expr:
    """`left | right`; legal when neither is ever negative. Disjoint bits become a sum."""
    if possible_bits(left) & possible_bits(right) == 0:
        return add(left, right)
    if isinstance(left, Const) and isinstance(right, Const):
        return Const(left.value | right.value)
    return left if left == right else BitOr(*in_order(left, right))


def bit_xor(left: Expr, right: Expr) -> Expr:
    """`left ^ right`; legal when neither is ever negative. Disjoint bits become a sum.

    Low bits of one side, below all bits of the other, become a separate summand. For example, a swizzled address plus an offset inside
    a vector becomes the swizzled address of the vector, plus the offset. Each such split raises the lowest bit of one side, so the
    recursion terminates.
    """
    if possible_bits(left) & possible_bits(right) == 0:
        return add(left, right)
    if isinstance(left, Const) and isinstance(right, Const):
        return Const(left.value ^ right.value)
    if left == right:
        return ZERO
    for value, other in ((left, right), (right, left)):
        step = integer(possible_bits(other) & -possible_bits(other))
        below = mod(value, step)
        if below != ZERO:
            return add(bit_xor(mul(floordiv(value, step), step), other), below)
    return BitXor(*in_order(left, right))
