"""Arrays with guard zones: what a kernel reads outside an input is NaN, and what it writes outside an output is found.

An array lies in memory of its own, in any storage; around it, and in the gaps between its rows, all bytes are alike.
"""

import numpy as np

from fireiron.measure.inputs import all_sizes
from fireiron.values.expr import compiled

ZONE = 1024
"""Bytes before and behind an array; a multiple of every alignment."""

NAN, OTHER = 0xFF, 0xA5
"""What zones of inputs hold, NaN in every type of floats, and what those of outputs hold, which nobody writes by chance."""


def placed(xp, view, sizes, values=None, zone=ZONE):
    """All the memory, as bytes, and in it the array of an operand: of these values, or an output, poisoned; `zone` bytes around it."""
    shape = tuple(int(compiled(size)(sizes)) for size in view.shape)
    storage, bytes = view.tensor.storage(), view.dtype.bytes
    strides = tuple(int(compiled(step)(sizes)) * bytes for step in storage.steps)
    whole = xp.full(int(compiled(storage.extent)(sizes)) * bytes + 2 * zone, OTHER if values is None else NAN, np.uint8)
    flat = whole[zone : len(whole) - zone].view(view.dtype.to_numpy())
    array = xp.lib.stride_tricks.as_strided(flat, shape, strides)
    dtype = view.dtype.to_numpy()
    poison = np.nan if view.dtype.kind == "float" else np.iinfo(dtype).min
    array[...] = xp.asarray(np.full(shape, poison, dtype) if values is None else values)
    return whole, array


def written_outside(whole, array, zone=ZONE):
    """How many bytes beside an output's own elements have changed: of all its memory, on the host, and an array with its shape and strides."""
    own = np.zeros(len(whole), bool)
    itemsize = array.dtype.itemsize
    np.lib.stride_tricks.as_strided(own[zone:], (*array.shape, itemsize), (*array.strides, 1))[...] = True
    return int((whole[~own] != OTHER).sum())


def known(spec, sizes):
    """The values of all symbols, strides included."""
    return all_sizes(spec, sizes)
