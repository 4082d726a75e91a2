"""Scans across blocks in the simulator: the totals that blocks have published, and their combination in the order of the kernel's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fireiron.ir import Exec
from fireiron.ir.look_back import FANOUT
from fireiron.sim.plan import Environment
from fireiron.spec import Spec
from fireiron.specs.formula import SCANS
from fireiron.specs.meaning import combining_function, neutral
from fireiron.specs.tile_prefix import StatePrefix
from fireiron.values.expr import compiled

Key = tuple[str, tuple[int, ...]]
"""The words of a scan, and the first of its rows that a block has."""

Total = Sequence[Any]
"""The totals of rows: their values, and for a recurrence their factors."""


def place_of(statement: Exec, env: Environment) -> tuple[Key, int]:
    """Return the rows and the number of a block's tile."""
    access = statement.operands["words"]
    *rows, tile = (int(np.asarray(compiled(value)(env)).flat[0]) for value in access.base)
    return (access.buffer, tuple(rows)), tile


class Totals:
    """The totals that the blocks of a launch have published, by rows and tile."""

    def __init__(self) -> None:
        self._published: dict[Key, dict[int, Total]] = {}

    def is_published(self, key: Key, tile: int) -> bool:
        """Whether a block has published the totals of its tile."""
        return tile in self._published.get(key, {})

    def publish(self, key: Key, tile: int, total: Total) -> None:
        """Publish the totals of a tile."""
        self._published.setdefault(key, {})[tile] = [np.array(part) for part in total]

    def is_ready(self, key: Key, tile: int) -> bool:
        """Whether the totals of all tiles before a tile are published."""
        known = self._published.get(key, {})
        return all(number in known for number in range(tile))

    def before(self, spec: Spec, key: Key, tile: int) -> Any:
        """Return the totals of all tiles before a tile, combined in the order of the function `look_back`."""
        tree = _Tree(spec, self._published[key])
        result, level = tree.none(), 0
        while tile:
            first = tile - tile % FANOUT
            result = tree.combined(tree.together([tree.node(level, number) for number in range(first, tile)]), result)
            tile, level = tile // FANOUT, level + 1
        return result[0]


class _Tree:
    """The nodes of a scan: a leaf is a tile, and an inner node has 32 children."""

    def __init__(self, spec: Spec, leaves: dict[int, Total]) -> None:
        self._recurs = spec.kind == StatePrefix.kind
        self._by = "sum" if self._recurs else SCANS[dict(spec.parameters)["by"]]
        self._dtype = spec.src.dtype
        self._leaves = leaves
        self._nodes: dict[tuple[int, int], Total] = {}

    def none(self) -> Total:
        """Return the totals of no elements."""
        shape, kind = np.shape(next(iter(self._leaves.values()))[0]), self._dtype.to_numpy()
        values = (0, 1) if self._recurs else (neutral(self._by, self._dtype),)
        return [np.full(shape, value, kind) for value in values]

    def node(self, level: int, number: int) -> Total:
        """Return the total of a node: that of its first 31 children, and then the last one."""
        if level == 0:
            return self._leaves[number]
        if (level, number) not in self._nodes:
            *others, last = (self.node(level - 1, number * FANOUT + child) for child in range(FANOUT))
            self._nodes[level, number] = self.combined(self.together(others), last)
        return self._nodes[level, number]

    def together(self, totals: Sequence[Total]) -> Total:
        """Return the combination of totals by shuffles: of adjacent ones, then of those at distance 2, 4, ..."""
        lanes = [*totals, *[self.none()] * (FANOUT - len(totals))]
        distance = 1
        while distance < FANOUT:
            lanes = [self.combined(one, lanes[lane + distance]) if lane + distance < FANOUT else one for lane, one in enumerate(lanes)]
            distance *= 2
        return lanes[0]

    def combined(self, earlier: Total, later: Total) -> Total:
        """Return the total of two parts."""
        with np.errstate(all="ignore"):
            if not self._recurs:
                return [combining_function(self._by)(earlier[0], later[0])]
            return [later[1] * earlier[0] + later[0], earlier[1] * later[1]]


__all__ = ["Totals", "place_of"]
