"""Two groups of consumers that have every other tile of a block: `turns` on a persistent tile."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, count, integral

MOST = 2
"""Most ping-pong groups: a wait for the previous tile sees only the parity of one mbarrier phase."""


def _groups(value: Any) -> Any:
    return integral(value, "turns")


@attrs.frozen
class Turns(Refinement):
    """The tiles of a persistent block are taken in turns by `groups` groups of consumers, each as many threads as the tile is dealt to.

    One group computes its products while another stores its tile; products of a tile begin when those of the tile before are done. Shared
    memory that only consumers use has a copy for each group.
    Legal with `persistent`, around a split with `specialize` whose tile is dealt to whole warpgroups; where a block has no further tile, or
    TMA takes none of the loads, there is one group. A tunable may stand for the number; 1 is as without.
    rewrite: consumers: for turn: S(turn) --> consumers g: for turn = g, g + groups ...: wait for turn - 1; products; pass on; store

    Source: decision 30.

    >>> from fireiron import *
    >>> halves = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    >>> blocks = MatMul(512, 512, 512, **halves)(GL, GL, GL)(Kernel).tile(128, 64).to(Block).persistent(8).turns(2)
    >>> turns = blocks.epilog(RF, float32).split(64).pipeline(3).specialize()
    >>> loads = turns.load(A, SH, Move.done()).load(B, SH, Move.done())
    >>> text = loads.tile(64, 64).to(Warpgroup).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "// consumers" in line]
    ['// consumers, group 0', '// consumers, group 1']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((1,), (2,), (3,))
    groups: Any = attrs.field(converter=_groups)

    def plan(self, plan: Any) -> Any:
        return plan.in_groups(chosen(self.groups, "turns", 1, MOST))

    def __str__(self) -> str:
        return f"turns({self.groups})"


@verb()
def turns(groups: Integer) -> Turns:
    """Let `groups` groups of consumers take the tiles of a persistent block in turns: one multiplies while another stores.

    Args: groups, 1 or 2, or a tunable. Legal with `persistent`, around a split with `specialize`
    whose tile is dealt to whole warpgroups.
    rewrite: consumers: for turn: S(turn) --> consumers g: for turn = g, g + groups ...: wait for turn - 1; products; pass on; store
    """
    return Turns(count(groups, "turns"))


__all__ = ["Turns"]
