"""Iterations without masks as a separate loop: `separate_masked_tiles` on a split."""

from __future__ import annotations

from typing import Any, ClassVar

from fireiron.frozen import frozen
from fireiron.ir.asks.separate_masks import SeparateMasks
from fireiron.language.tree import Refinement


@frozen
class SeparateMaskedTiles(Refinement):
    """Print the iterations in which no mask changes an element as a separate loop, without the masks and their conditions.

    Legal on any split. The conditions of masks, and of elements past the end, are comparisons that are linear in the loop variable. So they
    hold in the first or in the last iterations, and the loop is printed two or three times. Other loops stay as they are: those with other
    conditions, unrolled ones, and those of a single iteration. Results and checks do not change.
    rewrite: for n: S; if edge(n): mask; T --> for n < end: S; T, for n from end on: S; if edge(n): mask; T

    Source: decision 146.

    >>> from fireiron import *
    >>> masked = Fused(
    ...     name="masked_sum", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
    ...     init={"zero": "t[m] = 0"},
    ...     body={
    ...         "x": "x[m,n] = X[m,n]", "mask": "x[m,n] = where(n <= m, x[m,n], 0)",
    ...         "sums": "s[m] = sum(n, x[m,n])", "add": "t[m] = t[m] + s[m]",
    ...     },
    ...     final={"out": "y[m] = t[m]"},
    ... )
    >>> row = Move.tile(1, 4).to(Lane).done()
    >>> tiles = masked.tile(m=1).to(Block).split(n=128).skip_masked_tiles().separate_masked_tiles()
    >>> text = tiles.tile(m=1).to(Warp).load("X", RF, row).done()(masked(m=512, n=512)).cuda()
    >>> for line in text.splitlines():
    ...     if "int n" in line or "if (block" in line:
    ...         print(line.strip())
    const int n_end = min((blockIdx.x + 1) / 128, blockIdx.x / 128 + 1);
    for (int n = 0; n < n_end; ++n) {
    for (int n = n_end; n < block / 128 + 1; ++n) {
    if (block < n * 128 + 127) {
    """

    verb: ClassVar[str] = "separate_masked_tiles"
    applies_to: ClassVar[tuple[str, ...]] = ("split",)

    def plan(self, plan: Any) -> Any:
        return plan.with_asks(SeparateMasks(True))


__all__ = ["SeparateMaskedTiles"]
