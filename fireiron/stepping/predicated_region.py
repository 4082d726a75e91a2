"""Steps that warps may leave out where a condition holds: why that changes nothing, and that who asks is who would do them.

A step may be left out if, under the condition, it makes what was there before (`l = l * alpha` where alpha is 1, `mx = new` where both
are the same), or a number (`alpha = exp2(mx - new)`), which is set in front. That is proved on the formulas, as for turns that a mask
hides.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.ir.register_ownership import Digit
from fireiron.language.tree import Context
from fireiron.performing.layout_propagation import Following, same_elements, steps_of
from fireiron.spec import Spec
from fireiron.specs.formula import Element, Number, Operation
from fireiron.specs.fused import FusedDefinition, Skipped, Step, shown
from fireiron.stepping.exchange import held_otherwise
from fireiron.stepping.masked_tile_effects import Values

WARP = 32
"""Threads of a warp."""


@attrs.frozen
class Run:
    """Steps side by side; if `skipped`, a region that warps may leave out, in front of which the `numbers` are set that steps then make."""

    steps: tuple[Step, ...]
    skipped: Skipped | None = None
    numbers: tuple[tuple[Step, Number], ...] = ()


def runs_of(made: FusedDefinition) -> Iterator[Run]:
    """The steps of a definition in their order; those that are left out under one condition together, as far as they stand side by side."""
    known = joined(made)
    found = {name: one for one in known for name in one.steps}
    numbers = {name: value for one in known for name, value in left_out(made, one).items()}
    run = Run(())
    for step in made.steps:
        skipped, number = found.get(step.name), numbers.get(step.name)
        touched = {name for one in run.steps for name in (*one.reads, one.formula.output)}
        if run.steps and (skipped != run.skipped or (number is not None and step.formula.output in touched)):
            yield run
            run = Run(())
        set_before = () if number is None else ((step, number),)
        run = Run((*run.steps, step), skipped, (*run.numbers, *set_before))
    yield run


def joined(made: FusedDefinition) -> tuple[Skipped, ...]:
    """The regions of a definition, a later one with the one that it stands behind where the condition of that is enough for both."""
    kept = list(made.skipped)
    for before, behind in itertools.pairwise(made.steps):
        first, second = (next((one for one in kept if step.name in one.steps), None) for step in (before, behind))
        if first is None or second is None or first == second:
            continue
        both = Skipped((*first.steps, *second.steps), first.condition)
        try:
            left_out(made, both)
        except DecompositionError:
            continue
        kept = [both if one == first else one for one in kept if one != second]
    return tuple(kept)


def left_out(made: FusedDefinition, skipped: Skipped) -> dict[str, Number | None]:
    """For each of the steps the number that it makes under the condition; None where it makes what was there before.

    Raises: DecompositionError for a step that may make anything else.
    """
    places = [place for place, step in enumerate(made.steps) if step.name in skipped.steps]
    values = Values(made)
    for one, value in equalities(skipped.condition):
        values.assume(one, value)
    found: dict[str, Number | None] = {}
    for step in made.steps[min(places, default=0) : max(places, default=-1) + 1]:
        before = values.element(step.formula.target)
        values.perform(step)
        if step.name not in skipped.steps:
            continue
        after = values.known[step.formula.output]
        is_number = isinstance(after, Number) and step.formula.output not in step.reads
        if step.formula.reduction is not None or not (after == before or is_number):
            raise DecompositionError(
                f"skip_steps: step {step.name} is not the same left out where {skipped.condition}",
                got=f"{shown(step.formula)}, there {step.formula.target} = {after}",
                legal=f"{step.formula.target} = {before}, as it was, or a number", hint="skip_steps without the step, or another condition",
            )  # fmt: skip
        found[step.name] = after if isinstance(after, Number) and after != before else None
    return found


def equalities(condition: Operation) -> Iterator[tuple[Element, Element | Number]]:
    """What a condition says of elements: each with what it then is."""
    if condition.name == "and":
        for one in condition.arguments:
            assert isinstance(one, Operation)
            yield from equalities(one)
        return
    left, right = condition.arguments
    if not isinstance(left, Element):
        left, right = right, left
    if condition.name != "==" or not isinstance(left, Element) or isinstance(right, Operation):
        raise DecompositionError(
            "skip_steps: a condition says that elements are equal, or a number",
            got=str(condition),
            legal="new == mx, alpha == 1, joined by and",
            at=call_site(),
        )
    yield left, right


def knows(needed: Spec, context: Context) -> bool:
    """Whether it is decided who holds what a spec finds out."""
    return needed.operands[needed.outputs[0]].tensor.name in context.held


def require_alike(spec: Spec, needed: Spec, context: Context) -> None:
    """Refuse to leave out a step whose threads have other elements than those by which the spec `needed` decides.

    Of each dimension that both have a thread has the same elements: then no warp leaves out what one of its elements needs.
    """
    following = Following.of(spec, context)
    if (context.workers or 0) % WARP:
        raise DecompositionError(
            f"skip_steps: a block of {context.workers} threads has no whole warps, each of which decides", within=spec, at=context.origin,
            legal=f"multiples of {WARP} threads",
        )  # fmt: skip
    if spec.level.threads == 1 or following is None or following.steps is None:
        return
    name = needed.outputs[0]
    holding = context.held.get(needed.operands[name].tensor.name)
    digits = None if holding is None else steps_of(needed, name, holding)
    common = [dim for dim in needed.dims if dim in spec.dims]
    alike = digits is not None and same_elements(
        [_along(one, needed, spec) for one in following.steps if spec.dims[one.dim] in common],
        [one for one in digits if needed.dims[one.dim] in common],
        context,
    )
    if not alike or held_otherwise(following, context):
        raise DecompositionError(
            "skip_steps: the threads that do the step have not the elements of the condition", got=f"{spec}, and {needed}",
            within=spec, at=context.origin, hint="leave the step out of skip_steps(...), or hold both alike",
        )  # fmt: skip


def _along(digit: Digit, needed: Spec, spec: Spec) -> Digit:
    """A digit of a spec along the same dimension of another."""
    return attrs.evolve(digit, dim=needed.dims.index(spec.dims[digit.dim]))
