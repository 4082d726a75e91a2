"""`Init`: set all elements to one value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack

from fireiron.generated_verbs import ForInit
from fireiron.spec import Kind, OfMatrices, Parameter, SpecShape, Starter, short_form
from fireiron.specs import operand
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, float32
from fireiron.values.strides import StorageOrder
from fireiron.values.tensor import ColMajor

if TYPE_CHECKING:
    from fireiron.generated_verbs import InitSpec


class InitStarter(ForInit, Starter):
    """The starter `Init`; `Init.dst` names its operand."""

    dst: Final = operand.DST

    @short_form
    def __call__(
        self,
        *sizes: Expr | int,
        dtype: DType = float32,
        order: StorageOrder = ColMajor,
        dst: StorageOrder | None = None,
        value: float = 0,
        **named: Unpack[OfMatrices],
    ) -> SpecShape[InitSpec]:
        """Specify `dst = value`. The calls take the sizes, then the memory of dst, then the level.

        The type of dst must represent the value exactly; infinity is legal.

        Source: Fireiron, section 4.1.

        >>> from fireiron import *
        >>> print(Init(64, 32)(RF)(Block).tile(4, 4).to(Thread).result)
        Init(4,4)(RF)(Thread)
        """
        return self.shape(sizes, dtype, {}, {"dst": dst}, order, value=value)


Init: Final = InitStarter(Kind("Init", "dst[...] = {value}", (Parameter("value", 0, real=True),)))

__all__ = ["Init"]
