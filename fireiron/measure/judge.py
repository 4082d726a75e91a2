"""Outputs beside what a spec is in float64: each element within its own bound, and which of them came nearest to it.

judge = Judge(spec, sizes, arrays, adder)
wrong = judge.wrong("O", got)                 # None, or what the worst element is
print(judge.said("O"))                        # O[3, 17] is off by 1.1e-4, 31 % of its bound
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.gpu.arguments import evaluated
from fireiron.measure.inputs import taken_at
from fireiron.measure.rounding import Bounded, Worst, compared, expected, free_dims, sample
from fireiron.spec import Spec
from fireiron.specs.fused import fused
from fireiron.values.machine import DType

WORK: Final = 1 << 28
"""Terms whose errors NumPy analyses for one comparison: some seconds. Larger problems are sampled by rows and columns."""


@attrs.define(eq=False)
class Judge:
    """Compares the outputs of a spec, made of `arrays`, with products added up in the type `adder` (None: the spec's).

    `random` says that the arrays were drawn, each number by itself and of mean zero, as `measure/inputs.py` does.
    `nearest` has for each output the element that took up most of its bound, `compared` how many elements were compared, and `unknown` how
    many of them have no finite bound: of these any number is right.
    """

    spec: Spec
    sizes: Mapping[str, int]
    arrays: Mapping[str, Any]
    adder: DType | None = None
    work: int = WORK
    random: bool = True
    nearest: dict[str, Worst] = attrs.field(factory=dict, init=False)
    compared: dict[str, int] = attrs.field(factory=dict, init=False)
    unknown: dict[str, int] = attrs.field(factory=dict, init=False)
    _made: tuple[Mapping[str, Any], dict[str, Bounded]] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.spec.kind.check_meaning(self.spec.definition)

    def wrong(self, output: str, got: Any) -> Mapping[str, Any] | None:
        """What is wrong with a whole output, of which a sample is compared where it is large; None where nothing is."""
        if self._made is None:
            import numpy

            found = sample(self.spec, self.sizes, self.work, numpy.random.default_rng(0))
            self._made = found, self._expected(found)
        places, made = self._made
        shape = [evaluated(size, self.sizes) for size in self.spec.operands[output].shape]
        if list(got.shape) != shape:
            return {"message": f"the result has the shape {got.shape}, expected {tuple(shape)}"}
        dims = self.spec.uses[output]
        return self._judged(output, taken_at(got, dims, places), made[output], [places.get(dim) for dim in dims])

    def wrong_at(self, output: str, got: Any, places: Sequence[Any]) -> Mapping[str, Any] | None:
        """What is wrong with the elements at these places, by dimension, of a whole output."""
        by_dim = dict(zip(self.spec.uses[output], places, strict=True))
        part: Mapping[str, Any] = {dim: place for dim, place in by_dim.items() if len(place) < evaluated(self.spec.size(dim), self.sizes)}
        if not set(part) <= set(free_dims(self.spec)):
            part = {}
        if not all(map(len, places)):
            return None  # a tile outside of the output
        if self._made is None or not _alike(self._made[0], part):
            self._made = part, self._expected(part)
        made = self._made[1]
        dims, rest = self.spec.uses[output], {dim: place for dim, place in by_dim.items() if dim not in part}
        right = Bounded(*(taken_at(one, dims, rest) for one in (made[output].value, made[output].error)))
        return self._judged(output, taken_at(got, dims, by_dim), right, list(places))

    def values(self, output: str) -> Any:
        """What `wrong` compared an output with, in float64."""
        assert self._made is not None
        return self._made[1][output].value

    def said(self, output: str) -> str:
        """Which element took up most of its bound, and how much of it."""
        worst, count = self.nearest.get(output), self.compared.get(output, 0)
        if worst is None:
            return f"{output} has no elements"
        whole = math.prod(evaluated(size, self.sizes) for size in self.spec.operands[output].shape)
        some = "" if count >= whole else f"; {count} of {whole} elements were compared"
        some += f"; {self.unknown[output]} of these have no bound" if self.unknown[output] else ""
        if worst.off == 0:
            return f"{output} is what it is in float64{some}"
        if worst.fraction > 1:
            return f"{output}{list(worst.at)} is off by {worst.off:.2g}, its bound is {worst.bound:.2g}{some}"
        at = f"{output}{list(worst.at)}" if worst.at else output
        return f"{at} is off by {worst.off:.2g} of at most {worst.bound:.2g}, {worst.fraction:.0%} of its bound{some}"

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """The same for other programs, by output."""
        return {
            name: {"at": list(one.at), "off": one.off, "bound": one.bound, "fraction": one.fraction, "compared": self.compared[name]}
            | ({"unknown": self.unknown[name]} if self.unknown[name] else {})
            for name, one in self.nearest.items()
        }

    def _expected(self, places: Mapping[str, Any]) -> dict[str, Bounded]:
        """Outputs at some places. What they are does not depend on how many elements a turn of a loop takes; how far off, does."""
        made = expected(self.spec, self.arrays, self.sizes, self.adder, places=places, random=self.random)
        steps = fused(self.spec)
        if steps is None or not steps.over:
            return made
        whole = expected(self.spec, self.arrays, self.sizes, self.adder, chunk=0, places=places)
        return {name: Bounded(whole[name].value, one.error) for name, one in made.items()}

    def _judged(self, output: str, got: Any, right: Bounded, places: Sequence[Any]) -> Mapping[str, Any] | None:
        import numpy

        worst = compared(got, right, self.spec.operands[output].dtype)
        if worst is None:
            return None
        at = tuple(index if place is None else int(place[index]) for place, index in zip(places, worst.at, strict=True))
        worst = attrs.evolve(worst, at=at)
        self.compared[output] = self.compared.get(output, 0) + got.size
        self.unknown[output] = self.unknown.get(output, 0) + int((~numpy.isfinite(right.error)).sum())
        if output not in self.nearest or worst.fraction > self.nearest[output].fraction:
            self.nearest[output] = worst
        if not worst.count:
            return None
        return {
            "message": f"element {at}: got {worst.got:.9g}, expected {worst.expected:.9g} within {worst.bound:.2g}; "
            f"{worst.count} of {got.size} differ",
            "at": list(at),
            "got": str(worst.got),
            "expected": str(worst.expected),
            "bound": worst.bound,
        }


def _alike(places: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether these are the same places of the same dimensions."""
    return places.keys() == others.keys() and all(list(one) == list(others[dim]) for dim, one in places.items())


__all__: list[str] = ["Judge"]
