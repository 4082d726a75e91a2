"""`Reduction`: partial results, stacked along a third dimension, added up (Graphene, Table 1)."""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind, SpecShape, Starter, located
from fireiron.values.expr import FALSE, Expr
from fireiron.values.machine import DType, float32
from fireiron.values.tensor import ColMajor, MatrixLayout


class ReductionStarter(Starter):
    """The name `Reduction`."""

    @located
    def __call__(
        self,
        M: Expr | int,
        N: Expr | int,
        P: Expr | int,
        *,
        dtype: DType = float32,
        dst_dtype: DType | None = None,
        accumulate: Expr | bool = FALSE,
        src: MatrixLayout = ColMajor,
        dst: MatrixLayout = ColMajor,
    ) -> SpecShape:
        """`dst (M x N) = sum over p of src (M x N x P)`; then the memories of src and dst, then the level.

        >>> from fireiron import *
        >>> print(Reduction(64, 32, 4)(GL, GL)(Kernel).tile(32, 32).to(Block).tile(1, 1).to(Thread).result)
        Reduction(1,1,4)(GL,GL)(Thread)
        """
        return self.shape((M, N, P), dtype, {"dst": dst_dtype}, {"src": src, "dst": dst}, accumulate=accumulate)


Reduction: Final = ReductionStarter(Kind("Reduction", "dst[m,n] += sum(p, src[m,n,p])"))

__all__ = ["Reduction"]
