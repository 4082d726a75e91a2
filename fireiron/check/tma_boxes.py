"""What TMA copies by boxes: each element of a tile lies in shared memory where the engine puts it, or takes it from.

A tensor map says how the engine goes through a box: along its dimensions in the order of the map, one row of the box behind the other, and
pieces of 16 bytes are exchanged in spans of so many bytes (PTX ISA, "Tensor swizzling modes"; CUDA Driver API, cuTensorMapEncodeTiled).
The kernel's readers go by the storage of the buffer. This compares the two; a simulated copy goes by the map (`fireiron.sim.tma_boxes`).
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from fireiron.check.access_trace import AccessTrace
from fireiron.check.finding import Finding, described
from fireiron.ir import Access, Buffer, Exec, Kernel, TensorMap, execs
from fireiron.values.expr import constant

Array = Any

MOST_BOX = 256
"""Elements of a box along a dimension (CUDA Driver API, cuTensorMapEncodeTiled)."""

PIECE, ROW = 16, 128
"""Bytes that stay together, and after how many of them the next place of a piece is drawn."""


def check_tma_boxes(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """An error for each copy by TMA whose boxes lie otherwise in shared memory than its buffer says."""
    found = []
    for statement, _ in execs(access_trace.kernel.body):
        if statement.tensor_map is not None and (wrong := _wrong(access_trace.kernel, statement, statement.tensor_map)):
            text = f"{described(statement, statement.accesses[0])}: {wrong}"
            found.append(Finding("boxes", "error", statement.tensor_map.buffer, text, statement.origin))
    return tuple(found)


def _wrong(kernel: Kernel, statement: Exec, tensor_map: TensorMap) -> str | None:
    """What is wrong with the boxes of a copy between an array and shared memory, if anything is."""
    far, near = sorted(statement.accesses, key=lambda access: access.buffer != tensor_map.buffer)
    array, buffer = kernel.buffer(far.buffer), kernel.buffer(near.buffer)
    rank = len(array.tensor.shape)
    row = tensor_map.box[0] * buffer.dtype.bytes
    if not all(1 <= size <= MOST_BOX for size in tensor_map.box):
        return f"the boxes of its map are of {tensor_map.box} elements"
    if row % PIECE or tensor_map.span not in (PIECE, 32, 64, 128) or row > tensor_map.span > PIECE:
        return f"the boxes of its map have rows of {row} bytes, swizzled in spans of {tensor_map.span} bytes"
    if far.buffer != tensor_map.buffer or sorted(tensor_map.order) != list(range(rank)) or len(tensor_map.box) != rank:
        return f"its map is of {tensor_map.buffer}, dimensions {tensor_map.order}, boxes of {tensor_map.box}"
    step = array.storage.steps[tensor_map.order[0]]
    if step is None or constant(step) != 1:
        return (
            f"the map says that neighbours lie along dimension {tensor_map.order[0]} of {array.name}, which lies as {array.tensor.layout}"
        )
    return next((text for text in (_misplaced(far, near, buffer, tensor_map, copy) for copy in _copies(buffer)) if text), None)


def _copies(buffer: Buffer) -> range:
    """The first two copies of a buffer: all others lie as far apart."""
    return range(min(buffer.tensor.copies, 2))


@functools.lru_cache(maxsize=512)  # most loads of a kernel stand in front of its loop and in it
def _misplaced(far: Access, near: Access, buffer: Buffer, tensor_map: TensorMap, copy: int) -> str | None:
    """The first element that the engine puts elsewhere; none if there is none."""
    inside = far.table()[:, list(tensor_map.order)]
    number, within = np.divmod(inside, np.array(tensor_map.box))
    box = number @ np.cumprod((1, *(number.max(axis=0) + 1)[:-1]))
    elements, taken = int(np.prod(tensor_map.box)), np.bincount(box)
    if (taken[taken > 0] != elements).any():
        return f"a box of the map has {elements} elements, and of the tile {len(inside)} elements it takes {int(taken[taken > 0].min())}"
    weights = np.cumprod((1, *tensor_map.box[:-1]))
    behind = within @ weights
    places = _places(near, buffer, copy)
    starts = np.zeros(len(taken), dtype=np.int64)
    starts[box[behind == 0]] = places[behind == 0]
    engine = _swizzled(starts[box] + behind * buffer.dtype.bytes, tensor_map.span)
    wrong = np.flatnonzero(engine != places)
    if not wrong.size:
        return None
    offset = tuple(int(one) for one in inside[wrong[0]])
    return (
        f"element {offset} of the tile, dimensions as in the map, goes to byte {int(engine[wrong[0]])} of shared memory by boxes of "
        f"{tensor_map.box} in spans of {tensor_map.span} bytes, and {buffer.name} has it at byte {int(places[wrong[0]])}"
    )


def _places(near: Access, buffer: Buffer, copy: int) -> Array:
    """The bytes of shared memory at which the elements of a tile lie, at the least values of all variables."""
    base = [one.substitute({var: var.low for var in one.variables()}) for one in near.base]
    coordinates = [(constant(one) or 0) + steps for one, steps in zip(base, near.table().T, strict=True)]
    number = constant(buffer.elements) or 0
    return buffer.offset + (np.asarray(buffer.storage.address(coordinates)) + copy * number) * buffer.dtype.bytes


def _swizzled(places: Array, span: int) -> Array:
    """Bytes of shared memory, with pieces exchanged in spans of so many bytes."""
    pieces = span // PIECE
    return places ^ (places // ROW % pieces * PIECE)


__all__ = ["check_tma_boxes"]
