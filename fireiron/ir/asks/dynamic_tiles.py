"""Tiles that blocks claim at run time: `persistent(dynamic=True)` on a tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.ir.ask import Ask, pair_of
from fireiron.values.expr import ZERO, Expr, Var


@frozen
class DynamicTiles(Ask):
    """A loop over tiles that blocks claim as they become free.

    `tile` is the name of the tile number, `tiles` the number of tiles, and `ring` the ring of tiles that `pipeline` creates. Until the
    request is handled, the body computes the tile of a static assignment.
    """

    taker: ClassVar[str] = "specialize"
    options: ClassVar[tuple[str, ...]] = ("dynamic_tiles=tile:tiles",)
    tile: str = ""
    tiles: Expr = ZERO
    ring: str = ""

    def substitute(self, values: Mapping[Var, Expr | int]) -> DynamicTiles:
        return attrs.evolve(self, tiles=self.tiles.substitute(values))

    def written(self, text_of: Callable[[Expr], str]) -> Mapping[str, str]:
        return {"dynamic_tiles": f"{self.tile}:{text_of(self.tiles)}"}

    @classmethod
    def read(cls, options: Mapping[str, str], expression_of: Callable[[str], Expr]) -> DynamicTiles:
        tile, tiles = pair_of(options, "dynamic_tiles")
        return DynamicTiles(tile, expression_of(tiles))


__all__ = ["DynamicTiles"]
