"""A barrier at the end of each iteration: `sync` on a split."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.language.tree import Refinement, verb


@frozen
class Sync(Refinement):
    """Require a block barrier at the end of the loop body.

    Legal if all threads of the block run the loop. rewrite: for k: S --> for k: { S; barrier }

    Source: Fireiron, section 4.2.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
    >>> loads = blocks.split(8).sync().load(A, SH).load(B, SH)
    >>> text = loads.tile(4, 4).to(Thread).tile(1, 1).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "__syncthreads" in line]
    ['__syncthreads();  // a_sh, b_sh complete', '__syncthreads();  // a_sh, b_sh free again']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, sync="sync")


@verb()
def sync() -> Sync:
    """Require a block barrier at the end of the loop body.

    Legal if all threads of the block run the loop. rewrite: for k: S --> for k: { S; barrier }
    """
    return Sync()


__all__ = ["Sync"]
