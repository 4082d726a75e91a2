"""Products of matrices and of stacks in float64 on the GPU, and how far each of their elements may be off.

The error analysis is that of `measure/rounding.py`, from two more products: that of the sizes of all factors, and that of their squares.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fireiron.batched_matmul import is_batched
from fireiron.measure.rounding import rounded_by, sum_error
from fireiron.spec import Spec
from fireiron.values.machine import DType, tf32
from fireiron.values.tensor import View

CHUNK = 1 << 24
"""Elements that the check converts to float64 at a time."""


Change = Callable[[Any], Any]
"""What becomes of factors in float64 before they are multiplied."""


def multiplies(spec: Spec) -> bool:
    """Whether a spec is a product that is made here."""
    return spec.multiplies or is_batched(spec)


def product(cupy: Any, spec: Spec, left: Any, right: Any, change: Change | None = None) -> Any:
    """A B in float64 (int64), in the order of C's dimensions."""
    if spec.multiplies:
        return _matrix(cupy, spec, left, right, change)
    lefts, rights = _matrices(left, spec.uses["A"], "mk"), _matrices(right, spec.uses["B"], "kn")
    sizes = {dim: size for name, one in (("A", left), ("B", right)) for dim, size in zip(spec.uses[name], one.shape, strict=True)}
    made = [_matrix(cupy, spec, next(lefts), next(rights), change) for _ in range(sizes["b"])]
    return cupy.stack(made).transpose(["bmn".index(dim) for dim in spec.uses["C"]])


def product_bounds(cupy: Any, spec: Spec, factors: Sequence[Any], value: Any, adder: DType | None) -> Any:
    """How far each element of a product of floats may be off `value`, which `product` made of the same two factors.

    Args: `adder` is the type in which products are added up; None: the spec's.
    """
    left, right = factors
    sizes = product(cupy, spec, left, right, abs)
    squares = product(cupy, spec, left, right, lambda factor: factor * factor)
    terms = left.shape[spec.uses["A"].index("k")]
    kept, result = adder or spec.accumulator or spec.C.dtype, spec.C.dtype
    types = [spec.A.dtype, spec.B.dtype]
    step = max(1, CHUNK // max(1, math.prod(value.shape[1:])))
    for start in range(0, value.shape[0], step):
        rows = slice(start, start + step)
        sums = value[rows], sizes[rows], squares[rows] ** 0.5
        sizes[rows] = sum_error(sums, terms, kept, types) + rounded_by(result, value[rows])
    return sizes


def _matrix(cupy: Any, spec: Spec, left: Any, right: Any, change: Change | None) -> Any:
    """A product of matrices, some rows at a time; integers, whose sums float64 holds exactly, wrap around as C's type does."""
    rows, depth = left.shape
    wide = _factor(cupy, right, spec.B, change)
    result = cupy.empty((rows, right.shape[1]), dtype=cupy.float64)
    step = max(1, CHUNK // depth)
    for start in range(0, rows, step):
        result[start : start + step] = _factor(cupy, left[start : start + step], spec.A, change) @ wide
    if spec.C.dtype.kind == "int":
        return result.astype(cupy.int64).astype(spec.C.dtype.to_numpy()).astype(cupy.int64)
    return result


def _matrices(array: Any, dims: Sequence[str], order: str) -> Iterator[Any]:
    """The matrices of a stack, or one for all, with their dimensions in an order."""
    axes = [dims.index(dim) for dim in order]
    return iter(array.transpose(dims.index("b"), *axes)) if "b" in dims else itertools.repeat(array.transpose(axes))


def _factor(cupy: Any, values: Any, view: View, change: Change | None) -> Any:
    """What is multiplied, in float64: of tf32 the upper 19 bits."""
    if view.dtype == tf32:
        values = (cupy.ascontiguousarray(values).view(cupy.uint32) & cupy.uint32(0xFFFFE000)).view(cupy.float32)
    wide = values.astype(cupy.float64)
    return wide if change is None else change(wide)


__all__: list[str] = ["CHUNK", "multiplies", "product", "product_bounds"]
