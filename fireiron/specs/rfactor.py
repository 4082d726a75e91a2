"""`rfactor` of a definition: keep a reduction in partial results, one per thread or warp that has some of its terms.

The partial results ("parts") have a separate dimension. If a temporary such as `l = l * alpha + sums` can be computed from parts, it is
kept in parts, too. A new step combines the parts before each step that reads the whole value. The operation that combines parts determines
the legal operations on them:

- parts of a sum are added to each other, multiplied and divided by whole values, and start at zero;
- parts of a product are multiplied and divided by each other, and start at one;
- parts of a maximum or a minimum are combined with each other and with whole values, and a whole value may be added to them.

For finite factors, the results of the rewritten definition differ only by rounding, because sums are accumulated in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.errors import ArgumentError, DecompositionError
from fireiron.specs.formula import Element, Formula, Index, Number, Operation, Value
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.fused_dims import only_stored
from fireiron.specs.meaning import neutral
from fireiron.specs.nested import Nest
from fireiron.specs.steps import INDICES, Step, shown
from fireiron.values.machine import float64

WHOLE: Final = "whole"
PART: Final = "part"
"""The forms of a value: equal in all threads that own parts, or a separate part in each."""


def rfactor(definition: FusedDefinition, step: str) -> FusedDefinition:
    """Keep the reduction of a step in partial results, one per element of its last dimension.

    Raises: DecompositionError for a step that is not a reduction, or whose result is not a temporary, or if another step writes the whole
    result.
    """
    if not isinstance(definition, FusedDefinition) or not isinstance(step, str):
        raise ArgumentError(
            "rfactor needs a definition and the name of a step", got=(definition, step), legal='rfactor(spec.definition, "total")'
        )
    reduction = _reducing(definition, step)
    return _Rewriting(definition, reduction, _in_parts(definition, reduction)).definition()


def _reducing(definition: FusedDefinition, name: str) -> Step:
    """Return the step with a name, or refuse it if its result cannot be kept in parts."""
    steps = {other.name: other for other in definition.steps}
    if name not in definition.names:
        raise DecompositionError(f"rfactor({name!r}): the definition has no such step", legal=definition.names)
    legal = [
        other.name
        for other in definition.steps
        if other.formula.reduces and other.formula.output in definition.temporaries and not other.parts
    ]
    if name not in steps or len(steps) < len(definition.names):
        raise DecompositionError(
            f"rfactor({name!r}): this is a part of the definition, and another part may read its result", legal=definition.names,
            hint="rfactor(...) before split(...)",
        )  # fmt: skip
    step = steps[name]
    if name in legal:
        return step
    what, hint = "the step is not the sum, maximum or minimum of one tensor", None
    if step.parts:
        what = "the step is already in parts"
    elif step.formula.contracts:
        what, hint = "the step is a matmul, whose instruction accumulates the terms", "split_k(...) in the strategy of the step"
    elif step.formula.reduces:
        what = f"{step.formula.output} is not a temporary in registers"
        hint = f"reduce to a temporary, and add a later step {step.formula.output}[...] = ..."
    raise DecompositionError(f"rfactor({name!r}): {what}", got=shown(step.formula), legal=legal or "none", hint=hint)


# ---------------------------------------------------------------------------------------------- temporaries in parts


def _in_parts(definition: FusedDefinition, step: Step) -> tuple[str, ...]:
    """Return the temporaries that are kept in parts: the result of the step, and those that are computed from parts only."""
    output, dims = step.formula.target.tensor, step.formula.target.dims
    same_dims = tuple(name for name, others in definition.temporaries.items() if others == dims)
    left = _reachable(definition, output, same_dims)
    while True:
        wrong = next(
            (writer for writer in definition.steps if writer.formula.output in left and not _stays_in_parts(writer, step, left)), None
        )
        if wrong is None:
            return left
        if wrong.formula.output == output:
            raise DecompositionError(
                f"rfactor({step.name!r}): step {wrong.name} writes {output} in a way that does not distribute over its parts",
                got=shown(wrong.formula), legal=_LEGAL[step.formula.combiner], hint=f"write another temporary in step {wrong.name}",
            )  # fmt: skip
        left = _reachable(definition, output, tuple(name for name in left if name != wrong.formula.output))


_LEGAL: Final[Mapping[str, str]] = {
    "sum": "0, or parts added to each other, or multiplied by a whole value",
    "max": "a number, or parts combined by max, or plus a whole value",
    "min": "a number, or parts combined by min, or plus a whole value",
    "prod": "1, or parts multiplied by each other",
}
"""Legal values of a step that writes parts, by the operation that combines parts; for messages."""


def _reachable(definition: FusedDefinition, output: str, kept: Sequence[str]) -> tuple[str, ...]:
    """Return the temporaries in `kept` that depend on a result, directly or through other temporaries in `kept`."""
    reached = [output]
    for name in reached:
        readers = (reader.formula.output for reader in definition.steps if name in reader.reads)
        reached += [output_name for output_name in dict.fromkeys(readers) if output_name in kept and output_name not in reached]
    return tuple(name for name in kept if name in reached)


def _stays_in_parts(writer: Step, step: Step, left: Sequence[str]) -> bool:
    """Whether a step writes one part per thread if the temporaries `left` are in parts."""
    if writer.name == step.name:
        return True
    formula = writer.formula
    plain = (
        formula.reduction is None and formula.scan is None and not formula.accumulates and formula.target.dims == step.formula.target.dims
    )
    return plain and PART in _possible_forms(formula.value, left, step.formula.combiner)


def _possible_forms(value: Value | None, left: Sequence[str], by: str) -> set[str]:
    """Return the possible forms of a value: `WHOLE` if it contains no part; `PART` if combining its parts gives the value itself."""
    ordered = by in ("max", "min")
    if isinstance(value, Number):
        return {WHOLE, PART} if ordered or value.value == neutral(by, float64) else {WHOLE}
    if isinstance(value, Element):
        if value.tensor in left:
            return {PART}
        return {WHOLE, PART} if ordered else {WHOLE}
    assert isinstance(value, Operation)
    inner = [_possible_forms(argument, left, by) for argument in value.arguments]
    whole = {WHOLE} if all(WHOLE in forms for forms in inner) else set()
    argument_forms = _FORMS_OF_PARTS["order" if ordered else by].get(
        value.name if value.name not in ("max", "min") or value.name == by else "", ()
    )
    part = any(
        len(forms) == len(inner) and all(form in possible for form, possible in zip(forms, inner, strict=True)) for forms in argument_forms
    )
    if ordered and value.name == "*":
        part = part and any(isinstance(argument, Number) and argument.value > 0 for argument in value.arguments)
    return whole | ({PART} if part or (ordered and whole) else set())


_FORMS_OF_PARTS: Final[Mapping[str, Mapping[str, Sequence[tuple[str, ...]]]]] = {
    "sum": {
        "+": ((PART, PART),),
        "-": ((PART, PART), (PART,)),
        "*": ((PART, WHOLE), (WHOLE, PART)),
        "/": ((PART, WHOLE),),
        "where": ((WHOLE, PART, PART),),
    },
    "prod": {"*": ((PART, PART),), "/": ((PART, PART),)},
    "order": {
        "+": ((PART, WHOLE), (WHOLE, PART)),
        "-": ((PART, WHOLE),),
        "*": ((PART, WHOLE), (WHOLE, PART)),
        "max": ((PART, PART),),
        "min": ((PART, PART),),
        "relu": ((PART,),),
        "where": ((WHOLE, PART, PART),),
    },
}
"""By the operation that combines parts: for each operation, the forms of its arguments for which its results are parts."""


# ---------------------------------------------------------------------------------------------- the definition


@attrs.define
class _Rewriting:
    """Rewrites the definition with the temporaries `left` in parts, which a new step combines before a step reads the whole value."""

    original: FusedDefinition
    step: Step
    left: tuple[str, ...]
    steps: list[Step] = attrs.field(factory=list, init=False)
    complete: set[tuple[str, str, Nest]] = attrs.field(factory=set, init=False)

    def definition(self) -> FusedDefinition:
        original = self.original
        for step in original.steps:
            self._step(step)
        given = (*original.given, (f"{INDICES}{self.dim}", (self.dim,)))
        types = dict(original.types)
        types |= {self.parts_of[name]: types[name] for name in self.left if name in types}
        return original.of(
            steps=tuple(self.steps), given=given, order=(*original.order, self.dim), reduced=(*original.reduced, self.dim),
            stored=only_stored(self.steps, dict(given)), names=tuple(step.name for step in self.steps),
            known=(*original.known, f"{INDICES}{self.dim}"), types=tuple(types.items()),
            hidden=tuple(dict.fromkeys((*original.hidden, *self.parts_of.values()))),
        )  # fmt: skip

    @property
    def dim(self) -> str:
        """The name of the dimension of the parts."""
        return _other(f"{self.step.name}_part", (*self.original.order, *self.original.uses))

    @property
    def parts_of(self) -> Mapping[str, str]:
        """The name of the parts, by name of temporary."""
        used_names = (*self.original.order, *self.original.uses, *self.original.hidden)
        return {name: _other(f"{name}_parts", used_names) for name in self.left}

    def _step(self, step: Step) -> None:
        formula = step.formula
        if formula.output in self.left:
            self.complete -= {entry for entry in self.complete if entry[0] == formula.output}
            parts = self.dim if step.name == self.step.name else ""
            target = self._parts(formula.target)
            value = formula.value if parts else self._renamed(formula.value)
            self.steps.append(attrs.evolve(step, formula=attrs.evolve(formula, target=target, value=value), parts=parts))
            return
        for name in (name for name in self.left if name in step.reads and (name, step.part, step.nest) not in self.complete):
            self.complete.add((name, step.part, step.nest))
            dims = tuple(map(Index, self.step.formula.target.dims))
            total = Formula(Element(name, dims), "=", self._parts(Element(name, dims)), self.step.formula.combiner, (self.dim,))
            used_names = (*self.original.names, *(other.name for other in self.steps))
            self.steps.append(Step(_other(f"{name}_whole", used_names), total, step.part, nest=step.nest))
        self.steps.append(step)

    def _parts(self, element: Element) -> Element:
        return Element(self.parts_of[element.tensor], (*element.index, Index(self.dim)))

    def _renamed(self, value: Value | None) -> Any:
        if isinstance(value, Element):
            return self._parts(value) if value.tensor in self.left else value
        if isinstance(value, Operation):
            return Operation(value.name, tuple(map(self._renamed, value.arguments)))
        return value


def _other(name: str, used_names: Iterable[str]) -> str:
    """Return the name with underscores added until it is not in use."""
    while name in used_names:
        name += "_"
    return name


__all__ = ["rfactor"]
