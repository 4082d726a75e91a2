"""Atomic additions to global memory: RED, which returns no value (CUDA C++ Programming Guide, "atomicAdd()").

>>> from fireiron import *
>>> leaf = AtomicAdd(1, 1)(RF, GL)(Thread)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['AtomicAdd']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs

from fireiron.ir import Exec
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Executable, Mismatch
from fireiron.performing.atomics import atomic_mismatches, atomic_text
from fireiron.spec import Spec
from fireiron.values.machine import Architecture, DType, float32, float64, int32

TYPES: Mapping[DType, int] = {float32: 50, int32: 50, float64: 60}
"""Element types that are added without loss of precision, and the first compute capability with atomic addition of each."""


@attrs.frozen
class ThreadAtomicAdd(Executable):
    """`AtomicAdd(1,1)` of one thread."""

    each: ClassVar[bool] = True

    def performs(self) -> str:
        return f"AtomicAdd(1,1)(GL|SH|RF -> GL)(Thread), {' or '.join(map(str, TYPES))}"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        return atomic_mismatches(spec, architecture, "sum", TYPES)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        return atomic_text(printer, statement, "atomicAdd")


ATOMIC_ADD = ThreadAtomicAdd("AtomicAdd")

INSTRUCTIONS: tuple[Executable, ...] = (ATOMIC_ADD,)

__all__ = ["ThreadAtomicAdd"]
