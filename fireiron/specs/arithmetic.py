"""Operations for which instructions and NumPy differ on NaN, infinity, subnormals and zeros: conversion, maximum, minimum, exp2.

Sources: PTX ISA, cvt, max, min and ex2; CUDA Math API, `__NV_SATFINITE`, "Half Precision Conversion".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fireiron.frozen import frozen
from fireiron.values.machine import DType, bfloat16, float8_e4m3, float8_e5m2

_LARGEST: Final[Mapping[DType, float]] = {float8_e4m3: 448.0, float8_e5m2: 57344.0}
"""The largest finite 8-bit floats, to which conversions of CUDA saturate (`__NV_SATFINITE`)."""

_LEAST_NORMAL: Final = 2.0**-126
"""The smallest positive normal float32."""


def convert(values: Any, dtype: DType) -> Any:
    """Convert an array to another element type as the instructions do.

    Floats are rounded once, to nearest even; 8-bit floats saturate at the largest finite value. Conversions of floats to integers
    truncate toward zero and saturate at the limits of the integer type; NaN becomes 0. Narrower integers have the low bits of the integer.
    """
    import numpy

    target = dtype.to_numpy()
    if values.dtype == target:
        return values
    with numpy.errstate(over="ignore", invalid="ignore"):
        if dtype in _LARGEST:
            wide = values if values.dtype in (numpy.float32, numpy.float64) else values.astype(numpy.float32)
            return _to_odd(numpy.clip(wide, -_LARGEST[dtype], _LARGEST[dtype])).astype(target)
        if dtype.kind == "int" and not numpy.issubdtype(values.dtype, numpy.integer) and values.dtype != bool:
            return _to_integers(values, dtype).astype(target)
        if dtype == bfloat16 and values.dtype.itemsize > 2:
            return _to_odd(values).astype(target)
        return values.astype(target)


def _to_integers(values: Any, dtype: DType) -> Any:
    """Convert floats to 64-bit integers within the limits of a type (PTX ISA, cvt, which saturates conversions to integers)."""
    import numpy

    low, high = dtype.limits
    wide = values.astype(numpy.float64)
    whole = numpy.trunc(numpy.where(numpy.isnan(wide), 0, wide))
    inside = (whole > low) & (whole < high)  # limits of 64 bits are not representable in float64
    return numpy.where(inside, numpy.where(inside, whole, 0).astype(numpy.int64), numpy.where(whole <= low, low, high))


def _to_odd(values: Any) -> Any:
    """Convert to float32 with rounding to odd, so that a later rounding to nearest is correct.

    NumPy converts to bfloat16 and to 8-bit floats through float32, so it rounds twice. Rounding to odd first makes the second result
    correct. Source: Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008.
    """
    import numpy

    if numpy.issubdtype(values.dtype, numpy.integer) and values.dtype.itemsize == 8:
        values = _to_odd_double(values)
    single = numpy.asarray(values.astype(numpy.float32))
    if values.dtype == numpy.float32:
        return single
    wide, back = values.astype(numpy.float64), single.astype(numpy.float64)
    inexact = (back != wide) & ~numpy.isnan(wide)
    if not inexact.any():
        return single
    toward_zero = numpy.where(abs(back) > abs(wide), numpy.nextafter(single, numpy.float32(0)), single)
    odd = (numpy.asarray(toward_zero, numpy.float32).view(numpy.uint32) | numpy.uint32(1)).view(numpy.float32)
    return numpy.where(inexact, odd, single)


def _to_odd_double(values: Any) -> Any:
    """Convert 64-bit integers to float64; an inexact one becomes the midpoint between the same two multiples of 2^11."""
    import numpy

    large = abs(values.astype(numpy.float64)) >= 2.0**53
    return numpy.where(large, values & ~0x7FF | ((values & 0x7FF) != 0) * 0x400, values).astype(numpy.float64)


def added(left: Any, right: Any) -> Any:
    """Add two float64 arrays with rounding to odd, so that a later rounding to nearest in a 16-bit type is correct.

    A fused multiply-add in a 16-bit type is therefore a product, which is exact in float64, this sum, and one conversion. The error of a
    sum is itself a float64. Source: Knuth, "The Art of Computer Programming 2", 4.2.2, theorem B; Boldo and Melquiond as above.
    """
    import numpy

    with numpy.errstate(over="ignore", invalid="ignore"):
        total = numpy.asarray(left + right, numpy.float64)
        part = total - left
        error = (left - (total - part)) + (right - part)
        inexact = (error != 0) & numpy.isfinite(total) & numpy.isfinite(error)
        if not inexact.any():
            return total
        even = inexact & (total.view(numpy.uint64) & numpy.uint64(1) == 0)
        return numpy.where(even, numpy.nextafter(total, numpy.copysign(numpy.inf, error)), total)


@frozen
class Extreme:
    """The maximum or minimum of two arrays; `reduce` computes it along axes. A number wins over NaN, and +0 is larger than -0."""

    largest: bool

    def __call__(self, left: Any, right: Any) -> Any:
        import numpy

        with numpy.errstate(invalid="ignore"):
            result = (numpy.fmax if self.largest else numpy.fmin)(left, right)
        zeros = result == 0
        if numpy.issubdtype(result.dtype, numpy.integer) or not numpy.any(zeros):
            return result
        both = zeros & (left == right)
        signed = numpy.signbit(left)
        zero = numpy.where(signed, right, left) if self.largest else numpy.where(signed, left, right)
        return numpy.where(both, zero, result).astype(result.dtype)

    def at(self, array: Any, index: Any, values: Any) -> None:
        """Combine elements of a contiguous array with values, at indices that may repeat. NaN has no effect."""
        import numpy

        flat = array.reshape(-1)
        places: Any = numpy.ravel_multi_index(index, array.shape) if isinstance(index, tuple) else numpy.asarray(index)
        values = numpy.broadcast_to(values, places.shape).astype(array.dtype)
        numbers = values == values
        accessed: Any = places[numbers]
        wanted, position = numpy.unique(accessed, return_inverse=True)
        keys = _ordered_bits(flat[wanted])
        (numpy.maximum if self.largest else numpy.minimum).at(keys, position.reshape(-1), _ordered_bits(values[numbers]))
        flat[wanted] = _ordered_bits(keys.view(array.dtype)).view(array.dtype) if array.dtype.kind == "f" else keys

    def reduce(self, values: Any, axis: Any = 0) -> Any:
        """The maximum or minimum along axes."""
        import numpy

        with numpy.errstate(invalid="ignore"):
            result = numpy.asarray((numpy.fmax if self.largest else numpy.fmin).reduce(values, axis=axis))
        if numpy.issubdtype(result.dtype, numpy.integer) or not numpy.any(result == 0):
            return result
        signed = numpy.signbit(values)
        has_zero = ((values == 0) & (~signed if self.largest else signed)).any(axis=axis)
        zero = numpy.where(has_zero, 0.0, -0.0) if self.largest else numpy.where(has_zero, -0.0, 0.0)
        return numpy.where(result == 0, zero, result).astype(result.dtype)


def _ordered_bits(values: Any) -> Any:
    """Return integers in the order of floats, with -0 before +0; integers themselves. For floats, it is its own inverse on the bits."""
    import numpy

    if values.dtype.kind != "f":
        return values.copy()
    bits = values.view(f"i{values.itemsize}")
    return numpy.where(bits < 0, bits ^ numpy.iinfo(bits.dtype).max, bits)


LARGER: Final = Extreme(True)
SMALLER: Final = Extreme(False)


def exp2(values: Any) -> Any:
    """Return 2 to the power of the values. Subnormal float32 results become zero, as those of `ex2.approx.ftz`."""
    import numpy

    powers = numpy.exp2(values)
    return numpy.where(powers < _LEAST_NORMAL, powers.dtype.type(0), powers) if powers.dtype == numpy.float32 else powers
