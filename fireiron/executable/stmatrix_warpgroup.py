"""stmatrix by the four warps of a warpgroup: rounds wgmma accumulators to 16 bits and stores them to shared memory (Hopper).

PTX ISA, "Warp-level matrix store instruction: stmatrix". Each warp stores four 8x8 matrices, which are its 16 rows of a tile of 64 x 16,
from the layout of wgmma's accumulators (PTX ISA, "Register Fragments for wgmma", D); with `.trans` a tile of 16 x 64, for swapped operands.
One instruction rounds two adjacent accumulators to the 32-bit register that is stored. Elements of 16 bits, such as an A operand in
registers, are stored without conversion.

>>> from fireiron import *
>>> hopper = next(target for target in ARCHITECTURES if target.name == "sm_90a")
>>> leaf = Move(64, 16, dst_dtype=float16, dst=RowMajor)(RF, SH)(Warpgroup)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, hopper)]
['STMATRIX_WARPGROUP']
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fireiron.frozen import frozen
from fireiron.ir import Exec, Stmt
from fireiron.ir.lanes import LaneMap
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
from fireiron.performing.warpgroups import accumulator_map
from fireiron.spec import Spec
from fireiron.values.document import called
from fireiron.values.machine import RF, SH, Architecture, DType, Warpgroup, bfloat16, float16, float32

_PAIRS = {float16: "f16x2", bfloat16: "bf16x2"}


@frozen
class StMatrixWarpgroup(Executable):
    """`Move(64*r, 16*c)(RF -> SH)(Warpgroup)`, float32 rounded to 16 bits, or 16-bit elements; with `swapped`, `Move(16*r, 64*c)`.

    `along` is the dimension in which shared memory is contiguous; if a thread has adjacent elements along the other dimension, the
    instruction transposes. With `clamps`, negative elements become zero: clamping rounded pairs takes half as many instructions as clamping
    floats.
    """

    swapped: bool = False
    along: int = 1
    clamps: bool = False
    capability: int = 90

    @property
    def transposes(self) -> bool:
        """Whether the instruction is `.trans`."""
        return self.swapped == (self.along == 1)

    def maps(self) -> dict[str, LaneMap]:
        """Return the owner of each element in the registers of the warpgroup."""
        return {"src": accumulator_map(16, self.swapped)}

    def maps_of_warp(self) -> dict[str, LaneMap]:
        """Return the lane maps of a warp by operand: the elements that a lane provides, and the eight elements that it addresses."""
        return {"src": owned_by_warp(self.swapped), "dst": addressed_by_warp(self.swapped, self.along)}

    def performs(self) -> str:
        shape, order = "16*r,64*c" if self.swapped else "64*r,16*c", "row" if self.along else "column"
        return f"Move({shape})(RF,SH)(Warpgroup), float32 or 16-bit, registers as wgmma accumulators, to 16 bits, contiguous {order}s in SH"

    def may_perform(self, spec: Spec) -> bool:
        return spec.copies and spec.level == Warpgroup and spec.src.memory.private and spec.dst.memory.of_block

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.copies or len(spec.dims) != 2:
            return (Mismatch("spec", "Move of a matrix", spec.title),)
        mismatches = (
            *level_mismatch(spec, Warpgroup),
            *shape_mismatch(spec, dict(zip(spec.dims, tile_of_warpgroup(self.swapped), strict=True)), multiples=True),
            *type_mismatch(spec, "dst", (float16, bfloat16)),
            *type_mismatch(spec, "src", (float32, spec.dst.dtype)),
            *memory_mismatch(spec, "src", (RF,)),
            *memory_mismatch(spec, "dst", (SH,)),
            *target_mismatch(architecture, self.capability),
        )
        return mismatches or (() if spec.dst.tensor.free else rows_mismatch("dst", spec.dst, spec.dst.tensor.storage(), self.along))

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        mismatches = self.mismatches(spec, context.architecture) or ownership_mismatch(self.maps()["src"], spec, "src", context)
        if mismatches:
            return mismatches
        storage = context.whole.chosen_storage.get(spec.dst.tensor.name, spec.dst.tensor.storage())
        return rows_mismatch("dst", spec.dst, storage, self.along)

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        return statements_by_warps(self, spec, draft, self.swapped, self.maps_of_warp())

    def clamping(self, spec: Spec) -> Executable | None:
        return attrs.evolve(self, clamps=True)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        source = printer.registers(statement, 0)
        spec = statement.spec
        store = printer.function(self._function(spec.dst.dtype) if spec.src.dtype == float32 else self._function_of_pairs(spec.dst.dtype))
        return with_registers([called(store, printer.shared_address(statement.accesses[1]), source.place)], source)

    def _function(self, dtype: DType) -> Function:
        """Return the device function of the store; its arguments are the address and the accumulators of this thread."""
        trans = ".trans" if self.transposes else ""
        name = "half" if dtype == float16 else "bf16"
        pair = f'asm("cvt.rn.{_PAIRS[dtype]}.f32 %0, %1, %2;" : "=r"(words[pair]) : "f"(source[2 * pair + 1]), "f"(source[2 * pair]));'
        clamp = f'asm("max.{_PAIRS[dtype]} %0, %1, %2;" : "=r"(words[pair]) : "r"(words[pair]), "r"(0));'
        loop = "for (int pair = 0; pair < 4; ++pair)"
        body = (
            "unsigned words[4];",
            "#pragma unroll",
            *((f"{loop} {{", f"  {pair}", f"  {clamp}", "}") if self.clamps else (loop, f"  {pair}")),
            *self._store(),
        )
        negative = ", after relu" if self.clamps else ""
        note = f"round eight accumulators per thread to 16 bits and store them to shared memory{negative}{', transposed' if trans else ''}"
        suffix = f"{'_trans' if trans else ''}{'_relu' if self.clamps else ''}"
        return Function(f"stmatrix_x4{suffix}_{name}", ("unsigned target", "const float* source"), body, note)

    def _function_of_pairs(self, dtype: DType) -> Function:
        """Return the device function that stores 16-bit elements without conversion."""
        trans, name = ("_trans" if self.transposes else ""), "half" if dtype == float16 else "bf16"
        words = "const unsigned* const words = static_cast<const unsigned*>(source);"
        clamp = f'asm("max.{_PAIRS[dtype]} %0, %1, %2;" : "=r"(words[pair]) : "r"(pairs[pair]), "r"(0));'
        clamped = (
            "const unsigned* const pairs = static_cast<const unsigned*>(source);",
            "unsigned words[4];",
            "#pragma unroll",
            "for (int pair = 0; pair < 4; ++pair)",
            f"  {clamp}",
        )
        negative = ", after relu" if self.clamps else ""
        note = f"store eight 16-bit elements per thread to shared memory{negative}{', transposed' if self.transposes else ''}"
        body = (*(clamped if self.clamps else (words,)), *self._store())
        return Function(
            f"stmatrix_x4{trans}{'_relu' if self.clamps else ''}_pairs_{name}", ("unsigned target", "const void* source"), body, note
        )

    def _store(self) -> tuple[str, str]:
        """Return the lines of the instruction, which stores registers called `words`."""
        return (
            f'asm volatile("stmatrix.sync.aligned.m8n8.x4{".trans" if self.transposes else ""}.shared.b16 [%0], {registers(1, 4)};"',
            f'    :: "r"(target), {listed("r", "words", 4)} : "memory");',
        )


STMATRIX_WARPGROUP = StMatrixWarpgroup("STMATRIX_WARPGROUP")
STMATRIX_WARPGROUP_COL = StMatrixWarpgroup("STMATRIX_WARPGROUP_COL", along=0)
STMATRIX_WARPGROUP_T = StMatrixWarpgroup("STMATRIX_WARPGROUP_T", swapped=True)
STMATRIX_WARPGROUP_T_COL = StMatrixWarpgroup("STMATRIX_WARPGROUP_T_COL", swapped=True, along=0)

INSTRUCTIONS = (STMATRIX_WARPGROUP, STMATRIX_WARPGROUP_COL, STMATRIX_WARPGROUP_T, STMATRIX_WARPGROUP_T_COL)

__all__ = ["STMATRIX_WARPGROUP", "STMATRIX_WARPGROUP_COL", "STMATRIX_WARPGROUP_T", "STMATRIX_WARPGROUP_T_COL", "StMatrixWarpgroup"]
