"""Depthwise convolutions that load each row of the images once; the rows of taps are adjacent."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fireiron.batches import Places, Shape, new_like, packed, viewed
from fireiron.errors import FireironError
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

FEWEST_ROWS: Final = 4
"""Minimum number of rows of taps of a depthwise convolution with which kernels load each row of an array once."""


@frozen
class BoundRows:
    """A kernel with an operand for each row of taps; `output` is the view of the result, whose rows are divided into parts."""

    kernel: CompiledKernel
    choice: Choice
    images: Places
    taps: tuple[int, int]
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
        others = [viewed(array, view) for array, view in zip(further, self.further, strict=True)]
        self.kernel(*[viewed(x, self.images)] * rows, *filters, *others, out=viewed(target, self.output), stream=stream)
        return target


def loads_rows_once(sizes: Sizes, options: CallOptions) -> bool:
    """Return whether the kernels of this file compute a convolution: its rows of taps are adjacent, and there are several."""
    stride, _, dilation = options.convolution
    return sizes.groups > 1 and sizes.taps[0] >= FEWEST_ROWS and stride[0] == dilation[0] == 1


def bound_by_rows(
    sizes: Sizes, options: CallOptions, dtype: DType, aligned: Mapping[str, int], result: Places, place: Place
) -> BoundRows | None:
    """Return the kernel for arrays with contiguous channels; None if it is illegal for them."""
    module = importlib.import_module(f"{LIBRARY}._depthwise_rows")
    parts = module.parts(sizes.images, sizes.pixels, sizes.channels, sizes.taps)
    shape: Shape = (sizes.images, parts, sizes.pixels[0] // parts, sizes.pixels[1], sizes.channels)
    output, image = (shape, packed(shape)), (sizes.images, *sizes.image, sizes.channels)
    order = Strides(c=math.prod(sizes.taps), s=1).aligned(dtype.bytes)
    further = "bias" in options.names, "residual" in options.names, options.activation
    numbers = sizes.images, sizes.image, sizes.channels, sizes.taps, *options.convolution, *further, parts
    spec = module.forward(*numbers, dtype=dtype, **dict.fromkeys((f"W{row}" for row in range(sizes.taps[0])), order))
    try:
        program = module.by_rows(sizes.channels, sizes.taps, sizes.pixels[1])(spec).program(place.architecture)
        place.prove(program)
    except FireironError:
        return None
    kernel = CompiledKernel(program)
    if not fits(aligned, program) or place.refusal(kernel) is not None:
        return None
    why = f"no record applies; the least estimated time for {dtype} on {place.architecture}: depthwise rows"
    views = tuple(((sizes.channels,), (1,)) if name == "bias" else output for name in options.names)
    return BoundRows(kernel, Choice(None, False, why, program), (image, packed(image)), sizes.taps, views, output, result, dtype)


__all__ = ["BoundRows", "bound_by_rows", "loads_rows_once"]
