"""Where instructions say more than NumPy, of NaN, infinity, subnormal numbers and zeros: conversions, maxima and minima, powers of two.

Sources: PTX ISA, cvt, max, min and ex2; CUDA Math API, `__NV_SATFINITE`, "Half Precision Conversion".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from fireiron.values.machine import DType, bfloat16, float8_e4m3, float8_e5m2, uint8

_LARGEST: Final[Mapping[DType, float]] = {float8_e4m3: 448.0, float8_e5m2: 57344.0}
"""The largest finite 8-bit floats; conversions of CUDA (`__NV_SATFINITE`) stop there."""

_LEAST_NORMAL: Final = 2.0**-126
"""The least float32 that is not subnormal."""


def convert(values: Any, dtype: DType) -> Any:
    """An array in another element type, as the instructions convert.

    Floats are rounded to nearest even, once; those of 8 bits stop at the largest. To integers they are cut toward zero and stop at the ends
    of 32 bits, of which narrower integers are the lower ones; NaN becomes 0, that of a double the number with the highest bit alone.
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
            return _whole(values, dtype).astype(target)
        if dtype == bfloat16 and values.dtype.itemsize > 2:
            return _to_odd(values).astype(target)
        return values.astype(target)


def _whole(values: Any, dtype: DType) -> Any:
    """Floats as integers of 64 bits, whose lower 32 are those of the instruction."""
    import numpy

    low, high = (0, 2**32 - 1) if dtype == uint8 else (-(2**31), 2**31 - 1)
    nan = -(2**31) if values.dtype == numpy.float64 else 0
    wide = values.astype(numpy.float64)
    unknown = numpy.isnan(wide)
    return numpy.where(unknown, nan, numpy.trunc(numpy.clip(numpy.where(unknown, 0, wide), low, high)).astype(numpy.int64))


def _to_odd(values: Any) -> Any:
    """As float32, rounded to odd where it is not exact: what is rounded to nearest from there on is rounded once.

    NumPy converts to bfloat16 and to 8 bits by way of float32, and so rounds twice. Source: Boldo and Melquiond, "Emulation of FMA and
    correctly rounded sums: proved algorithms using rounding to odd", 2008.
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
    """Integers of 64 bits as float64, where these are not exact as what lies between the same two multiples of 2^11."""
    import numpy

    large = abs(values.astype(numpy.float64)) >= 2.0**53
    return numpy.where(large, values & ~0x7FF | ((values & 0x7FF) != 0) * 0x400, values).astype(numpy.float64)


def added(left: Any, right: Any) -> Any:
    """The sum of two arrays of float64, rounded to odd: what is rounded to nearest in a type of 16 bits from there on is rounded once.

    So an instruction that rounds a product and a sum once is that product, exact in float64, `added` and converted. The error of a sum
    is a float64 itself. Source: Knuth, "The Art of Computer Programming 2", 4.2.2, theorem B; Boldo and Melquiond as above.
    """
    import numpy

    with numpy.errstate(over="ignore", invalid="ignore"):
        made = numpy.asarray(left + right, numpy.float64)
        part = made - left
        error = (left - (made - part)) + (right - part)
        inexact = (error != 0) & numpy.isfinite(made) & numpy.isfinite(error)
        if not inexact.any():
            return made
        even = inexact & (made.view(numpy.uint64) & numpy.uint64(1) == 0)
        return numpy.where(even, numpy.nextafter(made, numpy.copysign(numpy.inf, error)), made)


@attrs.frozen
class Extreme:
    """The larger or the smaller of two numbers, and `reduce`, of many: of a number and NaN it is the number; +0 is larger than -0."""

    largest: bool

    def __call__(self, left: Any, right: Any) -> Any:
        import numpy

        with numpy.errstate(invalid="ignore"):
            made = (numpy.fmax if self.largest else numpy.fmin)(left, right)
        zeros = made == 0
        if numpy.issubdtype(made.dtype, numpy.integer) or not numpy.any(zeros):
            return made
        both = zeros & (left == right)
        signed = numpy.signbit(left)
        zero = numpy.where(signed, right, left) if self.largest else numpy.where(signed, left, right)
        return numpy.where(both, zero, made).astype(made.dtype)

    def reduce(self, values: Any, axis: Any = 0) -> Any:
        """Of the elements along axes."""
        import numpy

        with numpy.errstate(invalid="ignore"):
            made = numpy.asarray((numpy.fmax if self.largest else numpy.fmin).reduce(values, axis=axis))
        if numpy.issubdtype(made.dtype, numpy.integer) or not numpy.any(made == 0):
            return made
        signed = numpy.signbit(values)
        found = ((values == 0) & (~signed if self.largest else signed)).any(axis=axis)
        zero = numpy.where(found, 0.0, -0.0) if self.largest else numpy.where(found, -0.0, 0.0)
        return numpy.where(made == 0, zero, made).astype(made.dtype)


LARGER: Final = Extreme(True)
SMALLER: Final = Extreme(False)


def exp2(values: Any) -> Any:
    """2 to the power of the values; in float32 as `ex2.approx.ftz`, whose subnormal results are zero."""
    import numpy

    made = numpy.exp2(values)
    return numpy.where(made < _LEAST_NORMAL, made.dtype.type(0), made) if made.dtype == numpy.float32 else made
