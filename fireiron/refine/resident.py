"""How many blocks a multiprocessor shall hold at once: `resident` on a tile dealt to Block."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.ir.effects.residency import Residency
from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, count, integral

MOST = 32
"""Most resident blocks of any SM."""


def _blocks(value: Any) -> Any:
    return integral(value, "resident")


@attrs.frozen
class Resident(Refinement):
    """The compiler keeps to registers that let a multiprocessor hold `blocks` blocks at once (`__launch_bounds__`).

    Legal on a tile that is dealt to Block, from 1 to 32; a tunable may stand for the number. Too many make it spill.
    rewrite: __launch_bounds__(threads) --> __launch_bounds__(threads, blocks)

    Source: CUDA C++ Programming Guide, "Launch Bounds".

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).resident(4)
    >>> text = blocks.tile(1, 1).to(Thread).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "__launch_bounds__" in line]
    ['extern "C" __global__ void __launch_bounds__(256, 4)']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((1,), (2,), (4,))
    blocks: Any = attrs.field(converter=_blocks)

    def plan(self, plan: Any) -> Any:
        return plan.saying(Residency(chosen(self.blocks, "resident", 1, MOST)))

    def __str__(self) -> str:
        return f"resident({self.blocks})"


@verb()
def resident(blocks: Integer) -> Resident:
    """Keep to registers that let a multiprocessor hold so many blocks at once.

    Args: blocks, 1 to 32, or a tunable. Legal on a tile that is dealt to Block.
    rewrite: __launch_bounds__(threads) --> __launch_bounds__(threads, blocks)
    """
    return Resident(count(blocks, "resident"))


__all__ = ["Resident"]
