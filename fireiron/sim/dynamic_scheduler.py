"""Dynamic tile scheduling in the simulator: blocks may become free in any order, so the simulator generates one order."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from fireiron.ir import ClaimTile, lets, statements
from fireiron.sim.plan import Plan


def assign_tiles(plan: Plan, order: random.Random | None) -> Mapping[int, Sequence[int]]:
    """Assign tiles to blocks; the result is empty if the kernel does not claim tiles.

    The first tile of a block is its own index. Each further tile goes to a random block or, without `order`, to the blocks round-robin.
    """
    claim = next((one for one in statements(plan.kernel.body) if isinstance(one, ClaimTile)), None)
    if claim is None:
        return {}
    tiles = {block: [block] for block in range(plan.grid)}
    for tile in range(plan.grid, plan.number(claim.tiles.substitute(lets(plan.kernel.body)))):
        tiles[tile % plan.grid if order is None else order.randrange(plan.grid)].append(tile)
    return tiles


__all__ = ["assign_tiles"]
