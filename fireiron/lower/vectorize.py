"""`vectorize`: how many elements one load or store takes: the most that are provably contiguous and aligned.

Moves take what can be proved; instructions that want a width (ldmatrix, mma, WMMA) are refused where it cannot. Registers count
too: neighbours are taken together where they are kept side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import Access, Buffer, Exec, Kernel, Stmt, rewritten
from fireiron.ir.opaque import tile_origin
from fireiron.specs.formula import elements_of
from fireiron.values.expr import ONE, Const, Expr, Sum, constant
from fireiron.values.tensor import Storage


def vectorize(kernel: Kernel) -> Kernel:
    """The kernel with the number of elements that one load or store takes, for every operand of every statement."""
    return attrs.evolve(kernel, body=rewritten(kernel.body, lambda statement: (_decided(kernel, statement),)))


def _decided(kernel: Kernel, statement: Stmt) -> Stmt:
    if not isinstance(statement, Exec) or statement.collective or statement.instruction.tests_edges:
        return statement
    if statement.vectors:
        return _required(kernel, statement)
    if statement.spec.moves:
        return _widened(kernel, statement)
    if statement.instruction.loads_together:
        return _in_pairs(kernel, _loaded_together(kernel, statement))
    return _packed(kernel, statement) if statement.instruction.packs else statement


def _required(kernel: Kernel, statement: Exec) -> Exec:
    """The statement itself, if what its instruction takes at once is contiguous and aligned."""
    for position, access in enumerate(statement.accesses):
        buffer = kernel.buffer(access.buffer)
        if access.spread:
            _require_matrix(kernel, statement, buffer, access, statement.width(position))
            continue
        if buffer.memory.private:
            _require_packed(statement, buffer, access, statement.width(position))
            continue
        problem = obstacle(buffer, access, statement.width(position))
        if problem is not None:
            raise DecompositionError(
                f"{statement.instruction.name} takes {statement.width(position) * buffer.dtype.bytes} bytes at once: {problem}",
                within=statement.spec,
                at=access.origin,
                hint=f"a pad or a swizzle of {access.buffer} in multiples of {statement.width(position)} elements",
            )
    return statement


def _require_packed(statement: Exec, buffer: Buffer, access: Access, width: int) -> None:
    """Refuse values that an instruction wants in one register, and that are kept in several."""
    if not _beside(buffer, access, width):
        raise DecompositionError(
            f"{statement.instruction.name} requires {width} values of {access.buffer} in one register, and they are kept apart",
            within=statement.spec,
            at=access.origin,
            hint="another instruction decides how this buffer is kept: load it once for each",
        )


def _packed(kernel: Kernel, statement: Exec) -> Exec:
    """The statement with the operands of two elements that are kept side by side, which its text takes as one register."""
    widths = []
    for access in statement.accesses:
        pair = access.count == 2 and _beside(kernel.buffer(access.buffer), access, 2)
        widths.append(2 if pair else 1)
    return attrs.evolve(statement, vectors=tuple(widths))


def _loaded_together(kernel: Kernel, statement: Exec) -> Exec:
    """The statement with what one load or store takes of its operands in memory."""
    widths = []
    for access in statement.accesses:
        buffer = kernel.buffer(access.buffer)
        plain = not (buffer.memory.private or buffer.memory.by_value or buffer.memory.counts)
        widths.append(_widest(buffer, access)[0] if plain else 1)
    return attrs.evolve(statement, vectors=tuple(widths)) if max(widths) > 1 else statement


def _in_pairs(kernel: Kernel, statement: Exec) -> Exec:
    """The statement on pairs of neighbours of 16 bits, where all operands of which it takes several are kept so; else as it is."""
    made = statement.instruction.on_pairs(statement.spec, kernel.architecture)
    if made is None or max(access.count for access in statement.accesses) % 2:
        return statement
    formulas = statement.spec.definition.formulas
    taken = {one.tensor for formula in formulas for one in elements_of(formula.value, conditions=False)} | {*statement.spec.outputs}
    widths = []
    for position, (name, access) in enumerate(statement.operands.items()):
        buffer, width = kernel.buffer(access.buffer), statement.width(position)
        if name in taken and access.count > 1:
            width = 2 if buffer.memory.private and _pairs_whole(buffer, access) else width
            if width == 1:
                return statement
        widths.append(width)
    return attrs.evolve(statement, instruction=made, vectors=tuple(widths))


def _pairs_whole(buffer: Buffer, access: Access) -> bool:
    """Whether each two neighbours of an access to private storage are kept side by side, and lie inside the tensor together."""
    return _beside(buffer, access, 2) and _whole(buffer, access, 2)


def _whole(buffer: Buffer, access: Access, width: int) -> bool:
    """Whether each `width` elements of an access lie inside the tensor together, or outside."""
    elements = access.elements()
    return all(_edge(buffer, access, elements[start : start + width], width) is None for start in range(0, len(elements), width))


def _beside(buffer: Buffer, access: Access, width: int) -> bool:
    """Whether a private buffer keeps each `width` elements of an access side by side, from a multiple of `width` on."""
    if width == 1:
        return True
    # Of a fragment only its instructions know; the next copy of an array of odd length would begin in the middle of a register.
    if buffer.memory.fragment is not None or buffer.elements.high % width:
        return False
    addresses = [buffer.address(access, offset) for offset in access.elements()]
    for start in range(0, len(addresses), width):
        first = addresses[start]
        # A register of 32 bits holds the elements from an even number on, so neighbours at an odd one lie in two.
        if first.factor % width or any(addresses[start + step] - first != Const(step) for step in range(1, width)):
            return False
    return True


def _require_matrix(kernel: Kernel, statement: Exec, buffer: Buffer, access: Access, width: int) -> None:
    """Refuse a tile of a matrix that does not start at a multiple of `width` elements, or whose rows do not at 16 bytes.

    CUDA C++ Programming Guide, "Warp Matrix Functions": the pointer and `ldm` of load_matrix_sync.
    """
    leading = max(16 // buffer.dtype.bytes, 1)
    start = buffer.address(tile_origin(kernel, access), access.first)
    steps = [step for step in buffer.storage.steps if step is not None and step != ONE]
    problem = None
    if any(step.factor % leading for step in steps):
        problem = f"the leading dimension {steps[0]} of {buffer.name} is not always a multiple of {leading} elements"
    elif start.factor % width:
        problem = f"the address {start} in {buffer.name} is not always a multiple of {width} elements"
    elif buffer.tensor.copies > 1 and buffer.elements.factor % width:
        problem = f"copies of {buffer.name} are not a multiple of {width} elements apart"
    if problem is None:
        return
    hint = f'multiples: sym("M", multiple_of={width}); or load through SH first'
    if buffer.memory.of_block:
        hint = f"pad in multiples of {leading} elements; or the other storage order, .to_row_major() or .to_col_major()"
    raise DecompositionError(
        f"{statement.instruction.name} requires its matrix at a multiple of {width * buffer.dtype.bytes} bytes, "
        f"and rows (or columns) multiples of 16 bytes apart: {problem}",
        within=statement.spec,
        at=access.origin,
        hint=hint,
    )


def _widened(kernel: Kernel, statement: Exec) -> Exec:
    buffers = [kernel.buffer(access.buffer) for access in statement.accesses]
    widths, reasons = [], []
    for buffer, access in zip(buffers, statement.accesses, strict=True):
        width, reason = _widest(buffer, access)
        widths.append(width)
        reasons.append(reason)
    converts = buffers[0].dtype != buffers[1].dtype
    # Vectors are converted on their way from or to registers only.
    if converts and not any(buffer.memory.private for buffer in buffers):
        widths = [1, 1]
    count = statement.accesses[0].count
    addressable = [position for position in range(2) if not buffers[position].memory.private]
    # The wider side decides how many elements go at once; the other takes them in several pieces.
    together = max((widths[position] for position in addressable), default=1)
    for position, (buffer, access) in enumerate(zip(buffers, statement.accesses, strict=True)):
        if buffer.memory.private:
            widths[position] = together if not converts and _beside(buffer, access, together) and _whole(buffer, access, together) else 1
    _check_asked(statement, buffers, widths, reasons, count)
    return attrs.evolve(statement, vector=together, vectors=tuple(widths)) if together > 1 else statement


def _widest(buffer: Buffer, access: Access) -> tuple[int, str | None]:
    """The most elements that one instruction may take, and why it cannot take more."""
    count = access.count
    reason = f"{count} elements of {buffer.dtype.bytes} bytes"
    for width in (16, 8, 4, 2):
        if count % width or width * buffer.dtype.bytes > 16:
            continue
        problem = obstacle(buffer, access, width)
        if problem is None:
            return width, None
        reason = problem
    return 1, reason


def _check_asked(statement: Exec, buffers: list[Buffer], widths: list[int], reasons: list[str | None], count: int) -> None:
    """A width asked for must hold for the access to global memory, or, without one, for those to shared memory."""
    asked = getattr(statement.instruction, "vector_bytes", None)
    if asked is None:
        return
    judged = [i for i, buffer in enumerate(buffers) if buffer.memory.of_grid]
    judged = judged or [i for i, buffer in enumerate(buffers) if buffer.memory.of_block]
    for position in judged:
        size = buffers[position].dtype.bytes
        if widths[position] * size != asked:
            reason = reasons[position] or f"{count} elements of {size} bytes"
            raise DecompositionError(
                f"a move of {asked} bytes was asked for, and cannot be proved legal: {reason}",
                within=statement.spec,
                at=statement.origin,
                hint=f'make sizes and leading dimensions multiples: sym("M", multiple_of={max(asked // size, 1)})',
            )


def obstacle(buffer: Buffer, access: Access, width: int) -> str | None:
    """Why `width` neighbouring elements cannot be moved at once; None if they provably can. Registers need no proof."""
    if buffer.memory.private:
        return None
    if buffer.memory.of_grid and width * buffer.dtype.bytes > buffer.tensor.align:
        return f"{buffer.name} begins at a multiple of {buffer.tensor.align} bytes only"
    elements = access.elements()
    for start in range(0, len(elements), width):
        if not _contiguous(buffer, access, elements[start : start + width]):
            return f"the {width} elements of {buffer.name} are not contiguous"
        first = buffer.address(access, elements[start])
        if first.factor % width:
            return f"the address {first} in {buffer.name} is not always a multiple of {width} elements"
        # Copies stand one behind the other: an address that is aligned in the first may not be in the next.
        if buffer.tensor.copies > 1 and buffer.elements.factor % width:
            return f"copies of {buffer.name} are not a multiple of {width} elements apart"
        problem = _edge(buffer, access, elements[start : start + width], width)
        if problem is not None:
            return problem
    return None


def _contiguous(buffer: Buffer, access: Access, elements: tuple[tuple[int, ...], ...]) -> bool:
    """Whether elements lie one behind the other, wherever the first of them lies."""
    storage = access.storage or buffer.storage
    steps = _steps(storage, elements)
    if steps is not None and storage.swizzle is None:
        return steps == tuple(range(len(elements)))
    if steps == tuple(range(len(elements))) and _in_one_group(storage, access.coordinates(elements[0]), len(elements)):
        return True
    first = buffer.address(access, elements[0])
    return all(buffer.address(access, element) - first == Const(step) for step, element in enumerate(elements))


def _in_one_group(storage: Storage, first: Sequence[Expr], count: int) -> bool:
    """Whether so many neighbours lie in one group of 2**base addresses, which a swizzle moves as they are."""
    assert storage.swizzle is not None
    start, size = storage.plain.address(first), 1 << storage.swizzle.base
    inside = start.constant % size if isinstance(start, Sum) else 0
    return inside + count <= size and (start - inside).factor % size == 0


def _steps(storage: Storage, elements: tuple[tuple[int, ...], ...]) -> tuple[int, ...] | None:
    """How far elements lie from the first one, where one step along a dimension is as long everywhere; None where it is not known."""
    weights = []
    for dim, step in enumerate(storage.steps):
        if any(element[dim] != elements[0][dim] for element in elements):
            if step is None or (weight := constant(step)) is None:
                return None
            weights.append((dim, weight))
    return tuple(sum((element[dim] - elements[0][dim]) * weight for dim, weight in weights) for element in elements)


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
