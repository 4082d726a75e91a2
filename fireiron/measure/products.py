"""Compute matrix products and batched matrix products in float64 on the GPU, with the error bound of each element.

The error analysis of `measure/rounding.py` needs two more products: that of the operands' absolute values, and that of their squares.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fireiron.batched_matmul import is_batched
from fireiron.measure.rounding import of_integers, rounded_by, sum_error
from fireiron.spec import Spec
from fireiron.values.machine import DType, tf32
from fireiron.values.tensor import View

CHUNK = 1 << 24
"""Number of elements that the check converts to float64 at a time."""


Change = Callable[[Any], Any]
"""A function applied to operands in float64 before the multiplication."""


def multiplies(spec: Spec) -> bool:
    """Whether this module computes the spec: a matrix product, or a batch of matrix products."""
    return spec.multiplies or is_batched(spec)


def product(cupy: Any, spec: Spec, left: Any, right: Any, change: Change | None = None) -> Any:
    """Return A B in float64 (int64 for integers), with the dimensions in the order of C."""
    if spec.multiplies:
        return _matrix(cupy, spec, left, right, change)
    lefts, rights = _matrices(left, spec.uses["A"], "mk"), _matrices(right, spec.uses["B"], "kn")
    sizes = {dim: size for name, array in (("A", left), ("B", right)) for dim, size in zip(spec.uses[name], array.shape, strict=True)}
    products = [_matrix(cupy, spec, next(lefts), next(rights), change) for _ in range(sizes["b"])]
    return cupy.stack(products).transpose(["bmn".index(dim) for dim in spec.uses["C"]])


def product_bounds(cupy: Any, spec: Spec, operands: Sequence[Any], value: Any, accumulator: DType | None) -> Any:
    """Return the error bound of each element of a floating-point product `value`, which `product` computed from the same operands.

    `accumulator` is the type in which products are accumulated. None means the spec's accumulator, or else the type of C.
    """
    left, right = operands
    sizes = product(cupy, spec, left, right, abs)
    squares = product(cupy, spec, left, right, lambda operand: operand * operand)
    terms = left.shape[spec.uses["A"].index("k")]
    accumulator_, result = accumulator or spec.accumulator or spec.C.dtype, spec.C.dtype
    types = [spec.A.dtype, spec.B.dtype]
    integers = all(_are_integers(cupy, array, view) for array, view in ((left, spec.A), (right, spec.B)))
    step = max(1, CHUNK // max(1, math.prod(value.shape[1:])))
    for start in range(0, value.shape[0], step):
        rows = slice(start, start + step)
        sums = value[rows], sizes[rows], squares[rows] ** 0.5
        error = sum_error(sums, terms, accumulator_, types)
        error = of_integers(error, sizes[rows], accumulator_, types) if integers else error
        sizes[rows] = error + rounded_by(result, value[rows])
    return sizes


def _are_integers(cupy: Any, values: Any, view: View) -> bool:
    """Whether all elements of an operand are integers."""
    step = max(1, CHUNK // max(1, math.prod(values.shape[1:])))
    chunks = (_operand(cupy, values[start : start + step], view, None) for start in range(0, len(values), step))
    return all(bool((chunk == chunk.round()).all()) for chunk in chunks)


def _matrix(cupy: Any, spec: Spec, left: Any, right: Any, change: Change | None) -> Any:
    """Return a matrix product, computed some rows at a time.

    float64 represents sums of integers exactly. They wrap around like the type of C.
    """
    rows, depth = left.shape
    wide = _operand(cupy, right, spec.B, change)
    result = cupy.empty((rows, right.shape[1]), dtype=cupy.float64)
    step = max(1, CHUNK // depth)
    for start in range(0, rows, step):
        result[start : start + step] = _operand(cupy, left[start : start + step], spec.A, change) @ wide
    if spec.C.dtype.kind == "int":
        return result.astype(cupy.int64).astype(spec.C.dtype.to_numpy()).astype(cupy.int64)
    return result


def _matrices(array: Any, dims: Sequence[str], order: str) -> Iterator[Any]:
    """Return the matrices of a batch, with their dimensions in the given order. A matrix without a batch dimension is repeated."""
    axes = [dims.index(dim) for dim in order]
    return iter(array.transpose(dims.index("b"), *axes)) if "b" in dims else itertools.repeat(array.transpose(axes))


def _operand(cupy: Any, values: Any, view: View, change: Change | None) -> Any:
    """Return an operand in float64. Of a tf32 operand, only the upper 19 bits count."""
    if view.dtype == tf32:
        values = (cupy.ascontiguousarray(values).view(cupy.uint32) & cupy.uint32(0xFFFFE000)).view(cupy.float32)
    wide = values.astype(cupy.float64)
    return wide if change is None else change(wide)


__all__: list[str] = ["CHUNK", "multiplies", "product", "product_bounds"]
