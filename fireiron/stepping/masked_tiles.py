"""Skip fully masked iterations of a loop over single elements of a dimension, by a branch that is uniform in the block.

The mask compares coordinates of the tile with integers that operands contain for the iteration, such as the rows of a group:
`acc[m,n] = where(begin[g] <= m and m < end[g], p[m,n], acc[m,n])`. The kernel reads these integers before the iteration.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fireiron.errors import DecompositionError
from fireiron.ir import For, Let, Stmt
from fireiron.language.tree import Draft
from fireiron.spec import Spec
from fireiron.specs.formula import Operation, Value
from fireiron.specs.fused import fused
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.steps import INDICES, Step, shown
from fireiron.stepping.masks import changed_without, condition_of, failing_with, linear_conjuncts, mask_value, numbers_of
from fireiron.values.expr import Expr, Var, all_of, as_expr, less
from fireiron.values.machine import Block
from fireiron.values.tensor import View


def masked_iteration(spec: Spec, views: Mapping[str, View], draft: Draft, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Return an iteration as a loop that executes once if its mask has a visible element, and never otherwise.

    Raises: DecompositionError if a masked iteration would change a value, or no integer of the iteration bounds the mask.
    """
    definition = fused(spec)
    assert definition is not None
    if spec.level.is_below(Block):
        raise DecompositionError(
            "skip_masked_tiles: units of a block would skip different iterations", within=spec, hint="split before .to(Warp)"
        )
    condition = _condition(definition, spec, numbers_of(definition, views, as_expr(1)))
    sizes = {f"{INDICES}{dim}": spec.size(dim) for dim in definition.dims}
    lets: dict[str, Let] = {}
    numbers: dict[str, Expr] = {}
    sides = []
    for bound in linear_conjuncts(condition, numbers_of(definition, views, as_expr(1))):
        if bound is None or not bound.compares({name for name, _ in bound.terms if not name.startswith(INDICES)}):
            continue
        (name,) = (name for name, _ in bound.terms if not name.startswith(INDICES))
        (most,) = next(views[name].tensor.shape for name in sizes if bound.factor(name))
        if name not in lets:
            var = Var(draft.fresh(f"{name}_here"), 0, most.high)
            lets[name] = Let(var, numbers_of(definition, views, most)[name])
            numbers[name] = var
        sides.append(bound.parts(views, last=True, numbers=numbers))
    if not sides:
        raise DecompositionError(
            "skip_masked_tiles: the mask compares no coordinate with an integer of the iteration",
            got=shown(condition), legal="begin[g] <= m and m < end[g], with int32 arrays in GL", within=spec,
        )  # fmt: skip
    is_visible = Var(draft.fresh("seen"), 0, 1)
    last = Let(is_visible, all_of(less(subtracted, added + 1) for added, subtracted in sides))
    return (*lets.values(), last, For(Var(draft.fresh("iteration"), 0, 0), is_visible, body, False, draft.origin))


def _condition(definition: FusedDefinition, spec: Spec, numbers: Collection[str]) -> Value:
    """Return a condition such that an iteration changes nothing if it fails: that of all outputs, or of a mask of all their inputs.

    `numbers` are the integers that the kernel reads for an iteration.
    """
    kept = {step.name: _kept(step) for step in definition.steps if step.formula.output in definition.uses}
    conditions = [condition for condition in kept.values() if condition is not None]
    if len(conditions) == len(kept):
        first, *others = dict.fromkeys(conditions)
        if others:
            raise DecompositionError(
                "skip_masked_tiles: the outputs of the iteration change under different conditions",
                got=[*map(shown, conditions)],
                within=spec,
            )
        return first
    mask = next((step for step in definition.steps if mask_value(step) is not None and _reads_numbers(step, definition)), None)
    if mask is None:
        wrong = next(step for step in definition.steps if step.name in kept and kept[step.name] is None)
        name = wrong.formula.target
        raise DecompositionError(
            f"skip_masked_tiles: step {wrong.name} changes {name.tensor} in every iteration", got=shown(wrong.formula),
            legal=f"{name} = where(..., ..., {name}), or a mask where(begin[g] <= m and ..., s[m,n], -inf) before it", within=spec,
        )  # fmt: skip
    condition = condition_of(mask)
    change = changed_without(definition, mask, failing_with(condition, numbers), spec)
    if change is not None:
        raise change
    return condition


def _kept(step: Step) -> Value | None:
    """Return the condition of a formula that keeps its result if the condition fails; None for other formulas."""
    value = step.formula.value
    if (
        not step.formula.accumulates
        and isinstance(value, Operation)
        and value.name == "where"
        and value.arguments[2] == step.formula.target
    ):
        return value.arguments[0]
    return None


def _reads_numbers(step: Step, definition: FusedDefinition) -> bool:
    """Whether a mask's condition reads operands that have one element per iteration."""
    single = {*definition.scan, *definition.batch}
    return any(element.dims and set(element.dims) <= single for element in step.formula.elements)
