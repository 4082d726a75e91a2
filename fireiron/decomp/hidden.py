"""Turns of a loop, one element of a dimension each, that a mask hides from a tile: left out by a branch that all threads of the block take.

The mask compares coordinates of the tile with integers that operands hold for the turn, such as the rows of a group:
`acc[m,n] = where(begin[g] <= m and m < end[g], p[m,n], acc[m,n])`. The kernel reads these integers before the turn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fireiron.decomp.masks import AtLeast, all_of_them
from fireiron.errors import DecompositionError
from fireiron.ir import For, Let, Stmt
from fireiron.language.tree import Draft
from fireiron.spec import Spec
from fireiron.specs.formula import Operation, Value, elements_of
from fireiron.specs.fused import INDICES, FusedDefinition, Step, fused, shown
from fireiron.values.expr import Expr, Var, all_of, less, lookup
from fireiron.values.machine import Block, int32
from fireiron.values.tensor import View


def shown_turn(spec: Spec, views: Mapping[str, View], draft: Draft, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A turn of a loop, the operands moved to it, if its mask shows the tile an element: one turn of a loop that has one, or none.

    Raises: DecompositionError where not all that the turn writes is kept under one mask, or no integer of the turn bounds it.
    """
    made = fused(spec)
    assert made is not None
    if spec.level.is_below(Block):
        raise DecompositionError("skip: units of a block would take different turns", within=spec, hint="the split in front of .to(Warp)")
    condition = _kept_under(made, spec)
    bounds = list(_bounds(condition, made, views))
    if not bounds:
        raise DecompositionError(
            "skip: the mask compares no coordinate with an integer of the turn",
            got=str(condition), legal="begin[g] <= m and m < end[g], of int32 in GL", within=spec,
        )  # fmt: skip
    names = dict.fromkeys(name for bound in bounds for name, _ in bound.terms if not name.startswith(INDICES))
    most = max(views[name].tensor.shape[0].high for bound in bounds for name, _ in bound.terms if name.startswith(INDICES))
    lets, numbers = [], {}
    for name in names:
        var = Var(draft.fresh(f"{name}_here"), 0, most)
        lets.append(Let(var, lookup(views[name].tensor.name, _place(views[name]), most)))
        numbers[name] = var
    sides = [bound.parts(views, last=True, numbers=numbers) for bound in bounds]
    seen = Var(draft.fresh("seen"), 0, 1)
    lets.append(Let(seen, all_of(less(taken, added + 1) for added, taken in sides)))
    return (*lets, For(Var(draft.fresh("turn"), 0, 0), seen, body, False, draft.origin))


def _place(view: View) -> Expr:
    """The address of the one element that a turn has of an operand."""
    return view.tensor.storage().address(tuple(part.base for part in view.numerals))


def _kept_under(made: FusedDefinition, spec: Spec) -> Value:
    """The condition under which all that a turn writes changes."""
    found: list[Value] = []
    for step in made.steps:
        if step.formula.output in made.uses:
            found.append(_keeps(step, spec))
    if any(one != found[0] for one in found):
        raise DecompositionError("skip: what the turn writes changes under different conditions", got=[str(one) for one in found], within=spec)
    return found[0]


def _keeps(step: Step, spec: Spec) -> Value:
    """The condition of a formula that keeps its result where it does not hold."""
    value = step.formula.value
    if not step.formula.joins and isinstance(value, Operation) and value.name == "where" and value.arguments[2] == step.formula.target:
        return value.arguments[0]
    name = step.formula.target
    raise DecompositionError(
        f"skip: step {step.name} changes {name.tensor} in every turn", got=shown(step.formula), legal=f"{name} = where(..., ..., {name})",
        within=spec,
    )  # fmt: skip


def _bounds(condition: Value, made: FusedDefinition, views: Mapping[str, View]) -> Iterator[AtLeast]:
    """The parts of a condition that compare one coordinate with one integer of the turn; others may only hide more."""
    single = {*made.scan, *made.batch}
    numbers = {
        one.tensor
        for one in elements_of(condition)
        if one.tensor in views and set(one.dims) <= single and views[one.tensor].memory.of_grid and views[one.tensor].dtype == int32
    }
    for bound in all_of_them(condition, numbers):
        if bound is not None and bound.number in (0, -1) and sorted(count for _, count in bound.terms) == [-1, 1]:
            if sum(name in numbers for name, _ in bound.terms) == sum(name.startswith(INDICES) for name, _ in bound.terms) == 1:
                yield bound


__all__ = ["shown_turn"]
