"""Copies of arrays that kernels cannot read, and results for arrays without elements.

PyTorch and NumPy multiply matrices with any strides, including negative and zero strides, and arrays without rows, columns or terms.
Kernels read contiguous rows or columns. So other arrays are first copied by their library, on its current stream. If the caller's result
has other strides, a contiguous result is computed and then copied.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

from fireiron import recorder
from fireiron.errors import ArgumentError

LIBRARIES: Final = ("numpy", "cupy", "torch")
"""The libraries whose arrays are copied."""


def library(array: Any) -> str:
    """Return the name of an array's library."""
    return type(array).__module__.partition(".")[0]


def is_matrix_readable(shape: Sequence[int], steps: Sequence[int]) -> bool:
    """Return whether the last two dimensions are row-major or column-major, and no stride is negative.

    >>> is_matrix_readable((4, 8), (8, 1)), is_matrix_readable((4, 8), (1, 100)), is_matrix_readable((4, 8), (16, 2))
    (True, True, False)
    """
    if any(step < 0 for size, step in zip(shape, steps, strict=True) if size > 1):
        return False
    if len(shape) < 2:
        return True
    (rows, columns), (down, along) = shape[-2:], steps[-2:]
    by_rows = (columns == 1 or along == 1) and (rows == 1 or down >= columns)
    return by_rows or ((rows == 1 or down == 1) and (columns == 1 or along >= rows))


def copied(array: Any) -> Any:
    """Return a row-major copy."""
    recorder.note_other_work()
    kind = library(array)
    if kind == "torch":
        return array.clone(memory_format=sys.modules["torch"].contiguous_format)
    if kind == "cupy":
        with array.device:
            return array.copy(order="C")
    try:
        return array.copy(order="C")
    except MemoryError:
        raise ArgumentError("no memory for a row-major copy of an array", got=f"{array.shape}, strides {array.strides}") from None


def store(target: Any, source: Any) -> None:
    """Write elements into an array with any strides."""
    recorder.note_other_work()
    if library(target) == "torch":
        target.copy_(source)
    else:
        target[...] = source


def zeroed(array: Any) -> Any:
    """Set all elements of an array to zero, and return it."""
    recorder.note_other_work()
    if library(array) == "torch":
        return array.zero_()
    array[...] = 0
    return array


def refuse_stream(call: str, why: str, stream: Any) -> None:
    """Refuse a stream if the library of the arrays works on its own current stream."""
    if stream is not None:
        hint = "omit stream=, and make the stream current in the library of the arrays"
        raise ArgumentError(f"{call}: stream= is not supported, because {why} on the current stream", hint=hint)


__all__ = ["LIBRARIES", "copied", "is_matrix_readable", "library", "refuse_stream", "store", "zeroed"]
