"""How tiles are dealt to the blocks of clusters: a cluster takes neighbouring tiles, and each of its blocks one of them.

Tiles are dealt in clusters as they are to blocks otherwise: in rows, in bands, or in turns to clusters that stay. Where they are no
multiple of a cluster's, the last clusters overhang, and the tiles of some of their blocks lie outside: those load zeros, and store nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import attrs

from fireiron.errors import DecompositionError, ResourceError
from fireiron.ir import BlockCluster
from fireiron.ir.cluster import MULTIPROCESSORS, at_once
from fireiron.language.dealing import Gathered, Grouping, Taking
from fireiron.language.dividing import Step, moved
from fireiron.language.tree import Draft
from fireiron.spec import Spec
from fireiron.values.expr import FloorDiv, Var, as_expr, constant, minimum, mod
from fireiron.values.machine import WARPGROUP_ARCHITECTURE
from fireiron.values.tensor import Dim, View

MOST_BLOCKS = 32 * MULTIPROCESSORS
"""More blocks than can ever run at once: a larger number means one block per tile."""


@attrs.frozen
class Clustered(Grouping):
    """Blocks of so many neighbouring tiles along the result's last two dimensions run at the same time; 1 along both is as none."""

    sizes: tuple[int, ...]

    @property
    def said(self) -> Mapping[str, str]:
        return {"cluster": "cluster"} if self.tiles > 1 else {}

    @property
    def tiles(self) -> int:
        return math.prod(self.sizes)

    def gathered(self, spec: Spec, views: dict[str, View], order: list[Step], taking: Taking, draft: Draft) -> Gathered:
        """Digits of tiles as digits of clusters; at most so many blocks, if they stay."""
        sizes, dims = self.sizes, spec.tile_dims[-2:]
        if self.tiles == 1:
            return super().gathered(spec, views, order, taking, draft)
        self._require(spec, order, taking, draft)
        along = [(dim, size) for dim, size in zip(dims, sizes, strict=True) if size > 1]
        digits = {dim: next((one for one in order if one.dim == dim), None) or _only_tile(spec, views, dim) for dim in dims}
        shared = [_of_clusters(one, dict(along).get(one.dim, 1)) for one in order]
        block = _block(shared, self.tiles, taking.most, draft)
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
        lines, columns = (dict(along).get(several[at].dim, 1) if several else 1 for at in (-1, 0))
        return Gathered(views, several, BlockCluster(tuple(size for _, size in along), tuple(places)), lines, columns)

    def _require(self, spec: Spec, order: list[Step], taking: Taking, draft: Draft) -> None:
        what, dims = f"cluster({', '.join(map(str, self.sizes))})", spec.tile_dims[-2:]
        if draft.architecture.name != WARPGROUP_ARCHITECTURE:
            raise DecompositionError(f"{what}: blocks share loads on {WARPGROUP_ARCHITECTURE} only", got=draft.architecture)
        if 0 < taking.most < self.tiles:
            require_whole_clusters(taking.most, self.tiles)
        if len(dims) < 2 or any(sum(digit.dim == dim for digit in order) > 1 for dim in dims):
            raise DecompositionError(
                f"{what}: tiles are numbered by {', '.join(digit.dim for digit in order) or 'nothing'}",
                within=spec,
                legal="neighbours along two dimensions, tile(rows, columns)",
            )


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
