"""Check that TMA places each element of a tile in shared memory where the layout of the buffer has it.

A tensor map specifies how TMA traverses a box: along its dimensions in map order, one box row after the other, with 16-byte pieces permuted
within spans of `span` bytes (PTX ISA, "Tensor swizzling modes"; CUDA Driver API, cuTensorMapEncodeTiled). Other statements of the kernel
use the storage of the buffer. This check compares both. A simulated copy uses the map (`fireiron.sim.tma_boxes`).
"""

from __future__ import annotations

import functools
from typing import Any

import attrs
import numpy as np

from fireiron.check.access_trace import AccessTrace
from fireiron.check.finding import Finding, described
from fireiron.check.known_bits import Bits, KnownBits, power_of_two
from fireiron.check.pixels import wrong_pixels
from fireiron.ir import Access, Buffer, Exec, Kernel, TensorMap, execs
from fireiron.values.expr import as_expr, constant
from fireiron.values.tensor import Tensor

Array = Any

MAX_BOX = 256
"""Maximum number of elements of a box along a dimension (CUDA Driver API, cuTensorMapEncodeTiled)."""

PIECE, ROW = 16, 128
"""Bytes of a piece, which a swizzle keeps together; and of a row, whose number determines the permutation of its pieces."""


def check_tma_boxes(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """An error for each TMA copy whose boxes do not match the layout of its shared-memory buffer."""
    findings, known = [], KnownBits(access_trace.lets)
    for statement, _ in execs(access_trace.kernel.body):
        if statement.tensor_map is None:
            continue
        mismatch = _problem(access_trace.kernel, statement, statement.tensor_map)
        mismatch = mismatch or wrong_pixels(access_trace.kernel, statement, statement.tensor_map)
        mismatch = mismatch or _unaligned(access_trace.kernel, statement, statement.tensor_map, known)
        if mismatch:
            text = f"{described(statement, statement.accesses[0])}: {mismatch}"
            findings.append(Finding("boxes", "error", statement.tensor_map.buffer, text, statement.origin))
    return tuple(findings)


def _problem(kernel: Kernel, statement: Exec, tensor_map: TensorMap) -> str | None:
    """The mismatch between the boxes of a copy and its buffer; None if they match."""
    global_access, shared_access = sorted(statement.accesses, key=lambda access: access.buffer != tensor_map.buffer)
    array, buffer = kernel.buffer(global_access.buffer), kernel.buffer(shared_access.buffer)
    rank = len(array.array.shape)
    row = tensor_map.box[0] * buffer.dtype.bytes
    if not all(1 <= size <= MAX_BOX for size in tensor_map.box):
        return f"the boxes of its map have {tensor_map.box} elements; the limit is {MAX_BOX} per dimension"
    if row % PIECE or tensor_map.span not in (PIECE, 32, 64, 128) or row > tensor_map.span > PIECE:
        return (
            f"the boxes of its map have rows of {row} bytes, swizzled in spans of {tensor_map.span} bytes; legal: multiples of {PIECE} "
            f"bytes, up to a span of 32, 64 or 128 bytes"
        )
    if global_access.buffer != tensor_map.buffer or sorted(tensor_map.order) != list(range(rank)) or len(tensor_map.box) != rank:
        return f"its map describes {tensor_map.buffer}, with dimensions {tensor_map.order} and boxes of {tensor_map.box}"
    step = array.array_storage.steps[tensor_map.order[0]]
    if step is None or constant(step) != 1:
        return f"dimension {tensor_map.order[0]} of {array.name} is contiguous in the map, but its layout is {array.array.layout}"
    if array.tensor.by_digits and tensor_map.im2col is None and (carried := _carried_digit(array.tensor, global_access)):
        return carried
    view = next(one for one in statement.spec.views if one.tensor.name == array.name)
    near_view = next(other for other in statement.spec.views if other is not view)
    tile, near = (tuple(each.axis(dim) for dim in range(len(each.dims))) for each in (view, near_view))
    places = (
        _misplaced_element(array.tensor, tile, near, global_access, shared_access, buffer, tensor_map, copy) for copy in _copies(buffer)
    )
    return next((text for text in places if text), None)


def _carried_digit(tensor: Tensor, access: Access) -> str | None:
    """The first element whose digits are not those of the first element plus its steps; None if there is none.

    An index is a sum of terms with one dimension each, so elements along one dimension at a time are compared.
    """
    first, *others = access.elements()
    start = tensor.array_coordinates(access.coordinates(first))
    for element in others:
        steps = [step - begin for step, begin in zip(element, first, strict=True)]
        if sum(step != 0 for step in steps) > 1:
            continue
        moved = zip(tensor.array_coordinates(access.coordinates(element)), start, strict=True)
        if [constant(here - there) for here, there in moved] != list(tensor.array_steps(steps)):
            return f"its map describes a box, and a digit of element {element} of the tile is not proved to be that of its place in the box"
    return None


def _unaligned(kernel: Kernel, statement: Exec, tensor_map: TensorMap, known: KnownBits) -> str | None:
    """Why a box may start at an address that is not a multiple of 16 bytes, which is an illegal instruction; None if it does not.

    The array and its other strides are multiples of 16 bytes, so this depends on the index along the contiguous dimension alone.
    """
    access = next(one for one in statement.accesses if one.buffer == tensor_map.buffer)
    array = kernel.buffer(access.buffer)
    start = as_expr(array.tensor.array_coordinates(access.coordinates(access.elements()[0]))[tensor_map.order[0]])
    granule = PIECE // array.dtype.bytes
    if (known.of(start) * Bits.of(array.dtype.bytes)).trailing_zeros >= (power_of_two(PIECE) or 0):
        return None
    return f"its boxes start at element {start} of a row, which is not proved to be a multiple of {granule} elements, {PIECE} bytes"


def along_map(array: Tensor, tile: tuple[int, ...], access: Access, tensor_map: TensorMap) -> Array:
    """The offsets of a tile's elements along the dimensions of a map; 0 along those of which a box has one index."""
    table = access.table()
    if array.by_digits and tensor_map.im2col is None:
        steps = array.array_steps(list(table.T))
        return np.stack([np.broadcast_to(steps[axis], len(table)) for axis in tensor_map.order], axis=-1)
    own = array.own_axes(tensor_map.order, tile)
    if tensor_map.im2col is not None:  # the second dimension of a box counts pixels
        own = (own[0], next((axis for axis in tile if axis != own[0]), None), *(None for _ in own[2:]))
    return np.stack([np.zeros(len(table), np.int64) if axis is None else table[:, axis] for axis in own], axis=-1)


def _copies(buffer: Buffer) -> range:
    """The first two copies of a buffer: all others have the same distance."""
    return range(min(buffer.tensor.copies, 2))


@functools.lru_cache(maxsize=512)  # most loads of a kernel occur before its loop and in it
def _misplaced_element(
    array: Tensor, tile: tuple[int, ...], near: tuple[int, ...], global_access: Access, shared_access: Access, buffer: Buffer,
    tensor_map: TensorMap, copy: int,
) -> str | None:  # fmt: skip
    """Text that names the first element that TMA places elsewhere than the buffer; None if there is none."""
    inside = along_map(array, tile, global_access, tensor_map)[_in_order(global_access, tile)]
    number, within = np.divmod(inside, np.array(tensor_map.box))
    box = number @ np.cumprod((1, *(number.max(axis=0) + 1)[:-1]))
    elements, box_sizes = int(np.prod(tensor_map.box)), np.bincount(box)
    if (box_sizes[box_sizes > 0] != elements).any():
        covered = int(box_sizes[box_sizes > 0].min())
        return f"a box of the map has {elements} elements, but covers {covered} of the {len(inside)} elements of the tile"
    weights = np.cumprod((1, *tensor_map.box[:-1]))
    in_box = within @ weights
    bytes_ = _buffer_bytes(shared_access, buffer, copy)[_in_order(shared_access, near)]
    plain = attrs.evolve(shared_access, storage=(shared_access.storage or buffer.storage).plain)
    starts = np.zeros(len(box_sizes), dtype=np.int64)
    starts[box[in_box == 0]] = _buffer_bytes(plain, buffer, copy)[_in_order(shared_access, near)][in_box == 0]
    engine = _swizzled_bytes(starts[box] + in_box * buffer.dtype.bytes, tensor_map.span)
    mismatch = np.flatnonzero(engine != bytes_)
    if not mismatch.size:
        return None
    offset = tuple(int(one) for one in inside[mismatch[0]])
    return (
        f"TMA places element {offset} of the tile (dimensions in map order) at byte {int(engine[mismatch[0]])} of shared memory, by boxes "
        f"of {tensor_map.box} and a swizzle span of {tensor_map.span} bytes, but {buffer.name} has it at byte {int(bytes_[mismatch[0]])}"
    )


def _in_order(access: Access, tile: tuple[int, ...]) -> Array:
    """The numbers of a tile's elements with the first dimension of its view fastest; `tile` are the axes of the view's dimensions."""
    numbers = np.arange(access.count).reshape(access.shape, order="F")
    others = tuple(axis for axis in range(len(access.shape)) if axis not in tile)
    return numbers.transpose((*tile, *others)).reshape(-1, order="F")


def _buffer_bytes(shared_access: Access, buffer: Buffer, copy: int) -> Array:
    """The byte of shared memory at which the buffer has each element of the tile, at the lowest values of all variables."""
    base = [one.substitute({var: var.low for var in one.variables()}) for one in shared_access.base]
    coordinates = [(constant(one) or 0) + steps for one, steps in zip(base, shared_access.table().T, strict=True)]
    number = constant(buffer.elements) or 0
    return buffer.offset + (np.asarray((shared_access.storage or buffer.storage).address(coordinates)) + copy * number) * buffer.dtype.bytes


def _swizzled_bytes(bytes_: Array, span: int) -> Array:
    """Addresses in shared memory, with pieces permuted within spans of `span` bytes."""
    pieces = span // PIECE
    return bytes_ ^ (bytes_ // ROW % pieces * PIECE)


__all__ = ["check_tma_boxes"]
