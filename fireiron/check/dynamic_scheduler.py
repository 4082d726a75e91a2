"""Tiles that blocks take from a counter: each tile is taken once, all roles of a block hear of the same one, and the counter ends at zero.

A launch of B blocks and T >= B tiles asks the counter T times: each block asks once for each tile but its first one, and once in vain. So
tiles are told apart, and the last to ask sets the counter to zero, where

- one thread of a block asks, once in each turn of its loop, and its turns are counted from 0;
- it leaves the number in the stage of that turn while it holds it empty, and the others read it while they hold it full: then `races` has
  followed the turns of the ring, and proved that whoever waits for one sees that one;
- nothing but the release stands between the number and the test that ends the loop, in each role, so that none works on what is no tile;
- no more blocks are launched than there are tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fireiron.check.access_trace import AccessTrace
from fireiron.check.finding import Finding
from fireiron.ir import Acquire, ClaimTile, Comment, ExitIfDone, For, Kernel, Release, Roles, StageState, Stmt, lets, located, statements
from fireiron.values.expr import Expr, Min


def check_dynamic_scheduler(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """What is wrong with how a block comes by its tiles."""
    return tuple(Finding("race", "error", None, text) for text in dict.fromkeys(_wrong(access_trace.kernel)))


def _wrong(kernel: Kernel) -> Iterator[str]:
    found = [one for one in statements(kernel.body) if isinstance(one, ClaimTile)]
    if not found and kernel.counter is None:
        return
    roles = [role for one in kernel.body if isinstance(one, Roles) for role in one.roles]
    taking = [role for role in roles if any(isinstance(one, ClaimTile) and one.takes for one in statements(role.body))]
    if sum(one.takes for one in found) != 1 or len(taking) != 1 or not taking[0].elected:
        yield f"{sum(one.takes for one in found)} statements take tiles from the counter, and one of one thread has to"
    if len({one.tiles for one in found}) > 1 or not all(_no_more(kernel.grid, one.tiles.substitute(lets(kernel.body))) for one in found):
        yield f"{kernel.grid} blocks may be more than the tiles, or roles count tiles differently: the counter does not come back to zero"
    for one, around in located(kernel.body):
        if isinstance(one, ClaimTile):
            loop = next((other for other in reversed(around) if isinstance(other, For)), None)
            yield from [f"{one.ring}: a tile is taken outside of any loop"] if loop is None else _in_loop(one, loop)
        if isinstance(one, For) and _ends(one) and not any(isinstance(other, ClaimTile) for other in one.body):
            yield f"loop {one.var} ends by a tile that it does not ask for"


def _no_more(grid: Expr, tiles: Expr) -> bool:
    """Whether no more blocks are launched than there are tiles."""
    return (tiles - grid).low >= 0 or (isinstance(grid, Min) and any(_no_more(side, tiles) for side in grid.children))


def _ends(loop: For) -> bool:
    return any(isinstance(one, ExitIfDone) for one in loop.body)


def _in_loop(tile: ClaimTile, loop: For) -> Iterator[str]:
    if (loop.first, loop.step) != (0, 1) or tile.fill_index != loop.var:
        yield f"{tile.ring}: tile {tile.var} is of turn {tile.fill_index} in loop {loop.var}, whose turns are counted from 0"
    place = next((number for number, one in enumerate(loop.body) if one is tile), None)
    if place is None:
        yield f"{tile.ring}: tile {tile.var} does not stand directly in loop {loop.var}"
        return
    waits, arrives = (StageState.EMPTY, StageState.FULL) if tile.takes else (StageState.FULL, StageState.EMPTY)
    if not any(_is(one, Acquire, tile, waits) for one in loop.body[:place]):
        verb = "left for the others" if tile.takes else "read"
        yield f"{tile.ring}: the number of turn {tile.fill_index} is {verb} before the turn is {waits.value}"
    behind = [one for one in loop.body[place + 1 :] if not isinstance(one, Comment)]
    if any(_is(one, Release, tile, arrives) for one in loop.body[:place]) or not (behind and _is(behind[0], Release, tile, arrives)):
        yield f"{tile.ring}: turn {tile.fill_index} is not released right behind its number"
    if not any(one == ExitIfDone(tile.var, tile.tiles) for one in _up_to_use(behind)):
        yield f"loop {loop.var}: what may be no tile, {tile.var}, is used"


def _up_to_use(behind: Sequence[Stmt]) -> Sequence[Stmt]:
    """What stands right behind a number: releases, and the test of the number."""
    last = next((number for number, one in enumerate(behind) if not isinstance(one, (Release, ExitIfDone))), len(behind))
    return behind[:last]


def _is(statement: Stmt, kind: type[Acquire] | type[Release], tile: ClaimTile, side: StageState) -> bool:
    """Whether a statement waits for, or gives on, a turn of the ring of tiles."""
    return isinstance(statement, kind) and (statement.ring, statement.state, statement.fill_index) == (tile.ring, side, tile.fill_index)


__all__ = ["check_dynamic_scheduler"]
