"""How tiles are dealt to the blocks of clusters: a cluster takes neighbouring tiles, and each of its blocks one of them.

Tiles are dealt in clusters as they are to blocks otherwise: in rows, in bands, or in turns to clusters that stay. Where they are no
multiple of a cluster's, the last clusters overhang, and the tiles of some of their blocks lie outside: those load zeros, and store nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from fireiron.errors import DecompositionError, ResourceError
from fireiron.ir import BlockCluster
from fireiron.ir.cluster import MULTIPROCESSORS, at_once
from fireiron.language.dividing import Step, moved
from fireiron.language.tree import Draft
from fireiron.spec import Spec
from fireiron.values.expr import FloorDiv, Var, as_expr, constant, minimum, mod
from fireiron.values.machine import WARPGROUP_ARCHITECTURE
from fireiron.values.tensor import Dim, View

MOST_BLOCKS = 32 * MULTIPROCESSORS
"""More blocks than this never run at once: whoever asks for so many means a block for each tile."""


@attrs.frozen
class Gathered:
    """Views at a block's tile in its cluster, the digits that number clusters, and the cluster."""

    views: dict[str, View]
    order: list[Step]
    cluster: BlockCluster


def gathered(spec: Spec, views: dict[str, View], order: list[Step], sizes: tuple[int, ...], persistent: int, draft: Draft) -> Gathered:
    """Digits of tiles as digits of clusters, each of so many tiles along the result's dimensions; at most so many blocks, if they stay."""
    if draft.architecture.name != WARPGROUP_ARCHITECTURE:
        raise DecompositionError(
            f"cluster({', '.join(map(str, sizes))}): blocks share loads on {WARPGROUP_ARCHITECTURE} only", got=draft.architecture
        )
    if 0 < persistent < math.prod(sizes):
        require_whole_clusters(persistent, math.prod(sizes))
    dims = spec.tile_dims[-2:]
    if len(dims) < 2 or any(sum(digit.dim == dim for digit in order) > 1 for dim in dims):
        raise DecompositionError(
            f"cluster({', '.join(map(str, sizes))}): tiles are numbered by {', '.join(digit.dim for digit in order) or 'nothing'}",
            within=spec,
            legal="neighbours along two dimensions, tile(rows, columns)",
        )
    along = [(dim, size) for dim, size in zip(dims, sizes, strict=True) if size > 1]
    digits = {dim: next((one for one in order if one.dim == dim), None) or _only_tile(spec, views, dim) for dim in dims}
    shared = [_of_clusters(one, dict(along).get(one.dim, 1)) for one in order]
    block = _block(shared, math.prod(sizes), persistent, draft)
    places, before = [], 1
    for dim, size in along:
        place = draft.let(f"rank_{spec.labels[spec.dims.index(dim)]}", mod(block // before, as_expr(size)))
        assert isinstance(place, Var), place
        views = _overhanging(spec, views, digits[dim], size)
        views = moved(views, spec, attrs.evolve(digits[dim], size=as_expr(size)), place, unit=True)
        places.append(place)
        before *= size
    # One cluster along a dimension is no digit of their numbers, as one tile is none of those of blocks.
    several = [digit for digit in shared if constant(digit.size) != 1]
    return Gathered(views, several, BlockCluster(tuple(size for _, size in along), tuple(places)))


def _block(order: Sequence[Step], each: int, persistent: int, draft: Draft) -> Var:
    """The number of a block: of so many in each cluster, for each tile of the steps before, or at most so many that stay."""
    blocks = as_expr(each)
    for _, tiles in draft.whole.outer:
        blocks = blocks * tiles
    for digit in order:
        blocks = blocks * digit.size
    # Fewer than one cluster are refused where tiles are dealt (`require_whole_clusters`).
    number = constant(minimum(blocks, as_expr(max(persistent, each))) if persistent else blocks)
    return draft.block if number is None else Var(draft.block.name, 0, number - 1)


def _only_tile(spec: Spec, views: dict[str, View], dim: str) -> Step:
    """The digit of a dimension that one tile covers: others of a cluster lie outside."""
    strides = {name: view.dims[spec.uses[name].index(dim)].size for name, view in views.items() if dim in spec.uses[name]}
    return Step(dim, as_expr(1), strides)


def _of_clusters(digit: Step, size: int) -> Step:
    if size == 1:
        return digit
    strides = {name: stride * size for name, stride in digit.strides.items()}
    whole = digit.size
    if isinstance(whole, FloorDiv):  # tiles of so many elements: clusters of so many times as many
        return Step(digit.dim, (whole.left + whole.right * (size - 1)) // (whole.right * size), strides)
    return Step(digit.dim, (whole + (size - 1)) // size, strides)


def _overhanging(spec: Spec, views: dict[str, View], digit: Step, size: int) -> dict[str, View]:
    """The views with a bound along a dimension whose tiles clusters do not divide."""
    if digit.size.factor % size == 0:
        return views
    result = {}
    for name, view in views.items():
        if digit.dim in spec.uses[name]:
            position = spec.uses[name].index(digit.dim)
            dim = view.dims[position]
            bound = view.extent(position) if dim.bound is None else dim.bound
            view = view.with_dims({position: Dim(dim.modes, bound, dim.fixed)})
        result[name] = view
    return result


def require_whole_clusters(blocks: int, size: int) -> None:
    """Refuse a number of blocks that stay which is not one of whole clusters of a size, or more of these than run at once."""
    each = -(-blocks // MULTIPROCESSORS)
    fitting = at_once(size)
    most = fitting * each if blocks <= MOST_BLOCKS else blocks // size * size
    if blocks % size or blocks > most:
        reason = f"no multiple of {size}" if blocks % size else f"{blocks // size} clusters, of which {most // size} run at once"
        legal = {max(min(blocks, most) // size, 1) * size, *((fitting, fitting * each) if blocks <= MOST_BLOCKS else ())}
        raise ResourceError(
            f"persistent({blocks}) in clusters of {size} blocks: {blocks} blocks are {reason}",
            legal=sorted(legal),
            hint="a block that waits for its cluster to fit runs behind all others",
        )


def rows_of_clusters(bands: int, spec: Spec, order: Sequence[Step], sizes: tuple[int, ...]) -> int:
    """Rows of clusters in a band of so many rows of tiles."""
    along = dict(zip(spec.tile_dims[-2:], sizes, strict=True))
    return max(bands // along.get(order[-1].dim, 1), 1) if bands and order else bands
