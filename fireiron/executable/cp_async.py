"""cp.async: a thread's copy of 4, 8 or 16 bytes from global to shared memory that does not pass through registers.

PTX ISA, "Non-bulk copy: cp.async". The copy is under way until a `cp.async.wait_group` of the thread that issued it; what
lies outside the source is filled with zeros (`src-size` 0). Only 16 bytes may bypass L1 (`.cg`).
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.executable.by_lanes import target_mismatch
from fireiron.ir import Commit, Completion, Exec, Stmt
from fireiron.language.tree import Draft, Executable, Mismatch, execution
from fireiron.spec import MoveSpec, Spec
from fireiron.values.expr import constant
from fireiron.values.machine import GL, SH, Architecture

WIDTHS = (4, 8, 16)
"""Bytes of one copy."""

CAPABILITY = 80


@attrs.frozen
class CpAsync(Executable):
    """`Move(r,c)(GL -> SH)` of one thread, `r` or `c` 1, as asynchronous copies of `bytes` bytes each.

    Under `pipeline` a plain copy becomes this by itself where its width is proved; asked for by name, the width must be.
    """

    handles_edges: ClassVar[bool] = True

    vector_bytes: int = 16

    def performs(self) -> str:
        return f"Move(1,c) or Move(r,1) (GL -> SH)(Thread), copies of {self.vector_bytes} bytes, asynchronous"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not isinstance(spec, MoveSpec):
            return (Mismatch("spec", "Move", spec.title),)
        found = [] if spec.level.threads == 1 else [Mismatch("level", "Thread", spec.level.name)]
        if spec.memories != (GL, SH):
            found.append(Mismatch("memories", "GL -> SH", " -> ".join(map(str, spec.memories))))
        if spec.src.dtype != spec.dst.dtype:
            found.append(Mismatch("type", str(spec.src.dtype), str(spec.dst.dtype)))
        sizes = [constant(size) or 0 for size in spec.sizes]
        per = max(self.vector_bytes // spec.src.dtype.bytes, 1)
        if 1 not in sizes or max(sizes) % per:
            found.append(Mismatch("shape", f"1xc or rx1 in multiples of {per}", "x".join(map(str, spec.sizes))))
        return (*found, *target_mismatch(architecture, CAPABILITY))

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        return (attrs.evolve(execution(self, spec, draft), completion=Completion.GROUP), Commit())

    def under_way(self, architecture: Architecture, size: int) -> Executable | None:
        """Itself, for its own width."""
        return self if size == self.vector_bytes else None

    def cuda(self, printer: Any, statement: Exec) -> list[str]:
        return list(printer.asynchronous_copy(statement, self._text))

    def _text(self, printer: Any, target: str, source: str, fill: str | None) -> list[str]:
        cache = "cg" if self.vector_bytes == 16 else "ca"
        inputs = [f'"r"({target})', f'"l"({source})']
        size = ""
        if fill is not None:
            size = ", %2"
            inputs.append(f'"r"({fill} ? {self.vector_bytes} : 0)')
        template = f"cp.async.{cache}.shared.global [%0], [%1], {self.vector_bytes}{size};"
        return list(printer.asm(template, (), inputs, memory=True))


CP_ASYNC: tuple[CpAsync, ...] = tuple(CpAsync(f"CP_ASYNC_{size}", size) for size in reversed(WIDTHS))


def under_way(architecture: Architecture, size: int) -> Executable | None:
    """The asynchronous copy of a target for `size` bytes; None where it has none."""
    if architecture.capability < CAPABILITY:
        return None
    return next((one for one in CP_ASYNC if one.vector_bytes == size), None)
