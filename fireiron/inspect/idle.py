"""Find idle units: lanes, warps and other units of a block without a tile of the main work, and SMs or blocks without a tile.

The main work of a kernel is at the leaves with most of its operations. Idle units at other leaves, such as the store of a small tile, take
little time, and are not reported. The tile of a finding has been compiled, and leaves fewer units idle.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final

import attrs

from fireiron.check import Finding
from fireiron.compiler import Program
from fireiron.cost import predict
from fireiron.cost.gpus import of_architecture
from fireiron.decomp.tile import Strided, Tile, TilePlan
from fireiron.errors import FireironError
from fireiron.frozen import frozen
from fireiron.inspect.other_steps import with_steps
from fireiron.inspect.show import main_child
from fireiron.language.substrategy import inner_chains
from fireiron.language.tree import Decomposition, Node
from fireiron.spec import Spec
from fireiron.values.expr import constant
from fireiron.values.layout import Layout
from fireiron.values.machine import Block, Level
from fireiron.values.units import count_in

LEAST_SHARE: Final = 0.5
"""Share of a kernel's operations below a tile, from which on idle units of the tile are reported."""

MOST_BUSY: Final = 0.75
"""Share of the units with a tile, up to which the others are reported: a last iteration with few tiles is usual for odd sizes."""

MOST_TRIALS: Final = 8
"""Number of tiles to compile for a finding."""

ASSUMED_SIZE: Final = 4096
"""Elements along a dimension whose size is known only at run time."""


def idle(program: Program) -> Iterator[Finding]:
    """Yield a warning for each tile of the main work that leaves units idle, and a note if blocks leave SMs idle.

    Equal tiles of several chains share a finding. Raises: the errors of the program if it has no kernel.
    """
    yield from _idle_units(program)
    yield from _idle_blocks(program)


# ---------------------------------------------------------------------------------------------- units of a block


@frozen
class _Distribution:
    """A tile step with the numbers of tiles and of units, and its share of the kernel's operations."""

    step: Tile
    level: Level
    parent: Level
    tiles: int
    units: int

    @property
    def busy(self) -> float:
        """The share of the units' time in which they have a tile."""
        return self.tiles / (self.units * -(-self.tiles // self.units))


def _idle_units(program: Program) -> Iterator[Finding]:
    seen: set[tuple[Any, ...]] = set()
    for distribution in _distributions(program):
        step = distribution.step
        key = step.sizes, step.by_dim, distribution.level
        if distribution.busy > MOST_BUSY or key in seen:
            continue
        seen.add(key)
        tiles, units, level = distribution.tiles, distribution.units, f"{distribution.level}".lower()
        if tiles < units:
            what = f"{tiles} tiles for {units} {level}s: {units - tiles} of them are idle"
        else:
            what = f"{tiles} tiles for {units} {level}s: in the last iteration {units - tiles % units} of them are idle"
        better = _better(program, distribution)
        fix = "" if better is None else f"; {better} has a tile for each"
        details = {"tiles": tiles, "units": units, "level": str(distribution.level), "tile": better}
        yield Finding("idle", "warning", None, f"{_label(step)}.to({distribution.level}): {what}{fix}", step.origin, None, details)


def _distributions(program: Program) -> Iterator[_Distribution]:
    """Yield the tiles of the main work that are distributed over units of a block."""
    nodes = dict(_weighed(program.tree, 1.0))
    total = sum(weight for node, weight in nodes.items() if not node.children)
    for node, weight in nodes.items():
        step, child = node.step, main_child(node)
        if not isinstance(step, Tile) or child is None or not total or weight < LEAST_SHARE * total:
            continue
        level = step.planned(TilePlan()).level
        tiles = _tiles(node.spec, child[1].spec)
        if level is None or level.is_launch or level == Block or tiles is None:
            continue
        try:
            units = count_in(level, node.spec.level, program.grown.workers)
        except FireironError:  # units of a launch
            continue
        if units > 0:
            yield _Distribution(step, level, node.spec.level, tiles, units)


def _weighed(node: Node, times: float) -> Iterator[tuple[Node, float]]:
    """Yield each node with the operations of the leaves below it, for a node that a unit executes `times` times."""
    main, weight = main_child(node), 0.0
    below: list[tuple[Node, float]] = []
    for pair in node.children:
        child = pair[1]
        again = _operations(node.spec) / _operations(child.spec) if pair is main and child.spec.dims == node.spec.dims else 1.0
        inner = list(_weighed(child, times * again))
        weight += inner[-1][1]
        below += inner
    yield from below
    yield node, weight if node.children else times * _operations(node.spec)


def _operations(spec: Spec) -> float:
    """Return the number of points of a spec's dimensions; an allocation has none."""
    return 0.0 if spec.allocates else float(math.prod(_size(spec, dim) for dim in spec.dims))


def _size(spec: Spec, dim: str) -> int:
    return constant(spec.size(dim)) or ASSUMED_SIZE


def _tiles(spec: Spec, tile: Spec) -> int | None:
    """Return the number of tiles of a spec; None for tiles of other dimensions or of run-time sizes."""
    if spec.dims != tile.dims:
        return None
    sizes = [(constant(spec.size(dim)), constant(tile.size(dim))) for dim in spec.dims]
    return None if any(None in pair for pair in sizes) else math.prod(-(-(total or 1) // (part or 1)) for total, part in sizes)


# ---------------------------------------------------------------------------------------------- a better tile


def _better(program: Program, distribution: _Distribution) -> str | None:
    """Return the first smaller tile with which no unit is idle, if the strategy compiles with it and is faster; None if there is none."""
    for step in itertools.islice(_smaller(distribution), MOST_TRIALS):
        changed = _compiled(program, distribution.step, step)
        after = [] if changed is None else [other for other in _distributions(changed) if _is_same_tile(other.step, step)]
        if changed is not None and after and all(other.busy > distribution.busy for other in after) and is_faster(changed, program):
            return _label(step)
    return None


def _compiled(program: Program, old: Tile, new: Tile) -> Program | None:
    """Return the program with another tile wherever it has the old one; None if it is illegal."""
    return with_steps(program, _replaced(program.strategy.steps, old, new))


def is_faster(changed: Program, program: Program) -> bool:
    """Return whether the cost model predicts less time for a changed program, with assumed run-time sizes."""
    times = []
    for each in (changed, program):
        sizes = {symbol.name: -(-ASSUMED_SIZE // symbol.multiple_of) * symbol.multiple_of for symbol in each.lowered.symbols}
        try:
            times.append(predict(each, of_architecture(each.architecture), sizes).us)
        except (FireironError, KeyError):  # the model has no trip counts of kernels whose last block continues
            return False
    return times[0] < times[1]


def _smaller(distribution: _Distribution) -> Iterator[Tile]:
    """Yield tiles with as many parts as there are units, or a multiple, the squarest first."""
    step = distribution.step
    sizes: list[Any] = list(step.sizes[0].dims) if _is_strided(step) else [*step.sizes, *(size for _, size in step.by_dim)]
    if any(isinstance(size, Layout) for size in sizes):
        return
    parts = _parts(distribution, len(sizes))
    for factors in parts:
        smaller = [_divided(size, factor) for size, factor in zip(sizes, factors, strict=True)]
        if None in smaller:
            continue
        if _is_strided(step):
            yield attrs.evolve(step, sizes=(Strided(*smaller),))
        else:
            count = len(step.sizes)
            names = [dim for dim, _ in step.by_dim]
            yield attrs.evolve(step, sizes=tuple(smaller[:count]), by_dim=tuple(zip(names, smaller[count:], strict=True)))


def _parts(distribution: _Distribution, count: int) -> list[tuple[int, ...]]:
    """Return by how much to divide each of `count` sizes: products of powers of two after which the units divide the tiles."""
    tiles, units = distribution.tiles, distribution.units
    powers = [1 << power for power in range(units.bit_length())]
    every = itertools.product(powers, repeat=count)
    fitting = (factors for factors in every if math.prod(factors) > 1 and _is_full(tiles * math.prod(factors), units, distribution.level))
    return sorted(fitting, key=lambda factors: (math.prod(factors), max(factors), factors))


def _is_full(tiles: int, units: int, level: Level) -> bool:
    """Return whether the units of a level divide a number of tiles. Blocks need not, because SMs take the next block at once."""
    return 3 * tiles >= 2 * units if level == Block else tiles % units == 0


def _divided(size: Any, factor: int) -> Any:
    """Return a part of a size; for `(chunk, repeat)` of a strided tile, fewer chunks."""
    if isinstance(size, tuple):
        chunk, repeat = size
        return (chunk, repeat * factor)
    return size // factor if isinstance(size, int) and size % factor == 0 else None


def _replaced(steps: tuple[Decomposition, ...], old: Tile, new: Tile) -> tuple[Decomposition, ...]:
    """Return steps, including nested ones, with each tile of the same sizes and level replaced."""
    changed: list[Decomposition] = []
    for step in steps:
        if _is_same_tile(step, old) and isinstance(step, Tile):
            changed.append(attrs.evolve(step, sizes=new.sizes, by_dim=new.by_dim))
            continue
        nested: dict[str, Any] = {name: _replaced(inner, old, new) for name, inner in inner_chains(step).items()}
        changed.append(attrs.evolve(step, **nested) if nested else step)
    return tuple(changed)


def _is_same_tile(step: Decomposition, other: Tile) -> bool:
    levels = [each.planned(TilePlan()).level for each in (step, other) if isinstance(each, Tile)]
    return isinstance(step, Tile) and (step.sizes, step.by_dim) == (other.sizes, other.by_dim) and levels[0] == levels[-1]


def _is_strided(step: Tile) -> bool:
    return len(step.sizes) == 1 and isinstance(step.sizes[0], Strided)


def _label(step: Tile) -> str:
    """Return a tile without its refinements."""
    return attrs.evolve(step, refinements=()).label()


# ---------------------------------------------------------------------------------------------- blocks


def _idle_blocks(program: Program) -> Iterator[Finding]:
    """Yield a note if the blocks of the last launch leave SMs of the target's usual GPU idle, and smaller tiles are faster."""
    blocks, gpu = constant(program.ir.grid), of_architecture(program.architecture)
    if blocks is None or blocks > MOST_BUSY * gpu.multiprocessors:
        return
    tiles = [node.step for node in program.tree.nodes() if isinstance(node.step, Tile) and node.step.planned(TilePlan()).level == Block]
    if len(tiles) != 1 or any(isinstance(size, Layout) for size in tiles[0].sizes):
        return
    (tile,) = tiles
    wanted = _Distribution(tile, Block, program.inner.level, blocks, gpu.multiprocessors)
    for step in itertools.islice(_smaller(wanted), MOST_TRIALS):
        changed = _compiled(program, tile, step)
        if changed is not None and is_faster(changed, program):
            more = constant(changed.ir.grid)
            count = f"{blocks} block{'' if blocks == 1 else 's'}"
            message = f"{count} for {gpu.multiprocessors} SMs of {gpu}: the others are idle; {_label(step)} makes {more} blocks"
            details = {"blocks": blocks, "sms": gpu.multiprocessors, "tile": _label(step), "blocks of it": more}
            yield Finding("idle", "note", None, message, tile.origin, None, details)
            return


__all__ = ["LEAST_SHARE", "MOST_BUSY", "MOST_TRIALS", "idle", "is_faster"]
