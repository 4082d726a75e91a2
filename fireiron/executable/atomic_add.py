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
from fireiron.spec import Spec
from fireiron.values.document import Joined, Text, called
from fireiron.values.expr import constant
from fireiron.values.machine import Architecture, DType, float32, float64, int32

TYPES: Mapping[DType, int] = {float32: 50, int32: 50, float64: 60}
"""Element types that are added without loss of precision, and the first compute capability with atomic addition of each."""


def _mismatches(spec: Spec, architecture: Architecture) -> list[Mismatch]:
    """Return the mismatches of memory, type and target, at any level."""
    mismatches = []
    if not spec.dst.memory.of_grid:
        mismatches.append(Mismatch("dst memory", "GL", spec.dst.memory.name))
    first = TYPES.get(spec.dst.dtype)
    if first is None:
        mismatches.append(Mismatch("dst type", " or ".join(map(str, TYPES)), str(spec.dst.dtype)))
    elif architecture.capability < first:
        mismatches.append(Mismatch("target", f"sm_{first} or newer", architecture.name))
    return mismatches


def _text(printer: Printer, statement: Exec) -> list[Item]:
    source, target = (view.dtype for view in statement.spec.operands.values())

    def line(value: Text, place: Text) -> Text:
        return called("atomicAdd", Joined(("&", place)), printer.converted(value, source, target))

    return printer.each(statement, line)


@attrs.frozen
class ThreadAtomicAdd(Executable):
    """`AtomicAdd(1,1)` of one thread."""

    each: ClassVar[bool] = True

    def performs(self) -> str:
        return f"AtomicAdd(1,1)(GL|SH|RF -> GL)(Thread), {' or '.join(map(str, TYPES))}"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        only = spec.definition.only
        if not spec.atomic or only is None or only.combiner != "sum":
            return (Mismatch("spec", "AtomicAdd", spec.title),)
        mismatches = _mismatches(spec, architecture)
        if spec.level.threads != 1:
            mismatches.append(Mismatch("level", "Thread", spec.level.name))
        if any(constant(size) != 1 for size in spec.sizes):
            mismatches.append(Mismatch("shape", "1x1", "x".join(map(str, spec.sizes))))
        if spec.src.memory.fragment is not None:
            mismatches.append(Mismatch("src memory", "GL SH RF", spec.src.memory.name))
        return tuple(mismatches)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        return _text(printer, statement)


ATOMIC_ADD = ThreadAtomicAdd("AtomicAdd")

INSTRUCTIONS: tuple[Executable, ...] = (ATOMIC_ADD,)

__all__ = ["ThreadAtomicAdd"]
