"""Bulk additions: one thread adds a tile in shared memory to a tile with the same storage order in global memory (Hopper).

PTX ISA, "Data Movement and Conversion Instructions: cp.reduce.async.bulk". Both tiles are contiguous, in any order of their elements,
such as the order in which the registers of an MMA contain them. So the instruction requires no tensor map, and threads store vectors of
four adjacent elements before. TMA, in contrast, adds rows of at most 128 bytes.

>>> from fireiron import *
>>> order = Layout(((8, 8), (2, 4, 8)), ((8, 512), (1, 2, 64)))
>>> leaf = AtomicAdd(64, 64, dtype=float32, src=order, dst=order)(SH, GL)(Warpgroup)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['BULK_ADD']
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from fireiron.frozen import frozen
from fireiron.ir import Commit, Exec, Mechanism, Stmt
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.text import Function, If, Item, Printer
from fireiron.language.tree import Draft, Executable, Mismatch, access_of
from fireiron.performing.boxes import MULTIPLE
from fireiron.performing.by_lanes import target_mismatch, type_mismatch
from fireiron.spec import Spec
from fireiron.specs.atomic_add import AtomicAdd
from fireiron.values.document import called
from fireiron.values.expr import ZERO, constant, equal
from fireiron.values.layout import Layout
from fireiron.values.machine import GL, SH, Architecture, DType, Warp, Warpgroup, float32, int32
from fireiron.values.tensor import Storage, View
from fireiron.values.units import index_in

ADDED_TYPES: Sequence[DType] = (float32, int32)
"""Element types that are added without loss of precision."""


@frozen
class BulkAdd(Executable):
    """`AtomicAdd(r,c)(SH -> GL)(Warpgroup)`, or of a warp, by its first thread; each element is added atomically."""

    capability: ClassVar[int] = 90
    mechanism: ClassVar[Mechanism] = TMA_STORES

    def performs(self) -> str:
        return "AtomicAdd(r,c)(SH,GL)(Warpgroup or Warp), float32 or int32, a tile that is contiguous in one storage order of SH and GL"

    def may_perform(self, spec: Spec) -> bool:
        return _is_sum(spec) and spec.level in (Warpgroup, Warp) and spec.dst.memory.of_grid and spec.src.memory.in_shared

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not _is_sum(spec):
            return (Mismatch("spec", "AtomicAdd", spec.title),)
        mismatches = [] if spec.level in (Warpgroup, Warp) else [Mismatch("level", "Warpgroup or Warp", spec.level.name)]
        if not (spec.dst.memory.of_grid and spec.src.memory.in_shared):
            return (*mismatches, Mismatch("memories", "SH -> GL", " -> ".join(map(str, spec.memories))))
        mismatches += type_mismatch(spec, "dst", (spec.src.dtype,))
        if spec.dst.dtype not in ADDED_TYPES:
            mismatches.append(Mismatch("dst type", " or ".join(map(str, ADDED_TYPES)), str(spec.dst.dtype)))
        mismatches += target_mismatch(architecture, self.capability)
        order = _order_of_tile(spec.dst)
        if isinstance(order, Mismatch):
            return (*mismatches, order)
        return (*mismatches, *_source_mismatch(spec.src, order))

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        order = _order_of_tile(spec.dst)
        assert isinstance(order, Layout), order
        if spec.src.tensor.free:
            draft.choose_storage(spec.src.tensor, Storage(order, order.size()))
        accesses = tuple(access_of(view, name in spec.outputs, draft.origin) for name, view in spec.operands.items())
        statement = Exec(self, spec, accesses, spec.accumulate, draft.active, mechanism=self.mechanism, origin=draft.origin)
        return (statement, Commit(self.mechanism))

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        source, target = statement.accesses
        size = math.prod(constant(size) or 0 for size in statement.spec.sizes)
        bytes = str(size * statement.spec.dst.dtype.bytes)
        added = called(
            printer.function(_add_function(statement.spec.dst.dtype)), printer.pointer(target), printer.shared_address(source), bytes
        )
        lane = index_in(statement.spec.level, printer.kernel.thread) if statement.lane == ZERO else statement.lane
        return [If((printer.expression(equal(lane, 0)),), (added,))]


def _is_sum(spec: Spec) -> bool:
    only = spec.definition.only
    return spec.atomic and only is not None and only.combiner == "sum"


def _add_function(dtype: DType) -> Function:
    """Return the device function that adds contiguous elements."""
    kind = "f32" if dtype == float32 else "s32"
    return Function(
        "bulk_add",
        (f"{dtype.cuda}* target", "unsigned source", "unsigned bytes"),
        (
            f'asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.{kind} [%0], [%1], %2;"',
            '    :: "l"(target), "r"(source), "r"(bytes) : "memory");',
        ),
        "add contiguous elements in shared memory to global memory, asynchronous; each element is added atomically",
    )


def _order_of_tile(view: View) -> Layout | Mismatch:
    """Return the order in which a tile is contiguous in global memory, from its first element on; or why it is not contiguous."""
    tensor, storage = view.tensor, view.tensor.storage()
    if tensor.through is not None or storage.swizzle is not None:
        return Mismatch("dst array", "dimensions as indices, and no swizzle", str(tensor.layout))
    if tensor.align % MULTIPLE:
        return Mismatch("dst address", f"a multiple of {MULTIPLE} bytes", f"of {tensor.align}")
    if any(dim.bound is not None for dim in view.numerals):
        return Mismatch("dst tile", "a tile that is never partly out of bounds", str(view))
    modes = [_mode_of_tile(view, dim) for dim in range(len(view.dims))]
    known = [mode for mode in modes if mode is not None]
    if len(known) < len(modes):
        return Mismatch("dst tile", "a tile of complete runs of its storage order", str(tensor.layout))
    order = Layout(tuple(mode.shape for mode in known), tuple(mode.stride for mode in known))
    if not _is_compact(order):
        return Mismatch("dst tile", "a contiguous tile", str(order))
    first = storage.address([dim.base for dim in view.numerals])
    if order.size() * view.dtype.bytes % MULTIPLE or first.factor * view.dtype.bytes % MULTIPLE:
        return Mismatch("dst tile", f"bytes and address multiples of {MULTIPLE}", f"{order.size()} elements from {first} on")
    return order


def _mode_of_tile(view: View, dim: int) -> Layout | None:
    """Return the sizes and strides of a tile along a dimension; None if the tile does not start or end between runs."""
    part, size = view.dims[dim], constant(view.shape[dim])
    if size is None or len(part.modes) != 1 or constant(part.modes[0].stride) != 1 or part.base.factor % size:
        return None
    sizes, strides, reach = [], [], 1
    for length, stride in list(view.tensor.storage().layout)[view.axis(dim)].leaves:
        weight, count = constant(stride), constant(length)
        if reach == size:
            break
        rest = size // reach
        if size % reach or weight is None:
            return None
        take = rest if count is None or count >= rest else count
        if count is not None and count % take:
            return None
        sizes.append(take)
        strides.append(weight)
        reach *= take
    return Layout(tuple(sizes), tuple(strides)) if reach == size and sizes else None


def _is_compact(order: Layout) -> bool:
    """Whether the addresses of all elements are those from 0 to the number of elements, each once."""
    expected = 1
    for stride, size in sorted((constant(stride) or 0, constant(size) or 0) for size, stride in order.leaves if constant(size) != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def _source_mismatch(view: View, order: Layout) -> tuple[Mismatch, ...]:
    """Return the mismatch if the buffer is not exactly the tile, or has another storage order."""
    sizes = [constant(size) for size in view.shape]
    if [constant(size) for size in view.tensor.shape] != sizes:
        return (Mismatch("src tile", "a whole buffer", f"{view}"),)
    if view.tensor.free:
        return ()
    storage = view.tensor.storage()
    dims = enumerate(zip(sizes, order, strict=True))
    same = storage.layout.static and all(
        storage.part(view.axis(dim), place) == mode(place) for dim, (size, mode) in dims for place in range(size or 0)
    )
    if storage.swizzle is not None or not same:
        return (Mismatch("src storage", f"that of dst, {order}", f"{storage.layout}, {storage.swizzle or 'no swizzle'}"),)
    return ()


BULK_ADD = BulkAdd("BULK_ADD")

INSTRUCTIONS: tuple[Executable, ...] = (BULK_ADD,)

EXAMPLES = (AtomicAdd(8, 8, dtype=float32, src=Layout((8, 8), (8, 1)), dst=Layout((8, 8), (8, 1)))(SH, GL)(Warpgroup),)
"""A spec that it performs."""

RANK = 1
"""TMA adds tiles of rows, too, if their storage is that of its boxes; it has a lower rank, so it is selected there."""

__all__ = ["BULK_ADD", "BulkAdd"]
