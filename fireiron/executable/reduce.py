"""Sums, maxima and minima of one thread over elements: FADD, DADD, IADD, FMNMX, IMNMX in a row (Graphene, Table 1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import attrs

from fireiron.ir import Exec
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Executable, Mismatch
from fireiron.spec import Spec
from fireiron.specs.meaning import neutral
from fireiron.values.document import Assignment, Chain, Choice, Joined, Text, in_parentheses
from fireiron.values.expr import FALSE, TRUE, constant
from fireiron.values.machine import MATRIX_ONLY, Architecture, DType, float32, int32

MOST_PARTS = 64
"""Terms of one sum; more are a loop, `split(...)`."""


@attrs.frozen
class ThreadReduce(Executable):
    """`Reduction(1,1,p)` of one thread, of any rank: one element is the sum, maximum or minimum of those along p, one after the other."""

    handles_edges: ClassVar[bool] = True

    def performs(self) -> str:
        return f"Reduction(1,1,p)(GL|SH|RF -> GL|SH|RF)(Thread), p at most {MOST_PARTS}"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.reduces:
            return (Mismatch("spec", "Reduction", spec.title),)
        found = []
        if spec.level.threads != 1:
            found.append(Mismatch("level", "Thread", spec.level.name))
        parts = math.prod(constant(spec.size(dim)) or MOST_PARTS + 1 for dim in spec.dims if dim not in spec.tile_dims)
        if any(constant(spec.size(dim)) != 1 for dim in spec.tile_dims) or parts > MOST_PARTS:
            wanted = f"{'1x' * len(spec.tile_dims)}p, p at most {MOST_PARTS}"
            found.append(Mismatch("shape", wanted, "x".join(map(str, spec.sizes))))
        for name, view in spec.operands.items():
            if view.dtype in MATRIX_ONLY:
                found.append(Mismatch(f"{name} type", "a type that threads compute with", str(view.dtype)))
            if view.memory.fragment is not None:
                found.append(Mismatch(f"{name} memory", "GL SH RF", view.memory.name))
        if _by(spec) != "sum" and _edge(spec):
            found.append(Mismatch("bounds", "elements that all lie inside along the reduced dimensions", "the last tile may overhang"))
        return tuple(found)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        source, target = statement.accesses
        spec = statement.spec
        kind, result = spec.src.dtype, spec.dst.dtype
        wide = kind if kind.bits >= 32 else float32 if kind.kind == "float" else int32
        place = printer.place(target)
        terms = [printer.value(statement, 0, number, wide) for number in range(len(source.elements()))]
        if statement.accumulate != FALSE:
            terms.insert(0, self._old(printer, statement, printer.converted(place, result, wide), wide))
        return [Assignment(place, printer.converted(self._total(printer, spec, terms, wide), wide, result))]

    def _old(self, printer: Printer, statement: Exec, held: Text, wide: DType) -> Text:
        """What the output holds; where it does not count, what changes nothing."""
        if _by(statement.spec) == "sum" or statement.accumulate == TRUE:
            return printer.accumulator(statement, held, wide)
        return Choice(printer.expression(statement.accumulate), held, printer.literal(neutral(_by(statement.spec), wide), wide))

    def _total(self, printer: Printer, spec: Spec, terms: list[Text], wide: DType) -> Text:
        first, *others = map(in_parentheses, terms) if _by(spec) == "sum" else terms
        if not others:
            return first
        if _by(spec) == "sum":
            return Chain((first, *(Joined(("+ ", term)) for term in others)))
        total = first
        for term in others:
            total = printer.applied(_by(spec), wide, total, term)
        return total


def _by(spec: Spec) -> str:
    """What its elements become: their sum, maximum or minimum."""
    (only,) = spec.definition.formulas
    return only.joins_by


def _edge(spec: Spec) -> bool:
    """Whether elements along the reduced dimensions may lie outside: they count as zero, which changes maxima and minima."""
    return any(part.bound is not None for dim, part in zip(spec.uses["src"], spec.src.dims, strict=True) if dim not in spec.tile_dims)


REDUCE = ThreadReduce("Reduce")

INSTRUCTIONS: tuple[Executable, ...] = (REDUCE,)

__all__ = ["ThreadReduce"]
