"""The new buffer has the element type of the copy's destination: `cast_on_copy` on a load."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.language.tree import Refinement


@frozen
class CastOnCopy(Refinement):
    """Give the new buffer the element type of the copy's destination: the copy to the buffer converts the elements.

    Legal on the load of a Move's source.
    rewrite: Move(float32); Move(float32 -> float16) --> Move(float32 -> float16); Move(float16)

    Source: decision 21.

    >>> from fireiron import *
    >>> store = Move.load(SRC, SH, Move.tile(4, 4).to(Thread).done()).cast_on_copy().coalesced_copy(8).done()
    >>> blocks = MatMul(64, 64, 64, dtype=float16, c_dtype=float16)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
    >>> sums = blocks.epilog(RF, float32, Init.tile(4, 4).to(Thread).done(), store)
    >>> text = sums.split(16).tile(4, 4).to(Thread).tile(1, 1).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "__shared__" in line]
    ['__shared__ __align__(16) __half store_c_sh[1024];  // 32 x 32']
    """

    verb: ClassVar[str] = "cast_on_copy"
    applies_to: ClassVar[tuple[str, ...]] = ("load",)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, converted=True)


__all__ = ["CastOnCopy"]
