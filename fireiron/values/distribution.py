"""Arrays of which each GPU of a node stores a part, and the part that a launch on one GPU accesses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from fireiron.errors import ArgumentError
from fireiron.values.level import GPU, Level

if TYPE_CHECKING:
    from fireiron.values.tensor import MatrixLayout


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


@attrs.frozen
class Portion:
    """The portion of an array of a node that a launch on one GPU accesses.

    - `gpu_axis`: the dimension of the launch's array that numbers the GPUs, if it contains the parts of all GPUs; None for the part of the
      launch's own GPU.
    - `own_along`: the dimension of each part of which the launch accesses the slice with the number of its GPU; None for all of it.
    """

    gpu_axis: int | None = None
    own_along: int | None = None


__all__ = ["Distributed", "Portion"]
