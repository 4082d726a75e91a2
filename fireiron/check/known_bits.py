"""Determine the bits of a value that are known for any thread, block, loop iteration and size: the lowest 64, as two masks.

Each operation determines which bits of its result are known from those of its operands. The analysis is independent of how an expression
is simplified, and of the divisor that is stored with it. Values are taken modulo 2**64, so negative values need no special case.
"""

from __future__ import annotations

from collections.abc import Mapping

from fireiron.frozen import frozen
from fireiron.values.expr import (
    BitAnd,
    BitOr,
    BitXor,
    Const,
    Expr,
    FloorDiv,
    Min,
    Mod,
    Positive,
    Sum,
    Var,
    constant,
)

WORD = (1 << 64) - 1


@frozen
class Bits:
    """`zeros` are the positions that are certainly 0, `ones` those that are certainly 1.

    >>> (Bits.of(4) + Bits(zeros=WORD - 8)).zeros & 15  # 4 + (0 or 8): bits 0, 1 are 0
    3
    """

    zeros: int = 0
    ones: int = 0  # language: allow

    @staticmethod
    def of(number: int) -> Bits:
        """All bits of a number."""
        return Bits(~number & WORD, number & WORD)

    @property
    def trailing(self) -> int:
        """The number of known lowest bits."""
        return _run(self.zeros | self.ones)

    @property
    def trailing_zeros(self) -> int:
        """The number of lowest bits that are 0: the value is a multiple of that power of two."""
        return _run(self.zeros)

    @property
    def places(self) -> int | None:
        """The exponent, if the value is a known power of two; else None."""
        return power_of_two(self.ones) if self.zeros | self.ones == WORD else None

    def __add__(self, other: Bits) -> Bits:
        if self.zeros == WORD or other.zeros == WORD:  # 0 adds nothing
            return other if self.zeros == WORD else self
        # A bit of a sum is known if both bits and the carry between them are: the carry is 0 if not even the largest values carry, and 1 if
        # the smallest do. The carries are the difference between the sum and the exclusive or.
        largest = (~self.zeros & WORD) + (~other.zeros & WORD)
        least = self.ones + other.ones
        carries = ~(largest ^ self.zeros ^ other.zeros) | (least ^ self.ones ^ other.ones)
        known = (self.zeros | self.ones) & (other.zeros | other.ones) & carries & WORD
        return Bits(~largest & known, least & known)

    def __mul__(self, other: Bits) -> Bits:
        if self.ones == 1 and self.zeros == WORD - 1:
            return other
        if other.ones == 1 and other.zeros == WORD - 1:
            return self
        # The first unknown bit of one side reaches the product at its position plus the lowest possible bit of the other side.
        known = min(self.trailing + other.trailing_zeros, other.trailing + self.trailing_zeros, 64)
        mask = (1 << known) - 1
        product = self.ones * other.ones & mask
        low = Bits(~product & mask, product)
        # A shift by a known number of bits keeps all known bits. And no product exceeds that of the largest values.
        for factor, places in ((self, other.places), (other, self.places)):
            low = low if places is None else low.also(factor.raised(places))
        largest = (~self.zeros & WORD) * (~other.zeros & WORD)
        return low.also(_up_to(largest))

    def __and__(self, other: Bits) -> Bits:
        return Bits(self.zeros | other.zeros, self.ones & other.ones)

    def __or__(self, other: Bits) -> Bits:
        return Bits(self.zeros & other.zeros, self.ones | other.ones)

    def __xor__(self, other: Bits) -> Bits:
        known = (self.zeros | self.ones) & (other.zeros | other.ones)
        known_ones = (self.ones ^ other.ones) & known
        return Bits(known & ~known_ones, known_ones)

    def shifted(self, bits: int) -> Bits:
        """The value divided by a power of two, rounded down. The uppermost bits depend on the sign, which the range determines."""
        return Bits(self.zeros >> bits, self.ones >> bits)

    def raised(self, bits: int) -> Bits:
        """The value times a power of two."""
        return Bits((self.zeros << bits | (1 << bits) - 1) & WORD, self.ones << bits & WORD)

    def lowest(self, bits: int) -> Bits:
        """The remainder modulo a power of two."""
        mask = (1 << bits) - 1
        return Bits(self.zeros | (WORD & ~mask), self.ones & mask)

    def either(self, other: Bits) -> Bits:
        """The bits known for a value that is one of the two."""
        return Bits(self.zeros & other.zeros, self.ones & other.ones)

    def also(self, other: Bits) -> Bits:
        """The bits known from two descriptions of the same value."""
        return Bits(self.zeros | other.zeros, self.ones | other.ones)


UNKNOWN = Bits()


def _run(mask: int) -> int:
    """The number of consecutive ones at the lower end of a mask."""
    return (mask ^ mask + 1).bit_length() - 1


def power_of_two(number: int | None) -> int | None:
    """The exponent of a power of two; None for other numbers."""
    return number.bit_length() - 1 if number is not None and number > 0 and number & (number - 1) == 0 else None


class KnownBits:
    """The known bits of expressions with named values; each sub-expression is analyzed once."""

    def __init__(self, lets: Mapping[str, Expr]) -> None:
        self.lets = lets
        self.bits_of: dict[Expr, Bits] = {}

    def of(self, value: Expr) -> Bits:
        """The known bits of an expression."""
        bits = self.bits_of.get(value)
        if bits is None:
            own = self._of(value)
            bits = self.bits_of[value] = own.also(_up_to(value.high)) if value.low >= 0 else own
        return bits

    def _of(self, value: Expr) -> Bits:
        match value:
            case Const(value=number):
                return Bits.of(number)
            case Var(name=name, multiple_of=step):
                own = Bits((step & -step) - 1)
                return own.also(self.of(self.lets[name])) if name in self.lets else own
            case Sum():
                return self._sum(value)
            case FloorDiv(left=left, right=right):
                exponent = power_of_two(constant(right))
                return UNKNOWN if exponent is None else self.of(left).shifted(exponent)
            case Mod(left=left, right=right):
                return self._remainder(left, right)
            case BitAnd(left=left, right=right):
                return self.of(left) & self.of(right)
            case BitOr(left=left, right=right):
                return self.of(left) | self.of(right)
            case BitXor(left=left, right=right):
                return self.of(left) ^ self.of(right)
            case Min(left=left, right=right):
                return self.of(left).either(self.of(right))
            case Positive(value=inner):
                return self.of(inner)
            case _:
                return UNKNOWN

    def _sum(self, value: Sum) -> Bits:
        total = Bits.of(value.constant)
        for atoms, coefficient in value.terms:
            term = Bits.of(coefficient)
            for atom in atoms:
                term = term * self.of(atom)
            total = total + term
        return total

    def _remainder(self, left: Expr, right: Expr) -> Bits:
        """The bits below the lowest set bit of the divisor stay; the range determines the upper bits."""
        bits, mask = self.of(left), (1 << self.of(right).trailing_zeros) - 1
        return Bits(bits.zeros & mask, bits.ones & mask)


def _up_to(largest: int) -> Bits:
    """The bits of a number from 0 to `largest`: the upper bits are 0."""
    return Bits(WORD & ~((1 << largest.bit_length()) - 1))
