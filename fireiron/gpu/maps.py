"""Check the requirements of TMA for the arrays of a launch, and encode the tensor map of each array once.

`MapForm` is a tensor map without the address; it depends on the array's shape and strides only. Encoding takes 4 to 12 us from Python, so
the encoded maps are cached by address.

Source: CUDA Driver API, Tensor Map Object Management, `cuTensorMapEncodeTiled`,
`cuTensorMapEncodeIm2col`, whose bounds this module checks.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import attrs

from fireiron.errors import LaunchError
from fireiron.gpu import launch
from fireiron.gpu.arguments import buffer_shape, byte_strides
from fireiron.ir import Buffer, Im2col, TensorMap
from fireiron.values.machine import DType, bfloat16, float16, float32, float64, int32, int64, tf32

KEPT: Final = 4096
"""Maximum number of cached tensor maps of all kernels. The least recently used map is removed first. Each takes 0.5 KB."""

GRANULE: Final = 16
"""Addresses, strides and box rows are multiples of this number of bytes."""

MOST_IN_BOX: Final = 256
"""Maximum number of elements of a box along a dimension."""

MOST_ALONG: Final = 2**32
"""Maximum number of elements of an array along a dimension."""

MOST_BETWEEN: Final = 2**40
"""Exclusive upper bound of strides in bytes."""

MOST_DIMENSIONS: Final = 5
"""Maximum number of dimensions of an array."""

SWIZZLES: Final = {16: 0, 32: 1, 64: 2, 128: 3}
"""`CUtensorMapSwizzle` by the swizzle span in bytes; 16 means none."""

_KINDS: Final = {float16: 6, float32: 7, tf32: 7, float64: 8, bfloat16: 9, int32: 3, int64: 5}
_OF_BYTES: Final = {1: 0, 2: 1, 4: 2, 8: 4}


def kind_of(dtype: DType) -> int:
    """Return the `CUtensorMapDataType` of an element type, or of an integer of the same width: copies preserve all bits."""
    return _KINDS.get(dtype, _OF_BYTES[dtype.bytes])


@attrs.frozen(cache_hash=True)
class MapForm:
    """A tensor map without the address.

    Attributes:
        name: the name of the array in messages.
        dtype: its element type.
        extents: elements along each dimension, contiguous dimension first.
        strides: bytes between consecutive elements along each other dimension.
        box: elements of a copy along each dimension.
        span: swizzle span in bytes, 16 for none.
        im2col: the im2col mode, in which the second number of `box` counts pixels.

    Raises:
        LaunchError: TMA does not support the array or the box.
    """

    name: str = attrs.field(eq=False)
    dtype: DType
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    span: int
    im2col: Im2col | None = None

    def __attrs_post_init__(self) -> None:
        wrong = next(itertools.chain(self._wrong_array(), _wrong_box(self.name, self.dtype, len(self.extents), self.box, self.span)), None)
        if wrong is not None:
            raise wrong

    @staticmethod
    def of(tensor_map: TensorMap, name: str, buffer: Buffer, symbols: Mapping[str, int]) -> MapForm:
        """Return the map of a kernel's parameter for given run-time sizes."""
        shape, strides = buffer_shape(buffer, symbols), byte_strides(buffer, symbols)
        first, *rest = tensor_map.order
        # The stride of a dimension of one element is never used, so it may have any value; the array's may be illegal for TMA.
        between = tuple(strides[dim] if shape[dim] > 1 else max(GRANULE, -(-strides[dim] // GRANULE) * GRANULE) for dim in rest)
        extents = tuple(shape[dim] for dim in (first, *rest))
        return MapForm(name, buffer.dtype, extents, between, tensor_map.box, tensor_map.span, tensor_map.im2col)

    @property
    def tiled(self) -> launch.TiledForm | None:
        """Return the arguments for the driver; None in im2col mode."""
        if self.im2col is not None:
            return None
        return launch.TiledForm(kind_of(self.dtype), self.extents, self.strides, self.box, SWIZZLES[self.span])

    @property
    def encode(self) -> Callable[[int], launch.EncodedMap]:
        """Return a cached function from addresses to maps. It raises a `LaunchError` for an address that TMA does not support."""
        return functools.partial(encoded, self)

    def _wrong_array(self) -> Iterable[LaunchError]:
        if not 1 <= len(self.extents) <= MOST_DIMENSIONS:
            most = f"1 to {MOST_DIMENSIONS}"
            yield LaunchError(
                f"{self.name} has a number of dimensions that TMA does not support", got=f"{len(self.extents)} dimensions", legal=most
            )
        if max(self.extents) > MOST_ALONG:
            yield LaunchError(f"{self.name} is too long for TMA", got=self.extents, legal="at most 2^32 elements along a dimension")
        for stride in self.strides:
            if stride % GRANULE or not 0 < stride < MOST_BETWEEN:
                asked = f"{self.name} is read or written by TMA, which does not support this stride between rows"
                hint = f"pad it, for example {self.name}=RowMajor(ld=...), or use a strategy with .coalesced_copy(width)"
                yield LaunchError(asked, got=f"{stride} bytes", legal=f"multiples of {GRANULE} bytes below 2^40", hint=hint)


def _wrong_box(name: str, dtype: DType, dimensions: int, box: tuple[int, ...], span: int) -> Iterable[LaunchError]:
    row = box[0] * dtype.bytes
    asked = f"TMA cannot copy {' x '.join(map(str, box))} elements of {name}"
    hint = "use other tile sizes"
    if span not in SWIZZLES:
        yield LaunchError(f"{asked}, swizzled in spans of {span} bytes", legal=SWIZZLES)
    if len(box) != dimensions:
        yield LaunchError(asked, got=f"{len(box)} dimensions", legal=f"{dimensions}")
    if not all(1 <= size <= MOST_IN_BOX for size in box):
        yield LaunchError(asked, got=max(box), legal=f"1 to {MOST_IN_BOX} elements along a dimension", hint=hint)
    if row % GRANULE:
        yield LaunchError(asked, got=f"rows of {row} bytes", legal=f"multiples of {GRANULE}", hint=hint)
    if span > GRANULE and row > span:
        yield LaunchError(f"{asked}, swizzled", got=f"rows of {row} bytes", legal=f"at most the span, {span}", hint=hint)


def check_box(tensor_map: TensorMap, buffer: Buffer) -> None:
    """Refuse a map whose box TMA does not support for any array.

    Raises: LaunchError with the violated limit of the box.
    """
    rank = len(buffer.array.shape)
    wrong = next(iter(_wrong_box(buffer.name, buffer.dtype, rank, tensor_map.box, tensor_map.span)), None)
    if wrong is not None:
        raise wrong


@functools.lru_cache(maxsize=KEPT)
def encoded(form: MapForm, address: int) -> launch.EncodedMap:
    """Return the encoded map of an array at an address.

    Raises:
        LaunchError: TMA does not support the address, or the driver reports an error.
    """
    if address % GRANULE:
        asked = f"{form.name} is read or written by TMA, and starts at an address that is not a multiple of {GRANULE} bytes"
        raise LaunchError(asked, got=f"{address:#x}, {address % GRANULE} bytes after a multiple", hint="copy it to a fresh array")
    if form.im2col is not None:
        mode, kind = form.im2col, kind_of(form.dtype)
        corners = mode.lower, mode.upper
        return launch.encoded_pixels(kind, address, form.extents, form.strides, form.box[:2], corners, mode.steps, SWIZZLES[form.span])
    return launch.encoded_map(kind_of(form.dtype), address, form.extents, form.strides, form.box, SWIZZLES[form.span])
