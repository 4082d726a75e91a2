"""`AtomicAdd`: an addition to memory that several threads, of any block, make at once and none gets lost, in no particular order."""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind, SpecShape, Starter, short_form
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, float32
from fireiron.values.strides import StorageOrder
from fireiron.values.tensor import ColMajor


class AtomicAddStarter(Starter):
    """The name `AtomicAdd`."""

    @short_form
    def __call__(
        self,
        *sizes: Expr | int,
        dtype: DType = float32,
        dst_dtype: DType | None = None,
        src: StorageOrder = ColMajor,
        dst: StorageOrder = ColMajor,
    ) -> SpecShape:
        """`dst += src`, of any rank: `AtomicAdd(M, N)`; then the memories of src and dst, then the level."""
        return self.shape(sizes, dtype, {"dst": dst_dtype}, {"src": src, "dst": dst})


AtomicAdd: Final = AtomicAddStarter(Kind("AtomicAdd", "dst[...] += src[...]", atomic=True))

__all__ = ["AtomicAdd"]
