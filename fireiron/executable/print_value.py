"""Print selected elements from inside a kernel: the instruction of `print_values`, which steps never choose by themselves.

Each thread prints a line, `gelu: acc[3,5] = 1.25 (block 2, thread 37)`, for each of its elements for which the condition of the formula
holds. Block and thread are `blockIdx.x` and `threadIdx.x`. Source: decision 96; CUDA C++ Programming Guide, "Formatted Output".

>>> from fireiron import *
>>> print(PrintValue(tensor="acc", step="gelu").performs())
t[m,n] = where(c, x, 0) (Thread), prints the elements of acc for which c holds
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from fireiron.executable.pointwise import ThreadPointwise, assignment_text, condition_text, coordinate_text
from fireiron.frozen import frozen
from fireiron.ir import Exec
from fireiron.ir.text import Function, If, Item, Printer
from fireiron.language.tree import Executable
from fireiron.spec import Spec
from fireiron.specs.steps import INDICES
from fireiron.specs.tracing import FIRST, always_holds, condition_and_value, conjuncts, coordinates, line_format
from fireiron.values.document import Call, Joined, Text
from fireiron.values.machine import Architecture, DType, float32, float64, int32, int64

_NUMBER = Function(
    "traced_number",
    ("double x",),
    ("return x == x ? x : fabs(x);",),
    "a NaN without its sign, so that it is printed as nan",
    result="double",
)


@frozen
class PrintValue(ThreadPointwise):
    """Print the elements of `tensor` after the step `step`, each with its coordinates, its value, its block and its thread.

    With the `sign` `+=`, `max=` or `min=`, the value is the one that a block combines with an output. Of several threads with the same
    element, the first one prints it. Used only by `print_values`.
    """

    name: str = "PrintValue"
    tensor: str = ""
    step: str = ""
    sign: str = "="

    prints: ClassVar[bool] = True

    def performs(self) -> str:
        return f"t[m,n] = where(c, x, 0) (Thread), prints the elements of {self.tensor} for which c holds"

    def takes_neighbors(self, spec: Spec) -> bool:
        return False

    def on_pairs(self, spec: Spec, architecture: Architecture) -> Executable | None:
        return None

    def clamped_later(self, spec: Spec) -> Executable | None:
        return None

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        (formula,) = statement.spec.definition.formulas
        condition, value = condition_and_value(formula)
        tests = tuple(condition_text(printer, statement, part) for part in conjuncts(condition) if not always_holds(part))
        dtype = statement.spec.operands[formula.output].dtype
        selected = printer.element(statement, formula.output)
        places, first = coordinates(formula, INDICES), coordinates(formula, FIRST)
        names = [element.tensor.removeprefix(FIRST) for element in first]
        line = line_format(self.step, self.tensor, dtype, len(places), names, sign=self.sign)
        numbers = [coordinate_text(printer, statement, element.tensor) for element in (*places, *first)]
        arguments = [*numbers[: len(places)], _number(printer, selected, dtype), *numbers[len(places) :], "blockIdx.x", "threadIdx.x"]
        body = (
            assignment_text(printer, statement, attrs.evolve(formula, value=value)),
            Joined((Call("printf", (f'"{line}\\n"', *arguments)), ";")),
        )
        return [If(tests, body)] if tests else body


def _number(printer: Printer, value: Text, dtype: DType) -> Text:
    """Print a value as an argument of `printf`."""
    if dtype.kind == "int":
        wide = int64 if dtype == int64 else int32
        return printer.converted(value, dtype, wide)
    wide = dtype if dtype == float64 else float32
    return Call(printer.function(_NUMBER), (printer.converted(value, dtype, wide),))


__all__ = ["PrintValue"]
