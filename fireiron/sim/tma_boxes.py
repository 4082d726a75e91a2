"""The elements that a TMA copy moves, and their bytes in shared memory, computed from the tensor map alone.

A statement copies its tile box by box, each starting at the first element of a part of the tile. In global memory, TMA follows the map's
dimensions in their order, and the first one has a stride of one element, whatever the array's own stride is. Out-of-bounds elements are
read as zeros and not written. In shared memory, the elements of a box are contiguous, and address bits permute pieces of 16 bytes. So a map
that does not fit its array or buffer moves other elements than the statement specifies, as on a GPU.

Source: PTX ISA, "Tensors", "Tensor swizzling modes"; CUDA Driver API, `cuTensorMapEncodeTiled`, whose limits `TmaBoxes` checks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import Access, Buffer, Exec, Im2col, TensorMap
from fireiron.values.affine import AffineIndex
from fireiron.values.expr import Expr
from fireiron.values.indirect import ArrayIndex, DimIndex

Array = Any

PIECE = 16
"""Bytes that a swizzle keeps contiguous; arrays, their strides and box rows are multiples of it."""

LINE = 128
"""Bytes: boxes start at a multiple of it in shared memory, and the line number selects the permutation of its 16-byte pieces."""

SPANS = (PIECE, 32, 64, LINE)
"""Swizzle spans in bytes; a span of one piece means no swizzle."""

MAX_ALONG = 256
"""Maximum number of elements of a box along a dimension."""

MAX_DIMENSIONS = 5
"""Maximum number of dimensions of an array."""


@attrs.frozen(eq=False)
class TmaBoxes:
    """The elements that a statement's TMA copies move, box after box.

    Attributes:
        array_access: the access to the array.
        outside: offsets from its base, along the array's dimensions: `(elements, dimensions)`.
        inside: for each element, the offset of the first element of its box from the base of the shared-memory access.
        in_box: bytes from the first element of the box to the element, before the swizzle.
        contiguous: the contiguous dimension of the array.
        in_row: for each element, its offset in the box along that dimension, in elements.
        strides: the strides of the array along its dimensions, in elements, as TMA computes addresses.
        span: the swizzle span in bytes.
        index: of an indirect array, the index along each of its dimensions.
        extents: the extents of the array, if it has affine indices: TMA tests each index, not the coordinates of the operand.
        pixels: in im2col mode, the walk of TMA through consecutive pixels.
    """

    array_access: Access
    outside: Array
    inside: Array
    in_box: Array
    contiguous: int
    in_row: Array
    strides: tuple[int, ...]
    span: int
    index: tuple[ArrayIndex, ...] | None = None
    extents: tuple[int, ...] = ()
    pixels: Pixels | None = None

    @staticmethod
    def of(statement: Exec, buffers: Mapping[str, Buffer], number: Callable[[Expr], int]) -> TmaBoxes | None:
        """The boxes of a TMA copy; None for other statements. Raises `SimulationError` if the map is invalid."""
        tensor_map = statement.tensor_map
        if tensor_map is None or not statement.mechanism.by_engine or statement.mechanism.in_registers:
            return None
        array_access, near = sorted(statement.operands, key=lambda name: not buffers[statement.operands[name].buffer].memory.of_grid)
        array, target = (buffers[statement.operands[name].buffer] for name in (array_access, near))
        wrong = _wrong_map(tensor_map, array) or _wrong_box(tensor_map, target) or _wrong_array(tensor_map, array, number)
        if wrong:
            what = f"{statement.instruction.name} {statement.spec}: the tensor map {tensor_map.name} is invalid: {wrong}"
            raise SimulationError(what, at=statement.origin, hint="`order` lists the array's dimensions, the contiguous one first")
        access = statement.operands[array_access]
        views = statement.spec.operands
        tile = [views[array_access].axis(dim) for dim in range(len(views[array_access].dims))]
        own = array.tensor.own_axes(tensor_map.order, tile)
        if tensor_map.im2col is not None:  # the second dimension of a box counts pixels
            own = (own[0], next((axis for axis in tile if axis != own[0]), None), *(None for _ in own[2:]))
        if array.tensor.by_digits and tensor_map.im2col is None:
            outside, inside, within = _by_digits(array, access, statement.operands[near], tensor_map)
        else:
            near_tile = [views[near].axis(dim) for dim in range(len(views[near].dims))]
            sizes = len(access.base), len(statement.operands[near].base)
            outside, inside, within = _by_axes(own, access, dict(zip(near_tile, tile, strict=True)), tensor_map, sizes)
        weights = np.cumprod((1, *tensor_map.box[:-1]))
        through = array.tensor.through
        index = None if through is None else tuple(_evaluated(one, number) for one in through.index)
        affine = index is not None and any(isinstance(one, AffineIndex) for one in index)
        extents = tuple(number(size) for size in array.array.shape) if affine else ()
        mode = tensor_map.im2col
        pixels = None if mode is None else Pixels(mode, tensor_map.order, within[:, :2], (own[0], own[1]))
        return TmaBoxes(
            access, outside, inside, within @ weights * target.dtype.bytes, tensor_map.order[0], within[:, 0],
            _strides(tensor_map, array, number), tensor_map.span, index, extents, pixels,
        )  # fmt: skip

    def addresses(self, coordinates: Sequence[Array], numbers: Sequence[Array] = ()) -> Array:
        """The array addresses of elements at these coordinates, as TMA computes them; `numbers` are those from tables, in order."""
        coordinates = self.indices(coordinates, numbers)
        return sum((value * stride for value, stride in zip(coordinates, self.strides, strict=True)), start=np.int64(0))

    def indices(self, coordinates: Sequence[Array], numbers: Sequence[Array] = ()) -> Sequence[Array]:
        """The indices in the array of elements at these coordinates."""
        if self.index is None:
            return coordinates
        if self.pixels is not None:
            return self.pixels.indices(self.index, coordinates, self.extents)
        looked_up = iter(numbers)
        return [
            index.of(coordinates[index.dim])
            if isinstance(index, DimIndex)
            else index.of(coordinates)
            if isinstance(index, AffineIndex)
            else next(looked_up)
            for index in self.index
        ]

    def unaligned_starts(self, coordinates: Sequence[Array], numbers: Sequence[Array], bytes_: int) -> Array:
        """The index along the contiguous dimension at which the box of each element starts; -1 if it is a multiple of 16 bytes."""
        index = np.asarray(self.indices(coordinates, numbers)[self.contiguous])
        starts = index - self.in_row.reshape((-1,) + (1,) * (index.ndim - 1))
        return np.where(starts * bytes_ % PIECE == 0, -1, starts)

    def outside_of_array(self, coordinates: Sequence[Array]) -> Array:
        """Where elements at these coordinates are outside of an array with affine indices."""
        pairs = zip(self.indices(coordinates), self.extents, strict=True)
        return np.logical_or.reduce(np.broadcast_arrays(*((place < 0) | (place >= size) for place, size in pairs)))

    def places(self, starts: Array) -> Array:
        """The shared-memory bytes of all elements, given the first byte of each element's box."""
        places = starts + self.in_box.reshape((-1,) + (1,) * (starts.ndim - 1))
        return places ^ (places // LINE % (self.span // PIECE) * PIECE)


@attrs.frozen(eq=False)
class Pixels:
    """The pixels of a box in im2col mode: TMA starts at a base pixel, and goes on by traversal strides through rows and images.

    Attributes:
        mode: the corners of the base pixels, and the traversal strides.
        order: the dimensions of the array in map order.
        within: for each element, its channel and its pixel in the box.
        own: the dimensions of the operand whose coordinates count channels and pixels.

    Source: PTX ISA, "Im2col mode".
    """

    mode: Im2col
    order: tuple[int, ...]
    within: Array
    own: tuple[int | None, int | None]

    def indices(self, index: Sequence[ArrayIndex], coordinates: Sequence[Array], extents: Sequence[int]) -> list[Array]:
        """The indices in the array of the elements of a box, in the array's order, given the coordinates of the operand."""
        first = list(coordinates)
        steps = []
        for column, dim in enumerate(self.own):
            assert dim is not None
            steps.append(self.within[:, column].reshape((-1,) + (1,) * (np.ndim(coordinates[dim]) - 1)))
            first[dim] = coordinates[dim] - steps[column]
        (channel, *places, image), taps = self.mode.start([index[axis] for axis in self.order], first)
        carry: Array = steps[1]
        walked = []
        for axis, place, tap, lower, upper, step in zip(
            self.order[1:-1], places, taps, self.mode.lower, self.mode.upper, self.mode.steps, strict=True
        ):
            count = (extents[axis] - 1 + upper - lower) // step + 1
            number = (place - lower) // step + carry
            carry = number // max(count, 1)
            walked.append(lower + number % max(count, 1) * step + tap)
        result: list[Array] = [None] * len(self.order)
        for axis, value in zip(self.order, (channel + steps[0], *walked, image + carry), strict=True):
            result[axis] = value
        return result


def _evaluated(index: ArrayIndex, number: Callable[[Expr], int]) -> ArrayIndex:
    return attrs.evolve(index, offset=number(index.offset)) if isinstance(index, AffineIndex) else index


def _by_axes(
    own: Sequence[int | None], access: Access, near: Mapping[int, int], tensor_map: TensorMap, sizes: tuple[int, int]
) -> tuple[Array, Array, Array]:
    """The offsets of elements in the operand and in shared memory (of the first element of their box), and in their box.

    `own` are the dimensions of the operand by dimension of the map; `near` maps dimensions of the buffer to them; `sizes` are the ranks.
    """
    starts, within = _traversal(tuple(1 if dim is None else access.shape[dim] for dim in own), tensor_map.box)
    outside, inside = (np.zeros((len(starts), size), np.int64) for size in sizes)
    for place, dim in enumerate(own):
        if dim is not None:
            outside[:, dim] = starts[:, place] + within[:, place]
    for axis, dim in near.items():
        inside[:, axis] = starts[:, own.index(dim)]
    return outside, inside, within


def _by_digits(array: Buffer, access: Access, near: Access, tensor_map: TensorMap) -> tuple[Array, Array, Array]:
    """The same for an array whose indices are digits of coordinates: each element of a tile has its place in a box.

    Elements are sorted as TMA copies them. Raises `SimulationError` if boxes contain other elements than those of the tile.
    """
    outside, inside = access.table(), near.table()
    steps = array.tensor.array_steps(list(outside.T))
    places = np.stack([np.broadcast_to(steps[axis], len(outside)) for axis in tensor_map.order], axis=-1)
    order = np.lexsort((*(places % tensor_map.box).T, *(places // tensor_map.box).T))
    outside, inside, places = outside[order], inside[order], places[order]
    starts, within = _traversal(tuple(places.max(axis=0) + 1), tensor_map.box)
    if not np.array_equal(starts + within, places):
        raise SimulationError(f"the tensor map {tensor_map.name} is invalid: its boxes have other elements than the tile")
    firsts = np.arange(len(places)) // math.prod(tensor_map.box) * math.prod(tensor_map.box)
    return outside, inside[firsts], within


def _traversal(extents: Sequence[int], box: Sequence[int]) -> tuple[Array, Array]:
    """For each element, the start of its box and its offset in the box, `(elements, dimensions)` each; the boxes cover `extents`."""
    starts = itertools.product(*(range(0, extent, size) for extent, size in reversed(list(zip(extents, box, strict=True)))))
    within = itertools.product(*(range(size) for size in reversed(box)))
    first, second = (np.array(list(places), np.int64)[:, ::-1] for places in (starts, within))
    return np.repeat(first, math.prod(box), axis=0), np.tile(second, (len(first), 1))


def _wrong_map(tensor_map: TensorMap, array: Buffer) -> str | None:
    rank = len(array.array.shape)
    if tensor_map.buffer != array.name:
        return f"it describes {tensor_map.buffer}, but the statement copies {array.name}"
    if sorted(tensor_map.order) != list(range(rank)) or not rank <= MAX_DIMENSIONS:
        return f"dimensions {tensor_map.order} of an array of {rank} dimensions"
    return None


def _wrong_box(tensor_map: TensorMap, target: Buffer) -> str | None:
    row = tensor_map.box[0] * target.dtype.bytes
    if len(tensor_map.box) != len(tensor_map.order) or not all(1 <= size <= MAX_ALONG for size in tensor_map.box):
        return f"boxes of {tensor_map.box} elements; legal: 1 to {MAX_ALONG} along each of {len(tensor_map.order)} dimensions"
    if tensor_map.span not in SPANS:
        return f"a swizzle span of {tensor_map.span} bytes; legal: {', '.join(map(str, SPANS))}"
    if row % PIECE:
        return f"box rows of {row} bytes, which is not a multiple of {PIECE}"
    # The driver rejects longer rows. For shorter ones the manuals do not specify whether rows or spans follow each other.
    if tensor_map.span > PIECE and row != tensor_map.span:
        return f"box rows of {row} bytes with a swizzle span of {tensor_map.span}"
    return None


def _wrong_array(tensor_map: TensorMap, array: Buffer, number: Callable[[Expr], int]) -> str | None:
    if array.tensor.align % PIECE:
        return f"{array.name} is aligned to {array.tensor.align} bytes, not to {PIECE}"
    for dim, stride in enumerate(_strides(tensor_map, array, number)):
        along = dim == tensor_map.order[0] or number(array.array.shape[dim]) <= 1
        if not along and (stride <= 0 or stride * array.dtype.bytes % PIECE):
            return (
                f"the stride of dimension {dim} of {array.name} is {stride * array.dtype.bytes} bytes, which is not a multiple of {PIECE}"
            )
    return None


def _strides(tensor_map: TensorMap, array: Buffer, number: Callable[[Expr], int]) -> tuple[int, ...]:
    steps = array.array_storage.steps
    return tuple(1 if dim == tensor_map.order[0] else 0 if step is None else number(step) for dim, step in enumerate(steps))
