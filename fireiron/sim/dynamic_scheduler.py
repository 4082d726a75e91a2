"""Tiles that blocks take from a counter, in a simulation: any order in which they might become free is right, so one is drawn."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from fireiron.ir import ClaimTile, lets, statements
from fireiron.sim.plan import Plan


def deal(plan: Plan, order: random.Random | None) -> Mapping[int, Sequence[int]]:
    """The tiles of each block, its own number first: of the others the next one goes to a block that is drawn, or, without an order, to
    each block in turn. Empty where tiles are not taken from a counter.
    """
    found = next((one for one in statements(plan.kernel.body) if isinstance(one, ClaimTile)), None)
    if found is None:
        return {}
    tiles = {block: [block] for block in range(plan.grid)}
    for tile in range(plan.grid, plan.number(found.tiles.substitute(lets(plan.kernel.body)))):
        tiles[tile % plan.grid if order is None else order.randrange(plan.grid)].append(tile)
    return tiles


__all__ = ["deal"]
