"""Element-wise arithmetic of one thread: add, subtract, multiply; in pairs for 16-bit floats (Graphene, Table 2 rows 5, 6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from fireiron.errors import ArgumentError, call_site
from fireiron.executable.pairs import pair, stored_pair
from fireiron.ir import Exec
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Executable, Mismatch
from fireiron.spec import Spec
from fireiron.specs.formula import Element, Operation
from fireiron.values.document import Assignment, Call, Chain, Joined, in_parentheses
from fireiron.values.expr import constant
from fireiron.values.machine import MATRIX_ONLY, Architecture, bfloat16, float16

_HALF = {"+": "__hadd", "-": "__hsub", "*": "__hmul"}


@attrs.frozen
class ThreadPointwise(Executable):
    """`BinaryPointwise(1,1)` of one thread; with `pairs`, `(2,1)` or `(1,2)` in half precision (`hadd2`, `hmul2`)."""

    packs: ClassVar[bool] = True

    pairs: bool = False

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.pairs, bool):
            raise ArgumentError("pointwise: pairs is True or False", got=self.pairs, at=call_site())

    def performs(self) -> str:
        return f"BinaryPointwise({'2,1) or (1,2' if self.pairs else '1,1'})(Thread)" + (", 16-bit floats" if self.pairs else "")

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.pointwise:
            return (Mismatch("spec", "BinaryPointwise", spec.title),)
        value = None if spec.definition.only is None else spec.definition.only.value
        binary = isinstance(value, Operation) and value.name in _HALF and all(isinstance(one, Element) for one in value.arguments)
        if not binary or tuple(spec.uses) != ("lhs", "rhs", "dst"):
            return (Mismatch("formula", "dst[m,n] = lhs[m,n] + rhs[m,n], or - or *", str(spec.definition)),)
        found = []
        if spec.level.threads != 1:
            found.append(Mismatch("level", "Thread", spec.level.name))
        sizes = tuple(constant(size) for size in spec.sizes)
        shapes = ((2, 1), (1, 2)) if self.pairs else ((1, 1),)
        if sizes not in shapes:
            found.append(Mismatch("shape", " or ".join(f"{m}x{n}" for m, n in shapes), "x".join(map(str, spec.sizes))))
        kinds = {view.dtype for view in spec.operands.values()}
        if self.pairs and not kinds <= {float16, bfloat16}:
            found.append(Mismatch("type", "float16 or bfloat16", ", ".join(sorted(map(str, kinds)))))
        if kinds & set(MATRIX_ONLY):
            found.append(Mismatch("type", "a type that threads compute with", ", ".join(sorted(map(str, kinds)))))
        if self.pairs and any(view.bounded for view in spec.operands.values()):
            found.append(Mismatch("bounds", "elements that all lie inside the tensors", "the last tile may overhang"))
        needed = 80 if bfloat16 in kinds else 53
        if kinds & {float16, bfloat16} and architecture.capability < needed:
            found.append(Mismatch("target", f"sm_{needed} or newer", architecture.name))
        return tuple(found)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        operation, dtype = statement.spec.operation, statement.spec.dst.dtype
        if self.pairs:
            left, right = (pair(printer, statement, name) for name in ("lhs", "rhs"))
            return stored_pair(printer, statement, "dst", Call(f"{_HALF[operation]}2", (left, right)))
        left, right = (printer.factor(statement, name, statement.spec.operands[name].dtype) for name in ("lhs", "rhs"))
        target = printer.element(statement, "dst")
        if dtype in (float16, bfloat16):
            return [Assignment(target, Call(_HALF[operation], (left, right)))]
        return [Assignment(target, Chain((in_parentheses(left), Joined((f"{operation} ", in_parentheses(right))))))]


POINTWISE = ThreadPointwise("Pointwise")
POINTWISE2 = ThreadPointwise("Pointwise2", True)

INSTRUCTIONS: tuple[Executable, ...] = (POINTWISE, POINTWISE2)

__all__ = ["ThreadPointwise"]
