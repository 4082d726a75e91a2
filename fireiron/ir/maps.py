"""Tensor maps: the layout of an array in global memory, and of the box that TMA copies to or from shared memory.

The launcher encodes a map for each array (CUDA Driver API, `cuTensorMapEncodeTiled`). Its 128 bytes are a kernel parameter.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class TensorMap:
    """A tensor map of the parameter `buffer`.

    `order` lists the array's dimensions, the contiguous one first, and `box` the number of elements of a copy along each of them. `span`
    is the swizzle span in bytes (`fireiron.ir.smem_layouts`), 16 for no swizzle.
    """

    name: str
    buffer: str
    order: tuple[int, ...]
    box: tuple[int, ...]
    span: int
