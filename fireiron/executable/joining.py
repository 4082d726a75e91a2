"""How a thread joins a result to what the output holds, as text: added to it, multiplied, or the larger or the smaller of the two."""

from __future__ import annotations

from fireiron.ir import Exec
from fireiron.ir.text import Printer
from fireiron.specs.meaning import neutral
from fireiron.values.document import Chain, Choice, Joined, Text, in_parentheses
from fireiron.values.expr import TRUE
from fireiron.values.machine import DType, float32, int32

SIGNS = {"sum": "+", "prod": "*"}
"""What is a sign between values, and no function."""


def widened(dtype: DType) -> DType:
    """The type in which threads join elements: small floats in float32, small integers in int32."""
    return dtype if dtype.bits >= 32 else float32 if dtype.kind == "float" else int32


def old_value(printer: Printer, statement: Exec, by: str, held: Text, dtype: DType) -> Text:
    """What the output holds; where it does not count, what changes nothing."""
    if by == "sum" or statement.accumulate == TRUE:
        return printer.accumulator(statement, held, dtype)
    return Choice(printer.expression(statement.accumulate), held, printer.literal(neutral(by, dtype), dtype))


def together(printer: Printer, by: str, values: list[Text], dtype: DType) -> Text:
    """The sum, the maximum, the minimum or the product of values, one after the other."""
    sign = SIGNS.get(by)
    first, *others = values if sign is None else map(in_parentheses, values)
    if not others:
        return first
    if sign is not None:
        return Chain((first, *(Joined((f"{sign} ", other)) for other in others)))
    total = first
    for other in others:
        total = printer.applied(by, dtype, total, other)
    return total
