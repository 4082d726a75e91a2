"""Decode small floats (`fireiron.specs.small_floats`): one value in float32, or two adjacent ones as a pair of 16-bit floats.

The bits of an E2M1 number, shifted to the upper end of the significand of a 16-bit float, are the number times 2^-14 (float16) or 2^-126
(bfloat16): the exponent has another bias, and 0.5 is subnormal in all formats. So two shifts, two operations on bits and a multiplication
by a power of two convert a pair, and all 16 values are exact. 16-bit arithmetic does not flush subnormal numbers to zero.

The product with an E8M0 scale is exact in bfloat16, which has all its powers of two. float16 lacks most of them, so 2^14 times the scale is
divided into two factors: the product with the first one is exact, and the second one rounds, as the formula does.

>>> from fireiron.values.machine import float16
>>> hex(UNIT_BITS[float16]), [tuple(hex(part) for part in scale_factors(n)) for n in (127, 0)]
('0x74007400', [('0x7400', '0x3c00'), ('0x3c00', '0x400')])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fireiron.ir.text import Function
from fireiron.values.machine import DType, bfloat16, float16

KIND: Final[Mapping[DType, str]] = {float16: "__half2", bfloat16: "__nv_bfloat162"}
"""The types of pairs."""

SHIFT: Final[Mapping[DType, tuple[int, str]]] = {float16: (3, "0x0e000e00"), bfloat16: (6, "0x01c001c0")}
"""By how many bits the exponent and significand are below the upper three bits after the sign, and the mask of both."""

UNIT_BITS: Final[Mapping[DType, int]] = {float16: 0x74007400, bfloat16: 0x7E807E80}
"""The bits of a pair of 2^14 or 2^126, by which the bits of E2M1 numbers are multiplied."""

E2M1: Final = Function(
    "e2m1",
    ("unsigned bits",),
    ("return __uint_as_float((bits & 8) << 28 | (bits & 7) << 22) * 8.507059173023462e+37f;",),
    "an FP4 number: its bits as those of a float, times 2^126 because of the other bias",
    result="float",
)
"""The function for one E2M1 number."""

E8M0: Final = Function(
    "e8m0",
    ("unsigned bits",),
    (
        "const unsigned exponent = bits & 0xff;",
        "return __uint_as_float(exponent == 0 ? 0x00400000 : exponent == 255 ? 0x7fc00000 : exponent << 23);",
    ),
    "2^(n - 127) of a byte n; 255 is NaN, and 2^-127 is subnormal",
    result="float",
)
"""The function for one E8M0 number."""

DECODERS: Final[Mapping[str, Function]] = {"e2m1": E2M1, "e8m0": E8M0}
"""The functions by their names in formulas."""


def _result(kind: str, bits: str) -> str:
    return f"*reinterpret_cast<const {kind}*>(&{bits})"


def e2m1_pair(dtype: DType, known: bool) -> Function:
    """The function that converts two E2M1 fields of a word and multiplies them by `factor`.

    If `known`, the number of the first field in a word is a constant, and two pairs of a word share operations.
    """
    kind, (shift, mask) = KIND[dtype], SHIFT[dtype]
    name = f"e2m1_pair_to_{'half2' if dtype == float16 else 'bfloat162'}"
    last = f"return __hmul2({_result(kind, 'pair')}, {_result(kind, 'factor')});"
    if not known:
        lines: tuple[str, ...] = (
            "const unsigned fields = (word << 12 & 0xf000) | (word << 24 & 0xf0000000);",
            f"const unsigned pair = (fields & 0x80008000) | (fields >> {shift} & {mask});",
        )
        note = "the lowest two FP4 numbers of a word, times a factor that includes the difference of the biases"
        return Function(name, ("unsigned word", "unsigned factor"), (*lines, last), note, result=kind)
    lines = (
        "const unsigned low = word << (12 - field % 4 * 4), high = word << (8 - field % 4 * 4);",
        f"const unsigned even = (low & 0x80008000) | (low >> {shift} & {mask});",
        f"const unsigned odd = (high & 0x80008000) | (high >> {shift} & {mask});",
        "const unsigned pair = __byte_perm(even, odd, field < 4 ? 0x5410 : 0x7632);",
    )
    note = "the FP4 numbers field and field + 1 of a word, times a factor that includes the difference of the biases"
    return Function(f"{name}_of_word", ("unsigned word", "unsigned factor"), (*lines, last), note, "int field", kind)


E8M0_BITS: Final = Function(
    "e8m0_bits",
    ("unsigned bits",),
    ("const unsigned exponent = bits & 0xff;", "return exponent == 0 ? 0x40 : exponent == 255 ? 0x7fc0 : exponent << 7;"),
    "the bits in bfloat16 of 2^(n - 127) of a byte n; 255 is NaN, and 2^-127 is subnormal",
    result="unsigned",
)
"""The function for an E8M0 number in bfloat16."""

BFLOAT16_PAIR: Final = Function(
    "bfloat162_of",
    ("unsigned pair",),
    (f"return {_result('__nv_bfloat162', 'pair')};",),
    "a pair of bfloat16 from its bits",
    result="__nv_bfloat162",
)
"""The function for a pair of bfloat16 from its bits."""

LEAST_EXPONENT, MOST_EXPONENT = -28, 17
"""The exponents of scales from which on all products of E2M1 numbers are zero, or infinite, in float16."""


def scale_factors(scale: int) -> tuple[int, int]:
    """The bits of the two float16 factors whose product is 2^14 times an E8M0 scale, as `SCALE_FACTORS` computes them."""
    if scale == 255:
        return 0x7E00, 0x7E00
    exponent = max(scale - 127, LEAST_EXPONENT)
    if exponent >= MOST_EXPONENT:
        return 0x7BFF, 0x7BFF
    first = min(max(exponent, -14) + 14, 15)
    return first + 15 << 10, exponent + 14 - first + 15 << 10


SCALE_FACTOR: Final = Function(
    "e8m0_factor",
    ("unsigned bits",),
    (
        "const int scale = bits & 0xff, exponent = max(scale - 127, -28), first = min(max(exponent, -14) + 14, 15);",
        "const unsigned power = ((number == 0 ? first : exponent + 14 - first) + 15) << 10;",
        "return scale == 255 ? 0x7e00 : exponent >= 17 ? 0x7bff : power;",
    ),
    "the bits in float16 of factor 0 or 1 of 2^14 times the scale 2^(n - 127); with 65504 twice, all products but 0 are infinite",
    "int number",
    "unsigned",
)
"""The function for the factors of a scale in float16."""

TIMES_FACTOR: Final = Function(
    "times_factor",
    ("__half2 pair", "unsigned factor"),
    (f"return __hmul2_rn(pair, {_result('__half2', 'factor')});",),
    "a pair times the second factor of its scales, rounded once",
    result="__half2",
)
"""The function for the second product of a scale in float16."""


__all__ = [
    "BFLOAT16_PAIR", "DECODERS", "E2M1", "E8M0", "E8M0_BITS", "SCALE_FACTOR", "TIMES_FACTOR", "UNIT_BITS", "e2m1_pair", "scale_factors",
]  # fmt: skip
