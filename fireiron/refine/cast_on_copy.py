"""The copy to a new buffer converts the elements: `cast_on_copy` on a load."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.language.tree import Refinement


@frozen
class CastOnCopy(Refinement):
    """Give the new buffer the type of a Move's destination, or of the other factor of a MatMul: the copy to it converts the elements.

    Legal on the load of a Move's source, and of a factor of a MatMul if the type of the other factor has all its numbers: 8-bit floats and
    integers with float16 or bfloat16, 16-bit floats with float32. 8-bit floats are converted in pairs.
    rewrite: Move(float32); Move(float32 -> float16) --> Move(float32 -> float16); Move(float16)

    Source: decision 21; decision 111 for factors.

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
