"""`Move`: a copy, converted to the type of its destination; elements of the source outside its tensor count as zero."""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind, SpecShape, Starter, short_form
from fireiron.specs import operand
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, float32
from fireiron.values.strides import StorageOrder
from fireiron.values.tensor import ColMajor


class MoveStarter(Starter):
    """The name `Move`; `Move.src` and `Move.dst` name its operands."""

    src: Final = operand.SRC
    dst: Final = operand.DST

    @short_form
    def __call__(
        self,
        *sizes: Expr | int,
        dtype: DType = float32,
        dst_dtype: DType | None = None,
        signature: str = "",
        src: StorageOrder = ColMajor,
        dst: StorageOrder = ColMajor,
    ) -> SpecShape:
        """`dst = src`, of any rank: `Move(M, N)`; then the memories of src and dst, then the level.

        With a signature, `mn->nm`, the indices of dst stand in another order: the matrix is transposed. Sizes are those of dst.
        """
        return self.shape(sizes, dtype, {"dst": dst_dtype}, {"src": src, "dst": dst}, signature=signature)


Move: Final = MoveStarter(Kind("Move", "dst[...] = src[...]"))

__all__ = ["Move"]
