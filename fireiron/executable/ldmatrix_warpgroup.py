"""ldmatrix by the four warps of a warpgroup: loads a 16-bit A operand of wgmma from shared memory to registers (Hopper).

PTX ISA, "Warp-level matrix load instruction: ldmatrix". Each warp loads four 8x8 matrices, which are its 16 rows of a tile of 64 x 16, in
the layout of wgmma's A operand in registers (PTX ISA, "Register Fragments for wgmma", A). A buffer whose storage is undecided gets
swizzled chunks along the contiguous dimension of its source, because TMA can write them, and eight of their rows are read without bank
conflicts.

>>> from fireiron import *
>>> hopper = next(target for target in ARCHITECTURES if target.name == "sm_90a")
>>> leaf = Move(64, 16, dtype=float16, src=RowMajor)(SH, RF)(Warpgroup)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, hopper)]
['LDMATRIX_WARPGROUP']
"""

from __future__ import annotations

from collections.abc import Sequence

from fireiron.frozen import frozen
from fireiron.ir import Exec, Stmt
from fireiron.ir.lanes import LaneMap
from fireiron.ir.smem_layouts import chunk_storage, widest_span
from fireiron.ir.text import Function, Item, Printer
from fireiron.language.tree import Context, Draft, Executable, Mismatch
from fireiron.performing.by_lanes import (
    level_mismatch,
    listed,
    memory_mismatch,
    registers,
    shape_mismatch,
    target_mismatch,
    type_mismatch,
    with_registers,
)
from fireiron.performing.by_warps import addressed_by_warp, owned_by_warp, rows_mismatch, statements_by_warps, tile_of_warpgroup
from fireiron.performing.ownership_mismatch import ownership_mismatch
from fireiron.performing.warpgroups import a_operand_map
from fireiron.spec import Spec
from fireiron.values.document import called
from fireiron.values.expr import constant
from fireiron.values.machine import RF, SH, Architecture, Warpgroup, bfloat16, float16
from fireiron.values.tensor import MatrixLayout, Storage, View


@frozen
class LdMatrixWarpgroup(Executable):
    """`Move(64*r, 16*c)(SH -> RF)(Warpgroup)`, 16-bit elements; with `swapped`, `Move(16*r, 64*c)`.

    `along` is the dimension in which shared memory is contiguous; if that is not k, the instruction transposes.
    """

    swapped: bool = False
    along: int = 1
    capability: int = 90

    @property
    def transposes(self) -> bool:
        """Whether the instruction is `.trans`."""
        return self.swapped == (self.along == 1)

    def maps(self) -> dict[str, LaneMap]:
        """Return the owner of each element in the registers of the warpgroup."""
        return {"dst": a_operand_map(2, self.swapped)}

    def maps_of_warp(self) -> dict[str, LaneMap]:
        """Return the lane maps of a warp by operand: the eight elements that a lane addresses, and those that it receives."""
        return {"src": addressed_by_warp(self.swapped, self.along), "dst": owned_by_warp(self.swapped)}

    def performs(self) -> str:
        shape, order = "16*r,64*c" if self.swapped else "64*r,16*c", "row" if self.along else "column"
        return f"Move({shape})(SH,RF)(Warpgroup), 16-bit, registers as an A operand of wgmma, contiguous {order}s in SH"

    def may_perform(self, spec: Spec) -> bool:
        return spec.copies and spec.level == Warpgroup and spec.dst.memory.private and spec.src.memory.of_block

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.copies or len(spec.dims) != 2:
            return (Mismatch("spec", "Move of a matrix", spec.title),)
        mismatches = (
            *level_mismatch(spec, Warpgroup),
            *shape_mismatch(spec, dict(zip(spec.dims, tile_of_warpgroup(self.swapped), strict=True)), multiples=True),
            *type_mismatch(spec, "src", (float16, bfloat16)),
            *type_mismatch(spec, "dst", (spec.src.dtype,)),
            *memory_mismatch(spec, "src", (SH,)),
            *memory_mismatch(spec, "dst", (RF,)),
            *target_mismatch(architecture, self.capability),
        )
        return mismatches or rows_mismatch(
            "src", spec.src, _preferred_storage(spec.src) if spec.src.tensor.free else spec.src.tensor.storage(), self.along
        )

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        mismatches = self.mismatches(spec, context.architecture) or ownership_mismatch(self.maps()["dst"], spec, "dst", context)
        decided_storage = None if mismatches else context.whole.chosen_storage.get(spec.src.tensor.name)
        return mismatches if decided_storage is None else rows_mismatch("src", spec.src, decided_storage, self.along)

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        tensor = spec.src.tensor
        if tensor.free and tensor.name not in draft.whole.chosen_storage:
            draft.choose_storage(tensor, _preferred_storage(spec.src))
        return statements_by_warps(self, spec, draft, self.swapped, self.maps_of_warp())

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        target = printer.registers(statement, 1)
        load = printer.function(self._function())
        return with_registers([called(load, target.place, printer.shared_address(statement.accesses[0]))], target)

    def _function(self) -> Function:
        """Return the device function of the load; its arguments are the registers and the address of this thread."""
        trans = ".trans" if self.transposes else ""
        body = (
            "unsigned* const words = static_cast<unsigned*>(target);",
            f'asm volatile("ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {registers(0, 4)}, [%4];"',
            f"    : {listed('=r', 'words', 4)}",
            '    : "r"(source) : "memory");',
        )
        note = f"load a register operand of wgmma from shared memory, 16 rows per warp{', transposed' if trans else ''}"
        return Function(f"ldmatrix_operand{'_trans' if trans else ''}", ("void* target", "unsigned source"), body, note)


def _preferred_storage(view: View) -> Storage:
    """Return the storage of an undecided buffer: swizzled chunks along the contiguous dimension of its source."""
    layout = view.tensor.layout
    if len(view.tensor.shape) != 2:
        return view.tensor.storage()
    axis = 0 if isinstance(layout, MatrixLayout) and layout.order == "col" else 1
    span = widest_span(constant(view.tensor.shape[axis]) or 0, view.dtype.bytes)
    return view.tensor.storage() if span is None else chunk_storage(view, view.axis(axis), span)


LDMATRIX_WARPGROUP = LdMatrixWarpgroup("LDMATRIX_WARPGROUP")
LDMATRIX_WARPGROUP_COL = LdMatrixWarpgroup("LDMATRIX_WARPGROUP_COL", along=0)
LDMATRIX_WARPGROUP_T = LdMatrixWarpgroup("LDMATRIX_WARPGROUP_T", swapped=True)
LDMATRIX_WARPGROUP_T_COL = LdMatrixWarpgroup("LDMATRIX_WARPGROUP_T_COL", swapped=True, along=0)

INSTRUCTIONS = (LDMATRIX_WARPGROUP, LDMATRIX_WARPGROUP_COL, LDMATRIX_WARPGROUP_T, LDMATRIX_WARPGROUP_T_COL)

__all__ = ["LDMATRIX_WARPGROUP", "LDMATRIX_WARPGROUP_COL", "LDMATRIX_WARPGROUP_T", "LDMATRIX_WARPGROUP_T_COL", "LdMatrixWarpgroup"]
