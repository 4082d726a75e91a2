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

import functools
import itertools
import math
from collections.abc import Sequence
from typing import ClassVar

import attrs

from fireiron.ir import Exec, Mechanism, Stmt, edited
from fireiron.ir.awaited import awaited
from fireiron.ir.lanes import LaneMap, Part
from fireiron.ir.mechanisms import wgmma
from fireiron.ir.smem_layouts import PIECE, SPANS, SmemLayout, chunk_storage, smem_layout_of, widest_span
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
from fireiron.performing.mma import wrapped
from fireiron.performing.warpgroups import ROWS, a_operand_map, accumulator_map
from fireiron.spec import Spec
from fireiron.values.document import Call, Chain, Text, called
from fireiron.values.expr import FALSE, TRUE, ZERO, Expr, constant
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
from fireiron.values.tensor import MatrixLayout, Storage, View

A_REGISTERS = 4
"""32-bit registers per thread for an A operand in registers."""

MODES = {128: 1, 64: 2, 32: 3, 16: 0}
"""The code of a span's swizzle in a descriptor (PTX ISA, "Matrix Descriptor Format")."""

_PTX = {float16: "f16", bfloat16: "bf16", tf32: "tf32", float8_e4m3: "e4m3", float8_e5m2: "e5m2", int8: "s8", float32: "f32", int32: "s32"}

_ADDS: dict[Expr, str] = {TRUE: "true", FALSE: "false"}


@attrs.frozen
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
        return mismatches or tuple(mismatch for name in self.in_shared for mismatch in self._storage_mismatch(spec, name))

    def _shape_mismatch(self, spec: Spec) -> tuple[Mismatch, ...]:
        m, n, k = (constant(size) or 0 for size in spec.sizes)
        rows, columns = (n, m) if self.swapped else (m, n)
        step = 16 if self.factors[0] == int8 and columns > 32 else 8
        # Several steps of k, or several groups of 64 rows, need loops around the instruction, which are legal only if it accumulates.
        is_single_step = spec.accumulate == TRUE or k == self.depth
        if rows % ROWS == 0 and rows and k % self.depth == 0 and k and is_single_step and columns % step == 0 and 8 <= columns <= 256:
            return ()
        expected = f"nx{ROWS}x{self.depth}" if self.swapped else f"{ROWS}xnx{self.depth}"
        multiples = "multiples of m and k of " if spec.accumulate == TRUE else ""
        return (Mismatch("shape", f"{multiples}{expected}, n {self._widths()}", "x".join(map(str, spec.sizes))),)

    def _storage_mismatch(self, spec: Spec, name: str) -> tuple[Mismatch, ...]:
        """Return the mismatch if an operand is not in chunks that the instruction can read; nothing if its storage is undecided."""
        view = spec.operands[name]
        shape = "x".join(map(str, view.tensor.shape))
        if view.tensor.free:
            if len(view.tensor.shape) != 2:
                return (Mismatch(f"{name} storage", "a buffer of two dimensions", shape),)
            best = self._preferred_storage(spec, name)
            if best is not None and isinstance(smem_layout_of(best, view, view.dtype.bytes), SmemLayout):
                return ()
            return (Mismatch(f"{name} size", "multiples of 16 bytes by 8 elements", shape),)
        layout = smem_layout_of(view.tensor.storage(), view, view.dtype.bytes)
        if isinstance(layout, str):
            return (Mismatch(f"{name} storage", f"chunks of {', '.join(map(str, SPANS))} bytes, swizzled", layout),)
        if layout.along == _along_k(spec, name):
            return ()
        if view.dtype.bytes != 2:
            expected = "elements contiguous along k, because they do not have 16 bits"
            return (Mismatch(f"{name} storage", expected, f"elements contiguous along {'m' if name == 'A' else 'n'}"),)
        return () if layout.span > PIECE else (Mismatch(f"{name} storage", "swizzled chunks", "chunks of 16 bytes"),)

    # ------------------------------------------------------------------------------------------ statements

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        maps = {"C": accumulator_map(_columns(spec, self.swapped), self.swapped)}
        if self.held:
            maps[self.left] = a_operand_map(self.factors["AB".index(self.left)].bytes, self.swapped)
        for name in self.in_shared:
            view = spec.operands[name]
            along = self._decided(spec, name, draft).along
            tile = [constant(size) or 0 for size in view.shape]
            tile[_along_k(spec, name)] = self.depth
            if name == self.left:
                tile[1 - _along_k(spec, name)] = ROWS
            maps[name] = operand_map(tuple(tile), _along_k(spec, name), along, view.dtype.bytes)
        pieces = {name: (PIECE if name in self.in_shared else 4) // dtype.bytes for name, dtype in zip("AB", self.factors, strict=True)}
        program = statements_by_lanes(self, spec, draft, maps, spread=self.in_shared, vectors=(pieces["A"], pieces["B"], 1))
        return edited(program, lambda statement: attrs.evolve(statement, mechanism=self.mechanism))

    def _decided(self, spec: Spec, name: str, draft: Draft) -> SmemLayout:
        """Return the chunks of an operand, which become its storage if that is undecided."""
        view = spec.operands[name]
        preferred = self._preferred_storage(spec, name) if view.tensor.free else None
        storage = view.tensor.storage() if preferred is None else draft.choose_storage(view.tensor, preferred)
        layout = smem_layout_of(storage, view, view.dtype.bytes)
        assert isinstance(layout, SmemLayout), layout
        return layout

    def _preferred_storage(self, spec: Spec, name: str) -> Storage | None:
        """Return the best storage of an undecided operand: contiguous as its source if the instruction can read this, otherwise along k."""
        view = spec.operands[name]
        along_k, element = _along_k(spec, name), view.dtype.bytes
        order = view.order if isinstance(view.tensor.layout, MatrixLayout) else None
        fastest = along_k if order is None else (1 if order == "row" else 0)
        along = fastest if element == 2 else along_k
        extents = [constant(view.extent(dim)) or 0 for dim in (0, 1)]
        tile = [constant(size) or 0 for size in view.shape]
        span = widest_span(math.gcd(extents[along], extents[along] if along == along_k else tile[along]), element)
        if span is None or (span == PIECE and along != along_k):
            along, span = along_k, widest_span(extents[along_k], element)
        if span is None:
            return None
        return chunk_storage(view, along, span)

    # ------------------------------------------------------------------------------------------ text

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        spec = statement.spec
        c = printer.registers(statement, 2)
        chunks = {name: _chunks(printer, statement, name) for name in self.in_shared}
        transposed = tuple(name in chunks and chunks[name].along != _along_k(spec, name) for name in (self.left, self.right))
        columns = _columns(spec, self.swapped)
        adds = _ADDS.get(statement.accumulate) or printer.expression(statement.accumulate)
        factors = {name: _descriptor(printer, statement, name, layout) for name, layout in chunks.items()}
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
            *(f'    "{line}"' for line in _filled(f"{{{registers_text}}}, {factor}, %{count + given}, scale_d{scales}; }}")),
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


def _filled(text: str, width: int = 100) -> list[str]:
    """Break text into lines after commas."""
    lines = []
    while len(text) > width:
        break_at = text.rindex(", ", 0, width) + 2
        lines.append(text[:break_at])
        text = text[break_at:]
    return [*lines, text]


def _along_k(spec: Spec, name: str) -> int:
    """Return the reduced dimension of an operand: A is rows x reduced, and B is reduced x columns."""
    (reduced,) = (dim for dim in spec.uses["A"] if dim not in spec.uses["C"])
    return spec.uses[name].index(reduced)


def _columns(spec: Spec, swapped: bool) -> int:
    """Return the extent of the result's dimension that does not have 64 rows."""
    return constant(spec.C.shape[0 if swapped else 1]) or 0


def _chunks(printer: Printer, statement: Exec, name: str) -> SmemLayout:
    """Return the chunks of an operand in its buffer."""
    view: View = statement.spec.operands[name]
    layout = smem_layout_of(printer.kernel.buffer(view.tensor.name).storage, view, view.dtype.bytes)
    assert isinstance(layout, SmemLayout), layout
    return layout


def _descriptor(printer: Printer, statement: Exec, name: str, chunks: SmemLayout) -> Text:
    """Print the descriptor of an operand.

    If each iteration of a loop waits for its wgmma group, the latency between MMAs matters. Then the descriptor is computed once, and the
    offsets of unrolled iterations are added to it. The sum does not exceed the 14 bits of the address in shared memory.
    """
    head = f"{printer.function(DESCRIPTOR)}<{chunks.chunk_stride}, {chunks.group_stride}, {MODES[chunks.span]}>"
    first = statement.at_first_lane(name)
    if id(statement) not in awaited(printer.kernel):
        return Call(head, (printer.shared_address(first),))
    address, step = printer.shared_address_and_step(first)
    descriptor = Call(head, (address,))
    return descriptor if step == ZERO else Chain((descriptor, f"+ {printer.expression(step // PIECE)}"))


# ---------------------------------------------------------------------------------------------- lane maps


@functools.lru_cache(maxsize=256)
def operand_map(tile: tuple[int, ...], along_k: int, along: int, element: int) -> LaneMap:
    """Return a lane map in which each thread reads 16 contiguous bytes. PTX does not specify which thread reads which element."""
    other = 1 - along_k
    piece, groups = PIECE // element, tile[other] // 8
    share = math.gcd(groups, 8)
    lanes: tuple[Part, ...] = ((share, other, 8), (8 // share, other, 0))
    if along == along_k:
        lanes, values = ((tile[along_k] // piece, along_k, piece), (8, other, 1), *lanes), (piece, along_k, 1)
    else:
        lanes, values = ((tile[along_k], along_k, 1), *lanes), (8, other, 1)
    return LaneMap.along(tile, lanes, (values, (groups // share, other, 8 * share)))


# ---------------------------------------------------------------------------------------------- functions

DESCRIPTOR = Function(
    "matrix_descriptor",
    ("unsigned address",),
    (
        "return static_cast<unsigned long long>((address & 0x3FFFF) >> 4 | (leading_bytes >> 4) << 16)",
        "     | static_cast<unsigned long long>(stride_bytes >> 4) << 32 | static_cast<unsigned long long>(swizzle) << 62;",
    ),
    "wgmma matrix descriptor: start address, leading and stride byte offsets, swizzle mode (1: 128, 2: 64, 3: 32 bytes)",
    "unsigned leading_bytes, unsigned stride_bytes, unsigned swizzle",
    "unsigned long long",
)


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
