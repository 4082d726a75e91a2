"""Scalars that are passed by value: a number as an element of a type, and its bits in a launch."""

from __future__ import annotations

import math
import numbers
from typing import Any

from fireiron.errors import ArgumentError
from fireiron.values.machine import DType


def value_of(name: str, given: Any, dtype: DType, positive: bool = False) -> Any:
    """A number as a NumPy array of no dimensions and an element type, rounded to nearest: one of Python or of NumPy.

    Raises: ArgumentError for what is no number, no integer where the type is one, or beyond the type's range; for what is not above 0 and
    finite, where it has to be `positive`.
    """
    made = _value_of(name, given, dtype)
    if positive and not 0 < made < math.inf:
        what = f"{name}: the definition holds only for numbers above 0"
        raise ArgumentError(what, got=made.item(), legal="a finite number above 0", hint=f"another sign in what {name} is multiplied with")
    return made


def _value_of(name: str, given: Any, dtype: DType) -> Any:
    import numpy

    if isinstance(given, numpy.ndarray | numpy.generic) and given.shape == ():
        if given.dtype == dtype.to_numpy():
            return numpy.asarray(given)
        given = given.item()
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        hint = "array.item() of an array of one element"
        raise ArgumentError(f"{name} is passed by value: not a number", got=type(given).__name__, legal=f"a number as {dtype}", hint=hint)
    made = _whole(name, given, dtype) if dtype.kind == "int" else _rounded(given, dtype)
    if dtype.kind == "float" and not numpy.isfinite(made.astype(numpy.float64)) and given not in (math.inf, -math.inf) and given == given:
        raise ArgumentError(f"{name} is beyond the range of {dtype}", got=given)
    return made


def _whole(name: str, given: Any, dtype: DType) -> Any:
    import numpy

    least, most = dtype.limits
    if not least <= given <= most or given != int(given):  # NaN and infinity are not between them
        raise ArgumentError(f"{name} is passed by value as {dtype}", got=given, legal=f"integers, {least} ... {most}")
    return numpy.asarray(int(given), dtype.to_numpy())


def _rounded(given: Any, dtype: DType) -> Any:
    import numpy

    with numpy.errstate(over="ignore"):
        try:
            return numpy.asarray(float(given), numpy.float64).astype(dtype.to_numpy())
        except OverflowError:  # an integer beyond all floats
            return numpy.asarray(math.inf, dtype.to_numpy())


def bits_of(value: Any) -> int:
    """The bits of an element, as the lower part of a 64-bit slot."""
    return int.from_bytes(value.tobytes(), "little")
