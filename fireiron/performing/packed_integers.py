"""Packed numbers of 4 bits that a formula unpacks and converts to 16-bit floats: pairs of adjacent ones are converted at once.

The pattern is `(P[n,k // 8] >> 4 * (k % 8)) & 15`, with an integer added to it or subtracted from it. For an even k, the elements k and
k + 1 are adjacent fields of one word. A field u becomes the float 1024 + u (float16) or 128 + u (bfloat16) if its bits replace the lowest
bits of the significand of 1024 or 128; the difference from that number, minus the integer of the formula, is exact. So two fields need two
operations on bits, a byte permutation and a subtraction. If their shifts differ by 16 instead of 4, as in
`P[n,k // 8] >> 16 * (k % 2) + 4 * (k // 2 % 4)`, no permutation is needed.

The pattern of FP4 numbers is `e2m1(P[n,k // 8] >> 4 * (k % 8))`; their pairs are converted by a multiplication
(`fireiron.performing.small_floats`).

>>> from fireiron.specs.formula import formula_of
>>> from fireiron.values.machine import float16, int32
>>> value = formula_of("y[k] = ((P[k] >> 4 * (index_k[k] % 8)) & 15) - 8").value
>>> fields = fields_of(value, {"P": int32, "index_k": int32})
>>> fields.word.tensor, fields.coordinate.tensor, fields.added, fields.period, [fields.shift_at(k) for k in (0, 1, 7, 8)]
('P', 'index_k', -8, 8, [0, 4, 28, 0])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from fireiron.frozen import frozen
from fireiron.ir.text import Function
from fireiron.performing.small_floats import UNIT_BITS, e2m1_pair
from fireiron.specs.formula import Element, Number, Operation, Value, elements_of
from fireiron.specs.steps import INDICES
from fireiron.values.machine import DType, bfloat16, float16, int8, int32, uint8

FIELD: Final = 4
"""Bits of a field."""

MASK: Final = 15

WORDS: Final = (int32, int8, uint8)
"""The types of words."""

WORD_BITS: Final = 32

BASES: Final[Mapping[DType, tuple[int, int, int]]] = {float16: (1024, 0x6400, 2048), bfloat16: (128, 0x4300, 256)}
"""The number whose lowest bits of the significand are replaced, its bits, and the largest number up to which all integers are exact."""

OPERATIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": lambda x, c: x + c, "*": lambda x, c: x * c, "<<": lambda x, c: x << c, "%": lambda x, c: x % c, "&": lambda x, c: x & c,
    "//": lambda x, c: x // c,
}  # fmt: skip
"""Operations of which a shift consists."""

HALF_WORD: Final = 16
"""Bits between fields that are in different halves of a word."""

DISTANCES: Final = (FIELD, HALF_WORD)
"""Bits between two fields that are converted together."""


@frozen
class Fields:
    """The fields of the word `word`, at shifts that depend on a coordinate; `added` is an integer added to each.

    `shift` has the period `period`. The fields of an even coordinate and of the next one are `distance` bits apart. With `is_e2m1`, the
    fields are FP4 numbers.
    """

    word: Element
    coordinate: Element
    shift: Value
    added: int
    period: int
    distance: int = FIELD
    is_e2m1: bool = False

    def shift_at(self, coordinate: int) -> int:
        """Return the shift of the field at a coordinate."""
        return _number_at(self.shift, coordinate)


def fields_of(value: Value | None, types: Mapping[str, DType]) -> Fields | None:
    """Return the fields of a word that a value unpacks, such that those of an even coordinate and the next one are adjacent."""
    added, is_e2m1 = 0, False
    match value:
        case Operation("e2m1", (Operation(">>") as field,)):
            value, is_e2m1 = Operation("&", (field, Number(MASK))), True
        case Operation("e2m1", (field,)):
            value, is_e2m1 = field, True
        case Operation("+", (field, Number(int() as number)) | (Number(int() as number), field)):
            value, added = field, number
        case Operation("-", (field, Number(int() as number))):
            value, added = field, -number
    match value:
        case Operation("&", (Operation(">>", (Element() as word, shift)), Number(15))):
            pass
        case _:
            return None
    coordinates = dict.fromkeys(elements_of(shift))
    if len(coordinates) != 1 or types.get(word.tensor) not in WORDS:
        return None
    (coordinate,) = coordinates
    if not coordinate.tensor.startswith(INDICES):
        return None
    period, growth = _period(shift) or (0, 1)
    if growth or (coordinate.dims[-1:] != word.dims[-1:] and not set(coordinate.dims) <= set(word.dims)):
        return None
    shifts = [_number_at(shift, place) for place in range(math.lcm(period, 2) + 1)]
    distances = {shifts[place + 1] - shifts[place] for place in range(0, len(shifts) - 1, 2)}
    if len(distances) > 1 or min(shifts) < 0 or max(shifts) + FIELD > WORD_BITS:
        return None
    (distance,) = distances
    is_legal = distance in DISTANCES[: 1 if is_e2m1 else None] and (distance == FIELD or types[word.tensor] == int32)
    return Fields(word, coordinate, shift, added, period, distance, is_e2m1) if is_legal else None


def is_exact(fields: Fields, dtype: DType) -> bool:
    """Whether all values of the fields are exact in a 16-bit type, also before the integer is added."""
    if fields.is_e2m1:
        return dtype in UNIT_BITS
    base, _, most = BASES[dtype]
    return -most <= base - fields.added <= most and max(abs(fields.added), abs(fields.added + MASK)) <= most


def _number_at(value: Value, coordinate: int) -> int:
    """Return an integer that is computed from a coordinate and constants."""
    if isinstance(value, Element):
        return coordinate
    if isinstance(value, Number):
        return int(value.value)
    assert isinstance(value, Operation)
    first, second = (_number_at(argument, coordinate) for argument in value.arguments)
    return OPERATIONS[value.name](first, second)


def _period(value: Value) -> tuple[int, int] | None:
    """Return n and d such that the value of each coordinate k + n is that of k plus d; None for other functions.

    >>> from fireiron.specs.formula import formula_of
    >>> _period(formula_of("y[k] = 16 * (i[k] % 2) + 4 * (i[k] // 8 % 4)").value)
    (32, 0)
    """
    if isinstance(value, Element):
        return 1, 1
    if isinstance(value, Number):
        return (1, 0) if isinstance(value.value, int) else None
    if value.name not in OPERATIONS or len(value.arguments) != 2:
        return None
    first, second = value.arguments
    if value.name in ("*", "&") and isinstance(first, Number):
        first, second = second, first
    inner, other = _period(first), _period(second)
    if inner is None or other is None:
        return None
    if value.name == "+":
        period = math.lcm(inner[0], other[0])
        return period, inner[1] * (period // inner[0]) + other[1] * (period // other[0])
    if not isinstance(second, Number) or not isinstance(second.value, int) or second.value <= 0:
        return None
    return _period_with_constant(value.name, inner, second.value)


def _period_with_constant(name: str, inner: tuple[int, int], number: int) -> tuple[int, int] | None:
    """Return the period and the growth of an operation with a constant."""
    period, growth = inner
    if name in ("*", "<<"):
        return period, OPERATIONS[name](growth, number)
    if name == "&" and number & (number + 1):
        return None
    modulus = number + 1 if name == "&" else number
    times = modulus // math.gcd(growth, modulus)
    return period * times, growth * times // modulus if name == "//" else 0


def shared(value: Value | None, types: Mapping[str, DType]) -> Iterator[Fields]:
    """Yield the fields in a value, without those of conditions."""
    fields = fields_of(value, types)
    if fields is not None:
        yield fields
    elif isinstance(value, Operation):
        for argument in value.arguments[value.name == "where" :]:
            yield from shared(argument, types)


def pair_function(fields: Fields, dtype: DType, known: bool) -> Function:
    """Return the device function that converts two fields of a word; `known`: their number in a word of eight is a constant.

    With all pairs of a word, the compiler computes each (word >> s) & 0x000f000f once, for two pairs.
    """
    if fields.is_e2m1:
        return e2m1_pair(dtype, known)
    kind = "__half2" if dtype == float16 else "__nv_bfloat162"
    _, bits, _ = BASES[dtype]
    pattern = f"0x{bits:04x}{bits:04x}"
    last = (f"return __hsub2(*reinterpret_cast<const {kind}*>(&pair), *reinterpret_cast<const {kind}*>(&base));",)
    lines: tuple[str, ...]
    name = f"int4_pair_to_{'half2' if dtype == float16 else 'bfloat162'}"
    if fields.distance == HALF_WORD:
        return _far_pair_function(name, kind, pattern, dtype)
    if known:
        lines = (
            f"const unsigned even = ((word >> (field % 4 * 4)) & 0x000f000f) | {pattern};",
            f"const unsigned odd = ((word >> (field % 4 * 4 + 4)) & 0x000f000f) | {pattern};",
            "const unsigned pair = __byte_perm(even, odd, field < 4 ? 0x5410 : 0x7632);",
        )
        note = "the fields of 4 bits number field and field + 1 of a word, as floats, minus a number that includes the base"
        return Function(f"{name}_of_word", ("unsigned word", "unsigned base"), (*lines, *last), note, "int field", kind)
    lines = (f"const unsigned pair = (word & 0xf) | (word << 12 & 0xf0000) | {pattern};",)
    note = "the lowest two fields of 4 bits of a word, as floats, minus a number that includes the base"
    return Function(name, ("unsigned word", "unsigned base"), (*lines, *last), note, result=kind)


def _far_pair_function(name: str, kind: str, pattern: str, dtype: DType) -> Function:
    """Return the device function that converts two fields in different halves of a word.

    `asm` keeps both constants of LOP3 in registers; the compiler would move one of them before each LOP3. In float16, every second field is
    converted at its place: 16 u replaces the lowest bits of 1024, and a multiply-add by 1/16 replaces a shift.
    """
    head, end = 'asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(pair)', f'"r"({pattern}));'
    first = "*reinterpret_cast<const __half2*>(&pair)"
    note = "two fields of 4 bits of a word, 16 bits apart, as floats, minus a number that includes the base"
    lines: tuple[str, ...]
    if dtype != float16:
        last = f"return __hsub2(*reinterpret_cast<const {kind}*>(&pair), *reinterpret_cast<const {kind}*>(&base));"
        lines = ("unsigned pair;", f'{head} : "r"(word >> shift), "r"(0x000f000fu), {end}', last)
        return Function(f"{name}_{HALF_WORD}_bits_apart", ("unsigned word", "unsigned base", "int shift"), lines, note, result=kind)
    lines = (
        "unsigned pair;",
        f'{head} : "r"(word >> (shift & ~4)), "r"(shift & 4 ? 0x00f000f0u : 0x000f000fu), {end}',
        f"if (shift & 4) return __hfma2({first}, __float2half2_rn(0.0625f), *reinterpret_cast<const __half2*>(&above));",
        f"return __hsub2({first}, *reinterpret_cast<const __half2*>(&base));",
    )
    note = f"{note}; above: the base of odd fields, negated"
    return Function(
        f"{name}_{HALF_WORD}_bits_apart", ("unsigned word", "unsigned base", "unsigned above", "int shift"), lines, note, result=kind
    )


def above_bits(fields: Fields) -> int:
    """Return the bits of a pair of float16: the integer minus 64, for fields that are converted at their place, 4 bits above others."""
    import numpy

    half = int(numpy.float16(fields.added - BASES[float16][0] // 16).view(numpy.uint16))
    return half | half << 16


def is_byte(dtype: DType, result: DType) -> bool:
    """Whether adjacent bytes of this type are converted to a pair of a 16-bit type: float16 has bits for all integers from 1024 to 1279."""
    return dtype in (int8, uint8) and result == float16


def bytes_function(dtype: DType) -> Function:
    """Return the device function that converts two adjacent bytes to float16."""
    signed = dtype == int8
    number, bits = (1152, "0x64806480") if signed else (1024, "0x64006400")
    changed = "bytes ^ 0x8080" if signed else "bytes"
    body = (
        f"const unsigned pair = __byte_perm({changed}, 0x64, 0x4140), base = {bits};",
        "return __hsub2(*reinterpret_cast<const __half2*>(&pair), *reinterpret_cast<const __half2*>(&base));",
    )
    note = f"two adjacent bytes as the lowest bits of 1024 in float16, minus {number}"
    return Function(f"{dtype}_pair_to_half2", ("unsigned bytes",), body, note, result="__half2")


def base_bits(fields: Fields, dtype: DType) -> int:
    """Return the bits of a pair of numbers: the base minus the added integer, or the power of two by which FP4 numbers are multiplied."""
    import numpy

    if fields.is_e2m1:
        return UNIT_BITS[dtype]
    number = BASES[dtype][0] - fields.added
    half = int(numpy.float16(number).view(numpy.uint16)) if dtype == float16 else int(numpy.float32(number).view(numpy.uint32)) >> 16
    return half | half << 16


__all__ = [
    "HALF_WORD",
    "FIELD",
    "Fields",
    "above_bits",
    "base_bits",
    "bytes_function",
    "fields_of",
    "is_byte",
    "is_exact",
    "pair_function",
    "shared",
]
