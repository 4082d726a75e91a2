"""WMMA: matrix multiply-accumulate of a warp on opaque fragments (Fireiron, section 4.3; CUDA C++ Programming Guide, "Warp Matrix
Functions").

    load_matrix_sync   Move (GL|SH -> FR)(Warp)
    fill_fragment      Init (FR)(Warp)
    mma_sync           MatMul(m,n,k)(FR,FR,FR)(Warp)
    store_matrix_sync  Move (FR -> GL|SH)(Warp)

Only these functions may access a fragment. The programming guide does not specify which thread accesses which element of a matrix in GL or
SH, so these accesses are `spread` over the warp.

>>> from fireiron import *
>>> leaf = MatMul(16, 16, 16, dtype=float16, c_dtype=float32)(FR(16, 16, 16), FR(16, 16, 16), FR(16, 16, 16))(Warp)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['mma_sync']
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from fireiron.errors import DecompositionError
from fireiron.frozen import frozen
from fireiron.ir import Access, Buffer, Exec, Kernel, Stmt
from fireiron.ir.fragments import forms_of, fragment_type, maps_of, matrix_order, role
from fireiron.ir.lanes import LaneMap
from fireiron.ir.text import Braces, Item, Printer
from fireiron.language.tree import Context, Draft, Executable, Mismatch
from fireiron.performing.by_lanes import (
    level_mismatch,
    memory_mismatch,
    product_mismatch,
    shape_mismatch,
    statements_by_lanes,
    target_mismatch,
    tile_of,
    type_mismatch,
)
from fireiron.spec import Spec
from fireiron.values.document import called
from fireiron.values.expr import ONE, Expr, constant
from fireiron.values.machine import GL, SH, Architecture, Memory, Warp, tf32
from fireiron.values.tensor import View

POINTER_BYTES = 32
"""Alignment in bytes of a matrix. For 8-bit elements it is half of this: the bytes of a row or column of a fragment."""

HEADERS = ("mma.h",)


@frozen
class MmaSync(Executable):
    """`MatMul(m,n,k)(FR,FR,FR)(Warp)`; the memory of the fragments specifies m, n and k."""

    headers: ClassVar[tuple[str, ...]] = HEADERS

    def performs(self) -> str:
        return "MatMul(m,n,k)(FR,FR,FR)(Warp), m, n and k those of the fragments"

    def may_perform(self, spec: Spec) -> bool:
        return spec.multiplies and any(memory.fragment is not None for memory in spec.memories)

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.multiplies:
            return product_mismatch(spec)
        memory = next((one for one in spec.memories if one.fragment is not None), None)
        if memory is None or memory.fragment is None:
            return (*level_mismatch(spec, Warp), Mismatch("memory", "FR for each operand", ", ".join(one.name for one in spec.memories)))
        return (
            *level_mismatch(spec, Warp),
            *(one for name in "ABC" for one in memory_mismatch(spec, name, (memory,))),
            *shape_mismatch(spec, dict(zip(spec.dims, memory.fragment, strict=True)), multiples=False),
            *_product_mismatch(spec, memory, architecture),
        )

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        return statements_by_lanes(self, spec, draft, maps_of(spec.memories[0]))

    def declaration(self, kernel: Kernel, buffer: Buffer) -> str:
        return fragment_type(kernel, buffer)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        a, b, c = (_fragment(printer, statement, position) for position in range(3))
        zero = printer.literal(0, statement.spec.operands["C"].dtype)
        return [
            *printer.unless_adding(statement, [called("nvcuda::wmma::fill_fragment", c, zero)]),
            called("nvcuda::wmma::mma_sync", c, a, b, c),
        ]


def _product_mismatch(spec: Spec, memory: Memory, architecture: Architecture) -> tuple[Mismatch, ...]:
    """Return the mismatches if fragments of these element types cannot be multiplied, or not on the target."""
    forms = forms_of(memory)
    form = next((one for one in forms if one.operand == spec.A.dtype), None)
    if form is None:
        return type_mismatch(spec, "A", tuple(one.operand for one in forms))
    return (
        *type_mismatch(spec, "B", (form.operand,)),
        *type_mismatch(spec, "C", form.results),
        *target_mismatch(architecture, form.capability),
    )


# ---------------------------------------------------------------------------------------------- memory to fragment and back


@frozen
class MatrixSync(Executable):
    """`Move(r,c) (GL|SH -> FR)(Warp)` of whole fragments, or with `store` `Move(r,c) (FR -> GL|SH)(Warp)` of whole accumulators."""

    headers: ClassVar[tuple[str, ...]] = HEADERS

    store: bool = False

    @property
    def inner(self) -> str:
        """Return the operand in fragments."""
        return "src" if self.store else "dst"

    @property
    def outer(self) -> str:
        """Return the matrix in memory."""
        return "dst" if self.store else "src"

    def performs(self) -> str:
        way, what = ("FR -> GL|SH", "accumulators") if self.store else ("GL|SH -> FR", "fragments")
        return f"Move(r,c)({way})(Warp), whole {what}, the matrix and its rows provably aligned"

    def may_perform(self, spec: Spec) -> bool:
        return spec.copies and spec.operands[self.inner].memory.fragment is not None

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.copies:
            return (Mismatch("spec", "Move", spec.title),)
        mismatches = [*level_mismatch(spec, Warp), *memory_mismatch(spec, self.outer, (GL, SH))]
        inner, outer = spec.operands[self.inner], spec.operands[self.outer]
        matrix = outer.tensor
        if inner.memory.fragment is None:
            return (*mismatches, Mismatch(f"{self.inner} memory", "FR", inner.memory.name))
        mismatches += type_mismatch(spec, self.outer, (inner.dtype,))
        if len(spec.dims) != 2:
            return (*mismatches, Mismatch("shape", "two dimensions", "x".join(map(str, spec.sizes))))
        if _leading_dimension(spec.operands[self.outer]) is None:
            wanted = "RowMajor or ColMajor" if len(matrix.shape) == 2 else "contiguous along one of its dimensions"
            mismatches.append(Mismatch(f"{self.outer} layout", wanted, str(matrix.layout)))
        if matrix.swizzle is not None:
            mismatches.append(Mismatch(f"{self.outer} layout", "a leading dimension, without a swizzle", str(matrix.swizzle)))
        return (*mismatches, *_type_mismatch(inner, architecture, factors=not self.store))

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        return self.mismatches(spec, context.architecture) or _fragments_mismatch(spec, spec.operands[self.inner], context)

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        matrix = spec.operands[self.outer]
        _require_whole(spec, self, matrix)
        width = max(POINTER_BYTES // (2 if matrix.dtype.bits == 8 else 1) // matrix.dtype.bytes, 1)
        maps = dict.fromkeys(spec.operands, _map_of(spec.operands[self.inner], draft))
        return statements_by_lanes(self, spec, draft, maps, (self.outer,), vectors=(1, width) if self.store else (width, 1))

    def declaration(self, kernel: Kernel, buffer: Buffer) -> str:
        return fragment_type(kernel, buffer)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        access = statement.operands[self.outer]
        matrix: View = statement.spec.operands[self.outer]
        buffer: Buffer = printer.kernel.buffer(statement.operands[self.inner].buffer)
        inner = _fragment(printer, statement, 0 if self.store else 1)
        step = _leading_dimension(matrix)
        assert step is not None
        pointer, leading = printer.pointer(access), printer.expression(step)
        order = f"nvcuda::wmma::mem_{matrix_order(printer.kernel, buffer, matrix)}_major"
        if self.store:
            return [called("nvcuda::wmma::store_matrix_sync", pointer, inner, leading, order)]
        layout = (order,) if role(printer.kernel, buffer) == "accumulator" else ()
        return [called("nvcuda::wmma::load_matrix_sync", inner, pointer, leading, *layout), *_truncated(inner, buffer)]


def _truncated(target: str, buffer: Buffer) -> list[Item]:
    """Truncate float32 to tf32 as `mma.sync` does, because WMMA's result is undefined if the last 13 bits are not zero."""
    if buffer.dtype != tf32:
        return []
    kept = "element = __uint_as_float(__float_as_uint(element) & 0xffffe000u);"
    return [Braces(f"for (float& element : {target}.x)", (kept,))]


@frozen
class FillFragment(Executable):
    """`Init(r,c)(FR)(Warp)`, whole accumulators."""

    headers: ClassVar[tuple[str, ...]] = HEADERS

    def performs(self) -> str:
        return "Init(r,c)(FR)(Warp), whole accumulators"

    def may_perform(self, spec: Spec) -> bool:
        return spec.fills and spec.dst.memory.fragment is not None

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.fills:
            return (Mismatch("spec", "Init", spec.title),)
        if spec.dst.memory.fragment is None:
            return (*level_mismatch(spec, Warp), Mismatch("dst memory", "FR", spec.dst.memory.name))
        if len(spec.dims) != 2:
            return (*level_mismatch(spec, Warp), Mismatch("shape", "two dimensions", "x".join(map(str, spec.sizes))))
        return (*level_mismatch(spec, Warp), *_type_mismatch(spec.dst, architecture, factors=False))

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        return self.mismatches(spec, context.architecture) or _fragments_mismatch(spec, spec.operands["dst"], context)

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        return statements_by_lanes(self, spec, draft, {"dst": _map_of(spec.operands["dst"], draft)})

    def declaration(self, kernel: Kernel, buffer: Buffer) -> str:
        return fragment_type(kernel, buffer)

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        value = printer.literal(dict(statement.spec.parameters)["value"], statement.spec.dst.dtype)
        return [called("nvcuda::wmma::fill_fragment", _fragment(printer, statement, 0), value)]


# ---------------------------------------------------------------------------------------------- common functions


def _type_mismatch(view: View, architecture: Architecture, factors: bool) -> tuple[Mismatch, ...]:
    """Return the mismatch if fragments of the target do not support an element type; with `factors`, types of A and B are legal, too."""
    legal = {form: {*form.results, *([form.operand] if factors else [])} for form in forms_of(view.memory)}
    serving = [form.capability for form, dtypes in legal.items() if view.dtype in dtypes]
    if not serving:
        names = sorted({str(dtype) for dtypes in legal.values() for dtype in dtypes})
        return (Mismatch("type", " or ".join(names), str(view.dtype)),)
    return target_mismatch(architecture, min(serving))


def _fragments_mismatch(spec: Spec, view: View, context: Context) -> tuple[Mismatch, ...]:
    return shape_mismatch(spec, tile_of(spec, dict.fromkeys(spec.operands, _map_of(view, context))), multiples=True)


def _map_of(view: View, context: Context) -> LaneMap:
    """Return the lane map of a fragment: that of the MMA that uses it, or else the first that divides it, C before A and B."""
    ownership = context.owners.get(view.tensor.name)
    maps = maps_of(view.memory)
    sizes = [constant(size) or 1 for size in view.shape]
    fitting = [maps[name] for name in "CAB" if all(size % part == 0 for size, part in zip(sizes, maps[name].tile, strict=True))]
    lane_map = None if ownership is None else ownership.lane_map
    return lane_map or (*fitting, maps["C"])[0]


def _require_whole(spec: Spec, executable: Executable, matrix: View) -> None:
    """Refuse a tile that may be partly out of bounds, or whose rows and columns are not adjacent in the matrix."""
    if matrix.bounded:
        stored = matrix in (spec.operands[name] for name in spec.outputs)
        through = "store through SH: Move.load(SRC, SH, ...)" if stored else "load the operand into SH first"
        raise DecompositionError(
            f"{executable.name} accesses whole fragments, but the last tile of {matrix.tensor.name} may be partly out of bounds",
            within=spec,
            hint=f"{through}, or make the sizes multiples of the tile",
        )
    if any(len(dim.modes) != 1 or constant(dim.modes[0].stride) != 1 for dim in matrix.dims):
        raise DecompositionError(
            f"{executable.name} accesses adjacent rows and columns, but this tile of {matrix.tensor.name} is strided", within=spec
        )


def _leading_dimension(matrix: View) -> Expr | None:
    """Return the leading dimension of a matrix in elements; None if no dimension is contiguous."""
    near, far = (matrix.tensor.storage().steps[matrix.axis(dim)] for dim in matrix.storage_order)
    return far if near == ONE else None


def _fragment(printer: Printer, statement: Exec, position: int) -> str:
    """Print the fragment of an operand: the index of its first register, in fragments."""
    access: Access = statement.accesses[position]
    buffer: Buffer = printer.kernel.buffer(access.buffer)
    return f"{buffer.name}[{printer.expression(buffer.address(access, access.first) // statement.lane_maps[position].count)}]"


MMA_SYNC = MmaSync("mma_sync")
LOAD_MATRIX_SYNC = MatrixSync("load_matrix_sync")
FILL_FRAGMENT = FillFragment("fill_fragment")
STORE_MATRIX_SYNC = MatrixSync("store_matrix_sync", store=True)

INSTRUCTIONS: tuple[Executable, ...] = (MMA_SYNC, LOAD_MATRIX_SYNC, FILL_FRAGMENT, STORE_MATRIX_SYNC)
"""The four WMMA functions."""

__all__ = ["FILL_FRAGMENT", "LOAD_MATRIX_SYNC", "MMA_SYNC", "STORE_MATRIX_SYNC", "FillFragment", "MatrixSync", "MmaSync"]
