"""`Move`: a copy that converts elements to the type of the destination. Source elements that are out of bounds count as zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack

from fireiron.generated_verbs import ForMove
from fireiron.spec import Kind, OfMatrices, SpecShape, Starter, short_form
from fireiron.specs import operand
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, float32
from fireiron.values.strides import StorageOrder
from fireiron.values.tensor import ColMajor

if TYPE_CHECKING:
    from fireiron.generated_verbs import MoveSpec


class MoveStarter(ForMove, Starter):
    """The starter `Move`; `Move.src` and `Move.dst` name its operands."""

    src: Final = operand.SRC
    dst: Final = operand.DST

    @short_form
    def __call__(
        self,
        *sizes: Expr | int,
        dtype: DType = float32,
        dst_dtype: DType | None = None,
        signature: str = "",
        order: StorageOrder = ColMajor,
        src: StorageOrder | None = None,
        dst: StorageOrder | None = None,
        **named: Unpack[OfMatrices],
    ) -> SpecShape[MoveSpec]:
        """Specify a copy `dst = src` of any rank. The calls take the sizes, then the memories of src and dst, then the level.

        `order` is the storage order of both operands, `src` and `dst` that of one.

        A signature such as `mn->nm` permutes the indices of dst, which transposes the matrix. Sizes are those of dst.

        Source: Fireiron, section 3.1.

        >>> from fireiron import *
        >>> print(Move(64, 32)(GL, SH)(Block).tile(4, 1).to(Thread).result)
        Move(4,1)(GL,SH)(Thread)
        >>> transposed = Move(64, 32, signature="mn->nm")(GL, GL)(Kernel)
        >>> print(*transposed.src.shape, "->", *transposed.dst.shape)
        32 64 -> 64 32
        """
        return self.shape(sizes, dtype, {"dst": dst_dtype}, {"src": src, "dst": dst}, order, signature=signature)


Move: Final = MoveStarter(Kind("Move", "dst[...] = src[...]"))

__all__ = ["Move"]
