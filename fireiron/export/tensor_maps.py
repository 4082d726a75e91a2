"""Print the C code that encodes the tensor maps of an exported launcher, and the conditions on their arrays.

Each launch encodes its tensor maps. This takes a fraction of the launch time, needs no state, and is correct for any address.

Source: CUDA Driver API, Tensor Map Object Management, `cuTensorMapEncodeTiled`,
`cuTensorMapEncodeIm2col`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from fireiron.errors import ArgumentError
from fireiron.gpu.maps import GRANULE, check_box, kind_of
from fireiron.ir import Buffer, Kernel, TensorMap
from fireiron.values.expr import Expr, any_of, constant, equal

_KINDS: Final = ("UINT8", "UINT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT16", "FLOAT32", "FLOAT64", "BFLOAT16")
"""The values of `CUtensorMapDataType` in order, without their prefix."""


ENCODERS: Final = ("cuTensorMapEncodeTiled", "cuTensorMapEncodeIm2col")
"""The functions of the driver that encode tensor maps, without and with im2col mode."""


def maps_of(kernel: Kernel) -> tuple[TensorMap, ...]:
    """Return the tensor maps that a kernel takes.

    Raises: a `LaunchError` if TMA does not support one of them.
    """
    maps = tuple(parameter for parameter in kernel.parameters if isinstance(parameter, TensorMap))
    for tensor_map in maps:
        check_box(tensor_map, kernel.buffer(tensor_map.buffer))
    return maps


def map_facts(kernel: Kernel) -> dict[str, Expr]:
    """Return the conditions on strides that tensor maps require, by their texts."""
    return {
        f"the row stride of {tensor_map.buffer} is a multiple of {GRANULE} bytes": any_of(
            (equal(extent, 1), equal(step % (GRANULE // buffer.dtype.bytes), 0))
        )
        for tensor_map in maps_of(kernel)
        for buffer in [kernel.buffer(tensor_map.buffer)]
        for extent, step in _outer_dimensions(buffer, tensor_map)
    }


def encodings(
    kernel: Kernel, local: Callable[[str], str], encode: str, pixels: str, failure: str, address: Callable[[str], str]
) -> list[str]:
    """Return C statements that encode each map into its element of `local("maps")`, and return `failure` if the driver refuses one.

    `local` returns a name that differs from all parameters. `encode` is the name of the driver's function, or `pixels` for a map in im2col
    mode. `address` returns the name of an operand's address.
    """
    maps = local("maps")
    return [
        line
        for number, tensor_map in enumerate(maps_of(kernel))
        for function in [encode if tensor_map.im2col is None else pixels]
        for line in _encoding(kernel, tensor_map, local, f"{function}(&{maps}[{number}]", failure, address(tensor_map.buffer))
    ]


def _encoding(kernel: Kernel, tensor_map: TensorMap, local: Callable[[str], str], call: str, failure: str, address: str) -> list[str]:
    buffer = kernel.buffer(tensor_map.buffer)
    sizes = [_as_uint64(buffer.array.shape[dim]) for dim in tensor_map.order]
    between = [_stride(size, step * buffer.dtype.bytes) for size, step in _outer_dimensions(buffer, tensor_map)] or ["0"]
    box, unit_steps = [str(size) for size in tensor_map.box], ["1" for _ in tensor_map.box]
    if (mode := tensor_map.im2col) is not None:
        unit_steps[1:-1] = map(str, mode.steps)
    arrays = extents, strides, boxes, steps = [local(name) for name in ("extents", "strides", "box", "steps")]
    declared = [f"  const cuuint32_t {boxes}[] = {{{', '.join(box)}}}, {steps}[] = {{{', '.join(unit_steps)}}};"]
    rest = ", ".join(arrays)
    if mode is not None:
        corners = [local(name) for name in ("lower", "upper")]
        numbers = [", ".join(map(str, corner)) for corner in (mode.lower, mode.upper)]
        declared = [
            f"  const cuuint32_t {steps}[] = {{{', '.join(unit_steps)}}};",
            *(f"  const int {name}[] = {{{corner}}};" for name, corner in zip(corners, numbers, strict=True)),
        ]
        rest = ", ".join((extents, strides, *corners, *box[:2], steps))
    modes = ("INTERLEAVE_NONE", f"SWIZZLE_{_swizzle(tensor_map.span)}", "L2_PROMOTION_L2_128B", "FLOAT_OOB_FILL_NONE")
    return [
        "{",
        f"  const cuuint64_t {extents}[] = {{{', '.join(sizes)}}};",
        f"  const cuuint64_t {strides}[] = {{{', '.join(between)}}};",
        *declared,
        f"  if ({call}, CU_TENSOR_MAP_DATA_TYPE_{_KINDS[kind_of(buffer.dtype)]}, {len(box)}, (void *)(uintptr_t){address},",
        f"      {rest}, CU_TENSOR_MAP_{modes[0]}, CU_TENSOR_MAP_{modes[1]},",
        f"      CU_TENSOR_MAP_{modes[2]}, CU_TENSOR_MAP_{modes[3]}) != CUDA_SUCCESS)",
        f"    return {failure};",
        "}",
    ]


def _outer_dimensions(buffer: Buffer, tensor_map: TensorMap) -> Iterable[tuple[Expr, Expr]]:
    """Yield extent and stride in elements of each dimension except the contiguous one."""
    for dim in tensor_map.order[1:]:
        step = buffer.array_storage.steps[dim]
        if step is None:
            raise ArgumentError(f"export: a tensor map cannot represent the storage of {buffer.name}, {buffer.storage.layout}")
        yield buffer.array.shape[dim], step


def _stride(extent: Expr, stride: Expr) -> str:
    """Return a stride in bytes as C. A dimension of extent 1 gets a legal stride, because TMA may not support the stride of the array."""
    if stride.factor % GRANULE == 0:
        return _as_uint64(stride)
    known = constant(extent)
    return f"{GRANULE}" if known == 1 else f"{_as_uint64(extent)} > 1 ? {_as_uint64(stride)} : {GRANULE}"


def _as_uint64(value: Expr) -> str:
    from fireiron.cuda import expression

    number = constant(value)
    return f"(cuuint64_t)({expression(value)})" if number is None else f"{number}"


def _swizzle(span: int) -> str:
    return "NONE" if span == GRANULE else f"{span}B"
