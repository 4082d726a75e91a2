"""Print how a thread combines a result with the current output: sum, product, maximum or minimum."""

from __future__ import annotations

from collections.abc import Sequence

from fireiron.ir import Exec
from fireiron.ir.text import Printer
from fireiron.specs.meaning import neutral
from fireiron.values.document import Chain, Choice, Joined, Text, in_parentheses
from fireiron.values.expr import TRUE
from fireiron.values.machine import DType, float32, int32

SIGNS = {"sum": "+", "prod": "*"}
"""The operations that C++ writes as an infix operator instead of a function."""

MOST_IN_A_CHAIN = 8
"""Maximum length of a dependent chain; two chains halve the latency of a sum of 32 (H200, attention, head size 64: 4 to 5 % faster)."""


def widened(dtype: DType) -> DType:
    """Return the type in which threads combine elements: small floats in float32, small integers in int32."""
    return dtype if dtype.bits >= 32 else float32 if dtype.kind == "float" else int32


def old_value(printer: Printer, statement: Exec, by: str, current: Text, dtype: DType) -> Text:
    """Return the value of the output, or the neutral value if the statement does not accumulate."""
    if by == "sum" or statement.accumulate == TRUE:
        return printer.accumulator(statement, current, dtype)
    return Choice(printer.expression(statement.accumulate), current, printer.literal(neutral(by, dtype), dtype))


def together(printer: Printer, by: str, values: list[Text], dtype: DType) -> Text:
    """Combine values one after the other; sums and products of many values use two chains."""
    sign = SIGNS.get(by)
    if sign is not None:
        splits = len(values) > MOST_IN_A_CHAIN
        return _chain(sign, [Joined(("(", _chain(sign, values[first::2]), ")")) for first in (0, 1)] if splits else values)
    total, *others = values
    for other in others:
        total = printer.applied(by, dtype, total, other)
    return total


def _chain(sign: str, values: Sequence[Text]) -> Text:
    """Print values with an infix operator between them."""
    first, *others = map(in_parentheses, values)
    return Chain((first, *(Joined((f"{sign} ", other)) for other in others))) if others else first
