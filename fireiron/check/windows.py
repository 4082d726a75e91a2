"""Affine indices: each access to an element that may be outside of its array is tested, and a false test reads the stated value.

The storages, conditions and values in the final IR are compared with the indices of the spec's operands. This check computes which indices
may leave an array from the corners of the tensor, not by the function that the passes use.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator

from fireiron.check.access_trace import AccessTrace, Use
from fireiron.check.finding import Finding, described
from fireiron.ir import Buffer, Kernel, Piece
from fireiron.specs.fused import fused
from fireiron.values.affine import AffineIndex, DigitTerm
from fireiron.values.expr import FALSE, TRUE, ZERO, Expr, all_of, as_expr, conjuncts, constant, equal, less, mod
from fireiron.values.indirect import DimIndex
from fireiron.values.tensor import Tensor, Through


def wrong_windows(access_trace: AccessTrace) -> Iterator[Finding]:
    """An error for each storage that differs from the affine indices of its operand, and for each access without the test of an index."""
    kernel = access_trace.kernel
    for buffer in kernel.buffers:
        if _is_affine(buffer) and (message := _problem(kernel, buffer)) is not None:
            yield Finding("bounds", "error", buffer.name, f"{buffer.name}: {message}", buffer.tensor.origin)
    for use in access_trace.uses:
        tensor = _tensor(kernel, kernel.buffer(use.access.buffer))
        message = None if tensor is None else _untested(kernel, use, tensor)
        if message is not None:
            yield Finding("bounds", "error", use.access.buffer, message, use.access.origin, described(use.statement, use.access))


def _is_affine(buffer: Buffer) -> bool:
    through = buffer.tensor.through
    storage = buffer.storage
    return bool(storage.windows or storage.computed) or (through is not None and any(_affine_indices(through)))


def _affine_indices(through: Through) -> Iterator[tuple[AffineIndex, Expr, Expr | None]]:
    """The affine indices of an array, each with the extent and the stride of its dimension."""
    for index, size, step in zip(through.index, through.array.shape, through.array.storage().steps, strict=True):
        if isinstance(index, AffineIndex):
            yield index, size, step


def _problem(kernel: Kernel, buffer: Buffer) -> str | None:
    """The difference between a storage and the indices of the operand; None if there is none."""
    view, tensor, storage = kernel.spec.operands.get(buffer.name), buffer.tensor, buffer.storage
    if tensor.through is None or view is None or view.tensor != tensor:
        return "its indices are not those of the spec's operand"
    wanted = tensor.through.storage(tensor.shape)
    if any(getattr(storage, name) != getattr(wanted, name) for name in ("layout", "offset", "reversed")):
        places = [f"{one.layout} from {one.offset} on" for one in (storage, wanted)]
        return f"its addresses are {places[0]}, and its indices give {places[1]}"
    computed = tuple(_computed(tensor))
    if tuple((part.index, part.extent, part.stride, part.mode) for part in storage.computed) != computed:
        return f"the parts of its addresses that are no layout are {storage.computed}, and its indices give {computed}"
    if storage.outside != tensor.through.value:
        return f"its elements outside of the array are {storage.outside}, and the definition states {tensor.through.value}"
    return "it is written, and has an affine index" if buffer.written else None


def _computed(tensor: Tensor) -> Iterator[tuple[AffineIndex, Expr, Expr, str]]:
    """The parts of addresses that are no layout of coordinates: exact quotients, and indices that a padding mode may move."""
    assert tensor.through is not None
    mode = tensor.through.mode
    for index, size, step in _affine_indices(tensor.through):
        falls = any(term.factor < 0 for term in index.digits)
        if index.divisor > 1 or falls or (mode and any(_leaves(tensor, index, size))):
            yield index, size, as_expr(0 if step is None else step), mode


def _leaves(tensor: Tensor, index: AffineIndex, size: Expr) -> tuple[bool, bool]:
    """Whether an index may be below zero, and whether it may be past the end: at some corner of the tensor."""
    ends = [(ZERO, (tensor.shape[dim] - 1) * factor) for dim, factor in index.terms]
    ends += [(ZERO, _largest_digit(tensor.shape[term.dim], term) * term.factor) for term in index.digits]
    corners = [sum(corner, start=index.offset) for corner in itertools.product(*ends)]
    return any(one.low < 0 for one in corners), any((size * index.divisor - one).low < 1 for one in corners)


def _largest_digit(size: Expr, term: DigitTerm) -> Expr:
    """The largest digit of the coordinates of a dimension, at most the modulus minus 1."""
    quotient = (size - 1) // term.divisor
    return as_expr(term.modulus - 1) if term.modulus and quotient.high >= term.modulus else quotient


def _tensor(kernel: Kernel, buffer: Buffer) -> Tensor | None:
    """The spec's operand, whatever the storage in the IR states; None if it has no affine index that may leave its array."""
    view = kernel.spec.operands.get(buffer.name)
    tensor = buffer.tensor if view is None else view.tensor
    return None if tensor.through is None or tensor.through.mode or not any(_affine_indices(tensor.through)) else tensor


def _untested(kernel: Kernel, use: Use, tensor: Tensor) -> str | None:
    """The first access to an element whose index is not tested; None if there is none."""
    assert tensor.through is not None
    leaving = [(index, size, _leaves(tensor, index, size)) for index, size, _ in _affine_indices(tensor.through)]
    leaving = [one for one in leaving if any(one[2]) or one[0].divisor > 1]
    if use.statement.tensor_map is not None and use.access.buffer == use.statement.tensor_map.buffer:
        return _wrong_box(kernel, use, tensor)
    if leaving and not use.pieces:
        return f"{use.access.buffer} is read by an instruction that tests no index"
    if leaving and use.statement.asynchronous and tensor.through.value:
        return f"{use.access.buffer} is copied by {use.statement.instruction.name}, which writes zeros instead of {tensor.through.value}"
    elements = use.access.elements()
    for piece in use.pieces if leaving else ():
        known = (*conjuncts(use.statement.performed), *conjuncts(piece.condition))
        if FALSE in known:
            continue
        for offset in elements[piece.first : piece.first + piece.width]:
            needed = [test for one in leaving for test in _tests(*one, use.access.coordinates(offset)) if test != TRUE]
            missing = next((test for test in needed if test not in known), None)
            if missing is not None:
                return f"{use.access.buffer} is read without the condition {missing}: the element may be outside of the array"
        if needed and (wrong := _wrong_value(use, piece, tensor.through.value)):
            return wrong
    return None


def _wrong_box(kernel: Kernel, use: Use, tensor: Tensor) -> str | None:
    """Why a box of TMA, which reads zeros outside of the array, differs from the tile of an access; None if it does not.

    `check/tma_boxes.py` compares the box with shared memory. Here, the box must have the elements that the indices of the tile select: the
    indices of two adjacent elements of the tile must be adjacent in one dimension of the array.
    """
    assert tensor.through is not None and use.statement.tensor_map is not None
    if tensor.through.value or any(index.divisor > 1 for index, *_ in _affine_indices(tensor.through)):
        return f"{use.access.buffer} is read by TMA, which reads zeros outside of the array and no quotients"
    if use.statement.tensor_map.im2col is not None:  # `check/pixels.py` compares the pixels that TMA visits with the indices
        return _wrong_end(kernel, use, tensor)
    if tensor.by_digits:  # `check/tma_boxes.py` compares each element with its place in a box
        return None
    first, *others = use.access.elements()
    start = tensor.array_coordinates(use.access.coordinates(first))
    sizes = dict(zip(use.statement.tensor_map.order, use.statement.tensor_map.box, strict=True))
    # Without digits and quotients, indices are sums over dimensions: one line of elements along each dimension, and the last element.
    lines = [element for element in others if sum(map(operator.ne, element, first)) == 1]
    for element in (*lines, *others[-1:]):
        steps = [here - there for here, there in zip(tensor.array_coordinates(use.access.coordinates(element)), start, strict=True)]
        moved = [step for step, one in zip(element, first, strict=True) if step != one]
        boxed = [step for dim, step in enumerate(steps) if sizes[dim] > 1 and step != ZERO]
        if sorted(moved) != sorted(constant(step) or 0 for step in steps if step != ZERO) or (len(boxed) != len(moved)):
            return f"{use.access.buffer} is read by TMA in boxes, and element {element} of the tile is not at that place of a box"
    definition = fused(kernel.spec)
    stored = None if definition is None else definition.array_of(use.access.buffer)
    for dim in {dim for index, *_ in _affine_indices(tensor.through) for dim in index.dims}:
        name = "" if stored is None else stored.dims[dim]
        if use.access.bounds[dim] is not None and (definition is None or name in definition.combined):
            return f"{use.access.buffer} is read by TMA past the end of {name}, along which a step combines elements"
    return None


def _wrong_end(kernel: Kernel, use: Use, tensor: Tensor) -> str | None:
    """Why pixels past the end of a reduced dimension may be in the array, which im2col mode reads; None if they are not."""
    assert tensor.through is not None
    definition = fused(kernel.spec)
    stored = None if definition is None else definition.array_of(use.access.buffer)
    for dim, bound in enumerate(use.access.bounds):
        name = "" if stored is None else stored.dims[dim]
        if bound is None or (definition is not None and name not in definition.combined):
            continue
        own = [(axis, index) for axis, index in enumerate(tensor.through.index) if isinstance(index, DimIndex) and index.dim == dim]
        ends = [tensor.through.array.shape[axis] * index.divisor for axis, index in own if not index.modulus]
        if all(end - tensor.shape[dim] != ZERO for end in ends):
            return f"{use.access.buffer} is read by TMA past the end of {name}, along which a step combines elements"
    return None


def _wrong_value(use: Use, piece: Piece, value: float) -> str | None:
    """The difference between the value of a piece that is not read, and the value that the definition states; None if there is none."""
    assert use.position is not None
    name = list(use.statement.operands)[use.position]
    stated = use.statement.spec.outside(name) if piece.outside is None else piece.outside
    if stated != value:
        return f"{use.access.buffer} is {stated} outside of its array, and the definition states {value}"
    inside = use.access.inside(use.access.elements()[piece.first])
    tested = _rest(conjuncts(inside), conjuncts(use.statement.performed))
    if piece.outside is not None and _rest(conjuncts(piece.bounds), conjuncts(use.statement.performed)) != tested:
        return f"{use.access.buffer} is {value} where {piece.bounds}, and is in bounds where {tested}"
    return None


def _rest(conditions: Iterable[Expr], known: Iterable[Expr]) -> Expr:
    tested = set(known)
    return all_of(part for part in conditions if part not in tested)


def _tests(index: AffineIndex, size: Expr, leaves: tuple[bool, bool], coordinates: tuple[Expr, ...]) -> Iterator[Expr]:
    """The conditions that an index is inside of the array."""
    place = index.dividend(coordinates)
    if leaves[0]:
        yield less(ZERO, place + 1)
    if leaves[1]:
        yield less(place, size * index.divisor)
    if index.divisor > 1:
        yield equal(mod(place, as_expr(index.divisor)), ZERO)


__all__ = ["wrong_windows"]
