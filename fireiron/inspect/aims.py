"""Determine whether a strategy uses tensor cores or arithmetic of single threads, and list the steps to these instructions."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping

import attrs

from fireiron.decomp.done import Done
from fireiron.decomp.epilog import Epilog
from fireiron.decomp.load import Load
from fireiron.decomp.mma_tile import SIDE, MmaTile
from fireiron.decomp.split import Split
from fireiron.decomp.tile import Tile
from fireiron.language.tree import Context, Decomposition
from fireiron.performing.mma import Mma
from fireiron.performing.warpgroups import ROWS
from fireiron.refine.to import To
from fireiron.spec import Spec
from fireiron.values.expr import constant
from fireiron.values.machine import RF, WARPGROUP_ARCHITECTURE, Architecture, Block, DType, Level, Warp, Warpgroup, as_architecture, float32
from fireiron.values.units import same_threads

Steps = tuple[Decomposition, ...]


def aims_at_matrices(steps: Steps) -> bool:
    """Whether a strategy uses matrix instructions.

    A strategy uses them if it contains one of these: `mma_tile`; tiles for warpgroups that are not distributed further; an init or store of
    an accumulator whose last tile is for warps or warpgroups.
    """
    levels = [level for step in steps if (level := _level(step)) is not None]
    of_warpgroups = bool(levels) and levels[-1] == Warpgroup
    return of_warpgroups or any(isinstance(step, MmaTile) or _group_tile(step) is not None for step in steps)


def may_aim_at_matrices(spec: Spec, steps: Steps, context: Context) -> bool:
    """Whether a strategy may be meant for matrix instructions: no step is for single threads, and the target has one for the types."""
    levels = [level for step in steps if (level := _level(step)) is not None]
    if not spec.multiplies or any(level.threads == 1 for level in levels):
        return False
    types = {"A": spec.A.dtype, "B": spec.B.dtype}
    capability = context.architecture.capability
    forms = (one for one in context.instructions if isinstance(one, Mma))
    return any(one.factors == types and one.capability <= capability <= (one.last or capability) for one in forms)


def _group_tile(step: Decomposition) -> Tile | None:
    """Return the warp or warpgroup tile with which the init or store of an accumulator ends; None if there is none."""
    if not isinstance(step, Epilog):
        return None
    for inner in (step.init, step.store):
        tiles = [inner_step for inner_step in inner if isinstance(inner_step, Tile)]
        if tiles and _level(tiles[-1]) in (Warp, Warpgroup) and isinstance(inner[-1], Done):
            return tiles[-1]
    return None


def _level(step: Decomposition) -> Level | None:
    return next((refinement.level for refinement in step.refinements if isinstance(refinement, To)), None)


def matrix_chains(spec: Spec, steps: Steps) -> Iterator[Steps]:
    """Yield chains of steps from a spec of a block or a warp to matrix instructions.

    If the accumulator is tiled for warps, the chains use the same tile.
    """
    if any(isinstance(step, MmaTile) for step in steps) or not spec.multiplies:
        return
    if same_threads(spec.level, Warp):
        yield _below_warp(spec)
    elif spec.level == Block:
        warp_tiles = [tile for tile in map(_group_tile, steps) if tile is not None and _level(tile) == Warp]
        tiles = [warp_tiles[0]] if warp_tiles else [Tile((size, size), refinements=(To(Warp),)) for size in (64, 32)]
        for tile in tiles:
            yield (tile, *_below_warp(spec))


def _below_warp(spec: Spec) -> Steps:
    depth = constant(spec.size(spec.dims[-1]))
    split = () if depth is not None and depth <= SIDE else (Split((SIDE,)),)
    loads = (Load(name, RF, (Done(),)) for name in spec.inputs if not spec.operands[name].memory.like(RF))
    return (*split, *loads, Tile((SIDE, SIDE)), MmaTile())


def changes(steps: Steps, architecture: Architecture, results: Collection[DType] = ()) -> Iterator[tuple[str, Steps, Architecture]]:
    """Yield single changes of a strategy for matrix instructions: a text, the changed steps, and the target.

    They give an accumulator one of the types `results` that instructions require, remove the storage of loads to shared memory, which a
    warpgroup instruction determines itself, tile for warpgroups instead of warps, or change the sizes of tiles for warpgroups.
    """
    for number, step in enumerate(steps):
        if isinstance(step, Epilog):
            for dtype in results:
                changed = attrs.evolve(step, dtype=dtype)
                yield f"{changed.summary()} instead of {step.summary()}", (*steps[:number], changed, *steps[number + 1 :]), architecture
    refined = [number for number, step in enumerate(steps) if isinstance(step, Load) and step.memory.in_shared and step.refinements]
    groups = [(number,) for number in refined] + ([tuple(refined)] if len(refined) > 1 else [])
    for numbers in groups:
        names = [f"{''.join(f'.{one.label()}' for one in steps[number].refinements)} of {_load_text(steps[number])}" for number in numbers]
        plain = tuple(step.unrefined() if number in numbers else step for number, step in enumerate(steps))
        yield f"remove {' and '.join(names)}", plain, architecture
    tiles = [number for number, step in enumerate(steps) if isinstance(step, Tile) and _level(step) == Warp]
    if tiles and architecture.capability == as_architecture(WARPGROUP_ARCHITECTURE).capability:
        tile = steps[tiles[-1]]
        wider = tile.refined(To(Warpgroup))
        text = f"{wider.summary()} instead of {tile.summary()}"
        yield text, (*steps[: tiles[-1]], wider, *steps[tiles[-1] + 1 :]), as_architecture(WARPGROUP_ARCHITECTURE)
    yield from ((text, changed, architecture) for text, changed in _other_warpgroup_tiles(steps))


def _other_warpgroup_tiles(steps: Steps) -> Iterator[tuple[str, Steps]]:
    """Yield the steps with other sizes of the last tile for warpgroups, if `wgmma` cannot have its own; then with those of the block, too.

    `wgmma` has a multiple of 64 rows, and 8 to 256 columns. The tile keeps its columns if they are legal.
    """
    tiles = [number for number, step in enumerate(steps) if isinstance(step, Tile)]
    groups = [number for number in tiles if _level(steps[number]) == Warpgroup]
    blocks = [number for number in tiles if _level(steps[number]) == Block]
    block, group = (steps[numbers[-1]] if numbers else None for numbers in (blocks, groups))
    if not isinstance(block, Tile) or not isinstance(group, Tile):
        return
    of_block, of_group = _plain_sizes(block), _plain_sizes(group)
    if of_block is None or of_group is None or not len(of_block) == len(of_group) == 2:
        return
    if of_group[0] % ROWS == 0 and of_group[1] % 8 == 0 and 8 <= of_group[1] <= 256:
        return
    rows, columns = of_block
    legal_columns = [size for size in range(256, 7, -8) if columns % size == 0]
    widths = [of_group[1]] if of_group[1] in legal_columns else legal_columns
    heights = [size for size in range(ROWS, 257, ROWS) if rows % size == 0]
    for height, width in itertools.product(heights, widths):
        yield _resized(steps, {groups[-1]: (height, width)})
    for width in widths if rows % ROWS else ():
        yield _resized(steps, {blocks[-1]: (-(-rows // ROWS) * ROWS, columns), groups[-1]: (ROWS, width)})


def _plain_sizes(tile: Tile) -> tuple[int, ...] | None:
    """Return the sizes of a tile if all are numbers; else None."""
    sizes = tuple(tile.sizes)
    return tuple(size for size in sizes if isinstance(size, int)) if all(isinstance(size, int) for size in sizes) else None


def _resized(steps: Steps, sizes: Mapping[int, tuple[int, ...]]) -> tuple[str, Steps]:
    """Return a text and the steps with other sizes of some tiles."""
    changed = tuple(
        attrs.evolve(step, sizes=sizes[number]) if number in sizes and isinstance(step, Tile) else step for number, step in enumerate(steps)
    )
    return ", and ".join(f"{changed[number].summary()} instead of {steps[number].summary()}" for number in sizes), changed


def _load_text(step: Decomposition) -> str:
    return step.unrefined().summary()


def accumulators(spec: Spec) -> Iterator[Epilog]:
    """Yield the accumulators in registers that a matmul may lack if its result is in another memory."""
    if spec.multiplies and not spec.C.memory.private:
        yield Epilog(RF)
        if spec.C.dtype != float32:
            yield Epilog(RF, dtype=float32)
