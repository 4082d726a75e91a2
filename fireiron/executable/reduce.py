"""Sums of one thread over partial results: FADD, DADD, IADD in a row (Graphene, Table 1)."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.ir import Exec
from fireiron.language.tree import Executable, Mismatch
from fireiron.spec import Spec
from fireiron.specs.reduction import ReductionSpec
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
        if not isinstance(spec, ReductionSpec):
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

    def cuda(self, printer: Any, statement: Exec) -> list[str]:
        source, target = statement.accesses
        spec = statement.spec
        assert isinstance(spec, ReductionSpec)
        kind, result = spec.src.dtype, spec.dst.dtype
        wide = float32 if kind.kind == "float" and kind.bits < 32 else kind
        place = printer.place(target)
        terms = [printer.value(statement, 0, number, wide) for number in range(len(source.elements()))]
        if statement.accumulate != FALSE:
            old = printer.accumulator(statement, printer.converted(place, result, wide), wide)
            terms.insert(0, f"({old})" if " ? " in old else old)
        return [f"{place} = {printer.converted(' + '.join(terms), wide, result)};"]


REDUCE = ThreadReduce("Reduce")
