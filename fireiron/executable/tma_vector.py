"""TMA for vectors: one thread copies contiguous elements from global to shared memory by one instruction (Hopper).

PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk.tensor". A tensor map describes the array, so elements past the end of a
row are zero. The vector is stored contiguously, in boxes of at most 256 elements. The bytes complete on the full barrier of its ring.

>>> from fireiron import *
>>> hopper = next(target for target in ARCHITECTURES if target.name == "sm_90a")
>>> leaf = Move(64, dtype=float16)(GL, SH)(Block)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, hopper)]
['TMA_VECTOR_LOAD']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.ir import Exec, StageState, Stmt, TensorMap
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Draft, Executable, Mismatch, access_of
from fireiron.performing.boxes import MOST_ROWS, MULTIPLE, RANKS, load_function
from fireiron.performing.tma_loads import TmaTileLoad
from fireiron.spec import Spec
from fireiron.specs.move import Move
from fireiron.values.document import called
from fireiron.values.expr import ZERO, Expr, as_expr, constant
from fireiron.values.machine import GL, SH, Block, float16
from fireiron.values.tensor import View

STAGE = 128
"""Alignment in bytes of the destination in shared memory."""


@frozen
class TmaVectorLoad(TmaTileLoad):
    """`Move(n)(GL -> SH)(Block)`, by one thread of the producer."""

    dimensions: ClassVar[int | None] = 1

    def performs(self) -> str:
        return "Move(n)(GL,SH)(Block), contiguous elements; address and bytes multiples of 16; in a kernel with warp_specialize()"

    def may_perform(self, spec: Spec) -> bool:
        return len(spec.dims) == 1 and super().may_perform(spec)

    def array_mismatches(self, spec: Spec) -> tuple[Mismatch, ...]:
        return (*_source_mismatch(spec.src), *_target_mismatch(spec.dst))

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        accesses = tuple(access_of(view, name in spec.outputs, draft.origin) for name, view in spec.operands.items())
        array = spec.src.tensor.name
        order = _order(spec.src)
        box = (_box(constant(spec.dst.shape[0]) or 0), *(1 for _ in order[1:]))
        tensor_map = TensorMap(f"{array}_map", array, order, box, MULTIPLE)
        statement = Exec(self, spec, accesses, spec.accumulate, draft.active, mechanism=self.mechanism, origin=draft.origin)
        return (attrs.evolve(statement, tensor_map=tensor_map),)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        tensor_map = statement.tensor_map
        assert tensor_map is not None
        barrier = printer.barrier(statement.ring, StageState.FULL, statement.fill_index)
        outside, inside = statement.accesses
        length, width = constant(statement.spec.dst.shape[0]) or 0, tensor_map.box[0]
        along, *others = (outside.base[axis] for axis in tensor_map.order)
        return [
            called(
                printer.function(load_function(len(tensor_map.order))),
                printer.shared_address(inside, (first,)),
                f"&{tensor_map.name}",
                *map(printer.expression, (along + first, *others)),
                barrier,
            )
            for first in range(0, length, width)
        ]


def _box(length: int) -> int:
    """Return the elements per copy: the vector is divided into the fewest equal parts that TMA accepts."""
    parts = -(-length // MOST_ROWS)
    while length % parts:
        parts += 1
    return length // parts


def _is_contiguous(steps: Sequence[Expr | None]) -> bool:
    """Whether the modes form one contiguous dimension."""
    return len(steps) == 1 and steps[0] is not None and constant(steps[0]) == 1


def _order(view: View) -> tuple[int, ...]:
    """Return the dimensions in the order of a tensor map: the dimension of the vector, then those in which it has one element."""
    along = view.axis(0)
    return (along, *(axis for axis in reversed(range(len(view.numerals))) if axis != along))


def _source_mismatch(view: View) -> tuple[Mismatch, ...]:
    if view.tensor.through is not None:
        return (Mismatch("src array", "dimensions as indices", "affine indices, digits or tables"),)
    steps = view.tensor.storage().steps
    if len(steps) >= RANKS.stop:
        return (Mismatch("src array", f"1 to {RANKS[-1]} dimensions", f"{len(steps)}"),)
    along, *others = (steps[axis] for axis in _order(view))
    if not _is_contiguous((along,)):
        return (Mismatch("src array", "a contiguous dimension", str(view.tensor.layout)),)
    if view.tensor.align % MULTIPLE:
        return (Mismatch("src address", f"a multiple of {MULTIPLE} bytes", f"of {view.tensor.align}"),)
    for step in others:
        if step is None or as_expr(step).factor * view.dtype.bytes % MULTIPLE or step == ZERO:
            return (Mismatch("src strides", f"multiples of {MULTIPLE} bytes", f"{step} elements of {view.dtype.bytes} bytes"),)
    if len(view.dims[0].modes) != 1 or constant(view.dims[0].modes[0].stride) != 1:
        return (Mismatch("src tile", "contiguous elements", "a strided tile"),)
    return ()


def _target_mismatch(view: View) -> tuple[Mismatch, ...]:
    storage, length = view.tensor.storage(), constant(view.shape[0]) or 0
    if not _is_contiguous(storage.steps) or storage.swizzle is not None:
        return (Mismatch("dst storage", "contiguous elements", str(view.tensor.layout)),)
    if not length or _box(length) * view.dtype.bytes % (MULTIPLE if _box(length) == length else STAGE):
        return (Mismatch("shape", f"parts of a multiple of {MULTIPLE} bytes", f"{length} elements of {view.dtype.bytes} bytes"),)
    if (constant(storage.extent) or 0) * view.dtype.bytes % STAGE:
        return (Mismatch("dst storage", f"a multiple of {STAGE} bytes", f"{storage.extent} elements of {view.dtype.bytes} bytes"),)
    return ()


TMA_VECTOR_LOAD = TmaVectorLoad("TMA_VECTOR_LOAD")

INSTRUCTIONS: tuple[Executable, ...] = (TMA_VECTOR_LOAD,)

EXAMPLES = (Move(64, dtype=float16)(GL, SH)(Block),)
"""A spec that it performs."""

__all__ = ["TMA_VECTOR_LOAD", "TmaVectorLoad"]
