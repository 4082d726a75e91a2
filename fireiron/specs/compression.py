"""Compression of 2:4 sparse matrices: the kept values, and metadata in the bit order of PTX.

Of four adjacent elements along k at most two are not zero. A matrix is stored as two arrays, which `compress_2_4` returns:

    A[m,k // 2]   the kept elements, two of each four, in the order of k
    E[m,k // 8]   bytes with the places of the kept elements: four bits for each four elements of k

The lower half of a byte is for the first four elements. Its bits 0 and 1 are the place of the first kept element, bits 2 and 3 that of the
second, in ascending order, as in the metadata of PTX ("Sparse matrix storage" of mma.sp). Four bits of zeros, which PTX leaves undefined,
keep the first two elements, too. So the zeros that copies write past the end of an array are legal metadata.

>>> import numpy as np
>>> from fireiron import *
>>> values, metadata = compress_2_4(np.array([[0, 5, 0, 7, 1, 2, 0, 0]], np.float16))
>>> values, [hex(byte) for byte in metadata[0]]  # the places 1 and 3, then 0 and 1
(array([[5., 7., 1., 2.]], dtype=float16), ['0x4d'])
>>> decompress_2_4(values, metadata).tolist()
[[0.0, 5.0, 0.0, 7.0, 1.0, 2.0, 0.0, 0.0]]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from fireiron.errors import ArgumentError
from fireiron.spec import located
from fireiron.specs.formula import SPARSE_DIGITS

GROUP: Final = 4
"""Adjacent elements of k of which two are kept."""

KEPT: Final = 2
"""Kept elements of a group."""

PER_BYTE: Final = SPARSE_DIGITS[1]
"""Elements of k whose places are in a byte of metadata."""

SECOND: Final = 4
"""Four bits of metadata that keep the first two elements."""


@located
def compress_2_4(dense: Any, prune: bool = False) -> tuple[Any, Any]:
    """Return the kept values and the metadata of a matrix that is 2:4 sparse along its last dimension.

    Args: dense: an array (NumPy, CuPy) of any rank; the extent of its last dimension is a multiple of 8. prune: keep the two elements of
    the largest magnitude of each four, the first ones if magnitudes are equal, and drop the others.
    Returns: values `[..., k / 2]` of the same type, and uint8 metadata `[..., k / 8]`, as `SparseMatMul` reads them.

    Raises: ArgumentError, with the place of the first four elements of which more than two are not zero; for other extents and values.
    """
    xp = _library(dense)
    if dense.ndim < 1 or dense.shape[-1] % PER_BYTE or not dense.shape[-1]:
        raise ArgumentError(
            "compress_2_4: the extent of the last dimension must be a multiple of 8", got=dense.shape, legal="8, 16, 24, ...",
            hint="extend it with zeros: numpy.pad(dense, ((0, 0), (0, -k % 8)))",
        )  # fmt: skip
    groups = dense.reshape(*dense.shape[:-1], -1, GROUP)
    kept = _largest_two(xp, groups) if prune else _nonzero_two(xp, groups)
    places = xp.sort(kept, axis=-1)
    values = xp.take_along_axis(groups, places, axis=-1).reshape(*dense.shape[:-1], -1)
    return values, _packed(xp, places.astype(xp.uint8))


@located
def decompress_2_4(values: Any, metadata: Any) -> Any:
    """Return the dense matrix of kept values and metadata: the inverse of `compress_2_4`.

    Raises: ArgumentError for metadata that no kernel accepts, with its place, and for arrays whose extents do not fit.
    """
    xp = _library(values)
    if xp is not _library(metadata) or not values.ndim or not metadata.ndim:
        raise ArgumentError("decompress_2_4: not two arrays of one library", got=f"{type(values).__name__}, {type(metadata).__name__}")
    if values.shape[:-1] != metadata.shape[:-1] or values.shape[-1] * KEPT != metadata.shape[-1] * PER_BYTE or metadata.dtype != xp.uint8:
        raise ArgumentError(
            "decompress_2_4: values and metadata do not fit", got=f"{values.shape}, {metadata.shape} of {metadata.dtype}",
            legal="[..., k / 2], and [..., k / 8] of uint8",
        )  # fmt: skip
    places = places_of(metadata)
    dense = xp.zeros((*metadata.shape[:-1], metadata.shape[-1] * PER_BYTE // GROUP, GROUP), values.dtype)
    xp.put_along_axis(dense, places, values.reshape(*places.shape), axis=-1)
    return dense.reshape(*values.shape[:-1], -1)


def places_of(metadata: Any) -> Any:
    """Return the places of the kept elements in their groups, `[..., k / 4, 2]`.

    Raises: ArgumentError if the two of a group are not in ascending order.
    """
    xp = _library(metadata)
    halves = xp.stack([metadata & xp.uint8(15), metadata >> xp.uint8(4)], axis=-1)
    halves = xp.where(halves == 0, xp.uint8(SECOND), halves)
    places = xp.stack([halves & xp.uint8(3), halves >> xp.uint8(2)], axis=-1)
    places = places.reshape(*metadata.shape[:-1], -1, KEPT).astype(xp.int64)
    wrong = places[..., 0] >= places[..., 1]
    if wrong.any():
        at = tuple(map(int, xp.argwhere(wrong)[0]))
        raise ArgumentError(
            f"2:4 metadata: the places of group {at[-1]} of row {at[:-1]} are {' and '.join(map(str, places[at].tolist()))}",
            legal="two places in ascending order", hint="values, metadata = compress_2_4(dense)",
        )  # fmt: skip
    return places


def kept_elements(metadata: Any) -> Any:
    """Return which elements of the dense matrix are kept, `[..., k]` of truth values.

    Raises: ArgumentError for metadata that no kernel accepts.
    """
    xp = _library(metadata)
    places = places_of(metadata)
    kept = xp.zeros((*places.shape[:-1], GROUP), bool)
    xp.put_along_axis(kept, places, True, axis=-1)
    return kept.reshape(*metadata.shape[:-1], -1)


def random_metadata(shape: Sequence[int], generator: Any) -> Any:
    """Return random metadata of a shape: all pairs of places are equally likely."""
    import numpy

    pairs = numpy.array([first | second << 2 for second in range(GROUP) for first in range(second)], numpy.uint8)
    low, high = (pairs[generator.integers(0, len(pairs), tuple(shape))] for _ in range(2))
    return low | high << numpy.uint8(4)


def _largest_two(xp: Any, groups: Any) -> Any:
    return xp.argsort(-abs(groups.astype(xp.float64)), axis=-1, kind="stable")[..., :KEPT]


def _nonzero_two(xp: Any, groups: Any) -> Any:
    """Return the places of the elements that are not zero, and of zeros if there are fewer than two."""
    filled = groups != 0
    counts = filled.sum(axis=-1)
    if (counts > KEPT).any():
        at = tuple(map(int, xp.argwhere(counts > KEPT)[0]))
        row, first = at[:-1], at[-1] * GROUP
        place = ",".join((*map(str, row), f"{first}:{first + GROUP}"))
        raise ArgumentError(
            f"compress_2_4: {int(counts[at])} of 4 elements are not zero at [{place}]", got=groups[at].tolist(),
            legal="at most 2 of 4 adjacent elements along the last dimension", hint="compress_2_4(dense, prune=True) keeps the largest two",
        )  # fmt: skip
    return xp.argsort(~filled, axis=-1, kind="stable")[..., :KEPT]


def _packed(xp: Any, places: Any) -> Any:
    """Return the bytes of places `[..., k / 4, 2]`."""
    by_byte = places.reshape(*places.shape[:-2], -1, PER_BYTE // GROUP * KEPT)
    return by_byte[..., 0] | by_byte[..., 1] << xp.uint8(2) | by_byte[..., 2] << xp.uint8(4) | by_byte[..., 3] << xp.uint8(6)


def _library(array: Any) -> Any:
    """Return the module of an array: NumPy or CuPy. Raises: ArgumentError for other values."""
    import sys

    import numpy

    if isinstance(array, numpy.ndarray):
        return numpy
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return cupy
    raise ArgumentError("not an array", got=type(array).__name__, legal="an array of NumPy or CuPy")


__all__ = ["compress_2_4", "decompress_2_4"]
