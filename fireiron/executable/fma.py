"""Scalar multiply-add of one thread: FFMA, HFMA, BFMA, DFMA, IMAD (Fireiron, section 3.2; Graphene, Table 2 rows 7 and 9).

>>> from fireiron import *
>>> leaf = MatMul(1, 1, 1)(RF, RF, RF)(Thread)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['FFMA']
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from fireiron.errors import ArgumentError, call_site
from fireiron.frozen import frozen
from fireiron.ir import Exec
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Executable, Mismatch
from fireiron.performing.multiply_add import check_fields, fma_mismatches
from fireiron.spec import Spec
from fireiron.values.document import Assignment, Call, Text, in_parentheses
from fireiron.values.machine import Architecture, DType, bfloat16, float16, float32, float64, int8, int32


@frozen
class Fma(Executable):
    """`MatMul(1,1,1)(RF,RF,RF)(Thread)` with C of type `result` and A, B of one of `factors`.

    Operands in GL or SH are accessed by implicit scalar loads and stores, as in C++. `text` is the expression
    with `{a}`, `{b}`, `{c}`; `capability` is the first compute capability that has the instruction.
    """

    result: DType = float32
    factors: tuple[DType, ...] = (float32,)
    text: str = "fmaf({a}, {b}, {c})"
    capability: int = 50

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_fields(self)
        try:
            self.text.format(a="a", b="b", c="c")
        except (AttributeError, KeyError, IndexError, ValueError):
            raise ArgumentError(
                f"{self.name}: the text is not an expression of {{a}}, {{b}}, {{c}}", got=self.text, at=call_site()
            ) from None

    def performs(self) -> str:
        return f"MatMul(1,1,1)(RF,RF,RF)(Thread), C {self.result}, A and B {' or '.join(map(str, self.factors))}"

    def may_perform(self, spec: Spec) -> bool:
        return spec.level.threads == 1 and spec.contracts

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        return fma_mismatches(self, spec, architecture, ((1, 1, 1),))

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        a, b = (printer.factor(statement, name, self.result) for name in ("A", "B"))
        c = printer.element(statement, "C")
        values = {"a": a, "b": b, "c": printer.accumulator(statement, c, self.result)}
        return [Assignment(c, _filled_in(self.text, values))]


def _filled_in(text: str, values: Mapping[str, Text]) -> Text:
    """Substitute values for `{a}`, `{b}`, `{c}` in an expression; the printer may break a call between its arguments."""
    match = re.fullmatch(r"(\w+)\((\{[abc]\}(?:, \{[abc]\})*)\)", text)
    if match is not None:
        return Call(match[1], tuple(values[name] for name in re.findall("[abc]", match[2])))
    return text.format(**{name: str(in_parentheses(value)) for name, value in values.items()})


FFMA = Fma("FFMA", float32, (float32, float16, bfloat16, int8), "fmaf({a}, {b}, {c})")
DFMA = Fma("DFMA", float64, (float64, float32), "fma({a}, {b}, {c})")
HFMA = Fma("HFMA", float16, (float16,), "__hfma({a}, {b}, {c})", 53)
BFMA = Fma("BFMA", bfloat16, (bfloat16,), "__hfma({a}, {b}, {c})", 80)
IMAD = Fma("IMAD", int32, (int8, int32), "{a} * {b} + {c}")

INSTRUCTIONS: tuple[Fma, ...] = (FFMA, DFMA, HFMA, BFMA, IMAD)

__all__ = ["BFMA", "DFMA", "FFMA", "HFMA", "IMAD", "Fma"]
