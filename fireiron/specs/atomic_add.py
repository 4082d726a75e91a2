"""`AtomicAdd`: atomic addition to memory, by threads of any block, in no particular order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Unpack

from fireiron.generated_verbs import ForAtomicAdd
from fireiron.spec import Kind, OfMatrices, SpecShape, Starter, short_form
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, float32
from fireiron.values.strides import StorageOrder
from fireiron.values.tensor import ColMajor

if TYPE_CHECKING:
    from fireiron.generated_verbs import AtomicAddSpec


class AtomicAddStarter(ForAtomicAdd, Starter):
    """The starter `AtomicAdd`."""

    @short_form
    def __call__(
        self,
        *sizes: Expr | int,
        dtype: DType = float32,
        dst_dtype: DType | None = None,
        order: StorageOrder = ColMajor,
        src: StorageOrder | None = None,
        dst: StorageOrder | None = None,
        **named: Unpack[OfMatrices],
    ) -> SpecShape[AtomicAddSpec]:
        """Specify an atomic addition `dst += src` of any rank. The calls take the sizes, then the memories of src and dst, then the level.

        Source: CUDA C++ Programming Guide, "atomicAdd()".

        >>> from fireiron import *
        >>> print(AtomicAdd(64, 32)(GL, GL)(Kernel).tile(8, 8).to(Block).tile(1, 1).to(Thread).result)
        AtomicAdd(1,1)(GL,GL)(Thread)
        """
        return self.shape(sizes, dtype, {"dst": dst_dtype}, {"src": src, "dst": dst}, order)


AtomicAdd: Final = AtomicAddStarter(Kind("AtomicAdd", "dst[...] += src[...]", atomic=True))

__all__ = ["AtomicAdd"]
