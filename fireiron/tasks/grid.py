"""Distribute launches over the blocks of a kernel. The mapping specifies the tile order, clusters and persistent blocks."""

from __future__ import annotations

import functools
import math

from fireiron.errors import DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.ir import BlockCluster
from fireiron.language.grid import BodyNames, let_of_grid
from fireiron.language.tile_assignment import SelectedTile, Selection
from fireiron.language.tree import Draft
from fireiron.refine.persistent import PersistentBlocks
from fireiron.refine.rasterize import RASTER_ORDERS
from fireiron.tasks.mapping import TaskMapping
from fireiron.values.expr import ONE, ZERO, Expr, Var, as_expr, constant, minimum, mod
from fireiron.values.machine import WARPGROUP_ARCHITECTURE

_NAMES = "ijkl"
"""Letters for indices in names."""


@frozen
class Blocks:
    """The distribution: the indices of a block's launch, how a block selects launches, their number, and the cluster of blocks."""

    indices: tuple[Expr, ...]
    selected: SelectedTile
    launches: Expr
    cluster: BlockCluster | None = None


def distributed_over_blocks(sizes: tuple[Expr, ...], instance: TaskMapping, draft: Draft) -> Blocks:
    """Distribute a grid of launches over blocks, the last index fastest.

    Raises: DecompositionError if the number of launches is not a multiple of the cluster size.
    """
    counts, places, cluster = _gathered(sizes, instance, draft)
    each = 1 if cluster is None else cluster.blocks
    grid: Expr = as_expr(each)
    for size in counts:
        grid = grid * size
    selection = PersistentBlocks(instance.persistent) if instance.persistent else Selection()
    selected = selection.selected(_block(sizes, instance, draft), grid, each, draft)
    indices = _indices(counts, places, selected.unit // each, instance, selected.names)
    return Blocks(indices, selected, grid, cluster)


def _along(instance: TaskMapping, rank: int) -> tuple[int, ...]:
    """The cluster size along each dimension of a grid."""
    return (*(1,) * (rank - len(instance.cluster)), *instance.cluster)


def _gathered(
    sizes: tuple[Expr, ...], instance: TaskMapping, draft: Draft
) -> tuple[tuple[Expr, ...], tuple[Expr, ...], BlockCluster | None]:
    """The number of clusters along each dimension, the position of a block in its cluster, and the cluster."""
    along = _along(instance, len(sizes))
    if math.prod(along) == 1:
        return sizes, (ZERO,) * len(sizes), None
    _require_clusters(sizes, along, instance, draft)
    left = mod(_block(sizes, instance, draft), as_expr(math.prod(along)))
    places: list[Expr] = []
    ranks = []
    for position, part in enumerate(along):
        place = draft.let(f"rank_{_NAMES[position % 4]}", mod(left, as_expr(part))) if part > 1 else ZERO
        places.append(place)
        ranks += [place] if isinstance(place, Var) else []
        left = left // part
    counts = tuple(size // part for size, part in zip(sizes, along, strict=True))
    return counts, tuple(places), BlockCluster(tuple(part for part in along if part > 1), tuple(ranks))


def _require_clusters(sizes: tuple[Expr, ...], along: tuple[int, ...], instance: TaskMapping, draft: Draft) -> None:
    what = f"{instance.instance}: cluster={instance.cluster}"
    if len(along) != len(sizes):
        raise DecompositionError(
            f"{what} has more dimensions than the launches, which have {len(sizes)} indices", legal=f"at most {len(sizes)} numbers",
            at=call_site(),
        )  # fmt: skip
    if draft.architecture.name != WARPGROUP_ARCHITECTURE:
        raise DecompositionError(f"{what}: blocks can share loads only on {WARPGROUP_ARCHITECTURE}", got=draft.architecture, at=call_site())
    wrong = [str(size) for size, part in zip(sizes, along, strict=True) if size.factor % part]
    if wrong:
        raise DecompositionError(
            f"{what}: the number of launches is not a multiple of the cluster size",
            got=f"{wrong[0]} along a dimension",
            legal=f"multiples of {along}",
            at=call_site(),
        )


def _block(sizes: tuple[Expr, ...], instance: TaskMapping, draft: Draft) -> Var:
    """The number of a block, bounded by the number of blocks."""
    total: Expr = ONE
    for size in sizes:
        total = total * size
    number = constant(minimum(total, as_expr(instance.persistent)) if instance.persistent else total)
    return draft.block if number is None else Var(draft.block.name, 0, number - 1)


def _indices(
    counts: tuple[Expr, ...], places: tuple[Expr, ...], unit: Expr, instance: TaskMapping, names: Draft | BodyNames
) -> tuple[Expr, ...]:
    """Return the indices of a launch, from the number of its cluster and the position of the block in the cluster."""
    indices, parts = _raster_indices(counts, unit, instance, names), _along(instance, len(counts))
    named: dict[int, Expr] = {}
    for at in (*range(len(counts) - 2), *reversed(range(max(len(counts) - 2, 0), len(counts)))):  # columns before rows
        named[at] = let_of_grid(f"block_{_NAMES[at % 4]}", indices[at], counts[at], names)
    return tuple(named[at] * parts[at] + place for at, place in enumerate(places))


def _raster_indices(counts: tuple[Expr, ...], unit: Expr, instance: TaskMapping, names: Draft | BodyNames) -> tuple[Expr, ...]:
    """Return the indices of launch number `unit`, the last index fastest.

    The last two indices follow the raster order, if the mapping specifies one. A dimension with a single launch has the index 0 and is not
    computed: the code would divide by a count that a block's number never reaches, and the block check could not invert the indices.
    """
    larger = [at for at, count in enumerate(counts) if constant(count) != 1]
    of_matrix = [at for at in larger if at >= len(counts) - 2]
    raster = _digits if len(of_matrix) < 2 or not instance.group_m else functools.partial(_grouped_indices, instance=instance, names=names)
    indices = dict(zip(larger, raster(tuple(counts[at] for at in larger), unit), strict=True))
    return tuple(indices.get(at, ZERO) for at in range(len(counts)))


def _grouped_indices(counts: tuple[Expr, ...], unit: Expr, instance: TaskMapping, names: Draft | BodyNames) -> tuple[Expr, ...]:
    """Return the indices of launch number `unit`, the last two in raster order."""
    *outer, lines, columns = counts
    front: tuple[Expr, ...] = ()
    if outer:
        grid = lines * columns
        front, unit = _digits(tuple(outer), unit // grid), mod(unit, grid)
        unit = unit if constant(grid) is not None else names.let("block_tile", unit)
    raster = RASTER_ORDERS[instance.raster](instance.group_m).of_clusters(*(1, 1, *instance.cluster)[-2:])
    return (*front, *raster.cell(unit, lines, columns, names))


def _digits(counts: tuple[Expr, ...], unit: Expr) -> tuple[Expr, ...]:
    indices: list[Expr] = []
    for place, count in reversed(list(enumerate(counts))):
        indices.insert(0, unit if place == 0 else mod(unit, count))
        unit = unit // count
    return tuple(indices)
