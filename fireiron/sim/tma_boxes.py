"""TMA: the elements that the engine copies, and the bytes of shared memory where it puts or takes them, from a tensor map alone.

A statement copies its tile box by box, each from the first element of a part of the tile on. In the array the engine goes along the map's
dimensions in their order, and the first of them has a stride of one element, whatever the array's own; what lies outside the array is read
as zeros and not written. In shared memory the elements of a box follow each other without gaps, and pieces of 16 bytes are exchanged by
bits of their address. So a map that does not fit its array or buffer moves other elements than the statement means, here as on a GPU.

Source: PTX ISA, "Tensors", "Tensor swizzling modes"; CUDA Driver API, `cuTensorMapEncodeTiled`, whose bounds are those of `Boxes`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import Access, Buffer, Exec, TensorMap
from fireiron.values.expr import Expr

Array = Any

PIECE = 16
"""Bytes that a swizzle keeps contiguous; arrays, their strides and box rows are multiples of it."""

LINE = 128
"""Bytes: boxes start at a multiple of it in shared memory, and the line number selects the exchange of its 16-byte pieces."""

SPANS = (PIECE, 32, 64, LINE)
"""Bytes in which pieces are exchanged; those of one piece are not."""

MOST_ALONG = 256
"""Most elements of a box along a dimension."""

MOST_DIMENSIONS = 5
"""Most dimensions of an array."""


@attrs.frozen(eq=False)
class TmaBoxes:
    """What a statement's copies exchange, element by element, box after box.

    Attributes:
        far: the array's access, of which `outside` are the offsets from its base, along the array's dimensions: `(elements, dimensions)`.
        inside: offsets from the base of the other access of the first element of the box that an element is of.
        behind: bytes from the first element of the box to it, before the swizzle.
        strides: elements of the array from one to the next along each of its dimensions, as the engine counts.
        span: bytes in which it exchanges pieces.
    """

    far: Access
    outside: Array
    inside: Array
    behind: Array
    strides: tuple[int, ...]
    span: int

    @staticmethod
    def of(statement: Exec, buffers: Mapping[str, Buffer], number: Callable[[Expr], int]) -> TmaBoxes | None:
        """The boxes of a statement that an engine performs by a map; None for others. A `SimulationError`: there is no such map."""
        tensor_map = statement.tensor_map
        if tensor_map is None or not statement.mechanism.by_engine or statement.mechanism.in_registers:
            return None
        far, near = sorted(statement.operands, key=lambda name: not buffers[statement.operands[name].buffer].memory.of_grid)
        array, target = (buffers[statement.operands[name].buffer] for name in (far, near))
        wrong = _wrong_map(tensor_map, array) or _wrong_box(tensor_map, target) or _wrong_array(tensor_map, array, number)
        if wrong:
            what = f"{statement.instruction.name} {statement.spec}: there is no such tensor map as {tensor_map.name}: {wrong}"
            raise SimulationError(what, at=statement.origin, hint="`order` is the array's dimensions, that of neighbours first")
        access = statement.operands[far]
        starts, within = _walked(tuple(access.shape[dim] for dim in tensor_map.order), tensor_map.box)
        outside = np.empty_like(starts)
        outside[:, list(tensor_map.order)] = starts + within
        views = statement.spec.operands
        inside = np.zeros((len(starts), len(statement.operands[near].base)), np.int64)
        for dim in range(len(views[near].dims)):
            inside[:, views[near].axis(dim)] = starts[:, tensor_map.order.index(views[far].axis(dim))]
        weights = np.cumprod((1, *tensor_map.box[:-1]))
        return TmaBoxes(
            access, outside, inside, within @ weights * target.dtype.bytes, _strides(tensor_map, array, number), tensor_map.span
        )

    def addresses(self, coordinates: Sequence[Array]) -> Array:
        """The addresses in the array of elements at these coordinates, as the engine finds them."""
        return sum((value * stride for value, stride in zip(coordinates, self.strides, strict=True)), start=np.int64(0))

    def places(self, starts: Array) -> Array:
        """The bytes of shared memory of all elements, where each one's box starts at such a byte."""
        places = starts + self.behind.reshape((-1,) + (1,) * (starts.ndim - 1))
        return places ^ (places // LINE % (self.span // PIECE) * PIECE)


def _walked(extents: Sequence[int], box: Sequence[int]) -> tuple[Array, Array]:
    """For each element the start of its box, of those that cover `extents`, and its place in the box: `(elements, dimensions)` each."""
    starts = itertools.product(*(range(0, extent, size) for extent, size in reversed(list(zip(extents, box, strict=True)))))
    within = itertools.product(*(range(size) for size in reversed(box)))
    first, second = (np.array(list(places), np.int64)[:, ::-1] for places in (starts, within))
    return np.repeat(first, math.prod(box), axis=0), np.tile(second, (len(first), 1))


def _wrong_map(tensor_map: TensorMap, array: Buffer) -> str | None:
    rank = len(array.tensor.shape)
    if tensor_map.buffer != array.name:
        return f"it is of {tensor_map.buffer}, and the statement copies {array.name}"
    if sorted(tensor_map.order) != list(range(rank)) or not rank <= MOST_DIMENSIONS:
        return f"dimensions {tensor_map.order} of an array of {rank} dimensions"
    return None


def _wrong_box(tensor_map: TensorMap, target: Buffer) -> str | None:
    row = tensor_map.box[0] * target.dtype.bytes
    if len(tensor_map.box) != len(tensor_map.order) or not all(1 <= size <= MOST_ALONG for size in tensor_map.box):
        return f"boxes of {tensor_map.box} elements, of 1 to {MOST_ALONG} along each of {len(tensor_map.order)} dimensions"
    if tensor_map.span not in SPANS:
        return f"pieces exchanged in spans of {tensor_map.span} bytes, of {', '.join(map(str, SPANS))}"
    if row % PIECE:
        return f"boxes with rows of {row} bytes, no multiple of {PIECE}"
    # Rows that are longer are refused by the driver. Of shorter ones the manuals do not say whether rows or spans follow each other.
    if tensor_map.span > PIECE and row != tensor_map.span:
        return f"boxes with rows of {row} bytes, exchanged in spans of {tensor_map.span}"
    return None


def _wrong_array(tensor_map: TensorMap, array: Buffer, number: Callable[[Expr], int]) -> str | None:
    if array.tensor.align % PIECE:
        return f"{array.name} begins at a multiple of {array.tensor.align} bytes, not of {PIECE}"
    for dim, stride in enumerate(_strides(tensor_map, array, number)):
        along = dim == tensor_map.order[0] or number(array.tensor.shape[dim]) <= 1
        if not along and (stride <= 0 or stride * array.dtype.bytes % PIECE):
            return f"neighbours along dimension {dim} of {array.name} are {stride * array.dtype.bytes} bytes apart, no multiple of {PIECE}"
    return None


def _strides(tensor_map: TensorMap, array: Buffer, number: Callable[[Expr], int]) -> tuple[int, ...]:
    steps = array.storage.steps
    return tuple(1 if dim == tensor_map.order[0] else 0 if step is None else number(step) for dim, step in enumerate(steps))
