"""wgmma.sp: matrix multiply-accumulate by a warpgroup with A 2:4 sparse along k: m64nNk32 on 16 bits, m64nNk64 on 8 bits (Hopper).

PTX ISA, "Asynchronous Warpgroup Level Multiply-and-Accumulate Operation using wgmma.mma_async.sp instruction". The kept elements of A and
all of B are in shared memory, in swizzled chunks as for the dense instruction. The accumulator and the metadata are in registers. Each
warp provides the metadata of its 16 rows, as for mma.sp:

    E  16 bits: row g of 16 elements of k from 16 (t % 2), then row g + 8;  8 bits: row g + 8 (t % 2), 32 elements of k from 32 (t / 2)

with g = lane / 4 and t = lane % 4. For 16 bits, the sparsity selector 0 states that lanes 0 and 1 of each four provide it. B has 64 bytes
along k. If it is contiguous along k, its chunks are at least as wide.

>>> from fireiron import *
>>> fp16 = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "E": RowMajor, "B": RowMajor, "C": RowMajor}
>>> blocks = SparseMatMul(512, 512, 512, **fp16)(GL, GL, GL, GL)(Kernel).tile(128, 64).to(Block).epilog(RF, float32)
>>> loop = blocks.split(128).pipeline(3).warp_specialize().load(A, SH, Move.done()).load("E", SH, Move.done()).load(B, SH, Move.done())
>>> text = loop.tile(64, 64).to(Warpgroup).load("E", RF).done().cuda()
>>> [line.strip() for line in text.splitlines() if "wgmma.mma_async" in line]
['"wgmma.mma_async.sp.sync.aligned.m64n64k32.f32.f16.f16 "']
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.ir import Exec, Mechanism, Stmt, edited
from fireiron.ir.lanes import LaneMap
from fireiron.ir.mechanisms import wgmma
from fireiron.ir.smem_layouts import PIECE, SmemLayout, smem_layout_of
from fireiron.ir.text import Function, Item, Printer
from fireiron.language.tree import Draft, Executable, Mismatch
from fireiron.performing.by_lanes import level_mismatch, listed, memory_mismatch, statements_by_lanes, type_mismatch, with_registers
from fireiron.performing.descriptors import (
    along_k_of,
    chunks_of,
    decided,
    descriptor,
    filled_lines,
    operand_map,
    preferred_storage,
    storage_mismatch,
)
from fireiron.performing.mma import wrapped
from fireiron.performing.sparsity import LEGAL_METADATA
from fireiron.performing.warpgroups import ROWS, accumulator_map, wrong_sizes
from fireiron.spec import Spec
from fireiron.specs.sparse_matmul import SparseMatMul
from fireiron.values.document import called
from fireiron.values.expr import FALSE, TRUE, Expr, as_expr, constant
from fireiron.values.machine import (
    RF,
    SH,
    Architecture,
    DType,
    Warpgroup,
    bfloat16,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    int8,
    int32,
    uint8,
)
from fireiron.values.tensor import ColMajor, RowMajor, Tensor, whole_view

SHARED = ("A", "B")
"""The operands that it reads from shared memory."""

DEPTH = 64
"""Bytes of B along k."""

_PTX = {float16: "f16", bfloat16: "bf16", float8_e4m3: "e4m3", float8_e5m2: "e5m2", int8: "s8", float32: "f32", int32: "s32"}

_ADDS: dict[Expr, str] = {TRUE: "true", FALSE: "false"}


@functools.cache
def metadata_map(element: int) -> LaneMap:
    """Return the map from thread and byte to the metadata of 64 rows, for elements of `element` bytes."""
    if element == 2:
        return LaneMap.along((ROWS, 4), ((2, 1, 2), (2, 0, 0), (8, 0, 1), (4, 0, 16)), ((2, 1, 1), (2, 0, 8)))
    return LaneMap.along((ROWS, 8), ((2, 0, 8), (2, 1, 4), (8, 0, 1), (4, 0, 16)), ((4, 1, 1),))


@frozen
class SparseWgmma(Executable):
    """`SparseMatMul(64,n,k)(SH,RF,SH,RF)(Warpgroup)`: 64 bytes along k; `factors` are the types of A and B."""

    mechanism: ClassVar[Mechanism] = wgmma.WGMMA_GROUPS
    only_on: ClassVar[str] = "sm_90a"
    """The only target with the instruction. Code for a target with the suffix `a` does not run on other GPUs."""

    factors: tuple[DType, DType] = (float16, float16)
    result: DType = float32

    @property
    def depth(self) -> int:
        """Return the elements of the dense A along k."""
        return DEPTH // self.factors[0].bytes

    def performs(self) -> str:
        left, right = self.factors
        types = f"A and B {left}" if left == right else f"A {left}, B {right}"
        n = f"n {self._widths()}"
        return f"SparseMatMul({ROWS},n,{self.depth})(SH,RF,SH,RF)(Warpgroup), {types}, C {self.result}, {n}, A and B in swizzled chunks"

    def _widths(self) -> str:
        return "8 to 32 by 8, to 256 by 16" if self.factors[0] == int8 else "8 to 256 by 8"

    def may_perform(self, spec: Spec) -> bool:
        return spec.kind == SparseMatMul.kind and spec.level == Warpgroup

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if spec.kind != SparseMatMul.kind:
            return (Mismatch("spec", "SparseMatMul", spec.title),)
        types = {"A": self.factors[0], "E": uint8, "B": self.factors[1], "C": self.result}
        memories = {"A": SH, "E": RF, "B": SH, "C": RF}
        mismatches = (
            *level_mismatch(spec, Warpgroup),
            *self._shape_mismatch(spec),
            *(mismatch for name, dtype in types.items() for mismatch in type_mismatch(spec, name, (dtype,))),
            *(mismatch for name, memory in memories.items() for mismatch in memory_mismatch(spec, name, (memory,))),
            *(() if architecture.name == self.only_on else (Mismatch("target", self.only_on, architecture.name),)),
        )
        return mismatches or (*(one for name in SHARED for one in storage_mismatch(spec, name)), *_span_mismatch(spec))

    def _shape_mismatch(self, spec: Spec) -> tuple[Mismatch, ...]:
        m, n, k = (constant(size) or 0 for size in spec.sizes)
        step = 16 if self.factors[0] == int8 and n > 32 else 8
        is_single_step = spec.accumulate == TRUE or k == self.depth
        are_legal = (m > 0 and m % ROWS == 0, 8 <= n <= 256 and n % step == 0, k > 0 and k % self.depth == 0 and is_single_step)
        if all(are_legal):
            return ()
        depth = f"a multiple of {self.depth}" if spec.accumulate == TRUE else f"{self.depth}, or more with an accumulator (epilog)"
        required = zip((f"a multiple of {ROWS}", self._widths(), depth), are_legal, strict=True)
        return (Mismatch("shape", *wrong_sizes(dict(zip("mnk", required, strict=True)), {"m": m, "n": n, "k": k})),)

    # ------------------------------------------------------------------------------------------ statements

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        columns = constant(spec.C.shape[1]) or 0
        maps = {"E": metadata_map(self.factors[0].bytes), "C": accumulator_map(columns, False)}
        tiles = {"A": (ROWS, self.depth // 2), "B": (self.depth, columns)}
        for name in SHARED:
            along = decided(spec, name, draft).along
            maps[name] = operand_map(tiles[name], along_k_of(spec, name), along, spec.operands[name].dtype.bytes)
        vectors = (PIECE // self.factors[0].bytes, 4, PIECE // self.factors[1].bytes, 1)
        program = statements_by_lanes(self, spec, draft, maps, spread=SHARED, vectors=vectors)
        return edited(program, lambda statement: attrs.evolve(statement, mechanism=self.mechanism))

    # ------------------------------------------------------------------------------------------ text

    def prepared(self, operand: str) -> Function | None:
        return LEGAL_METADATA if operand == "E" else None

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        e, c = printer.registers(statement, 1), printer.registers(statement, 3)
        chunks = {name: chunks_of(printer, statement, name) for name in SHARED}
        transposed = tuple(chunks[name].along != along_k_of(statement.spec, name) for name in SHARED)
        adds = _ADDS.get(statement.accumulate) or printer.expression(statement.accumulate)
        factors = [descriptor(printer, statement, name, chunks[name]) for name in SHARED]
        columns = constant(statement.spec.C.shape[1]) or 0
        product = called(printer.function(self._function(columns, transposed)), c.place, *factors, e.place, adds)
        return with_registers([product], e, c)

    def _function(self, columns: int, transposed: tuple[bool, ...]) -> Function:
        """Return the device function of the instruction; its arguments are accumulators, two descriptors and metadata."""
        left, right = self.factors
        kind = self.result
        count = columns // 2 // (4 // kind.bytes)
        shape = f"m{ROWS}n{columns}k{self.depth}"
        types = ".".join(_PTX[dtype] for dtype in (kind, left, right))
        letter = "f" if kind == float32 else "r"
        words = "c" if kind.bytes == 4 else "c_words"
        registers_text = ", ".join(f"%{number}" for number in range(count))
        scales = "" if left == int8 else ", 1, 1"
        scales += "".join(f", {int(is_transposed)}" for is_transposed in transposed) if left.bytes == 2 else ""
        operands = f"{{{registers_text}}}, %{count}, %{count + 1}, %{count + 2}, 0, scale_d{scales}; }}"
        body = (
            *(() if words == "c" else ("unsigned* const c_words = reinterpret_cast<unsigned*>(c);",)),
            "const unsigned* const e_words = reinterpret_cast<const unsigned*>(e);",
            "asm volatile(",
            f'    "{{ .reg .pred scale_d; setp.ne.b32 scale_d, %{count + 3}, 0; "',
            f'    "wgmma.mma_async.sp.sync.aligned.{shape}.{types} "',
            *(f'    "{line}"' for line in filled_lines(operands)),
            *wrapped(f"    : {listed('+' + letter, words, count)}"),
            '    : "l"(a), "l"(b), "r"(e_words[0]), "r"(static_cast<int>(accumulate)));',
        )
        parameters = (f"{kind.cuda}* c", "unsigned long long a", "unsigned long long b", "const unsigned char* e", "bool accumulate")
        note = f"c = a * b, or c += a * b if accumulate: asynchronous {shape} of a warpgroup, a 2:4 sparse, with metadata e"
        orders = f"{'col' if transposed[0] else 'row'}_{'row' if transposed[1] else 'col'}"
        kinds = "_".join(dict.fromkeys(types.split(".")[1:]))
        return Function(f"wgmma_sp_{shape}_{orders}_{_PTX[kind]}_{kinds}", parameters, body, note)


def _span_mismatch(spec: Spec) -> tuple[Mismatch, ...]:
    """Return the mismatch if B is contiguous along k in chunks narrower than an instruction reads."""
    view = spec.operands["B"]
    storage = preferred_storage(spec, "B") if view.tensor.free else view.tensor.storage()
    layout = None if storage is None else smem_layout_of(storage, view, view.dtype.bytes)
    if not isinstance(layout, SmemLayout) or layout.along != along_k_of(spec, "B") or layout.span >= DEPTH:
        return ()
    return (Mismatch("B storage", f"chunks of {DEPTH} or {2 * DEPTH} bytes along k", f"chunks of {layout.span} bytes"),)


def _family() -> tuple[SparseWgmma, ...]:
    forms = [
        ((float16, float16), float32),
        ((bfloat16, bfloat16), float32),
        ((float16, float16), float16),
        *(((a, b), float32) for a in (float8_e4m3, float8_e5m2) for b in (float8_e4m3, float8_e5m2)),
        ((int8, int8), int32),
    ]
    names = ("_".join(dict.fromkeys((_PTX[a], _PTX[b]))) + f"_{_PTX[result]}" for (a, b), result in forms)
    return tuple(SparseWgmma(f"WGMMA_SP_{name}".upper(), factors, result) for name, (factors, result) in zip(names, forms, strict=True))


WGMMA_SP: tuple[SparseWgmma, ...] = _family()

INSTRUCTIONS: tuple[Executable, ...] = WGMMA_SP


def _example(form: SparseWgmma) -> Spec:
    """Return a spec that a form performs: A and B in shared memory, with undecided storage."""
    m, n, k = ROWS, 8, form.depth
    left, right = form.factors
    tensors = (
        Tensor("A", _shape(m, k // 2), left, SH, RowMajor, free=True),
        Tensor("E", _shape(m, k // 8), uint8, RF, RowMajor),
        Tensor("B", _shape(k, n), right, SH, ColMajor, free=True),
        Tensor("C", _shape(m, n), form.result, RF, ColMajor),
    )
    return SparseMatMul.on(Warpgroup, *map(whole_view, tensors))


def _shape(*sizes: int) -> tuple[Expr, ...]:
    return tuple(map(as_expr, sizes))


EXAMPLES = tuple(map(_example, WGMMA_SP))
"""Specs that the instructions perform."""

__all__ = ["WGMMA_SP", "SparseWgmma"]
