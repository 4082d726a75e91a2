"""Consumer warpgroups that alternate between the output tiles of a persistent block: `pingpong` on a persistent tile."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, count, integral

MOST = 2
"""Maximum number of groups. A group waits for the previous tile with the phase parity of an mbarrier, which distinguishes two groups."""


def _warpgroups(value: Any) -> Any:
    return integral(value, "pingpong")


@frozen
class PingPong(Refinement):
    """Let `warpgroups` groups of consumer warpgroups alternate between the tiles of a persistent block (CUTLASS: "ping-pong").

    Each group has all threads over which a tile is distributed. One group computes while another stores its tile: the MMAs of a tile start
    after those of the previous tile. Each group has a separate copy of shared memory that only consumers use.
    Legal with `persistent`, around a split with `warp_specialize` whose tile is distributed over whole warpgroups. There is one group if a
    block has one tile, or if TMA does none of the loads. The number may be a tunable; 1 has no effect.
    rewrite: consumers: for tile: S(tile) --> consumers g: for tile = g, g + groups ...: wait for tile - 1; MMAs; arrive; store

    Source: decision 30.

    >>> from fireiron import *
    >>> types = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    >>> blocks = MatMul(512, 512, 512, **types)(GL, GL, GL)(Kernel).tile(128, 64).to(Block).persistent(8).pingpong(2)
    >>> steps = blocks.epilog(RF, float32).split(64).pipeline(3).warp_specialize()
    >>> loads = steps.load(A, SH, Move.done()).load(B, SH, Move.done())
    >>> text = loads.tile(64, 64).to(Warpgroup).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "// consumers" in line]
    ['// consumers, group 0', '// consumers, group 1']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((1,), (2,), (3,))
    warpgroups: Any = attrs.field(converter=_warpgroups)

    def plan(self, plan: Any) -> Any:
        return plan.with_groups(chosen(self.warpgroups, "pingpong", 1, MOST))

    def __str__(self) -> str:
        return f"pingpong({self.warpgroups})"


@verb()
def pingpong(warpgroups: Integer) -> PingPong:
    """Let `warpgroups` groups of consumer warpgroups alternate between the tiles of a persistent block: one computes while another stores.

    Args: warpgroups: 1 or 2, or a tunable. Legal with `persistent`, around a split with `warp_specialize` whose tile is distributed over
    whole warpgroups.
    rewrite: consumers: for tile: S(tile) --> consumers g: for tile = g, g + groups ...: wait for tile - 1; MMAs; arrive; store
    """
    return PingPong(count(warpgroups, "pingpong"))


__all__ = ["PingPong"]
