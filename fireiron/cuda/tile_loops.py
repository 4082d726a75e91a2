"""Print loops of persistent blocks with the tile index as the loop variable, not the iteration.

for iteration < (block < 116) + 3: tile = iteration * 132 + block; S    -->    for (tile = block; tile < 512; tile += 132) S
for iteration < n / 132 + (block < n % 132): ...                          -->    for (tile = block; tile < n; tile += 132) S
"""

from __future__ import annotations

from fireiron.frozen import frozen
from fireiron.ir import For, Kernel, Let
from fireiron.values.expr import INT_MAX, Const, Expr, FloorDiv, Var, constant, less
from fireiron.values.expr.normal import terms_of


@frozen
class TileLoop:
    """A loop in which block b computes tiles b, b + blocks, b + 2 * blocks and so on, of `tiles` in all: a number, or its name.

    `let` names the tile of an iteration. With `.pingpong(groups)` a warpgroup takes every `step`-th iteration, beginning with `first`.
    """

    let: Let
    tiles: int | Var
    blocks: int
    first: int
    step: int

    def head(self, block: str, count: str, blocks: str, iteration: Var | None) -> str:
        """The head of the loop; `count` and `blocks` are the texts of the numbers. The loop also counts `iteration`, if it is given."""
        tile = self.let.var.name
        start = block if self.first == 0 else f"{block} + {f'{self.first} * ' if self.first > 1 else ''}{blocks}"
        growth = blocks if self.step == 1 else f"{self.step} * {blocks}"
        also = ("", "") if iteration is None else (f", {iteration} = {self.first}", f", {_increment(iteration, self.step)}")
        return f"for (int {tile} = {start}{also[0]}; {tile} < {count}; {tile} += {growth}{also[1]})"


def _increment(var: Var, step: int) -> str:
    return f"++{var}" if step == 1 else f"{var} += {step}"


def tile_loop(kernel: Kernel, loop: For) -> TileLoop | None:
    """The loop as a loop over tiles; None for other loops, or if the index after the last tile may exceed 32 bits."""
    let = next((stmt for stmt in loop.body if isinstance(stmt, Let) and {kernel.block, loop.var} <= stmt.value.variables()), None)
    if let is None or loop.unroll:
        return None
    blocks = constant(let.value.substitute({loop.var: 1}) - let.value.substitute({loop.var: 0})) or 0
    if blocks < kernel.grid.high or let.value != kernel.block + loop.var * blocks:
        return None
    tiles = _tiles(kernel, loop, blocks)
    if tiles is None or (tiles if isinstance(tiles, int) else tiles.high) + loop.step * blocks > INT_MAX:
        return None
    return TileLoop(let, tiles, blocks, loop.first, loop.step)


def _tiles(kernel: Kernel, loop: For, blocks: int) -> int | Var | None:
    """The number of tiles, which is the sum of the iterations of all blocks; None if a block has other iterations than this implies."""
    grid = constant(kernel.grid)
    if grid is None or not loop.extent.variables() <= {kernel.block}:
        return _named_tiles(kernel, loop, blocks)
    extents = [_extent(loop.extent, kernel.block, block) for block in range(grid)]
    tiles = sum(extents)
    return None if any(extent != -(-(tiles - block) // blocks) for block, extent in enumerate(extents)) else tiles


def _named_tiles(kernel: Kernel, loop: For, blocks: int) -> Var | None:
    """The name of the number of tiles, if the iterations are `tiles / blocks`, and one more in the first `tiles % blocks` blocks."""
    for atoms, _ in terms_of(loop.extent)[0]:
        match atoms:
            case (FloorDiv(left=Var() as tiles, right=Const(value=divisor)),) if divisor == blocks:
                return tiles if loop.extent == tiles // blocks + less(kernel.block, tiles % blocks) else None
    return None


def _extent(extent: Expr, block: Var, number: int) -> int:
    return int(extent.evaluate({block.name: number}))


__all__ = ["TileLoop", "tile_loop"]
