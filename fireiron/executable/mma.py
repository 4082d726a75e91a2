"""mma.sync: a matrix product by the lanes of a warp, or of a quad-pair; the class that all of its forms are values of.

A form is data: the shape, the element types, who takes part, and per operand which lane holds which element under which
number (a `LaneMap`, from the figures of the PTX ISA, "Matrix fragments for mma"). The simulation follows from the maps
and from what a MatMul means; the text is one line of PTX.
"""

from __future__ import annotations

from typing import Any

import attrs

from fireiron.executable.by_lanes import (
    level_mismatch,
    memory_mismatch,
    shape_mismatch,
    statements_by_lanes,
    target_mismatch,
    type_mismatch,
)
from fireiron.expr import TRUE
from fireiron.ir import Exec, Stmt
from fireiron.lanes import LaneMap
from fireiron.machine import RF, Architecture, DType, Level, Warp
from fireiron.spec import MatMulSpec, Spec
from fireiron.tree import Context, Executable, Mismatch


@attrs.frozen(repr=False)
class Mma(Executable):
    """`MatMul(m,n,k)(RF,RF,RF)(level)`: `opcode` is the PTX instruction, `a`, `b`, `c` say who holds what.

    `capability` is the first compute capability that has it, `last` the last on which it is fast (T019): newer targets run
    it, and only where a strategy asks for it by name.
    """

    shape: tuple[int, int, int] = (16, 8, 16)
    factor: tuple[DType, ...] = ()
    result: DType | None = None
    opcode: str = ""
    a: LaneMap | None = None
    b: LaneMap | None = None
    c: LaneMap | None = None
    level: Level = Warp
    capability: int = 80
    last: int | None = None

    def maps(self) -> dict[str, LaneMap]:
        """The lane maps by operand."""
        assert self.a is not None and self.b is not None and self.c is not None
        return {"A": self.a, "B": self.b, "C": self.c}

    def __repr__(self) -> str:
        return self.name

    def performs(self) -> str:
        m, n, k = self.shape
        types = " or ".join(map(str, self.factor))
        return f"MatMul({m},{n},{k})(RF,RF,RF)({self.level}), A and B {types}, C {self.result}"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not isinstance(spec, MatMulSpec):
            return (Mismatch("spec", "MatMul", spec.title),)
        assert self.result is not None
        return (
            *level_mismatch(spec, self.level),
            *shape_mismatch(spec, dict(zip("mnk", self.shape, strict=True)), multiples=False),
            *(one for name in "AB" for one in type_mismatch(spec, name, self.factor)),
            *type_mismatch(spec, "C", (self.result,)),
            *(one for name in "ABC" for one in memory_mismatch(spec, name, (RF,))),
            *target_mismatch(architecture, self.capability),
        )

    def emit(self, spec: Spec, context: Context) -> tuple[Stmt, ...]:
        return statements_by_lanes(self, spec, context, self.maps())

    def cuda(self, printer: Any, statement: Exec) -> list[str]:
        a, b, c = (printer.words(access, statement) for access in statement.accesses)
        kinds = [printer.constraint(statement.spec.operands[name].dtype) for name in "ABC"]
        outputs = [f'"+{kinds[2]}"({register})' for register in c]
        inputs = [f'"{kind}"({register})' for kind, words in ((kinds[0], a), (kinds[1], b)) for register in words]
        first, second = len(c), len(c) + len(a)
        total = _operands(0, len(c))
        template = f"{self.opcode} {total}, {_operands(first, len(a))}, {_operands(second, len(b))}, {total};"
        lines = list(printer.asm(template, outputs, inputs))
        return lines if statement.accumulate == TRUE else [*printer.cleared(statement, c, kinds[2]), *lines]


def _operands(first: int, count: int) -> str:
    return "{" + ", ".join(f"%{number}" for number in range(first, first + count)) + "}"
