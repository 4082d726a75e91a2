"""Blocks that stay and take one tile after the other: `persistent` on a tile dealt to Block."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement
from fireiron.language.tunable import chosen, integral

MOST = 1 << 16
"""The most blocks: more than any GPU runs at once."""


def _blocks(value: Any) -> Any:
    return integral(value, "persistent")


@attrs.frozen
class Persistent(Refinement):
    """At most `blocks` blocks are launched, one for each multiprocessor, say; each takes every `blocks`-th tile, in a loop.

    With `specialize` the loads of the next tile are under way while this one is stored. Legal on a tile that is dealt to Block; a
    tunable may stand for the number.
    rewrite: block u: tile u --> block u: tiles u, u + blocks, u + 2 * blocks ...
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    blocks: Any = attrs.field(converter=_blocks)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, persistent=chosen(self.blocks, "persistent", 1, MOST))

    def __str__(self) -> str:
        return f"persistent({self.blocks})"


__all__ = ["Persistent"]
