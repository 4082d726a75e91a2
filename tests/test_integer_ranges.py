"""Ranges of integers in formulas contain every value, and are tight where the code depends on it; Philox in NumPy and in Python integers."""

import itertools
import random

import numpy as np
import pytest
from test_integer_formulas import words_of_philox

from fireiron.specs.bits import INTEGER_ONLY, QUOTIENTS, SHIFTS, legal_operand, range_of_bits, range_of_call
from fireiron.specs.formula import formula
from fireiron.specs.integers import is_integral, mask_of, range_of
from fireiron.specs.philox import philox, uniform

MEANINGS = {
    "//": int.__floordiv__, "%": int.__mod__, "<<": int.__lshift__, ">>": int.__rshift__, "&": int.__and__, "|": int.__or__,
    "^": int.__xor__, "~": lambda a, b: ~a,
}  # fmt: skip


@pytest.mark.parametrize("name", INTEGER_ONLY)
def test_ranges_contain_every_value(name):
    source = random.Random(name)
    for _ in range(600):
        first, second = (tuple(sorted(source.choices(range(-20, 21), k=2))) for _ in range(2))
        if name in QUOTIENTS:
            second = tuple(sorted(map(abs, source.choices(range(1, 12), k=2))))
        if name in SHIFTS:
            second = tuple(sorted(source.choices(range(8), k=2)))
        values = [MEANINGS[name](a, b) for a, b in itertools.product(*(range(low, high + 1) for low, high in (first, second)))]
        least, most = range_of_bits(name, [first] if name == "~" else [first, second])
        assert least <= min(values) and max(values) <= most, (name, first, second, least, most)
        if name in ("//", "<<", ">>", "~"):
            assert (least, most) == (min(values), max(values))
        if name != "~" and min(*first, *second) >= 0:  # otherwise signed types and shifts would be needed
            assert least >= 0


RANGES = {"c": (-(2**31), 2**31 - 1), "u": (0, 255), "d": (-(2**63), 2**63 - 1)}
EXPECTED = {
    "c[m] & 0xff": (0, 255), "c[m] * c[m] * c[m] & 0xffffffff": (0, 2**32 - 1), "c[m] * c[m] * c[m] & 0xffffffffff": None,
    "c[m] * c[m] * c[m] & -1": None, "u[m] & c[m]": (0, 255), "u[m] | 256": (0, 511), "u[m] ^ 7": (0, 255), "u[m] % 7": (0, 6), "c[m] % 7": (0, 6),
    "u[m] % 1000": (0, 255), "c[m] // 2": (-(2**30), 2**30 - 1), "c[m] // u[m]": None, "c[m] << u[m]": None, "c[m] << (u[m] & 31)": (-(2**62), 2**62 - 2**31),
    "c[m] >> (u[m] & 63)": (-(2**31), 2**31 - 1), "d[m] << 1": None, "d[m] // 2": (-(2**62), 2**62 - 1), "~u[m]": (-256, -1),
    "bits(x[m])": (0, 2**32 - 1), "int32(x[m])": (-(2**31), 2**31 - 1), "int32(u[m])": (0, 255), "int32(d[m])": (-(2**31), 2**31 - 1),
    "mulhi(u[m] << 8, c[m])": (-32640, 32639), "mulhi(c[m], c[m] & 0xffffffff)": None, "mulhi(bits(x[m]), bits(x[m]))": (0, 2**32 - 2),
    "philox(c[m], u[m])": (0, 2**32 - 1), "clamp(c[m], -3, u[m])": (-3, 255), "floor(u[m])": (0, 255), "round(c[m] + 1)": (-(2**31) + 1, 2**31),
    "floor(x[m])": None, "uniform(c[m], c[m])": None, "from_bits(c[m])": None, "e2m1(c[m])": None, "e8m0(u[m])": None,
}  # fmt: skip


@pytest.mark.parametrize("text", EXPECTED)
def test_ranges_of_formulas(text):
    value = formula(f"y[m] = {text}").value
    assert range_of(value, RANGES) == EXPECTED[text]
    assert is_integral(value, RANGES) == (not text.startswith(("floor(x", "uniform", "from_bits", "e2m1", "e8m0")))
    assert (mask_of(value, RANGES) is not None) == (text == "c[m] * c[m] * c[m] & 0xffffffff")


def test_legal_operands():
    for name, span in (
        ("//", (1, 5)),
        ("%", (7, 7)),
        ("<<", (0, 63)),
        (">>", (3, 3)),
        ("&", (-5, 5)),
        ("mulhi", (0, 2**32 - 1)),
        ("mulhi", (-1, 1)),
    ):
        assert not legal_operand(name, span)
    for name, span in (("//", (0, 5)), ("%", (-1, 7)), ("<<", (0, 64)), (">>", (-1, 3)), ("mulhi", (-1, 2**31)), ("mulhi", (0, 2**32))):
        assert legal_operand(name, span)
    assert range_of_call("mulhi", [None, (0, 1)]) is None


def test_philox_of_arrays():
    """All words of random keys and counters, broadcast, equal Python integers."""
    source = np.random.default_rng(0)
    seeds, words = source.integers(-(2**63), 2**63, 40), source.integers(-(2**31), 2**33, (5, 40))
    for count in range(1, 5):
        for number in range(6):
            got = philox(seeds, *words[:count], word=number)
            right = [words_of_philox(int(seed), [int(word) for word in column])[number % 4] for seed, column in zip(seeds, words[:count].T)]
            assert got.tolist() == right and got.dtype == np.int64
    assert philox(3, np.arange(4)[:, None], np.arange(5), word=np.arange(5)).shape == (4, 5)
    numbers = uniform(3, np.arange(1000))
    assert numbers.dtype == np.float32 and np.array_equal(numbers, (philox(3, np.arange(1000)) >> 8) / 2**24)
