"""Let blocks add to one result in a fixed order: `ordered` on a `split_k` over blocks, or on a tile distributed over blocks."""

from __future__ import annotations

from typing import Any, ClassVar

from fireiron.frozen import frozen
from fireiron.ir.effects.joint_tiles import Combination, JointTiles
from fireiron.language.tree import Refinement


@frozen
class Ordered(Refinement):
    """Let the blocks that add to one result do so in the order of their indices: the result is the same in each run.

    A semaphore per result counts the blocks that have added. A block waits until all blocks before it were counted, so additions of
    different results overlap, but those of one result do not. A GPU starts blocks in the order of their indices, and a block only waits for
    blocks with lower ones; so the kernel ends. Legal on `split_k(parts, Block, step)`, and on a tile of a `Fused` spec that is distributed
    over blocks, if steps add to outputs (`+=`) with all threads of a block, each element once, in loops that all blocks execute equally.
    rewrite: C += c --> wait until p blocks have added; C += c; count this block        (block p of those that share C)

    Source: decision 91.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 256)(GL, GL, GL)(Kernel).split_k(4, Block, 8).ordered()
    >>> text = blocks.tile(16, 16).to(Block).epilog(RF).tile(1, 1).to(Thread).split(1).done().cuda()
    >>> [line.split(";")[0].strip() for line in text.splitlines() if "(&workspace" in line]
    ['wait_for_count(&workspace[block / 4], block_k)', 'count_block(&workspace[block / 4], 4)']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split_k", "tile")
    verb: ClassVar[str] = "ordered"

    def plan(self, plan: Any) -> Any:
        return plan.with_effect(JointTiles(Combination.ORDERED))

    def __str__(self) -> str:
        return "ordered()"


__all__ = ["Ordered"]
