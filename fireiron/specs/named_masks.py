"""Conditions with a name, `mask={"causal": "n <= m"}`: formulas and texts of a definition use the name for the condition.

A formula contains the condition itself. So steps with the same mask have equal conditions, whether or not they use its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from fireiron.errors import ArgumentError
from fireiron.specs.formula import Element, Number, Operation, Value, elements_of

Masks = tuple[tuple[str, Value], ...]
"""Conditions by name."""


def with_conditions(value: Value | None, masks: Mapping[str, Value]) -> Value | None:
    """Replace the names of masks in a value by their conditions.

    Raises: ArgumentError if a name is not the condition of a `where`, or part of one.
    """
    if isinstance(value, Element) and value.tensor in masks:
        raise ArgumentError(f"{value.tensor} is a mask, and not a number", got=str(value), legal=f"where({value.tensor}, ..., ...)")
    if not isinstance(value, Operation):
        return value
    name = _name(value)
    if name in masks:
        return masks[name]
    return Operation(value.name, tuple(with_conditions(argument, masks) for argument in value.arguments))  # type: ignore[misc]


def _name(value: Operation) -> str:
    """Return the name that a condition consists of, which the parser reads as a comparison with zero; empty for other values."""
    if value.name != "!=" or value.arguments[1] != Number(0) or not isinstance(value.arguments[0], Element):
        return ""
    return "" if value.arguments[0].index else value.arguments[0].tensor


def with_names(value: Value | None, masks: Masks) -> Value | None:
    """Replace the conditions of masks in a value by their names, wherever they occur."""
    if not isinstance(value, Operation):
        return value
    for name, condition in masks:
        if value == condition:
            return Element(name, ())
    return Operation(value.name, tuple(with_names(argument, masks) for argument in value.arguments))  # type: ignore[misc]


def check_masks(
    masks: Masks,
    values: Iterable[Value | None],
    inputs: Sequence[str],
    temporaries: Sequence[str],
    local: tuple[str, ...],
    shown: Callable[[Value], str],
) -> None:
    """Refuse a mask that has another meaning, that no formula uses, that equals another one, or whose value may change between steps.

    Args:
        values: the values of all formulas.
        inputs: the operands that no step writes.
        temporaries: the names of temporaries.
        local: the prefixes of coordinates and extents.
        shown: the text of a condition as a user writes it.
    """
    earlier = [with_names(condition, masks[:number]) for number, (_, condition) in enumerate(masks)]
    texts = [with_names(value, masks) for value in values]
    used = {element.tensor for text in (*earlier, *texts) for element in elements_of(text)}
    for number, (name, condition) in enumerate(masks):
        if name in temporaries:
            raise ArgumentError(f"Fused: {name} is a mask and a temporary", hint="rename one of them")
        if isinstance(earlier[number], Element):
            raise ArgumentError(f"Fused: the masks {earlier[number]} and {name} are equal", got=shown(condition), hint=f"remove {name}")
        if name not in used:
            raise ArgumentError(f"Fused: no formula uses the mask {name}", legal=f"where({name}, ..., ...)", hint="remove it from mask")
        for element in elements_of(condition):
            if element.tensor not in inputs and not element.tensor.startswith(local):
                raise ArgumentError(
                    f"Fused: mask {name} reads {element}, which is not an input: its value may differ between steps", got=shown(condition),
                    legal=f"dimensions, size(...){''.join(f', {one}' for one in inputs)}", hint="write the condition in each formula",
                )  # fmt: skip
