"""Storage orders of matrices: by rows, by columns, and in equal parts on the GPUs of a node."""

from __future__ import annotations

from typing import Any

import attrs

from fireiron.errors import ArgumentError
from fireiron.values.expr import Expr, as_expr, constant
from fireiron.values.level import GPU, Level


@attrs.frozen(repr=False)
class MatrixLayout:
    """Row- or column-major storage, optionally with a leading dimension (elements from one row or column to the next).

    Of any rank: row-major storage is contiguous along the last dimension, and the first dimension has the largest stride; column-major
    storage is the opposite. `Strides` specifies any other order.

    >>> RowMajor(ld=1040)
    RowMajor(ld=1040)
    """

    order: str
    leading: Expr | None = None

    def __attrs_post_init__(self) -> None:
        if (
            not isinstance(self.order, str)
            or self.order not in ("row", "col")
            or not (self.leading is None or isinstance(self.leading, Expr))
        ):
            got = (self.order, self.leading)
            raise ArgumentError(
                "MatrixLayout: an order is row or col, a leading dimension an expression or None",
                got=got,
                legal="RowMajor ColMajor RowMajor(ld=80)",
            )

    def __call__(self, ld: Expr | int) -> MatrixLayout:
        """The same order with a leading dimension, in elements."""
        leading = as_expr(ld)
        if leading.low < 1:
            raise ArgumentError(f"leading dimension {ld} of {self}: must be at least 1")
        return MatrixLayout(self.order, leading)

    def over(self, level: Level, dim: str) -> Distributed:
        """This order for each of the parts into which the GPUs of a node divide a dimension; each GPU stores one part.

        `A=RowMajor.over(GPU, "m")` of a spec at the level `Node(2)`: GPU 0 stores the first half of the rows, GPU 1 the second half.
        """
        return Distributed.of(self, level, dim)

    def fastest_first(self, rank: int) -> tuple[int, ...]:
        """The dimensions of a tensor, from the contiguous one to the one with the largest stride."""
        return tuple(range(rank)) if self.order == "col" else tuple(reversed(range(rank)))

    def __repr__(self) -> str:
        name = "ColMajor" if self.order == "col" else "RowMajor"
        if self.leading is None:
            return name
        number = constant(self.leading)
        return f"{name}(ld={self.leading!r})" if number is None else f"{name}(ld={number})"

    __str__ = __repr__


ColMajor = MatrixLayout("col")
RowMajor = MatrixLayout("row")


@attrs.frozen(repr=False)
class Distributed:
    """Storage of an operand of which each GPU of a node stores the part with its number along dimension `dim`, in the order `layout`.

    All parts have the same size. `RowMajor.over(GPU, "m")` is the storage order of each part, and the dimension.

    >>> from fireiron import *
    >>> print(RowMajor.over(GPU, "m"))
    RowMajor.over(GPU, 'm')
    """

    layout: MatrixLayout
    dim: str

    @staticmethod
    def of(layout: MatrixLayout, level: Any, dim: Any) -> Distributed:
        """Return the storage for the arguments of `over`. Raises: ArgumentError for wrong arguments."""
        if not isinstance(level, Level) or level != GPU:
            raise ArgumentError(f"{layout}.over(level, dim): only GPUs have separate memories", got=level, legal="GPU")
        if not isinstance(dim, str) or not dim.isidentifier():
            raise ArgumentError(f"{layout}.over(GPU, dim): dim is the name of a dimension", got=dim, legal='"m"')
        if layout.leading is not None:
            raise ArgumentError(f"{layout}.over(GPU, {dim!r}): the parts have no gaps between rows", got=layout, legal="RowMajor, ColMajor")
        return Distributed(layout, dim)

    def __repr__(self) -> str:
        return f"{self.layout}.over(GPU, {self.dim!r})"

    __str__ = __repr__


__all__ = ["ColMajor", "Distributed", "MatrixLayout", "RowMajor"]
