"""`Init`: one value everywhere."""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind, Parameter, SpecShape, Starter, located
from fireiron.specs import operand
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, float32
from fireiron.values.tensor import ColMajor, MatrixLayout


class InitStarter(Starter):
    """The name `Init`; `Init.dst` names its operand."""

    dst: Final = operand.DST

    @located
    def __call__(self, M: Expr | int, N: Expr | int, *, dtype: DType = float32, dst: MatrixLayout = ColMajor, value: int = 0) -> SpecShape:
        """`dst (M x N) = value`; then the memory of dst, then the level."""
        return self.shape((M, N), dtype, {}, {"dst": dst}, value=value)


Init: Final = InitStarter(Kind("Init", "dst[m,n] = {value}", (Parameter("value", 0),)))

__all__ = ["Init"]
