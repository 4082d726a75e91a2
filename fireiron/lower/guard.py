"""`guard`: who loads and stores what, under which condition, with which width; the last pass, behind which nothing is decided.

The bounds of an access say where its tensor ends. Here they become conditions: of a statement as a whole, without which it would
write nothing, and of each of its loads and stores. Who prints, simulates, checks or predicts a kernel reads these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import attrs

from fireiron.ir import Access, Buffer, Exec, Kernel, Piece, Stmt, buffer_table, execs, rewritten, whole_pieces
from fireiron.values.expr import TRUE, Expr, all_of, conjuncts, constant


def guard(kernel: Kernel) -> Kernel:
    """The kernel with the guard and the pieces of each statement, and its registers aligned for what is taken of them at once."""
    kernel = attrs.evolve(kernel, body=rewritten(kernel.body, lambda statement: (_guarded(kernel, statement),)))
    return attrs.evolve(kernel, buffers=_aligned(kernel))


def _guarded(kernel: Kernel, statement: Stmt) -> Stmt:
    if not isinstance(statement, Exec) or statement.collective:
        return statement
    # Which element a fragment holds at which index is not specified (CUDA C++ Programming Guide, "Warp Matrix Functions").
    opaque = any(kernel.buffer(access.buffer).memory.fragment is not None for access in statement.accesses)
    widths = [1 if opaque else statement.width(position) for position in range(len(statement.accesses))]
    taken = frozenset(conjuncts(statement.active))
    condition = _without(all_of(_needed(statement, widths)), taken)
    if statement.instruction.tests_edges:
        return attrs.evolve(statement, guard=condition)
    taken |= frozenset(conjuncts(condition))
    pieces = tuple(_pieces(access, width, taken) for access, width in zip(statement.accesses, widths, strict=True))
    return attrs.evolve(statement, guard=condition, pieces=pieces)


def _needed(statement: Exec, widths: Sequence[int]) -> Iterator[Expr]:
    """The conditions without which a statement leaves everything as it is."""
    outputs = [(access, width) for access, width in zip(statement.accesses, widths, strict=True) if access.write]
    # Only what all outputs share may leave the statement undone: elsewhere a piece that lies inside is still to be written.
    yield from _common(access.inside(offset) for access, width in outputs for offset in _tested(statement, access, width))
    if _adds(statement) and all(access.count == 1 for access in statement.accesses):
        for access in statement.accesses:
            yield access.inside(access.first)


def _tested(statement: Exec, access: Access, width: int) -> tuple[tuple[int, ...], ...]:
    """The elements that are tested: the first of each vector; of a tile whose text tests the others the first, as they lie further out."""
    return access.elements()[:1] if statement.instruction.tests_edges else access.elements()[::width]


def _adds(statement: Exec) -> bool:
    """Whether all that a statement of single elements does is to add what is zero where an input lies outside."""
    return statement.atomic or (statement.spec.contracts and statement.accumulate == TRUE)


def _common(conditions: Iterable[Expr]) -> list[Expr]:
    """The parts that all conditions share, in the order of the first; none where there is no condition: nothing is written then."""
    first, *others = [conjuncts(condition) for condition in conditions] or [()]
    return [part for part in first if all(part in other for other in others)]


def _without(condition: Expr, taken: frozenset[Expr]) -> Expr:
    return all_of(part for part in conjuncts(condition) if part not in taken)


def _pieces(access: Access, width: int, taken: frozenset[Expr]) -> tuple[Piece, ...]:
    """All elements of an access, `width` at once; a vector lies inside as its first element does (see `vectorize`)."""
    elements = access.elements()
    if all(bound is None for bound in access.bounds):
        return whole_pieces(len(elements), width)
    starts = range(0, len(elements), width)
    return tuple(Piece(start, width, _without(access.inside(elements[start]), taken)) for start in starts)


# ---------------------------------------------------------------------------------------------- registers

LARGEST = 16
"""Bytes of the widest load or store."""


def _aligned(kernel: Kernel) -> tuple[Buffer, ...]:
    """The buffers, the arrays of a thread with the alignment that loads and stores of several elements want."""
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
        attrs.evolve(one, tensor=attrs.evolve(one.tensor, align=needed[one.name])) if one.name in needed else one for one in kernel.buffers
    )


def _most(buffer: Buffer) -> int:
    """The alignment of an array of which a micro-kernel's text may take several elements at once: as much as its size allows."""
    size = (constant(buffer.total) or 1) * buffer.dtype.bytes
    return min(LARGEST, size & -size)
