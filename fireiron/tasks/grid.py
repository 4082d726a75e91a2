"""Launches dealt to the blocks of a kernel, as a mapping says: in bands, in clusters, to blocks that stay and take several in turns."""

from __future__ import annotations

import functools
import math

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.ir import BlockCluster
from fireiron.language.dealing import Taken, Taking
from fireiron.language.grid import Inside, let_of_grid
from fireiron.language.tree import Draft
from fireiron.refine.persistent import PersistentBlocks
from fireiron.refine.rasterize import RASTER_ORDERS
from fireiron.tasks.mapping import TaskMapping
from fireiron.values.expr import ONE, ZERO, Expr, Var, as_expr, constant, minimum, mod
from fireiron.values.machine import WARPGROUP_ARCHITECTURE

_NAMES = "ijkl"
"""Of indices, in names."""


@attrs.frozen
class Blocks:
    """The indices of a block's launch, what it takes, how many launches there are, and the cluster of blocks."""

    indices: tuple[Expr, ...]
    taken: Taken
    launches: Expr
    cluster: BlockCluster | None = None


def dealt_to_blocks(sizes: tuple[Expr, ...], one: TaskMapping, draft: Draft) -> Blocks:
    """Launches of so many indices, the last ones fastest, for the blocks of a kernel; a `DecompositionError` for clusters that overhang."""
    counts, places, cluster = _gathered(sizes, one, draft)
    each = 1 if cluster is None else cluster.blocks
    grid: Expr = as_expr(each)
    for size in counts:
        grid = grid * size
    taking = PersistentBlocks(one.persistent) if one.persistent else Taking()
    taken = taking.taken(_block(sizes, one, draft), grid, each, draft)
    indices = _placed(counts, places, taken.unit // each, one, taken.names)
    return Blocks(indices, taken, grid, cluster)


def _along(one: TaskMapping, rank: int) -> tuple[int, ...]:
    """The blocks of a cluster along each dimension of a grid."""
    return (*(1,) * (rank - len(one.cluster)), *one.cluster)


def _gathered(sizes: tuple[Expr, ...], one: TaskMapping, draft: Draft) -> tuple[tuple[Expr, ...], tuple[Expr, ...], BlockCluster | None]:
    """How many clusters there are along each dimension, the place of a block in its own, and the cluster."""
    along = _along(one, len(sizes))
    if math.prod(along) == 1:
        return sizes, (ZERO,) * len(sizes), None
    _require_clusters(sizes, along, one, draft)
    left = mod(_block(sizes, one, draft), as_expr(math.prod(along)))
    places: list[Expr] = []
    ranks = []
    for position, part in enumerate(along):
        place = draft.let(f"rank_{_NAMES[position % 4]}", mod(left, as_expr(part))) if part > 1 else ZERO
        places.append(place)
        ranks += [place] if isinstance(place, Var) else []
        left = left // part
    counts = tuple(size // part for size, part in zip(sizes, along, strict=True))
    return counts, tuple(places), BlockCluster(tuple(part for part in along if part > 1), tuple(ranks))


def _require_clusters(sizes: tuple[Expr, ...], along: tuple[int, ...], one: TaskMapping, draft: Draft) -> None:
    what = f"{one.instance}: cluster={one.cluster}"
    if len(along) != len(sizes):
        raise DecompositionError(f"{what} of launches with {len(sizes)} indices", legal="as many numbers, or fewer", at=call_site())
    if draft.architecture.name != WARPGROUP_ARCHITECTURE:
        raise DecompositionError(f"{what}: blocks share loads on {WARPGROUP_ARCHITECTURE} only", got=draft.architecture, at=call_site())
    wrong = [str(size) for size, part in zip(sizes, along, strict=True) if size.factor % part]
    if wrong:
        raise DecompositionError(
            f"{what}: launches that are no whole clusters",
            got=f"{wrong[0]} along a dimension",
            legal=f"multiples of {along}",
            at=call_site(),
        )


def _block(sizes: tuple[Expr, ...], one: TaskMapping, draft: Draft) -> Var:
    """The number of a block, below how many are launched."""
    total: Expr = ONE
    for size in sizes:
        total = total * size
    number = constant(minimum(total, as_expr(one.persistent)) if one.persistent else total)
    return draft.block if number is None else Var(draft.block.name, 0, number - 1)


def _placed(counts: tuple[Expr, ...], places: tuple[Expr, ...], unit: Expr, one: TaskMapping, names: Draft | Inside) -> tuple[Expr, ...]:
    """The indices of a launch by its number, or that of its cluster, in which a block has a place."""
    walked, parts = _walked(counts, unit, one, names), _along(one, len(counts))
    named: dict[int, Expr] = {}
    for at in (*range(len(counts) - 2), *reversed(range(max(len(counts) - 2, 0), len(counts)))):  # columns before rows
        named[at] = let_of_grid(f"block_{_NAMES[at % 4]}", walked[at], counts[at], names)
    return tuple(named[at] * parts[at] + place for at, place in enumerate(places))


def _walked(counts: tuple[Expr, ...], unit: Expr, one: TaskMapping, names: Draft | Inside) -> tuple[Expr, ...]:
    """The indices of a number: its digits, the last ones fastest; the last two in bands or along a curve, if a mapping says so.

    A dimension with a single launch has no digit. Otherwise the text divides by a count that a block's number never reaches, and no check
    can read the number off its digits.
    """
    several = [at for at, count in enumerate(counts) if constant(count) != 1]
    of_matrix = [at for at in several if at >= len(counts) - 2]
    walk = _digits if len(of_matrix) < 2 or not one.group_m else functools.partial(_in_order, one=one, names=names)
    indices = dict(zip(several, walk(tuple(counts[at] for at in several), unit), strict=True))
    return tuple(indices.get(at, ZERO) for at in range(len(counts)))


def _in_order(counts: tuple[Expr, ...], unit: Expr, one: TaskMapping, names: Draft | Inside) -> tuple[Expr, ...]:
    """The indices of a number whose last two walk in bands or along a curve."""
    *outer, lines, columns = counts
    front: tuple[Expr, ...] = ()
    if outer:
        grid = lines * columns
        front, unit = _digits(tuple(outer), unit // grid), mod(unit, grid)
        unit = unit if constant(grid) is not None else names.let("block_tile", unit)
    walk = RASTER_ORDERS[one.raster](one.group_m).of_clusters(*(1, 1, *one.cluster)[-2:])
    return (*front, *walk.cell(unit, lines, columns, names))


def _digits(counts: tuple[Expr, ...], unit: Expr) -> tuple[Expr, ...]:
    indices: list[Expr] = []
    for place, count in reversed(list(enumerate(counts))):
        indices.insert(0, unit if place == 0 else mod(unit, count))
        unit = unit // count
    return tuple(indices)
