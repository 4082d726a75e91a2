"""wgmma: matrix multiply-accumulate by the 128 threads of a warpgroup, with operands in shared memory (Hopper).

PTX ISA, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions". The accumulator of 64 x n is in registers. Descriptors
specify the other two operands, which are stored in chunks (`fireiron.ir.smem_layouts`). With `swapped`, the B of the spec is the A of PTX;
this is for tiles that are narrow along m. The A of PTX may also be in registers, in the layout of its figure.

>>> from fireiron import *
>>> fp16 = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
>>> blocks = MatMul(512, 512, 512, **fp16)(GL, GL, GL)(Kernel).tile(128, 64).to(Block).epilog(RF, float32)
>>> loop = blocks.split(64).pipeline(3).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done())
>>> text = loop.tile(64, 64).to(Warpgroup).done().cuda()
>>> [line.strip() for line in text.splitlines() if "wgmma.mma_async" in line]
['"wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "']
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.ir import Exec, Mechanism, Stmt, edited
from fireiron.ir.mechanisms import wgmma
from fireiron.ir.smem_layouts import PIECE
from fireiron.ir.text import Function, Item, Printer
from fireiron.language.tree import Draft, Executable, Mismatch
from fireiron.performing.by_lanes import (
    level_mismatch,
    listed,
    memory_mismatch,
    registers,
    statements_by_lanes,
    type_mismatch,
    with_registers,
)
from fireiron.performing.descriptors import along_k_of, chunks_of, decided, descriptor, filled_lines, operand_map, storage_mismatch
from fireiron.performing.mma import wrapped
from fireiron.performing.warpgroups import ROWS, a_operand_map, accumulator_map, wrong_sizes
from fireiron.spec import Spec
from fireiron.values.document import called
from fireiron.values.expr import FALSE, TRUE, Expr, constant
from fireiron.values.machine import (
    RF,
    SH,
    Architecture,
    DType,
    Memory,
    Warpgroup,
    bfloat16,
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    int8,
    int32,
    tf32,
)

A_REGISTERS = 4
"""32-bit registers per thread for an A operand in registers."""

_PTX = {float16: "f16", bfloat16: "bf16", tf32: "tf32", float8_e4m3: "e4m3", float8_e5m2: "e5m2", int8: "s8", float32: "f32", int32: "s32"}

_ADDS: dict[Expr, str] = {TRUE: "true", FALSE: "false"}


@frozen
class Wgmma(Executable):
    """`MatMul(64,n,k)(SH,SH,RF)(Warpgroup)`, 32 bytes along k; with `swapped`, `MatMul(n,64,k)`.

    With `held`, the operand with 64 rows is in registers: `MatMul(64,n,k)(RF,SH,RF)`, or with `swapped` `MatMul(n,64,k)(SH,RF,RF)`.
    """

    mechanism: ClassVar[Mechanism] = wgmma.WGMMA_GROUPS
    only_on: ClassVar[str] = "sm_90a"
    """The only target with the instruction. Code for a target with the suffix `a` does not run on other GPUs."""

    factors: tuple[DType, DType] = (float16, float16)
    result: DType = float32
    swapped: bool = False
    held: bool = False

    @property
    def depth(self) -> int:
        """Return the elements along k."""
        return 32 // self.factors[0].bytes

    @property
    def left(self) -> str:
        """Return the operand that has 64 rows."""
        return "B" if self.swapped else "A"

    @property
    def right(self) -> str:
        """Return the other input operand."""
        return "A" if self.swapped else "B"

    @property
    def in_shared(self) -> tuple[str, ...]:
        """Return the input operands that it reads from shared memory."""
        return (self.right,) if self.held else ("A", "B")

    @property
    def memories(self) -> dict[str, Memory]:
        """Return the memory of each operand."""
        return {name: SH if name in self.in_shared else RF for name in "ABC"}

    def instead_of(self, spec: Spec) -> str:
        rows, columns = constant(spec.size("m")) or 0, constant(spec.size("n")) or 0
        if not self.swapped or rows % ROWS == 0:
            return ""
        tile = f".tile({ROWS}, {max(columns, ROWS)}).to(Warpgroup)"
        return f"{tile}, because wgmma computes {ROWS} rows; {rows} rows are possible only with swapped operands: for these, "

    def performs(self) -> str:
        shape = f"n,{ROWS},{self.depth}" if self.swapped else f"{ROWS},n,{self.depth}"
        types = f"A and B {self.factors[0]}" if self.factors[0] == self.factors[1] else f"A {self.factors[0]}, B {self.factors[1]}"
        memories = ",".join(memory.name for memory in self.memories.values())
        chunks = f"{' and '.join(self.in_shared)} in swizzled chunks"
        return f"MatMul({shape})({memories})(Warpgroup), {types}, C {self.result}, n {self._widths()}, {chunks}"

    def _widths(self) -> str:
        return "8 to 32 by 8, to 256 by 16" if self.factors[0] == int8 else "8 to 256 by 8"

    def may_perform(self, spec: Spec) -> bool:
        return spec.multiplies and spec.level == Warpgroup

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.multiplies:
            return (Mismatch("spec", "MatMul", spec.title),)
        mismatches = (
            *level_mismatch(spec, Warpgroup),
            *self._shape_mismatch(spec),
            *(mismatch for name, dtype in zip("AB", self.factors, strict=True) for mismatch in type_mismatch(spec, name, (dtype,))),
            *type_mismatch(spec, "C", (self.result,)),
            *(mismatch for name, memory in self.memories.items() for mismatch in memory_mismatch(spec, name, (memory,))),
            *(() if architecture.name == self.only_on else (Mismatch("target", self.only_on, architecture.name),)),
        )
        return mismatches or tuple(mismatch for name in self.in_shared for mismatch in storage_mismatch(spec, name))

    def _shape_mismatch(self, spec: Spec) -> tuple[Mismatch, ...]:
        m, n, k = (constant(size) or 0 for size in spec.sizes)
        rows, columns = (n, m) if self.swapped else (m, n)
        step = 16 if self.factors[0] == int8 and columns > 32 else 8
        # Several steps of k, or several groups of 64 rows, need loops around the instruction, which are legal only if it accumulates.
        is_single_step = spec.accumulate == TRUE or k == self.depth
        are_legal = (
            rows > 0 and rows % ROWS == 0,
            8 <= columns <= 256 and columns % step == 0,
            k > 0 and k % self.depth == 0 and is_single_step,
        )
        if all(are_legal):
            return ()
        depth = f"a multiple of {self.depth}" if spec.accumulate == TRUE else f"{self.depth}, or more with an accumulator (epilog)"
        names = "nmk" if self.swapped else "mnk"
        required = zip((f"a multiple of {ROWS}", self._widths(), depth), are_legal, strict=True)
        return (Mismatch("shape", *wrong_sizes(dict(zip(names, required, strict=True)), {"m": m, "n": n, "k": k})),)

    # ------------------------------------------------------------------------------------------ statements

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        maps = {"C": accumulator_map(_columns(spec, self.swapped), self.swapped)}
        if self.held:
            maps[self.left] = a_operand_map(self.factors["AB".index(self.left)].bytes, self.swapped)
        for name in self.in_shared:
            view = spec.operands[name]
            along = decided(spec, name, draft).along
            tile = [constant(size) or 0 for size in view.shape]
            tile[along_k_of(spec, name)] = self.depth
            if name == self.left:
                tile[1 - along_k_of(spec, name)] = ROWS
            maps[name] = operand_map(tuple(tile), along_k_of(spec, name), along, view.dtype.bytes)
        pieces = {name: (PIECE if name in self.in_shared else 4) // dtype.bytes for name, dtype in zip("AB", self.factors, strict=True)}
        program = statements_by_lanes(self, spec, draft, maps, spread=self.in_shared, vectors=(pieces["A"], pieces["B"], 1))
        return edited(program, lambda statement: attrs.evolve(statement, mechanism=self.mechanism))

    # ------------------------------------------------------------------------------------------ text

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        spec = statement.spec
        c = printer.registers(statement, 2)
        chunks = {name: chunks_of(printer, statement, name) for name in self.in_shared}
        transposed = tuple(name in chunks and chunks[name].along != along_k_of(spec, name) for name in (self.left, self.right))
        columns = _columns(spec, self.swapped)
        adds = _ADDS.get(statement.accumulate) or printer.expression(statement.accumulate)
        factors = {name: descriptor(printer, statement, name, layout) for name, layout in chunks.items()}
        if not self.held:
            places = (factors[self.left], factors[self.right])
            return with_registers([called(printer.function(self._function(columns, transposed)), c.place, *places, adds)], c)
        left_registers = printer.registers(statement, "AB".index(self.left))
        product = called(printer.function(self._function(columns, transposed)), c.place, left_registers.place, factors[self.right], adds)
        return with_registers([product], left_registers, c)

    def _function(self, columns: int, transposed: tuple[bool, ...]) -> Function:
        """Return the device function of the instruction; its arguments are a thread's accumulators and the two descriptors."""
        left, right = self.factors[::-1] if self.swapped else self.factors
        kind = self.result
        count = columns // 2 // (4 // kind.bytes)
        shape = f"m{ROWS}n{columns}k{self.depth}"
        types = ".".join(_PTX[dtype] for dtype in (kind, left, right))
        letter = {float32: "f"}.get(kind, "r")
        words = "c" if kind in (float32, int32) else "words"
        registers_text = ", ".join(f"%{number}" for number in range(count))
        given = A_REGISTERS if self.held else 1
        factor = registers(count, A_REGISTERS) if self.held else f"%{count}"
        scales = "" if left == int8 else ", 1, 1"
        across = transposed[1:] if self.held else transposed
        scales += "".join(f", {int(is_transposed)}" for is_transposed in across) if left.bytes == 2 else ""
        body = (
            *(() if words == "c" else ("unsigned* const words = reinterpret_cast<unsigned*>(c);",)),
            *(("const unsigned* const a_words = static_cast<const unsigned*>(a);",) if self.held else ()),
            "asm volatile(",
            f'    "{{ .reg .pred scale_d; setp.ne.b32 scale_d, %{count + given + 1}, 0; "',
            f'    "wgmma.mma_async.sync.aligned.{shape}.{types} "',
            *(f'    "{line}"' for line in filled_lines(f"{{{registers_text}}}, {factor}, %{count + given}, scale_d{scales}; }}")),
            *wrapped(f"    : {listed('+' + letter, words, count)}"),
            f'    : {listed("r", "a_words", A_REGISTERS)}, "l"(b), "r"(static_cast<int>(accumulate)));'
            if self.held
            else '    : "l"(a), "l"(b), "r"(static_cast<int>(accumulate)));',
        )
        source = "const void* a" if self.held else "unsigned long long a"
        parameters = (f"{kind.cuda}* c", source, "unsigned long long b", "bool accumulate")
        where = "a in registers, b" if self.held else "a and b"
        note = f"c = a * b, or c += a * b if accumulate: asynchronous {shape} of a warpgroup, {where} in shared memory"
        orders = f"{'reg' if self.held else 'col' if transposed[0] else 'row'}_{'row' if transposed[1] else 'col'}"
        kinds = "_".join(dict.fromkeys(types.split(".")[1:]))
        return Function(f"wgmma_{shape}_{orders}_{_PTX[kind]}_{kinds}", parameters, body, note)


def _columns(spec: Spec, swapped: bool) -> int:
    """Return the extent of the result's dimension that does not have 64 rows."""
    return constant(spec.C.shape[0 if swapped else 1]) or 0


def _family() -> tuple[Wgmma, ...]:
    forms = [
        ((float16, float16), float32),
        ((bfloat16, bfloat16), float32),
        ((float16, float16), float16),
        ((tf32, tf32), float32),
        *(((a, b), float32) for a in (float8_e4m3, float8_e5m2) for b in (float8_e4m3, float8_e5m2)),
        ((int8, int8), int32),
    ]
    instructions = []
    for a_in_registers, swapped in itertools.product((False, True), (False, True)):
        for (a, b), result in forms:
            kinds = _PTX[a] if a == b else f"{_PTX[a]}_{_PTX[b]}"
            form = f"{'_SWAPPED' if swapped else ''}{'_HELD' if a_in_registers else ''}"
            instructions.append(
                Wgmma(f"WGMMA_{kinds}_{_PTX.get(result, result.name)}{form}".upper(), (a, b), result, swapped, a_in_registers)
            )
    return tuple(instructions)


WGMMA: tuple[Wgmma, ...] = _family()

INSTRUCTIONS: tuple[Executable, ...] = WGMMA

__all__ = ["WGMMA", "Wgmma"]
