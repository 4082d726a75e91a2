"""Work on each element of its own: by one operation, or by any formula without a reduction (Graphene, Table 1)."""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind, Parameter, SpecShape, Starter, short_form
from fireiron.specs.formula import FUNCTIONS
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, float32
from fireiron.values.strides import StorageOrder
from fireiron.values.tensor import ColMajor


class UnaryPointwiseStarter(Starter):
    """The name `UnaryPointwise`."""

    @short_form
    def __call__(
        self,
        operation: str,
        *sizes: Expr | int,
        dtype: DType = float32,
        dst_dtype: DType | None = None,
        src: StorageOrder = ColMajor,
        dst: StorageOrder = ColMajor,
    ) -> SpecShape:
        """`dst = operation(src)`, of any rank, by `-` or a function such as `relu`; then the memories of src and dst, then the level."""
        return self.shape(sizes, dtype, {"dst": dst_dtype}, {"src": src, "dst": dst}, operation=operation)


class BinaryPointwiseStarter(Starter):
    """The name `BinaryPointwise`."""

    @short_form
    def __call__(
        self,
        operation: str,
        *sizes: Expr | int,
        dtype: DType | tuple[DType, DType] = float32,
        dst_dtype: DType | None = None,
        lhs: StorageOrder = ColMajor,
        rhs: StorageOrder = ColMajor,
        dst: StorageOrder = ColMajor,
    ) -> SpecShape:
        """`dst = lhs operation rhs`, of any rank, by a sign; then the memories of lhs, rhs and dst, then the level."""
        return self.shape(sizes, dtype, {"dst": dst_dtype}, {"lhs": lhs, "rhs": rhs, "dst": dst}, operation=operation)


UNARY: Final = ("-", *(name for name, count in FUNCTIONS.items() if count == 1))
BINARY: Final = ("+", "-", "*", "/", "max", "min")

UnaryPointwise: Final = UnaryPointwiseStarter(
    Kind("UnaryPointwise", "dst[...] = {operation}(src[...])", (Parameter("operation", text=True, legal=UNARY),))
)
BinaryPointwise: Final = BinaryPointwiseStarter(
    Kind("BinaryPointwise", "dst[...] = lhs[...] {operation} rhs[...]", (Parameter("operation", text=True, legal=BINARY),))
)
Pointwise: Final = Starter(Kind("Pointwise", "{formula}", (Parameter("formula", text=True),)))
"""Any formula: `Pointwise("y[m,n] = relu(x[m,n] + bias[n])", M, N)(RF, GL, RF)(Thread)`."""

__all__ = ["BinaryPointwise", "Pointwise", "UnaryPointwise"]
