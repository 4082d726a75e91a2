"""`Scan`: prefix sums, and prefix products, maxima and minima, along the last dimension.

>>> import numpy
>>> from fireiron import *
>>> Scan(2, 3)(RF, RF)(Warp).reference(numpy.array([[1.0, 2, 3], [4, 5, 6]]))
array([[ 1.,  3.,  6.],
       [ 4.,  9., 15.]], dtype=float32)
"""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind, Parameter
from fireiron.specs.formula import SCANS

Scan: Final = Kind("Scan", "dst[...,p] = {by}(p, src[...,p])", (Parameter("by", "cumsum", text=True, legal=tuple(SCANS)),)).starter
"""`Scan(M, N, by="cumsum")`: element n of a row of dst combines the elements 0 to n of that row of src. Source: decision 98."""

__all__ = ["Scan"]
