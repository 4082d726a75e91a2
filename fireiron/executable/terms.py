"""One term of a sum of products with any number of factors, including scalars: `C[m,n] += sum(k, alpha * A[m,k] * B[k,n])`.

Source: Graphene, section 5.3.

>>> from fireiron import *
>>> scaled = Kind("Scaled", "C[m,n] += sum(k, alpha * A[m,k] * B[k,n])").starter
>>> leaf = scaled(1, 1, 1)(VAL, RF, RF, RF)(Thread)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['Term']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fireiron.frozen import frozen
from fireiron.ir import Exec
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Executable, Mismatch
from fireiron.spec import Spec
from fireiron.specs.formula import Element, Number, Operation, Value
from fireiron.values.document import Assignment, Chain, Joined, Text, in_parentheses
from fireiron.values.expr import FALSE, constant
from fireiron.values.machine import Architecture, float32, int32, tf32


@frozen
class ThreadTerm(Executable):
    """A multiply-add for one element of the result and one point of the reduced dimensions. 16-bit floats are computed in float32.

    Elements out of bounds count as zero. The product of such an element and finite scalars is zero, too.
    """

    handles_edges: ClassVar[bool] = True

    def performs(self) -> str:
        return "Scaled(1,1,1)(VAL,RF,RF,RF)(Thread), or any other sum of products with scalars or several factors"

    def may_perform(self, spec: Spec) -> bool:
        return spec.level.threads == 1 and not spec.contracts

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        only = spec.definition.only
        if only is None or not only.is_product_sum or only.contracts or not _factors(only.value):
            return (Mismatch("spec", "a sum of products with scalars or several factors", spec.title),)
        mismatches = []
        if spec.level.threads != 1:
            mismatches.append(Mismatch("level", "Thread", spec.level.name))
        if any(constant(size) != 1 for size in spec.sizes):
            mismatches.append(Mismatch("shape", "x".join("1" for _ in spec.sizes), "x".join(map(str, spec.sizes))))
        for name, view in spec.operands.items():
            if view.dtype == tf32:
                mismatches.append(Mismatch(f"{name} type", "a type that threads compute with", str(view.dtype)))
            if view.memory.fragment is not None:
                mismatches.append(Mismatch(f"{name} memory", "GL SH RF", view.memory.name))
        return tuple(mismatches)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        (only,) = statement.spec.definition.formulas
        result = statement.spec.operands[only.output].dtype
        wide = result if result.bits >= 32 else float32 if result.kind == "float" else int32
        place = printer.element(statement, only.output)
        texts = [
            printer.literal(factor.value, wide) if isinstance(factor, Number) else printer.factor(statement, factor.tensor, wide)
            for factor in _factors(only.value)
        ]
        first, *others = map(in_parentheses, texts)
        term: Text = Chain((first, *(Joined(("* ", factor)) for factor in others)))
        if statement.accumulate != FALSE:
            old = printer.accumulator(statement, printer.converted(place, result, wide), wide)
            term = Chain((in_parentheses(old), Joined(("+ ", term))))
        return [Assignment(place, printer.converted(term, wide, result))]


def _factors(value: Value | None) -> tuple[Element | Number, ...]:
    """Return the factors of a product; none for other values."""
    if isinstance(value, (Element, Number)):
        return (value,)
    if not isinstance(value, Operation) or value.name != "*":
        return ()
    parts = [_factors(argument) for argument in value.arguments]
    return tuple(factor for part in parts for factor in part) if all(parts) else ()


TERM = ThreadTerm("Term")

INSTRUCTIONS: tuple[Executable, ...] = (TERM,)

__all__ = ["ThreadTerm"]
