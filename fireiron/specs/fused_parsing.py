"""Parse the arguments of `Fused`: names of dimensions, masks, and steps with their loops."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from fireiron.errors import ArgumentError
from fireiron.frozen import evolve
from fireiron.specs.formula import FUNCTIONS, REDUCTIONS, Element, Formula, Value, condition, elements_of, formula_of
from fireiron.specs.named_masks import Masks, with_conditions
from fireiron.specs.nested import Nest, flattened
from fireiron.specs.steps import EXTENTS, INDICES, Step, with_coordinates, with_extents
from fireiron.specs.terms import SumSplitter

_WORDS: Final = (*FUNCTIONS, *REDUCTIONS, "inf", "and", "or", "size")
"""Names with a meaning in formulas."""


def parsed_dims(text: object, what: str, known: Iterable[str] | None = None) -> tuple[str, ...]:
    """Parse a list of dimensions, separated by blanks."""
    if not isinstance(text, str):
        raise ArgumentError(f"Fused: {what} must be a text, names separated by blanks", got=text, legal='"m n k"')
    dims = tuple(text.replace(",", " ").split())
    wrong = [dim for dim in dims if not dim.isidentifier() or (known is not None and dim not in known)]
    if wrong or len(set(dims)) != len(dims):
        raise ArgumentError(
            f"Fused: {what} must be different names of dimensions",
            got=text,
            legal="different identifiers" if known is None else tuple(known),
        )
    return dims


def parsed_positive(text: object, uses: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Parse the names of parameters passed by value that are above 0; refuse other names."""
    names = tuple(text.split()) if isinstance(text, str) else None
    numbers = [name for name, dims in uses.items() if not dims]
    if names is None or not set(names) <= set(numbers) or len(set(names)) < len(names):
        raise ArgumentError(
            "Fused: positive must be a text with names of different operands without dimensions, separated by spaces",
            got=text,
            legal=" ".join(numbers) or "none here",
            hint=f"positive={' '.join(numbers)!r}" if numbers else None,
        )
    return names


def named_steps(parts: Iterable[tuple[str, object]], loops: Collection[str]) -> dict[str, list[tuple[str, Any, Nest]]]:
    """Return the steps of each part, with their formulas and the nested loops around them.

    Raises: ArgumentError if the name of a step is not an identifier, or occurs twice.
    """
    steps: dict[str, list[tuple[str, Any, Nest]]] = {}
    for part, formulas in parts:
        if not isinstance(formulas, Mapping):
            raise ArgumentError(
                f"Fused: {part} must be a mapping from names of steps to formulas", got=formulas, legal='{"mm": "acc[m,n] = ..."}'
            )
        steps[part] = [*flattened(formulas, part, loops)]
    names = [name for items in steps.values() for name, _, _ in items]
    for part, items in steps.items():
        for name, _, _ in items:
            if not isinstance(name, str) or not name.isidentifier() or names.count(name) > 1:
                twice = isinstance(name, str) and names.count(name) > 1
                apart = sum(name in (other for other, _, _ in others) for others in steps.values()) > 1
                what = f"Fused: the step {name} is in two {'parts' if apart else 'loops'}" if twice else ""
                what = what or f"Fused: {name!r} in {part} is not a name for a step"
                raise ArgumentError(what, legal="different identifiers", hint="another name for one of them" if twice else None)
    return steps


def parsed_masks(texts: Mapping[str, str], order: tuple[str, ...], uses: Collection[str]) -> Masks:
    """Parse conditions by name; each may use the names of those before it."""
    masks: dict[str, Value] = {}
    for name, text in texts.items():
        if not isinstance(name, str) or not name.isidentifier() or name in _WORDS or name.startswith((INDICES, EXTENTS)):
            raise ArgumentError(
                f"Fused: mask names a condition {name!r}", legal='an identifier without another meaning: {"causal": "n <= m"}'
            )
        if name in order or name in uses:
            raise ArgumentError(f"Fused: {name} is a mask and {'a dimension' if name in order else 'an operand'}", hint="another name")
        if not isinstance(text, str):
            raise ArgumentError(f"Fused: mask {name} is a text", got=text, legal='"n <= m"')
        try:
            value = with_conditions(condition(with_extents(text)), masks)
        except ArgumentError as error:
            error.asked = f"mask {name}: {error.asked}"
            raise
        value = with_coordinates(value, order)
        for element in elements_of(value):
            _check_extent(element, f"mask {name}", text, order)
        assert value is not None
        masks[name] = value
    return tuple(masks.items())


def _check_extent(element: Element, what: str, text: str, order: tuple[str, ...]) -> None:
    """Refuse the extent of a dimension that the definition does not have."""
    if element.tensor.startswith(EXTENTS) and element.tensor[len(EXTENTS) :] not in order:
        raise ArgumentError(f"{what}: size({element.tensor[len(EXTENTS) :]}) names no dimension", got=text, legal=order)


def parsed_step(text: object, step: str, order: tuple[str, ...], masks: Masks) -> Formula:
    """Parse the formula of a step, with coordinates and extents as operands, and conditions instead of names of masks."""
    if not isinstance(text, str):
        raise ArgumentError(f"Fused: the formula of step {step} must be a text", got=text)
    try:
        parsed = formula_of(with_extents(text))
        value = with_conditions(parsed.value, dict(masks))
    except ArgumentError as error:
        error.asked = f"step {step}: {error.asked}"
        raise
    for element in parsed.elements:
        _check_extent(element, f"step {step}", text, order)
    value = with_coordinates(value, order)
    reads = [element for element in elements_of(value) if element.tensor == parsed.target.tensor]
    if any(element.index != parsed.target.index for element in reads):
        raise ArgumentError(f"step {step}: {parsed.output} is read at other indices than it is written", got=text)
    return evolve(parsed, value=value)


def with_terms(steps: Sequence[Step], names: Iterable[str], single: Collection[str]) -> tuple[Step, ...]:
    """Insert steps that compute the terms of sums of expressions."""
    used_names = {*names, *(name for step in steps for name in (step.name, step.formula.output))}
    sums = SumSplitter(used_names, single, INDICES)
    split = ((step, sums.split(step.name, step.formula)) for step in steps)
    return tuple(evolve(step, name=name, formula=formula) for step, terms in split for name, formula in terms)
