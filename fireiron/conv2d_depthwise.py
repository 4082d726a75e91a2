"""Depthwise convolutions that load each row of the images once; the rows of taps are adjacent."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fireiron.batches import Places, Shape, new_like, packed, viewed
from fireiron.errors import FireironError
from fireiron.front.arrays import ALIGNMENT
from fireiron.front.place import Place, fits
from fireiron.frozen import frozen
from fireiron.gpu.kernel import CompiledKernel
from fireiron.language.library import LIBRARY
from fireiron.tune.records import Choice
from fireiron.values.machine import DType
from fireiron.values.strides import Strides

if TYPE_CHECKING:
    from fireiron.conv2d import CallOptions
    from fireiron.conv2d_kernels import Sizes

FEWEST_ROWS: Final = 3
"""Minimum number of rows of taps of a depthwise convolution with which kernels load each row of an array once."""


@frozen
class BoundRows:
    """A kernel with an operand for each row of taps; `output` is the view of the result, whose rows are divided into parts.

    `stride` is that of rows, and `at_once` are the rows of the result that a thread computes together.
    """

    kernel: CompiledKernel
    choice: Choice
    images: Places
    taps: tuple[int, int]
    stride: int
    at_once: int
    further: tuple[Places, ...]
    output: Places
    result: Places
    dtype: DType

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the result."""
        x, w, *further = inputs
        rows, columns = self.taps
        places = (self.result[0][1], columns), (rows * columns, 1)
        filters = [viewed(w[:, :, row:], places) for row in reversed(range(rows))]
        target = viewed(new_like(x, (math.prod(self.result[0]),), self.dtype), self.result) if out is None else out
        others: list[Any] = []
        for array, view in zip(further, self.further, strict=True):
            rows_of = rows_at_once(array, view, self.at_once) if len(view[0]) > 1 else viewed(array, view)
            others += rows_of if isinstance(rows_of, tuple) else (rows_of,)
        images = [viewed(x, self.images)] * (rows + (self.at_once - 1) * self.stride)
        self.kernel(*images, *filters, *others, out=rows_at_once(target, self.output, self.at_once), stream=stream)
        return target


def rows_at_once(array: Any, places: Places, count: int) -> Any:
    """Return the views of rows that a thread visits together: every `count`-th row of each part from one of the first ones on."""
    (shape, strides) = places
    whole = viewed(array, ((*shape[:2], shape[2] // count, count, *shape[3:]), (*strides[:2], strides[2] * count, *strides[2:])))
    rows = tuple(whole[:, :, :, number] for number in range(count))
    return rows if count > 1 else rows[0]


def orders_of_rows(module: Any, names: Sequence[str], strides: Shape, count: int, align: int) -> dict[str, Strides]:
    """Return the storage orders of the operands of rows that a thread visits together, from the strides of images, parts, rows, ..."""
    order = Strides(b=strides[0], z=strides[1], y=strides[2] * count, q=strides[3], c=strides[4]).aligned(align)
    return {module.numbered(name, number): order for name in names for number in range(count)}


def loads_rows_once(sizes: Sizes, options: CallOptions) -> bool:
    """Return whether the kernels of this file compute a convolution: rows of taps are adjacent, and several are loaded together."""
    stride, _, dilation = options.convolution
    if sizes.groups == 1 or sizes.taps[0] < FEWEST_ROWS or dilation[0] > 1:
        return False
    return bool(importlib.import_module(f"{LIBRARY}._depthwise_rows").suits(sizes.pixels[0], sizes.taps, stride[0]))


def bound_by_rows(
    sizes: Sizes, options: CallOptions, dtype: DType, aligned: Mapping[str, int], result: Places, place: Place
) -> BoundRows | None:
    """Return the kernel for arrays with contiguous channels; None if it is illegal for them."""
    module = importlib.import_module(f"{LIBRARY}._depthwise_rows")
    stride, numbers = options.convolution[0][0], (sizes.images, sizes.pixels, sizes.channels, sizes.taps)
    rows = module.rows_of_result(*numbers, stride, not options.names and options.epilogue["activation"] is None)
    shape: Shape = (sizes.images, rows.parts, sizes.pixels[0] // rows.parts, sizes.pixels[1], sizes.channels)
    output, image = (shape, packed(shape)), (sizes.images, *sizes.image, sizes.channels)
    align, together = math.gcd(ALIGNMENT, sizes.channels * dtype.bytes), rows.together
    orders = dict.fromkeys((f"W{row}" for row in range(sizes.taps[0])), Strides(c=math.prod(sizes.taps), s=1).aligned(dtype.bytes))
    orders |= orders_of_rows(module, ("Y", *(["R"] if "residual" in options.names else [])), output[1], together, align)
    given = sizes.images, sizes.image, sizes.channels, sizes.taps, *options.convolution
    spec = module.forward(*given, **options.epilogue, rows=rows, dtype=dtype, **orders)
    try:
        program = module.by_rows(sizes.channels, sizes.taps, rows, stride)(spec).program(place.architecture)
        place.prove(program)
    except FireironError:
        return None
    kernel = CompiledKernel(program)
    if not fits(aligned, program) or place.refusal(kernel) is not None:
        return None
    why = f"no record applies; the least estimated time for {dtype} on {place.architecture}: depthwise rows"
    views = options.further(sizes.channels, output)
    choice = Choice(None, False, why, program)
    return BoundRows(kernel, choice, (image, packed(image)), sizes.taps, stride, together, views, output, result, dtype)


__all__ = ["BoundRows", "bound_by_rows", "loads_rows_once", "orders_of_rows", "rows_at_once"]
