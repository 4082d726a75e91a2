"""Batched matmuls of arrays with any number of dimensions, as NumPy and PyTorch define them.

The last two dimensions are matrices; the leading dimensions are broadcast. A vector on the left is a matrix with one row, and on the right
a matrix with one column; the result lacks that dimension. Leading dimensions that can be flattened in all arrays become one dimension. The
largest remaining dimension is the batch dimension; loops over batched matmuls iterate over the others. No array is copied.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.recorder import note_allocated

Shape = tuple[int, ...]
Places = tuple[Shape, Shape]
"""Shape and strides in elements."""


@frozen
class Batches:
    """A matmul of arrays as a loop over batched matmuls of views; the leading dimensions of the views, `loops`, are the loop.

    Attributes:
        shape: the shape of the result.
        loops: the sizes of the loop dimensions.
        a, b, c: shapes and strides of the views, with the loop dimensions first.
    """

    shape: Shape
    loops: Shape
    a: Places
    b: Places
    c: Places

    @property
    def indices(self) -> Iterable[tuple[int, ...]]:
        """The indices of the loop."""
        return itertools.product(*map(range, self.loops))


def result_shape(a: Sequence[int], b: Sequence[int]) -> Shape:
    """Return the shape of the product of arrays with two shapes.

    >>> result_shape((2, 1, 4, 8), (3, 8, 5)), result_shape((8,), (3, 8, 5)), result_shape((8,), (8,))
    ((2, 3, 4, 5), (3, 5), ())

    Raises: an `ArgumentError` if the shapes are incompatible.
    """
    for name, shape in (("a", a), ("b", b)):
        if not shape:
            raise ArgumentError(f"{name} has 0 dimensions, but matmul requires vectors, matrices or batches", got=tuple(shape))
    rows = b[-2] if len(b) > 1 else b[0]
    if a[-1] != rows:
        raise ArgumentError(f"a has {a[-1]} columns, but b has {rows} rows", got=(tuple(a), tuple(b)), legal="M x K and K x N")
    return (*_broadcast(a, b), *(a[-2:-1] if len(a) > 1 else ()), *(b[-1:] if len(b) > 1 else ()))


def _broadcast(a: Sequence[int], b: Sequence[int]) -> Shape:
    """Return the dimensions before those of the matrices."""
    pairs = itertools.zip_longest(reversed(a[:-2]), reversed(b[:-2]), fillvalue=1)
    shape = [other if size == 1 else size for size, other in pairs if _are_compatible(size, other, a, b)]
    return tuple(reversed(shape))


def _are_compatible(size: int, other: int, a: Sequence[int], b: Sequence[int]) -> bool:
    if size != other and size != 1 and other != 1:
        what = f"a is a batch of {size} matrices, but b is one of {other}"
        raise ArgumentError(what, got=(tuple(a), tuple(b)), legal="equal sizes, or 1, along each leading dimension")
    return True


@functools.lru_cache(maxsize=256)
def batches(a: Places, b: Places, out: Places | None) -> Batches:
    """Return how arrays of any dimensions are multiplied, by their shapes and strides; a new result is row-major.

    >>> plan = batches(((2, 3, 4, 8), (96, 32, 8, 1)), ((8, 5), (5, 1)), None)
    >>> plan.loops, plan.a, plan.b
    ((), ((6, 4, 8), (32, 8, 1)), ((6, 8, 5), (0, 5, 1)))
    """
    shape = result_shape(a[0], b[0])
    result_places = (shape, packed(shape)) if out is None else out
    (left, left_steps), (right, right_steps) = _matrix(a, -2), _matrix(b, -1)
    front = shape[: len(_broadcast(a[0], b[0]))]
    inner = ((left[-2], right[-1]), _inner(a, b, result_places))
    steps = [_broadcast_strides(left, left_steps, front), _broadcast_strides(right, right_steps, front), result_places[1][: len(front)]]
    dims = _merged([(size, *by) for size, *by in zip(front, *steps, strict=True)])
    batch = max(dims, default=None)
    order = [*(dim for dim in dims if dim is not batch), *([batch] if batch else [])]
    matrices = ((left[-2:], left_steps[-2:]), (right[-2:], right_steps[-2:]), inner)
    sizes = tuple(dim[0] for dim in order)
    views = [((*sizes, *own), (*(dim[place] for dim in order), *apart)) for place, (own, apart) in enumerate(matrices, 1)]
    return Batches(shape, sizes[:-1], *views)


def _matrix(array: Places, at: int) -> Places:
    """Return shape and strides with at least two dimensions; a vector gets a dimension of one element."""
    shape, steps = array
    if len(shape) > 1:
        return array
    return ((1, *shape), (steps[0] * shape[0], *steps)) if at == -2 else ((*shape, 1), (*steps, 1))


def _inner(a: Places, b: Places, out: Places) -> Shape:
    """Return the strides of the matrices of the result."""
    own = out[1][len(out[1]) - (len(a[0]) > 1) - (len(b[0]) > 1) :]
    down = own[0] if len(a[0]) > 1 else b[0][-1] if len(b[0]) > 1 else 1
    return down, own[-1] if len(b[0]) > 1 else 1


def _broadcast_strides(shape: Shape, steps: Shape, front: Shape) -> Shape:
    """Return the strides of an array along the leading dimensions; 0 along dimensions in which it is broadcast."""
    missing = len(front) + 2 - len(shape)
    own = zip(shape[:-2], steps[:-2], front[missing:], strict=True)
    return (*(0,) * missing, *(0 if size == 1 and wanted != 1 else step for size, step, wanted in own))


def _merged(dims: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return sizes with strides in each array, with dimensions merged that can be flattened in all arrays."""
    merged: list[tuple[int, ...]] = []
    for size, *steps in dims:
        if size == 1:
            continue
        if merged and all(outer == size * step for outer, step in zip(merged[-1][1:], steps, strict=True)):
            merged[-1] = (merged[-1][0] * size, *steps)
        else:
            merged.append((size, *steps))
    return merged


def packed(shape: Sequence[int]) -> Shape:
    """Return the strides of a packed row-major array."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def cut(a: Places, b: Places, parts: int, part: int = 0) -> tuple[Places, Places]:
    """Return the operands M x K and K x N as batches of `parts` parts of K, of K / `parts` or of `part` elements.

    With `part`, the last part may extend past K. Such places describe operands, and are no views of arrays.

    >>> cut(((4, 12), (12, 1)), ((12, 5), (5, 1)), 3)
    (((3, 4, 4), (4, 12, 1)), ((3, 4, 5), (20, 5, 1)))
    """
    (rows, depth), (down, along) = a
    (_, columns), (deep, across) = b
    part = part or depth // parts
    return ((parts, rows, part), (part * along, down, along)), ((parts, part, columns), (part * deep, deep, across))


def viewed(array: Any, places: Places) -> Any:
    """Return the same memory with another shape and other strides, in elements; for NumPy, CuPy and PyTorch."""
    shape, steps = places
    kind = type(array).__module__.partition(".")[0]
    if kind == "torch":
        return array.as_strided(shape, steps)
    size = array.dtype.itemsize
    return sys.modules[kind].lib.stride_tricks.as_strided(array, shape, tuple(step * size for step in steps))


def new_like(array: Any, shape: Shape, dtype: Any) -> Any:
    """Return a new array in the library and on the GPU of another; `dtype` is a `fireiron.DType`."""
    kind = type(array).__module__.partition(".")[0]
    if kind == "torch":
        new = array.new_empty(shape, dtype=getattr(sys.modules["torch"], dtype.numpy))
        note_allocated((new,))
        return new
    if kind == "cupy":
        with array.device:
            return sys.modules[kind].empty(shape, dtype.to_numpy())
    return sys.modules[kind].empty(shape, dtype.to_numpy())


__all__ = ["Batches", "Places", "batches", "cut", "new_like", "packed", "result_shape", "viewed"]
