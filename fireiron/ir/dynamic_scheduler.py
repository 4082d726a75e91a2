"""Dynamic tile scheduling: blocks claim tiles from a counter in global memory as they become free."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from fireiron.frozen import frozen
from fireiron.ir.statement import Stmt
from fireiron.values.expr import Expr, Var


@frozen
class Counter:
    """A kernel parameter: one int in global memory, 0 before and after a launch. Concurrent launches need separate counters.

    The first tile of a block is its own number. Each later one is the number of blocks plus the old value of the counter, which the block
    increments. Each block makes one claim that fails, so the number of claims is the number of tiles, and the last claim resets the counter
    to 0.
    """

    name: str


@attrs.frozen(cache_hash=True)
class ClaimTile(Stmt):
    """Set `var` to the tile of fill `fill_index` of a ring of tiles, or to at least `tiles` if none is left.

    If `takes`, the warp claims the tile from the kernel's counter and writes it to the stage of this fill, which it has acquired as empty.
    Other warps acquire the fill as full and read the tile there. All lanes of a warp have read it before any of them continues.
    """

    var: Var
    tiles: Expr
    ring: str
    fill_index: Expr
    takes: bool = False

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The number of tiles, and the fill index."""
        return (self.tiles, self.fill_index)

    def substitute(self, values: Mapping[Var, Expr | int]) -> ClaimTile:
        """The statement with variables replaced."""
        return attrs.evolve(self, tiles=self.tiles.substitute(values), fill_index=self.fill_index.substitute(values))


@attrs.frozen(cache_hash=True)
class ExitIfDone(Stmt):
    """Exit the enclosing loop if `tile` is not less than `tiles`."""

    tile: Var
    tiles: Expr

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The tile number and the number of tiles."""
        return (self.tile, self.tiles)

    def substitute(self, values: Mapping[Var, Expr | int]) -> ExitIfDone:
        """The statement with variables replaced in the number of tiles."""
        return attrs.evolve(self, tiles=self.tiles.substitute(values))


__all__ = ["ClaimTile", "Counter", "ExitIfDone"]
