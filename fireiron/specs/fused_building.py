"""Build a definition from the arguments of `Fused`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.specs.compressed import compressed_operands
from fireiron.specs.fused_checks import check_array_dims, check_steps, check_typed
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.fused_dims import dims_of_arrays, only_stored, reduced_dims, reduces_to_operand
from fireiron.specs.fused_parsing import named_steps, parsed_masks, parsed_positive, parsed_step, with_terms
from fireiron.specs.indirect import Stored, check_tables, distinct_tables, ranges_of, scattered, stored_operands
from fireiron.specs.named_masks import Masks, check_masks
from fireiron.specs.nested import check_nests, dims_of
from fireiron.specs.steps import EXTENTS, INDICES, Step, shown
from fireiron.values.machine import as_dtype

_MAPPINGS: Final = {"operands": '{"X": "m n"}', "types": '{"t": float32}', "mask": '{"causal": "n <= m"}', "outside": '{"X": "-inf"}'}
"""Arguments that are mappings from names, with an example."""


@frozen
class Arguments:
    """The arguments of `Fused`, with parsed dimensions. `uses` are the dimensions of operands, `parts` the mappings of formulas."""

    order: tuple[str, ...]
    uses: Mapping[str, tuple[str, ...]]
    roles: Mapping[str, tuple[str, ...]]
    parts: tuple[tuple[str, object], ...]
    types: Mapping[str, Any]
    positive: str
    ranges: Mapping[str, str]
    distinct: str
    mask: Mapping[str, str]
    outside: Mapping[str, float | str]

    @property
    def loops(self) -> tuple[str, ...]:
        """The dimensions of all loops."""
        return (*self.roles["loop"], *self.roles["scan"])


def check_mapping(what: str, value: object) -> None:
    """Refuse an argument that is not a mapping from names."""
    if not isinstance(value, Mapping):
        raise ArgumentError(f"Fused: {what} must be a mapping from names", got=value, legal=_MAPPINGS[what])


def definition_of(given: Arguments) -> FusedDefinition:
    """Return the definition of the arguments.

    Raises: ArgumentError, which names the step, for formulas that no kernel can compute.
    """
    masks = parsed_masks(given.mask, given.order, given.uses)
    steps, looped = _parsed_steps(given, masks)
    named_formulas = [(step.name, step.formula) for step in steps]
    compressed = compressed_operands(named_formulas, given.uses)
    of_compressed = [array for operand in compressed for array in operand.arrays]
    indirect = stored_operands(named_formulas, given.uses, given.outside, {array.operand for array in of_compressed})
    array_dims = dims_of_arrays(given.order, steps, (*indirect, *of_compressed), given.roles)
    order = tuple(dim for dim in given.order if dim not in array_dims)
    uses = {**given.uses, **{operand.operand: operand.dims for operand in (*indirect, *of_compressed)}}
    steps = with_terms(steps, (*order, *uses), (*given.roles["scan"], *given.roles["batch"]))
    operands = {**uses, **{f"{INDICES}{dim}": (dim,) for dim in order}}
    types = tuple((tensor, as_dtype(kind)) for tensor, kind in given.types.items())
    hidden = tuple(dict.fromkeys(step.formula.output for step in steps if step.formula.output not in operands))
    check_typed(types, (*uses, *hidden))
    inputs = [name for name in uses if all(step.formula.output != name for step in steps)]
    check_masks(masks, [step.formula.value for step in steps], inputs, hidden, (INDICES, EXTENTS), shown)
    definition = FusedDefinition(
        tuple(step.formula for step in steps), steps=steps, given=tuple(operands.items()), order=order,
        reduced=_dims_of_reductions(steps, order, uses, operands), stored=only_stored(steps, operands),
        names=tuple(step.name for step in steps), known=tuple(operands), hidden=hidden, types=types,
        sums=tuple(dict.fromkeys(step.formula.output for step in steps if step.formula.contracts)),
        positive=parsed_positive(given.positive, uses), masks=masks, over=given.roles["loop"], scan=given.roles["scan"], looped=looped,
        batch=given.roles["batch"], indirect=indirect, compressed=compressed, array_dims=array_dims,
        ranges=ranges_of(given.ranges, indirect), distinct=_distinct(given.distinct, steps, indirect),
    )  # fmt: skip
    check_array_dims(definition, given.uses)
    check_tables(indirect, {step.formula.output: step.name for step in steps})
    check_steps(definition)
    return definition


def _parsed_steps(given: Arguments, masks: Masks) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Return the steps of all parts, and the dimensions of the loop whose iterations are `body`."""
    steps = tuple(
        Step(step, parsed_step(text, step, given.order, masks), part, nest=nest)
        for part, formulas in named_steps(given.parts, given.loops).items()
        for step, text, nest in formulas
    )
    looped = tuple(dim for dim in given.loops if dim not in dims_of(step.nest for step in steps))
    check_nests([(step.part, step.nest) for step in steps], looped, given.roles)
    return steps, looped


def _dims_of_reductions(
    steps: tuple[Step, ...], order: tuple[str, ...], uses: Mapping[str, Any], operands: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the dimensions of which one tile must contain all elements, because a step reduces them to a tensor that a step reads."""
    reduced = reduced_dims([step for step in steps if not reduces_to_operand(step, steps, uses)], operands)
    return tuple(dim for dim in order if dim in reduced)


def _distinct(text: str, steps: tuple[Step, ...], indirect: tuple[Stored, ...]) -> tuple[str, ...]:
    """Return the arrays of integers with distinct indices. Only stores require them; additions to an operand do not."""
    stored = {step.formula.output: step.name for step in steps if not step.formula.accumulates}
    return distinct_tables(text, scattered(indirect, stored))
