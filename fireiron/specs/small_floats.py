"""Small floating-point formats whose bits a formula decodes: FP4 E2M1 elements and E8M0 scales.

An E2M1 number has a sign, two bits of exponent with bias 1, and one bit of significand: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives. An
E8M0 number is a power of two, 2^(n - 127) for the byte n; 255 is NaN. Source: OCP Microscaling Formats (MX) Specification 1.0, sections
5.3.3 and 5.4.1. NumPy has neither type, so both are integers in memory.

>>> [float(e2m1(n)) for n in (1, 7, 15)], float(e8m0(130))
([0.5, 6.0, -6.0], 8.0)
"""

from __future__ import annotations

from typing import Any, Final

E2M1_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The values of E2M1 numbers, by their bits."""

E8M0_BIAS: Final = 127
"""The bias of the exponent of E8M0 numbers."""

E8M0_NAN: Final = 255
"""The E8M0 number that is NaN."""


def e2m1(bits: Any) -> Any:
    """The float32 values of the low 4 bits of integers; any shape."""
    import numpy

    return numpy.array(E2M1_VALUES, numpy.float32)[numpy.asarray(bits, numpy.int64) & 15]


def e8m0(bits: Any) -> Any:
    """The float32 values of the low 8 bits of integers; any shape. They are exact: 2^-127 is a subnormal float32."""
    import numpy

    low = numpy.asarray(bits, numpy.int64) & 255
    powers = numpy.ldexp(numpy.float32(1), numpy.minimum(low, E8M0_NAN - 1) - E8M0_BIAS)
    return numpy.where(low == E8M0_NAN, numpy.float32("nan"), powers)


DECODERS: Final = {"e2m1": e2m1, "e8m0": e8m0}
"""The functions of formulas that decode the bits of small floats."""
