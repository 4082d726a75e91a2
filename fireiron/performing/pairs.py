"""Print two 16-bit floats of a thread as a packed register, `__half2` or `__nv_bfloat162`."""

from __future__ import annotations

from collections.abc import Sequence

from fireiron.ir import Exec
from fireiron.ir.text import Braces, Item, Printer
from fireiron.values.document import Assignment, Call, Choice, Joined, Text, in_parentheses
from fireiron.values.expr import FALSE, TRUE
from fireiron.values.machine import DType, float16


def _named(dtype: DType, half: str, bfloat: str) -> str:
    return half if dtype == float16 else bfloat


def _kind(dtype: DType) -> str:
    return _named(dtype, "__half2", "__nv_bfloat162")


def _is_packed(statement: Exec, name: str) -> bool:
    return statement.width(list(statement.spec.operands).index(name)) == 2


def _packed(printer: Printer, statement: Exec, name: str) -> Text:
    """Reinterpret two adjacent registers as a pair."""
    access = statement.operands[name]
    const = "" if access.write else "const "
    dtype = printer.kernel.buffer(access.buffer).dtype
    return Joined(("*", Call(f"reinterpret_cast<{const}{_kind(dtype)}*>", (printer.pointer(access),))))


def pair(printer: Printer, statement: Exec, name: str) -> Text:
    """Print an operand as a pair: one element twice, two contiguous elements in place, or two elements packed."""
    access = statement.operands[name]
    dtype = printer.kernel.buffer(access.buffer).dtype
    registers = tuple(printer.place(access, offset) for offset in access.elements())
    if len(registers) == 1:
        return Call(_named(dtype, "__half2half2", "__bfloat162bfloat162"), registers)
    if _is_packed(statement, name):
        return _packed(printer, statement, name)
    return Call(_named(dtype, "__halves2half2", "__halves2bfloat162"), registers)


def old_pair(printer: Printer, statement: Exec, name: str) -> Text:
    """Print the old values of an output, or zeros if the statement does not accumulate."""
    old = pair(printer, statement, name)
    if statement.accumulate == TRUE:
        return old
    dtype = printer.kernel.buffer(statement.operands[name].buffer).dtype
    zeros = Call(_named(dtype, "__half2half2", "__bfloat162bfloat162"), (printer.literal(0, dtype),))
    if statement.accumulate == FALSE:
        return zeros
    return in_parentheses(Choice(printer.expression(statement.accumulate), old, zeros))


def stored_pair(printer: Printer, statement: Exec, name: str, value: Text) -> Sequence[Item]:
    """Print the assignment of a pair to an output."""
    access = statement.operands[name]
    dtype = printer.kernel.buffer(access.buffer).dtype
    if _is_packed(statement, name):
        return [Assignment(_packed(printer, statement, name), value)]
    low, high = _named(dtype, "__low2half", "__low2bfloat16"), _named(dtype, "__high2half", "__high2bfloat16")
    first, second = (printer.place(access, offset) for offset in access.elements())
    return [
        Braces(
            "",
            (
                Assignment(f"const {_kind(dtype)} pair", value),
                Assignment(first, f"{low}(pair)"),
                Assignment(second, f"{high}(pair)"),
            ),
        )
    ]
