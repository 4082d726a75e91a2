"""Tiles whose loops differ in length: which of them, one after the other, decide about all that a block may take.

What roles do to each other over rings reaches from one tile into the next, and depends on how many turns both have, and no more on where in
memory they lie. A block is followed through tiles in whose sequence each length stands behind each, itself included, and in whose beginning
each short length stands several times in a row. So it does not matter which block takes which tile, nor how many it takes.

Without rings a barrier of the block at which nothing is under way parts one tile from the next, and what happens between two such barriers
is of one tile, or of the end of one and the beginning of the next. So each length decides, or each two.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.check.access_trace import MANY, AccessTrace
from fireiron.check.persistence import Persistence, persistence
from fireiron.check.races.lengths import at_lengths
from fireiron.ir import BLOCK_SCOPE, Barrier, Exec, ExitIfDone, For, Mechanism, Ring, Stmt, Wait, statements
from fireiron.values.expr import ONE, Expr, Var, compiled, constant, minimum

SEQUENCE_PART = Var("piece of the sequence of tiles", 0, MANY)
"""Stands for which piece of it is followed."""

BLOCK_TILES = Var("tiles of the block", 0, MANY)
"""Stands for how many tiles a block takes, where that is known only at run time."""

TILE_LENGTH = Var("turns of the tile", 0, MANY)
"""Stands for how many turns a tile has, where that is known only at run time."""


@attrs.frozen(eq=False)
class VaryingTiles:
    """A loop over tiles in which a loop takes another number of turns in each: the name of the tile's number, and a sequence that decides.

    A block that takes fewer tiles, `most`, is followed through each piece of the sequence of so many. Where it is known only at run time
    how many turns a tile has, `length`, the sequence is one of all lengths that there may be. `taken` is how many tiles a block takes, and
    `more` how many turns it has beyond a piece: all that are left where all blocks take as many.
    """

    tile: Var
    sequence: Sequence[int]
    most: int
    length: Expr | None = None
    taken: Expr = ONE
    more: int = 0

    @property
    def said(self) -> Var:
        """What the sequence is of: the number of a tile, or how many turns it has."""
        return self.tile if self.length is None else TILE_LENGTH

    @property
    def pieces(self) -> int:
        """The number of pieces, of which the last tile is the first of the next one."""
        return max(-(-(len(self.sequence) - 1) // max(self.most - 1, 1)), 1)

    def piece(self, number: int) -> Sequence[int]:
        """The tiles of a piece, as many of them as say something new."""
        start = number * max(self.most - 1, 1)
        return self.sequence[start : start + self.most]

    def turns(self, number: int) -> int:
        """How many turns a block has in a piece, or is followed through."""
        return min(len(self.piece(number)) + self.more, self.most)

    def at(self, number: int, turn: int) -> int:
        """The tile at a turn in a piece; behind those that say something new the sequence begins again."""
        piece = self.piece(number)
        return piece[turn] if turn < len(piece) else self.sequence[(turn - len(piece)) % len(self.sequence)]


def varying_tiles(access_trace: AccessTrace, course: Callable[[For], Any]) -> dict[int, VaryingTiles]:
    """By its identity, each loop over tiles whose number, and what is known at run time, says how many turns a loop inside takes.

    `course` says how a loop runs.
    """
    found: dict[int, VaryingTiles] = {}
    loops = persistence(access_trace.kernel)
    for one in loops:
        counted = next((other.loop.increment for other in loops if other.tile.var == one.tile.var and other.loop.increment != ONE), ONE)
        growth = opened(access_trace, counted, frozenset({one.tile.var.name}))
        tile, tiles, most = one.tile.var, constant(one.tiles), max(one.loop.extent.high, 1)
        rings, taken = access_trace.kernel.rings, opened(access_trace, one.loop.extent, frozenset({tile.name}))
        if not rings:
            parted = _parted(access_trace, one, course)
            found |= {} if parted is None else {id(one.loop): parted}
        more = _more(one, taken, course)
        if tile not in growth.variables() or not _says_all(growth, [length for _, length in _lengths(access_trace, one)], tile):
            continue
        if growth.variables() == {tile} and tiles is not None and tiles <= MANY:
            lengths = np.broadcast_to(compiled(growth)({tile.name: np.arange(tiles)}), (tiles,))
            found[id(one.loop)] = VaryingTiles(tile, _sequence([int(length) for length in lengths], rings), most, None, taken, more)
        else:
            least = max(growth.low, 0)
            last = max(min(growth.high, _most_kinds(rings)), least)
            sequence = [least + kind for kind in _sequence(range(least, last + 1), rings)]
            found[id(one.loop)] = VaryingTiles(tile, sequence, most, growth, taken, more)
    return found


def _more(one: Persistence, taken: Expr, course: Callable[[For], Any]) -> int:
    """How many turns are followed beyond those that say something new."""
    if any(isinstance(part, ExitIfDone) for part in one.loop.body):  # a block is done at any turn, when it finds no tile left
        return int(course(one.loop).kept)
    return 0 if constant(taken) is None else max(one.loop.extent.high, 1)


def _parted(access_trace: AccessTrace, one: Persistence, course: Callable[[For], Any]) -> VaryingTiles | None:
    """A loop over tiles of different lengths, none of which has anything under way when the next one begins; None where that is not so."""
    tile, found = one.tile.var, _lengths(access_trace, one)
    loops, lengths = [loop for loop, _ in found], [length for _, length in found]
    nested = any(each is not loop and any(each is other for other in loops) for loop in loops for each in statements(loop.body))
    alike = None if nested else next((each for each in lengths if _says_all(each, lengths, tile)), None)
    sides = _sides(access_trace, one.loop.body, loops)
    courses = [course(loop) for loop in loops]
    if alike is None or sides is None or any(each.period is None for each in courses) or _follows_turns(access_trace, one):
        return None
    rounds = math.lcm(*(each.period for each in courses))
    short = max(each.kept for each in courses) + 1  # a loop that is made of another one has a turn less
    tiles = constant(one.tiles)
    if alike.variables() == {tile} and tiles is not None and tiles <= MANY:
        every = np.unique(np.maximum(compiled(alike)({tile.name: np.arange(tiles)}), 0)).tolist()
    else:
        every = range(max(alike.low, 0), max(min(alike.high, short + rounds), alike.low, 0) + 1)
    kinds: dict[int, int] = {}
    for length in every:
        kinds.setdefault(length if length <= short else short + (length - short) % rounds + 1, length)
    each = list(kinds.values())
    sequence = [*each, *each[:1]] if sides == 1 else list(_neighbours(len(each), each.__getitem__))
    taken = opened(access_trace, one.loop.extent, frozenset({tile.name}))
    return VaryingTiles(tile, sequence, max(one.loop.extent.high, 1), alike, taken, _more(one, taken, course))


def _lengths(access_trace: AccessTrace, one: Persistence) -> list[tuple[For, Expr]]:
    """The loops whose length depends on the tile, each with its length."""
    tile, loops = one.tile.var, [loop for loop in statements(one.loop.body) if isinstance(loop, For)]
    every = [(loop, opened(access_trace, loop.extent, frozenset({tile.name}))) for loop in loops]
    return [(loop, length) for loop, length in every if tile in length.variables()]


def _says_all(one: Expr, lengths: Iterable[Expr], tile: Var) -> bool:
    """Whether a length of a tile says all others."""
    return all(tile not in at_lengths(other, _said(one)).variables() for other in lengths)


def _said(length: Expr) -> dict[Expr, Expr]:
    """What stands for a length of a tile, and for whether it has a turn."""
    return {length: TILE_LENGTH} if length.low >= 1 else {length: TILE_LENGTH, minimum(length, ONE): minimum(TILE_LENGTH, ONE)}


def _sides(access_trace: AccessTrace, body: Sequence[Stmt], loops: Sequence[For]) -> int | None:
    """On how many sides of a barrier of the block at which no copy is under way the loops stand, where one of them may be around it; None
    where no such barrier comes in each tile.
    """
    every = list(statements(tuple(body)))
    flying = frozenset(each.mechanism for each in every if isinstance(each, Exec) and each.asynchronous)
    if any(one.counted for one in flying):
        return None
    with_loops = [at for at, one in enumerate(body) if any(each is loop for each in statements((one,)) for loop in loops)]
    found = [len({at < place for at in with_loops}) for place in range(len(body)) if _parts(body, place, flying)]
    inside = (_parts(one, place, flying) for one in _always(access_trace, body) for place in range(len(one)))
    return min(found) if found else 2 if any(inside) else None


def _always(access_trace: AccessTrace, body: Sequence[Stmt]) -> Iterator[Sequence[Stmt]]:
    """A list, and those of the loops inside that have a turn in any case."""
    yield body
    for one in body:
        if isinstance(one, For) and access_trace.opened(one.extent).low >= 1:
            yield from _always(access_trace, one.body)


def _parts(body: Sequence[Stmt], place: int, flying: Iterable[Mechanism]) -> bool:
    """Whether a barrier of the block stands there in a list, and nothing that may fly is under way at it."""
    one = body[place]
    return isinstance(one, Barrier) and one.scope == BLOCK_SCOPE and all(_is_over(body[:place], each) for each in flying)


def _is_over(body: Sequence[Stmt], flying: Mechanism) -> bool:
    """Whether nothing that is done by such a completion is under way behind a list."""
    for one in reversed(body):
        if isinstance(one, Wait) and one.groups == 0 and one.mechanism is flying:
            return True
        if any(isinstance(each, Exec) and each.mechanism is flying for each in statements((one,))):
            return False
    return False


def _follows_turns(access_trace: AccessTrace, one: Persistence) -> bool:
    """Whether where something lies in shared memory depends on the turn at which a tile comes."""
    accesses = (use.access for use in access_trace.uses if any(loop is one.loop for loop in use.loops))
    shared = (access for access in accesses if access_trace.kernel.buffer(access.buffer).memory.of_block)
    return any(one.loop.var.name in access_trace.needs((*access.base, access.copy)) for access in shared)


def tile_lengths(loops: Iterable[VaryingTiles]) -> dict[Expr, Expr]:
    """What stands for the turns of a tile, and the tiles of a block, by all ways in which expressions say them, where they are known only
    at run time.
    """
    found: dict[Expr, Expr] = {}
    for one in loops:
        found |= {} if one.length is None else _said(one.length)
        found |= {} if constant(one.taken) is not None else {one.taken: BLOCK_TILES}
    return found


def opened(access_trace: AccessTrace, value: Expr, kept: frozenset[str]) -> Expr:
    """An expression without named values, but for those that are `kept`."""
    while True:
        named = {var: access_trace.lets[var.name] for var in value.variables() if var.name in access_trace.lets and var.name not in kept}
        if not named:
            return value
        value = value.substitute(named)


def _sequence(lengths: Sequence[int], rings: Sequence[Ring]) -> list[int]:
    """Tiles, of those with such lengths, in which each two lengths are neighbours."""
    stages, short, rounds = _kinds(rings)
    tiles: dict[int, int] = {}
    for tile, length in sorted(enumerate(lengths), key=lambda pair: pair[1]):
        tiles.setdefault(length if length <= short else short + (length - short) % rounds + 1, tile)
    kinds = list(tiles.values())
    runs = [tile for length, tile in tiles.items() if length <= stages for _ in range(rounds + 1)]
    return [*runs, *_neighbours(len(kinds), kinds.__getitem__)]


def _kinds(rings: Sequence[Ring]) -> tuple[int, int, int]:
    """The most stages of a ring; up to which length tiles are told apart, and after how many turns longer ones are alike."""
    # A producer is no more turns ahead than a ring has stages, and a barrier tells of rounds by their parity.
    stages = max((ring.stages for ring in rings), default=1)
    return stages, 2 * stages + 1, 2 * stages


def _most_kinds(rings: Sequence[Ring]) -> int:
    """A length up to which there is one of each kind."""
    _, short, rounds = _kinds(rings)
    return short + rounds


def _neighbours(count: int, named: Callable[[int], int]) -> Iterator[int]:
    """A sequence of `count` things in which each stands behind each once, and at the end the first one again."""
    for one in range(count):
        yield named(one)
        yield from map(named, itertools.chain.from_iterable((one, other) for other in range(one + 1, count)))
    yield named(0)


__all__ = ["TILE_LENGTH", "SEQUENCE_PART", "BLOCK_TILES", "VaryingTiles", "varying_tiles", "tile_lengths", "opened"]
