"""`rfactor` of a definition: one reduction is kept in partial results, one for each thread or warp that has some of its terms.

The parts have a dimension of their own. A temporary that is computed from parts in the same way, such as `l = l * alpha + sums` of a sum,
is kept in parts too; one step completes it before each step that reads it otherwise. What a step may do to parts depends on how they join:

- parts of a sum are added to each other, multiplied and divided by whole values, and begin at zero;
- parts of a product are multiplied and divided by each other, and begin at one;
- parts of a maximum or a minimum are joined with each other and with whole values, and a whole value may be added to them.

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
"""What a value can be: the same for all who hold parts, or a part for each."""


def rfactor(definition: FusedDefinition, step: str) -> FusedDefinition:
    """Keep the reduction of a step in partial results, as many as its last dimension has elements.

    Raises: DecompositionError for a step that is not a reduction, whose result is not a temporary, or is written as a whole elsewhere.
    """
    if not isinstance(definition, FusedDefinition) or not isinstance(step, str):
        raise ArgumentError(
            "rfactor: a definition, and the name of a step", got=(definition, step), legal='rfactor(spec.definition, "total")'
        )
    reduction = _reducing(definition, step)
    return _Rewriting(definition, reduction, _left(definition, reduction)).definition()


def _reducing(made: FusedDefinition, name: str) -> Step:
    """The step by its name, if its result can be left in parts."""
    found = {one.name: one for one in made.steps}
    if name not in made.names:
        raise DecompositionError(f"rfactor({name!r}): the definition has no such step", legal=made.names)
    legal = [one.name for one in made.steps if one.formula.reduces and one.formula.output in made.temporaries and not one.parts]
    if name not in found or len(found) < len(made.names):
        raise DecompositionError(
            f"rfactor({name!r}): this is a part of the definition, in which others may read its result", legal=made.names,
            hint="rfactor(...) before split(...)",
        )  # fmt: skip
    step = found[name]
    if name in legal:
        return step
    what, hint = "no sum, maximum or minimum of one tensor", None
    if step.parts:
        what = "in parts already"
    elif step.formula.contracts:
        what, hint = "a product, whose terms its instruction adds up", "split_k(...) in the strategy of the step"
    elif step.formula.reduces:
        what = f"{step.formula.output} is no temporary in registers"
        hint = f"a temporary, and a step {step.formula.output}[...] = ... behind it"
    raise DecompositionError(f"rfactor({name!r}): {what}", got=shown(step.formula), legal=legal or "none", hint=hint)


# ---------------------------------------------------------------------------------------------- what stays in parts


def _left(made: FusedDefinition, step: Step) -> tuple[str, ...]:
    """The temporaries that are left in parts: the step's result, and what is made of parts alone all the way."""
    output, dims = step.formula.target.tensor, step.formula.target.dims
    alike = tuple(name for name, others in made.temporaries.items() if others == dims)
    found = _reached(made, output, alike)
    while True:
        wrong = next((one for one in made.steps if one.formula.output in found and not _stays(one, step, found)), None)
        if wrong is None:
            return found
        if wrong.formula.output == output:
            raise DecompositionError(
                f"rfactor({step.name!r}): step {wrong.name} writes {output} otherwise, so that its parts would not make the same",
                got=shown(wrong.formula), legal=_LEGAL[step.formula.joins_by], hint=f"another temporary in step {wrong.name}",
            )  # fmt: skip
        found = _reached(made, output, tuple(name for name in found if name != wrong.formula.output))


_LEGAL: Final[Mapping[str, str]] = {
    "sum": "0, or parts added to each other, or times something whole",
    "max": "a number, or parts joined by max, or plus something whole",
    "min": "a number, or parts joined by min, or plus something whole",
    "prod": "1, or parts multiplied with each other",
}
"""What may be made of parts, for people, by how they meet."""


def _reached(made: FusedDefinition, output: str, kept: Sequence[str]) -> tuple[str, ...]:
    """Those of some temporaries into which a part of a result goes."""
    found = [output]
    for name in found:
        readers = (one.formula.output for one in made.steps if name in one.reads)
        found += [one for one in dict.fromkeys(readers) if one in kept and one not in found]
    return tuple(name for name in kept if name in found)


def _stays(one: Step, step: Step, left: Sequence[str]) -> bool:
    """Whether what a step writes is a part for each, if the results that are `left` are parts."""
    if one.name == step.name:
        return True
    made = one.formula
    plain = made.reduction is None and not made.joins and made.target.dims == step.formula.target.dims
    return plain and PART in _forms(made.value, left, step.formula.joins_by)


def _forms(value: Value | None, left: Sequence[str], by: str) -> set[str]:
    """What a value can be: whole, as no part is in it; a part for each, which, joined, make what the value of the joined is."""
    ordered = by in ("max", "min")
    if isinstance(value, Number):
        return {WHOLE, PART} if ordered or value.value == neutral(by, float64) else {WHOLE}
    if isinstance(value, Element):
        if value.tensor in left:
            return {PART}
        return {WHOLE, PART} if ordered else {WHOLE}
    assert isinstance(value, Operation)
    inner = [_forms(one, left, by) for one in value.arguments]
    whole = {WHOLE} if all(WHOLE in one for one in inner) else set()
    ways = _WAYS["order" if ordered else by].get(value.name if value.name not in ("max", "min") or value.name == by else "", ())
    part = any(len(way) == len(inner) and all(form in one for form, one in zip(way, inner, strict=True)) for way in ways)
    if ordered and value.name == "*":
        part = part and any(isinstance(one, Number) and one.value > 0 for one in value.arguments)
    return whole | ({PART} if part or (ordered and whole) else set())


_WAYS: Final[Mapping[str, Mapping[str, Sequence[tuple[str, ...]]]]] = {
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
"""By how parts meet: the forms of the arguments of which an operation makes a part for each."""


# ---------------------------------------------------------------------------------------------- the definition


@attrs.define
class _Rewriting:
    """The definition with some temporaries in parts, completed where a step reads them as a whole."""

    made: FusedDefinition
    step: Step
    left: tuple[str, ...]
    steps: list[Step] = attrs.field(factory=list, init=False)
    complete: set[tuple[str, str]] = attrs.field(factory=set, init=False)

    def definition(self) -> FusedDefinition:
        made = self.made
        for one in made.steps:
            self._step(one)
        given = (*made.given, (f"{INDICES}{self.dim}", (self.dim,)))
        types = dict(made.types)
        types |= {self.parts_of[name]: types[name] for name in self.left if name in types}
        return made.of(
            steps=tuple(self.steps), given=given, order=(*made.order, self.dim), reduced=(*made.reduced, self.dim),
            stored=only_stored(self.steps, dict(given)), names=tuple(one.name for one in self.steps),
            known=(*made.known, f"{INDICES}{self.dim}"), types=tuple(types.items()),
            hidden=tuple(dict.fromkeys((*made.hidden, *self.parts_of.values()))),
        )  # fmt: skip

    @property
    def dim(self) -> str:
        """The dimension of the parts."""
        return _other(f"{self.step.name}_part", (*self.made.order, *self.made.uses))

    @property
    def parts_of(self) -> Mapping[str, str]:
        """How the temporaries are called whose parts they are."""
        taken = (*self.made.order, *self.made.uses, *self.made.hidden)
        return {name: _other(f"{name}_parts", taken) for name in self.left}

    def _step(self, one: Step) -> None:
        formula = one.formula
        if formula.output in self.left:
            self.complete -= {(formula.output, part) for part in ("init", "body", "final")}
            parts = self.dim if one.name == self.step.name else ""
            target = self._parts(formula.target)
            value = formula.value if parts else self._renamed(formula.value)
            self.steps.append(attrs.evolve(one, formula=attrs.evolve(formula, target=target, value=value), parts=parts))
            return
        for name in (name for name in self.left if name in one.reads and (name, one.part) not in self.complete):
            self.complete.add((name, one.part))
            dims = tuple(map(Index, self.step.formula.target.dims))
            total = Formula(Element(name, dims), "=", self._parts(Element(name, dims)), self.step.formula.joins_by, (self.dim,))
            taken = (*self.made.names, *(other.name for other in self.steps))
            self.steps.append(Step(_other(f"{name}_whole", taken), total, one.part))
        self.steps.append(one)

    def _parts(self, element: Element) -> Element:
        return Element(self.parts_of[element.tensor], (*element.index, Index(self.dim)))

    def _renamed(self, value: Value | None) -> Any:
        if isinstance(value, Element):
            return self._parts(value) if value.tensor in self.left else value
        if isinstance(value, Operation):
            return Operation(value.name, tuple(map(self._renamed, value.arguments)))
        return value


def _other(name: str, taken: Iterable[str]) -> str:
    """A name that is not taken."""
    while name in taken:
        name += "_"
    return name


__all__ = ["rfactor"]
