"""Copies of one thread between GL, SH and RF: an element, or contiguous elements by vectors (Graphene, Table 2 rows 1 to 3).

>>> from fireiron import *
>>> leaf = Move(4, 1)(GL, RF)(Thread)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['Move']
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, call_site
from fireiron.executable.cp_async import async_copy
from fireiron.frozen import frozen
from fireiron.ir import Exec
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Executable, Mismatch
from fireiron.spec import Spec
from fireiron.values.document import Assignment
from fireiron.values.expr import constant
from fireiron.values.machine import Architecture, as_integer

WIDTHS = (1, 2, 4, 8, 16)
"""Bytes of a load or store of one thread (PTX ISA, ld and st)."""

MOST_ELEMENTS = 16


def _width(value: Any) -> int | None:
    number = as_integer(value)
    if value is not None and number not in WIDTHS:
        raise ArgumentError("vector(bytes): no load or store has this size", got=value, legal=WIDTHS, at=call_site())
    return number


@frozen
class ThreadMove(Executable):
    """`Move(r,c)` of one thread, `r` or `c` 1, at most 16 elements; types are converted.

    Loads and stores have the largest width (1, 2, 4, 8 or 16 bytes) for which contiguity and alignment are proved. With `vector_bytes`,
    exactly this width is required; the copy is refused if it cannot be proved.
    """

    handles_edges: ClassVar[bool] = True
    each: ClassVar[bool] = True

    vector_bytes: int | None = attrs.field(default=None, converter=_width)

    def performs(self) -> str:
        required = "" if self.vector_bytes is None else f", by accesses of {self.vector_bytes} bytes"
        return f"Move(1,c) or Move(r,1) (GL|SH|RF -> GL|SH|RF)(Thread), at most {MOST_ELEMENTS} elements{required}"

    def may_perform(self, spec: Spec) -> bool:
        return spec.level.threads == 1 and spec.moves

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.moves:
            return (Mismatch("spec", "Move", spec.title),)
        mismatches = []
        if spec.level.threads != 1:
            mismatches.append(Mismatch("level", "Thread", spec.level.name))
        sizes = [constant(size) for size in spec.sizes]
        total = None if None in sizes else math.prod(size for size in sizes if size is not None)
        if total is None or total > max((size for size in sizes if size is not None), default=1):
            mismatches.append(Mismatch("shape", "1xc or rx1", "x".join(map(str, spec.sizes))))
        elif total > MOST_ELEMENTS:
            mismatches.append(Mismatch("shape", f"at most {MOST_ELEMENTS} elements", str(total)))
        for name, view in spec.operands.items():
            if view.memory.fragment is not None:
                mismatches.append(Mismatch(f"{name} memory", "GL SH RF", view.memory.name))
        return tuple(mismatches)

    def async_copy(self, architecture: Architecture, size: int) -> Executable | None:
        """Return the asynchronous copy of `size` bytes that may replace this copy under a pipeline."""
        return async_copy(architecture, size)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        return printer.moved(statement)


@frozen
class EvictFirstMove(ThreadMove):
    """`Move(r,c)` of one thread between global memory and registers, of data without reuse; at most 16 elements.

    Caches evict its lines first: `ld.global.cs` and `st.global.cs` (PTX ISA, "Cache Operators"), by `__ldcs` and `__stcs`
    (CUDA C++ Programming Guide, "Load Functions Using Cache Hints"). Used only on request: `done(EVICT_FIRST)`.
    """

    def performs(self) -> str:
        return super().performs().replace("GL|SH|RF -> GL|SH|RF", "GL -> RF or RF -> GL") + ", streaming"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        mismatches = super().mismatches(spec, architecture)
        memories = [view.memory.name for view in spec.operands.values()]
        wrong = spec.moves and sorted(memories) != ["GL", "RF"]
        return (*mismatches, Mismatch("memories", "GL -> RF or RF -> GL", " -> ".join(memories))) if wrong else mismatches

    def async_copy(self, architecture: Architecture, size: int) -> Executable | None:
        return None

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        return printer.moved(statement, "__ldcs", "__stcs")


@frozen
class ThreadInit(Executable):
    """`Init(1,1)` of one thread: a plain assignment."""

    each: ClassVar[bool] = True

    def performs(self) -> str:
        return "Init(1,1)(GL|SH|RF)(Thread)"

    def may_perform(self, spec: Spec) -> bool:
        return spec.level.threads == 1 and spec.fills

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.fills:
            return (Mismatch("spec", "Init", spec.title),)
        mismatches = []
        if spec.level.threads != 1:
            mismatches.append(Mismatch("level", "Thread", spec.level.name))
        if any(constant(size) != 1 for size in spec.sizes):
            mismatches.append(Mismatch("shape", "1x1", "x".join(map(str, spec.sizes))))
        return tuple(mismatches)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        access = statement.operands["dst"]
        value = printer.literal(dict(statement.spec.parameters)["value"], statement.spec.dst.dtype)
        return [Assignment(printer.place(access, offset), value) for offset in access.elements()]


MOVE = ThreadMove("Move")
INIT = ThreadInit("Init")

EVICT_FIRST = EvictFirstMove("EVICT_FIRST")

INSTRUCTIONS: tuple[Executable, ...] = (MOVE, INIT)


def vector(size: int) -> ThreadMove:
    """Return a move that must use loads and stores of exactly `size` bytes: 1, 2, 4, 8 or 16.

    Raises: ArgumentError for other sizes.

    >>> from fireiron import *
    >>> vectors = Move(64, 32)(GL, GL)(Kernel).tile(32, 8).to(Block).tile(4, 1).to(Thread).done(vector(16))
    >>> "float4" in vectors.cuda()
    True
    """
    if size is None:
        raise ArgumentError("vector(bytes): no load or store has this size", got=size, legal=WIDTHS, at=call_site())
    return ThreadMove("Move", size)


__all__ = ["EVICT_FIRST", "EvictFirstMove", "ThreadInit", "ThreadMove", "vector"]
