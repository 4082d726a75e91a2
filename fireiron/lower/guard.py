"""`guard`: determine the condition and the width of each load and store.

The bounds of an access specify where its tensor ends. Here they become conditions. If the condition of a statement is false, the statement
writes nothing. Each of its loads and stores has another condition. The printer, the simulator, the checks and the cost model use these
conditions, and decide nothing about accesses themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fireiron.errors import DecompositionError
from fireiron.frozen import evolve
from fireiron.ir import Access, Buffer, Exec, Kernel, Piece, Stmt, buffer_table, execs, rewritten, whole_pieces
from fireiron.ir.versions import without
from fireiron.specs.fused import fused
from fireiron.values.affine import AffineIndex
from fireiron.values.expr import TRUE, Expr, all_of, conjuncts, constant, equal
from fireiron.values.indirect import DimIndex
from fireiron.values.tensor import Tensor


def guard(kernel: Kernel) -> Kernel:
    """The kernel with the guard and the pieces of each statement, and with its arrays in registers aligned for vector accesses."""
    kernel = evolve(kernel, body=rewritten(kernel.body, lambda statement: (_guarded(kernel, statement),)))
    return evolve(kernel, buffers=_aligned(kernel))


def _guarded(kernel: Kernel, statement: Stmt) -> Stmt:
    if not isinstance(statement, Exec):
        return statement
    if statement.collective or statement.instruction.tests_edges:
        _require_direct(kernel, statement)
    if statement.collective:
        return statement
    # CUDA does not specify which element a fragment index refers to (CUDA C++ Programming Guide, "Warp Matrix Functions").
    opaque = any(kernel.buffer(access.buffer).memory.fragment is not None for access in statement.accesses)
    widths = [1 if opaque else statement.width(position) for position in range(len(statement.accesses))]
    common = frozenset(conjuncts(statement.active))
    condition = without(all_of(_needed(kernel, statement, widths)), common)
    if statement.instruction.tests_edges:
        return evolve(statement, guard=condition)
    common |= frozenset(conjuncts(condition))
    pieces = tuple(
        _pieces(kernel, access, width, common, statement.spec.outside(name))
        for (name, access), width in zip(statement.operands.items(), widths, strict=True)
    )
    return evolve(statement, guard=condition, pieces=pieces)


def _require_direct(kernel: Kernel, statement: Exec) -> None:
    """Refuse an instruction that tests no single element if it writes elements by numbers that may not be indices."""
    for access in statement.accesses:
        tables = kernel.buffer(access.buffer).storage.tables if access.write else ()
        if kernel.buffer(access.buffer).storage.windows and statement.tensor_map is None:
            raise _refused_window(statement, access)
        if statement.tensor_map is not None and (dim := _overhanging(kernel, access)):
            raise _refused_box(statement, access, dim)
        if tables:
            raise DecompositionError(
                f"{statement.instruction.name} writes {access.buffer}, whose elements have numbers in {tables[0].array}",
                within=statement.spec, at=access.origin, legal="stores of single elements or vectors by each thread",
                hint="Move.done(), or Move.coalesced_copy(8).done() for the step that writes it",
            )  # fmt: skip


def _refused_window(statement: Exec, access: Access) -> DecompositionError:
    """The refusal of an instruction that tests no single element, and reads a tensor some of whose elements are not in its array."""
    return DecompositionError(
        f"{statement.instruction.name} reads {access.buffer}, whose affine index may leave the array", within=statement.spec,
        at=access.origin, legal="loads of single elements or vectors by each thread",
        hint=f'load("{access.buffer}", SH, Move.done()) before this step; or an array with padding, and no index outside of it',
    )  # fmt: skip


def _overhanging(kernel: Kernel, access: Access) -> str | None:
    """A dimension of an affine index that a step reduces and along which a tile may extend past the end; None if there is none.

    A shifted box has the elements of the array there, not zeros. Past the last pixel of all images, it has zeros.
    """
    tensor = kernel.buffer(access.buffer).tensor
    definition, through = fused(kernel.spec), tensor.through
    stored = None if definition is None else definition.array_of(access.buffer)
    if definition is None or stored is None or through is None:
        return None
    dims = {dim for index in through.index if isinstance(index, AffineIndex) for dim in index.dims}
    names = (stored.dims[dim] for dim in sorted(dims) if access.bounds[dim] is not None and not _ends_with_array(tensor, dim))
    return next((name for name in names if name in definition.combined), None)


def _ends_with_array(tensor: Tensor, dim: int) -> bool:
    """Whether coordinates past the end of a dimension are outside of the array, because their quotient, the image, is."""
    assert tensor.through is not None
    return any(
        isinstance(index, DimIndex) and index.dim == dim and not index.modulus and equal(size * index.divisor, tensor.shape[dim]) == TRUE
        for index, size in zip(tensor.through.index, tensor.through.array.shape, strict=True)
    )


def _refused_box(statement: Exec, access: Access, dim: str) -> DecompositionError:
    """The refusal of a box that may extend past the end of a dimension that a step reduces."""
    return DecompositionError(
        f"{statement.instruction.name} loads {access.buffer} past the end of {dim}, where its affine index may be in the array, and a step "
        f"combines elements along {dim}", within=statement.spec, at=access.origin, legal=f"tiles that divide {dim}",
        hint=f'load("{access.buffer}", SH, Move.coalesced_copy(8).done()), or another tile of {dim}',
    )  # fmt: skip


def _inside(kernel: Kernel, access: Access, offset: tuple[int, ...]) -> Expr:
    """The condition that an element is accessed: it is in bounds and in its array, and the number by which it is written is an index."""
    storage = kernel.buffer(access.buffer).storage
    inside, coordinates = access.inside(offset), access.coordinates(offset)
    windows = [window.inside(coordinates) for window in storage.windows]
    tables = [table.inside(coordinates) for table in storage.tables] if access.write else []
    return all_of((inside, *tables, *windows)) if tables or windows else inside


def _needed(kernel: Kernel, statement: Exec, widths: Sequence[int]) -> Iterator[Expr]:
    """The conditions of which each must be true for a statement to have an effect."""
    outputs = [(access, width) for access, width in zip(statement.accesses, widths, strict=True) if access.write]
    # Only conditions common to all outputs can skip the statement: any other in-bounds piece must still be written.
    yield from _common(_inside(kernel, access, offset) for access, width in outputs for offset in _tested(statement, access, width))
    if _adds(statement) and all(access.count == 1 for access in statement.accesses):
        for access in statement.accesses:
            yield access.inside(access.first)


def _tested(statement: Exec, access: Access, width: int) -> tuple[tuple[int, ...], ...]:
    """The tested elements: the first one of each vector.

    If the text of an instruction tests its elements, only the first one of the tile is tested, because it has the smallest coordinates.
    """
    return access.elements()[:1] if statement.instruction.tests_edges else access.elements()[::width]


def _adds(statement: Exec) -> bool:
    """Whether an elementwise statement only adds values that are zero where an input is out of bounds."""
    return statement.atomic or (statement.spec.contracts and statement.accumulate == TRUE)


def _common(conditions: Iterable[Expr]) -> list[Expr]:
    """The parts common to all conditions, in the order of the first one; none without conditions, since nothing is written then."""
    first, *others = [conjuncts(condition) for condition in conditions] or [()]
    return [part for part in first if all(part in other for other in others)]


def _pieces(kernel: Kernel, access: Access, width: int, common: frozenset[Expr], neutral: float) -> tuple[Piece, ...]:
    """All elements of an access in pieces of `width`; a vector is in bounds if its first element is (see `vectorize`).

    `neutral` is the value of elements out of bounds.
    """
    elements = access.elements()
    storage = kernel.buffer(access.buffer).storage
    looks_up = storage.windows or (access.write and storage.tables)
    if all(bound is None for bound in access.bounds) and not looks_up:
        return whole_pieces(len(elements), width)
    pieces = tuple(
        Piece(start, width, without(_inside(kernel, access, elements[start]), common)) for start in range(0, len(elements), width)
    )
    if not storage.windows or storage.outside == neutral:
        return pieces
    within = (without(access.inside(elements[piece.first]), common) for piece in pieces)
    return tuple(evolve(piece, outside=storage.outside, bounds=bounds) for piece, bounds in zip(pieces, within, strict=True))


# ---------------------------------------------------------------------------------------------- registers

LARGEST = 16
"""Bytes of the widest load or store."""


def _aligned(kernel: Kernel) -> tuple[Buffer, ...]:
    """The buffers, with a thread's arrays aligned for loads and stores of several elements."""
    table = buffer_table(kernel)
    needed = {buffer.name: buffer.dtype.bytes for buffer in kernel.buffers if buffer.memory.private}
    for statement, _ in execs(kernel.body):
        free = statement.collective or statement.instruction.tests_edges
        for position, access in enumerate(statement.accesses):
            if access.buffer in needed:
                buffer = table[access.buffer]
                size = _most(buffer) if free else statement.width(position) * buffer.dtype.bytes
                needed[access.buffer] = max(needed[access.buffer], size)
    return tuple(
        evolve(buffer, tensor=evolve(buffer.tensor, align=needed[buffer.name])) if buffer.name in needed else buffer
        for buffer in kernel.buffers
    )


def _most(buffer: Buffer) -> int:
    """The alignment of an array that the text of a micro-kernel may access in vectors: as large as its size allows."""
    size = (constant(buffer.total) or 1) * buffer.dtype.bytes
    return min(LARGEST, size & -size)
