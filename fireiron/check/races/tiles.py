"""For tiles with different trip counts of inner loops, choose a sequence of tiles that decides for all sequences that a block may execute.

Roles that communicate over rings interact across consecutive tiles. The interaction depends on the trip counts of both tiles only, not on
their addresses. A block is followed through a sequence in which each trip count follows each other one, itself included, and which starts
with several repetitions of each short trip count. So the result does not depend on which block executes which tiles, or how many.

Without rings, a block barrier with no copy in flight separates consecutive tiles. All accesses between two such barriers belong to one
tile, or to the end of a tile and the start of the next. So it suffices to follow each trip count, or each pair of trip counts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from fireiron.check.access_trace import MANY, AccessTrace
from fireiron.check.persistence import Persistence, persistence
from fireiron.check.races.lengths import at_lengths
from fireiron.frozen import frozen
from fireiron.ir import BLOCK_SCOPE, Barrier, Exec, ExitIfDone, For, Mechanism, Ring, Stmt, Wait, statements
from fireiron.values.expr import ONE, Expr, Var, compiled, constant, minimum

SEQUENCE_PART = Var("piece of the sequence of tiles", 0, MANY)
"""Placeholder for the index of the followed part of the tile sequence."""

BLOCK_TILES = Var("tiles of the block", 0, MANY)
"""Placeholder for the number of tiles of a block, if it is known only at run time."""

TILE_LENGTH = Var("iterations of the tile", 0, MANY)
"""Placeholder for the trip count of a tile, if it is known only at run time."""


@frozen(eq=False)
class VaryingTiles:
    """A loop over tiles with an inner loop whose trip count varies by tile: the variable of the tile index, and a decisive sequence of
    tiles.

    A block that executes at most `max_tiles` tiles is followed through each part of the sequence with that many. If the trip count of a
    tile, `length`, is known only at run time, the sequence consists of possible trip counts. `block_tiles` is the number of tiles of a
    block; `extra_iterations` is the number of iterations beyond a part: all remaining ones if all blocks execute equally many.
    """

    tile: Var
    sequence: Sequence[int]
    max_tiles: int
    length: Expr | None = None
    block_tiles: Expr = ONE
    extra_iterations: int = 0

    @property
    def varied_by(self) -> Var:
        """The variable whose values are in the sequence: the tile index, or the trip count of a tile."""
        return self.tile if self.length is None else TILE_LENGTH

    @property
    def part_count(self) -> int:
        """The number of parts. The last tile of a part is the first one of the next."""
        return max(-(-(len(self.sequence) - 1) // max(self.max_tiles - 1, 1)), 1)

    def part(self, number: int) -> Sequence[int]:
        """The tiles of a part that contribute new pairs."""
        start = number * max(self.max_tiles - 1, 1)
        return self.sequence[start : start + self.max_tiles]

    def iterations(self, number: int) -> int:
        """The number of iterations of a block in a part, or the number that is followed."""
        return min(len(self.part(number)) + self.extra_iterations, self.max_tiles)

    def tile_at(self, number: int, iteration: int) -> int:
        """The tile in an iteration of a part. After the part, the sequence starts again."""
        part = self.part(number)
        return part[iteration] if iteration < len(part) else self.sequence[(iteration - len(part)) % len(self.sequence)]


def varying_tiles(access_trace: AccessTrace, course: Callable[[For], Any]) -> dict[int, VaryingTiles]:
    """By identity, each loop over tiles whose index, or a run-time value, determines the trip count of an inner loop.

    `course` returns the course of a loop.
    """
    result: dict[int, VaryingTiles] = {}
    loops = persistence(access_trace.kernel)
    for tiling in loops:
        counted = next((other.loop.increment for other in loops if other.tile.var == tiling.tile.var and other.loop.increment != ONE), ONE)
        increment = opened(access_trace, counted, frozenset({tiling.tile.var.name}))
        tile, tiles, max_tiles = tiling.tile.var, constant(tiling.tiles), max(tiling.loop.extent.high, 1)
        rings, block_tiles = access_trace.kernel.rings, opened(access_trace, tiling.loop.extent, frozenset({tile.name}))
        if not rings:
            separated = _separated(access_trace, tiling, course)
            result |= {} if separated is None else {id(tiling.loop): separated}
        extra_iterations = _extra_iterations(tiling, block_tiles, course)
        if tile not in increment.variables() or not _determines_all(
            increment, [length for _, length in _lengths(access_trace, tiling)], tile
        ):
            continue
        if increment.variables() == {tile} and tiles is not None and tiles <= MANY:
            lengths = np.broadcast_to(compiled(increment)({tile.name: np.arange(tiles)}), (tiles,))
            result[id(tiling.loop)] = VaryingTiles(
                tile, _sequence([int(length) for length in lengths], rings), max_tiles, None, block_tiles, extra_iterations
            )
        else:
            least = max(increment.low, 0)
            last = max(min(increment.high, _covering_length(rings)), least)
            sequence = [least + kind for kind in _sequence(range(least, last + 1), rings)]
            result[id(tiling.loop)] = VaryingTiles(tile, sequence, max_tiles, increment, block_tiles, extra_iterations)
    return result


def _extra_iterations(tiling: Persistence, block_tiles: Expr, course: Callable[[For], Any]) -> int:
    """The number of iterations that are followed beyond those with new pairs."""
    if any(isinstance(part, ExitIfDone) for part in tiling.loop.body):  # a block may finish in any iteration, when no tile is left
        return int(course(tiling.loop).kept)
    return 0 if constant(block_tiles) is None else max(tiling.loop.extent.high, 1)


def _separated(access_trace: AccessTrace, tiling: Persistence, course: Callable[[For], Any]) -> VaryingTiles | None:
    """A loop over tiles of different trip counts, if nothing is in flight when the next tile begins; else None."""
    tile, lengths_by_loop = tiling.tile.var, _lengths(access_trace, tiling)
    loops, lengths = [loop for loop, _ in lengths_by_loop], [length for _, length in lengths_by_loop]
    nested = any(one is not loop and any(one is other for other in loops) for loop in loops for one in statements(loop.body))
    representative = None if nested else next((one for one in lengths if _determines_all(one, lengths, tile)), None)
    sides = _sides_of_barrier(access_trace, tiling.loop.body, loops)
    courses = [course(loop) for loop in loops]
    if (
        representative is None
        or sides is None
        or any(one.period is None for one in courses)
        or _placement_depends_on_iteration(access_trace, tiling)
    ):
        return None
    period = math.lcm(*(one.period for one in courses))
    distinct_up_to = max(one.kept for one in courses) + 1  # a derived loop has one iteration less
    tiles = constant(tiling.tiles)
    if representative.variables() == {tile} and tiles is not None and tiles <= MANY:
        trip_counts = np.unique(np.maximum(compiled(representative)({tile.name: np.arange(tiles)}), 0)).tolist()
    else:
        trip_counts = range(max(representative.low, 0), max(min(representative.high, distinct_up_to + period), representative.low, 0) + 1)
    classes: dict[int, int] = {}
    for length in trip_counts:
        classes.setdefault(length if length <= distinct_up_to else distinct_up_to + (length - distinct_up_to) % period + 1, length)
    tiles_of_classes = list(classes.values())
    if sides == 1:
        sequence = [*tiles_of_classes, *tiles_of_classes[:1]]
    else:
        sequence = list(_all_adjacent_pairs(len(tiles_of_classes), tiles_of_classes.__getitem__))
    block_tiles = opened(access_trace, tiling.loop.extent, frozenset({tile.name}))
    return VaryingTiles(
        tile, sequence, max(tiling.loop.extent.high, 1), representative, block_tiles, _extra_iterations(tiling, block_tiles, course)
    )


def _lengths(access_trace: AccessTrace, tiling: Persistence) -> list[tuple[For, Expr]]:
    """The loops whose trip count depends on the tile, each with its trip count."""
    tile, loops = tiling.tile.var, [loop for loop in statements(tiling.loop.body) if isinstance(loop, For)]
    pairs = [(loop, opened(access_trace, loop.extent, frozenset({tile.name}))) for loop in loops]
    return [(loop, length) for loop, length in pairs if tile in length.variables()]


def _determines_all(length: Expr, lengths: Iterable[Expr], tile: Var) -> bool:
    """Whether one trip count of a tile determines the others."""
    return all(tile not in at_lengths(other, _placeholders(length)).variables() for other in lengths)


def _placeholders(length: Expr) -> dict[Expr, Expr]:
    """The placeholders of a tile's trip count, and of whether it is positive."""
    return {length: TILE_LENGTH} if length.low >= 1 else {length: TILE_LENGTH, minimum(length, ONE): minimum(TILE_LENGTH, ONE)}


def _sides_of_barrier(access_trace: AccessTrace, body: Sequence[Stmt], loops: Sequence[For]) -> int | None:
    """The number of sides of a separating barrier on which the loops are: 1 or 2. A loop that contains the barrier is on both sides.

    None if a tile may have no such barrier.
    """
    stmts = list(statements(tuple(body)))
    mechanisms = frozenset(each.mechanism for each in stmts if isinstance(each, Exec) and each.asynchronous)
    if any(one.counted for one in mechanisms):
        return None
    with_loops = [index for index, stmt in enumerate(body) if any(each is loop for each in statements((stmt,)) for loop in loops)]
    side_counts = [
        len({index < place for index in with_loops}) for place in range(len(body)) if _is_separating_barrier(body, place, mechanisms)
    ]
    inside = (
        _is_separating_barrier(stmts, place, mechanisms) for stmts in _lists_always_run(access_trace, body) for place in range(len(stmts))
    )
    return min(side_counts) if side_counts else 2 if any(inside) else None


def _lists_always_run(access_trace: AccessTrace, body: Sequence[Stmt]) -> Iterator[Sequence[Stmt]]:
    """A statement list, and the nested lists of loops that run at least once."""
    yield body
    for stmt in body:
        if isinstance(stmt, For) and access_trace.opened(stmt.extent).low >= 1:
            yield from _lists_always_run(access_trace, stmt.body)


def _is_separating_barrier(body: Sequence[Stmt], place: int, mechanisms: Iterable[Mechanism]) -> bool:
    """Whether the statement at an index is a block barrier at which nothing of these mechanisms is in flight."""
    stmt = body[place]
    return isinstance(stmt, Barrier) and stmt.scope == BLOCK_SCOPE and all(_is_complete(body[:place], each) for each in mechanisms)


def _is_complete(body: Sequence[Stmt], mechanism: Mechanism) -> bool:
    """Whether nothing of a completion mechanism is in flight after a list."""
    for stmt in reversed(body):
        if isinstance(stmt, Wait) and stmt.groups == 0 and stmt.mechanism is mechanism:
            return True
        if any(isinstance(inner, Exec) and inner.mechanism is mechanism for inner in statements((stmt,))):
            return False
    return False


def _placement_depends_on_iteration(access_trace: AccessTrace, tiling: Persistence) -> bool:
    """Whether the location of shared-memory accesses depends on the iteration in which a tile is executed."""
    accesses = (use.access for use in access_trace.uses if any(loop is tiling.loop for loop in use.loops))
    shared = (access for access in accesses if access_trace.kernel.buffer(access.buffer).memory.of_block)
    return any(tiling.loop.var.name in access_trace.needs((*access.base, access.copy)) for access in shared)


def tile_lengths(loops: Iterable[VaryingTiles]) -> dict[Expr, Expr]:
    """The placeholders of the trip counts of a tile and of the number of tiles of a block, by the expressions for them, if they are
    run-time values.
    """
    placeholders: dict[Expr, Expr] = {}
    for tiles in loops:
        placeholders |= {} if tiles.length is None else _placeholders(tiles.length)
        placeholders |= {} if constant(tiles.block_tiles) is not None else {tiles.block_tiles: BLOCK_TILES}
    return placeholders


def opened(access_trace: AccessTrace, value: Expr, kept: frozenset[str]) -> Expr:
    """An expression without named values, except for those in `kept`."""
    while True:
        named = {var: access_trace.lets[var.name] for var in value.variables() if var.name in access_trace.lets and var.name not in kept}
        if not named:
            return value
        value = value.substitute(named)


def _sequence(lengths: Sequence[int], rings: Sequence[Ring]) -> list[int]:
    """Tiles with these trip counts, in a sequence in which each two trip counts are adjacent."""
    stages, distinct_up_to, period = _length_classes(rings)
    tiles: dict[int, int] = {}
    for tile, length in sorted(enumerate(lengths), key=lambda pair: pair[1]):
        tiles.setdefault(length if length <= distinct_up_to else distinct_up_to + (length - distinct_up_to) % period + 1, tile)
    classes = list(tiles.values())
    repetitions = [tile for length, tile in tiles.items() if length <= stages for _ in range(period + 1)]
    return [*repetitions, *_all_adjacent_pairs(len(classes), classes.__getitem__)]


def _length_classes(rings: Sequence[Ring]) -> tuple[int, int, int]:
    """The maximum number of stages; the trip count up to which tiles are distinguished; and the period after which longer ones are
    equivalent.
    """
    # A producer is at most as many fills ahead as a ring has stages, and an mbarrier distinguishes rounds by parity.
    stages = max((ring.stages for ring in rings), default=1)
    return stages, 2 * stages + 1, 2 * stages


def _covering_length(rings: Sequence[Ring]) -> int:
    """A trip count up to which every class occurs."""
    _, distinct_up_to, period = _length_classes(rings)
    return distinct_up_to + period


def _all_adjacent_pairs(count: int, named: Callable[[int], int]) -> Iterator[int]:
    """A sequence of `count` items in which each follows each other one once, and that ends with the first one."""
    for first in range(count):
        yield named(first)
        yield from map(named, itertools.chain.from_iterable((first, other) for other in range(first + 1, count)))
    yield named(0)


__all__ = ["BLOCK_TILES", "SEQUENCE_PART", "TILE_LENGTH", "VaryingTiles", "opened", "tile_lengths", "varying_tiles"]
