"""Operators and functions of integers: quotients, remainders, shifts, bitwise operators, conversions and random numbers.

They are those of Python, on integers of any size in two's complement. A quotient is rounded toward minus infinity, so a remainder has the
sign of the divisor, which must be positive. `x >> s` is `x // 2^s` and `x << s` is `x * 2^s`, for `s` from 0 to 63. A negative
integer has infinitely many leading ones: `~x` is `-x - 1`, and `x & 0xff` are the low 8 bits of any integer.

- `bits(x)` is the pattern of a float32, from 0 to 2^32 - 1, and `from_bits(n)` the float32 whose pattern are the low 32 bits of n.
- `e2m1(n)` is the FP4 number of the low 4 bits of n, and `e8m0(n)` the power of two of its low 8 bits (`fireiron.specs.small_floats`).
- `int32(x)` converts: a float is truncated toward zero and saturates, NaN becomes 0; an integer keeps its low 32 bits, with a sign.
- `mulhi(a, b)` is `a * b // 2^32`, for two integers of int32, or two from 0 to 2^32 - 1.
- `philox(seed, c0, c1, c2, c3, word)` is a random word from 0 to 2^32 - 1, and `uniform` of the same arguments a float32 in [0, 1)
  (`fireiron.specs.philox`). All but the seed and c0 are optional.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fireiron.values.machine import DType, int32

Range = tuple[int, int]
"""The minimum and maximum of an integer."""

QUOTIENTS: Final = ("//", "%")
"""Operators with a positive divisor."""

SHIFTS: Final = ("<<", ">>")
"""Operators with a number of bits from 0 to 63."""

BITWISE: Final = ("&", "|", "^", "~")
"""Operators on the bits of integers; the low bits of their results depend only on the low bits of their operands."""

INTEGER_ONLY: Final = (*QUOTIENTS, *SHIFTS, *BITWISE)
"""Operators whose operands must be integers."""

TO_INTEGER: Final = ("bits", "int32", "mulhi", "philox")
"""Functions whose results are integers."""

OF_INTEGERS: Final = (*INTEGER_ONLY, "e2m1", "e8m0", "from_bits", "mulhi", "philox", "uniform")
"""Operators and functions whose arguments must be integers."""

OF_LOW_BITS: Final = ("e2m1", "e8m0", "from_bits")
"""Functions whose results are the floats that the low bits of an integer encode."""

RANDOM: Final = ("philox", "uniform")
"""Functions of a seed, up to four words of a counter, and the number of a word of the result."""

LARGEST_SHIFT: Final = 63
"""The largest number of bits of a shift."""

uint32: Final = DType("uint32", 32, "int", "unsigned int", "uint32")
"""The type of the low bits of integers that may overflow 32 bits; no array has it."""


def legal_operand(name: str, span: Range) -> str:
    """What is legal if the last operand of a quotient, a shift or `mulhi`, of this range, may be illegal; empty otherwise."""
    if name in QUOTIENTS and span[0] < 1:
        return "a positive divisor"
    if name == "mulhi" and not any(_inside(span, dtype) for dtype in (int32, uint32)):
        return "integers of int32, or from 0 to 2^32 - 1"
    if name in SHIFTS and not 0 <= span[0] <= span[1] <= LARGEST_SHIFT:
        return f"0 to {LARGEST_SHIFT} bits"
    return ""


def _inside(span: Range, dtype: DType) -> bool:
    return dtype.limits[0] <= span[0] and span[1] <= dtype.limits[1]


def range_of_call(name: str, spans: Sequence[Range | None]) -> Range | None:
    """The range of one of `TO_INTEGER`, whose arguments have these ranges; None if they are illegal or not known."""
    if name == "int32":
        (span,) = spans
        return span if span is not None and _inside(span, int32) else int32.limits
    if name != "mulhi":
        return uint32.limits
    known = [span for span in spans if span is not None]
    if len(known) < len(spans) or not any(all(_inside(span, dtype) for span in known) for dtype in (int32, uint32)):
        return None
    return _of_ends([first * second >> 32 for first in known[0] for second in known[1]])


def range_of_bits(name: str, spans: Sequence[Range]) -> Range:
    """The range of one of `INTEGER_ONLY` on integers of these ranges, whose second operand is legal."""
    first, second = spans[0], spans[-1]
    match name:
        case "~":
            return ~first[1], ~first[0]
        case "//":
            return _of_ends([end // divisor for end in first for divisor in second])
        case "%":
            inside = first[0] >= 0 and first[1] < second[0]
            return first if inside else (0, min(first[1], second[1] - 1) if first[0] >= 0 else second[1] - 1)
        case "<<":
            return _of_ends([end << count for end in first for count in second])
        case ">>":
            return _of_ends([end >> count for end in first for count in second])
        case "&":
            return _of_and(first, second)
        case "|":  # ~(~x & ~y)
            least, most = _of_and((~first[1], ~first[0]), (~second[1], ~second[0]))
            return ~most, ~least
    power = 1 << max(map(_bits, (*first, *second)))
    return (0 if min(first[0], second[0]) >= 0 else -power), power - 1


def _of_ends(ends: Sequence[int]) -> Range:
    return min(ends), max(ends)


def _of_and(first: Range, second: Range) -> Range:
    """The range of `x & y`: not above either operand, and not negative if one of them is not."""
    nonnegative = [span[1] for span in (first, second) if span[0] >= 0]
    if nonnegative:
        return 0, min(nonnegative)
    return -(1 << max(_bits(first[0]), _bits(second[0]))), max(first[1], second[1])


def _bits(number: int) -> int:
    """The bits of an integer without its sign."""
    return (number if number >= 0 else ~number).bit_length()
