"""Scalar multiply-add of one thread: FFMA, HFMA, BFMA, DFMA, IMAD (Fireiron, section 3.2; Graphene, Table 2 rows 7 and 9).

>>> from fireiron import *
>>> leaf = MatMul(1, 1, 1)(RF, RF, RF)(Thread)
>>> [one.name for one in INSTRUCTIONS if not one.mismatches(leaf, ARCHITECTURES[-1])]
['FFMA']
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from fireiron.errors import ArgumentError, call_site, shown
from fireiron.ir import Exec
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Executable, Mismatch
from fireiron.spec import Spec
from fireiron.values.document import Assignment, Call, Text, in_parentheses
from fireiron.values.expr import constant
from fireiron.values.machine import Architecture, DType, bfloat16, float16, float32, float64, int8, int32


@attrs.frozen
class Fma(Executable):
    """`MatMul(1,1,1)(RF,RF,RF)(Thread)` with C of type `result` and A, B of one of `factors`.

    Operands in GL or SH are accessed by an implicit scalar load or store, as C++ does (T028). `text` is the expression
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
            raise ArgumentError(f"{self.name}: not an expression of {{a}}, {{b}}, {{c}}", got=self.text, at=call_site()) from None

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
    """An expression of `{a}`, `{b}`, `{c}` with values in their places; a call of them can be broken between its arguments."""
    match = re.fullmatch(r"(\w+)\((\{[abc]\}(?:, \{[abc]\})*)\)", text)
    if match is not None:
        return Call(match[1], tuple(values[name] for name in re.findall("[abc]", match[2])))
    return text.format(**{name: str(in_parentheses(value)) for name, value in values.items()})


def check_fields(executable: Any) -> None:
    """Refuse an instruction whose fields have wrong types."""
    if not isinstance(executable.name, str) or not executable.name.isprintable() or not executable.name:
        raise ArgumentError("an instruction's name is one line of text", got=executable.name, at=call_site())
    types = (executable.result, *executable.factors) if isinstance(executable.factors, tuple) else (executable.factors,)
    for dtype in types:
        if not isinstance(dtype, DType):
            raise ArgumentError(
                f"{shown(executable.name)}: not an element type", got=dtype, legal="float32, or (float32, float16)", at=call_site()
            )
    if type(executable.capability) is not int or executable.capability < 0:
        raise ArgumentError(
            f"{shown(executable.name)}: a compute capability is an integer such as 80", got=executable.capability, at=call_site()
        )


def fma_mismatches(
    executable: Any, spec: Spec, architecture: Architecture, shapes: tuple[tuple[int, int, int], ...]
) -> tuple[Mismatch, ...]:
    """The differences between a spec and a multiply-add of one thread on one of the shapes."""
    if not spec.contracts:
        return (Mismatch("spec", "MatMul", spec.title),)
    found = []
    if spec.level.threads != 1:
        found.append(Mismatch("level", "Thread", spec.level.name))
    if not _is_of(spec, shapes):
        found.append(Mismatch("shape", " or ".join("x".join(map(str, shape)) for shape in shapes), "x".join(map(str, spec.sizes))))
    if spec.C.dtype != executable.result:
        found.append(Mismatch("C type", str(executable.result), str(spec.C.dtype)))
    for name in ("A", "B"):
        dtype = spec.operands[name].dtype
        if dtype not in executable.factors:
            found.append(Mismatch(f"{name} type", " or ".join(map(str, executable.factors)), str(dtype)))
    if architecture.capability < executable.capability:
        found.append(Mismatch("target", f"sm_{executable.capability} or newer", architecture.name))
    return tuple(found)


def _is_of(spec: Spec, shapes: tuple[tuple[int, int, int], ...]) -> bool:
    """Whether it is one of the shapes m, n, k; or, with indices in another order or number, a single product."""
    sizes = tuple(constant(size) for size in spec.sizes)
    return sizes in shapes if spec.multiplies else (1, 1, 1) in shapes and set(sizes) == {1}


FFMA = Fma("FFMA", float32, (float32, float16, bfloat16, int8), "fmaf({a}, {b}, {c})")
DFMA = Fma("DFMA", float64, (float64, float32), "fma({a}, {b}, {c})")
HFMA = Fma("HFMA", float16, (float16,), "__hfma({a}, {b}, {c})", 53)
BFMA = Fma("BFMA", bfloat16, (bfloat16,), "__hfma({a}, {b}, {c})", 80)
IMAD = Fma("IMAD", int32, (int8, int32), "{a} * {b} + {c}")

INSTRUCTIONS: tuple[Fma, ...] = (FFMA, DFMA, HFMA, BFMA, IMAD)

__all__ = ["BFMA", "DFMA", "FFMA", "Fma", "HFMA", "IMAD"]
