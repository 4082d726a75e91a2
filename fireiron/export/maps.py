"""Tensor maps in exported launchers: the C that encodes them, and what their arrays must keep to.

They are encoded at each launch: that costs a fraction of one in C, needs no state, and is right for whatever lies at an address.

Source: CUDA Driver API, Tensor Map Object Management, `cuTensorMapEncodeTiled`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from fireiron.errors import ArgumentError
from fireiron.gpu.maps import GRANULE, check_box, kind_of
from fireiron.ir import Buffer, Kernel, TensorMap
from fireiron.values.expr import Expr, any_of, constant, equal

_KINDS: Final = ("UINT8", "UINT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT16", "FLOAT32", "FLOAT64", "BFLOAT16")
"""`CUtensorMapDataType`, without its prefix."""


def maps_of(kernel: Kernel) -> tuple[TensorMap, ...]:
    """The tensor maps that a kernel takes; a `LaunchError` for one that TMA does not take."""
    found = tuple(one for one in kernel.parameters if isinstance(one, TensorMap))
    for one in found:
        check_box(one, kernel.buffer(one.buffer))
    return found


def map_facts(kernel: Kernel) -> dict[str, Expr]:
    """Conditions on sizes without which the arrays have no maps, with a text each: strides that TMA takes."""
    return {
        f"rows of {one.buffer} lie a multiple of {GRANULE} bytes apart": any_of(
            (equal(extent, 1), equal(step % (GRANULE // buffer.dtype.bytes), 0))
        )
        for one in maps_of(kernel)
        for buffer in [kernel.buffer(one.buffer)]
        for extent, step in _outer(buffer, one)
    }


def encodings(kernel: Kernel, local: Callable[[str], str], encode: str, failure: str, place: Callable[[str], str]) -> list[str]:
    """C, in the body of a function: each map is encoded into its place of `local("maps")`; where one is refused, `failure` is returned.

    `local` makes a name that no parameter has; `encode` is the name of the driver's function; `place` names the address of an operand.
    """
    maps = local("maps")
    return [
        line
        for number, one in enumerate(maps_of(kernel))
        for line in _encoding(kernel, one, local, f"{encode}(&{maps}[{number}]", failure, place(one.buffer))
    ]


def _encoding(kernel: Kernel, tensor_map: TensorMap, local: Callable[[str], str], call: str, failure: str, place: str) -> list[str]:
    buffer = kernel.buffer(tensor_map.buffer)
    sizes = [_wide(buffer.tensor.shape[dim]) for dim in tensor_map.order]
    between = [_stride(size, step * buffer.dtype.bytes) for size, step in _outer(buffer, tensor_map)] or ["0"]
    box, ones = [str(size) for size in tensor_map.box], ["1" for _ in tensor_map.box]
    arrays = extents, strides, boxes, steps = [local(name) for name in ("extents", "strides", "box", "steps")]
    modes = ("INTERLEAVE_NONE", f"SWIZZLE_{_swizzle(tensor_map.span)}", "L2_PROMOTION_L2_128B", "FLOAT_OOB_FILL_NONE")
    return [
        "{",
        f"  const cuuint64_t {extents}[] = {{{', '.join(sizes)}}};",
        f"  const cuuint64_t {strides}[] = {{{', '.join(between)}}};",
        f"  const cuuint32_t {boxes}[] = {{{', '.join(box)}}}, {steps}[] = {{{', '.join(ones)}}};",
        f"  if ({call}, CU_TENSOR_MAP_DATA_TYPE_{_KINDS[kind_of(buffer.dtype)]}, {len(box)}, (void *)(uintptr_t){place},",
        f"      {', '.join(arrays)}, CU_TENSOR_MAP_{modes[0]}, CU_TENSOR_MAP_{modes[1]},",
        f"      CU_TENSOR_MAP_{modes[2]}, CU_TENSOR_MAP_{modes[3]}) != CUDA_SUCCESS)",
        f"    return {failure};",
        "}",
    ]


def _outer(buffer: Buffer, tensor_map: TensorMap) -> Iterable[tuple[Expr, Expr]]:
    """Elements along each dimension but that of neighbors, and those from one to the next."""
    for dim in tensor_map.order[1:]:
        step = buffer.storage.steps[dim]
        if step is None:
            raise ArgumentError(f"export: {buffer.name} is stored as {buffer.storage.layout}, which has no tensor map")
        yield buffer.tensor.shape[dim], step


def _stride(extent: Expr, stride: Expr) -> str:
    """Bytes in C; along a dimension of one element any will do, and the array's own may be none for TMA."""
    if stride.factor % GRANULE == 0:
        return _wide(stride)
    known = constant(extent)
    return f"{GRANULE}" if known == 1 else f"{_wide(extent)} > 1 ? {_wide(stride)} : {GRANULE}"


def _wide(value: Expr) -> str:
    from fireiron.cuda import expression

    number = constant(value)
    return f"(cuuint64_t)({expression(value)})" if number is None else f"{number}"


def _swizzle(span: int) -> str:
    return "NONE" if span == GRANULE else f"{span}B"
