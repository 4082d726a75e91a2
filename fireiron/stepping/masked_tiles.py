"""Turns of a loop, one element of a dimension each, that a mask hides from a tile: left out by a branch that all threads of the block take.

The mask compares coordinates of the tile with integers that operands hold for the turn, such as the rows of a group:
`acc[m,n] = where(begin[g] <= m and m < end[g], p[m,n], acc[m,n])`. The kernel reads these integers before the turn.
"""

from __future__ import annotations

from collections.abc import Mapping

from fireiron.errors import DecompositionError
from fireiron.ir import For, Let, Stmt
from fireiron.language.tree import Draft
from fireiron.spec import Spec
from fireiron.specs.formula import Operation, Value
from fireiron.specs.fused import INDICES, FusedDefinition, Step, fused, shown
from fireiron.stepping.masks import all_of_them, changed_without, condition_of, hides, numbers_of
from fireiron.values.expr import Expr, Var, all_of, as_expr, less
from fireiron.values.machine import Block
from fireiron.values.tensor import View


def masked_iteration(spec: Spec, views: Mapping[str, View], draft: Draft, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A turn of a loop, the operands moved to it, if its mask shows the tile an element: one turn of a loop that has one, or none.

    Raises: DecompositionError where a turn that is hidden would change something, or no integer of the turn bounds it.
    """
    made = fused(spec)
    assert made is not None
    if spec.level.is_below(Block):
        raise DecompositionError(
            "skip_masked_tiles: units of a block would take different turns", within=spec, hint="the split in front of .to(Warp)"
        )
    condition = _condition(made, spec)
    sizes = {f"{INDICES}{dim}": spec.size(dim) for dim in made.dims}
    lets: dict[str, Let] = {}
    numbers: dict[str, Expr] = {}
    sides = []
    for bound in all_of_them(condition, numbers_of(made, views, as_expr(1))):
        if bound is None or not bound.compares({name for name, _ in bound.terms if not name.startswith(INDICES)}):
            continue
        (name,) = (name for name, _ in bound.terms if not name.startswith(INDICES))
        (most,) = next(views[one].tensor.shape for one in sizes if bound.factor(one))
        if name not in lets:
            var = Var(draft.fresh(f"{name}_here"), 0, most.high)
            lets[name] = Let(var, numbers_of(made, views, most)[name])
            numbers[name] = var
        sides.append(bound.parts(views, last=True, numbers=numbers))
    if not sides:
        raise DecompositionError(
            "skip_masked_tiles: the mask compares no coordinate with an integer of the turn",
            got=shown(condition), legal="begin[g] <= m and m < end[g], of int32 in GL", within=spec,
        )  # fmt: skip
    seen = Var(draft.fresh("seen"), 0, 1)
    last = Let(seen, all_of(less(taken, added + 1) for added, taken in sides))
    return (*lets.values(), last, For(Var(draft.fresh("iteration"), 0, 0), seen, body, False, draft.origin))


def _condition(made: FusedDefinition, spec: Spec) -> Value:
    """The condition without which a turn changes nothing: that of all that it writes, or that of a mask that hides all it is made of."""
    kept = {step.name: _kept(step) for step in made.steps if step.formula.output in made.uses}
    known = [one for one in kept.values() if one is not None]
    if len(known) == len(kept):
        first, *others = dict.fromkeys(known)
        if others:
            raise DecompositionError(
                "skip_masked_tiles: what the turn writes changes under different conditions", got=[*map(shown, known)], within=spec
            )
        return first
    mask = next((step for step in made.steps if hides(step) is not None and _reads_numbers(step, made)), None)
    if mask is None:
        wrong = next(step for step in made.steps if step.name in kept and kept[step.name] is None)
        name = wrong.formula.target
        raise DecompositionError(
            f"skip_masked_tiles: step {wrong.name} changes {name.tensor} in every turn", got=shown(wrong.formula),
            legal=f"{name} = where(..., ..., {name}), or a mask where(begin[g] <= m and ..., s[m,n], -inf) in front of it", within=spec,
        )  # fmt: skip
    condition = condition_of(mask)
    change = changed_without(made, mask, lambda other: other == condition, spec)
    if change is not None:
        raise change
    return condition


def _kept(step: Step) -> Value | None:
    """The condition of a formula that keeps its result where it does not hold; None for any other."""
    value = step.formula.value
    if not step.formula.joins and isinstance(value, Operation) and value.name == "where" and value.arguments[2] == step.formula.target:
        return value.arguments[0]
    return None


def _reads_numbers(step: Step, made: FusedDefinition) -> bool:
    """Whether a mask's condition reads operands that have one element in a turn."""
    single = {*made.scan, *made.batch}
    return any(one.dims and set(one.dims) <= single for one in step.formula.elements)
