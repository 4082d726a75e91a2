"""Reductions of one thread: sums, products, maxima and minima by FADD, DADD, IADD, FMUL, FMNMX, IMNMX (Graphene, Table 1).

>>> from fireiron import *
>>> leaf = Reduction(1, 1, 8)(RF, RF)(Thread)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['Reduce']
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from fireiron.frozen import frozen
from fireiron.ir import Exec
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Executable, Mismatch
from fireiron.performing.joining import SIGNS, old_value, together, widened
from fireiron.spec import Spec
from fireiron.specs.bits import uint32
from fireiron.specs.integers import accumulator_type
from fireiron.values.document import Assignment, Text
from fireiron.values.expr import FALSE, constant
from fireiron.values.machine import Architecture, DType, int32, tf32

MOST_NESTED = 4
"""Maximum number of terms of a maximum or minimum in one expression; more terms are combined by separate statements."""

MOST_PARTS = 64
"""Maximum number of terms of a reduction; more terms require a loop, `split(...)`."""


@frozen
class ThreadReduce(Executable):
    """`Reduction(1,1,p)` of one thread, of any rank: one element is the sum, product or extremum of those along p."""

    handles_edges: ClassVar[bool] = True

    def performs(self) -> str:
        return f"Reduction(1,1,p)(GL|SH|RF -> GL|SH|RF)(Thread), p at most {MOST_PARTS}"

    def may_perform(self, spec: Spec) -> bool:
        return spec.level.threads == 1 and spec.reduces

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.reduces:
            return (Mismatch("spec", "Reduction", spec.title),)
        mismatches = []
        if spec.level.threads != 1:
            mismatches.append(Mismatch("level", "Thread", spec.level.name))
        parts = math.prod(constant(spec.size(dim)) or MOST_PARTS + 1 for dim in spec.dims if dim not in spec.tile_dims)
        if any(constant(spec.size(dim)) != 1 for dim in spec.tile_dims) or parts > MOST_PARTS:
            expected = f"{'1x' * len(spec.tile_dims)}p, p at most {MOST_PARTS}"
            mismatches.append(Mismatch("shape", expected, "x".join(map(str, spec.sizes))))
        for name, view in spec.operands.items():
            if view.dtype == tf32:
                mismatches.append(Mismatch(f"{name} type", "a type that threads compute with", str(view.dtype)))
            if view.memory.fragment is not None:
                mismatches.append(Mismatch(f"{name} memory", "GL SH RF", view.memory.name))
        return tuple(mismatches)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        source, target = statement.accesses
        spec = statement.spec
        kind, result = spec.src.dtype, spec.dst.dtype
        wide, count = widened(kind), source.count
        if wide.kind == "int" and result.kind == "float":
            wide = accumulator_type(_by(spec), kind, count) or widened(result)
        target_text = printer.place(target)
        terms = [printer.value(statement, 0, number, wide) for number in range(count)]
        if statement.accumulate != FALSE and wide.kind == "int" and result.kind == "float":  # the old value need not be an integer
            total = printer.converted(together(printer, _by(spec), terms, wide), wide, widened(result))
            wide = widened(result)
            terms = [old_value(printer, statement, _by(spec), printer.converted(target_text, result, wide), wide), total]
        elif statement.accumulate != FALSE:
            terms.insert(0, old_value(printer, statement, _by(spec), printer.converted(target_text, result, wide), wide))
        if len(terms) > 1 and _by(spec) in SIGNS and kind == wide == int32 and result.kind == "int":
            # Overflow of signed integers is undefined in C++; the low bits of unsigned ones are those of the sum or product.
            terms, wide = [printer.converted(term, int32, uint32) for term in terms], uint32
        if _by(spec) not in SIGNS and len(terms) > MOST_NESTED and result == wide:
            return _one_by_one(printer, _by(spec), target_text, terms, wide)
        return [Assignment(target_text, printer.converted(together(printer, _by(spec), terms, wide), wide, result))]


def _one_by_one(printer: Printer, by: str, place: Text, terms: list[Text], dtype: DType) -> Sequence[Item]:
    """Print one statement per term, because deeply nested calls are hard to read."""
    first, *others = terms
    start = Assignment(place, printer.applied(by, dtype, first, others[0]))
    return [start, *(Assignment(place, printer.applied(by, dtype, place, other)) for other in others[1:])]


def _by(spec: Spec) -> str:
    """Return the operation that combines the elements: sum, maximum, minimum or product."""
    (only,) = spec.definition.formulas
    return only.combiner


REDUCE = ThreadReduce("Reduce")

INSTRUCTIONS: tuple[Executable, ...] = (REDUCE,)

__all__ = ["ThreadReduce"]
