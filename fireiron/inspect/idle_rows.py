"""Find lanes without a tile where rows in registers determine the distribution: loads by warps and lanes, and no tile of the main chain.

A row of 64 float16 values in vectors of 8 has tiles for 8 lanes. The tiles of a load may extend past the end of a row, so their sizes alone
do not show this. A finding has tiles that were compiled, and that the cost model predicts to be faster; without such tiles there is none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final

import attrs

from fireiron.check import Finding
from fireiron.compiler import Program
from fireiron.decomp.load import Load
from fireiron.decomp.tile import Tile, TilePlan
from fireiron.frozen import frozen
from fireiron.inspect.idle import LEAST_SHARE, MOST_BUSY, MOST_TRIALS, is_faster
from fireiron.inspect.other_steps import with_steps
from fireiron.inspect.show import main_child
from fireiron.language.substrategy import inner_chains
from fireiron.language.tree import Decomposition, Node
from fireiron.spec import Spec
from fireiron.values.expr import constant
from fireiron.values.machine import RF, Block, Lane, Level, Warp

LANES: Final = 32


@frozen
class _Row:
    """The tiles of a warp and of a lane in the copy of a load, with the extents of a block's tile."""

    load: Load
    extents: tuple[int, ...]
    warp: tuple[int, ...]
    lane: tuple[int, ...]

    @property
    def key(self) -> tuple[int, ...]:
        """What loads of equal rows have in common: the extent of a row, and its elements in a warp and in a lane."""
        return self.extents[-1], self.warp[-1], self.lane[-1]

    @property
    def tiles(self) -> int:
        """The tiles of a warp that are not wholly past the end."""
        clipped = map(min, self.warp, self.extents)
        return math.prod(-(-size // part) for size, part in zip(clipped, self.lane, strict=True))

    @property
    def busy(self) -> float:
        """The share of the lanes' time in which they have a tile."""
        return self.tiles / (LANES * -(-self.tiles // LANES))

    def label(self) -> str:
        """Return the copy as text."""
        sizes = (", ".join(map(str, tile)) for tile in (self.warp, self.lane))
        return "Move.tile({}).to(Warp).tile({}).to(Lane)".format(*sizes)


def idle_rows(program: Program) -> Iterator[Finding]:
    """Yield a warning for each load of rows that leaves lanes idle, if other tiles are faster. Loads of equal rows share one.

    Raises: the errors of the program if it has no kernel.
    """
    rows = sorted(_rows(program), key=lambda row: -len(row.warp))
    for key in dict.fromkeys(row.key for row in rows):
        row, *others = (row for row in rows if row.key == key)
        better = _better(program, row) if row.busy < MOST_BUSY else None
        if better is None:
            continue
        what = f"{row.tiles} tiles for {LANES} lanes: {-row.tiles % LANES} of them are idle"
        fix = f"with {better.label()}, {-better.tiles % LANES or 'none'} of them are idle"
        likewise = f" (change the tiles of {', '.join(other.load.operand for other in others)}, too)" if others else ""
        message = f"load({row.load.operand}, RF, {row.label()}): {what}; {fix}{likewise}"
        details = {"tiles": row.tiles, "units": LANES, "level": str(Lane), "tile": better.label()}
        yield Finding("idle", "warning", None, message, row.load.origin, None, details)


def _rows(program: Program) -> Iterator[_Row]:
    """Yield the large loads of a program that determine the distribution of its steps."""
    chain = list(_main_chain(program.tree))
    if any(isinstance(node.step, Tile) and not _is_of_blocks(node.step) for node in chain):
        return
    most = max((_points(leaf.spec) for node in chain for leaf in node.nodes() if not leaf.children and not leaf.spec.allocates), default=0)
    for node in chain:
        if isinstance(node.step, Load) and node.step.memory == RF and node.children:
            row = _row(node.step, node.children[0][1])
            if row is not None and math.prod(row.extents) >= LEAST_SHARE * most:
                yield row


def _main_chain(node: Node) -> Iterator[Node]:
    """Yield the nodes from the kernel to the leaf of the main chain."""
    yield node
    child = main_child(node)
    if child is not None:
        yield from _main_chain(child[1])


def _is_of_blocks(step: Tile) -> bool:
    level = step.planned(TilePlan()).level
    return level is None or level.is_launch or level == Block


def _points(spec: Spec) -> int:
    """Return the number of points of a spec in a block; 0 outside of blocks or with run-time sizes."""
    return math.prod(constant(spec.size(dim)) or 0 for dim in spec.dims) if spec.level == Block else 0


def _row(load: Load, copy: Node) -> _Row | None:
    """Return the tiles of a copy of a block that is distributed to warps, then to lanes; None for other copies."""
    tiles = [step for step in load.move if isinstance(step, Tile)]
    if [step.planned(TilePlan()).level for step in tiles] != [Warp, Lane] or not all(_has_numbers(step) for step in tiles):
        return None
    extents = [constant(copy.spec.size(dim)) for dim in copy.spec.dims]
    if None in extents or any(len(step.sizes) != len(extents) for step in tiles):
        return None
    return _Row(load, tuple(extent or 1 for extent in extents), *(tuple(step.sizes) for step in tiles))


def _has_numbers(step: Tile) -> bool:
    return not step.by_dim and all(isinstance(size, int) for size in step.sizes)


# ---------------------------------------------------------------------------------------------- better tiles


def _better(program: Program, row: _Row) -> _Row | None:
    """Return the first tiles with fewer idle lanes with which the strategy compiles and is faster; None if there are none."""
    for changed in itertools.islice((other for other in _others(row) if other.busy > row.busy), MOST_TRIALS):
        trial = with_steps(program, _replaced(program.strategy.steps, row, changed))
        if trial is not None and is_faster(trial, program):
            return changed
    return None


def _others(row: _Row) -> Iterator[_Row]:
    """Yield tiles with several rows per warp, the last dimension of a block's rows first, then tiles with narrower vectors."""
    vector, extent = row.lane[-1], row.extents[-1]
    lanes = _power(-(-extent // vector))
    for position in reversed(range(len(row.warp) - 1)):
        count = min(LANES // lanes, row.extents[position] // row.lane[position]) if lanes < LANES else 1
        if count > 1:
            warp = [*row.warp[:-1], lanes * vector]
            warp[position] = count * row.lane[position]
            yield attrs.evolve(row, warp=tuple(warp))
    while vector > 1:
        vector //= 2
        if _power(-(-extent // vector)) <= LANES:
            warp = [*row.warp[:-1], _power(-(-extent // vector)) * vector]
            yield attrs.evolve(row, warp=tuple(warp), lane=(*row.lane[:-1], vector))


def _replaced(steps: tuple[Decomposition, ...], old: _Row, new: _Row) -> tuple[Decomposition, ...]:
    """Return steps, including nested ones, with the new tiles in place of the old ones, also for arrays of fewer dimensions."""
    changed: list[Decomposition] = []
    for step in steps:
        if isinstance(step, Tile) and _has_numbers(step) and step.sizes:
            changed.append(_replaced_tile(step, old, new))
            continue
        nested: dict[str, Any] = {name: _replaced(inner, old, new) for name, inner in inner_chains(step).items()}
        changed.append(attrs.evolve(step, **nested) if nested else step)
    return tuple(changed)


def _replaced_tile(step: Tile, old: _Row, new: _Row) -> Tile:
    pairs: dict[Level, tuple[tuple[int, ...], tuple[int, ...]]] = {Warp: (old.warp, new.warp), Lane: (old.lane, new.lane)}
    level = step.planned(TilePlan()).level
    if level not in pairs:
        return step
    before, after = ((*sizes[: len(step.sizes) - 1], sizes[-1]) for sizes in pairs[level])
    return attrs.evolve(step, sizes=after) if step.sizes == before else step


def _power(count: int) -> int:
    """Return the least power of two of at least `count`."""
    return 1 << (count - 1).bit_length()


__all__ = ["idle_rows"]
