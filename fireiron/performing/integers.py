"""Print operators and functions of integers (`fireiron.specs.bits`).

The operands are of one type that contains their ranges and that of the result, so nothing overflows. C++ rounds quotients toward zero: an
operand that may be negative needs a shift, a mask, or a correction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fireiron.ir.text import Function, Printer
from fireiron.specs.bits import Range, uint32
from fireiron.specs.formula import Number, Value
from fireiron.specs.philox import KEY_STEPS, MULTIPLIERS, ROUNDS, UNIFORM_BITS
from fireiron.values.document import Call, Chain, Joined, Text
from fireiron.values.machine import DType, int32

HEXADECIMAL: Final = 256
"""Masks from this number on are printed in hexadecimal."""


def common_type(spans: Sequence[Range], kinds: Sequence[DType], wide: DType) -> DType:
    """Return the smallest of int32, uint32 and `wide` that contains all ranges; `wide` if an operand has it."""
    fitting = (kind for kind in (int32, uint32) if all(kind.limits[0] <= least and most <= kind.limits[1] for least, most in spans))
    return wide if wide in kinds else next(fitting, wide)


def printed_operation(printer: Printer, name: str, kind: DType, texts: Sequence[Text], values: Sequence[Value], span: Range) -> Text:
    """Print an operation on texts of one type; the first operand, or its only one, has the range `span`."""
    if len(texts) == 1:
        return Joined((name, texts[0]))
    left, right = texts
    divisor = values[1].value if isinstance(values[1], Number) else None
    if name in ("//", "%") and isinstance(divisor, int) and divisor & (divisor - 1) == 0 and span[0] < 0:
        if name == "//":
            return Chain((left, f">> {divisor.bit_length() - 1}"))
        return Chain((left, Joined(("& ", printer.literal(divisor - 1, kind)))))
    if name in ("//", "%") and span[0] < 0:
        return Call(printer.function(_rounded_down(name, kind)), (left, right))
    if name == "<<" and span[0] < 0:  # of a negative integer, undefined before C++20
        unsigned = f"unsigned {kind.cuda}"
        shifted = Chain((Joined((f"static_cast<{unsigned}>(", left, ")")), Joined(("<< ", right))))
        return Call(f"static_cast<{kind.cuda}>", (shifted,))
    return Chain((left, Joined((f"{'/' if name == '//' else name} ", right))))


def literal(printer: Printer, number: int, kind: DType) -> Text:
    """Print a constant operand of a bitwise operator."""
    text = printer.literal(number, kind)
    digits = str(number)
    return text.replace(digits, hex(number), 1) if number >= HEXADECIMAL and text.startswith(digits) else text


def _rounded_down(name: str, kind: DType) -> Function:
    """Return the device function for a quotient that is rounded down, or its remainder; the divisor is positive."""
    parameters, kind_name = (f"{kind.cuda} x", f"{kind.cuda} divisor"), kind.cuda
    if name == "//":
        note = "the quotient by a positive divisor, rounded toward minus infinity"
        return Function("floor_divided", parameters, ("return x / divisor - (x % divisor < 0);",), note, result=kind_name)
    body = (f"{kind_name} rest = x % divisor;", "return rest < 0 ? rest + divisor : rest;")
    return Function("floor_remainder", parameters, body, "the remainder by a positive divisor, never negative", result=kind_name)


def philox() -> Function:
    """Return the device function for a random word of Philox4x32-10 (`fireiron.specs.philox`)."""
    words = ("unsigned int c0", "unsigned int c1", "unsigned int c2", "unsigned int c3", "unsigned int word")
    (first, second), (key, other_key) = ([f"{number:#x}u" for number in numbers] for numbers in (MULTIPLIERS, KEY_STEPS))
    body = (
        "unsigned int key = static_cast<unsigned int>(seed), other_key = static_cast<unsigned int>(seed >> 32);",
        "#pragma unroll",
        f"for (int round = 0; round < {ROUNDS}; ++round) {{",
        f"  const unsigned int high = __umulhi({first}, c0), other_high = __umulhi({second}, c2);",
        f"  const unsigned int low = {first} * c0, other_low = {second} * c2;",
        "  c0 = other_high ^ c1 ^ key;",
        "  c1 = other_low;",
        "  c2 = high ^ c3 ^ other_key;",
        "  c3 = low;",
        f"  key += {key};",
        f"  other_key += {other_key};",
        "}",
        "return word & 2 ? (word & 1 ? c3 : c2) : (word & 1 ? c1 : c0);",
    )
    return Function("philox", ("unsigned long long seed", *words), body, "a random word of Philox4x32-10", result="unsigned int")


UNIFORM: Final = Function(
    "unit_interval",
    ("unsigned int word",),
    (f"return static_cast<float>(word >> {32 - UNIFORM_BITS}) * {2.0**-UNIFORM_BITS!r}f;",),
    f"a float in [0, 1) from the upper {UNIFORM_BITS} bits of a random word",
    result="float",
)
"""The device function for `uniform`."""
