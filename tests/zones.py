"""Arrays with guard zones: a kernel that reads outside an input reads NaN, and writes outside an output are detected.

Each array has separate memory, in any storage order; all bytes around it, and in the gaps between its rows, are equal.
"""

import numpy as np

from fireiron.measure.inputs import all_sizes
from fireiron.values.expr import compiled

ZONE = 1024
"""Bytes before and after an array; a multiple of every alignment."""

NAN, OTHER = 0xFF, 0xA5
"""The bytes of zones of inputs, NaN in every floating-point type, and of zones of outputs, an unlikely value."""


def placed(xp, view, sizes, values=None, zone=ZONE):
    """All the memory, as bytes, and in it the array of an operand: with the given values, or a poisoned output; `zone` bytes around it."""
    tensor = view.tensor.array  # a view with a table has another shape
    shape = tuple(int(compiled(size)(sizes)) for size in tensor.shape)
    storage, bytes = tensor.storage(), view.dtype.bytes
    strides = tuple(int(compiled(step)(sizes)) * bytes for step in storage.steps)
    memory = xp.full(int(compiled(storage.extent)(sizes)) * bytes + 2 * zone, OTHER if values is None else NAN, np.uint8)
    dtype = view.dtype.to_numpy()
    poison = np.nan if view.dtype.kind == "float" else np.iinfo(dtype).min
    values = np.full(shape, poison, dtype) if values is None else np.asarray(values, dtype)
    # CuPy has no 8-bit floats: they are stored as bytes.
    stored = np.dtype(np.uint8) if bytes == 1 and view.dtype.kind == "float" else dtype
    flat = memory[zone : len(memory) - zone].view(stored)
    array = xp.lib.stride_tricks.as_strided(flat, shape, strides)
    array[...] = xp.asarray(values.view(stored))
    return memory, array


def written_outside(memory, array, zone=ZONE):
    """The number of changed bytes outside an output's own elements, given all its memory, on the host, and an array with its shape and
    strides.
    """
    own = np.zeros(len(memory), bool)
    itemsize = array.dtype.itemsize
    np.lib.stride_tricks.as_strided(own[zone:], (*array.shape, itemsize), (*array.strides, 1))[...] = True
    return int((memory[~own] != OTHER).sum())


def known(spec, sizes):
    """The values of all symbols, strides included."""
    return all_sizes(spec, sizes)
