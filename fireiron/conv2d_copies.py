"""Copy images and filters that the kernels of `fireiron.conv2d` cannot read in place.

- Images with contiguous pixels (NCHW) are transposed (`strategies/channels_last.py`).
- With few channels, the pixels that a row of a filter reads become channels (`strategies/filter_rows.py`): a convolution of 3 channels with
  7 x 7 taps becomes one of 32 channels with 7 x 1 taps.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any, Final

from fireiron.batches import Places, Shape, new_like, packed, viewed
from fireiron.front.arrays import Operand
from fireiron.front.place import Place, fits
from fireiron.frozen import frozen
from fireiron.gpu.kernel import CompiledKernel
from fireiron.language.library import LIBRARY
from fireiron.values.machine import DType, as_dtype
from fireiron.values.strides import Strides

if TYPE_CHECKING:
    from fireiron.conv2d import Options, Pair

GRANULE: Final = 16
"""Elements of a row are a multiple of this number, K of one tensor-core MMA."""


@frozen
class RowCopy:
    """A kernel that copies the pixels of rows of a filter; `places` are those of the new array as (n, h, q, e)."""

    kernel: CompiledKernel
    shape: Shape
    dtype: DType

    def new(self, array: Any) -> Any:
        """Return a new array (n, e, h, q) for a copy, with contiguous elements."""
        images, rows, columns, elements = self.shape
        steps = packed(self.shape)
        places: Places = (images, elements, rows, columns), (steps[0], steps[3], steps[1], steps[2])
        return viewed(new_like(array, self.shape, self.dtype), places)

    def __call__(self, array: Any) -> Any:
        """Return a copy of an array (n, c, h, w)."""
        result = self.new(array)
        self.kernel(array, out=viewed(result, (self.shape, packed(self.shape))))
        return result


@frozen
class ChannelsCopy:
    """A kernel that copies an array (n, c, h, w) with contiguous pixels to one with contiguous channels."""

    kernel: CompiledKernel
    shape: Shape
    dtype: DType

    def new(self, array: Any) -> Any:
        """Return a new array for a copy."""
        images, channels, rows, columns = self.shape
        steps = packed((images, rows, columns, channels))
        return viewed(new_like(array, (math.prod(self.shape),), self.dtype), (self.shape, (steps[0], steps[3], steps[1], steps[2])))

    def __call__(self, array: Any) -> Any:
        """Return a copy of an array."""
        images, channels, rows, columns = self.shape
        result, pixels = self.new(array), rows * columns
        before, after = (images, channels, pixels), (images, pixels, channels)
        self.kernel(viewed(array, (before, packed(before))), out=viewed(result, (after, packed(after))))
        return result


def channels_copy(operand: Operand, place: Place) -> ChannelsCopy | None:
    """Return the copy of an array with contiguous pixels; None for other arrays, which their library copies."""
    images, channels, *size = operand.shape
    if operand.steps != packed(operand.shape) or channels % GRANULE:
        return None
    module, dtype = importlib.import_module(f"{LIBRARY}.channels_last"), as_dtype(operand.dtype)
    spec = module.definition(n=images, p=math.prod(size), c=channels, dtype=dtype)
    program = module.strategy.with_(**module.values(spec))(spec).program(place.architecture)
    if not fits({"X": operand.align}, program):
        return None
    place.prove(program)
    return ChannelsCopy(CompiledKernel(program), operand.shape, dtype)


def elements_of(channels: int, taps: int) -> int:
    """Return the elements of a row of a filter, rounded up."""
    return -(-channels * taps // GRANULE) * GRANULE


def is_copied_by_rows(operand: Operand, channels: int) -> bool:
    """Return whether a kernel copies rows of this array: few channels, an odd number or a power of two, and positive strides.

    For other numbers of channels, it is not proved that vectors are aligned.
    """
    few = 1 < channels < GRANULE and (channels % 2 == 1 or channels & (channels - 1) == 0)
    return few and all(step > 0 for size, step in zip(*operand.places, strict=True) if size > 1)


def row_copy(operand: Operand, taps: int, columns: int, numbers: tuple[int, int, int], place: Place) -> RowCopy:
    """Return the copy of an array for `taps` columns of a filter. `numbers` are stride, padding and dilation along columns."""
    module = importlib.import_module(f"{LIBRARY}.filter_rows")
    images, channels, *size = operand.shape
    elements, dtype = elements_of(channels, taps), as_dtype(operand.dtype)
    order = Strides(**dict(zip("nchw", operand.steps, strict=True)))
    spec = module.rows(images, size, channels, taps, columns, elements, *numbers, dtype=dtype, X=order)
    program = module.strategy.with_(**module.values(spec))(spec).program(place.architecture)
    place.prove(program)
    return RowCopy(CompiledKernel(program), (images, size[0], columns, elements), dtype)


def options_by_rows(options: Options) -> Options:
    """Return the options of the convolution of copied rows."""
    return type(options)(*(along_rows(pair, usual) for pair, usual in zip(options, (1, 0, 1), strict=True)))


def along_rows(pair: Pair, usual: int) -> Pair:
    """Return a pair with the usual number along columns, which the copy applies."""
    return pair[0], usual


__all__ = ["ChannelsCopy", "RowCopy", "channels_copy", "elements_of", "is_copied_by_rows", "options_by_rows", "row_copy"]
