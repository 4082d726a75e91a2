"""`vectorize`: determine how many elements one load or store moves: the most that are provably contiguous and aligned.

Moves use the largest width that can be proved. Instructions that require a width (ldmatrix, mma, WMMA) are refused if it cannot be proved.
In registers, adjacent elements are accessed together if they are stored contiguously.
"""

from __future__ import annotations

from collections.abc import Sequence

from fireiron.errors import DecompositionError
from fireiron.frozen import evolve
from fireiron.ir import Access, Buffer, Exec, Kernel, Stmt, rewritten
from fireiron.ir.opaque import tile_origin
from fireiron.specs.formula import elements_of
from fireiron.values.expr import ONE, Const, Expr, Sum, constant
from fireiron.values.tensor import Storage


def vectorize(kernel: Kernel) -> Kernel:
    """The kernel with the number of elements per load or store, for every operand of every statement."""
    return evolve(kernel, body=rewritten(kernel.body, lambda statement: (_decided(kernel, statement),)))


def _decided(kernel: Kernel, statement: Stmt) -> Stmt:
    if not isinstance(statement, Exec) or statement.collective or statement.instruction.tests_edges:
        return statement
    if statement.vectors:
        return _required(kernel, statement)
    if statement.spec.moves:
        return _widened(kernel, statement)
    if statement.atomic:
        return _added_together(kernel, statement)
    if statement.instruction.loads_together:
        return _in_pairs(kernel, _loaded_together(kernel, statement))
    return _packed(kernel, statement) if statement.instruction.packs else statement


def _required(kernel: Kernel, statement: Exec) -> Exec:
    """The statement, if the elements that its instruction accesses at once are contiguous and aligned."""
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
                f"{statement.instruction.name} accesses {statement.width(position) * buffer.dtype.bytes} bytes at once: {problem}",
                within=statement.spec,
                at=access.origin,
                hint=f"a pad or a swizzle of {access.buffer} in multiples of {statement.width(position)} elements",
            )
    return statement


def _require_packed(statement: Exec, buffer: Buffer, access: Access, width: int) -> None:
    """Refuse values that an instruction requires in one register and that are stored in several."""
    if not _contiguous_in_registers(buffer, access, width):
        raise DecompositionError(
            f"{statement.instruction.name} requires {width} values of {access.buffer} in one register, but they are in several",
            within=statement.spec,
            at=access.origin,
            hint="another instruction determines the registers of this buffer: load it separately for each",
        )


def _packed(kernel: Kernel, statement: Exec) -> Exec:
    """The statement with pairs of adjacent elements that its text uses as one register."""
    widths = []
    for access in statement.accesses:
        pair = access.count == 2 and _contiguous_in_registers(kernel.buffer(access.buffer), access, 2)
        widths.append(2 if pair else 1)
    return evolve(statement, vectors=tuple(widths))


def _loaded_together(kernel: Kernel, statement: Exec) -> Exec:
    """The statement with the number of elements per load or store of its operands in memory."""
    widths = []
    for access in statement.accesses:
        buffer = kernel.buffer(access.buffer)
        plain = not (buffer.memory.private or buffer.memory.by_value or buffer.memory.is_coordinate)
        widths.append(_widest(buffer, access)[0] if plain else 1)
    return evolve(statement, vectors=tuple(widths)) if max(widths) > 1 else statement


def _added_together(kernel: Kernel, statement: Exec) -> Exec:
    """The atomic statement with the number of adjacent elements that one instruction combines in memory."""
    _, target = statement.accesses
    buffer = kernel.buffer(target.buffer)
    widths = statement.instruction.atomic_widths(statement.spec, kernel.architecture)
    width = next((width for width in widths if not target.count % width and obstacle(buffer, target, width) is None), 1)
    return evolve(statement, vectors=(1, width)) if width > 1 else statement


def _in_pairs(kernel: Kernel, statement: Exec) -> Exec:
    """The statement on pairs of adjacent 16-bit elements, if all its vector operands are stored so; else unchanged."""
    instruction = statement.instruction.on_pairs(statement.spec, kernel.architecture)
    if instruction is None or max(access.count for access in statement.accesses) % 2:
        return statement
    formulas = statement.spec.definition.formulas
    used = {element.tensor for formula in formulas for element in elements_of(formula.value, conditions=False)} | {*statement.spec.outputs}
    words = {name for pair in instruction.words(statement.spec) for name in pair}
    elsewhere, repeats = words | instruction.singles(statement.spec), instruction.repeats(statement.spec)
    if not all(_in_one_word(kernel, statement, *pair) for pair in instruction.words(statement.spec)):
        return statement
    widths = []
    for position, (name, access) in enumerate(statement.operands.items()):
        buffer, width = kernel.buffer(access.buffer), statement.width(position)
        if name in used - elsewhere and access.count > 1 and not (name in repeats and _repeated(buffer, access)):
            if buffer.dtype.kind == "float" and buffer.dtype.bytes == 1:
                return statement
            width = 2 if buffer.memory.private and buffer.dtype.bytes == 2 and _pairs_whole(buffer, access) else width
            if width == 1:
                return statement
        widths.append(width)
    return evolve(statement, instruction=instruction, vectors=tuple(widths))


def _in_one_word(kernel: Kernel, statement: Exec, word: str, coordinate: str) -> bool:
    """Whether pairs of adjacent elements have the same word, and coordinates of which the first one is even."""
    places, words = statement.operands[coordinate], statement.operands[word]
    buffer = kernel.buffer(places.buffer)
    numbers = [buffer.address(places, element) for element in places.elements()]
    array = kernel.buffer(words.buffer)
    addresses = [array.address(words, element) for element in words.elements()]
    if len(numbers) % 2 or len(addresses) not in (1, len(numbers)) or not _whole(array, words, 2 if len(addresses) > 1 else 1):
        return False
    pairs = zip(numbers[::2], numbers[1::2], strict=True)
    same = all(first == second for first, second in zip(addresses[::2], addresses[1::2], strict=False))
    return same and all(not first.factor % 2 and second - first == ONE for first, second in pairs)


def _repeated(buffer: Buffer, access: Access) -> bool:
    """Whether both elements of each pair are one element, and in bounds together."""
    addresses = [buffer.address(access, element) for element in access.elements()]
    same = all(first == second for first, second in zip(addresses[::2], addresses[1::2], strict=True))
    return same and _whole(buffer, access, 2)


def _pairs_whole(buffer: Buffer, access: Access) -> bool:
    """Whether pairs of adjacent elements in private storage are contiguous, and in bounds together."""
    return _contiguous_in_registers(buffer, access, 2) and _whole(buffer, access, 2)


def _whole(buffer: Buffer, access: Access, width: int) -> bool:
    """Whether groups of `width` elements of an access are in bounds, or out of bounds, together."""
    elements = access.elements()
    return all(_edge(buffer, access, elements[start : start + width], width) is None for start in range(0, len(elements), width))


def _contiguous_in_registers(buffer: Buffer, access: Access, width: int) -> bool:
    """Whether a private buffer stores groups of `width` elements of an access contiguously, from multiples of `width` on."""
    if width == 1:
        return True
    # Only fragment instructions know fragment layouts. In an array of odd length the next copy would start in the middle of a register.
    if buffer.memory.fragment is not None or buffer.elements.high % width:
        return False
    addresses = [buffer.address(access, offset) for offset in access.elements()]
    for start in range(0, len(addresses), width):
        first = addresses[start]
        # A 32-bit register contains the elements from an even number on, so adjacent elements from an odd number on are in two registers.
        if first.factor % width or any(addresses[start + step] - first != Const(step) for step in range(1, width)):
            return False
    return True


def _require_matrix(kernel: Kernel, statement: Exec, buffer: Buffer, access: Access, width: int) -> None:
    """Refuse a tile of a matrix that does not start at a multiple of `width` elements, or whose rows do not start at multiples of 16 bytes.

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


def _in_order_of_memory(kernel: Kernel, statement: Exec) -> Exec:
    """The statement with its elements in the order of memory, if 8-bit elements for 16-bit registers are then contiguous in memory.

    The registers of a matrix instruction have pairs along k, whatever dimension is contiguous in memory.
    """
    source = statement.accesses[0]
    buffers = [kernel.buffer(access.buffer) for access in statement.accesses]
    sizes, contiguous = [buffer.dtype.bytes for buffer in buffers], [step == ONE for step in buffers[0].storage.steps]
    if sizes != [1, 2] or buffers[0].memory.private or not buffers[1].memory.private or not any(contiguous):
        return statement
    width, _ = _widest(buffers[0], source)
    elements, along = source.elements(), contiguous.index(True)
    order = sorted(
        range(len(elements)), key=lambda number: (*(e for dim, e in enumerate(elements[number]) if dim != along), elements[number][along])
    )
    accesses = tuple(evolve(access, points=tuple(access.elements()[number] for number in order)) for access in statement.accesses)
    wider, _ = _widest(buffers[0], accesses[0])
    return evolve(statement, accesses=accesses) if wider > max(width, 2) else statement


def _widened(kernel: Kernel, statement: Exec) -> Exec:
    statement = _in_order_of_memory(kernel, statement)
    buffers = [kernel.buffer(access.buffer) for access in statement.accesses]
    widths, reasons = [], []
    for buffer, access in zip(buffers, statement.accesses, strict=True):
        width, reason = _widest(buffer, access)
        widths.append(width)
        reasons.append(reason)
    converts = buffers[0].dtype != buffers[1].dtype
    # Vectors are converted only between memory and registers.
    if converts and not any(buffer.memory.private for buffer in buffers):
        widths = [1, 1]
    count = statement.accesses[0].count
    addressable = [position for position in range(2) if not buffers[position].memory.private]
    # The wider side determines the number of elements; the other side moves them in several pieces.
    together = max((widths[position] for position in addressable), default=1)
    for position, (buffer, access) in enumerate(zip(buffers, statement.accesses, strict=True)):
        if buffer.memory.private:
            widths[position] = (
                together if not converts and _contiguous_in_registers(buffer, access, together) and _whole(buffer, access, together) else 1
            )
    _check_requested(statement, buffers, widths, reasons, count)
    return evolve(statement, vector=together, vectors=tuple(widths)) if together > 1 else statement


def _widest(buffer: Buffer, access: Access) -> tuple[int, str | None]:
    """The largest number of elements that one instruction may move, and why it cannot move more."""
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


def _check_requested(statement: Exec, buffers: list[Buffer], widths: list[int], reasons: list[str | None], count: int) -> None:
    """Refuse a requested width unless accesses to global memory have it, or, without such accesses, those to shared memory."""
    requested = getattr(statement.instruction, "vector_bytes", None)
    if requested is None:
        return
    checked = [i for i, buffer in enumerate(buffers) if buffer.memory.of_grid]
    checked = checked or [i for i, buffer in enumerate(buffers) if buffer.memory.of_block]
    for position in checked:
        size = buffers[position].dtype.bytes
        if widths[position] * size != requested:
            reason = reasons[position] or f"{count} elements of {size} bytes"
            raise DecompositionError(
                f"a move of {requested} bytes was requested, but cannot be proved legal: {reason}",
                within=statement.spec,
                at=statement.origin,
                hint=f'make sizes and leading dimensions multiples: sym("M", multiple_of={max(requested // size, 1)})',
            )


def obstacle(buffer: Buffer, access: Access, width: int) -> str | None:
    """Why `width` adjacent elements cannot be moved at once; None if they provably can. Registers need no proof."""
    if buffer.memory.private:
        return None
    if buffer.memory.of_grid and width * buffer.dtype.bytes > buffer.tensor.align:
        return f"{buffer.name} is only aligned to {buffer.tensor.align} bytes"
    elements = access.elements()
    for start in range(0, len(elements), width):
        if not _contiguous(buffer, access, elements[start : start + width]):
            return f"the {width} elements of {buffer.name} are not contiguous"
        first = buffer.address(access, elements[start])
        if first.factor % width:
            return f"the address {first} in {buffer.name} is not always a multiple of {width} elements"
        # An address that is aligned in the first copy may not be aligned in the next one.
        if buffer.tensor.copies > 1 and buffer.elements.factor % width:
            return f"copies of {buffer.name} are not a multiple of {width} elements apart"
        problem = _edge(buffer, access, elements[start : start + width], width)
        if problem is not None:
            return problem
    return None


def _contiguous(buffer: Buffer, access: Access, elements: tuple[tuple[int, ...], ...]) -> bool:
    """Whether elements are contiguous, regardless of the address of the first one."""
    storage = access.storage or buffer.storage
    steps = _steps(storage, elements)
    if steps is not None and storage.swizzle is None:
        return steps == tuple(range(len(elements)))
    if steps == tuple(range(len(elements))) and _in_one_group(storage, access.coordinates(elements[0]), len(elements)):
        return True
    first = buffer.address(access, elements[0])
    return all(buffer.address(access, element) - first == Const(step) for step, element in enumerate(elements))


def _in_one_group(storage: Storage, first: Sequence[Expr], count: int) -> bool:
    """Whether `count` adjacent elements are in one group of 2**base addresses, which a swizzle keeps contiguous."""
    assert storage.swizzle is not None
    start, size = storage.plain.address(first), 1 << storage.swizzle.base
    inside = start.constant % size if isinstance(start, Sum) else 0
    return inside + count <= size and (start - inside).factor % size == 0


def _steps(storage: Storage, elements: tuple[tuple[int, ...], ...]) -> tuple[int, ...] | None:
    """The offsets of elements from the first one, if steps along each dimension have constant strides; None if unknown."""
    weights = []
    for dim, step in enumerate(storage.steps):
        if any(element[dim] != elements[0][dim] for element in elements):
            if step is None or (weight := constant(step)) is None:
                return None
            weights.append((dim, weight))
    return tuple(sum((element[dim] - elements[0][dim]) * weight for dim, weight in weights) for element in elements)


def _edge(buffer: Buffer, access: Access, elements: tuple[tuple[int, ...], ...], width: int) -> str | None:
    """The reason why a vector may be partly in bounds; None if it never is."""
    for dim, bound in enumerate(access.bounds):
        steps = {element[dim] for element in elements}
        if bound is None or len(steps) == 1:
            continue
        coordinate: Expr = access.base[dim] + min(steps)
        if bound.factor % width or coordinate.factor % width:
            return f"the extent {bound} of {buffer.name} is not a multiple of {width}: a vector may straddle the edge"
    if any(not window.same(elements, access.base) for window in buffer.storage.windows):
        return f"the affine index of {buffer.name} may leave the array inside of a vector"
    return None
