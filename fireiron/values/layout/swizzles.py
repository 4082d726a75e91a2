"""XOR swizzles: permutations of offsets, for integers, arrays and index expressions."""

from __future__ import annotations

import functools
from typing import Any, cast

from attrs import frozen

from fireiron.errors import ArgumentError, LayoutError
from fireiron.values.expr import ZERO, Expr, Sum, as_expr, floordiv, mod
from fireiron.values.layout.int_tuples import is_int


@frozen(repr=False, str=False)
class Swizzle:
    """The permutation of offsets that XORs the `bits` bits from bit `base + shift` onto the `bits` bits from bit `base`.

    Offsets are in elements: `2**base` adjacent elements remain adjacent. A negative shift XORs low bits onto high ones.
    Legal when: `bits` and `base` are at least 0 and `abs(shift) >= bits`; otherwise source and target overlap (no involution).

    >>> sw = Swizzle(2, 0, 3)
    >>> [sw(x) for x in range(8, 12)], all(sw(sw(x)) == x for x in range(64))
    ([9, 8, 11, 10], True)

    Source: CuTe `swizzle.hpp`, as described in the CuTe docs.
    """

    bits: int
    base: int
    shift: int

    def __attrs_post_init__(self) -> None:
        for name, value in (("bits", self.bits), ("base", self.base), ("shift", self.shift)):
            if not is_int(value):
                raise ArgumentError(f"Swizzle: {name} must be an integer", got=value)
        if self.bits < 0 or self.base < 0:
            raise LayoutError(f"a swizzle has no negative bits or base: {self}", legal="bits >= 0, base >= 0")
        if abs(self.shift) < self.bits:
            raise LayoutError(
                f"{self}: source and target bits overlap", legal=f"shift <= {-self.bits} or shift >= {self.bits}", hint="raise the shift"
            )

    def size(self) -> int:
        """The period: each aligned block of this many offsets is permuted within itself."""
        return 1 << (self.bits + self.base + abs(self.shift)) if self.bits else 1

    def __call__(self, offset: int) -> int:
        """The permuted offset of an element."""
        if not is_int(offset):
            raise ArgumentError("a swizzle maps integer offsets", got=offset, legal="int >= 0")
        if offset < 0:
            raise LayoutError("a swizzle maps offsets of at least 0", got=offset, legal="int >= 0")
        return cast(int, self.expression(offset))

    def expression(self, offset: Any) -> Any:
        """The permuted offset of an expression, an integer array, or any value that has `^ &` and `// *`.

        The XOR applies only to a part of an expression. Bits below the base do not change, so the elements of a vector share one XOR.
        Multiples of the swizzle's period are added after it.
        """
        if self.bits == 0:
            return offset
        if isinstance(offset, Expr):
            inside = offset.constant % (1 << self.base) if isinstance(offset, Sum) else 0
            start = offset - inside
            return _flipped(offset, self) if start.factor % (1 << self.base) else _flipped(start, self) + inside
        mask, by = (1 << self.bits) - 1, 1 << abs(self.shift)
        if self.shift >= 0:
            return offset ^ ((offset & (mask << (self.base + self.shift))) // by)
        return offset ^ ((offset & (mask << self.base)) * by)

    def __str__(self) -> str:
        return f"Sw<{self.bits},{self.base},{self.shift}>"

    def __repr__(self) -> str:
        return f"Swizzle({self.bits}, {self.base}, {self.shift})"


@functools.lru_cache(maxsize=20_000)
def _flipped(offset: Expr, swizzle: Swizzle) -> Expr:
    mask = (1 << swizzle.bits) - 1
    low, high = swizzle.base, swizzle.base + abs(swizzle.shift)
    source, target = (low, high) if swizzle.shift < 0 else (high, low)
    flip = ((offset >> source) & mask) << target
    above, below = _parted(offset, 1 << (target + swizzle.bits))
    return above + (below ^ flip)


def _parted(offset: Expr, span: int) -> tuple[Expr, Expr]:
    """Split an offset into multiples of `span`, a power of two, which an XOR of lower bits does not change, and the rest.

    If the rest may be `span` or more, the parts are 0 and the whole offset.
    """
    above: Expr = as_expr(offset.constant // span * span if isinstance(offset, Sum) else 0)
    below: Expr = as_expr(offset.constant % span) if isinstance(offset, Sum) else offset
    for atoms, coefficient in offset.terms if isinstance(offset, Sum) else ():
        part: Expr = Sum(((atoms, coefficient),), 0)
        if part.factor % span == 0:
            above = above + part
        elif len(atoms) == 1 and coefficient > 0 and span % coefficient == 0 and part.high >= span:
            count = as_expr(span // coefficient)
            above, below = above + floordiv(atoms[0], count) * span, below + mod(atoms[0], count) * coefficient
        else:
            below = below + part
    return (above, below) if below.low >= 0 and below.high < span else (ZERO, offset)
