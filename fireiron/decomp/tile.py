"""`tile`: tiles of the output, inputs follow (Fireiron, section 3.3; strided tiles, Listing 4 and T007)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.ir import Comment, For, Hole, Let, effect
from fireiron.ir.effect import Effect, Effects
from fireiron.ir.effects.chaining import Chaining
from fireiron.language.dealing import PLAIN, Dealing, Grouping, Place, Taking
from fireiron.language.dividing import Extent, Step, divide, loop_over, moved, product, shares_of_digits
from fireiron.language.substrategy import divisors, fits
from fireiron.language.to_blocks import dealt_to_blocks, left_to_the_next
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
from fireiron.values.expr import ONE, TRUE, Expr, Var, all_of, as_expr, constant, less, mod
from fireiron.values.machine import Block, Level, Thread
from fireiron.values.tensor import MatrixLayout, RowMajor, View
from fireiron.values.units import check_below, count_in, threads_for, unit_in


@attrs.frozen(init=False, repr=False)
class Strided:
    """A tile of chunks that repeat: per dimension `(chunk, repeat)`, `chunk` elements every `repeat` elements.

    `Strided((4, 32), (4, 16))` of a 64 x 32 warp tile gives each of 8 x 4 lanes four groups of 4 x 4 elements.

    >>> from fireiron import *
    >>> warp = MatMul(64, 32, 8)(GL, GL, GL)(Kernel).tile(64, 32).to(Block).tile(64, 32).to(Warp)
    >>> print(warp.tile(Strided((4, 32), (4, 16))).to(Lane).result)
    MatMul(8,8,8)(GL,GL,GL)(Lane)
    """

    dims: tuple[tuple[Any, Any], ...]

    def __init__(self, *dims: tuple[Integer, Integer]) -> None:
        if not dims or any(not isinstance(pair, tuple) or len(pair) != 2 for pair in dims):
            raise DecompositionError(
                "Strided: each dimension is a pair (chunk, repeat)", got=dims, legal="Strided((4, 32), (4, 16))", at=call_site()
            )
        pairs = tuple((integral(chunk, "Strided chunk"), integral(repeat, "Strided repeat")) for chunk, repeat in dims)
        for chunk, repeat in pairs:
            if isinstance(count(chunk, "Strided chunk"), int) and isinstance(count(repeat, "Strided repeat"), int) and repeat % chunk:
                raise DecompositionError(f"Strided{(chunk, repeat)}: the repeat is no multiple of the chunk", at=call_site())
        self.__attrs_init__(pairs)

    def resolved(self, resolve: Callable[[Any], Any]) -> Strided:
        """The same with tunables replaced."""
        dims = resolve(self.dims)
        if dims is self.dims:
            return self
        changed = Strided.__new__(Strided)
        changed.__attrs_init__(dims)  # not judged here, see `tunable.resolve`
        return changed

    def __repr__(self) -> str:
        return f"Strided({', '.join(map(repr, self.dims))})"


CHAINING = 90
"""Least compute capability for programmatic dependent launch."""


@attrs.frozen
class TilePlan:
    """How tiles are carried out: dealt to units of `level` in an order, or visited in loops; to blocks as `dealing` specifies."""

    level: Level | None = None
    unroll: bool = False
    order: MatrixLayout | tuple[int, ...] = RowMajor
    dealing: Dealing = PLAIN
    effects: Effects = effect.NONE

    @property
    def about_blocks(self) -> bool:
        """Whether something is said that only tiles dealt to Block can have."""
        return self.dealing.of_blocks or bool(self.effects)

    @property
    def chaining(self) -> Chaining:
        """Whether the kernel begins while the one before ends, and which operands it may read then."""
        return self.effects[Chaining]

    def saying(self, said: Effect) -> TilePlan:
        """The plan that says one thing more of the whole kernel."""
        return attrs.evolve(self, effects=self.effects.adding(said))

    def placing(self, place: Place) -> TilePlan:
        """The plan that states which tile is which number."""
        return attrs.evolve(self, dealing=self.dealing.placing(place))

    def together(self, grouping: Grouping) -> TilePlan:
        """The plan that states which neighbouring blocks are together."""
        return attrs.evolve(self, dealing=attrs.evolve(self.dealing, grouping=grouping))

    def taking(self, taking: Taking) -> TilePlan:
        """The plan that states how a block takes tiles, with the groups of consumers that are stated."""
        groups = self.dealing.taking.groups
        return attrs.evolve(self, dealing=attrs.evolve(self.dealing, taking=attrs.evolve(taking, groups=groups)))

    def in_groups(self, groups: int) -> TilePlan:
        """The plan that states how many groups of consumers have the tiles of a block alternately."""
        return attrs.evolve(self, dealing=attrs.evolve(self.dealing, taking=attrs.evolve(self.dealing.taking, groups=groups)))


def _sizes(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or (len(value) > 1 and any(isinstance(size, Strided) for size in value)):
        raise DecompositionError(
            "tile: its sizes are integers or layouts, or one Strided(...)", got=value, legal="tile(64, 32)", at=call_site()
        )
    return tuple(size if isinstance(size, Strided) else tile_size(size, "tile") for size in value)


def _by_dim(value: Any) -> tuple[tuple[str, Any], ...]:
    return by_dimension(value, "tile")


@attrs.frozen
class Tile(Decomposition):
    """Tiles of `sizes` elements, or of layouts, by dimension name; see the verb `tile`."""

    verb: ClassVar[str] = "tile"
    sizes: tuple[Any, ...] = attrs.field(default=(), converter=_sizes)
    by_dim: tuple[tuple[str, Any], ...] = attrs.field(default=(), converter=_by_dim)

    @staticmethod
    def of(sizes: tuple[Any, ...], by_dim: Mapping[str, Any]) -> Tile:
        """A tile from the arguments of the verb; a `DecompositionError` where they name no size."""
        if len(sizes) == 1 and isinstance(sizes[0], Strided):
            return Tile(sizes)
        if not sizes and not by_dim:
            raise DecompositionError("tile(): no size given", hint="tile(rows, columns)", at=call_site())
        for size in (*sizes, *by_dim.values()):
            checked_tile_size(size, "tile")
        return Tile(tuple(sizes), tuple(by_dim.items()))

    def label(self) -> str:
        arguments = [repr(size) for size in self.sizes] + [f"{dim}={size!r}" for dim, size in self.by_dim]
        return f"tile({', '.join(arguments)})" + "".join(f".{refinement.label()}" for refinement in self.refinements)

    def extents(self, spec: Spec) -> dict[str, Extent]:
        """The tile by dimension, in elements; a `DecompositionError` for a dimension that cannot be tiled."""
        sizes: list[Extent]
        if len(self.sizes) == 1 and isinstance(self.sizes[0], Strided):
            sizes = [(chosen(chunk, "Strided chunk"), chosen(repeat, "Strided repeat")) for chunk, repeat in self.sizes[0].dims]
        else:
            sizes = [chosen_tile_size(size, "tile") for size in self.sizes]
        if len(sizes) > len(spec.tile_dims):
            raise _too_many(spec, sizes)
        named = dict(zip(_by_position(spec, len(sizes)), sizes, strict=False))
        for dim, size in self.by_dim:
            if dim not in spec.dims or dim in named:
                raise DecompositionError(f"tile({dim}={size}): no such dimension, or given twice", legal=spec.dims)
            tile = chosen_tile_size(size, f"tile({dim}=...)")
            if dim in spec.tile_dims:
                named[dim] = tile
            elif not _is_whole(spec, dim, tile):
                raise DecompositionError(
                    f"tile({dim}={size}): {dim} is a reduction dimension", legal=_whole_tile(spec, dim), hint=_instead(spec, dim, size)
                )
        if not (named or self.by_dim):
            raise DecompositionError("tile(): no size given", hint="tile(rows, columns)")
        return named

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
        plan = self.planned(TilePlan())
        views, digits = divide(spec, self.extents(spec), self.label())
        if plan.level is None:
            if plan.dealing.renumberings or plan.about_blocks or plan.order != RowMajor:
                raise DecompositionError("layout, swizzle and bands say how tiles are dealt to units", hint="add .to(level), or drop them")
            return _looped(spec, views, digits, plan, context.draft())
        check_below(plan.level, spec.level, spec, context.origin)
        if plan.chaining.chained and context.architecture.capability < CHAINING:
            raise DecompositionError(
                f"programmatic_launch: {context.architecture.name} launches no kernel before the one in front of it is over",
                got=context.architecture.name,
                legal="sm_90 or newer",
                hint="leave programmatic_launch() out",
            )
        _check_ready(plan.chaining.ready, spec)
        return _dealt(spec, views, digits, plan, context.draft())

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[Tile]:
        options = [_dividing(spec, dim) for dim in spec.tile_dims]
        yield from (Tile(sizes) for sizes in itertools.product(*options))


def _too_many(spec: Spec, sizes: Sequence[Extent]) -> DecompositionError:
    """The error of more sizes than a spec has dimensions that are tiled, as where an epilogue reduces a dimension of the product."""
    made = fused(spec)
    dims = made.product.formula.target.dims if made is not None and made.product is not None else ()
    reduced = [dim for dim in dims if dim not in spec.tile_dims]
    what = f"tile takes at most {len(spec.tile_dims)} sizes for {spec.title}: {', '.join(spec.tile_dims) or 'none'}"
    if made is None or not reduced:
        summed = [dim for dim in spec.dims if dim not in spec.tile_dims]
        number = len(sizes) - len(spec.tile_dims)
        asked = [f"split({dim}={size})" for dim, size in zip(summed, sizes[-number:], strict=False)]
        return DecompositionError(what, hint=f"{', '.join(asked)} behind it: {', '.join(summed)} is taken in steps" if asked else None)
    steps = ", ".join(str(one) for one in made.steps if set(reduced) & set(one.formula.over) and not one.formula.contracts)
    tiles = ", ".join(f"{dim}={spec.size(dim) if dim in reduced else size}" for dim, size in zip(dims, sizes, strict=False))
    return DecompositionError(
        what, got=f"{len(sizes)} sizes, and {', '.join(reduced)} is reduced: {steps}", legal=f"tile({tiles}) of a strategy of your own",
        hint="+= in the place of =, where it is a sum that blocks may add up; else a strategy whose blocks have all of it",
    )  # fmt: skip


def _is_whole(spec: Spec, dim: str, tile: Extent) -> bool:
    """Whether a tile has all of a dimension, so that nothing is divided."""
    total = constant(spec.size(dim))
    return isinstance(tile, int) and total is not None and tile >= total


def _whole_tile(spec: Spec, dim: str) -> str | None:
    """The tile of a reduction dimension that may be said: all of it."""
    total = constant(spec.size(dim))
    return None if total is None else f"tile({dim}={total}), all of it"


def _instead(spec: Spec, dim: str, size: object) -> str:
    """What divides a dimension that is no tile's: a loop over it, or, in a definition, the steps that reduce it."""
    made = fused(spec)
    if made is None or dim in made.loops:
        return f"split({dim}={size})"
    steps = [one.name for one in made.steps if dim in one.formula.over]
    return f"the strategy of the step {steps[0]}, which reduces it; each block needs all of {dim}" if steps else f"split({dim}={size})"


def _by_position(spec: Spec, count: int) -> tuple[str, ...]:
    """The dimensions of `count` sizes: those of the result. Where these are more, a matrix in a stack has its rows and columns."""
    dims = spec.tile_dims
    ones = [dim for dim in dims if spec.size(dim) == ONE][: max(len(dims) - 2, 0)] if count < len(dims) else []
    matrix = tuple(dim for dim in dims if dim not in ones)
    return matrix if count <= len(matrix) else dims


def _dividing(spec: Spec, dim: str) -> list[int]:
    """The sizes that divide a dimension of all operands; none where it is known only at run time."""
    total = constant(spec.size(dim))
    return [] if total is None else [size for size in divisors(total) if fits(spec, dim, size)]


# ---------------------------------------------------------------------------------------------- loops


def _looped(spec: Spec, views: dict[str, View], digits: list[Step], plan: TilePlan, draft: Draft) -> Expansion:
    views, program, _ = loop_over(spec, views, digits, plan.unroll, draft, (Hole("body"),))
    return draft.expansion((Child("body", spec.with_operands(**views)),), program)


# ---------------------------------------------------------------------------------------------- dealing


@attrs.frozen
class _Deal:
    """So many tiles for so many units of a level: the number of the executing unit, and the condition that keeps spare threads out."""

    tiles: int
    units: int
    unit: Expr
    spare: Expr | None


def _dealt(spec: Spec, views: dict[str, View], digits: list[Step], plan: TilePlan, draft: Draft) -> Expansion:
    """Tiles dealt to the units of a level: unit `u` takes tile `permutation(u)`; with more tiles than units, in turns."""
    order = _dealing_order(spec, digits, plan.order)
    if plan.level == Block:
        return _dealt_to_blocks(spec, views, order, plan, draft)
    deal = _deal(order, spec.level, plan, draft)
    if deal.tiles <= deal.units:
        return _dealt_evenly(spec, views, [(digit, digit.size) for digit in order], [], deal, plan, draft)
    shares = shares_of_digits(order, deal.units)
    if shares is None:
        held = _held_turns(spec, order, deal.units)
        if held is not None:
            return _dealt_in_held_turns(spec, views, *held, deal, plan, draft)
        return _dealt_in_guarded_turns(spec, views, order, deal, plan, draft)
    return _dealt_evenly(spec, views, *shares, deal, plan, draft)


def _deal(order: list[Step], parent: Level, plan: TilePlan, draft: Draft) -> _Deal:
    """How many tiles there are, and who takes them; both must be known now, because the rest is decided by them."""
    level = plan.level
    assert level is not None
    if plan.about_blocks:
        raise DecompositionError(
            f"these tiles go to {level}, and rasterize, cluster, min_blocks_per_sm, max_shared_bytes, persistent, pingpong and "
            "programmatic_launch are about blocks",
            legal="tile(...).to(Block)",
        )
    total = product(order)
    if total is None:
        raise DecompositionError(
            f"to({level}): the number of tiles is known only at run time", hint="deal tiles of symbolic sizes to Block first"
        )
    # Where nothing says yet how many threads a block has, these tiles do: one unit for each.
    units = draft.units(level, parent) if draft.workers is not None or parent.threads is not None else total
    if units == 0:
        raise _no_whole_unit(level, parent, draft)
    unit = draft.unit(level, parent)
    spare = _spare_threads(level, parent, units, draft)
    for renumbering in plan.dealing.renumberings:
        unit = renumbering.of_units(unit, units, level)
    return _Deal(total, units, unit, spare)


def _no_whole_unit(level: Level, parent: Level, draft: Draft) -> DecompositionError:
    """The error of tiles for units of which a block has none: too few threads, or units that interleave with others."""
    least = next(threads for threads in range(1, threads_for(1, level) + 1) if count_in(level, Block, threads))
    return DecompositionError(
        f"to({level}): a {parent} of {draft.workers} threads has no whole {level}: one is {level.threads} of threads 0 to {least - 1}",
        got=f"{draft.workers} threads, among which the step that computes deals its tiles",
        legal=f"at least {least} threads",
        hint=f"smaller tiles in that step, so that it has more threads; or to({Thread}) here",
    )


def _dealt_evenly(
    spec: Spec, views: dict[str, View], taken: list[tuple[Step, Expr]], rest: list[Step], deal: _Deal, plan: TilePlan, draft: Draft
) -> Expansion:
    """Each unit takes one tile, or as many turns as every other; units beyond the tiles take none."""
    assert plan.level is not None
    unit = deal.unit
    active = less(unit, as_expr(deal.tiles)) if deal.tiles < deal.units else TRUE
    active = all_of((active,) if deal.spare is None else (deal.spare, active))
    if deal.tiles < deal.units or deal.spare is not None:
        # Under `active` the number is a tile's. Its name carries that range, without which every address would keep a remainder.
        unit = draft.let(draft.prefix + _tile_name(plan.level), unit, high=min(deal.tiles, deal.units) - 1)
    views = _take_unit_digits(spec, views, [digit for digit, _ in taken], unit, plan.level, draft)
    views, program, _ = loop_over(spec, views, rest[::-1], plan.unroll, draft, (Hole("body"),))
    child = spec.at_level(plan.level, **views)
    note = (Comment(str(child)),) if child.dims != child.tile_dims else ()
    return draft.expansion((Child("body", child, active=active),), (*note, *program))


def _tile_name(level: Level) -> str:
    return f"{level.label}_tile"


def _spare_threads(level: Level, parent: Level, units: int, draft: Draft) -> Expr | None:
    """The condition that keeps threads out that belong to no whole unit of a block."""
    if parent != Block or draft.workers is None or level.threads is None or units * level.threads == draft.workers:
        return None
    return less(unit_in(level, parent, draft.thread), as_expr(units))


def _dealing_order(spec: Spec, digits: list[Step], order: MatrixLayout | tuple[int, ...]) -> list[Step]:
    """Digits, fastest first: the last dimension first for row-major dealing, the first for column-major, or by their positions."""
    if isinstance(order, MatrixLayout):
        dims = spec.dims if order.order == "col" else spec.dims[::-1]
    elif len(order) == len(spec.tile_dims):
        dims = tuple(spec.tile_dims[position] for position in order)
    else:
        raise DecompositionError(f"layout({order}): {spec.title} has {len(spec.tile_dims)} dimensions", legal=spec.tile_dims)
    return [digit for dim in dims for digit in reversed(digits) if digit.dim == dim]


def _take_unit_digits(spec: Spec, views: dict[str, View], digits: list[Step], unit: Expr, level: Level, draft: Draft) -> dict[str, View]:
    """Views moved to the tile of a unit; `digits` fastest first, the last one takes what is left of the number."""
    left = unit
    for position, digit in enumerate(digits):
        last = position == len(digits) - 1
        index = left if last and constant(digit.size) is None else mod(left, digit.size)
        label = spec.labels[spec.dims.index(digit.dim)]
        index = draft.let(f"{draft.prefix}{level.label}_{label}", index)
        views = moved(views, spec, digit, index, unit=True)
        left = left // digit.size
    return views


def _dealt_to_blocks(spec: Spec, views: dict[str, View], order: list[Step], plan: TilePlan, draft: Draft) -> Expansion:
    if draft.whole.grid is not None:
        raise DecompositionError("tiles are dealt to Block twice", hint="one .to(Block) in a strategy")
    if not any(_deals_to_blocks(step) for step in draft.behind):
        return dealt_to_blocks(spec, views, order, plan.dealing, plan.effects, draft)
    if plan.dealing.renumberings or plan.about_blocks:
        raise DecompositionError(
            "swizzle, bands, cluster, resident, within, persistent and chained are about all blocks, "
            "and more tiles are dealt to Block behind these",
            hint="them on the last tile(...).to(Block)",
        )
    return left_to_the_next(spec, views, order, draft)


def _check_ready(names: tuple[str, ...], spec: Spec) -> None:
    """What no kernel of a chain writes is an input of this one."""
    inputs = [name for name, view in spec.operands.items() if name not in spec.outputs and view.memory.of_grid]
    for name in names:
        if name not in inputs:
            raise DecompositionError(f"programmatic_launch(no_wait={name}): {name} is no input in global memory", within=spec, legal=inputs)


def _deals_to_blocks(step: Decomposition) -> bool:
    return isinstance(step, Tile) and step.planned(TilePlan()).level == Block


def _held_turns(spec: Spec, order: list[Step], units: int) -> tuple[list[Step], Step, int] | None:
    """For tiles in registers of which only the slowest digit does not divide: the digits that a unit takes whole, that one, and how many
    of its values units take at once. Then what a thread has in each turn lies a step further on, so that its registers hold all of them."""
    private = [name for name, view in spec.operands.items() if view.memory.private]
    *faster, last = [digit for digit in order if constant(digit.size) != 1]
    taken = product(faster)
    if not private or taken is None or units % taken or units == taken:
        return None
    along = [spec.operands[name].dims[spec.uses[name].index(last.dim)] for name in private if last.dim in spec.uses[name]]
    return (faster, last, units // taken) if all(dim.whole for dim in along) else None


def _dealt_in_held_turns(
    spec: Spec, views: dict[str, View], faster: list[Step], last: Step, at_once: int, deal: _Deal, plan: TilePlan, draft: Draft
) -> Expansion:
    """Tiles that the units do not divide, of which each unit's lie at equal steps: a loop of turns, the last one guarded."""
    assert plan.level is not None
    size = constant(last.size)
    assert size is not None
    now = attrs.evolve(last, size=as_expr(at_once))
    views = _take_unit_digits(spec, views, [*faster, now], deal.unit, plan.level, draft)
    label = spec.labels[spec.dims.index(last.dim)]
    turn = Var(draft.fresh(label), 0, -(-size // at_once) - 1)
    later = Step(last.dim, as_expr(turn.high + 1), {name: stride * at_once for name, stride in last.strides.items()})
    views = moved(views, spec, later, turn, unit=False)
    number = deal.unit + turn * deal.units
    conditions = less(number, as_expr(deal.tiles))
    active = conditions if deal.spare is None else all_of((deal.spare, conditions))
    body = (For(turn, as_expr(turn.high + 1), (Hole("body"),), plan.unroll, draft.origin),)
    return draft.expansion((Child("body", spec.at_level(plan.level, **views), active=active),), body)


def _dealt_in_guarded_turns(spec: Spec, views: dict[str, View], order: list[Step], deal: _Deal, plan: TilePlan, draft: Draft) -> Expansion:
    """Tiles that the units do not divide: a loop of turns, the last one guarded."""
    assert plan.level is not None
    turns = -(-deal.tiles // deal.units)
    turn = Var(draft.fresh("iteration"), 0, turns - 1)
    number = deal.unit + turn * deal.units
    conditions = less(number, as_expr(deal.tiles))
    tile = Var(draft.fresh("tile"), 0, deal.tiles - 1)
    left: Expr = tile
    for digit in order:
        index = mod(left, digit.size)
        views = moved(views, spec, digit, index, unit=True)
        left = left // digit.size
    body = (For(turn, as_expr(turns), (Let(tile, number), Hole("body")), plan.unroll, draft.origin),)
    active = conditions if deal.spare is None else all_of((deal.spare, conditions))
    return draft.expansion((Child("body", spec.at_level(plan.level, **views), active=active),), body)


@verb()
def tile(*sizes: TileSize | Strided, **by_dim: TileSize) -> Tile:
    """Tiles of the output, inputs follow; sequential loops unless dealt with `.to(level)`.

    Args: `r, c` in elements, or sizes by dimension name (`m=64`), or `Strided((chunk, repeat), ...)`. Where a spec has more
    dimensions than sizes are given, these are for the two of a matrix, if the others have one element. A size may be a layout
    that says which elements of the dimension the first tile has: `Layout(2, 4)`, every fourth, two of them; its complement has the
    first elements of the other tiles (Graphene, section 3.3).
    Legal when each size divides a static parent tile; at the whole tensor the last tile may overhang and is guarded. A layout
    has each element once, and fills the dimension together with its complement.
    rewrite: MatMul(M,N,K) --> for m: for n: MatMul(r,c,K)      (Fireiron, section 3.4)

    >>> from fireiron import *
    >>> print(MatMul(64, 64, 8)(GL, GL, GL)(Kernel).tile(32, 16).to(Block).result)
    MatMul(32,16,8)(GL,GL,GL)(Block)
    """
    return Tile.of(sizes, by_dim)


__all__ = ["Strided", "Tile"]
