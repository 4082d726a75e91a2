"""Refuse definitions that no kernel can compute, or whose parts contradict each other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from fireiron.errors import ArgumentError, closest
from fireiron.spec import TAKEN
from fireiron.specs.bits import Range
from fireiron.specs.formula import DECOMPRESSED, FUNCTIONS, REDUCTIONS, Element, Index
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.integers import is_integral, range_of
from fireiron.specs.steps import EXTENTS, INDICES, SECOND_LOOP, Step, shown
from fireiron.values.cuda_names import is_taken
from fireiron.values.machine import DType


def check_names(name: object, order: tuple[str, ...], uses: Mapping[str, Any], roles: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse names that are not identifiers, or that have another meaning."""
    if not isinstance(name, str) or not name.isidentifier() or not name.isascii() or name.startswith("__"):
        raise ArgumentError("Fused: the name of a definition must be an identifier of CUDA C++", got=name, legal="softmax, my_kernel")
    for label in (*order, *uses):
        reserved = label in FUNCTIONS or label in REDUCTIONS or label in TAKEN or label in ("inf", "and", "or", DECOMPRESSED)
        if reserved or label.startswith((INDICES, EXTENTS)):
            raise ArgumentError(f"Fused: {label} is a reserved name", hint="another name")
    _check_cuda_names(order, uses)
    both = set(order) & set(uses)
    if both:
        raise ArgumentError(f"Fused: {both.pop()} is a dimension and an operand")
    dims_with_role = [dim for dims in roles.values() for dim in dims]
    twice = [dim for dim in dims_with_role if dims_with_role.count(dim) > 1]
    if twice:
        raise ArgumentError(f"Fused: {twice[0]} has two roles", got={role: dims for role, dims in roles.items() if twice[0] in dims})


def _check_cuda_names(order: tuple[str, ...], uses: Iterable[str]) -> None:
    """Refuse names of dimensions and operands that CUDA C++ cannot have, or that have a meaning there."""
    for label in order:
        if not label.isascii() or label.startswith("__"):
            raise ArgumentError(f"Fused: {label} is not an identifier of CUDA C++", legal="ASCII letters, without two leading underscores")
    for label in uses:
        if not label.isascii() or is_taken(label):
            raise ArgumentError(
                f"Fused: the operand name {label} has a meaning in CUDA C++", legal="an identifier of ASCII letters",
                hint=f"{label.strip('_') if label.isascii() else 'x'}_values, or another name",
            )  # fmt: skip


def check_typed(types: Sequence[tuple[str, DType]], names: Sequence[str]) -> None:
    """Refuse a type for a name that the definition does not have."""
    for name, _ in types:
        if name not in names:
            raise ArgumentError(f"Fused: types has {name}, which is neither an operand nor a temporary", got=name, legal=names)


def check_array_dims(definition: FusedDefinition, declared: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse operands whose array has a dimension that no index of it determines, because its operand is not indirect."""
    for name, dims in declared.items():
        loose = [dim for dim in dims if dim in definition.array_dims and all(operand.operand != name for operand in definition.indexed)]
        if loose:
            raise ArgumentError(
                f"Fused: {name} has the dimension {loose[0]}, which no formula has", legal=definition.order,
                hint=f"a dimension of formulas, or an index such as {name}[rows[m]]",
            )  # fmt: skip


def check_terms(definition: FusedDefinition, step: Step, types: Mapping[str, DType], ranges: Mapping[str, Range]) -> None:
    """Refuse a reduction or scan with an integer result whose terms are integers that their type, a float, would round."""
    formula = step.formula
    if not (formula.reduces or formula.scans) or types[formula.output].kind != "int":
        return
    for terms in dict.fromkeys(element.tensor for element in formula.elements):
        writers = [other.formula for other in definition.steps if other.formula.output == terms and other.formula.reduction is None]
        values = [writer.value for writer in writers if writer.value is not None and is_integral(writer.value, ranges)]
        exact = 1 << types[terms].mantissa if terms in definition.hidden and types[terms].kind == "float" else 0
        spans = [range_of(value, ranges) for value in values] if exact else []
        if any(span is None or span[0] < -exact or span[1] > exact for span in spans):
            raise ArgumentError(
                f"step {step.name}: its terms {terms} are integers that may need more than 32 bits, and {types[terms]} rounds them",
                got=shown(formula), legal="terms that fit in int32",
                hint=f"types={{{terms!r}: int32}} keeps their low 32 bits; float64 has 53 bits",
            )  # fmt: skip


def check_steps(definition: FusedDefinition) -> None:
    """Refuse reads of tensors before any write, invalid dimensions, outputs that no step writes, and unused operands."""
    known = dict(definition.uses)
    written: set[str] = set(definition.uses) - set(definition.outputs)
    for step in definition.steps:
        formula = step.formula
        if not formula.output.isascii() or formula.output.startswith("__"):
            raise ArgumentError(
                f"step {step.name}: {formula.output} is not an identifier of CUDA C++",
                legal="ASCII letters, without two leading underscores",
            )
        for element in (formula.target, *formula.elements):
            _check_element(step, element, known, definition)
        if formula.output in definition.added:
            _check_added(definition, step)
            written.add(formula.output)
        _check_reads(definition, step, written)
        known.setdefault(formula.output, formula.target.dims)
        written.add(formula.output)
        if formula.output in definition.uses and formula.output in (element.tensor for element in formula.elements):
            raise ArgumentError(
                f"step {step.name}: the operand {formula.output} is read and written", got=shown(formula), hint="a temporary"
            )
    _check_operands(definition)
    _check_roles(definition)


def _check_reads(definition: FusedDefinition, step: Step, written: Collection[str]) -> None:
    """Refuse a step that reads an unknown tensor, or one before any write."""
    formula = step.formula
    for name in step.reads:
        if name not in written and name not in definition.temporaries and not name.startswith((INDICES, EXTENTS)):
            names = [*definition.arrays, *definition.temporaries]
            meant = closest(name, names)
            raise ArgumentError(
                f"step {step.name}: {name} is not an operand, and no step writes it",
                got=shown(formula), legal=names,
                hint=f"did you mean {meant}?" if meant else "an operand, or an earlier step that writes it",
            )  # fmt: skip
        if name not in written and not name.startswith(EXTENTS):
            hint = f"init={{...: '{formula.target} = 0'}}" if name == formula.output else "an earlier step that writes it"
            raise ArgumentError(f"step {step.name}: {name} is read before it is written", got=shown(formula), hint=hint)


def _check_operands(definition: FusedDefinition) -> None:
    """Refuse operands that no step accesses, and a definition without an output."""
    accessed = {name for step in definition.steps for name in (*step.reads, step.formula.output)} | {*definition.tables}
    idle = [operand for operand in definition.uses if not operand.startswith(INDICES) and operand not in accessed]
    if idle:
        raise ArgumentError(f"Fused: no step reads or writes {idle[0]}", legal="operands that steps access")
    if not definition.outputs:
        raise ArgumentError("Fused: no step writes an operand", legal=definition.arrays)


def _check_added(definition: FusedDefinition, step: Step) -> None:
    """Refuse a step that adds to an operand if another step stores or reads it, or if it does not add."""
    formula = step.formula
    name, target = formula.output, formula.target
    what = f"step {step.name}: {formula.sign} combines with the operand {name}"
    stored = next((other for other in definition.steps if other.formula.output == name and not other.formula.accumulates), None)
    if stored is not None:
        raise ArgumentError(
            f"{what}, and step {stored.name} stores it: blocks are not ordered", got=shown(formula),
            legal="= in one step, or += in all of them",
            hint=f"accumulate to a temporary, and then {target} = ...",
        )  # fmt: skip
    if formula.combiner == "prod":
        raise ArgumentError(
            f"{what}, but only sums, maxima and minima are combined in memory", got=shown(formula),
            legal=f"{target} += ..., {target} max= ..., {target} min= ...", hint=f"combine in a temporary, and then {target} = ...",
        )  # fmt: skip
    other = next(step for step in definition.steps if step.formula.output == name)
    if other.formula.combiner != formula.combiner:
        raise ArgumentError(
            f"{what}, and step {other.name} by {other.formula.sign}: the result would depend on their order", got=shown(formula),
            legal=f"{other.formula.sign} in all steps that write {name}", hint="two outputs",
        )  # fmt: skip
    reader = next((other for other in definition.steps if any(element.tensor == name for element in other.formula.elements)), None)
    if reader is not None:
        raise ArgumentError(
            f"{what}, and step {reader.name} reads it before all blocks have added", got=shown(reader.formula),
            hint=f"read the temporaries from which {name} is computed, or read {name} in a separate kernel",
        )  # fmt: skip


def _check_roles(definition: FusedDefinition) -> None:
    """Refuse roles that steps contradict: an unused dimension, a loop over a dimension that `body` lacks, a reduction over one element."""
    dims_of_step = {step.name: _dims_of_step(step) for step in definition.steps}
    idle = [dim for dim in definition.order if not any(dim in dims for dims in dims_of_step.values())]
    if idle:
        raise ArgumentError(f"Fused: no step has the dimension {idle[0]}", legal="dimensions of formulas", hint="remove it from dims")
    for dim in definition.loops:
        inside = {name for step in definition.steps if dim in definition.loops_around(step) for name in dims_of_step[step.name]}
        if dim not in inside:
            where = f"the loop over {dim}" if dim in definition.nested else "body"
            raise ArgumentError(f"Fused: no step of {where} has the loop's dimension {dim}", legal=sorted(inside))
    _check_scanned(definition, dims_of_step)
    _check_single_elements(definition)
    _check_batch(definition)
    around = [step for step in definition.steps if step.part != "body"]
    if around and not definition.loops:
        what = f"step {around[0].name}: {around[0].part} is for steps around a loop, and the definition has no loop"
        raise ArgumentError(what, hint=f"body={{{around[0].name!r}: ...}}, or loop=... names dimensions of a loop")


def _dims_of_step(step: Step) -> set[str]:
    """The dimensions of a step: those of its elements, and those that it reduces."""
    return {dim for element in (*step.formula.elements, step.formula.target) for dim in element.dims} | {*step.formula.over}


def _check_scanned(definition: FusedDefinition, dims_of_step: Mapping[str, Collection[str]]) -> None:
    """Refuse a step outside of the nested loop of a `scan` dimension that has this dimension."""
    for step in definition.steps:
        outside = [dim for dim in definition.nested if dim in definition.scan and dim not in definition.loops_around(step)]
        outside = [dim for dim in outside if dim in dims_of_step[step.name]]
        if outside:
            raise ArgumentError(
                f"step {step.name} has the dimension {outside[0]}, but is not in the loop over {outside[0]}", got=shown(step.formula),
                legal=f"steps of the loop over {outside[0]}", hint=f"{outside[0]} in loop instead of scan, or move the step into the loop",
            )  # fmt: skip


def _check_single_elements(definition: FusedDefinition) -> None:
    """Refuse a step that reduces or scans a dimension of which it has one element at a time."""
    for step in definition.steps:
        alone = [dim for dim in (*step.formula.over, *step.formula.along) if dim in (*definition.scan, *definition.batch)]
        if alone:
            verb = "scans" if step.formula.along else "reduces"
            what = f"step {step.name} {verb} {alone[0]}, but steps have only one element of {alone[0]} at a time"
            raise ArgumentError(
                what, got=shown(step.formula), hint=f"remove {alone[0]} from {'scan' if alone[0] in definition.scan else 'batch'}"
            )


def _check_batch(definition: FusedDefinition) -> None:
    """Refuse an output that lacks a batch dimension, unless blocks add to it."""
    for name in (name for name in definition.outputs if name not in definition.added):
        shared = [dim for dim in definition.batch if dim not in definition.uses[name]]
        if shared:
            element = Element(name, tuple(map(Index, definition.uses[name])))
            raise ArgumentError(
                f"Fused: {name} lacks the batch dimension {shared[0]}, so several blocks would write the same elements",
                got=str(element), legal=f"every dimension of batch in {name}", hint=f"{element} += ... for a sum over {shared[0]}",
            )  # fmt: skip


def _check_element(step: Step, element: Element, known: Mapping[str, tuple[str, ...]], definition: FusedDefinition) -> None:
    """Refuse an element with other dimensions than its tensor, or with dimensions that the step does not have."""
    if element.tensor.startswith(EXTENTS):
        return
    dims = known.get(element.tensor)
    unknown = [dim for dim in element.dims if dim not in definition.order]
    if unknown or (dims is not None and len(dims) != len(element.dims)):
        what = f"{unknown[0]} is not a dimension" if unknown else f"{element} has other dimensions than the tensor"
        what = f"step {step.name}: {what}"
        raise ArgumentError(
            what, got=shown(step.formula), legal=definition.order if unknown else f"{element.tensor}[{','.join(dims or ())}]"
        )
    free = {*step.formula.target.dims, *step.formula.over, *definition.scan, *definition.batch}
    loose = [dim for dim in element.dims if dim not in free]
    if loose:
        of = "" if element.tensor.startswith(INDICES) else f" of {element}"
        raise ArgumentError(
            f"step {step.name}: {loose[0]}{of} is neither in the result nor reduced", got=shown(step.formula),
            legal=f"{loose[0]} as an index of {step.formula.output}, or a reduction: sum({loose[0]}, ...)",
        )  # fmt: skip


def check_replaced(definition: FusedDefinition, step: Step, types: Mapping[str, DType]) -> None:
    """Refuse floats that overwrite an integer accumulator if a later iteration, or another loop, continues with its integers."""
    name = step.formula.output
    again = definition.with_second_loop()
    later = (
        any(later_step.part == SECOND_LOOP and name in later_step.reads for later_step in again.steps)
        if step.part == "final"
        else name in definition.carried
    )
    if later:
        raise ArgumentError(
            f"step {step.name} overwrites {name}, which is {types[name]}, with floats that are live across iterations",
            got=shown(step.formula), hint=f"another temporary: {name}_scaled[{','.join(step.formula.target.dims)}] = ...",
        )  # fmt: skip
