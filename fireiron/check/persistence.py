"""Persistent blocks: a loop in which a block takes every so-many-th tile, told from the program itself.

    for turn in range(tiles / blocks + (block < tiles % blocks)):  tile = block + turn * blocks

Every tile below `tiles` belongs to one block and one turn, where no more blocks than `blocks` are launched. So tiles may stand for blocks
where these are compared: a kernel that deals the same tiles to a block each has the same tiles, and is checked in its place. So do those
that blocks take from a counter, whichever block takes which.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import attrs

from fireiron.ir import Acquire, ClaimTile, ExitIfDone, For, Kernel, Let, Release, Stmt, lets, rewritten, statements, substituted
from fireiron.values.expr import Expr, FloorDiv, Less, Min, Var, as_expr, constant, less, minimum, mod


@attrs.frozen
class Persistence:
    """A loop over a block's tiles: `tile` names the number of the one it is at, of `tiles` in all."""

    loop: For
    tile: Let | ClaimTile
    tiles: Expr


def persistence(kernel: Kernel) -> tuple[Persistence, ...]:
    """The loops over tiles, one in each role that has it."""
    found = (_of(kernel, one) for one in statements(kernel.body) if isinstance(one, For))
    return tuple(one for one in found if one is not None)


def fetched(kernel: Kernel) -> frozenset[str]:
    """The names of tiles that blocks take from a counter."""
    return frozenset(one.var.name for one in statements(kernel.body) if isinstance(one, ClaimTile))


def _of(kernel: Kernel, loop: For) -> Persistence | None:
    for one in loop.body:
        if isinstance(one, ClaimTile):
            return Persistence(loop, one, one.tiles.substitute(lets(kernel.body)))
        block = next((var for var in one.value.variables() if var.name == "block"), None) if isinstance(one, Let) else None
        if isinstance(one, Let) and block is not None and loop.var in one.value.variables():
            blocks = constant(one.value.substitute({loop.var: 1}) - one.value.substitute({loop.var: 0})) or 0
            tiles = _tiles(loop.extent, block, blocks) if blocks > 0 else None
            if tiles is None or one.value != block + loop.var * blocks:
                return None
            tiles = tiles.substitute(lets(kernel.body))
            return Persistence(loop, one, tiles) if kernel.grid == minimum(tiles, as_expr(blocks)) else None
    return None


def dealt(kernel: Kernel) -> Kernel:
    """The kernel that deals tiles in turns, where blocks take them from a counter: one of the ways in which they may come to take them, for
    readers who ask how long a kernel takes, or who draw it; any other kernel itself.
    """
    if not fetched(kernel):
        return kernel

    def static(statement: Stmt) -> tuple[Stmt, ...]:
        tile = next((one for one in statement.body if isinstance(one, ClaimTile)), None) if isinstance(statement, For) else None
        if tile is None or not isinstance(statement, For):
            return (statement,)
        blocks = _most(kernel.grid, tile.tiles.substitute(lets(kernel.body)))
        number = Let(tile.var, kernel.block + statement.var * blocks)
        body = tuple(number if one is tile else one for one in statement.body if not _asks(one, tile))
        return (attrs.evolve(statement, extent=tile.tiles // blocks + less(kernel.block, tile.tiles % blocks), body=body),)

    return attrs.evolve(kernel, body=rewritten(kernel.body, static), counter=None)


def _most(grid: Expr, tiles: Expr) -> Expr:
    """Of a grid that is the smaller of two, the number of blocks that is not that of tiles."""
    return next((one for one in grid.children if one != tiles), grid) if isinstance(grid, Min) else grid


def _asks(statement: Stmt, tile: Let | ClaimTile) -> bool:
    """Whether a statement is about how a block comes by its next tile."""
    about = isinstance(statement, (Acquire, Release)) and isinstance(tile, ClaimTile) and statement.ring == tile.ring
    return about or isinstance(statement, ExitIfDone)


@functools.lru_cache(maxsize=1024)
def _tiles(extent: Expr, block: Var, blocks: int) -> Expr | None:
    """How many tiles there are, if each of so many blocks has `extent` of them; the candidates stand in the extent itself."""
    candidates = [extent, *(one.left for one in _nodes(extent) if isinstance(one, FloorDiv))]  # one block has all of them
    candidates += [one.right for one in _nodes(extent) if isinstance(one, Less) and one.left == block]  # no block has two
    if extent.variables() <= {block}:
        candidates.append(as_expr(sum(int(extent.evaluate({block.name: number})) for number in range(blocks))))
    return next((one for one in candidates if extent == one // blocks + less(block, one % blocks)), None)


def _nodes(value: Expr) -> Iterator[Expr]:
    yield value
    for child in value.children:
        yield from _nodes(child)


def one_tile_per_block(kernel: Kernel) -> Kernel:
    """The kernel that deals a tile to a block each, where a persistent one deals them in turns; any other kernel itself.

    Where blocks come in clusters, their numbers are multiples of these, so that a block's place in its cluster is that of its tile.
    """
    found = {id(one.loop): one for one in persistence(kernel)}
    if not found:
        return kernel
    first = next(iter(found.values()))
    tiles, count = first.tiles, constant(first.tiles)
    block = Var("block", 0, first.tile.var.high if count is None else (count or 1) - 1)
    number = Var("number of the tile", block.low, block.high)  # not to be taken for the number of a block that stays

    def flat(statement: Stmt) -> tuple[Stmt, ...]:
        one = found.get(id(statement))
        if one is None:
            return (statement,)
        parts = (part for part in one.loop.body if not _asks(part, one.tile))
        body = tuple(Let(one.tile.var, number) if part is one.tile else part for part in parts)
        return substituted(body, {one.loop.var: as_expr(0)})

    body = rewritten(kernel.body, flat)
    if kernel.cluster is not None:
        body = substituted(body, {kernel.block: mod(number, as_expr(kernel.cluster.blocks))})
    return attrs.evolve(kernel, body=substituted(body, {number: block}), grid=tiles)
