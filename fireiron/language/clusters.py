"""Distribute tiles over thread-block clusters: a cluster computes adjacent tiles, one per block.

Clusters are ordered as blocks are: row by row, rasterized, or persistent. If the number of tiles is not a multiple of the cluster size, the
last clusters extend past the end. Blocks whose tile is out of bounds load zeros and store nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs

from fireiron.errors import DecompositionError, ResourceError
from fireiron.frozen import frozen
from fireiron.ir import BlockCluster
from fireiron.ir.cluster import SM_COUNT, concurrent_blocks
from fireiron.language.dividing import Step, moved
from fireiron.language.tile_assignment import Gathered, Grouping, Selection
from fireiron.language.tree import Draft
from fireiron.spec import Spec
from fireiron.values.expr import FloorDiv, Var, as_expr, constant, minimum, mod
from fireiron.values.machine import WARPGROUP_ARCHITECTURE
from fireiron.values.tensor import Dim, View

MOST_BLOCKS = 32 * SM_COUNT
"""More blocks than can run at once. A larger number of persistent blocks means one block per tile."""


@frozen
class Clustered(Grouping):
    """Clusters of `sizes` blocks, with adjacent tiles along the last two dimensions of the result; (1, 1) has no effect."""

    sizes: tuple[int, ...]

    @property
    def stated(self) -> Mapping[str, str]:
        return {"cluster": "cluster"} if self.tiles > 1 else {}

    @property
    def tiles(self) -> int:
        return math.prod(self.sizes)

    def gathered(self, spec: Spec, views: dict[str, View], order: list[Step], selection: Selection, draft: Draft) -> Gathered:
        """Convert the digits of tile indices to digits of cluster indices; limit the grid if blocks are persistent."""
        sizes, dims = self.sizes, spec.tile_dims[-2:]
        if self.tiles == 1:
            return super().gathered(spec, views, order, selection, draft)
        self._require(spec, order, selection, draft)
        along = [(dim, size) for dim, size in zip(dims, sizes, strict=True) if size > 1]
        digits = {dim: next((digit for digit in order if digit.dim == dim), None) or _only_tile(spec, views, dim) for dim in dims}
        shared = [_of_clusters(digit, dict(along).get(digit.dim, 1)) for digit in order]
        block = _block(shared, self.tiles, selection.most, draft)
        places, before = [], 1
        for dim, size in along:
            place = draft.let(f"rank_{spec.labels[spec.dims.index(dim)]}", mod(block // before, as_expr(size)))
            assert isinstance(place, Var), place
            views = _overhanging(spec, views, digits[dim], size)
            views = moved(views, spec, attrs.evolve(digits[dim], size=as_expr(size)), place, unit=True)
            places.append(place)
            before *= size
        # A dimension with one cluster has no digit in the cluster index.
        digits_of_clusters = [digit for digit in shared if constant(digit.size) != 1]
        lines, columns = (dict(along).get(digits_of_clusters[at].dim, 1) if digits_of_clusters else 1 for at in (-1, 0))
        return Gathered(views, digits_of_clusters, BlockCluster(tuple(size for _, size in along), tuple(places)), lines, columns)

    def _require(self, spec: Spec, order: list[Step], selection: Selection, draft: Draft) -> None:
        label, dims = f"cluster({', '.join(map(str, self.sizes))})", spec.tile_dims[-2:]
        if draft.architecture.name != WARPGROUP_ARCHITECTURE:
            raise DecompositionError(
                f"{label}: clusters require {WARPGROUP_ARCHITECTURE}",
                got=draft.architecture,
                hint=f"compile for {WARPGROUP_ARCHITECTURE}, or remove cluster",
            )
        if 0 < selection.most < self.tiles:
            require_whole_clusters(selection.most, self.tiles)
        if len(dims) < 2 or any(sum(digit.dim == dim for digit in order) > 1 for dim in dims):
            raise DecompositionError(
                f"{label}: the tiles have the dimensions {', '.join(digit.dim for digit in order) or 'none'}",
                within=spec,
                legal="tiles along two dimensions, tile(rows, columns)",
            )


def _block(order: Sequence[Step], each: int, persistent: int, draft: Draft) -> Var:
    """Return the variable of the block index, with its range: `each` blocks per cluster, at most `persistent` blocks unless 0."""
    blocks = as_expr(each)
    for _, tiles in draft.whole.outer:
        blocks = blocks * tiles
    for digit in order:
        blocks = blocks * digit.size
    # `require_whole_clusters` refuses fewer blocks than one cluster.
    number = constant(minimum(blocks, as_expr(max(persistent, each))) if persistent else blocks)
    return draft.block if number is None else Var(draft.block.name, 0, number - 1)


def _only_tile(spec: Spec, views: dict[str, View], dim: str) -> Step:
    """Return the digit of a dimension with one tile; the other tiles of a cluster along it are out of bounds."""
    strides = {name: view.dims[spec.uses[name].index(dim)].size for name, view in views.items() if dim in spec.uses[name]}
    return Step(dim, as_expr(1), strides)


def _of_clusters(digit: Step, size: int) -> Step:
    if size == 1:
        return digit
    strides = {name: stride * size for name, stride in digit.strides.items()}
    whole = digit.size
    if isinstance(whole, FloorDiv):  # a ceiling division: divide by the elements of a cluster instead of a tile
        return Step(digit.dim, (whole.left + whole.right * (size - 1)) // (whole.right * size), strides)
    return Step(digit.dim, (whole + (size - 1)) // size, strides)


def _overhanging(spec: Spec, views: dict[str, View], digit: Step, size: int) -> dict[str, View]:
    """Return the views, with a bound along a dimension whose tile count is not a multiple of the cluster size."""
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
    """Refuse a number of persistent blocks that is not a multiple of the cluster size, or is more clusters than run at once."""
    each = -(-blocks // SM_COUNT)
    fitting = concurrent_blocks(size)
    most = fitting * each if blocks <= MOST_BLOCKS else blocks // size * size
    if blocks % size or blocks > most:
        reason = f"not a multiple of {size}" if blocks % size else f"{blocks // size} clusters, of which {most // size} run at once"
        legal = {max(min(blocks, most) // size, 1) * size, *((fitting, fitting * each) if blocks <= MOST_BLOCKS else ())}
        raise ResourceError(
            f"persistent({blocks}) in clusters of {size} blocks: {blocks} blocks are {reason}",
            legal=sorted(legal),
            hint="blocks of a cluster that does not fit start after all others end",
        )
