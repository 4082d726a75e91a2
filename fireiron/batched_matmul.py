"""Batched GEMM: which specs are batched, and how `fireiron.matmul` views arrays of two and three dimensions.

Two cases need no batched kernel. A batch times one matrix is one GEMM if the rows of all matrices of the batch are evenly spaced in memory.
A batch of one matrix, or a batch that repeats one matrix, is that matrix.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

from fireiron.errors import ArgumentError
from fireiron.frozen import frozen

if TYPE_CHECKING:
    from fireiron.spec import Spec

Shape = tuple[int, ...]
"""Sizes, or strides in elements, by dimension."""


class MatrixView(enum.Enum):
    """The view of an array that a kernel reads or writes."""

    AS_IS = "unchanged"
    FIRST = "its first matrix"
    FLATTENED = "the rows of all its matrices, as one matrix"

    def of(self, array: Any) -> Any:
        """Return this view of the array: the same memory."""
        if self is MatrixView.AS_IS:
            return array
        return array[0] if self is MatrixView.FIRST else array.reshape(-1, *array.shape[2:])

    def shape_and_strides(self, shape: Shape, steps: Shape) -> tuple[Shape, Shape]:
        """Return the shape and strides of this view of an array."""
        if self is MatrixView.AS_IS:
            return shape, steps
        if self is MatrixView.FIRST:
            return shape[1:], steps[1:]
        batch, rows, columns = shape
        return (batch * rows, columns), (steps[1] if rows > 1 else steps[0], steps[2])


@frozen
class BatchViews:
    """The views of the arrays of one matmul.

    Attributes:
        signature: the dimensions of a batched matmul in the letters b, m, n and k; empty for two matrices.
        a, b, c: the views of the arrays and of the result.
        batch: the number of matrices of the result; 0 if it is a matrix.
    """

    signature: str = ""
    a: MatrixView = MatrixView.AS_IS
    b: MatrixView = MatrixView.AS_IS
    c: MatrixView = MatrixView.AS_IS
    batch: int = 0

    @property
    def dims(self) -> tuple[str, str, str]:
        """Return the dimensions of A, B and C as letters."""
        left, right, result = (self.signature or "mk,kn->mn").replace("->", ",").split(",")
        return left, right, result

    def reshape_result(self, result: Any) -> Any:
        """Return a new result in the shape that the caller expects: the same memory."""
        if self.c is MatrixView.AS_IS:
            return result
        return result[None] if self.c is MatrixView.FIRST else result.reshape(self.batch, -1, *result.shape[1:])


MATRICES: Final = BatchViews()
"""The views of two matrices."""


def is_batched(spec: Spec) -> bool:
    """Return whether a spec is a batched matmul, or one of a batch and a matrix, in the letters b, m, n and k."""
    return spec.contracts and set(spec.dims) == {"b", "m", "n", "k"} and set(spec.uses["C"]) == {"b", "m", "n"}


def batch_size(a: Shape, b: Shape) -> int:
    """Return the batch size of the product of two shapes; 0 if the product is a matrix.

    Raises: an `ArgumentError` if the batch sizes differ and neither is 1.
    """
    sizes = [shape[0] for shape in (a, b) if len(shape) == 3]
    if len({*sizes, 1}) > 2:
        raise ArgumentError(f"a is a batch of {a[0]} matrices, but b is one of {b[0]}", got=(a, b), legal="equal batch sizes, or 1")
    return max(sizes, default=0)


def batch_views(a: tuple[Shape, Shape], b: tuple[Shape, Shape], out: tuple[Shape, Shape] | None, flatten: bool = True) -> BatchViews:
    """Return the views for arrays with these shapes and strides.

    `flatten` permits viewing the rows of a batch as the rows of one matrix.

    >>> views = batch_views(((4, 8, 16), (128, 16, 1)), ((16, 8), (8, 1)), None)
    >>> views.a.value, views.b.value, views.batch
    ('the rows of all its matrices, as one matrix', 'unchanged', 4)
    """
    batch = batch_size(a[0], b[0])
    if not batch:
        return MATRICES
    if batch == 1:
        view_a, view_b = [MatrixView.FIRST if len(shape) == 3 else MatrixView.AS_IS for shape, _ in (a, b)]
        return BatchViews("", view_a, view_b, MatrixView.FIRST, 1)
    left, right = (len(shape) == 3 and shape[0] > 1 and steps[0] != 0 for shape, steps in (a, b))
    if flatten and left and not right and _flattens(*a) and (out is None or _flattens(*out)):
        return BatchViews("", MatrixView.FLATTENED, _matrix(b[0]), MatrixView.FLATTENED, batch)
    if not left and not right:  # both operands repeat one matrix, so one of them remains a batch
        left, right = len(a[0]) == 3 and a[0][0] > 1, len(a[0]) != 3 or a[0][0] == 1
    views = [MatrixView.AS_IS if stays_batch else _matrix(shape) for stays_batch, (shape, _) in ((left, a), (right, b))]
    return BatchViews(f"{'b' * left}mk,{'b' * right}kn->bmn", views[0], views[1], MatrixView.AS_IS, batch)


def _matrix(shape: Shape) -> MatrixView:
    return MatrixView.FIRST if len(shape) == 3 else MatrixView.AS_IS


def _flattens(shape: Shape, steps: Shape) -> bool:
    """Return whether all rows of a batch are evenly spaced: the matrix stride must be the row stride times the number of rows."""
    return shape[1] == 1 or steps[0] == shape[1] * steps[1]


__all__ = ["MATRICES", "BatchViews", "MatrixView", "batch_size", "batch_views", "is_batched"]
