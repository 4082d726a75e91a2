"""Atomic additions to global memory: RED, which returns no value (CUDA C++ Programming Guide, "atomicAdd()"; PTX ISA, "red").

In 16-bit floats, each addition rounds. Adjacent elements are added in pairs, and since sm_90 up to eight at once, if `vectorize` proves
that they are contiguous and aligned. Each element is a separate atomic addition.

>>> from fireiron import *
>>> leaf = AtomicAdd(1, 1)(RF, GL)(Thread)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['AtomicAdd']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from fireiron.frozen import frozen
from fireiron.ir import Exec
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Executable, Mismatch
from fireiron.performing.atomics import VECTORS, atomic_mismatches, atomic_text, half_additions
from fireiron.spec import Spec
from fireiron.values.machine import Architecture, DType, bfloat16, float16, float32, float64, int32

TYPES: Mapping[DType, int] = {float32: 50, int32: 50, float64: 60}
"""Element types that are added without loss of precision, and the first compute capability with atomic addition of each."""

ROUNDED_TYPES: Mapping[DType, int] = {float16: 70, bfloat16: 90}
"""Element types in which each addition rounds to 16 bits, and the first compute capability with atomic addition of each."""

ADDED_TYPES: Mapping[DType, int] = {**TYPES, **ROUNDED_TYPES}
"""All element types of atomic additions."""


@frozen
class ThreadAtomicAdd(Executable):
    """`AtomicAdd(1,1)` of one thread."""

    each: ClassVar[bool] = True

    def performs(self) -> str:
        return f"AtomicAdd(1,1)(GL|SH|RF -> GL)(Thread), {' or '.join(map(str, ADDED_TYPES))}"

    def takes_neighbors(self, spec: Spec) -> bool:
        return spec.dst.dtype in ROUNDED_TYPES

    def atomic_widths(self, spec: Spec, architecture: Architecture) -> tuple[int, ...]:
        return tuple(width for width, first in VECTORS.items() if spec.dst.dtype in ROUNDED_TYPES and architecture.capability >= first)

    def may_perform(self, spec: Spec) -> bool:
        return spec.atomic

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        return atomic_mismatches(spec, architecture, "sum", ADDED_TYPES)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        if statement.spec.dst.dtype in ROUNDED_TYPES:
            return half_additions(printer, statement)
        return atomic_text(printer, statement, "atomicAdd")


ATOMIC_ADD = ThreadAtomicAdd("AtomicAdd")

INSTRUCTIONS: tuple[Executable, ...] = (ATOMIC_ADD,)

__all__ = ["ThreadAtomicAdd"]
