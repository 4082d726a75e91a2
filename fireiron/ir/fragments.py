"""WMMA fragments: the supported MMAs, the lane map that the IR assumes for a fragment, and its type in CUDA C++.

CUDA does not specify which lane owns which element of a fragment (CUDA C++ Programming Guide, "Warp Matrix Functions"). The lane map below
is internal and assigns each lane its share in some order. Only the instructions of `executable/wmma.py` access fragments, and they access
them as a whole.
"""

from __future__ import annotations

import functools

from fireiron.errors import DecompositionError
from fireiron.frozen import frozen
from fireiron.ir import Buffer, Kernel, execs
from fireiron.ir.lanes import LaneMap
from fireiron.values.expr import constant
from fireiron.values.machine import DType, Memory, bfloat16, float16, float32, float64, int8, int32, tf32
from fireiron.values.tensor import View


@frozen
class Form:
    """A row of the table "Element Types and Matrix Sizes": the shapes (m, n, k), the type of A and B, and the types of C.

    `cuda` is the type of A and B in a fragment, if it differs from the type in memory.
    """

    shapes: tuple[tuple[int, int, int], ...]
    operand: DType
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
    """The MMAs that fragments of a memory support."""
    return tuple(form for form in FORMS if memory.fragment in form.shapes)


@functools.cache
def fragment_map(rows: int, columns: int) -> LaneMap:
    """The internal map of a fragment: column by column, element `e` is value `e // 32` of lane `e % 32`."""
    across, count = 32 // rows, rows * columns // 32
    lanes = ((rows, 0, 1), (across, 1, 1)) if across > 1 else ((rows, 0, 1),)
    return LaneMap.along((rows, columns), lanes, ((count, 1, across),) if count > 1 else ())


def maps_of(memory: Memory) -> dict[str, LaneMap]:
    """The maps of an MMA's fragments by operand."""
    assert memory.fragment is not None
    m, n, k = memory.fragment
    return {"A": fragment_map(m, k), "B": fragment_map(k, n), "C": fragment_map(m, n)}


# ---------------------------------------------------------------------------------------------- text


def role(kernel: Kernel, buffer: Buffer) -> str:
    """The role of a fragment in MMAs: `matrix_a`, `matrix_b`, or `accumulator`; a `DecompositionError` if it has several roles."""
    kinds = _roles(kernel, buffer)
    if len(kinds) > 1:
        raise DecompositionError(f"{buffer.name} is {' and '.join(sorted(kinds))} of MMAs, but a fragment can be only one of them")
    return kinds.pop() if kinds else "accumulator"


def _roles(kernel: Kernel, buffer: Buffer) -> set[str]:
    kinds = {"A": "matrix_a", "B": "matrix_b", "C": "accumulator"}
    return {
        kinds[name]
        for statement, _ in execs(kernel.body)
        if statement.spec.multiplies
        for name, access in statement.operands.items()
        if access.buffer == buffer.name
    }


def _is_transposed(kernel: Kernel, buffer: Buffer) -> bool:
    """Whether MMAs use a fragment transposed, that is, its tensor has the columns first."""
    seen = {
        axes is not None and axes != tuple(sorted(axes))
        for statement, _ in execs(kernel.body)
        if statement.spec.multiplies
        for name, access in statement.operands.items()
        if access.buffer == buffer.name
        for axes in (statement.spec.operands[name].axes,)
    }
    if len(seen) > 1:
        raise DecompositionError(f"MMAs use {buffer.name} both plain and transposed", hint="load the matrix into two buffers")
    return bool(seen and seen.pop())


def matrix_order(kernel: Kernel, buffer: Buffer, matrix: View) -> str:
    """The order, `row` or `col`, of a matrix that is copied to or from a fragment, as the MMAs that use the fragment see it."""
    along = (matrix.storage_order[0] == 1) != _is_transposed(kernel, buffer)
    return "row" if along else "col"


def fragment_type(kernel: Kernel, buffer: Buffer) -> str:
    """The declaration of a buffer's fragments: `wmma::fragment<...> name[count]`."""
    kind = role(kernel, buffer)
    memory = buffer.memory
    assert memory.fragment is not None
    shape = ", ".join(map(str, memory.fragment))
    operand_types = {form.operand: form.cuda or form.operand.cuda for form in forms_of(memory)}
    element = buffer.dtype.cuda if kind == "accumulator" else operand_types.get(buffer.dtype, buffer.dtype.cuda)
    layout = "" if kind == "accumulator" else f", nvcuda::wmma::{_loaded_order(kernel, buffer)}_major"
    name = {"matrix_a": "A", "matrix_b": "B", "accumulator": "C"}[kind]
    number = -(-(constant(buffer.total) or 1) // maps_of(memory)[name].count)
    return f"nvcuda::wmma::fragment<nvcuda::wmma::{kind}, {shape}, {element}{layout}> {buffer.name}[{number}];"


def _loaded_order(kernel: Kernel, buffer: Buffer) -> str:
    """The order, as MMAs see it, of the matrices that a fragment is loaded from. All have the same order, which is part of the type."""
    orders = {
        matrix_order(kernel, buffer, statement.spec.src)
        for statement, _ in execs(kernel.body)
        if statement.spec.copies and statement.operands["dst"].buffer == buffer.name
    }
    if len(orders) > 1:
        raise DecompositionError(f"{buffer.name} is loaded from row-major and column-major matrices", hint="load them into two buffers")
    return (orders.pop() or "row") if orders else "row"
