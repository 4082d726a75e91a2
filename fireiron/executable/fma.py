"""Scalar multiply-add of one thread: FFMA, HFMA, BFMA, DFMA, IMAD (Fireiron, section 3.2; Graphene, Table 2 rows 7 and 9)."""

from __future__ import annotations

from typing import Any

import attrs

from fireiron.expr import FALSE, TRUE, constant
from fireiron.ir import Exec
from fireiron.machine import RF, Architecture, DType, bfloat16, float16, float32, float64, int8, int32
from fireiron.spec import MatMulSpec, Spec
from fireiron.tree import Executable, Mismatch


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

    def performs(self) -> str:
        return f"MatMul(1,1,1)(RF,RF,RF)(Thread), C {self.result}, A and B {' or '.join(map(str, self.factors))}"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        return fma_mismatches(self, spec, architecture, ((1, 1, 1),))

    def cuda(self, printer: Any, statement: Exec) -> list[str]:
        a, b, c = (printer.element(statement, name) for name in ("A", "B", "C"))
        a, b = (printer.converted(text, statement.spec.operands[name].dtype, self.result) for text, name in ((a, "A"), (b, "B")))
        old = printer.accumulator(statement, c, self.result)
        return [f"{c} = {self.text.format(a=a, b=b, c=old)};"]


def fma_mismatches(
    executable: Any, spec: Spec, architecture: Architecture, shapes: tuple[tuple[int, int, int], ...]
) -> tuple[Mismatch, ...]:
    """The differences between a spec and a multiply-add of one thread on one of the shapes."""
    if not isinstance(spec, MatMulSpec):
        return (Mismatch("spec", "MatMul", spec.title),)
    found = []
    if spec.level.threads != 1:
        found.append(Mismatch("level", "Thread", spec.level.name))
    sizes = tuple(constant(size) for size in spec.sizes)
    if sizes not in shapes:
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


FFMA = Fma("FFMA", float32, (float32, float16, bfloat16, int8), "fmaf({a}, {b}, {c})")
DFMA = Fma("DFMA", float64, (float64, float32), "fma({a}, {b}, {c})")
HFMA = Fma("HFMA", float16, (float16,), "__hfma({a}, {b}, {c})", 53)
BFMA = Fma("BFMA", bfloat16, (bfloat16,), "__hfma({a}, {b}, {c})", 80)
IMAD = Fma("IMAD", int32, (int8, int32), "{a} * {b} + {c}")

SCALAR: tuple[Fma, ...] = (FFMA, DFMA, HFMA, BFMA, IMAD)

__all__ = ["BFMA", "DFMA", "FALSE", "FFMA", "HFMA", "IMAD", "RF", "SCALAR", "TRUE", "Fma", "fma_mismatches"]
