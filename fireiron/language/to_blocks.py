"""Distribute tiles over the blocks of a kernel, by a place, a grouping and a selection (`language.tile_assignment`)."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fireiron.ir import Hole
from fireiron.ir.effect import Effects
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.language.dividing import Step, moved
from fireiron.language.grid import grid_facts, let_of_grid
from fireiron.language.tile_assignment import Parts, SelectedTile, TileAssignment
from fireiron.language.tree import Child, Draft, Expansion
from fireiron.spec import Spec
from fireiron.values.expr import Expr, Var, as_expr, constant, mod
from fireiron.values.machine import Block, Kernel
from fireiron.values.tensor import View


def distribute_to_blocks(
    spec: Spec, views: dict[str, View], order: list[Step], assignment: TileAssignment, effects: Effects, draft: Draft
) -> Expansion:
    """Return the expansion that distributes the tiles with the digits `order`, fastest first, over the blocks of a kernel.

    Raises: a `DecompositionError` for an illegal combination, and a `ResourceError` for a grid that cannot be launched.
    """
    part, outer = draft.whole.part, draft.whole.outer
    parts = None if part is None else Parts(part)
    stated = {**assignment.stated(effects), **(parts.stated if parts is not None else {})}
    assignment.check(stated, late=False)
    grouping = parts or assignment.grouping
    gathered = grouping.gathered(spec, views, order, assignment.selection, draft)
    order, place = gathered.order, assignment.place
    if gathered.cluster is not None:
        place = place.of_clusters(gathered.lines, gathered.columns)
    grid: Expr = as_expr(grouping.tiles)
    for digit in order:
        grid = grid * digit.size
    blocks = grid * grouping.parts
    for _, number in outer:
        blocks = blocks * number
    stride = assignment.selection.most * assignment.selection.groups
    facts = grid_facts(blocks, stride)
    for permutation in (*assignment.renumberings, place):
        permutation.require(spec, order)
    assignment.check(stated, late=True)
    block = grouping.shared(_block(blocks, draft), draft)
    selection = assignment.selection.for_spec(spec)
    selected = selection.selected(block, blocks, grouping.tiles, draft)
    unit = _without_outer(selected, grid, outer) if outer else selected.unit
    unit = unit // grouping.tiles
    for renumbering in assignment.renumberings:
        unit = renumbering.number(unit, grid // grouping.tiles, selected.names)
    views = gathered.views
    for digit, index in place.tile(spec, order, unit, selected.names):
        views = moved(views, spec, digit, let_of_grid(_name(spec, digit), index, digit.size, selected.names), unit=True)
    return draft.expansion(
        (Child("body", selection.work(spec.at_level(Block, **views))),),
        selected.around(Hole("body")),
        facts=facts,
        grid=selected.blocks,
        effects=_of_tensors(effects, spec).joined(selected.effects),
        segment=selected.segment,
        cluster=gathered.cluster,
    )


def defer_to_next_tile(spec: Spec, views: dict[str, View], order: list[Step], draft: Draft) -> Expansion:
    """Return the expansion for tiles of blocks if a later step also distributes tiles over blocks and so determines the grid."""
    outer = []
    for digit in order:
        var = Var(draft.fresh(_name(spec, digit)), 0, max(digit.size.high - 1, 0))
        views = moved(views, spec, digit, var, unit=True)
        outer.append((var, digit.size))
    return draft.expansion((Child("body", spec.at_level(Kernel).with_operands(**views)),), (Hole("body"),), outer=tuple(outer))


def _name(spec: Spec, digit: Step) -> str:
    return f"block_{spec.labels[spec.dims.index(digit.dim)]}"


def _block(blocks: Expr, draft: Draft) -> Var:
    """Return the variable of the block index, with its range."""
    number = constant(blocks)
    return Var(draft.block.name, 0, draft.block.high if number is None else number - 1)


def _without_outer(selected: SelectedTile, grid: Expr, outer: Sequence[tuple[Var, Expr]]) -> Expr:
    """Return the index of a block's tile among `grid`; define the tile indices of earlier steps by the slower part of the block index."""
    names, left = selected.names, selected.unit // grid
    first, *others = outer
    for var, tiles in reversed(others):
        names.define(var, mod(left, tiles))
        left = left // tiles
    names.define(first[0], left)
    tile = mod(selected.unit, grid)
    return tile if constant(grid) is not None else names.let("block_tile", tile)


def _of_tensors(effects: Effects, spec: Spec) -> Effects:
    """Return the effects, with names of the kernel's parameters instead of operands."""
    launch = effects[DependentLaunch]
    return effects.with_(attrs.evolve(launch, no_wait=tuple(spec.operands[name].tensor.name for name in launch.no_wait)))
