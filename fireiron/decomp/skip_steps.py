"""`skip_steps`: a warp-uniform branch around steps of a fused definition that would not change any value."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.ir import Hole
from fireiron.language.tree import Child, Context, Decomposition, Expansion, legal_among, verb
from fireiron.spec import Spec
from fireiron.specs.formula import Element, Index, Operation, Value, formula_of
from fireiron.specs.fused import FusedKind, fused
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.steps import Skipped
from fireiron.stepping.predicated_region import equalities, values_if_skipped
from fireiron.stepping.steps import unchanged


def _names(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@frozen
class SkipSteps(Decomposition):
    """A branch by which a warp skips steps if a condition holds for all elements of its threads; see the verb `skip_steps`.

    rewrite: alpha[m] = f; l[m] = l[m] * alpha[m] --> alpha[m] = 1; if needed: { alpha[m] = f; l[m] = l[m] * alpha[m] }
    """

    verb: ClassVar[str] = "skip_steps"
    kinds: ClassVar[tuple[str, ...]] = ("Fused",)
    steps: tuple[str, ...] = attrs.field(converter=_names)
    where: str

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.steps, tuple) or not self.steps or not all(isinstance(name, str) for name in self.steps):
            raise ArgumentError(
                "skip_steps needs the names of steps", got=self.steps, legal='skip_steps("scale", where="alpha == 1")', at=call_site()
            )
        if len(set(self.steps)) != len(self.steps):
            raise ArgumentError("skip_steps: a step is named twice", got=self.steps, at=call_site())
        _condition(self.where)

    def label(self) -> str:
        return f"skip_steps({', '.join(map(repr, self.steps))}, where={self.where!r})"

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[SkipSteps]:
        definition = fused(spec)
        if definition is None:
            return
        same = [
            pair for pair in itertools.combinations(definition.temporaries, 2) if len({definition.temporaries[name] for name in pair}) == 1
        ]
        conditions = [
            *(f"{name} == {other}" for name, other in same),
            *(f"{name} == {number}" for name in definition.temporaries for number in (0, 1)),
        ]
        steps = (SkipSteps((name,), where) for name, where in itertools.product(definition.names, conditions))
        yield from legal_among(steps, spec, context)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        definition = fused(spec)
        if definition is None or not isinstance(spec.kind, FusedKind):
            raise DecompositionError(f"{self.label()}: {spec.title} is one step", legal="a Fused definition of several steps")
        for name in self.steps:
            if name not in definition.names:
                raise DecompositionError(f"{self.label()}: {spec.title} has no step {name}", legal=definition.names)
            if any(name in other.steps for other in definition.skipped):
                raise DecompositionError(f"{self.label()}: step {name} is already skipped under another condition")
        here = tuple(step.name for step in definition.steps if step.name in self.steps)
        if not here:
            return unchanged(spec)
        skipped = Skipped(here, _of_elements(_condition(self.where), definition))
        values_if_skipped(definition, skipped)
        child = attrs.evolve(spec, kind=spec.kind.of(skipped=(*definition.skipped, skipped)))
        return Expansion((Child("body", child),), (Hole("body"),))


def _condition(text: Any) -> Operation:
    """Parse a condition. Raises: ArgumentError if the text is not one."""
    if not isinstance(text, str) or not text.strip():
        raise ArgumentError("skip_steps: where must be a condition", got=text, legal='where="alpha == 1"', at=call_site())
    try:
        value = formula_of(f"needed[i] = where({text[:]}, 0, 1)").value
    except ArgumentError as error:
        raise ArgumentError(
            "skip_steps: where must be a condition", got=text, legal="new == mx, alpha == 1, joined by and", at=call_site()
        ) from error
    assert isinstance(value, Operation)
    condition = value.arguments[0]
    assert isinstance(condition, Operation)
    tuple(equalities(condition))
    return condition


def _of_elements(value: Value, definition: FusedDefinition) -> Any:
    """Return the condition with the dimensions of each tensor, except for dimensions of which an iteration has one element."""
    if isinstance(value, Operation):
        return Operation(value.name, tuple(_of_elements(argument, definition) for argument in value.arguments))
    if not isinstance(value, Element):
        return value
    dims = {**definition.uses, **definition.temporaries}.get(value.tensor)
    if dims is None or (value.index and value.dims != dims):
        raise DecompositionError(
            f"skip_steps: the condition reads {value}, which no step of this part has", legal=[*definition.temporaries, *definition.arrays]
        )
    return Element(value.tensor, tuple(map(Index, dims)))


@verb()
def skip_steps(*steps: str, where: str) -> SkipSteps:
    """Skip steps of a fused definition in each warp for which a condition holds for all elements of its threads.

    Args: steps: names of steps. where: a condition that elements equal each other or a number: `"new == mx"`, `"alpha == 1"`. Consecutive
    steps share one branch.
    Legal on steps on registers that, under the condition, leave each value unchanged or set it to a number. The kernel sets such a number
    before the branch. The compiler proves this from the formulas, for all finite elements of the arrays.
    rewrite: alpha[m] = f; l[m] = l[m] * alpha[m] --> alpha[m] = 1; if needed: { alpha[m] = f; l[m] = l[m] * alpha[m] }

    Source: decision 44.

    >>> from fireiron import *
    >>> peak = Fused(
    ...     name="peak", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
    ...     init={"low": "top[m] = -inf"},
    ...     body={"part": "part[m] = max(n, X[m,n])", "new": "new[m] = max(top[m], part[m])", "keep": "top[m] = new[m]"},
    ...     final={"out": "y[m] = top[m]"},
    ... )
    >>> row = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
    >>> loads = peak.tile(m=1).to(Block).split(n=128).load("X", RF, row).skip_steps("keep", where="new == top")
    >>> [line.strip() for line in loads.done()(peak(m=8, n=512)).cuda().splitlines() if "__any_sync" in line]
    ['if (__any_sync(0xffffffff, keep_needed[0])) {']
    """
    return SkipSteps(steps, where, origin=call_site())


EXAMPLES = (SkipSteps(("scale",), "alpha == 1"),)
"""Examples of the class, which has no default arguments."""

__all__ = ["SkipSteps"]
