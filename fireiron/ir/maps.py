"""Tensor maps: how TMA finds a matrix in global memory, and how the box that it copies lies in shared memory.

The launcher encodes a map for each array that it is used on (CUDA Driver API, `cuTensorMapEncodeTiled`), 128 bytes that the kernel takes as
a parameter.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class TensorMap:
    """A map of parameter `buffer`: `order` are the tensor's dimensions, that of neighbours first, `box` the elements of a copy along each
    of them; `span` is the swizzle's, in bytes (`fireiron.ir.smem_layouts`), 16 for none.
    """

    name: str
    buffer: str
    order: tuple[int, ...]
    box: tuple[int, ...]
    span: int
