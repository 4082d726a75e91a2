"""Omit iterations over fully masked tiles: `skip_masked_tiles` on the split of a fused definition."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.language.tree import Refinement


@frozen
class SkipMaskedTiles(Refinement):
    """Run only the iterations in which a mask, such as `where(n <= m, s[m,n], -inf)`, leaves an element of the block's tile unmasked.

    Legal on the split of a fused definition above Warp, if comparisons of coordinates bound the dimension, and if a fully masked iteration
    changes no value that the loop carries, for any contents of the arrays. For parameters passed by value, the argument `positive` of
    the definition promises that they are above 0. If a mask compares digits, `first[e] <= n // 64`, and the step of the split divides 64,
    the iterations that run are not masked at all, and the mask is removed from them.
    rewrite: for n in all: S --> for n with an unmasked element in the block's tile: S

    Source: decisions 38 and 109.

    >>> from fireiron import *
    >>> masked = Fused(
    ...     name="masked_sum", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
    ...     init={"zero": "t[m] = 0"},
    ...     body={"mask": "x[m,n] = where(n <= m, X[m,n], 0)", "sums": "s[m] = sum(n, x[m,n])", "add": "t[m] = t[m] + s[m]"},
    ...     final={"out": "y[m] = t[m]"},
    ... )
    >>> row = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
    >>> tiles = masked.tile(m=1).to(Block).split(n=128).skip_masked_tiles()
    >>> text = tiles.load("X", RF, row).done()(masked(m=512, n=512)).cuda()
    >>> [line.strip() for line in text.splitlines() if "int n =" in line]
    ['for (int n = 0; n < block / 128 + 1; ++n) {']
    """

    verb: ClassVar[str] = "skip_masked_tiles"
    applies_to: ClassVar[tuple[str, ...]] = ("split",)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, skip=True)


__all__ = ["SkipMaskedTiles"]
