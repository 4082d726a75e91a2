"""Scan a dimension across blocks in one kernel: `look_back` on a tile that divides the dimension of a scan."""

from __future__ import annotations

from typing import Any, ClassVar

from fireiron.frozen import frozen
from fireiron.ir.effects.joint_tiles import Combination, JointTiles
from fireiron.language.tree import Refinement


@frozen
class LookBack(Refinement):
    """Let blocks scan tiles of one dimension in a single pass: each block combines its tile with those of the blocks before it.

    A block publishes the total of its tile, looks back over the totals before it, and scans its tile from there. So the kernel reads and
    writes each element once. Totals are combined in a tree of 32 tiles per node, in a fixed order, so the result is the same in each run.
    Blocks take tiles in the order in which they start, so a block waits only for blocks that have started. Legal on a tile of a `Fused`
    spec that is distributed over blocks, if its steps scan the divided dimension or compute elementwise along it, with all threads of a
    block.
    rewrite: Y = cumsum(X) --> y = cumsum(X[tile]); publish y[last]; Y[tile] = before + y, before = the total of the tiles before

    Source: decision 102; Merrill and Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", NVR-2016-002.

    >>> from fireiron import *
    >>> sums = Fused(name="sums", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"scan": "Y[m,n] = cumsum(n, X[m,n])"})
    >>> row = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
    >>> tiles = sums.tile(m=1, n=1024).to(Block).look_back().load("X", RF, row).done()
    >>> text = tiles(sums(m=2, n=5000, dtype=float32)).cuda("sm_80")
    >>> next(line.strip() for line in text.splitlines() if line.strip().startswith("look_back("))
    'look_back(scan_words, scan_cumsum_tile, scan_cumsum_tiles_before, block_m, 1, block_n, 5);'
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    verb: ClassVar[str] = "look_back"

    def plan(self, plan: Any) -> Any:
        return plan.with_effect(JointTiles(Combination.LOOK_BACK))

    def __str__(self) -> str:
        return "look_back()"


__all__ = ["LookBack"]
