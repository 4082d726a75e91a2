"""`skip_steps`: a warp-uniform branch around steps of a fused definition that would change nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.ir import Hole
from fireiron.language.tree import Child, Context, Decomposition, Expansion, legal_among, verb
from fireiron.spec import Spec
from fireiron.specs.formula import Element, Index, Operation, Value, formula_of
from fireiron.specs.fused import FusedDefinition, FusedKind, Skipped, fused
from fireiron.stepping.predicated_region import equalities, left_out
from fireiron.stepping.steps import passed


def _names(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@attrs.frozen
class SkipSteps(Decomposition):
    """Steps that a warp skips where a condition holds for all that its threads have; see the verb `skip_steps`.

    rewrite: alpha[m] = f; l[m] = l[m] * alpha[m] --> alpha[m] = 1; if needed: { alpha[m] = f; l[m] = l[m] * alpha[m] }
    """

    verb: ClassVar[str] = "skip_steps"
    kinds: ClassVar[tuple[str, ...]] = ("Fused",)
    steps: tuple[str, ...] = attrs.field(converter=_names)
    where: str

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.steps, tuple) or not self.steps or not all(isinstance(one, str) for one in self.steps):
            raise ArgumentError(
                "skip_steps: the names of steps", got=self.steps, legal='skip_steps("scale", where="alpha == 1")', at=call_site()
            )
        if len(set(self.steps)) != len(self.steps):
            raise ArgumentError("skip_steps: a step is named twice", got=self.steps, at=call_site())
        _condition(self.where)

    def label(self) -> str:
        return f"skip_steps({', '.join(map(repr, self.steps))}, where={self.where!r})"

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[SkipSteps]:
        made = fused(spec)
        if made is None:
            return
        same = [pair for pair in itertools.combinations(made.temporaries, 2) if len({made.temporaries[one] for one in pair}) == 1]
        conditions = [
            *(f"{one} == {other}" for one, other in same),
            *(f"{one} == {number}" for one in made.temporaries for number in (0, 1)),
        ]
        steps = (SkipSteps((name,), where) for name, where in itertools.product(made.names, conditions))
        yield from legal_among(steps, spec, context)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        made = fused(spec)
        if made is None or not isinstance(spec.kind, FusedKind):
            raise DecompositionError(f"{self.label()}: {spec.title} is one step", legal="a Fused definition of several steps")
        for name in self.steps:
            if name not in made.names:
                raise DecompositionError(f"{self.label()}: {spec.title} has no step {name}", legal=made.names)
            if any(name in one.steps for one in made.skipped):
                raise DecompositionError(f"{self.label()}: step {name} is left out under another condition")
        here = tuple(one.name for one in made.steps if one.name in self.steps)
        if not here:
            return passed(spec)
        skipped = Skipped(here, _of_elements(_condition(self.where), made))
        left_out(made, skipped)
        child = attrs.evolve(spec, kind=spec.kind.of(skipped=(*made.skipped, skipped)))
        return Expansion((Child("body", child),), (Hole("body"),))


def _condition(text: Any) -> Operation:
    """The condition of a text; an ArgumentError where it is none."""
    if not isinstance(text, str) or not text.strip():
        raise ArgumentError("skip_steps: where= is a condition", got=text, legal='where="alpha == 1"', at=call_site())
    try:
        value = formula_of(f"needed[i] = where({text[:]}, 0, 1)").value
    except ArgumentError as error:
        raise ArgumentError(
            "skip_steps: where= is a condition", got=text, legal="new == mx, alpha == 1, joined by and", at=call_site()
        ) from error
    assert isinstance(value, Operation)
    condition = value.arguments[0]
    assert isinstance(condition, Operation)
    tuple(equalities(condition))
    return condition


def _of_elements(value: Value, made: FusedDefinition) -> Any:
    """A condition in which each tensor has its dimensions, without those of which steps take one element."""
    if isinstance(value, Operation):
        return Operation(value.name, tuple(_of_elements(one, made) for one in value.arguments))
    if not isinstance(value, Element):
        return value
    dims = {**made.uses, **made.temporaries}.get(value.tensor)
    if dims is None or (value.index and value.dims != dims):
        raise DecompositionError(
            f"skip_steps: the condition asks for {value}, which no step of this part has", legal=[*made.temporaries, *made.arrays]
        )
    return Element(value.tensor, tuple(map(Index, dims)))


@verb()
def skip_steps(*steps: str, where: str) -> SkipSteps:
    """Skip steps of a fused definition in each warp where a condition holds for all elements that its threads have.

    Args: names of steps; `where`, a condition that elements are equal to each other, or to a number: `"new == mx"`, `"alpha == 1"`.
    Consecutive steps share one branch.
    Legal on steps on registers that, under the condition, leave each value as it was, or set it to a number, which is then set before the
    branch. That is proved on the formulas, for all finite numbers in the arrays.
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
    >>> turns = peak.tile(m=1).to(Block).split(n=128).load("X", RF, row).skip_steps("keep", where="new == top")
    >>> [line.strip() for line in turns.done()(peak(m=8, n=512)).cuda().splitlines() if "__any_sync" in line]
    ['if (__any_sync(0xffffffff, keep_needed[0])) {']
    """
    return SkipSteps(steps, where, origin=call_site())


EXAMPLES = (SkipSteps(("scale",), "alpha == 1"),)
"""Any of the kind, which cannot be made without arguments."""

__all__ = ["SkipSteps"]
