"""`MatMul`: accumulated matrix multiplication (Fireiron, section 3.1); with a signature, of tensors with indices in any order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fireiron.errors import ArgumentError
from fireiron.generated_verbs import ForMatMul
from fireiron.spec import Kind, SpecShape, Starter, located
from fireiron.specs import operand
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, float32
from fireiron.values.orders import Distributed
from fireiron.values.strides import StorageOrder
from fireiron.values.tensor import ColMajor

if TYPE_CHECKING:
    from fireiron.generated_verbs import MatMulSpec
    from fireiron.specs.epilogue import FusedEpilogue


class MatMulStarter(ForMatMul, Starter):
    """The starter `MatMul`; `MatMul.a`, `MatMul.b` and `MatMul.c` name its operands, as in the paper."""

    a: Final = operand.A
    b: Final = operand.B
    c: Final = operand.C

    @located
    def __call__(
        self,
        M: Expr | int,
        N: Expr | int,
        K: Expr | int,
        *others: Expr | int,
        dtype: DType | tuple[DType, DType] = float32,
        c_dtype: DType | None = None,
        accumulator: DType | None = None,
        accumulate: Expr | bool = False,
        order: StorageOrder = ColMajor,
        A: StorageOrder | Distributed | None = None,
        B: StorageOrder | Distributed | None = None,
        C: StorageOrder | Distributed | None = None,
        signature: str = "",
    ) -> SpecShape[MatMulSpec]:
        """Specify `C (M x N) = A (M x K) * B (K x N)`, or the product that a signature defines.

        The calls take the sizes, then the memories of A, B and C, then the level; without memories and level, all operands are in global
        memory, at the level Kernel. Sizes are in elements, integers or symbols. `dtype` is the type of A and B (or a pair), `c_dtype` that
        of C, `accumulator` that of the accumulator; `accumulate` adds to the present value of C. `order` is the storage order of all
        operands; `A`, `B` and `C` are those of one. The default is column-major float32 (Fireiron, section 3.1). With a signature such as
        `bmk,bkn->bmn`, sizes are those of the dimensions of C, then of the reduction dimensions: B, M, N, K.

        >>> from fireiron import *
        >>> product = MatMul(64, 32, 16, dtype=float16, c_dtype=float32, A=RowMajor)(GL, GL, GL)(Kernel)
        >>> product.A.dtype, product.A.tensor.layout, product.C.dtype, product.C.tensor.layout
        (float16, RowMajor, float32, ColMajor)
        >>> rows = MatMul(64, 32, 16, order=RowMajor).tile(32, 32).to(Block)  # all operands in GL
        >>> print(rows.result)
        MatMul(32,32,16)(GL,GL,GL)(Block)
        >>> batch = MatMul(3, 64, 32, 16, signature="bmk,bkn->bmn")(GL, GL, GL)(Kernel)
        >>> print(batch.tile(b=1, m=32, n=32).to(Block).result)
        MatMul(1,32,32,16)(GL,GL,GL)(Block)
        """
        if isinstance(dtype, tuple) and len(dtype) != 2:
            raise ArgumentError("MatMul: dtype must be one element type, or a pair for A and B", got=dtype)
        layouts = {"A": A, "B": B, "C": C}
        return self.shape(
            (M, N, K, *others),
            dtype,
            {"C": c_dtype},
            layouts,
            order,
            accumulator=accumulator,
            accumulate=accumulate,
            signature=signature,
        )

    def fuse_epilogue(self, text: str, name: str = "gemm", types: Mapping[str, Any] | None = None, signature: str = "") -> FusedEpilogue:
        """Return a definition of the matmul with elementwise work on its result: `MatMul.fuse_epilogue("relu(acc + bias[n])")`.

        Any strategy for a MatMul accepts its spec. Called with positional sizes, it takes the arguments of `MatMul`, and types and storage
        orders of further operands. See `fireiron.specs.epilogue`.

        >>> from fireiron import *
        >>> spec = MatMul.fuse_epilogue("relu(acc + bias[n])")(64, 32, 16, dtype=float16, c_dtype=float16, types={"bias": float32})
        >>> print(spec)
        gemm(64,32,16)(GL,GL,GL,GL)(Kernel) with A, B, C float16
        """
        from fireiron.specs.epilogue import FusedEpilogue

        return FusedEpilogue.of_product(self, text, name, types, signature)


MatMul: Final = MatMulStarter(Kind("MatMul", "C[m,n] += sum(k, A[m,k] * B[k,n])"))

__all__ = ["MatMul"]
