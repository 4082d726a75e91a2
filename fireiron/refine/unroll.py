"""The loops of the step are unrolled in the printed code."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement


@attrs.frozen
class Unroll(Refinement):
    """The loops of the step are unrolled in the printed code.

    Legal on every loop. rewrite: for i: S --> #pragma unroll for i: S

    Source: Fireiron, section 4.2.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).tile(1, 1).to(Thread)
    >>> blocks.split(8).unroll().split(1).done().cuda().count("#pragma unroll")
    1
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile", "split")

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, unroll=True)

    def __str__(self) -> str:
        return "unroll()"


__all__ = ["Unroll"]
