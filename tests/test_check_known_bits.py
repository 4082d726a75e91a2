"""Known bits, compared with all values that partially known numbers may have."""

import itertools
import operator

import pytest

from fireiron.check.known_bits import UNKNOWN, WORD, Bits, KnownBits, power_of_two
from fireiron.values.expr import Var, all_of, any_of, as_expr, assume_positive, bit_and, bit_or, bit_xor, equal, less, minimum

T, J = Var("thread", 0, 31), Var("i", 0, 15)
N = Var("N", 0, 1 << 20, 12)
N4 = Var("N4", 0, 1 << 20, 4)
L4 = Var("L4", 4, 1 << 20, 4)

PARTLY = [Bits(WORD - 7 | zeros, ones) for zeros, ones in itertools.product(range(8), repeat=2) if not zeros & ones]


def values(bits):
    return [number for number in range(8) if not number & bits.zeros and number & bits.ones == bits.ones]


def best(results):
    """The known bits of a number that is one of these."""
    known = Bits.of(results[0])
    for item in results[1:]:
        known = known.either(Bits.of(item))
    return known


@pytest.mark.parametrize("does", [operator.add, operator.xor, operator.and_, operator.or_], ids=lambda one: one.__name__)
def test_operations_are_exact(does):
    for first, second in itertools.product(PARTLY, repeat=2):
        assert does(first, second) == best([does(left, right) for left, right in itertools.product(values(first), values(second))]), (
            first,
            second,
        )


def test_union_of_two():
    for first, second in itertools.product(PARTLY, repeat=2):
        assert first.either(second) == best([*values(first), *values(second)])
        both = [number for number in values(first) if number in values(second)]
        assert not both or all(
            number & first.also(second).zeros == 0 and number & first.also(second).ones == first.also(second).ones for number in both
        )


def test_shifts_and_remainders():
    for partial, bits in itertools.product(PARTLY, range(4)):
        assert partial.raised(bits) == best([number << bits for number in values(partial)])
        assert partial.lowest(bits) == best([number % (1 << bits) for number in values(partial)])
        partly = bit_or(bit_and(J, as_expr(~(partial.zeros | partial.ones) & 7)), as_expr(partial.ones))
        assert KnownBits({}).of(partly % (1 << bits)) == best([number % (1 << bits) for number in values(partial)])
        known = partial.shifted(bits).also(Bits(WORD & ~(WORD >> bits)))
        assert known == best([number >> bits for number in values(partial)])


def test_products():
    """A product with a power of two keeps all known bits; the lowest bits are known as far as those of one side."""
    for first, second in itertools.product(PARTLY, repeat=2):
        bits, products = first * second, [left * right for left, right in itertools.product(values(first), values(second))]
        whole = best(products)
        assert bits.zeros & ~whole.zeros == 0 == bits.ones & ~whole.ones
        assert bits.trailing >= min(first.trailing + second.trailing_zeros, second.trailing + first.trailing_zeros, 64)
        largest = max(products).bit_length()
        assert bits.zeros >> max(largest, 6) == WORD >> max(largest, 6)
        if second.places is not None:
            assert bits == whole == second * first
    unknown = Bits(zeros=1)  # an even number
    assert (unknown * unknown).trailing_zeros == 2 and (unknown * Bits.of(3)).trailing_zeros == 1 == (Bits.of(3) * unknown).trailing_zeros
    odd = Bits(zeros=2, ones=1)  # 1 and any multiple of 4
    assert (odd * odd).trailing == 2 and (odd * Bits.of(4)) == Bits(zeros=11, ones=4)
    assert (Bits.of(1 << 40) * Bits.of(1 << 40)).zeros == WORD


def test_trailing_zeros_and_powers():
    assert [Bits.of(number).places for number in (0, 1, 2, 3, 4, 1 << 63)] == [None, 0, 1, None, 2, 63]
    assert Bits(zeros=3, ones=4).places is None and UNKNOWN.places is None
    assert [power_of_two(number) for number in (None, -4, 0, 1, 2, 3, 4, 6, 1 << 40)] == [None, None, None, 0, 1, None, 2, None, 40]
    assert (UNKNOWN.trailing, Bits.of(0).trailing_zeros, Bits.of(4).trailing_zeros, Bits(zeros=1, ones=2).trailing) == (0, 64, 2, 2)


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (less(T, 5), Bits(WORD - 1)),
        (equal(T, 5 + J * 0), Bits(WORD - 1)),
        (all_of((less(T, 5), less(J, 3))), Bits(WORD - 1)),
        (any_of((less(T, 5), less(J, 3))), Bits(WORD - 1)),
        (T, Bits(WORD - 31)),
        (T * 4 + 3, Bits(WORD - 127, 3)),
        (T // 8, Bits(WORD - 3)),
        (minimum(T * 4 + 2, J * 8 + 10), Bits(WORD - 126, 2)),
        (minimum(T * 4, J * 6), Bits(WORD - 126)),
        (bit_and(T * 4, J * 2 + 64), Bits(WORD - 92)),
        (bit_or(T * 4, J * 2 + 64), Bits(WORD - 126, 64)),
        (bit_xor(T * 4 + 1, J * 4 + 3), Bits(WORD - 126, 2)),
        (assume_positive(N), Bits(WORD - ((1 << 20) - 1) | 3)),
        (N, Bits(WORD - ((1 << 20) - 1) | 3)),
        (N4 % 6, Bits(WORD - 7 | 1)),
        (N % 16, Bits(WORD - 12)),
        ((T - 5) * 4, Bits(3)),
        ((T * 16 - 8) // 4, Bits(1, 2)),
        (T // 3, Bits(WORD - 15)),
    ],
    ids=str,
)  # fmt: skip
def test_known_bits_of_expressions(value, known):
    assert KnownBits({}).of(value) == known


@pytest.mark.parametrize(
    "value",
    [
        (T - 5) // 4,
        (T - 5) % 8,
        (T - 40) // 8 * 3,
        T - J,
        minimum(T - 7, J),
        (T - J) * (J - 9),
        T - 1,
        (T - 1) // 2,
        (T - 1) % 2,
        (T - 1) * 4 + 3,
        (T * 4 - 64) // 16,
        (T - 31) // 1,
        (J - T) % 6,
    ],
    ids=str,
)
def test_known_bits_of_negative_values(value):
    bits = KnownBits({}).of(value)
    for thread, number in itertools.product(range(32), range(16)):
        got = int(value.evaluate({"thread": thread, "i": number})) & WORD
        assert got & bits.zeros == 0 and got & bits.ones == bits.ones, (thread, number, bits)


def test_known_bits_of_names():
    row = Var("row", 0, 100)
    assert KnownBits({"row": T * 4 + 2}).of(row) == Bits(WORD - 126, 2)
    assert KnownBits({}).of(Var("row", 0, 100, 24)) == Bits(WORD - 127 | 7)


def test_known_bits_are_cached():
    """A subexpression is analyzed once; for a name without a value only its range and step are known."""
    known = KnownBits({"row": T * 4})
    row = Var("row", 0, 124)
    assert known.of(row + 1) == known.of(row + 1) == Bits(WORD - 125, 1)
    assert known.of(row) == Bits(WORD - 124)


@pytest.mark.parametrize(
    ("value", "known"),
    [
        (N4 % 8, Bits(WORD - 4)),
        (N4 % 5, Bits(WORD - 7)),
        (J % L4, Bits(WORD - 15)),
        ((J * 4 + 3) % L4, Bits(WORD - 63, 3)),
        ((J * 2 + 1) % (L4 * 2), Bits(WORD - 31, 1)),
        ((T + 32) // 32, Bits(WORD - 1, 1)),
        (T * 8 // 2, Bits(WORD - 124)),
        (T * 8 // 6, Bits(WORD - 63)),
        (T * J, Bits(WORD - 511)),
        (T * J * 4 + 2, Bits(WORD - 2046, 2)),
        (N * 16 + 5, Bits(WORD - ((1 << 24) - 1) | 58, 5)),
        (as_expr(7), Bits.of(7)),
        (as_expr(-1), Bits(0, WORD)),
    ],
    ids=str,
)  # fmt: skip
def test_known_bits_beyond_single_operations(value, known):
    assert KnownBits({}).of(value) == known


def test_divisions_and_remainders_of_names():
    """A name is not simplified like its value: only its bits are known."""
    row = Var("row", 0, 255)
    known = KnownBits({"row": T * 8 + 4})
    assert known.of(row) == Bits(WORD - 252 | 3, 4)
    assert known.of(row // 2) == Bits(WORD - 126, 2)
    assert known.of(row // 4) == Bits(WORD - 63, 1)
    assert known.of(row // 3) == Bits(WORD - 127), "not a power of two"
    assert known.of(row % 4) == Bits(WORD) and known.of(row % 8) == Bits(WORD - 4, 4) and known.of(row % 16) == Bits(WORD - 12, 4)
    assert known.of(row % 6) == Bits(WORD - 7 | 1), "an even divisor keeps the lowest bit"
    below = Var("below", -256, 255)
    known = KnownBits({"below": T * 8 - 252})
    assert known.of(below).zeros & 7 == 3 and known.of(below).ones & 7 == 4
    half = known.of(below // 2)
    assert half.zeros & 3 == 1 and half.ones & 3 == 2 and known.of(below // 3) == UNKNOWN


def test_products_are_taken_modulo_the_word():
    """All 64 bits of the product of two numbers are known; of large ones that are not known no upper bit is."""
    for left, right in ((5, WORD - 2), (WORD, WORD), (3, (1 << 63) + 1), ((1 << 32) - 1, (1 << 33) + 1)):
        assert Bits.of(left) * Bits.of(right) == Bits.of(left * right)
    half = Bits(WORD & ~((1 << 32) - 1))
    assert (half * half).zeros == 0 and (half * Bits(WORD - 15)).zeros == WORD & ~((1 << 36) - 1)
    assert (half * Bits.of(3)).zeros == WORD & ~((1 << 34) - 1)
