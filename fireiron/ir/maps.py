"""Tensor maps: the layout of an array in global memory, and of the box that TMA copies to or from shared memory.

The launcher encodes a map for each array (CUDA Driver API, `cuTensorMapEncodeTiled`, `cuTensorMapEncodeIm2col`). Its 128 bytes are a kernel
parameter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fireiron.frozen import frozen
from fireiron.values.affine import AffineIndex, DigitTerm
from fireiron.values.expr import ZERO
from fireiron.values.indirect import ArrayIndex, DimIndex, TableIndex


@frozen
class Im2col:
    """The im2col mode of a tensor map of images: a box has channels of consecutive pixels, across rows and images.

    Each field has a number for each image dimension, in map order: width, height, depth. A base pixel visits the coordinates from `lower`
    on, by `steps` (traversal strides), up to the extent minus 1 plus `upper`; then the next row or image follows. The instruction adds an
    offset of at least 0 to each coordinate, the tap of the filter. Pixels outside of the array are zeros.

    Source: PTX ISA, "Im2col mode"; CUDA Driver API, `cuTensorMapEncodeIm2col`.
    """

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]

    def start(self, index: Sequence[ArrayIndex], coordinates: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The coordinates of the first pixel of a box, and the offsets along the image dimensions; of expressions or arrays of integers.

        `index` is the index along each dimension of the array in map order: the channels, the image dimensions, the images. The digits of
        the pixel's number determine its coordinate, and all other terms the offset.
        """
        channels, *images, batch = index
        assert isinstance(channels, DimIndex) and not isinstance(batch, TableIndex)
        first, offsets, pixel = [channels.of(coordinates[channels.dim])], [], quotient_of_images(batch)
        assert pixel is not None
        for place, part in enumerate(images):
            own, rest = parts_of_pixel(part, pixel.dim)
            first.append(own.of(coordinates) + self.lower[place])
            offsets.append(rest.of(coordinates) - self.lower[place])
        number = batch.of(coordinates[batch.dim]) if isinstance(batch, DimIndex) else batch.of(coordinates)
        return (*first, number), tuple(offsets)


def quotient_of_images(index: ArrayIndex) -> DigitTerm | None:
    """The quotient of a pixel's number in the index of the images, `m // 49` or `m // 49 + b * 4`; None if the index has another form."""
    if isinstance(index, DimIndex):
        return None if index.modulus else DigitTerm(index.dim, 1, index.divisor)
    if not isinstance(index, AffineIndex) or len(index.digits) != 1 or index.divisor > 1:
        return None
    (term,) = index.digits
    is_plain = not term.modulus and term.factor == 1 and all(dim != term.dim for dim, _ in index.terms)
    return term if is_plain else None


def parts_of_pixel(index: ArrayIndex, pixel: int) -> tuple[AffineIndex, AffineIndex]:
    """The part of an index that digits of the dimension `pixel` determine, and the rest."""
    if isinstance(index, DimIndex):
        index = AffineIndex((), digits=(DigitTerm(index.dim, 1, index.divisor, index.modulus),))
    assert isinstance(index, AffineIndex)
    own = tuple(term for term in index.digits if term.dim == pixel)
    others = tuple(term for term in index.digits if term.dim != pixel)
    return AffineIndex((), ZERO, 1, own), AffineIndex(index.terms, index.offset, 1, others)


@frozen
class TensorMap:
    """A tensor map of the parameter `buffer`.

    `order` lists the array's dimensions, the contiguous one first, and `box` the number of elements of a copy along each of them. `span`
    is the swizzle span in bytes (`fireiron.ir.smem_layouts`), 16 for no swizzle. With `im2col`, the second number of `box` counts pixels.
    """

    name: str
    buffer: str
    order: tuple[int, ...]
    box: tuple[int, ...]
    span: int
    im2col: Im2col | None = None


ROWS_OF_SWIZZLE: Final = 8
"""The period of a swizzle in rows; parts of a chunk start at multiples of the period."""

MOST_BOXES: Final = 4
"""Maximum number of boxes into which the rows of a box are divided at the end of an array."""

LEAST_ROWS: Final = 16
"""Minimum number of rows of such a box."""

ROWS_PER_BOX: Final = 8
"""The number of rows out of bounds that must be avoided for each further box."""


def rows_of_box(rows: int, extent: int) -> int:
    """Return the rows of the boxes into which to divide boxes of `rows` rows, because few rows of the last box are in bounds.

    TMA takes longer for rows out of bounds than for others, but needs no time for a box that is not loaded. On an H200, three boxes
    of 32 rows take as long as one of 96 (perf/results/2026-11-30-h200-choice-3).

    >>> rows_of_box(96, 1064), rows_of_box(96, 1152), rows_of_box(136, 1064)
    (32, 96, 136)
    """
    counts = [count for count in range(1, MOST_BOXES + 1) if rows % (ROWS_OF_SWIZZLE * count) == 0 and rows // count >= LEAST_ROWS]
    return rows // min(counts or [1], key=lambda count: -extent % (rows // count) + ROWS_PER_BOX * count)
