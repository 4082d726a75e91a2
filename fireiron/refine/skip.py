"""Turns of a loop in which a mask hides all elements are left out: `skip` on the split of a fused definition."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement, verb
from fireiron.specs.verbs import says_nothing


@attrs.frozen
class Skip(Refinement):
    """The loop runs over those turns only in which a mask, such as `where(n <= m, s[m,n], -inf)`, shows an element to some of the block.

    Legal on the split of a fused definition above Warp, where conditions between coordinates bound the dimension, and a turn whose
    elements are all hidden changes nothing that is carried, whatever arrays hold. That numbers by value are above 0 the definition says,
    by `positive`.
    rewrite: for n in all: S --> for n in those that the block's rows see: S

    Source: decision 38.

    >>> from fireiron import *
    >>> masked = Fused(
    ...     name="masked_sum", dims="m n", over="n", operands={"X": "m n", "y": "m"},
    ...     first={"zero": "t[m] = 0"},
    ...     each={"mask": "x[m,n] = where(n <= m, X[m,n], 0)", "sums": "s[m] = sum(n, x[m,n])", "add": "t[m] = t[m] + s[m]"},
    ...     last={"out": "y[m] = t[m]"},
    ... )
    >>> row = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
    >>> text = masked.tile(m=1).to(Block).split(n=128).skip().load("X", RF, row).done()(masked(m=512, n=512)).cuda()
    >>> [line.strip() for line in text.splitlines() if "int n =" in line]
    ['for (int n = 0; n < block / 128 + 1; ++n) {']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, skip=True)


@verb(is_step=True)
def skip(*steps: str, where: str = "") -> Skip | None:
    """Leave out turns in which a mask, such as `where(n <= m, s[m,n], -inf)`, hides all elements from all of the block.

    Legal on the split of a fused definition above Warp, where conditions between coordinates bound the dimension, and a turn whose
    elements are all hidden changes nothing that is carried, whatever arrays hold. That numbers by value are above 0 the definition
    says, by `positive`.
    With the names of steps and a condition it is a step of its own, as it is behind other steps: these are left out where it holds.
    rewrite: for n in all: S --> for n in those that the block's rows see: S
    """
    return Skip() if says_nothing(steps, where) else None


__all__ = ["Skip"]
