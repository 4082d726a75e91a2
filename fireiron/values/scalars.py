"""Scalars passed by value: conversion to an element type, and the bits that a launch passes."""

from __future__ import annotations

import math
import numbers
from typing import Any

from fireiron.errors import ArgumentError
from fireiron.values.machine import DType


def value_of(name: str, given: Any, dtype: DType, positive: bool = False) -> Any:
    """A Python or NumPy number as a zero-dimensional NumPy array of an element type, rounded to nearest.

    Raises: ArgumentError if it is not a number, not an integer for an integer type, or out of the type's range; or if it must be `positive`
    and is not, or is not finite.
    """
    number = _value_of(name, given, dtype)
    if positive and not 0 < number < math.inf:
        what = f"{name}: the definition requires a positive number"
        raise ArgumentError(what, got=number.item(), legal="a finite positive number", hint=f"negate the other factors of {name}")
    return number


def _value_of(name: str, given: Any, dtype: DType) -> Any:
    import numpy

    if isinstance(given, numpy.ndarray | numpy.generic) and given.shape == ():
        if given.dtype == dtype.to_numpy():
            return numpy.asarray(given)
        given = given.item()
    if isinstance(given, bool) or not isinstance(given, numbers.Real):
        hint = "array.item() of an array of one element"
        what = f"{name} is passed by value, so it must be a number"
        raise ArgumentError(what, got=type(given).__name__, legal=f"a number as {dtype}", hint=hint)
    number = _whole(name, given, dtype) if dtype.kind == "int" else _rounded(given, dtype)
    if dtype.kind == "float" and not numpy.isfinite(number.astype(numpy.float64)) and given not in (math.inf, -math.inf) and given == given:
        raise ArgumentError(f"{name} is beyond the range of {dtype}", got=given)
    return number


def _whole(name: str, given: Any, dtype: DType) -> Any:
    import numpy

    least, most = dtype.limits
    if not least <= given <= most or given != int(given):  # false for NaN and infinity
        raise ArgumentError(f"{name} is passed by value, so it must be of type {dtype}", got=given, legal=f"integers, {least} ... {most}")
    return numpy.asarray(int(given), dtype.to_numpy())


def _rounded(given: Any, dtype: DType) -> Any:
    import numpy

    with numpy.errstate(over="ignore"):
        try:
            return numpy.asarray(float(given), numpy.float64).astype(dtype.to_numpy())
        except OverflowError:  # an integer out of the range of all floats
            return numpy.asarray(math.inf, dtype.to_numpy())


def bits_of(value: Any) -> int:
    """The bits of an element, in the lower part of a 64-bit slot."""
    return int.from_bytes(value.tobytes(), "little")
