"""mma.sp: matrix multiply-accumulate by a warp with A 2:4 sparse along k: m16n8k32 on 16 bits, m16n8k64 on 8 bits (Ampere).

PTX ISA, "Matrix multiply-accumulate operation using mma.sp instruction with sparse matrix A". A and C are distributed as by the dense
instruction with half of k. With g = lane / 4 and t = lane % 4, in the order of the registers:

    A  the kept elements, as A of mma.m16n8k16 (16 bits) and m16n8k32 (8 bits)
    B  16 bits: (2t, g), (2t+1, g), then the same with 8, 16 and 24 added to k;  8 bits: (4t, g), ..., (4t+3, g), then 16, 32, 48 added
    E  16 bits: row g of 16 elements of k from 16 (t % 2), then row g + 8;  8 bits: row g + 8 (t % 2), 32 elements of k from 32 (t / 2)

E is one register with the places of kept elements, two bits each. For 16 bits, the sparsity selector 0 states that lanes 0 and 1 of each
four provide it; the others have the same values. The places are in ascending order, as `.sp::ordered_metadata` requires (PTX ISA 8.5).
Zeros, which copies write past the end of an array, become legal metadata (`fireiron.performing.sparsity`).

>>> from fireiron import *
>>> leaf = SparseMatMul(16, 8, 32, dtype=float16, c_dtype=float32)(RF, RF, RF, RF)(Warp)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['HMMA_SP_16832_F32']
>>> HMMA_SP_16832_F32.maps()["E"].coordinate(5, 2)  # row and byte of the third byte of metadata in lane 5
(9, 2)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from fireiron.ir import Exec, Stmt
from fireiron.ir.lanes import LaneMap
from fireiron.ir.text import Function, Item, Printer
from fireiron.language.tree import Draft, Executable, Mismatch
from fireiron.performing.by_lanes import (
    level_mismatch,
    listed,
    memory_mismatch,
    registers,
    registers_together,
    require_whole_warps,
    shape_mismatch,
    statements_by_lanes,
    target_mismatch,
    type_mismatch,
    with_registers,
)
from fireiron.performing.mma import wrapped
from fireiron.performing.sparsity import legal_word
from fireiron.spec import Spec
from fireiron.specs.sparse_matmul import SparseMatMul
from fireiron.values.document import Assignment, called
from fireiron.values.machine import RF, Architecture, DType, Warp, bfloat16, float8_e4m3, float8_e5m2, float16, float32, int8, int32, uint8
from fireiron.values.units import same_threads

C_M16N8 = LaneMap.along((16, 8), ((4, 1, 2), (8, 0, 1)), ((2, 1, 1), (2, 0, 8)))
A_M16K32 = LaneMap.along((16, 16), ((4, 1, 2), (8, 0, 1)), ((2, 1, 1), (2, 0, 8), (2, 1, 8)))
B_K32N8 = LaneMap.along((32, 8), ((4, 0, 2), (8, 1, 1)), ((2, 0, 1), (4, 0, 8)))
E_M16K32 = LaneMap.along((16, 4), ((2, 1, 2), (2, 0, 0), (8, 0, 1)), ((2, 1, 1), (2, 0, 8)))
A_M16K64 = LaneMap.along((16, 32), ((4, 1, 4), (8, 0, 1)), ((4, 1, 1), (2, 0, 8), (2, 1, 16)))
B_K64N8 = LaneMap.along((64, 8), ((4, 0, 4), (8, 1, 1)), ((4, 0, 1), (4, 0, 16)))
E_M16K64 = LaneMap.along((16, 8), ((2, 0, 8), (2, 1, 4), (8, 0, 1)), ((4, 1, 1),))

_PTX: Mapping[DType, str] = {
    float16: "f16", bfloat16: "bf16", float8_e4m3: "e4m3", float8_e5m2: "e5m2", int8: "s8", float32: "f32", int32: "s32"
}  # fmt: skip


@attrs.frozen(repr=False)
class SparseMma(Executable):
    """`SparseMatMul(16,8,k)(RF,RF,RF,RF)(Warp)`: 64 bytes along k; `factors` are the types of A and B."""

    factors: tuple[DType, DType] = (float16, float16)
    result: DType = float32
    capability: int = 80

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the extents m, n and k of its tile."""
        return 16, 8, 64 // self.factors[0].bytes

    def maps(self) -> dict[str, LaneMap]:
        """Return the lane maps by operand."""
        a, e, b = (A_M16K32, E_M16K32, B_K32N8) if self.factors[0].bytes == 2 else (A_M16K64, E_M16K64, B_K64N8)
        return {"A": a, "E": e, "B": b, "C": C_M16N8}

    def __repr__(self) -> str:
        return self.name

    def performs(self) -> str:
        m, n, k = self.shape
        left, right = self.factors
        types = f"A and B {left}" if left == right else f"A {left}, B {right}"
        return f"SparseMatMul({m},{n},{k})(RF,RF,RF,RF)(Warp), {types}, C {self.result}"

    def may_perform(self, spec: Spec) -> bool:
        return spec.kind == SparseMatMul.kind and same_threads(spec.level, Warp)

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if spec.kind != SparseMatMul.kind:
            return (Mismatch("spec", "SparseMatMul", spec.title),)
        types = {"A": self.factors[0], "E": uint8, "B": self.factors[1], "C": self.result}
        return (
            *level_mismatch(spec, Warp),
            *shape_mismatch(spec, dict(zip(spec.dims, self.shape, strict=True)), multiples=False),
            *(mismatch for name, dtype in types.items() for mismatch in type_mismatch(spec, name, (dtype,))),
            *(mismatch for name in types for mismatch in memory_mismatch(spec, name, (RF,))),
            *target_mismatch(architecture, self.capability),
        )

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        require_whole_warps(self.name, spec, draft)
        vectors = tuple(registers_together(view) for view in spec.operands.values())
        return statements_by_lanes(self, spec, draft, self.maps(), vectors=vectors)

    # ------------------------------------------------------------------------------------------ text

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        a, e, b, c = (printer.registers(statement, position) for position in range(4))
        target = statement.accesses[3]
        zero = printer.literal(0, statement.spec.operands["C"].dtype)
        cleared = [Assignment(printer.place(target, offset), zero) for offset in target.elements()]
        product = with_registers([called(printer.function(self._function()), c.place, a.place, b.place, e.place)], a, e, b, c)
        return [*printer.unless_adding(statement, cleared), *product]

    def _opcode(self) -> str:
        m, n, k = self.shape
        kinds = ".".join(_PTX[dtype] for dtype in (self.result, *self.factors, self.result))
        return f"mma.sp::ordered_metadata.sync.aligned.m{m}n{n}k{k}.row.col.{kinds}"

    def _function(self) -> Function:
        """Return the device function of the instruction, whose arguments are a lane's registers of C, A, B and E."""
        m, n, k = self.shape
        count = 4 if self.result.bytes == 4 else 2
        total, left, right = registers(0, count), registers(count, 4), registers(count + 4, 4)
        letter = "f" if self.result == float32 else "r"
        words = "c" if self.result.bytes == 4 else "c_words"
        body = (
            *(() if words == "c" else ("unsigned* const c_words = reinterpret_cast<unsigned*>(c);",)),
            *(f"const unsigned* const {name}_words = reinterpret_cast<const unsigned*>({name});" for name in "abe"),
            *legal_word("e_words[0]", "metadata"),
            f'asm volatile("{self._opcode()} "',
            f'    "{total}, {left}, {right}, {total}, %{count + 8}, 0;"',
            *wrapped(f"    : {listed('+' + letter, words, count)}"),
            *wrapped(f'    : {listed("r", "a_words", 4)}, {listed("r", "b_words", 4)}, "r"(metadata));'),
        )
        parameters = (
            f"{self.result.cuda}* c",
            *(f"const {dtype.cuda}* {name}" for name, dtype in zip("abe", (*self.factors, uint8), strict=True)),
        )
        kinds = "_".join(dict.fromkeys(_PTX[dtype] for dtype in (self.result, *self.factors)))
        note = f"c += a * b: m{m}n{n}k{k} of a warp, a 2:4 sparse, with the places of its elements in e"
        return Function(f"mma_sp_m{m}n{n}k{k}_{kinds}", parameters, body, note)


def _family() -> tuple[SparseMma, ...]:
    eights = (float8_e4m3, float8_e5m2)
    forms = [
        ("HMMA_SP_16832_F32", (float16, float16), float32, 80),
        ("HMMA_SP_16832_F16", (float16, float16), float16, 80),
        ("HMMA_SP_16832_F32_BF16", (bfloat16, bfloat16), float32, 80),
        ("IMMA_SP_16864_S8", (int8, int8), int32, 80),
        *(
            (f"QMMA_SP_16864_F32_{'_'.join(dict.fromkeys((_PTX[a], _PTX[b]))).upper()}", (a, b), float32, 89)
            for a in eights
            for b in eights
        ),
    ]
    return tuple(SparseMma(name, factors, result, capability) for name, factors, result, capability in forms)


INSTRUCTIONS: tuple[SparseMma, ...] = _family()

EXAMPLES = (
    SparseMatMul(16, 8, 32, dtype=float16, c_dtype=float32)(RF, RF, RF, RF)(Warp),
    SparseMatMul(16, 8, 32, dtype=float16, c_dtype=float16)(RF, RF, RF, RF)(Warp),
    SparseMatMul(16, 8, 32, dtype=bfloat16, c_dtype=float32)(RF, RF, RF, RF)(Warp),
    SparseMatMul(16, 8, 64, dtype=int8, c_dtype=int32)(RF, RF, RF, RF)(Warp),
    *(SparseMatMul(16, 8, 64, dtype=form.factors, c_dtype=float32)(RF, RF, RF, RF)(Warp) for form in INSTRUCTIONS[4:]),
)
"""Specs that the instructions perform."""

(
    HMMA_SP_16832_F32, HMMA_SP_16832_F16, HMMA_SP_16832_F32_BF16, IMMA_SP_16864_S8,
    QMMA_SP_16864_F32_E4M3, QMMA_SP_16864_F32_E4M3_E5M2, QMMA_SP_16864_F32_E5M2_E4M3, QMMA_SP_16864_F32_E5M2,
) = INSTRUCTIONS  # fmt: skip

__all__ = [
    "HMMA_SP_16832_F16",
    "HMMA_SP_16832_F32",
    "HMMA_SP_16832_F32_BF16",
    "IMMA_SP_16864_S8",
    "QMMA_SP_16864_F32_E4M3",
    "QMMA_SP_16864_F32_E4M3_E5M2",
    "QMMA_SP_16864_F32_E5M2",
    "QMMA_SP_16864_F32_E5M2_E4M3",
    "SparseMma",
]
