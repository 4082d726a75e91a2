"""Blocks begin a loop over a reduction dimension at different places: `staggered` on a split."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement
from fireiron.language.tunable import Integer, chosen, integral

MOST = 1 << 10
"""Most iterations between the starts of two consecutive blocks."""


def _shift(value: Any) -> Any:
    return integral(value, "staggered")


@attrs.frozen
class Staggered(Refinement):
    """Each block begins `shift` turns further on than the block before, and goes round: they do not all read the same columns at a time.

    The same columns of many long rows lie in few channels of the memory. Results are added up in another order. Legal behind a tile that
    is dealt to Block, on a split of one dimension of a product or a reduction, of neighbours, of operands in global memory; blocks of a
    cluster begin together. A tunable may stand for the number; 0 is as without.
    rewrite: for k: S(k) --> for k: S((k + block * shift) % turns)

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
    >>> loads = blocks.split(8).staggered(1).load(A, SH).load(B, SH)
    >>> text = loads.tile(4, 4).to(Thread).tile(1, 1).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "int k_turn" in line]
    ['const int k_turn = (k + block) % 8;']

    Source: docs/pipeline.md.
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((0,), (1,), (2,), (5,))
    verb: ClassVar[str] = "staggered"
    shift: Integer = attrs.field(default=1, converter=_shift)

    @property
    def idle(self) -> bool:
        return bool(self.shift == 0)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, staggered=chosen(self.shift, "staggered", 0, MOST))


__all__ = ["Staggered"]
