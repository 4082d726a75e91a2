"""Check that TMA in im2col mode visits the pixels that the indices of an operand select.

The map has the corners of the base pixels, and traversal strides; the instruction has a first pixel and offsets. This check follows the
walk pixel after pixel, as PTX ISA, "Im2col mode" describes it, from each row of the result that a box can start at, and compares each
pixel with the index of the operand. It shares no function with the simulator (`fireiron.sim.tma_boxes`), which divides pixel numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from fireiron.ir import Exec, Im2col, Kernel, TensorMap
from fireiron.values.affine import AffineIndex, DigitTerm
from fireiron.values.expr import constant
from fireiron.values.indirect import ArrayIndex, DimIndex, TableIndex
from fireiron.values.tensor import Tensor

Array = Any

SAMPLES: Final = 4096
"""Maximum number of first pixels, and of values of other coordinates, that the check compares."""

MOST_PIXELS, MOST_STEP = 1024, 8
"""Maximum number of pixels of a box, and maximum traversal stride (CUDA Driver API, cuTensorMapEncodeIm2col)."""

BITS: Final = {3: 16, 4: 8, 5: 5}
"""By the dimensions of an array: bits of the offsets and of the corners."""


def wrong_pixels(kernel: Kernel, statement: Exec, tensor_map: TensorMap) -> str | None:
    """The difference between the pixels of a box and those of the operand; None if there is none, or the map has another mode."""
    tensor, mode = kernel.buffer(tensor_map.buffer).tensor, tensor_map.im2col
    if mode is None:  # `check/tma_boxes.py` compares boxes
        return None
    rank = len(tensor_map.order)
    images = rank - 2
    if tensor.through is None or rank not in BITS or {len(mode.lower), len(mode.upper), len(mode.steps)} != {images}:
        return f"its map has the im2col mode {mode} for an array of {rank} dimensions"
    if not all(1 <= step <= MOST_STEP for step in mode.steps) or tensor_map.box[1] > MOST_PIXELS:
        return f"its map has traversal strides {mode.steps} and {tensor_map.box[1]} pixels; legal: 1 to {MOST_STEP}, and {MOST_PIXELS}"
    most = 1 << BITS[rank] - 1
    if not all(-most <= corner < most for corner in (*mode.lower, *mode.upper)):
        return f"its map has the corners {mode.lower} and {mode.upper}; legal: from {-most} to {most - 1}"
    index = [tensor.through.index[axis] for axis in tensor_map.order]
    extents = [constant(tensor.through.array.shape[axis]) for axis in tensor_map.order[1:-1]]
    if _images(index[-1]) is None or not isinstance(index[0], DimIndex) or None in extents:
        return "its map has an im2col mode, but its array has no images, channels, or sizes known when the kernel is compiled"
    if any(isinstance(part, TableIndex) for part in index):
        return "its map has an im2col mode, and its array has an index from a table"
    return _different_pixel(tensor, mode, index, [extent or 0 for extent in extents], tensor_map.box[1])


def _different_pixel(tensor: Tensor, mode: Im2col, index: list[ArrayIndex], extents: list[int], pixels: int) -> str | None:
    """Text that names a pixel that the walk visits instead of the one that an index selects; None if there is none."""
    own, images = _images(index[-1]) or (0, 0)
    counts = [_count(extent, *corner) for extent, corner in zip(extents, zip(mode.lower, mode.upper, mode.steps, strict=True), strict=True)]
    if math.prod(counts) != images:
        return f"TMA visits {' x '.join(map(str, counts))} pixels of an image, but an image has {images} in the indices"
    affine = [_as_affine(part) for part in index[1:]]
    first = np.unique(np.linspace(0, 2 * images - 1, min(2 * images, SAMPLES)).astype(np.int64))
    for others in _corners(tensor, own):
        coordinates: list[Array] = list(others)
        coordinates[own] = first
        (_, *places, image), taps = mode.start(index, coordinates)
        place = [np.broadcast_to(np.asarray(one), first.shape) for one in (*places, image)]
        shifts = [int(tap) for tap in taps]
        if any(not 0 <= tap < 1 << BITS[len(index)] for tap in shifts):
            return f"its instruction has the offsets {shifts}; legal: from 0 to {(1 << BITS[len(index)]) - 1}"
        for number in range(min(pixels, images + 1)):
            coordinates[own] = first + number
            wanted = [part.of(coordinates) for part in affine]
            visited = [*(one + tap for one, tap in zip(place[:-1], shifts, strict=True)), place[-1]]
            for pixel, selected in zip(visited, wanted, strict=True):
                if (pixel != selected).any():
                    start = int(first[np.flatnonzero(pixel != selected)[0]])
                    return f"TMA visits another pixel than the index selects: pixel {number} of a box that starts at {start}"
            place = _next(place, mode, extents)
    return None


def _images(index: ArrayIndex) -> tuple[int, int] | None:
    """The dimension whose coordinates number the pixels, and the pixels of an image; None if the index does not determine an image."""
    if isinstance(index, DimIndex):
        return None if index.modulus else (index.dim, index.divisor)
    quotients = [] if isinstance(index, TableIndex) or index.divisor > 1 else [one for one in index.digits if not one.modulus]
    is_plain = len(quotients) == 1 and quotients[0].factor == 1 and index.digits == tuple(quotients)  # type: ignore[union-attr]
    return (quotients[0].dim, quotients[0].divisor) if is_plain else None


def _as_affine(index: ArrayIndex) -> AffineIndex:
    """An index of image dimensions or images as a sum."""
    assert not isinstance(index, TableIndex), "im2col mode has no table"
    return index if isinstance(index, AffineIndex) else AffineIndex((), digits=(DigitTerm(index.dim, 1, index.divisor, index.modulus),))


def _count(extent: int, lower: int, upper: int, step: int) -> int:
    """The number of base pixels along an image dimension."""
    return len(range(lower, extent + upper, step))


def _next(place: list[Array], mode: Im2col, extents: list[int]) -> list[Array]:
    """The base pixels after those at `place`: width first, then height, depth and image."""
    moved, carry = [], np.ones(place[0].shape, bool)
    for value, extent, lower, upper, step in zip(place[:-1], extents, mode.lower, mode.upper, mode.steps, strict=True):
        ahead = value + step
        ends = carry & (ahead > extent - 1 + upper)
        moved.append(np.where(ends, lower, np.where(carry, ahead, value)))
        carry = ends
    return [*moved, place[-1] + carry]


def _corners(tensor: Tensor, own: int) -> list[Sequence[int]]:
    """Values of the other coordinates: all taps of a filter if there are few, else the first and the last value, which decide a sum."""
    assert tensor.through is not None
    steps = [0] * len(tensor.shape)
    for index in tensor.through.index:
        for term in index.digits if isinstance(index, AffineIndex) else ():
            steps[term.dim] = math.gcd(steps[term.dim], term.divisor)
    values = []
    for dim, size in enumerate(tensor.shape):
        number = 1 if dim == own else constant(size) or 1
        everything = range(0, number, steps[dim] or 1)
        values.append(list(everything) if steps[dim] and len(everything) <= 64 else sorted({0, number - 1}))
    return list(itertools.islice(itertools.product(*values), 256))


__all__ = ["wrong_pixels"]
