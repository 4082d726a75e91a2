"""Tiles whose loops differ in length: which of them, one after the other, decide about all that a block may take.

What roles do to each other over rings reaches from one tile into the next, and depends on how many turns both have, and no more on where in
memory they lie. A block is followed through tiles in whose sequence each length stands behind each, itself included, and in whose beginning
each short length stands several times in a row. So it does not matter which block takes which tile, nor how many it takes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np

from fireiron.check.persistence import persistence
from fireiron.check.scene import MANY, Scene
from fireiron.ir import Ring
from fireiron.values.expr import ONE, Expr, Var, compiled, constant

PIECE = Var("piece of the sequence of tiles", 0, MANY)
"""Stands for which piece of it is followed."""


@attrs.frozen(eq=False)
class Differing:
    """A loop over tiles in which a loop takes another number of turns in each: the name of the tile's number, and a sequence that decides.

    A block that takes fewer tiles, `most`, is followed through each piece of the sequence of so many.
    """

    tile: Var
    sequence: Sequence[int]
    most: int

    @property
    def pieces(self) -> int:
        """The number of pieces, of which the last tile is the first of the next one."""
        return max(-(-(len(self.sequence) - 1) // max(self.most - 1, 1)), 1)

    def piece(self, number: int) -> Sequence[int]:
        """The tiles of a piece."""
        start = number * max(self.most - 1, 1)
        return self.sequence[start : start + self.most]


def differing(scene: Scene) -> dict[int, Differing]:
    """By its identity, each loop over tiles that counts the turns of a loop inside, whose number the tile alone says."""
    found = {}
    for one in persistence(scene.kernel):
        tiles = constant(one.tiles)
        if one.loop.growth == ONE or tiles is None or tiles > MANY:
            continue
        growth = opened(scene, one.loop.growth, frozenset({one.tile.var.name}))
        if growth.variables() <= {one.tile.var}:
            lengths = np.broadcast_to(compiled(growth)({one.tile.var.name: np.arange(tiles)}), (tiles,))
            sequence = _sequence([int(length) for length in lengths], scene.kernel.rings)
            found[id(one.loop)] = Differing(one.tile.var, sequence, max(one.loop.extent.high, 1))
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
    # A producer is no more turns ahead than a ring has stages, and a barrier tells of rounds by their parity.
    stages = max((ring.stages for ring in rings), default=1)
    short, rounds = 2 * stages + 1, 2 * stages
    tiles: dict[int, int] = {}
    for tile, length in sorted(enumerate(lengths), key=lambda pair: pair[1]):
        tiles.setdefault(length if length <= short else short + (length - short) % rounds + 1, tile)
    kinds = list(tiles.values())
    runs = [tile for length, tile in tiles.items() if length <= stages for _ in range(rounds + 1)]
    return [*runs, *_neighbours(len(kinds), kinds.__getitem__)]


def _neighbours(count: int, named: Callable[[int], int]) -> Iterator[int]:
    """A sequence of `count` things in which each stands behind each once, and at the end the first one again."""
    for one in range(count):
        yield named(one)
        yield from map(named, itertools.chain.from_iterable((one, other) for other in range(one + 1, count)))
    yield named(0)


__all__ = ["PIECE", "Differing", "differing", "opened"]
