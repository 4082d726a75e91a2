"""`Init`: one value everywhere."""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind, Parameter, SpecShape, Starter, short_form
from fireiron.specs import operand
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, float32
from fireiron.values.strides import StorageOrder
from fireiron.values.tensor import ColMajor


class InitStarter(Starter):
    """The name `Init`; `Init.dst` names its operand."""

    dst: Final = operand.DST

    @short_form
    def __call__(self, *sizes: Expr | int, dtype: DType = float32, dst: StorageOrder = ColMajor, value: float = 0) -> SpecShape:
        """`dst = value`, a number that the type holds exactly, infinity too; then the memory of dst, then the level."""
        return self.shape(sizes, dtype, {}, {"dst": dst}, value=value)


Init: Final = InitStarter(Kind("Init", "dst[...] = {value}", (Parameter("value", 0, real=True),)))

__all__ = ["Init"]
