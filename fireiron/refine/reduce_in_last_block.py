"""Sum the partial results of blocks in the block that finishes last: `reduce_in_last_block` on a `split_k` over blocks."""

from __future__ import annotations

from typing import Any, ClassVar

from fireiron.frozen import frozen
from fireiron.ir.effects.joint_tiles import Combination, JointTiles
from fireiron.language.tree import Refinement


@frozen
class ReduceInLastBlock(Refinement):
    """Sum the partial results of a tile in the block that finishes it last, which then performs the epilogue and stores C.

    Each block stores its part in a workspace that the launcher provides, and counts itself at the semaphore of the tile. The last block
    adds all parts in their order, so the result is the same in each run, and C may have any type. Legal on `split_k(parts, Block, step)`,
    with accumulators of at least 32 bits in registers or shared memory.
    rewrite: block p: C += P[p] --> block p: W[p] = P[p]; the last block: C = epilogue(W[0] + W[1] + ...)

    Source: decision 91.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 256, c_dtype=float16)(GL, GL, GL)(Kernel).split_k(4, Block, 8).reduce_in_last_block()
    >>> text = blocks.tile(16, 16).to(Block).epilog(RF, float32).tile(1, 1).to(Thread).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "is_last_block(&" in line]
    ['if (!is_last_block(&workspace[block / 4], 4)) return;  // only the last block of a tile continues']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split_k",)
    verb: ClassVar[str] = "reduce_in_last_block"

    def plan(self, plan: Any) -> Any:
        return plan.with_effect(JointTiles(Combination.LAST_BLOCK))

    def __str__(self) -> str:
        return "reduce_in_last_block()"


__all__ = ["ReduceInLastBlock"]
