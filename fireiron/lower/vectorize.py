"""`vectorize`: the widest load or store that is provably contiguous and aligned, for moves of several elements."""

from __future__ import annotations

import attrs

from fireiron.errors import DecompositionError
from fireiron.expr import Const, Expr
from fireiron.ir import Access, Buffer, Exec, For, Kernel, Stmt
from fireiron.spec import MoveSpec


def vectorize(kernel: Kernel) -> Kernel:
    """The kernel with the number of elements an instruction moves, for every move."""
    return attrs.evolve(kernel, body=_list(kernel, kernel.body))


def _list(kernel: Kernel, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    result: list[Stmt] = []
    for statement in body:
        if isinstance(statement, For):
            statement = attrs.evolve(statement, body=_list(kernel, statement.body))
        elif isinstance(statement, Exec) and isinstance(statement.spec, MoveSpec) and statement.spec.level.threads == 1:
            statement = _widened(kernel, statement)
        result.append(statement)
    return tuple(result)


def _widened(kernel: Kernel, statement: Exec) -> Exec:
    source, target = statement.accesses
    buffers = [kernel.buffer(access.buffer) for access in statement.accesses]
    asked = getattr(statement.instruction, "vector_bytes", None)
    size = buffers[0].dtype.bytes
    count = len(source.elements())
    widths = [width for width in (8, 4, 2) if count % width == 0 and width * size <= 16] if buffers[0].dtype == buffers[1].dtype else []
    reasons: list[str] = []
    for width in widths:
        if asked is not None and width * size != asked:
            continue
        problems = [problem for pair in zip(buffers, (source, target), strict=True) if (problem := obstacle(*pair, width)) is not None]
        if not problems:
            return attrs.evolve(statement, vector=width)
        reasons += problems
    if asked is not None and asked != size:
        raise DecompositionError(
            f"a move of {asked} bytes was asked for, and cannot be proved legal: {reasons[0] if reasons else f'{count} elements of {size} bytes'}",
            within=statement.spec,
            at=statement.origin,
            hint=f'make sizes and leading dimensions multiples: sym("M", multiple_of={max(asked // size, 1)})',
        )
    return statement


def obstacle(buffer: Buffer, access: Access, width: int) -> str | None:
    """Why `width` neighbouring elements cannot be moved at once; None if they provably can. Registers need no proof."""
    if buffer.memory.private:
        return None
    elements = access.elements()
    for start in range(0, len(elements), width):
        first = buffer.address(access, elements[start])
        for step in range(1, width):
            if buffer.address(access, elements[start + step]) - first != Const(step):
                return f"the {width} elements of {buffer.name} are not contiguous"
        if first.factor % width:
            return f"the address {first} in {buffer.name} is not always a multiple of {width} elements"
        if buffer.tensor.copies > 1 and buffer.elements.factor % width:
            return f"copies of {buffer.name} are not a multiple of {width} elements apart"
        problem = _edge(buffer, access, elements[start : start + width], width)
        if problem is not None:
            return problem
    return None


def _edge(buffer: Buffer, access: Access, elements: tuple[tuple[int, ...], ...], width: int) -> str | None:
    """A vector lies inside the tensor as a whole or outside as a whole."""
    for dim, bound in enumerate(access.bounds):
        steps = {element[dim] for element in elements}
        if bound is None or len(steps) == 1:
            continue
        coordinate: Expr = access.base[dim] + min(steps)
        if bound.factor % width or coordinate.factor % width:
            return f"the extent {bound} of {buffer.name} is not a multiple of {width}: a vector may straddle the edge"
    return None
