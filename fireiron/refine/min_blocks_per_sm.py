"""The second argument of `__launch_bounds__`: `min_blocks_per_sm` on a tile distributed over blocks."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.ir.effects.residency import Residency
from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, count, integral

MOST = 32
"""The maximum number of blocks per SM of any target."""


def _blocks(value: Any) -> Any:
    return integral(value, "min_blocks_per_sm")


@frozen
class MinBlocksPerSm(Refinement):
    """Limit registers so that `blocks` blocks fit on an SM (`__launch_bounds__`).

    Legal on a tile distributed over blocks, from 1 to 32; the number may be a tunable. If registers do not suffice, they are spilled.
    rewrite: __launch_bounds__(threads) --> __launch_bounds__(threads, blocks)

    Source: CUDA C++ Programming Guide, "Launch Bounds".

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).min_blocks_per_sm(4)
    >>> text = blocks.tile(1, 1).to(Thread).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "__launch_bounds__" in line]
    ['extern "C" __global__ void __launch_bounds__(256, 4)']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((1,), (2,), (4,))
    blocks: Any = attrs.field(converter=_blocks)

    def plan(self, plan: Any) -> Any:
        return plan.with_effect(Residency(chosen(self.blocks, "min_blocks_per_sm", 1, MOST)))

    def __str__(self) -> str:
        return f"min_blocks_per_sm({self.blocks})"


@verb()
def min_blocks_per_sm(blocks: Integer) -> MinBlocksPerSm:
    """Limit registers so that `blocks` blocks fit on an SM.

    Args: blocks: 1 to 32, or a tunable. Legal on a tile distributed over blocks.
    rewrite: __launch_bounds__(threads) --> __launch_bounds__(threads, blocks)
    """
    return MinBlocksPerSm(count(blocks, "min_blocks_per_sm"))


__all__ = ["MinBlocksPerSm"]
