"""Check dynamic tile scheduling: each tile is claimed once, all roles of a block use the same tile, and the counter ends at zero.

A launch of B blocks and T >= B tiles increments the counter T times. Each block increments it once for each of its tiles except the first,
and once more when no tile is left. So tiles are unique, and the last increment resets the counter to zero, provided that

- one thread of a block claims tiles, once per iteration of its loop, and iterations count from 0;
- this thread stores the tile index in the stage of that fill while it owns the stage empty, and other threads read the index while they own
  the stage full: then the race check, which follows the fills of the ring, proves that a waiting agent reads the index of that fill;
- in each role, only the release is between the tile index and the exit test, so that no role uses an invalid tile;
- the grid has at most as many blocks as there are tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fireiron.check.access_trace import AccessTrace
from fireiron.check.finding import Finding
from fireiron.ir import Acquire, ClaimTile, Comment, ExitIfDone, For, Kernel, Release, Roles, StageState, Stmt, lets, located, statements
from fireiron.values.expr import Expr, Min


def check_dynamic_scheduler(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """An error for each violation of these conditions."""
    return tuple(Finding("race", "error", None, text) for text in dict.fromkeys(_problems(access_trace.kernel)))


def _problems(kernel: Kernel) -> Iterator[str]:
    claims = [one for one in statements(kernel.body) if isinstance(one, ClaimTile)]
    if not claims and kernel.counter is None:
        return
    roles = [role for one in kernel.body if isinstance(one, Roles) for role in one.roles]
    claiming = [role for role in roles if any(isinstance(one, ClaimTile) and one.takes for one in statements(role.body))]
    if sum(one.takes for one in claims) != 1 or len(claiming) != 1 or not claiming[0].elected:
        yield f"{sum(one.takes for one in claims)} statements claim tiles from the counter; exactly one statement, of one thread, must"
    if len({one.tiles for one in claims}) > 1 or not all(_at_most(kernel.grid, one.tiles.substitute(lets(kernel.body))) for one in claims):
        yield f"{kernel.grid} blocks may exceed the number of tiles, or roles count tiles differently: the counter does not return to zero"
    for stmt, around in located(kernel.body):
        if isinstance(stmt, ClaimTile):
            loop = next((other for other in reversed(around) if isinstance(other, For)), None)
            yield from [f"{stmt.ring}: a tile is claimed outside of any loop"] if loop is None else _in_loop(stmt, loop)
        if isinstance(stmt, For) and _exits(stmt) and not any(isinstance(other, ClaimTile) for other in stmt.body):
            yield f"loop {stmt.var} exits on a tile that it does not claim"


def _at_most(grid: Expr, tiles: Expr) -> bool:
    """Whether the grid has at most as many blocks as there are tiles."""
    return (tiles - grid).low >= 0 or (isinstance(grid, Min) and any(_at_most(side, tiles) for side in grid.children))


def _exits(loop: For) -> bool:
    return any(isinstance(one, ExitIfDone) for one in loop.body)


def _in_loop(tile: ClaimTile, loop: For) -> Iterator[str]:
    if (loop.first, loop.step) != (0, 1) or tile.fill_index != loop.var:
        yield f"{tile.ring}: tile {tile.var} uses fill {tile.fill_index} in loop {loop.var}, whose iterations count from 0"
    index = next((number for number, one in enumerate(loop.body) if one is tile), None)
    if index is None:
        yield f"{tile.ring}: tile {tile.var} is not directly in loop {loop.var}"
        return
    waits, signals = (StageState.EMPTY, StageState.FULL) if tile.takes else (StageState.FULL, StageState.EMPTY)
    if not any(_is_event(one, Acquire, tile, waits) for one in loop.body[:index]):
        verb = "stored" if tile.takes else "read"
        yield f"{tile.ring}: the tile index of fill {tile.fill_index} is {verb} before the fill is {waits.value}"
    after = [one for one in loop.body[index + 1 :] if not isinstance(one, Comment)]
    if any(_is_event(one, Release, tile, signals) for one in loop.body[:index]) or not (
        after and _is_event(after[0], Release, tile, signals)
    ):
        yield f"{tile.ring}: fill {tile.fill_index} is not released directly after its tile index"
    if not any(one == ExitIfDone(tile.var, tile.tiles) for one in _before_use(after)):
        yield f"loop {loop.var}: {tile.var}, which may not be a valid tile, is used"


def _before_use(after: Sequence[Stmt]) -> Sequence[Stmt]:
    """The statements directly after a tile index: releases, and the exit test."""
    last = next((number for number, one in enumerate(after) if not isinstance(one, (Release, ExitIfDone))), len(after))
    return after[:last]


def _is_event(statement: Stmt, kind: type[Acquire] | type[Release], tile: ClaimTile, state: StageState) -> bool:
    """Whether a statement waits for, or releases, the fill of a tile index."""
    return isinstance(statement, kind) and (statement.ring, statement.state, statement.fill_index) == (tile.ring, state, tile.fill_index)


__all__ = ["check_dynamic_scheduler"]
