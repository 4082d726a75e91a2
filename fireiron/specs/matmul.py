"""`MatMul`: the product of two matrices, added up (Fireiron, section 3.1); by a signature, of tensors with indices in any order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from fireiron.errors import ArgumentError
from fireiron.spec import Kind, SpecShape, Starter, located
from fireiron.specs import operand
from fireiron.values.expr import FALSE, Expr
from fireiron.values.machine import DType, float32
from fireiron.values.strides import StorageOrder
from fireiron.values.tensor import ColMajor

if TYPE_CHECKING:
    from fireiron.specs.fused import Fused


class MatMulStarter(Starter):
    """The name `MatMul`; `MatMul.a`, `MatMul.b` and `MatMul.c` name its operands, as in the paper."""

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
        accumulate: Expr | bool = FALSE,
        A: StorageOrder = ColMajor,
        B: StorageOrder = ColMajor,
        C: StorageOrder = ColMajor,
        signature: str = "",
    ) -> SpecShape:
        """`C (M x N) = A (M x K) * B (K x N)`, or the product that a signature says; then the memories of A, B, C, then the level.

        Sizes are in elements, integers or symbols. `dtype` is the type of A and B (or a pair), `c_dtype` that of C,
        With a signature such as `bmk,bkn->bmn`, sizes are those of the dimensions of C, then of those that are added up: B, M, N, K.
        `accumulator` the type to add up in. Column-major float32 unless said otherwise (Fireiron, section 3.1).
        """
        if isinstance(dtype, tuple) and len(dtype) != 2:
            raise ArgumentError("dtype: one element type, or a pair for A and B", got=dtype)
        layouts = {"A": A, "B": B, "C": C}
        return self.shape(
            (M, N, K, *others), dtype, {"C": c_dtype}, layouts, accumulator=accumulator, accumulate=accumulate, signature=signature
        )

    def epilogue(self, text: str, name: str = "gemm", types: Mapping[str, Any] | None = None, signature: str = "") -> Fused:
        """The product with what becomes of its elements, as a definition: `MatMul.epilogue("relu(acc + bias[n])")`.

        Any strategy for a product takes its spec. See `fireiron.specs.epilogue`.
        """
        from fireiron.specs.epilogue import epilogue

        return epilogue(text, name, types, signature)


MatMul: Final = MatMulStarter(Kind("MatMul", "C[m,n] += sum(k, A[m,k] * B[k,n])"))

__all__ = ["MatMul"]
