"""Stacks of matrices: which specs multiply them, how `fireiron.matmul` sees arrays of two and three dimensions, and its result's shape.

A stack times one matrix is a product of matrices all the same: the rows of all of its matrices are rows of one product, if they lie as
those of one matrix do. And a stack of one matrix, or of one that is repeated, is that matrix.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.errors import ArgumentError

if TYPE_CHECKING:
    from fireiron.spec import Spec

Shape = tuple[int, ...]
"""Sizes, or steps in elements, by dimension."""


class Way(enum.Enum):
    """How an array is seen."""

    AS_IS = "as it is"
    FIRST = "its first matrix"
    FOLDED = "the rows of all its matrices, as one matrix"

    def of(self, array: Any) -> Any:
        """The array seen so: the same memory."""
        if self is Way.AS_IS:
            return array
        return array[0] if self is Way.FIRST else array.reshape(-1, *array.shape[2:])

    def stepped(self, shape: Shape, steps: Shape) -> tuple[Shape, Shape]:
        """Shape and steps of an array seen so."""
        if self is Way.AS_IS:
            return shape, steps
        if self is Way.FIRST:
            return shape[1:], steps[1:]
        stack, rows, columns = shape
        return (stack * rows, columns), (steps[1] if rows > 1 else steps[0], steps[2])


@attrs.frozen
class Stacked:
    """How the arrays of a product are seen.

    Attributes:
        signature: the product, in the letters b, m, n and k; empty for one of two matrices.
        a, b, c: how the arrays and the result are seen.
        stack: matrices of the result; 0 where it is a matrix.
    """

    signature: str = ""
    a: Way = Way.AS_IS
    b: Way = Way.AS_IS
    c: Way = Way.AS_IS
    stack: int = 0

    @property
    def dims(self) -> tuple[str, str, str]:
        """The dimensions of A, B and C, by their letters."""
        left, right, result = (self.signature or "mk,kn->mn").replace("->", ",").split(",")
        return left, right, result

    def given_back(self, result: Any) -> Any:
        """A new result in the shape that the arrays ask for: the same memory."""
        if self.c is Way.AS_IS:
            return result
        return result[None] if self.c is Way.FIRST else result.reshape(self.stack, -1, *result.shape[1:])


MATRICES: Final = Stacked()
"""Two matrices."""


def of_stacks(spec: Spec) -> bool:
    """Whether a spec multiplies stacks of matrices, or a stack and a matrix, in the letters b, m, n and k."""
    return spec.contracts and set(spec.dims) == {"b", "m", "n", "k"} and set(spec.uses["C"]) == {"b", "m", "n"}


def stack_of(a: Shape, b: Shape) -> int:
    """How many matrices the product of two shapes has; 0 where it is a matrix.

    Raises: an `ArgumentError` for two stacks of which neither is as high as the other, nor of one matrix.
    """
    heights = [shape[0] for shape in (a, b) if len(shape) == 3]
    if len({*heights, 1}) > 2:
        raise ArgumentError(f"a is a stack of {a[0]} matrices, b of {b[0]}", got=(a, b), legal="as many, or one")
    return max(heights, default=0)


def seen(a: tuple[Shape, Shape], b: tuple[Shape, Shape], out: tuple[Shape, Shape] | None, folds: bool = True) -> Stacked:
    """How arrays are seen, by their shapes and steps; `folds` says whether rows of a stack may be seen as those of one matrix.

    >>> seen(((4, 8, 16), (128, 16, 1)), ((16, 8), (8, 1)), None)
    Stacked(signature='', a=<Way.FOLDED: 'the rows of all its matrices, as one matrix'>, b=<Way.AS_IS: 'as it is'>, c=<Way.FOLDED: \
'the rows of all its matrices, as one matrix'>, stack=4)
    """
    stack = stack_of(a[0], b[0])
    if not stack:
        return MATRICES
    if stack == 1:
        one = [Way.FIRST if len(shape) == 3 else Way.AS_IS for shape, _ in (a, b)]
        return Stacked("", one[0], one[1], Way.FIRST, 1)
    left, right = (len(shape) == 3 and shape[0] > 1 and steps[0] != 0 for shape, steps in (a, b))
    if folds and left and not right and _folds(*a) and (out is None or _folds(*out)):
        return Stacked("", Way.FOLDED, _matrix(b[0]), Way.FOLDED, stack)
    if not left and not right:  # matrices that are repeated on both sides: one of them stays a stack
        left, right = len(a[0]) == 3 and a[0][0] > 1, len(a[0]) != 3 or a[0][0] == 1
    ways = [Way.AS_IS if stacked else _matrix(shape) for stacked, (shape, _) in ((left, a), (right, b))]
    return Stacked(f"{'b' * left}mk,{'b' * right}kn->bmn", ways[0], ways[1], Way.AS_IS, stack)


def _matrix(shape: Shape) -> Way:
    return Way.FIRST if len(shape) == 3 else Way.AS_IS


def _folds(shape: Shape, steps: Shape) -> bool:
    """Whether the rows of a stack lie as those of one matrix: as far from one matrix's last to the next one's first as from row to row."""
    return shape[1] == 1 or steps[0] == shape[1] * steps[1]


__all__ = ["MATRICES", "Stacked", "Way", "of_stacks", "seen", "stack_of"]
