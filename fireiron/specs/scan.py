"""`Scan`: prefix sums, products, maxima and minima along the last dimension, and `LinearRecurrence`: h[n] = a[n] * h[n - 1] + x[n].

>>> import numpy
>>> from fireiron import *
>>> Scan(2, 3)(RF, RF)(Warp).reference(numpy.array([[1.0, 2, 3], [4, 5, 6]]))
array([[ 1.,  3.,  6.],
       [ 4.,  9., 15.]], dtype=float32)
>>> halves = numpy.full((1, 3), 0.5)
>>> LinearRecurrence(1, 3)(RF, RF, RF)(Warp).reference(halves, numpy.array([[1.0, 2, 3]]))
array([[1.  , 2.5 , 4.25]], dtype=float32)
"""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind, Parameter
from fireiron.specs.formula import RECURRENCE, SCANS

Scan: Final = Kind("Scan", "dst[...,p] = {by}(p, src[...,p])", (Parameter("by", "cumsum", text=True, legal=tuple(SCANS)),)).starter
"""`Scan(M, N, by="cumsum")`: element n of a row of dst combines the elements 0 to n of that row of src. Source: decision 98."""

LinearRecurrence: Final = Kind("LinearRecurrence", f"dst[...,p] = {RECURRENCE}(p, factor[...,p], src[...,p])").starter
"""`LinearRecurrence(M, N)`: element n of a row of dst is factor[n] times element n - 1, plus src[n]. Source: decision 102."""

__all__ = ["LinearRecurrence", "Scan"]
