"""cp.async: a thread copies 4, 8 or 16 bytes from global to shared memory asynchronously, without registers.

PTX ISA, "Non-bulk copy: cp.async". The copy is in flight until a `cp.async.wait_group` of the thread that issued it; elements outside
the source become zeros (`src-size` 0). Only 16 bytes may bypass L1 (`.cg`).

>>> from fireiron import *
>>> leaf = Move(4, 1)(GL, SH)(Thread)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['Move', 'CP_ASYNC_16', 'CP_ASYNC_8', 'CP_ASYNC_4']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.ir import Commit, Exec, Mechanism, Stmt
from fireiron.ir.mechanisms import cp_async
from fireiron.ir.text import Function, Item, Printer
from fireiron.language.tree import Draft, Executable, Mismatch, execution
from fireiron.performing.by_lanes import target_mismatch
from fireiron.spec import Spec
from fireiron.values.document import called
from fireiron.values.expr import constant
from fireiron.values.machine import Architecture

WIDTHS = (4, 8, 16)
"""Bytes of one copy."""

CAPABILITY = 80


@frozen
class CpAsync(Executable):
    """`Move(r,c)(GL -> SH)` of one thread, `r` or `c` 1, as asynchronous copies of `bytes` bytes each.

    Under `pipeline`, this copy replaces a plain copy if its width is proved. If a strategy names this copy, the width must be provable.
    """

    mechanism: ClassVar[Mechanism] = cp_async.CP_ASYNC_GROUPS
    handles_edges: ClassVar[bool] = True

    vector_bytes: int = 16

    def performs(self) -> str:
        return f"Move(1,c) or Move(r,1) (GL -> SH)(Thread), copies of {self.vector_bytes} bytes, asynchronous"

    def may_perform(self, spec: Spec) -> bool:
        return spec.level.threads == 1 and spec.copies and spec.src.memory.of_grid and spec.dst.memory.in_shared

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.copies:
            return (Mismatch("spec", "Move", spec.title),)
        mismatches = [] if spec.level.threads == 1 else [Mismatch("level", "Thread", spec.level.name)]
        if not (spec.src.memory.of_grid and spec.dst.memory.in_shared):
            mismatches.append(Mismatch("memories", "GL -> SH", " -> ".join(map(str, spec.memories))))
        if spec.src.memory.of_grid and spec.src.tensor.storage().outside:
            mismatches.append(Mismatch("src outside of its array", "0, which the copy writes", f"{spec.src.tensor.storage().outside}"))
        if spec.src.dtype != spec.dst.dtype:
            mismatches.append(Mismatch("type", str(spec.src.dtype), str(spec.dst.dtype)))
        sizes = [constant(size) or 0 for size in spec.sizes]
        per = max(self.vector_bytes // spec.src.dtype.bytes, 1)
        if 1 not in sizes or max(sizes) % per:
            mismatches.append(Mismatch("shape", f"1xc or rx1 in multiples of {per}", "x".join(map(str, spec.sizes))))
        return (*mismatches, *target_mismatch(architecture, CAPABILITY))

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        return (attrs.evolve(execution(self, spec, draft), mechanism=self.mechanism), Commit(self.mechanism))

    def async_copy(self, architecture: Architecture, size: int) -> Executable | None:
        """Return this instruction if it has the given width."""
        return self if size == self.vector_bytes else None

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        items: list[Item] = []
        for copy in printer.copies(statement):
            if copy.condition is None:
                items.append(called(printer.function(self._function(False)), copy.target, copy.source))
            else:
                items.append(called(printer.function(self._function(True)), copy.target, copy.source, copy.condition))
        return items

    def _function(self, fills: bool) -> Function:
        """Return the device function of the copy; with `fills`, its third argument specifies whether the source is read or zeros are
        written.
        """
        size, cache = self.vector_bytes, "cg" if self.vector_bytes == 16 else "ca"
        if not fills:
            asm = f'asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size};" :: "r"(target), "l"(source) : "memory");'
            note = f"copy {size} bytes from global to shared memory asynchronously"
            return Function(f"cp_async_{size}", ("unsigned target", "const void* source"), (asm,), note)
        body = (
            f'asm volatile("cp.async.{cache}.shared.global [%0], [%1], {size}, %2;"',
            f'    :: "r"(target), "l"(source), "r"(in_bounds ? {size} : 0) : "memory");',
        )
        note = f"copy {size} bytes from global to shared memory asynchronously, or zeros if the source is out of bounds"
        return Function(f"cp_async_{size}_zfill", ("unsigned target", "const void* source", "bool in_bounds"), body, note)


CP_ASYNC: tuple[CpAsync, ...] = tuple(CpAsync(f"CP_ASYNC_{size}", size) for size in reversed(WIDTHS))


def async_copy(architecture: Architecture, size: int) -> Executable | None:
    """Return the asynchronous copy of `size` bytes of a target; None if it has none."""
    if architecture.capability < CAPABILITY:
        return None
    return next((instruction for instruction in CP_ASYNC if instruction.vector_bytes == size), None)


INSTRUCTIONS: tuple[Executable, ...] = CP_ASYNC

RANK = 1
"""The plain copy performs the same spec and has a lower rank. The asynchronous copy is used under a pipeline, or if a strategy names it."""

__all__ = ["CP_ASYNC", "CpAsync"]
