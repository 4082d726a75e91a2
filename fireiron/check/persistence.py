"""Recognize persistent blocks: loops in which block b computes tiles b, b + gridDim.x, ...

    for i in range(tiles / blocks + (block < tiles % blocks)):  tile = block + i * blocks

If the grid has at most `blocks` blocks, every tile below `tiles` belongs to one block and one iteration. So a comparison of blocks can
compare tiles instead: the kernel with one tile per block computes the same tiles, and is checked instead. The same holds for tiles that
blocks claim dynamically, regardless of which block claims which tile.
"""

from __future__ import annotations

import functools

import attrs

from fireiron.frozen import frozen
from fireiron.ir import Acquire, ClaimTile, ExitIfDone, For, Kernel, Let, Release, Stmt, lets, rewritten, statements, substituted
from fireiron.ir.rewrite import by_identity
from fireiron.values.expr import Expr, FloorDiv, Less, Min, Var, as_expr, constant, less, minimum, mod


@frozen
class Persistence:
    """A loop over a block's tiles: `tile` names the index of the current tile, of `tiles` in total."""

    loop: For
    tile: Let | ClaimTile
    tiles: Expr


@by_identity  # several checks of one kernel need it
def persistence(kernel: Kernel) -> tuple[Persistence, ...]:
    """The loops over tiles, one for each role that executes the loop."""
    loops = (_of(kernel, one) for one in statements(kernel.body) if isinstance(one, For))
    return tuple(one for one in loops if one is not None)


def dynamic_tiles(kernel: Kernel) -> frozenset[str]:
    """The variables of tiles that blocks claim at run time."""
    return frozenset(one.var.name for one in statements(kernel.body) if isinstance(one, ClaimTile))


def _of(kernel: Kernel, loop: For) -> Persistence | None:
    for stmt in loop.body:
        if isinstance(stmt, ClaimTile):
            return Persistence(loop, stmt, stmt.tiles.substitute(lets(kernel.body)))
        block = next((var for var in stmt.value.variables() if var.name == "block"), None) if isinstance(stmt, Let) else None
        if isinstance(stmt, Let) and block is not None and loop.var in stmt.value.variables():
            blocks = constant(stmt.value.substitute({loop.var: 1}) - stmt.value.substitute({loop.var: 0})) or 0
            tiles = _tiles(loop.extent, block, blocks) if blocks > 0 else None
            if tiles is None or stmt.value != block + loop.var * blocks:
                return None
            tiles = tiles.substitute(lets(kernel.body))
            return Persistence(loop, stmt, tiles) if kernel.grid == minimum(tiles, as_expr(blocks)) else None
    return None


def static_schedule(kernel: Kernel) -> Kernel:
    """The kernel with a static tile schedule instead of a dynamic one, for estimates and pictures; it is one of the possible schedules.

    Other kernels are returned unchanged.
    """
    if not dynamic_tiles(kernel):
        return kernel

    def static(statement: Stmt) -> tuple[Stmt, ...]:
        tile = next((one for one in statement.body if isinstance(one, ClaimTile)), None) if isinstance(statement, For) else None
        if tile is None or not isinstance(statement, For):
            return (statement,)
        blocks = _block_limit(kernel.grid, tile.tiles.substitute(lets(kernel.body)))
        number = Let(tile.var, kernel.block + statement.var * blocks)
        body = tuple(number if one is tile else one for one in statement.body if not _claims_tile(one, tile))
        return (attrs.evolve(statement, extent=tile.tiles // blocks + less(kernel.block, tile.tiles % blocks), body=body),)

    return attrs.evolve(kernel, body=rewritten(kernel.body, static), counter=None)


def _block_limit(grid: Expr, tiles: Expr) -> Expr:
    """The limit on the number of blocks of a grid that is the minimum of this limit and the number of tiles."""
    return next((one for one in grid.children if one != tiles), grid) if isinstance(grid, Min) else grid


def _claims_tile(statement: Stmt, tile: Let | ClaimTile) -> bool:
    """Whether a statement is part of claiming a block's next tile."""
    about = isinstance(statement, (Acquire, Release)) and isinstance(tile, ClaimTile) and statement.ring == tile.ring
    return about or isinstance(statement, ExitIfDone)


@functools.lru_cache(maxsize=1024)
def _tiles(extent: Expr, block: Var, blocks: int) -> Expr | None:
    """The number of tiles, if block number `block` of `blocks` blocks computes `extent` of them; the candidates occur in the extent."""
    candidates = [extent, *(one.left for one in extent.subexpressions() if isinstance(one, FloorDiv))]  # one block computes all tiles
    # no block computes two tiles
    candidates += [one.right for one in extent.subexpressions() if isinstance(one, Less) and one.left == block]
    if extent.variables() <= {block}:
        candidates.append(as_expr(sum(int(extent.evaluate({block.name: number})) for number in range(blocks))))
    return next((one for one in candidates if extent == one // blocks + less(block, one % blocks)), None)


def one_tile_per_block(kernel: Kernel) -> Kernel:
    """The kernel with one tile per block, for a persistent kernel. Other kernels are returned unchanged.

    With clusters, tile indices are multiples of the cluster size, so that a block's cluster coordinates are those of its tile.
    """
    loops = {id(one.loop): one for one in persistence(kernel)}
    if not loops:
        return kernel
    first = next(iter(loops.values()))
    tiles, count = first.tiles, constant(first.tiles)
    block = Var("block", 0, first.tile.var.high if count is None else (count or 1) - 1)
    number = Var("number of the tile", block.low, block.high)  # distinct from the index of a persistent block

    def flat(statement: Stmt) -> tuple[Stmt, ...]:
        persistence_ = loops.get(id(statement))
        if persistence_ is None:
            return (statement,)
        parts = (part for part in persistence_.loop.body if not _claims_tile(part, persistence_.tile))
        body = tuple(Let(persistence_.tile.var, number) if part is persistence_.tile else part for part in parts)
        return substituted(body, {persistence_.loop.var: as_expr(0)})

    body = rewritten(kernel.body, flat)
    if kernel.cluster is not None:
        body = substituted(body, {kernel.block: mod(number, as_expr(kernel.cluster.blocks))})
    return attrs.evolve(kernel, body=substituted(body, {number: block}), grid=tiles)
