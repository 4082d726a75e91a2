"""Unrolled loops: `unroll` on a tile or a split."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.language.tree import Refinement, verb


@frozen
class Unroll(Refinement):
    """Unroll the loops of the step in the printed code.

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


@verb("tile", name="unroll")
def unroll_tile() -> Unroll:
    """Unroll the loops in the printed code. Legal on every tile. rewrite: for i: S --> #pragma unroll for i: S"""
    return Unroll()


@verb("split", name="unroll")
def unroll_split() -> Unroll:
    """Unroll the loop in the printed code. Legal on every split. rewrite: for k: S --> #pragma unroll for k: S"""
    return Unroll()


__all__ = ["Unroll"]
