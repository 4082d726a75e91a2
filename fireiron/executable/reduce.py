"""Sums of one thread over partial results: FADD, DADD, IADD in a row (Graphene, Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from fireiron.ir import Exec
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Executable, Mismatch
from fireiron.spec import Spec
from fireiron.values.document import Assignment, Chain, Joined, in_parentheses
from fireiron.values.expr import FALSE, constant
from fireiron.values.machine import MATRIX_ONLY, Architecture, float32

MOST_PARTS = 64
"""Terms of one sum; more are a loop, `split(...)`."""


@attrs.frozen
class ThreadReduce(Executable):
    """`Reduction(1,1,p)` of one thread: one element is the sum of `p`, read one after the other."""

    handles_edges: ClassVar[bool] = True

    def performs(self) -> str:
        return f"Reduction(1,1,p)(GL|SH|RF -> GL|SH|RF)(Thread), p at most {MOST_PARTS}"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.sums:
            return (Mismatch("spec", "Reduction", spec.title),)
        found = []
        if spec.level.threads != 1:
            found.append(Mismatch("level", "Thread", spec.level.name))
        m, n, p = (constant(size) for size in spec.sizes)
        if (m, n) != (1, 1) or p is None or p > MOST_PARTS:
            found.append(Mismatch("shape", f"1x1xp, p at most {MOST_PARTS}", "x".join(map(str, spec.sizes))))
        for name, view in spec.operands.items():
            if view.dtype in MATRIX_ONLY:
                found.append(Mismatch(f"{name} type", "a type that threads compute with", str(view.dtype)))
            if view.memory.fragment is not None:
                found.append(Mismatch(f"{name} memory", "GL SH RF", view.memory.name))
        return tuple(found)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        source, target = statement.accesses
        spec = statement.spec
        kind, result = spec.src.dtype, spec.dst.dtype
        wide = float32 if kind.kind == "float" and kind.bits < 32 else kind
        place = printer.place(target)
        terms = [printer.value(statement, 0, number, wide) for number in range(len(source.elements()))]
        if statement.accumulate != FALSE:
            terms.insert(0, printer.accumulator(statement, printer.converted(place, result, wide), wide))
        first, *others = map(in_parentheses, terms)
        total = Chain((first, *(Joined(("+ ", term)) for term in others))) if others else first
        return [Assignment(place, printer.converted(total, wide, result))]


REDUCE = ThreadReduce("Reduce")

INSTRUCTIONS: tuple[Executable, ...] = (REDUCE,)

__all__ = ["ThreadReduce"]
