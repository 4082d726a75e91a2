"""Tiles whose loops differ in length: which of them, one after the other, decide about all that a block may take.

What roles do to each other over rings reaches from one tile into the next, and depends on how many turns both have, and no more on where in
memory they lie. A block is followed through tiles in whose sequence each length stands behind each, itself included, and in whose beginning
each short length stands several times in a row. So it does not matter which block takes which tile, nor how many it takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import attrs
import numpy as np

from fireiron.check.persistence import persistence
from fireiron.check.scene import MANY, Scene
from fireiron.ir import Ring
from fireiron.values.expr import ONE, Expr, Var, compiled, constant, minimum

PIECE = Var("piece of the sequence of tiles", 0, MANY)
"""Stands for which piece of it is followed."""

LENGTH = Var("turns of the tile", 0, MANY)
"""Stands for how many turns a tile has, where that is known only at run time."""


@attrs.frozen(eq=False)
class Differing:
    """A loop over tiles in which a loop takes another number of turns in each: the name of the tile's number, and a sequence that decides.

    A block that takes fewer tiles, `most`, is followed through each piece of the sequence of so many. Where it is known only at run time
    how many turns a tile has, `length`, the sequence is one of all lengths that there may be.
    """

    tile: Var
    sequence: Sequence[int]
    most: int
    length: Expr | None = None

    @property
    def said(self) -> Var:
        """What the sequence is of: the number of a tile, or how many turns it has."""
        return self.tile if self.length is None else LENGTH

    @property
    def pieces(self) -> int:
        """The number of pieces, of which the last tile is the first of the next one."""
        return max(-(-(len(self.sequence) - 1) // max(self.most - 1, 1)), 1)

    def piece(self, number: int) -> Sequence[int]:
        """The tiles of a piece."""
        start = number * max(self.most - 1, 1)
        return self.sequence[start : start + self.most]


def differing(scene: Scene) -> dict[int, Differing]:
    """By its identity, each loop over tiles whose number, and what is known at run time, says how many turns a loop inside takes."""
    found = {}
    loops = persistence(scene.kernel)
    for one in loops:
        counted = next((other.loop.growth for other in loops if other.tile.var == one.tile.var and other.loop.growth != ONE), ONE)
        growth = opened(scene, counted, frozenset({one.tile.var.name}))
        tile, tiles, most = one.tile.var, constant(one.tiles), max(one.loop.extent.high, 1)
        rings = scene.kernel.rings
        if tile not in growth.variables():
            continue
        if growth.variables() == {tile} and tiles is not None and tiles <= MANY:
            lengths = np.broadcast_to(compiled(growth)({tile.name: np.arange(tiles)}), (tiles,))
            found[id(one.loop)] = Differing(tile, _sequence([int(length) for length in lengths], rings), most)
        else:
            least = max(growth.low, 0)
            last = max(min(growth.high, _most_kinds(rings)), least)
            sequence = [least + kind for kind in _sequence(range(least, last + 1), rings)]
            found[id(one.loop)] = Differing(tile, sequence, most, growth)
    return found


def of_tiles(loops: Iterable[Differing]) -> dict[Expr, Expr]:
    """What stands for the turns of a tile, by all ways in which expressions say them, where they are known only at run time."""
    found: dict[Expr, Expr] = {}
    for one in loops:
        if one.length is not None:
            found |= {one.length: LENGTH, minimum(one.length, ONE): minimum(LENGTH, ONE)}
    return found


def opened(scene: Scene, value: Expr, kept: frozenset[str]) -> Expr:
    """An expression without named values, but for those that are `kept`."""
    while True:
        named = {var: scene.lets[var.name] for var in value.variables() if var.name in scene.lets and var.name not in kept}
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


__all__ = ["LENGTH", "PIECE", "Differing", "differing", "of_tiles", "opened"]
