"""HFMA2: two 16-bit multiply-adds of one thread (Graphene, Table 2 row 8).

>>> from fireiron import *
>>> leaf = MatMul(2, 1, 1, dtype=float16, c_dtype=float16)(RF, RF, RF)(Thread)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['HFMA2']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fireiron.frozen import frozen
from fireiron.ir import Exec
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Executable, Mismatch
from fireiron.performing.multiply_add import check_fields, fma_mismatches
from fireiron.performing.pairs import old_pair, pair, stored_pair
from fireiron.spec import Spec
from fireiron.values.document import Call
from fireiron.values.machine import RF, Architecture, DType, bfloat16, float16


@frozen
class Hfma2(Executable):
    """`MatMul(2,1,1)` or `MatMul(1,2,1)` `(RF,RF,RF)(Thread)` in half precision; the scalar operand is duplicated.

    If the layout of a buffer has the two values in adjacent registers, they are accessed as a pair; otherwise they are packed first.
    """

    packs: ClassVar[bool] = True

    result: DType = float16
    capability: int = 53

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_fields(self)

    @property
    def factors(self) -> tuple[DType, ...]:
        """Return the types of A and B."""
        return (self.result,)

    def performs(self) -> str:
        return f"MatMul(2,1,1) or MatMul(1,2,1) (RF,RF,RF)(Thread), all {self.result}"

    def may_perform(self, spec: Spec) -> bool:
        return spec.level.threads == 1 and spec.contracts

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        mismatches = list(fma_mismatches(self, spec, architecture, ((2, 1, 1), (1, 2, 1))))
        for name, view in spec.operands.items():
            if not view.memory.like(RF):
                mismatches.append(Mismatch(f"{name} memory", "RF", view.memory.name))
        return tuple(mismatches)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        a, b = (pair(printer, statement, name) for name in ("A", "B"))
        return stored_pair(printer, statement, "C", Call("__hfma2", (a, b, old_pair(printer, statement, "C"))))


HFMA2 = Hfma2("HFMA2")
BFMA2 = Hfma2("BFMA2", bfloat16, 80)

INSTRUCTIONS: tuple[Executable, ...] = (HFMA2, BFMA2)

__all__ = ["BFMA2", "HFMA2", "Hfma2"]
