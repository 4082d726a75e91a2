"""WMMA: matrix products of a warp on opaque fragments (Fireiron, section 4.3; CUDA C++ Programming Guide, "Warp Matrix Functions").

    load_matrix_sync   Move (GL|SH -> FR)(Warp)
    fill_fragment      Init (FR)(Warp)
    mma_sync           MatMul(m,n,k)(FR,FR,FR)(Warp)
    store_matrix_sync  Move (FR -> GL|SH)(Warp)

CUDA leaves open which lane holds which element of a fragment, and which touches which element of a matrix in memory. So the
lane map below is an internal one, which gives each lane its share in some order; nothing but these four instructions may touch
a fragment, and their side in GL or SH is `spread` over the warp.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError
from fireiron.executable.by_lanes import (
    level_mismatch,
    memory_mismatch,
    shape_mismatch,
    statements_by_lanes,
    target_mismatch,
    tile_of,
    type_mismatch,
)
from fireiron.expr import Expr, constant
from fireiron.ir import Access, Buffer, Exec, Kernel, Stmt, execs
from fireiron.lanes import LaneMap
from fireiron.machine import FRAGMENTS, GL, SH, Architecture, DType, Memory, Warp, bfloat16, float16, float32, float64, int8, int32, tf32
from fireiron.spec import InitSpec, MatMulSpec, MoveSpec, Spec
from fireiron.tensor import MatrixLayout, View
from fireiron.tree import Context, Executable, Mismatch

POINTER_BYTES = 32
"""A matrix starts at a multiple of 256 bits (Programming Guide); of 128 for 8-bit elements, of which a tile's row has 16 bytes."""

LEADING_BYTES = 16
"""The leading dimension is a multiple of 16 bytes."""


@attrs.frozen
class Form:
    """A row of the table "Element Types and Matrix Sizes": `cuda` is the factors' type in a fragment, if not that in memory."""

    shapes: tuple[tuple[int, int, int], ...]
    factor: DType
    results: tuple[DType, ...]
    capability: int
    cuda: str = ""


_SQUARE_AND_LONG = ((16, 16, 16), (32, 8, 16), (8, 32, 16))

FORMS: tuple[Form, ...] = (
    Form(_SQUARE_AND_LONG, float16, (float32, float16), 70),
    Form(_SQUARE_AND_LONG, int8, (int32,), 72),
    Form(_SQUARE_AND_LONG, bfloat16, (float32,), 80),
    Form(((16, 16, 8),), tf32, (float32,), 80, "nvcuda::wmma::precision::tf32"),
    Form(((8, 8, 4),), float64, (float64,), 80),
)


def forms_of(memory: Memory) -> tuple[Form, ...]:
    """The products that fragments of a memory serve."""
    return tuple(form for form in FORMS if memory.fragment in form.shapes)


def fragment_map(rows: int, columns: int) -> LaneMap:
    """The internal map of a fragment: column by column, element `e` is value `e // 32` of lane `e % 32`."""
    across, count = 32 // rows, rows * columns // 32
    lanes = ((rows, 0, 1), (across, 1, 1)) if across > 1 else ((rows, 0, 1),)
    return LaneMap((rows, columns), lanes, ((count, 1, across),) if count > 1 else ())


def maps_of(memory: Memory) -> dict[str, LaneMap]:
    """The maps of a product's fragments by operand."""
    assert memory.fragment is not None
    m, n, k = memory.fragment
    return {"A": fragment_map(m, k), "B": fragment_map(k, n), "C": fragment_map(m, n)}


@attrs.frozen
class OnFragments(Executable):
    """An instruction that touches fragments."""

    headers: ClassVar[tuple[str, ...]] = ("mma.h",)

    def declaration(self, kernel: Kernel, buffer: Buffer) -> str:
        return fragment_type(kernel, buffer)


# ---------------------------------------------------------------------------------------------- the product


@attrs.frozen
class MmaSync(OnFragments):
    """`MatMul(m,n,k)(FR,FR,FR)(Warp)`: the fragments' memory says m, n and k."""

    def performs(self) -> str:
        return "MatMul(m,n,k)(FR<m,n,k>,FR<m,n,k>,FR<m,n,k>)(Warp)"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not isinstance(spec, MatMulSpec):
            return (Mismatch("spec", "MatMul", spec.title),)
        memory = next((one for one in spec.memories if one.fragment is not None), None)
        if memory is None or memory.fragment is None:
            return (*level_mismatch(spec, Warp), Mismatch("memory", "FR for each operand", ", ".join(one.name for one in spec.memories)))
        return (
            *level_mismatch(spec, Warp),
            *(one for name in "ABC" for one in memory_mismatch(spec, name, (memory,))),
            *shape_mismatch(spec, dict(zip("mnk", memory.fragment, strict=True)), multiples=False),
            *_product_mismatch(spec, memory, architecture),
        )

    def emit(self, spec: Spec, context: Context) -> tuple[Stmt, ...]:
        return statements_by_lanes(self, spec, context, maps_of(spec.memories[0]))

    def cuda(self, printer: Any, statement: Exec) -> list[str]:
        a, b, c = (fragment(printer, statement, position) for position in range(3))
        zero = printer.literal(0, statement.spec.operands["C"].dtype)
        return [
            *printer.unless_adding(statement, [f"nvcuda::wmma::fill_fragment({c}, {zero});"]),
            f"nvcuda::wmma::mma_sync({c}, {a}, {b}, {c});",
        ]


def _product_mismatch(spec: MatMulSpec, memory: Memory, architecture: Architecture) -> tuple[Mismatch, ...]:
    """Why the element types are not those of a product of fragments, or the target does not have it."""
    forms = forms_of(memory)
    form = next((one for one in forms if one.factor == spec.A.dtype), None)
    if form is None:
        return type_mismatch(spec, "A", tuple(one.factor for one in forms))
    return (
        *type_mismatch(spec, "B", (form.factor,)),
        *type_mismatch(spec, "C", form.results),
        *target_mismatch(architecture, form.capability),
    )


# ---------------------------------------------------------------------------------------------- memory to fragment and back


def _fragment_operand(spec: Spec) -> View | None:
    return next((view for view in spec.operands.values() if view.memory.fragment is not None), None)


def _map_of(view: View, context: Context) -> LaneMap:
    """The map of a fragment: that of the product which uses it; with none, one that divides it, the accumulator's first."""
    found: LaneMap | None = context.held.get(view.tensor.name)
    maps = maps_of(view.memory)
    sizes = [constant(size) or 1 for size in view.shape]
    fitting = [maps[name] for name in "CAB" if all(size % part == 0 for size, part in zip(sizes, maps[name].tile, strict=True))]
    return found or (*fitting, maps["C"])[0]


def _common_mismatch(spec: Spec, context: Context, factors: bool = False) -> tuple[Mismatch, ...]:
    """What loads, stores and fills share: the shape, the element type (that of `factors` too), the target."""
    view = _fragment_operand(spec)
    assert view is not None
    legal = {form: {*form.results, *([form.factor] if factors else [])} for form in forms_of(view.memory)}
    found = shape_mismatch(spec, tile_of(spec, dict.fromkeys(spec.operands, _map_of(view, context))), multiples=True)
    if not any(view.dtype in dtypes for dtypes in legal.values()):
        names = sorted({str(dtype) for dtypes in legal.values() for dtype in dtypes})
        return (*found, Mismatch("type", " or ".join(names), str(view.dtype)))
    first = min(form.capability for form, dtypes in legal.items() if view.dtype in dtypes)
    return (*found, *target_mismatch(context.architecture, first))


@attrs.frozen
class MatrixSync(OnFragments):
    """What `load_matrix_sync` and `store_matrix_sync` share; `inner` is the operand in fragments, `outer` the matrix in memory."""

    inner: ClassVar[str] = "dst"
    outer: ClassVar[str] = "src"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not isinstance(spec, MoveSpec):
            return (Mismatch("spec", "Move", spec.title),)
        found = [*level_mismatch(spec, Warp), *memory_mismatch(spec, self.outer, (GL, SH))]
        if spec.operands[self.inner].memory.fragment is None:
            found.append(Mismatch(f"{self.inner} memory", "FR", spec.operands[self.inner].memory.name))
        found += type_mismatch(spec, self.outer, (spec.operands[self.inner].dtype,))
        tensor = spec.operands[self.outer].tensor
        if not isinstance(tensor.layout, MatrixLayout):
            found.append(Mismatch(f"{self.outer} layout", "RowMajor or ColMajor", str(tensor.layout)))
        if tensor.swizzle is not None:
            found.append(Mismatch(f"{self.outer} layout", "one with a leading dimension, so no swizzle", str(tensor.swizzle)))
        return tuple(found)

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        return self.mismatches(spec, context.architecture) or _common_mismatch(spec, context, factors=self.inner == "dst")

    def emit(self, spec: Spec, context: Context) -> tuple[Stmt, ...]:
        outer, inner = spec.operands[self.outer], spec.operands[self.inner]
        _require_whole(spec, self, outer)
        lane_map = _map_of(inner, context)
        width = (16 if outer.dtype.bits == 8 else POINTER_BYTES) // outer.dtype.bytes
        vectors = (width, 1) if self.outer == "src" else (1, width)
        maps = dict.fromkeys(spec.operands, lane_map)
        return statements_by_lanes(self, spec, context, maps, (self.outer,), vectors=vectors)

    def matrix(self, printer: Any, statement: Exec) -> tuple[str, str, str]:
        """The pointer to the matrix, its leading dimension, and its order as `row` or `col`."""
        access = statement.operands[self.outer]
        buffer = printer.kernel.buffer(access.buffer)
        return f"&{printer.place(access)}", printer.expression(leading_dimension(buffer)), _order(buffer)


@attrs.frozen
class LoadMatrixSync(MatrixSync):
    """`Move(r,c) (GL|SH -> FR)(Warp)`, whole fragments."""

    def performs(self) -> str:
        return "Move(r,c)(GL|SH -> FR)(Warp), whole fragments, start and leading dimension provably aligned"

    def cuda(self, printer: Any, statement: Exec) -> list[str]:
        pointer, leading, order = self.matrix(printer, statement)
        target = fragment(printer, statement, 1)
        buffer = printer.kernel.buffer(statement.operands["dst"].buffer)
        layout = f", nvcuda::wmma::mem_{order}_major" if role(printer.kernel, buffer) == "accumulator" else ""
        return [f"nvcuda::wmma::load_matrix_sync({target}, {pointer}, {leading}{layout});", *_truncated(target, buffer)]


def _truncated(target: str, buffer: Buffer) -> list[str]:
    """WMMA leaves undefined what it makes of float32 that are no tf32, so the last 13 bits go, as `mma.sync` drops them."""
    if buffer.dtype != tf32:
        return []
    return [f"for (float& element : {target}.x)", "  element = __uint_as_float(__float_as_uint(element) & 0xffffe000u);"]


@attrs.frozen
class StoreMatrixSync(MatrixSync):
    """`Move(r,c) (FR -> GL|SH)(Warp)`, whole accumulators."""

    inner: ClassVar[str] = "src"
    outer: ClassVar[str] = "dst"

    def performs(self) -> str:
        return "Move(r,c)(FR -> GL|SH)(Warp), whole accumulators, start and leading dimension provably aligned"

    def cuda(self, printer: Any, statement: Exec) -> list[str]:
        pointer, leading, order = self.matrix(printer, statement)
        return [f"nvcuda::wmma::store_matrix_sync({pointer}, {fragment(printer, statement, 0)}, {leading}, nvcuda::wmma::mem_{order}_major);"]


@attrs.frozen
class FillFragment(OnFragments):
    """`Init(r,c)(FR)(Warp)`, whole fragments."""

    def performs(self) -> str:
        return "Init(r,c)(FR)(Warp), whole fragments"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not isinstance(spec, InitSpec):
            return (Mismatch("spec", "Init", spec.title),)
        found = level_mismatch(spec, Warp)
        return found if spec.dst.memory.fragment is not None else (*found, Mismatch("dst memory", "FR", spec.dst.memory.name))

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        return self.mismatches(spec, context.architecture) or _common_mismatch(spec, context)

    def emit(self, spec: Spec, context: Context) -> tuple[Stmt, ...]:
        assert isinstance(spec, InitSpec)
        return statements_by_lanes(self, spec, context, {"dst": _map_of(spec.dst, context)})

    def cuda(self, printer: Any, statement: Exec) -> list[str]:
        assert isinstance(statement.spec, InitSpec)
        value = printer.literal(statement.spec.value, statement.spec.dst.dtype)
        return [f"nvcuda::wmma::fill_fragment({fragment(printer, statement, 0)}, {value});"]


def _require_whole(spec: Spec, executable: Executable, matrix: View) -> None:
    """Refuse a tile that may overhang its matrix, or whose rows and columns are not neighbours there."""
    if matrix.bounded:
        through = "load the operand into SH first" if matrix.tensor.name in spec_inputs(spec) else "store through SH: Move.load(SRC, SH, ...)"
        raise DecompositionError(
            f"{executable.name} takes whole fragments, and the last tile of {matrix.tensor.name} may overhang",
            within=spec,
            hint=f"{through}, or make the sizes multiples of the tile",
        )
    if any(len(dim.modes) != 1 or constant(dim.modes[0].stride) != 1 for dim in matrix.dims):
        raise DecompositionError(
            f"{executable.name} takes neighbouring rows and columns, this tile of {matrix.tensor.name} is a strided one", within=spec
        )


def spec_inputs(spec: Spec) -> set[str]:
    """The tensors that a spec reads."""
    return {spec.operands[name].tensor.name for name in spec.inputs}


# ---------------------------------------------------------------------------------------------- text


def leading_dimension(buffer: Buffer) -> Expr:
    """Elements from one row (or column) of a matrix to the next."""
    return buffer.storage.dims[0 if _order(buffer) == "row" else 1][0].weight


def _order(buffer: Buffer) -> str:
    layout = buffer.tensor.layout
    return layout.order if isinstance(layout, MatrixLayout) else "col"


def fragment(printer: Any, statement: Exec, position: int) -> str:
    """The fragment that an operand of a statement is: its first register, counted in fragments."""
    access: Access = statement.accesses[position]
    buffer: Buffer = printer.kernel.buffer(access.buffer)
    return f"{buffer.name}[{printer.expression(buffer.address(access, access.elements()[0]) // statement.lane_maps[position].count)}]"


def role(kernel: Kernel, buffer: Buffer) -> str:
    """Which operand of products a fragment is: `matrix_a`, `matrix_b`, or `accumulator`."""
    found = _roles(kernel, buffer)
    if len(found) > 1:
        raise DecompositionError(f"{buffer.name} is {' and '.join(sorted(found))} of products, and a fragment is one of them only")
    return found.pop() if found else "accumulator"


def _roles(kernel: Kernel, buffer: Buffer) -> set[str]:
    kinds = {"A": "matrix_a", "B": "matrix_b", "C": "accumulator"}
    return {
        kinds[name]
        for statement, _ in execs(kernel.body)
        if isinstance(statement.instruction, MmaSync)
        for name, access in statement.operands.items()
        if access.buffer == buffer.name
    }


def fragment_type(kernel: Kernel, buffer: Buffer) -> str:
    """The type of a buffer's fragments, and how many there are: `wmma::fragment<...> name[count]`."""
    kind = role(kernel, buffer)
    memory = buffer.memory
    assert memory.fragment is not None
    shape = ", ".join(map(str, memory.fragment))
    element = next((one.cuda for one in forms_of(memory) if kind != "accumulator" and one.factor == buffer.dtype and one.cuda), buffer.dtype.cuda)
    layout = "" if kind == "accumulator" else f", nvcuda::wmma::{_loaded_order(kernel, buffer)}_major"
    name = {"matrix_a": "A", "matrix_b": "B", "accumulator": "C"}[kind]
    number = math.ceil((constant(buffer.elements) or 1) / maps_of(memory)[name].count)
    return f"nvcuda::wmma::fragment<nvcuda::wmma::{kind}, {shape}, {element}{layout}> {buffer.name}[{number}];"


def _loaded_order(kernel: Kernel, buffer: Buffer) -> str:
    """The order of the matrices that a fragment is loaded from; all the same, as a fragment has it in its type."""
    orders = {
        _order(kernel.buffer(statement.operands["src"].buffer))
        for statement, _ in execs(kernel.body)
        if isinstance(statement.instruction, LoadMatrixSync) and statement.operands["dst"].buffer == buffer.name
    }
    if len(orders) > 1:
        raise DecompositionError(f"{buffer.name} is loaded from row-major and column-major matrices", hint="two loads into two buffers")
    return orders.pop() if orders else "row"


MMA_SYNC = MmaSync("mma_sync")
LOAD_MATRIX_SYNC = LoadMatrixSync("load_matrix_sync")
FILL_FRAGMENT = FillFragment("fill_fragment")
STORE_MATRIX_SYNC = StoreMatrixSync("store_matrix_sync")

WMMA: tuple[Executable, ...] = (MMA_SYNC, LOAD_MATRIX_SYNC, FILL_FRAGMENT, STORE_MATRIX_SYNC)

__all__ = ["FILL_FRAGMENT", "FORMS", "FRAGMENTS", "LOAD_MATRIX_SYNC", "MMA_SYNC", "STORE_MATRIX_SYNC", "WMMA"]
