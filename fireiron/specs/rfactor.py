"""`rfactor` of a definition: keep one reduction in partial results, one per thread or warp that has terms of it.

The partial results ("parts") have a separate dimension. A temporary that is computed from parts in the same way, such as
`l = l * alpha + sums` for a sum, is kept in parts, too. One step combines them before each step that reads the whole value. The operation
that combines parts decides what a step may do with them:

- parts of a sum are added to each other, multiplied and divided by whole values, and start at zero;
- parts of a product are multiplied and divided by each other, and start at one;
- parts of a maximum or a minimum are combined with each other and with whole values, and a whole value may be added to them.

The rewritten definition and the original one are equal for finite factors, except for rounding: sums are accumulated in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.errors import ArgumentError, DecompositionError
from fireiron.specs.formula import Element, Formula, Index, Number, Operation, Value
from fireiron.specs.fused import INDICES, FusedDefinition, Step, only_stored, shown
from fireiron.specs.meaning import neutral
from fireiron.values.machine import float64

WHOLE: Final = "whole"
PART: Final = "part"
"""The forms of a value: the same for all threads that own parts, or a separate part for each."""


def rfactor(definition: FusedDefinition, step: str) -> FusedDefinition:
    """Keep the reduction of a step in partial results, one per element of its last dimension.

    Raises: DecompositionError for a step that is not a reduction, or whose result is not a temporary, or is written as a whole elsewhere.
    """
    if not isinstance(definition, FusedDefinition) or not isinstance(step, str):
        raise ArgumentError(
            "rfactor: a definition, and the name of a step", got=(definition, step), legal='rfactor(spec.definition, "total")'
        )
    reduction = _reducing(definition, step)
    return _Rewriting(definition, reduction, _in_parts(definition, reduction)).definition()


def _reducing(definition: FusedDefinition, name: str) -> Step:
    """The step with a name, if its result can be kept in parts."""
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
    what, hint = "not the sum, maximum or minimum of one tensor", None
    if step.parts:
        what = "already in parts"
    elif step.formula.contracts:
        what, hint = "a matmul, whose instruction accumulates the terms", "split_k(...) in the strategy of the step"
    elif step.formula.reduces:
        what = f"{step.formula.output} is not a temporary in registers"
        hint = f"a temporary, and a later step {step.formula.output}[...] = ..."
    raise DecompositionError(f"rfactor({name!r}): {what}", got=shown(step.formula), legal=legal or "none", hint=hint)


# ---------------------------------------------------------------------------------------------- temporaries in parts


def _in_parts(definition: FusedDefinition, step: Step) -> tuple[str, ...]:
    """The temporaries that are kept in parts: the step's result, and those that are computed from parts alone."""
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
                got=shown(wrong.formula), legal=_LEGAL[step.formula.joins_by], hint=f"another temporary in step {wrong.name}",
            )  # fmt: skip
        left = _reachable(definition, output, tuple(name for name in left if name != wrong.formula.output))


_LEGAL: Final[Mapping[str, str]] = {
    "sum": "0, or parts added to each other, or multiplied by a whole value",
    "max": "a number, or parts combined by max, or plus a whole value",
    "min": "a number, or parts combined by min, or plus a whole value",
    "prod": "1, or parts multiplied by each other",
}
"""The legal operations on parts, by the operation that combines them, for messages."""


def _reachable(definition: FusedDefinition, output: str, kept: Sequence[str]) -> tuple[str, ...]:
    """Those of some temporaries that are computed from a part of a result."""
    reached = [output]
    for name in reached:
        readers = (reader.formula.output for reader in definition.steps if name in reader.reads)
        reached += [output_name for output_name in dict.fromkeys(readers) if output_name in kept and output_name not in reached]
    return tuple(name for name in kept if name in reached)


def _stays_in_parts(writer: Step, step: Step, left: Sequence[str]) -> bool:
    """Whether a step writes a part per thread, if the results `left` are in parts."""
    if writer.name == step.name:
        return True
    formula = writer.formula
    plain = formula.reduction is None and not formula.joins and formula.target.dims == step.formula.target.dims
    return plain and PART in _possible_forms(formula.value, left, step.formula.joins_by)


def _possible_forms(value: Value | None, left: Sequence[str], by: str) -> set[str]:
    """The forms that a value can have: whole, if it contains no part; and in parts, if the combined parts equal the combined value."""
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
    ways = _FORMS_OF_PARTS["order" if ordered else by].get(value.name if value.name not in ("max", "min") or value.name == by else "", ())
    part = any(len(way) == len(inner) and all(form in one for form, one in zip(way, inner, strict=True)) for way in ways)
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
"""The forms of the arguments for which an operation results in parts, by the operation that combines parts."""


# ---------------------------------------------------------------------------------------------- the definition


@attrs.define
class _Rewriting:
    """Rewrites the definition with some temporaries in parts, which are combined before a step reads the whole value."""

    original: FusedDefinition
    step: Step
    left: tuple[str, ...]
    steps: list[Step] = attrs.field(factory=list, init=False)
    complete: set[tuple[str, str]] = attrs.field(factory=set, init=False)

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
        """The name of the parts of each temporary."""
        used_names = (*self.original.order, *self.original.uses, *self.original.hidden)
        return {name: _other(f"{name}_parts", used_names) for name in self.left}

    def _step(self, step: Step) -> None:
        formula = step.formula
        if formula.output in self.left:
            self.complete -= {(formula.output, part) for part in ("init", "body", "final")}
            parts = self.dim if step.name == self.step.name else ""
            target = self._parts(formula.target)
            value = formula.value if parts else self._renamed(formula.value)
            self.steps.append(attrs.evolve(step, formula=attrs.evolve(formula, target=target, value=value), parts=parts))
            return
        for name in (name for name in self.left if name in step.reads and (name, step.part) not in self.complete):
            self.complete.add((name, step.part))
            dims = tuple(map(Index, self.step.formula.target.dims))
            total = Formula(Element(name, dims), "=", self._parts(Element(name, dims)), self.step.formula.joins_by, (self.dim,))
            used_names = (*self.original.names, *(other.name for other in self.steps))
            self.steps.append(Step(_other(f"{name}_whole", used_names), total, step.part))
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
    """A name that is not used yet."""
    while name in used_names:
        name += "_"
    return name


__all__ = ["rfactor"]
