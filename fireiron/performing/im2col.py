"""Find the im2col mode of TMA for a tile of pixels: `X[m // 49,m // 7 % 7 + r - 1,m % 7 + s - 1,k % 64]`.

The digits of one coordinate enumerate the pixels of the result, through rows and images, as TMA does in this mode. So a tile of pixels may
cross rows and images, whatever the size of an image is. Strides are the traversal strides of the map.

Source: PTX ISA, "Im2col mode"; CUDA Driver API, `cuTensorMapEncodeIm2col`, whose limits this module checks.
"""

from __future__ import annotations

import math
from typing import Final

from fireiron.frozen import frozen
from fireiron.ir import Im2col
from fireiron.ir.maps import parts_of_pixel, quotient_of_images
from fireiron.ir.smem_layouts import widest_span
from fireiron.language.tree import Mismatch
from fireiron.values.affine import AffineIndex
from fireiron.values.expr import constant
from fireiron.values.indirect import ArrayIndex, DimIndex
from fireiron.values.tensor import View

CORNERS: Final = {3: 1 << 15, 4: 1 << 7, 5: 1 << 4}
"""By the dimensions of an array: corners of the box of base pixels are from minus this number on, and below it."""

OFFSETS: Final = {3: 1 << 16, 4: 1 << 8, 5: 1 << 5}
"""By the dimensions of an array: offsets of the instruction are below this number."""

MOST_STEP: Final = 8
"""Maximum traversal stride."""


@frozen
class PixelTile:
    """A tile of consecutive pixels: the array's dimensions in map order (channels, width, height, images), and the mode of the map."""

    order: tuple[int, ...]
    mode: Im2col


def has_digits(view: View) -> bool:
    """Whether affine indices of a view's array have digits of a coordinate."""
    return view.tensor.through is not None and view.tensor.through.has_digits


def pixel_tile(view: View, name: str, along: int) -> PixelTile | Mismatch:
    """The tile of pixels of a view whose dimension `along` is contiguous; the mismatch if TMA cannot copy it.

    Legal when: one dimension of the array is the images, `m // 49`, to which other coordinates may be added; one is the channels, `k % 64`
    or `k`; and each of the others has one digit of m, with a factor of 1 to 8. The digits divide m in the order of the array. Within a
    piece of the tile that one box copies, a row of a chunk in shared memory, all other terms are constant. So a tile may have several taps.
    """
    through = view.tensor.through
    assert through is not None
    pixel, channel = view.axis(1 - along), view.axis(along)
    if through.value or through.mode or any(isinstance(index, AffineIndex) and index.divisor > 1 for index in through.index):
        return Mismatch(f"{name} index", "zeros outside of the array, and no quotient", through.outside)
    places = _places(through.index, pixel, channel)
    if isinstance(places, str):
        return Mismatch(f"{name} index", "m // 49 of images, m // 7 % 7 * 2 + r - 1 of pixels, k % 64 of channels", places)
    order, sizes = places
    wrong = _channels_of_tile(view, along) or _other_terms(view, along)
    if wrong is not None:
        return Mismatch(f"{name} tile", wrong[0], wrong[1])
    extents = [constant(through.array.shape[axis]) for axis in order[1:-1]]
    if None in extents:
        return Mismatch(f"{name} array", "images of a size known when the kernel is compiled", "a run-time size")
    mode = _mode(view, name, order, sizes, [extent or 1 for extent in extents], pixel)
    return mode if isinstance(mode, Mismatch) else PixelTile(order, mode)


def _places(index: tuple[ArrayIndex, ...], pixel: int, channel: int) -> tuple[tuple[int, ...], list[int]] | str:
    """The dimensions of an array in map order, and the number of base pixels along each image dimension; text if they are others."""
    channels = [axis for axis, one in enumerate(index) if isinstance(one, DimIndex) and one.dim == channel and one.divisor == 1]
    images: list[tuple[int, int, int]] = []  # divisor, modulus, dimension of the array
    for axis, part in enumerate(index):
        if axis in channels:
            continue
        if not isinstance(part, (AffineIndex, DimIndex)):
            return "an index from a table"
        if isinstance(part, AffineIndex) and any(dim == pixel for dim, _ in part.terms):
            return "a coordinate of the pixels that is no digit"
        own, _ = parts_of_pixel(part, pixel)
        if len(own.digits) != 1:
            return f"{len(own.digits)} digits of the pixels in the index of a dimension"
        (term,) = own.digits
        if not 1 <= term.factor <= MOST_STEP:
            return f"a factor of {term.factor}; legal: 1 to {MOST_STEP}"
        if not term.modulus and quotient_of_images(part) is None:
            return "images that a product or several digits determine"
        images.append((term.divisor, term.modulus, axis))
    images.sort(key=lambda one: (one[0], one[1] or math.inf))
    ends = [divisor * modulus for divisor, modulus, _ in images]
    if len(channels) != 1 or len(index) not in CORNERS or not ends or ends[-1] or 0 in ends[:-1]:
        return f"{len(index)} dimensions, of which {len(channels)} have channels, and {ends.count(0)} images; legal: 3 to 5, one of each"
    if [divisor for divisor, *_ in images] != [1, *ends[:-1]]:
        return "digits of the pixels that do not follow each other"
    return (channels[0], *(axis for *_, axis in images)), [modulus for _, modulus, _ in images[:-1]]


def _piece(view: View, along: int) -> int:
    """The channels of a tile that one box copies: a row of a chunk. Without a chunk that divides the tile, all of them."""
    tile = constant(view.shape[along]) or 0
    span = widest_span(tile, view.dtype.bytes)
    return tile if span is None else span // view.dtype.bytes


def _channels_of_tile(view: View, along: int) -> tuple[str, str] | None:
    """What is required of the channels and what is given, if a tile has channels of several pixels; else None."""
    through = view.tensor.through
    assert through is not None
    channel, tile = view.axis(along), _piece(view, along)
    digit = next(one for one in through.index if isinstance(one, DimIndex) and one.dim == channel and one.divisor == 1)
    start = view.numerals[channel].base.factor
    if digit.modulus and (digit.modulus % tile or (start and start % tile)):
        return f"channels in whole tiles of {tile}", f"{digit.modulus} channels"
    return None


def _other_terms(view: View, along: int) -> tuple[str, str] | None:
    """What is required of other terms and what is given, if they differ within a tile; else None."""
    through = view.tensor.through
    assert through is not None
    channel, tile = view.axis(along), _piece(view, along)
    for index in through.index:
        if not isinstance(index, AffineIndex):
            continue
        if any(dim == channel for dim, _ in index.terms):
            return "pixels that do not depend on the channel", "a sum with the coordinate of channels"
        if any(term.dim == channel and term.divisor % tile for term in index.digits):
            return f"one tap of the filter in a tile of {tile} channels", "several taps"
    return None


def _mode(view: View, name: str, order: tuple[int, ...], sizes: list[int], extents: list[int], pixel: int) -> Im2col | Mismatch:
    """The mode of a map, from the number of base pixels and the extent of each image dimension; the mismatch if TMA does not support it."""
    through, shape = view.tensor.through, view.tensor.shape
    assert through is not None
    rank = len(order)
    lower, upper, steps = [], [], []
    for axis, size, extent in zip(order[1:-1], sizes, extents, strict=True):
        own, rest = parts_of_pixel(through.index[axis], pixel)
        ends = [constant((shape[dim] - 1) * factor) for dim, factor in rest.terms]
        ends += [constant(term.last(shape[term.dim]) * term.factor) for term in rest.digits]
        offset = constant(rest.offset)
        if offset is None or None in ends:
            return Mismatch(f"{name} index", "taps of a number known when the kernel is compiled", "a run-time size")
        known = [end for end in ends if end is not None]
        first, most = offset + sum(end for end in known if end < 0), offset + sum(end for end in known if end > 0)
        step = own.digits[0].factor
        last = first + (size - 1) * step - (extent - 1)
        if not all(-CORNERS[rank] <= corner < CORNERS[rank] for corner in (first, last)) or most - first >= OFFSETS[rank]:
            legal = f"corners from -{CORNERS[rank]} to {CORNERS[rank] - 1}, taps below {OFFSETS[rank]}"
            return Mismatch(f"{name} index", legal, f"corners {first} and {last}, taps up to {most - first}")
        lower.append(first)
        upper.append(last)
        steps.append(step)
    return Im2col(tuple(lower), tuple(upper), tuple(steps))


__all__ = ["CORNERS", "MOST_STEP", "OFFSETS", "PixelTile", "has_digits", "pixel_tile"]
