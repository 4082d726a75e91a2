"""Tiles that blocks take from a counter as they become free: how a block learns which one is its next."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from fireiron.ir.statement import Stmt
from fireiron.values.expr import Expr, Var


@attrs.frozen
class Counter:
    """A parameter of a kernel: one int in global memory, which is 0 before a launch and behind it. Launches that may run at the same time
    have one each.

    A block takes its own number as its first tile, and then the number of blocks plus what the counter was, which it counts on. Each block
    asks once in vain, so a launch asks as often as there are tiles, and the last time sets the counter to 0.
    """

    name: str


@attrs.frozen(cache_hash=True)
class ClaimTile(Stmt):
    """The number of a block's tile at turn `fill_index` of the loop around, or `tiles` where none is left.

    Who `takes` it gets it from the kernel's counter, and leaves it in the stage of this turn of a ring of tiles, which it holds empty. The
    others read it there while they hold the turn full; all lanes of a warp have read it when one of them goes on.
    """

    var: Var
    tiles: Expr
    ring: str
    fill_index: Expr
    takes: bool = False

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """How many tiles there are, and the turn."""
        return (self.tiles, self.fill_index)

    def substitute(self, values: Mapping[Var, Expr | int]) -> ClaimTile:
        """The statement with variables replaced."""
        return attrs.evolve(self, tiles=self.tiles.substitute(values), fill_index=self.fill_index.substitute(values))


@attrs.frozen(cache_hash=True)
class ExitIfDone(Stmt):
    """The loop around is over where `tile` is none of the `tiles`."""

    tile: Var
    tiles: Expr

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The two numbers."""
        return (self.tile, self.tiles)

    def substitute(self, values: Mapping[Var, Expr | int]) -> ExitIfDone:
        """The statement with variables replaced in the number of tiles."""
        return attrs.evolve(self, tiles=self.tiles.substitute(values))


__all__ = ["ClaimTile", "Counter", "ExitIfDone"]
