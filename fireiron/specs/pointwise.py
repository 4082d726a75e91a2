"""Elementwise work: `UnaryPointwise` and `BinaryPointwise` by one operation, `Pointwise` by any formula (Graphene, Table 1).

>>> import numpy
>>> from fireiron import *
>>> spec = Pointwise("y[m,n] = relu(x[m,n] + bias[n])", 2, 2)(GL, GL, GL)(Kernel)
>>> print(spec.reference(numpy.array([[1, -2], [3, 4]]), numpy.array([1, -5])))
[[2. 0.]
 [4. 0.]]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack

from fireiron.generated_verbs import ForPointwise
from fireiron.spec import Kind, OfMatrices, Parameter, SpecShape, Starter, short_form
from fireiron.specs.bits import OF_INTEGERS, TO_INTEGER
from fireiron.specs.formula import FUNCTIONS
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, float32
from fireiron.values.strides import StorageOrder
from fireiron.values.tensor import ColMajor

if TYPE_CHECKING:
    from fireiron.generated_verbs import BinaryPointwiseSpec, UnaryPointwiseSpec


class UnaryPointwiseStarter(ForPointwise, Starter):
    """The starter `UnaryPointwise`."""

    @short_form
    def __call__(
        self,
        operation: str,
        *sizes: Expr | int,
        dtype: DType = float32,
        dst_dtype: DType | None = None,
        order: StorageOrder = ColMajor,
        src: StorageOrder | None = None,
        dst: StorageOrder | None = None,
        **named: Unpack[OfMatrices],
    ) -> SpecShape[UnaryPointwiseSpec]:
        """Specify `dst = operation(src)` of any rank. The operation is `-` or a function such as `relu`.

        The calls take the operation and the sizes, then the memories of src and dst, then the level.

        >>> from fireiron import *
        >>> problem = UnaryPointwise("relu", 64, 32)(GL, GL)(Kernel)
        >>> "fmaxf(" in problem.tile(8, 8).to(Block).tile(1, 1).to(Thread).done().cuda()
        True
        """
        return self.shape(sizes, dtype, {"dst": dst_dtype}, {"src": src, "dst": dst}, order, operation=operation)


class BinaryPointwiseStarter(ForPointwise, Starter):
    """The starter `BinaryPointwise`."""

    @short_form
    def __call__(
        self,
        operation: str,
        *sizes: Expr | int,
        dtype: DType | tuple[DType, DType] = float32,
        dst_dtype: DType | None = None,
        order: StorageOrder = ColMajor,
        lhs: StorageOrder | None = None,
        rhs: StorageOrder | None = None,
        dst: StorageOrder | None = None,
        **named: Unpack[OfMatrices],
    ) -> SpecShape[BinaryPointwiseSpec]:
        """Specify `dst = lhs operation rhs` of any rank. The operation is an operator, `max` or `min`.

        The calls take the operation and the sizes, then the memories of lhs, rhs and dst, then the level.

        >>> from fireiron import *
        >>> problem = BinaryPointwise("+", 64, 32)(GL, GL, GL)(Kernel)
        >>> print(problem.tile(8, 8).to(Block).tile(1, 1).to(Thread).done().result)
        BinaryPointwise<+>(1,1)(GL,GL,GL)(Thread)
        """
        return self.shape(sizes, dtype, {"dst": dst_dtype}, {"lhs": lhs, "rhs": rhs, "dst": dst}, order, operation=operation)


UNARY: Final = ("-", *(name for name, count in FUNCTIONS.items() if count == 1 and name not in (*OF_INTEGERS, *TO_INTEGER)))
BINARY: Final = ("+", "-", "*", "/", "max", "min")

UnaryPointwise: Final = UnaryPointwiseStarter(
    Kind("UnaryPointwise", "dst[...] = {operation}(src[...])", (Parameter("operation", text=True, legal=UNARY),))
)
BinaryPointwise: Final = BinaryPointwiseStarter(
    Kind("BinaryPointwise", "dst[...] = lhs[...] {operation} rhs[...]", (Parameter("operation", text=True, legal=BINARY),))
)
Pointwise: Final = Kind("Pointwise", "{formula}", (Parameter("formula", text=True),)).starter
"""Any formula without a reduction: `Pointwise("y[m,n] = relu(x[m,n] + bias[n])", M, N)(RF, GL, RF)(Thread)`."""

__all__ = ["BinaryPointwise", "Pointwise", "UnaryPointwise"]
