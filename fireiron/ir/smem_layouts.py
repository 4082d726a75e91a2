"""Shared-memory layouts of wgmma and TMA: core matrices and swizzle modes.

Along one dimension, elements are contiguous in *chunks* of `span` bytes: 128, 64, 32 or 16. The rows of a chunk follow each other in groups
of eight; the next chunk follows the last row. For spans above 16 bytes, the number of a row in its group is XORed into the number of its
16-byte units (PTX ISA, "Asynchronous warpgroup level matrix shared memory layout"). The functions below recognize these layouts in any
storage, regardless of how it was specified.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence

from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.values.expr import constant
from fireiron.values.layout import Layout, Swizzle
from fireiron.values.tensor import Storage, View

SPANS = (128, 64, 32, 16)
"""Bytes of a chunk's row, the best first: wider spans have fewer bank conflicts."""

PIECE = 16
"""Bytes that a swizzle keeps contiguous."""

GROUP = 8
"""Rows of a core matrix."""

ALIGNMENT = 1024
"""Bytes: eight rows of the widest span. A chunk at a multiple of it starts at a swizzle period."""


@frozen
class SmemLayout:
    """The layout of a matrix tile: `along` is the contiguous dimension, `span` the bytes of a chunk's row, which is the swizzle mode.

    `group_stride` is the byte offset from one group of eight rows to the next, `chunk_stride` from one chunk to the next (0 if there is
    one). They become the stride and leading-dimension byte offsets of a wgmma descriptor.
    """

    along: int
    span: int
    group_stride: int
    chunk_stride: int


def swizzle_of(span: int, element: int) -> Swizzle | None:
    """The swizzle of a span, for elements of `element` bytes."""
    bits = (span // PIECE).bit_length() - 1
    return Swizzle(bits, (PIECE // element).bit_length() - 1, 3) if bits else None


def widest_span(extent: int, element: int) -> int | None:
    """The widest span that divides a row of `extent` elements."""
    return next((span for span in SPANS if extent * element % span == 0), None)


def chunk_layout(shape: Sequence[int], along: int, span: int, element: int) -> Layout:
    """The storage of a matrix in chunks: rows of `span` bytes along a dimension, all rows of a chunk, then the next chunk.

    >>> str(chunk_layout((64, 128), 1, 128, 2))
    '(64,(64,2)):(64,(1,4096))'
    """
    width = span // element
    length, rows = shape[along], shape[1 - along]
    if length % width:
        raise ArgumentError(f"chunks of {width} elements do not divide the {length} of a row", legal="a multiple")
    line = Layout(width) if length == width else Layout((width, length // width), (1, rows * width))
    modes = {along: line, 1 - along: Layout(rows, width)}
    return Layout((modes[0].shape, modes[1].shape), (modes[0].stride, modes[1].stride))


def chunk_storage(view: View, along: int, span: int) -> Storage:
    """The storage in chunks of the whole matrix of a view, contiguous along one of the view's dimensions.

    Legal when: the tensor has two dimensions, of known sizes.
    """
    shape, element = [constant(size) or 0 for size in view.tensor.shape], view.dtype.bytes
    return Storage(chunk_layout(shape, view.axis(along), span, element), math.prod(shape), swizzle_of(span, element))


def smem_layout_of(storage: Storage, view: View, element: int) -> SmemLayout | str:
    """The layout of a two-dimensional view in a storage, or the reason why it is none of these layouts."""
    sizes = [constant(size) for size in view.shape]
    if None in sizes or not storage.layout.static:
        return "a storage of run-time sizes"
    if len(view.tensor.shape) != 2:
        return f"a buffer of {len(view.tensor.shape)} dimensions"
    if any(len(dim.modes) != 1 or constant(dim.modes[0].stride) != 1 for dim in view.dims):
        return "a tile whose rows and columns are not contiguous"
    starts = [_places(storage, view.axis(dim), size or 0) for dim, size in enumerate(sizes)]
    along = next((dim for dim in (0, 1) if len(starts[dim]) > 1 and starts[dim][1] == 1), None)
    if along is None:
        return "a storage without contiguous rows or columns"
    spans = _spans(starts[along], starts[1 - along], element, storage)
    if isinstance(spans, str):
        return spans
    span, chunk, group = spans
    origin = {along: span // element if chunk else sizes[along] or 1, 1 - along: GROUP}
    for dim, multiple in origin.items():
        if view.dims[dim].base.factor % multiple:
            return f"a tile that does not start at a multiple of {multiple}"
    steps = {view.axis(along): span // element, view.axis(1 - along): GROUP}
    if not _in_phase(storage, view, steps, GROUP * span // element):
        return f"groups of rows that do not start at multiples of {GROUP * span} bytes, the period of their swizzle"
    return SmemLayout(along, span, group * element, chunk * element)


def _in_phase(storage: Storage, view: View, steps: Mapping[int, int], period: int) -> bool:
    """Whether all groups of rows of a tensor, and its copies, start at a swizzle period: a descriptor of a tile has no phase."""
    sizes = [constant(size) for size in (*view.tensor.shape, storage.extent)]
    if None in sizes or len(sizes) != 3 or (sizes[-1] or 0) % period:
        return False
    starts = (storage.part(dim, place) for dim, step in steps.items() for place in range(0, sizes[dim] or 0, step))
    return all(start % period == 0 for start in starts)


@functools.lru_cache(maxsize=256)
def _places(storage: Storage, dim: int, size: int) -> tuple[int, ...]:
    """The address offset of each coordinate before the swizzle."""
    return tuple(storage.part(dim, coordinate) for coordinate in range(size))


def _spans(line: Sequence[int], rows: Sequence[int], element: int, storage: Storage) -> tuple[int, int, int] | str:
    """The span, and the offsets in elements from chunk to chunk and from group to group; or why there are none."""
    for span in SPANS:
        width = span // element
        if storage.swizzle != swizzle_of(span, element) or len(rows) < GROUP or list(rows[:GROUP]) != [row * width for row in range(GROUP)]:
            continue
        chunk = line[width] if len(line) > width else 0
        group = rows[GROUP] if len(rows) > GROUP else GROUP * width
        if all(place == at % width + at // width * chunk for at, place in enumerate(line)) and all(
            place == row % GROUP * width + row // GROUP * group for row, place in enumerate(rows)
        ):
            return span, chunk, group
    return f"rows that are not chunks of 128, 64, 32 or 16 bytes ({storage.layout}, {storage.swizzle or 'no swizzle'})"
