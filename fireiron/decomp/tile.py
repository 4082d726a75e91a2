"""`tile`: divide the output into tiles, with the matching parts of the inputs (Fireiron, section 3.3; strided tiles: Listing 4)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.frozen import evolve, frozen
from fireiron.ir import Comment, For, Hole, Let, effect
from fireiron.ir.effect import Effect, Effects
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.joint_tiles import Combination, JointTiles
from fireiron.language.dividing import Extent, Step, divide, loop_over, moved, product, shares_of_digits
from fireiron.language.launching import Given, Launches
from fireiron.language.node_parts import gpus_of, part_of_gpu
from fireiron.language.substrategy import divisors, fits
from fireiron.language.tile_assignment import PLAIN, Grouping, Place, Selection, TileAssignment
from fireiron.language.to_blocks import defer_to_next_tile, distribute_to_blocks
from fireiron.language.tree import Child, Context, Decomposition, Draft, Expansion, verb
from fireiron.language.tunable import (
    Integer,
    TileSize,
    by_dimension,
    checked_tile_size,
    chosen,
    chosen_tile_size,
    count,
    integral,
    tile_size,
)
from fireiron.spec import Spec
from fireiron.specs.fused import fused
from fireiron.stepping.look_back import dims_of_scans
from fireiron.values.expr import ONE, TRUE, Expr, Var, all_of, as_expr, constant, less, mod
from fireiron.values.machine import GPU, Block, Level, Thread, Warp
from fireiron.values.tensor import MatrixLayout, RowMajor, View
from fireiron.values.units import check_below, count_in, same_threads, threads_for, unit_in


@attrs.frozen(init=False, repr=False)
class Strided:
    """A tile of repeated chunks: per dimension `(chunk, repeat)`, that is `chunk` contiguous elements every `repeat` elements.

    `Strided((4, 32), (4, 16))` of a 64 x 32 warp tile assigns to each of 8 x 4 lanes four groups of 4 x 4 elements.

    >>> from fireiron import *
    >>> warp = MatMul(64, 32, 8)(GL, GL, GL)(Kernel).tile(64, 32).to(Block).tile(64, 32).to(Warp)
    >>> print(warp.tile(Strided((4, 32), (4, 16))).to(Lane).result)
    MatMul(8,8,8)(GL,GL,GL)(Lane)
    """

    dims: tuple[tuple[Any, Any], ...]

    def __init__(self, *dims: tuple[Integer, Integer]) -> None:
        if not dims or any(not isinstance(pair, tuple) or len(pair) != 2 for pair in dims):
            raise DecompositionError(
                "Strided: each dimension must be a pair (chunk, repeat)", got=dims, legal="Strided((4, 32), (4, 16))", at=call_site()
            )
        pairs = tuple((integral(chunk, "Strided chunk"), integral(repeat, "Strided repeat")) for chunk, repeat in dims)
        for chunk, repeat in pairs:
            if isinstance(count(chunk, "Strided chunk"), int) and isinstance(count(repeat, "Strided repeat"), int) and repeat % chunk:
                raise DecompositionError(f"Strided{(chunk, repeat)}: the repeat is not a multiple of the chunk", at=call_site())
        self.__attrs_init__(pairs)

    def resolved(self, resolve: Callable[[Any], Any]) -> Strided:
        """Return a copy with values for the tunables."""
        dims = resolve(self.dims)
        if dims is self.dims:
            return self
        changed = Strided.__new__(Strided)
        changed.__attrs_init__(dims)  # not checked here, see `tunable.resolve`
        return changed

    def __repr__(self) -> str:
        return f"Strided({', '.join(map(repr, self.dims))})"


DEPENDENT_LAUNCH = 90
"""Minimum compute capability for programmatic dependent launch."""


@frozen
class TilePlan:
    """How tiles are executed: distributed over units of `level` in `order` (blocks: as `assignment` specifies), or in loops."""

    level: Level | None = None
    unroll: bool = False
    order: MatrixLayout | tuple[int, ...] = RowMajor
    assignment: TileAssignment = PLAIN
    effects: Effects = effect.NONE

    @property
    def refines_blocks(self) -> bool:
        """Whether the plan has refinements that only tiles distributed over blocks can have."""
        return self.assignment.of_blocks or bool(self.effects)

    @property
    def dependent_launch(self) -> DependentLaunch:
        """Programmatic dependent launch: whether the kernel uses it, and which operands it may read before the wait."""
        return self.effects[DependentLaunch]

    def with_effect(self, kernel_effect: Effect) -> TilePlan:
        """Return the plan with one more effect on the whole kernel."""
        return evolve(self, effects=self.effects.adding(kernel_effect))

    def with_order(self, place: Place) -> TilePlan:
        """Return the plan with an order of the tiles."""
        return evolve(self, assignment=self.assignment.with_order(place))

    def with_grouping(self, grouping: Grouping) -> TilePlan:
        """Return the plan with clusters of adjacent blocks."""
        return evolve(self, assignment=evolve(self.assignment, grouping=grouping))

    def with_selection(self, selection: Selection) -> TilePlan:
        """Return the plan with another way in which blocks obtain tiles. The number of consumer groups does not change."""
        groups = self.assignment.selection.groups
        return evolve(self, assignment=evolve(self.assignment, selection=evolve(selection, groups=groups)))

    def with_groups(self, groups: int) -> TilePlan:
        """Return the plan with a number of consumer groups, which alternate between the tiles of a block."""
        return evolve(self, assignment=evolve(self.assignment, selection=evolve(self.assignment.selection, groups=groups)))


def _sizes(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or (len(value) > 1 and any(isinstance(size, Strided) for size in value)):
        raise DecompositionError(
            "tile: sizes must be integers or layouts, or one Strided(...)", got=value, legal="tile(64, 32)", at=call_site()
        )
    return tuple(size if isinstance(size, Strided) else tile_size(size, "tile") for size in value)


def _by_dim(value: Any) -> tuple[tuple[str, Any], ...]:
    return by_dimension(value, "tile")


@frozen
class Tile(Decomposition):
    """Tiles of `sizes` elements, or of layouts, by dimension name; see the verb `tile`."""

    verb: ClassVar[str] = "tile"
    sizes: tuple[Any, ...] = attrs.field(default=(), converter=_sizes)
    by_dim: tuple[tuple[str, Any], ...] = attrs.field(default=(), converter=_by_dim)

    @staticmethod
    def of(sizes: tuple[Any, ...], by_dim: Mapping[str, Any]) -> Tile:
        """Return the step for the arguments of the verb. Raises: DecompositionError if no size is given."""
        if len(sizes) == 1 and isinstance(sizes[0], Strided):
            return Tile(sizes)
        if not sizes and not by_dim:
            raise DecompositionError("tile(): no size given", hint="tile(rows, columns)", at=call_site())
        for size in (*sizes, *by_dim.values()):
            if isinstance(size, Strided):
                fix = "tile(Strided(...)), or n=Layout((2, 2), (1, 64)): 2 adjacent elements, and 2 more after 64"
                raise DecompositionError("tile: a Strided tile has all dimensions", got=size, hint=fix, at=call_site())
            checked_tile_size(size, "tile")
        return Tile(tuple(sizes), tuple(by_dim.items()))

    def label(self) -> str:
        arguments = [repr(size) for size in self.sizes] + [f"{dim}={size!r}" for dim, size in self.by_dim]
        return f"tile({', '.join(arguments)})" + "".join(f".{refinement.label()}" for refinement in self.refinements)

    def extents(self, spec: Spec) -> dict[str, Extent]:
        """Return the sizes of a tile by dimension, in elements. Raises: DecompositionError for a dimension that cannot be tiled."""
        sizes: list[Extent]
        if len(self.sizes) == 1 and isinstance(self.sizes[0], Strided):
            sizes = [(chosen(chunk, "Strided chunk"), chosen(repeat, "Strided repeat")) for chunk, repeat in self.sizes[0].dims]
        else:
            sizes = [chosen_tile_size(size, "tile") for size in self.sizes]
        if len(sizes) > len(spec.tile_dims):
            raise _too_many(spec, sizes)
        named = dict(zip(_by_position(spec, len(sizes)), sizes, strict=False))
        scanned = dims_of_scans(spec) if self.planned(TilePlan()).effects[JointTiles].combination is Combination.LOOK_BACK else ()
        for dim, size in self.by_dim:
            if dim not in spec.dims or dim in named:
                raise DecompositionError(f"tile({dim}={size}): {dim} is not a dimension, or is given twice", legal=spec.dims)
            tile = chosen_tile_size(size, f"tile({dim}=...)")
            if dim in spec.tile_dims or (dim in scanned and not _is_whole(spec, dim, tile)):
                named[dim] = tile
            elif not _is_whole(spec, dim, tile):
                raise DecompositionError(
                    f"tile({dim}={size}): {dim} is a reduction dimension", legal=_whole_tile(spec, dim), hint=_alternative(spec, dim, size)
                )
        if spec.tile_dims and not (named or self.by_dim):
            raise DecompositionError("tile(): no size given", hint="tile(rows, columns)")
        return named

    @property
    def makes_launches(self) -> bool:  # type: ignore[override]
        """Whether the tiles are distributed over the GPUs of a node, each of which has separate launches."""
        return any(getattr(refinement, "level", None) == GPU for refinement in self.refinements)

    def launches(self, spec: Spec, given: Given) -> Launches:
        """Return the spec of the launch on each GPU, which computes one tile."""
        gpus, sizes = gpus_of(spec, self.summary()), self.extents(spec)
        divided = [dim for dim, size in sizes.items() if not _is_whole(spec, dim, size)]
        legal = [f"tile({dim}={constant(spec.size(dim) // gpus)})" for dim in spec.tile_dims if spec.size(dim).factor % gpus == 0]
        if len(divided) != 1 or as_expr(gpus) * sizes[divided[0]] != spec.size(divided[0]):
            raise DecompositionError(
                f"{self.summary()}: each of the {gpus} GPUs computes one tile, which divides one dimension equally", within=spec,
                got=", ".join(f"{dim}={size} of {spec.size(dim)}" for dim, size in sizes.items()), legal=legal or "none",
                hint='to_gpus("n") for any size',
            )  # fmt: skip
        return Launches((), part_of_gpu(spec, divided[0], self.summary()))

    def threads(self, spec: Spec, context: Context) -> int | None:
        level: Level | None = self.planned(TilePlan()).level
        if level is None or level.threads is None or spec.level != Block:
            return None
        _, digits = divide(spec, self.extents(spec), self.label())
        total = product(digits)
        if total is None:
            return None
        return threads_for(total, level)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        plan, extents = self.planned(TilePlan()), self.extents(spec)
        try:
            views, digits = divide(spec, extents, self.label())
        except DecompositionError as error:
            error.hint = error.hint or _tile_of_warp(spec, extents)
            raise
        if plan.level is None:
            if plan.assignment.renumberings or plan.refines_blocks or plan.order != RowMajor:
                raise DecompositionError(
                    "layout, swizzle and rasterize order tiles that are distributed over units",
                    hint="add .to(level), or remove these refinements",
                )
            return _looped(spec, views, digits, plan, context.draft())
        check_below(plan.level, spec.level, spec, context.origin)
        if plan.dependent_launch.enabled and context.architecture.capability < DEPENDENT_LAUNCH:
            raise DecompositionError(
                f"programmatic_launch: {context.architecture.name} cannot start a kernel before the end of the previous one",
                got=context.architecture.name,
                legal="sm_90 or newer",
                hint="remove .programmatic_launch()",
            )
        _check_no_wait(plan.dependent_launch.no_wait, spec)
        return _distributed(spec, views, digits, plan, context.draft())

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[Tile]:
        options = [_dividing(spec, dim) for dim in spec.tile_dims]
        yield from (Tile(sizes) for sizes in itertools.product(*options))


def _tile_of_warp(spec: Spec, extents: Mapping[str, Extent]) -> str | None:
    """Return advice if tiles for tensor cores do not divide the tile of a warp: the next larger tile of a warp that they divide."""
    sizes = [(constant(spec.size(dim)), extents.get(dim)) for dim in spec.tile_dims]
    if not spec.multiplies or not same_threads(spec.level, Warp):
        return None
    larger = [str(-(-size // tile) * tile) for size, tile in sizes if size is not None and isinstance(tile, int)]
    return f"a tile of the warp that they divide: tile({', '.join(larger)}).to(Warp)" if len(larger) == len(sizes) else None


def _too_many(spec: Spec, sizes: Sequence[Extent]) -> DecompositionError:
    """Return the error for too many sizes, for example if an epilogue reduces a dimension of the matmul."""
    definition = fused(spec)
    dims = definition.product.formula.target.dims if definition is not None and definition.product is not None else ()
    reduced = [dim for dim in dims if dim not in spec.tile_dims]
    what = f"tile takes at most {len(spec.tile_dims)} sizes for {spec.title}: {', '.join(spec.tile_dims) or 'none'}"
    if definition is None or not reduced:
        summed = [dim for dim in spec.dims if dim not in spec.tile_dims]
        number = len(sizes) - len(spec.tile_dims)
        splits = [f"split({dim}={size})" for dim, size in zip(summed, sizes[-number:], strict=False)]
        return DecompositionError(what, hint=f"{', '.join(splits)} after it loops over {', '.join(summed)}" if splits else None)
    steps = ", ".join(str(step) for step in definition.steps if set(reduced) & set(step.formula.over) and not step.formula.contracts)
    tiles = ", ".join(f"{dim}={spec.size(dim) if dim in reduced else size}" for dim, size in zip(dims, sizes, strict=False))
    return DecompositionError(
        what, got=f"{len(sizes)} sizes, and {', '.join(reduced)} is reduced: {steps}", legal=f"tile({tiles}) of a separate strategy",
        hint="write += instead of =, if several blocks may add to the sum; otherwise use tiles that contain the whole dimension",
    )  # fmt: skip


def _is_whole(spec: Spec, dim: str, tile: Extent) -> bool:
    """Whether a tile contains a whole dimension, so that nothing is divided."""
    total = constant(spec.size(dim))
    return isinstance(tile, int) and total is not None and tile >= total


def _whole_tile(spec: Spec, dim: str) -> str | None:
    """Return the only legal tile of a reduction dimension: the whole dimension."""
    total = constant(spec.size(dim))
    return None if total is None else f"tile({dim}={total}), the whole dimension"


def _alternative(spec: Spec, dim: str, size: object) -> str:
    """Return the step that divides a reduction dimension: a loop, or, in a definition, the strategy of a step that reduces it."""
    definition = fused(spec)
    if definition is None or dim in definition.loops:
        return f"split({dim}={size})"
    scanned = next((step.name for step in definition.steps if dim in step.formula.along), None)
    if scanned is not None:
        return f"tile({dim}={size}).to(Block).look_back(), or split({dim}={size}) with {dim} in loop="
    steps = [step.name for step in definition.steps if dim in step.formula.over]
    return (
        f"divide {dim} in the strategy of step {steps[0]}, which reduces it; each block needs all of {dim}"
        if steps
        else f"split({dim}={size})"
    )


def _by_position(spec: Spec, count: int) -> tuple[str, ...]:
    """Return the dimensions to which `count` sizes apply: those of the result, or its rows and columns if the others have size one."""
    dims = spec.tile_dims
    unit_dims = [dim for dim in dims if spec.size(dim) == ONE][: max(len(dims) - 2, 0)] if count < len(dims) else []
    matrix = tuple(dim for dim in dims if dim not in unit_dims)
    return matrix if count <= len(matrix) else dims


def _dividing(spec: Spec, dim: str) -> list[int]:
    """Return the tile sizes that divide a dimension of all operands; none if its size is known only at run time."""
    total = constant(spec.size(dim))
    return [] if total is None else [size for size in divisors(total) if fits(spec, dim, size)]


# ---------------------------------------------------------------------------------------------- loops


def _looped(spec: Spec, views: dict[str, View], digits: list[Step], plan: TilePlan, draft: Draft) -> Expansion:
    views, program, _ = loop_over(spec, views, digits, plan.unroll, draft, (Hole("body"),))
    return draft.expansion((Child("body", spec.with_operands(**views)),), program)


# ---------------------------------------------------------------------------------------------- distribution


@frozen
class _Distribution:
    """The numbers of tiles and of units, the index of the executing unit, and the condition that excludes spare threads."""

    tiles: int
    units: int
    unit: Expr
    spare: Expr | None


def _distributed(spec: Spec, views: dict[str, View], digits: list[Step], plan: TilePlan, draft: Draft) -> Expansion:
    """Distribute tiles over the units of a level: unit `u` computes tile `permutation(u)`, and more tiles if there are too few units."""
    order = _digit_order(spec, digits, plan.order)
    if plan.level == Block:
        return _distributed_over_blocks(spec, views, order, plan, draft)
    distribution = _distribution(order, spec.level, plan, draft)
    if distribution.tiles <= distribution.units:
        return _distributed_evenly(spec, views, [(digit, digit.size) for digit in order], [], distribution, plan, draft)
    shares = shares_of_digits(order, distribution.units)
    if shares is None:
        register_iterations = _register_iterations(spec, order, distribution.units)
        if register_iterations is not None:
            return _distributed_in_register_iterations(spec, views, *register_iterations, distribution, plan, draft)
        return _distributed_with_guard(spec, views, order, distribution, plan, draft)
    return _distributed_evenly(spec, views, *shares, distribution, plan, draft)


def _distribution(order: list[Step], parent: Level, plan: TilePlan, draft: Draft) -> _Distribution:
    """Return the number of tiles and the units that compute them. Both must be known at compile time."""
    level = plan.level
    assert level is not None
    if plan.refines_blocks:
        raise DecompositionError(
            f"these tiles are distributed over {level}; rasterize, cluster, min_blocks_per_sm, max_shared_bytes, persistent, pingpong and "
            "programmatic_launch apply to blocks",
            legal="tile(...).to(Block)",
        )
    total = product(order)
    if total is None:
        raise DecompositionError(
            f"to({level}): the number of tiles is known only at run time", hint="distribute tiles of symbolic sizes over Block first"
        )
    # If the number of threads per block is not known yet, these tiles determine it: one unit per tile.
    units = draft.units(level, parent) if draft.workers is not None or parent.threads is not None else total
    if units == 0:
        raise _no_whole_unit(level, parent, draft)
    unit = draft.unit(level, parent)
    spare = _spare_threads(level, parent, units, draft)
    for renumbering in plan.assignment.renumberings:
        unit = renumbering.of_units(unit, units, level)
    return _Distribution(total, units, unit, spare)


def _no_whole_unit(level: Level, parent: Level, draft: Draft) -> DecompositionError:
    """Return the error for a block without a complete unit: it has too few threads, or units interleave with others."""
    least = next(threads for threads in range(1, threads_for(1, level) + 1) if count_in(level, Block, threads))
    return DecompositionError(
        f"to({level}): a {parent} of {draft.workers} threads has no complete {level}: the first has {level.threads} of 0 to {least - 1}",
        got=f"{draft.workers} threads, to which the compute step assigns its tiles",
        legal=f"at least {least} threads",
        hint=f"smaller tiles in the compute step, so that it has more threads; or to({Thread}) here",
    )


def _distributed_evenly(
    spec: Spec,
    views: dict[str, View],
    digits_of_units: list[tuple[Step, Expr]],
    rest: list[Step],
    distribution: _Distribution,
    plan: TilePlan,
    draft: Draft,
) -> Expansion:
    """Assign one tile to each unit, or the same number of iterations to each; surplus units are idle."""
    assert plan.level is not None
    unit = distribution.unit
    active = less(unit, as_expr(distribution.tiles)) if distribution.tiles < distribution.units else TRUE
    active = all_of((active,) if distribution.spare is None else (distribution.spare, active))
    if distribution.tiles < distribution.units or distribution.spare is not None:
        # If `active` holds, the number is less than the number of tiles. The variable states that range, so addresses need no modulo.
        unit = draft.let(draft.prefix + _tile_name(plan.level), unit, high=min(distribution.tiles, distribution.units) - 1)
    views = _take_unit_digits(spec, views, [digit for digit, _ in digits_of_units], unit, plan.level, draft)
    views, program, _ = loop_over(spec, views, rest[::-1], plan.unroll, draft, (Hole("body"),))
    child = spec.at_level(plan.level, **views)
    note = (Comment(str(child)),) if child.dims != child.tile_dims else ()
    return draft.expansion((Child("body", child, active=active),), (*note, *program))


def _tile_name(level: Level) -> str:
    return f"{level.label}_tile"


def _spare_threads(level: Level, parent: Level, units: int, draft: Draft) -> Expr | None:
    """Return the condition that excludes threads that belong to no complete unit of a block; None if all belong to one."""
    if parent != Block or draft.workers is None or level.threads is None or units * level.threads == draft.workers:
        return None
    return less(unit_in(level, parent, draft.thread), as_expr(units))


def _digit_order(spec: Spec, digits: list[Step], order: MatrixLayout | tuple[int, ...]) -> list[Step]:
    """Return the digits, fastest first: from the last dimension for row-major order, from the first for column-major, or by position."""
    if isinstance(order, MatrixLayout):
        dims = spec.dims if order.order == "col" else spec.dims[::-1]
    elif len(order) == len(spec.tile_dims):
        dims = tuple(spec.tile_dims[position] for position in order)
    else:
        raise DecompositionError(f"layout({order}): {spec.title} has {len(spec.tile_dims)} dimensions", legal=spec.tile_dims)
    return [digit for dim in dims for digit in reversed(digits) if digit.dim == dim]


def _take_unit_digits(spec: Spec, views: dict[str, View], digits: list[Step], unit: Expr, level: Level, draft: Draft) -> dict[str, View]:
    """Return the views moved to the tile of a unit. `digits` are fastest first; the last digit is the remaining quotient."""
    left = unit
    for position, digit in enumerate(digits):
        last = position == len(digits) - 1
        index = left if last and constant(digit.size) is None else mod(left, digit.size)
        label = spec.labels[spec.dims.index(digit.dim)]
        index = draft.let(f"{draft.prefix}{level.label}_{label}", index)
        views = moved(views, spec, digit, index, unit=True)
        left = left // digit.size
    return views


def _distributed_over_blocks(spec: Spec, views: dict[str, View], order: list[Step], plan: TilePlan, draft: Draft) -> Expansion:
    if draft.whole.grid is not None:
        raise DecompositionError("tiles are distributed over Block twice", hint="use .to(Block) once in a strategy")
    if not any(_is_for_blocks(step) for step in draft.later_steps):
        return distribute_to_blocks(spec, views, order, plan.assignment, plan.effects, draft)
    if plan.assignment.renumberings or plan.refines_blocks:
        raise DecompositionError(
            "swizzle, rasterize, cluster, min_blocks_per_sm, max_shared_bytes, persistent and programmatic_launch apply to all blocks, "
            "and later tiles are distributed over Block, too",
            hint="refine the last tile(...).to(Block)",
        )
    return defer_to_next_tile(spec, views, order, draft)


def _check_no_wait(names: tuple[str, ...], spec: Spec) -> None:
    """Refuse names in `no_wait` that are not inputs in global memory."""
    inputs = [name for name, view in spec.operands.items() if name not in spec.outputs and view.memory.of_grid]
    for name in names:
        if name not in inputs:
            raise DecompositionError(
                f"programmatic_launch(no_wait={name}): {name} is not an input in global memory", within=spec, legal=inputs
            )


def _is_for_blocks(step: Decomposition) -> bool:
    return isinstance(step, Tile) and step.planned(TilePlan()).level == Block


def _register_iterations(spec: Spec, order: list[Step], units: int) -> tuple[list[Step], Step, int] | None:
    """Split register tiles that the units do not divide evenly, if only the slowest digit is uneven; None otherwise.

    Return the digits that units take whole, the slowest digit, and the number of its values per iteration. The elements of a thread are
    then at equal distances, so its registers can hold all of them.
    """
    private = [name for name, view in spec.operands.items() if view.memory.private]
    *faster, last = [digit for digit in order if constant(digit.size) != 1]
    whole_digits = product(faster)
    if not private or whole_digits is None or units % whole_digits or units == whole_digits:
        return None
    along = [spec.operands[name].dims[spec.uses[name].index(last.dim)] for name in private if last.dim in spec.uses[name]]
    return (faster, last, units // whole_digits) if all(dim.whole for dim in along) else None


def _distributed_in_register_iterations(
    spec: Spec,
    views: dict[str, View],
    faster: list[Step],
    last: Step,
    at_once: int,
    distribution: _Distribution,
    plan: TilePlan,
    draft: Draft,
) -> Expansion:
    """Distribute register tiles that units do not divide evenly: a loop over tiles at equal distances, with a guarded last iteration."""
    assert plan.level is not None
    size = constant(last.size)
    assert size is not None
    now = evolve(last, size=as_expr(at_once))
    views = _take_unit_digits(spec, views, [*faster, now], distribution.unit, plan.level, draft)
    label = spec.labels[spec.dims.index(last.dim)]
    iteration = Var(draft.fresh(label), 0, -(-size // at_once) - 1)
    later = Step(last.dim, as_expr(iteration.high + 1), {name: stride * at_once for name, stride in last.strides.items()})
    views = moved(views, spec, later, iteration, unit=False)
    number = distribution.unit + iteration * distribution.units
    conditions = less(number, as_expr(distribution.tiles))
    active = conditions if distribution.spare is None else all_of((distribution.spare, conditions))
    body = (For(iteration, as_expr(iteration.high + 1), (Hole("body"),), plan.unroll, draft.origin),)
    return draft.expansion((Child("body", spec.at_level(plan.level, **views), active=active),), body)


def _distributed_with_guard(
    spec: Spec, views: dict[str, View], order: list[Step], distribution: _Distribution, plan: TilePlan, draft: Draft
) -> Expansion:
    """Distribute tiles that the units do not divide evenly: a loop whose last iteration is guarded."""
    assert plan.level is not None
    iterations = -(-distribution.tiles // distribution.units)
    iteration = Var(draft.fresh("iteration"), 0, iterations - 1)
    number = distribution.unit + iteration * distribution.units
    conditions = less(number, as_expr(distribution.tiles))
    tile = Var(draft.fresh("tile"), 0, distribution.tiles - 1)
    left: Expr = tile
    for digit in order:
        index = mod(left, digit.size)
        views = moved(views, spec, digit, index, unit=True)
        left = left // digit.size
    body = (For(iteration, as_expr(iterations), (Let(tile, number), Hole("body")), plan.unroll, draft.origin),)
    active = conditions if distribution.spare is None else all_of((distribution.spare, conditions))
    return draft.expansion((Child("body", spec.at_level(plan.level, **views), active=active),), body)


@verb()
def tile(*sizes: TileSize | Strided, **by_dim: TileSize) -> Tile:
    """Divide the output into tiles, with the matching parts of the inputs: a sequential loop, or with `.to(level)`, parallel units.

    Args: `r, c` in elements, or sizes by dimension name (`m=64`), or `Strided((chunk, repeat), ...)`. If a spec has more dimensions than
    there are sizes, the sizes apply to the rows and columns of a matrix; the other dimensions must have one element. A size may be a layout
    of the elements of the first tile: `Layout(2, 4)` has two elements, every fourth; its complement has the first elements of the other
    tiles (Graphene, section 3.3). Legal if each size divides a static parent tile. The last tile of a whole tensor may be partly out of
    bounds, and is guarded. A layout must contain each element once, and fill the dimension together with its complement.
    rewrite: MatMul(M,N,K) --> for m: for n: MatMul(r,c,K)      (Fireiron, section 3.4)

    >>> from fireiron import *
    >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(32, 16).to(Block).result)
    MatMul(32,16,8)(GL,GL,GL)(Block)
    """
    return Tile.of(sizes, by_dim)


__all__ = ["Strided", "Tile"]
