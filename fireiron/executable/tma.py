"""TMA: a tile from global to shared memory by one instruction of one thread, copied by an engine (Hopper).

PTX ISA, "Data Movement and Conversion Instructions: cp.async.bulk.tensor". The tile is told by a tensor map and coordinates; what lies
outside the array arrives as zeros. It lies in chunks (`fireiron.ir.chunks`) as its readers want them, a box each; the full
barrier of its ring counts the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import attrs

from fireiron.executable.by_lanes import level_mismatch, target_mismatch, type_mismatch
from fireiron.ir import Completion, Exec, Side, Stmt, TensorMap
from fireiron.ir.chunks import Chunks, chunks_of
from fireiron.ir.text import Function, Item, Printer
from fireiron.language.tree import Context, Draft, Executable, Mismatch, access_of
from fireiron.spec import Spec
from fireiron.values.document import called
from fireiron.values.expr import as_expr, constant
from fireiron.values.machine import Architecture, Block
from fireiron.values.tensor import Storage, View

CAPABILITY = 90

MOST_ROWS = 256
"""Elements of a box along each dimension (CUDA Driver API, cuTensorMapEncodeTiled)."""

MULTIPLE = 16
"""Bytes of which an array's address and strides must be multiples."""


@attrs.frozen
class TmaLoad(Executable):
    """`Move(r,c)(GL -> SH)(Block)`, by one thread of the producer."""

    by_engine: ClassVar[bool] = True
    handles_edges: ClassVar[bool] = True
    tests_edges: ClassVar[bool] = True

    def performs(self) -> str:
        return "Move(r,c)(GL,SH)(Block), a whole tile; rows and address multiples of 16 bytes, SH in chunks; under pipeline(n).specialize()"

    def may_perform(self, spec: Spec) -> bool:
        return spec.copies and spec.level == Block and spec.src.memory.of_grid and spec.dst.memory.of_block

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.copies:
            return (Mismatch("spec", "Move", spec.title),)
        found = list(level_mismatch(spec, Block))
        if not (spec.src.memory.of_grid and spec.dst.memory.of_block):
            found.append(Mismatch("memories", "GL -> SH", " -> ".join(map(str, spec.memories))))
        if len(spec.dims) != 2 or len(spec.src.tensor.shape) != 2:
            found.append(Mismatch("shape", "two dimensions", "x".join(map(str, spec.sizes))))
            return tuple(found)
        found += type_mismatch(spec, "dst", (spec.src.dtype,))
        found += target_mismatch(architecture, CAPABILITY)
        return (*found, *_source_mismatch(spec.src))

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        found = self.mismatches(spec, context.architecture)
        if found:
            return found
        chunks = _chunks(spec, context)
        if isinstance(chunks, str):
            return (Mismatch("dst storage", "swizzled chunks, which a reader settles or storage_layout asks for", chunks),)
        along = _contiguous(spec.src)
        return () if chunks.along == along else (Mismatch("dst storage", "neighbours where src has them", "the other order"),)

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        chunks = _chunks(spec, draft)
        assert isinstance(chunks, Chunks)
        accesses = tuple(access_of(view, name in spec.outputs, draft.origin) for name, view in spec.operands.items())
        width, rows = chunks.span // spec.dst.dtype.bytes, constant(spec.dst.shape[1 - chunks.along]) or 0
        order = (chunks.along, 1 - chunks.along)
        box = (width, rows // -(-rows // MOST_ROWS))
        name = spec.src.tensor.name
        tensor_map = TensorMap(f"{name}_map", name, tuple(spec.src.axis(dim) for dim in order), box, chunks.span)
        statement = Exec(self, spec, accesses, spec.accumulate, draft.active, completion=Completion.RING, tensor_map=tensor_map, origin=draft.origin)
        return (statement,)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        source, target = statement.accesses
        tensor_map = statement.tensor_map
        assert tensor_map is not None
        spec = statement.spec
        along = next(dim for dim in (0, 1) if spec.src.axis(dim) == tensor_map.order[0])
        length, rows = (constant(spec.dst.shape[dim]) or 0 for dim in (along, 1 - along))
        barrier = printer.barrier(statement.ring, Side.FULL, statement.turn)
        items: list[Item] = []
        for first in range(0, length, tensor_map.box[0]):
            for row in range(0, rows, tensor_map.box[1]):
                offset = {along: first, 1 - along: row}
                places = [source.base[spec.src.axis(dim)] + offset[dim] for dim in (along, 1 - along)]
                element = [0] * len(target.base)
                for dim, step in offset.items():
                    element[spec.dst.axis(dim)] = step
                items.append(
                    called(
                        printer.function(LOAD),
                        printer.shared_address(target, tuple(element)),
                        f"&{tensor_map.name}",
                        *(printer.expression(place) for place in places),
                        barrier,
                    )
                )
        return items


def _source_mismatch(view: View) -> tuple[Mismatch, ...]:
    """Why an array is not one that a tensor map can tell of."""
    steps = view.tensor.storage().steps
    along = _contiguous(view)
    if along is None:
        return (Mismatch("src layout", "neighbours along one dimension", str(view.tensor.layout)),)
    other = steps[view.axis(1 - along)]
    if other is None or as_expr(other).factor * view.dtype.bytes % MULTIPLE:
        return (Mismatch("src strides", f"multiples of {MULTIPLE} bytes", f"{other} elements of {view.dtype.bytes} bytes"),)
    if any(len(dim.modes) != 1 or constant(dim.modes[0].stride) != 1 for dim in view.dims):
        return (Mismatch("src tile", "neighbouring rows and columns", "a strided tile"),)
    return ()


def _contiguous(view: View) -> int | None:
    """The dimension of a view whose neighbours lie side by side."""
    steps = view.tensor.storage().steps
    here = [steps[view.axis(dim)] for dim in (0, 1)]
    return next((dim for dim, step in enumerate(here) if step is not None and constant(step) == 1), None)


def _chunks(spec: Spec, context: Context) -> Chunks | str:
    """How the target lies in chunks: as a leaf settled it, or as the load was asked for."""
    view = spec.dst
    storage: Storage = context.whole.settled.get(view.tensor.name) or view.tensor.storage()
    if len(view.dims) != 2 or math.prod(constant(size) or 0 for size in view.shape) == 0:
        return "a tile of sizes known only at run time"
    return chunks_of(storage, view, view.dtype.bytes)


LOAD = Function(
    "tma_load",
    ("unsigned target", "const TensorMap* map", "int x", "int y", "unsigned barrier"),
    (
        'asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"',
        '    :: "r"(target), "l"(map), "r"(x), "r"(y), "r"(barrier) : "memory");',
    ),
    "a box of a matrix to shared memory by TMA: its bytes are counted by a barrier",
)


TMA_LOAD = TmaLoad("TMA_LOAD")

INSTRUCTIONS: tuple[Executable, ...] = (TMA_LOAD,)

__all__ = ["TMA_LOAD", "TmaLoad"]
