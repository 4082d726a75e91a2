"""Prove that a warp may skip steps under a condition: the skip changes no value, and each warp decides for its own elements.

A step may be skipped if, under the condition, it writes the previous value (`l = l * alpha` if alpha is 1, `mx = new` if both are equal),
or a number (`alpha = exp2(mx - new)`), which is then set before the branch. The proof uses the formulas, as for masked iterations.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.ir.register_ownership import Digit
from fireiron.language.tree import Context
from fireiron.performing.layout_propagation import Following, same_elements, steps_of
from fireiron.spec import Spec
from fireiron.specs.formula import Element, Number, Operation
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.steps import Skipped, Step, shown
from fireiron.stepping.exchange import distributed_differently
from fireiron.stepping.masked_tile_effects import Values

WARP = 32
"""Threads of a warp."""


@frozen
class Run:
    """Consecutive steps; if `skipped`, a region that warps may skip, before which the outputs are set to `numbers`."""

    steps: tuple[Step, ...]
    skipped: Skipped | None = None
    numbers: tuple[tuple[Step, Number], ...] = ()


def group_steps(definition: FusedDefinition) -> Iterator[Run]:
    """Return the steps of a definition in order; consecutive steps that are skipped under one condition are joined."""
    joined_regions = merge_regions(definition)
    regions = {name: region for region in joined_regions for name in region.steps}
    numbers = {name: value for region in joined_regions for name, value in values_if_skipped(definition, region).items()}
    run = Run(())
    for step in definition.steps:
        skipped, number = regions.get(step.name), numbers.get(step.name)
        touched = {name for step in run.steps for name in (*step.reads, step.formula.output)}
        if run.steps and (skipped != run.skipped or (number is not None and step.formula.output in touched)):
            yield run
            run = Run(())
        set_before = () if number is None else ((step, number),)
        run = Run((*run.steps, step), skipped, (*run.numbers, *set_before))
    yield run


def merge_regions(definition: FusedDefinition) -> tuple[Skipped, ...]:
    """Merge each region with the preceding one if the condition of the preceding one suffices for both."""
    kept = list(definition.skipped)
    for before, after in itertools.pairwise(definition.steps):
        first, second = (next((region for region in kept if step.name in region.steps), None) for step in (before, after))
        if first is None or second is None or first == second:
            continue
        both = Skipped((*first.steps, *second.steps), first.condition)
        try:
            values_if_skipped(definition, both)
        except DecompositionError:
            continue
        kept = [both if region == first else region for region in kept if region != second]
    return tuple(kept)


def values_if_skipped(definition: FusedDefinition, skipped: Skipped) -> dict[str, Number | None]:
    """Return, for each step, the number that it writes under the condition; None if it writes the previous value.

    Raises: DecompositionError for a step that may write another value.
    """
    positions = [position for position, step in enumerate(definition.steps) if step.name in skipped.steps]
    _require_same_loop(definition, skipped, definition.steps[min(positions, default=0) : max(positions, default=-1) + 1])
    values = Values(definition)
    for element, value in equalities(skipped.condition):
        values.assume(element, value)
    numbers: dict[str, Number | None] = {}
    for step in definition.steps[min(positions, default=0) : max(positions, default=-1) + 1]:
        before = values.element(step.formula.target)
        values.perform(step)
        if step.name not in skipped.steps:
            continue
        after = values.known[step.formula.output]
        is_number = isinstance(after, Number) and step.formula.output not in step.reads
        if step.formula.reduction is not None or not (after == before or is_number):
            raise DecompositionError(
                f"skip_steps: step {step.name} cannot be skipped if {skipped.condition}",
                got=f"{shown(step.formula)}, then {step.formula.target} = {after}",
                legal=f"{step.formula.target} = {before}, unchanged, or a number",
                hint="remove the step from skip_steps(...), or use another condition",
            )  # fmt: skip
        numbers[step.name] = after if isinstance(after, Number) and after != before else None
    return numbers


def _require_same_loop(definition: FusedDefinition, skipped: Skipped, steps: Sequence[Step]) -> None:
    """Refuse to skip steps of different loops: the condition is evaluated once, before the first of them."""
    loops = [definition.loops_around(step) for step in steps]
    if (definition.around or definition.nested) and len({*loops}) > 1:
        step, loop = next((step, loop) for step, loop in zip(steps, loops, strict=True) if loop != loops[0])
        raise DecompositionError(
            f"skip_steps: {skipped.steps[0]} and {step.name} are in different loops", got=f"loops over {' '.join(loop) or 'nothing'}",
            legal=f"steps of the loop over {' '.join(loops[0]) or 'nothing'}", hint="a skip_steps for the steps of each loop",
        )  # fmt: skip


def equalities(condition: Operation) -> Iterator[tuple[Element, Element | Number]]:
    """Return the elements that a condition determines, with their values."""
    if condition.name == "and":
        for argument in condition.arguments:
            assert isinstance(argument, Operation)
            yield from equalities(argument)
        return
    left, right = condition.arguments
    if not isinstance(left, Element):
        left, right = right, left
    if condition.name != "==" or not isinstance(left, Element) or isinstance(right, Operation):
        raise DecompositionError(
            "skip_steps: a condition must compare elements with each other or with a number, by ==",
            got=str(condition),
            legal="new == mx, alpha == 1, joined by and",
            at=call_site(),
        )
    yield left, right


def knows(needed: Spec, context: Context) -> bool:
    """Whether the distribution of the elements of a spec is decided."""
    return needed.operands[needed.outputs[0]].tensor.name in context.owners


def require_same_elements(spec: Spec, needed: Spec, context: Context) -> None:
    """Refuse to skip a step whose threads have other elements than those that the spec `needed` tests.

    A thread must have the same elements along each common dimension. Otherwise a warp could skip a step that one of its elements needs.
    """
    following = Following.of(spec, context)
    if (context.workers or 0) % WARP:
        raise DecompositionError(
            f"skip_steps: a block of {context.workers} threads does not consist of complete warps, and each warp decides", within=spec,
            at=context.origin,
            legal=f"multiples of {WARP} threads",
        )  # fmt: skip
    if spec.level.threads == 1 or following is None or following.steps is None:
        return
    name = needed.outputs[0]
    ownership = context.owners.get(needed.operands[name].tensor.name)
    digits = None if ownership is None else steps_of(needed, name, ownership)
    common = [dim for dim in needed.dims if dim in spec.dims]
    same = digits is not None and same_elements(
        [_along(digit, needed, spec) for digit in following.steps if spec.dims[digit.dim] in common],
        [digit for digit in digits if needed.dims[digit.dim] in common],
        context,
    )
    if not same or distributed_differently(following, context):
        raise DecompositionError(
            "skip_steps: the threads that execute the step do not own the elements of the condition", got=f"{spec}, and {needed}",
            within=spec, at=context.origin, hint="remove the step from skip_steps(...), or distribute both in the same way",
        )  # fmt: skip


def _along(digit: Digit, needed: Spec, spec: Spec) -> Digit:
    """Return a digit of a spec along the same dimension of another spec."""
    return attrs.evolve(digit, dim=needed.dims.index(spec.dims[digit.dim]))
