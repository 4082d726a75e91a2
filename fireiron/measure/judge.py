"""Compare outputs with a float64 evaluation of a spec, each element within a separate error bound.

judge = Judge(spec, sizes, arrays, accumulator)
wrong = judge.wrong("O", got)                 # None, or a description of the worst element
print(judge.summary("O"))                     # O[3, 17] is 2.51, expected 2.50989: off by 1.1e-4 of at most 3.5e-4, 31% of its bound

The bounds of elements are weak for long sums of 8-bit floats, where the rounding of a correct kernel may be as large as a missing part of
the sum. For matrix products of random numbers, the relative error of all compared elements has a tolerance, too (`product_error`). For
other specs, `summary` reports weak bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.gpu.arguments import evaluated
from fireiron.measure.inputs import select_at, shape_of
from fireiron.measure.norms import product_error
from fireiron.measure.rounding import DEVIATIONS, Bounded, Worst, compared, expected, free_dims, rounded_by, sample
from fireiron.spec import Spec
from fireiron.specs.fused import fused
from fireiron.values.machine import DType

WORK: Final = 1 << 28
"""Number of terms whose errors NumPy analyzes for one comparison, in some seconds. Larger problems are sampled by rows and columns."""

FEWEST: Final = 1024
"""Minimum number of compared elements for a tolerance of their norm: it then differs by at most 17 % from its expectation."""

WEAK: Final = 0.25
"""A bound is weak from this part of a typical value on: an error of a sixteenth of all terms is as large."""


@attrs.define(eq=False)
class Judge:
    """A comparison of the outputs that a kernel computes from `arrays`.

    The kernel accumulates products in the type `accumulator` (None: the spec's accumulator). `work` is the number of terms to analyze. If
    `random`, each number of the arrays is independent and has mean zero, as `measure/inputs.py` generates them.

    By output, `closest` is the element that used the largest part of its bound, `compared` the number of compared elements, and `unknown`
    the number of elements without a finite bound. For these, any number is accepted. `typical` is the median bound, relative to the root
    mean square of the expected values. `norms` are the largest relative error in the Frobenius norm, and its tolerance.
    """

    spec: Spec
    sizes: Mapping[str, int]
    arrays: Mapping[str, Any]
    accumulator: DType | None = None
    work: int = WORK
    random: bool = True
    closest: dict[str, Worst] = attrs.field(factory=dict, init=False)
    compared: dict[str, int] = attrs.field(factory=dict, init=False)
    unknown: dict[str, int] = attrs.field(factory=dict, init=False)
    typical: dict[str, float] = attrs.field(factory=dict, init=False)
    norms: dict[str, tuple[float, float]] = attrs.field(factory=dict, init=False)
    _expected_values: tuple[Mapping[str, Any], dict[str, Bounded]] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.spec.kind.check_meaning(self.spec.definition)

    def wrong(self, output: str, got: Any) -> Mapping[str, Any] | None:
        """Compare a whole output, or a sample of a large output. Return the error of its worst element; None if the output is correct."""
        if self._expected_values is None:
            import numpy

            sampled = sample(self.spec, self.sizes, self.work, numpy.random.default_rng(0))
            self._expected_values = sampled, self._expected(sampled)
        places, expected_values = self._expected_values
        shape = list(shape_of(self.spec.operands[output], self.sizes))
        if list(got.shape) != shape:
            return {"message": f"the result has the shape {got.shape}, expected {tuple(shape)}"}
        dims = self.spec.uses[output]
        return self._compare(output, select_at(got, dims, places), expected_values[output], [places.get(dim) for dim in dims])

    def wrong_at(self, output: str, got: Any, places: Sequence[Any]) -> Mapping[str, Any] | None:
        """Compare the elements of an output at some positions, by dimension. Return the worst error; None if they are correct.

        `got` is the whole output.
        """
        by_dim = dict(zip(self.spec.uses[output], places, strict=True))
        part: Mapping[str, Any] = {dim: place for dim, place in by_dim.items() if len(place) < evaluated(self.spec.size(dim), self.sizes)}
        if not set(part) <= set(free_dims(self.spec)):
            part = {}
        if not all(map(len, places)):
            return None  # the tile is outside of the output
        if self._expected_values is None or not _same_places(self._expected_values[0], part):
            self._expected_values = part, self._expected(part)
        expected_values = self._expected_values[1]
        dims, rest = self.spec.uses[output], {dim: place for dim, place in by_dim.items() if dim not in part}
        reference = Bounded(*(select_at(array, dims, rest) for array in (expected_values[output].value, expected_values[output].error)))
        return self._compare(output, select_at(got, dims, by_dim), reference, list(places))

    def values(self, output: str) -> Any:
        """Return the float64 values with which `wrong` compared an output."""
        assert self._expected_values is not None
        return self._expected_values[1][output].value

    def summary(self, output: str) -> str:
        """Describe the element that used the largest part of its bound, and this part."""
        worst, count = self.closest.get(output), self.compared.get(output, 0)
        if worst is None:
            return f"{output} has no elements"
        whole = math.prod(shape_of(self.spec.operands[output], self.sizes))
        some = "" if count >= whole else f"; {count} of {whole} elements were compared"
        some += f"; {self.unknown[output]} of these have no bound (NaN, infinity or an overflow)" if self.unknown[output] else ""
        if output in self.norms:
            some += "; relative error of all elements {:.2g} of at most {:.2g}".format(*self.norms[output])
        elif self.typical.get(output, 0.0) > WEAK:
            some += f"; the bounds are WEAK, {self.typical[output]:.2g} of a typical value: a missing part of a sum may not be detected"
        if worst.off == 0:
            return f"{output} equals the float64 result{some}"
        at = f"{output}{list(worst.at)}" if worst.at else output
        value = f"{at} is {worst.got:.6g}, expected {worst.expected:.6g}: off by {worst.off:.2g}"
        if worst.fraction > 1:
            return f"{value}, its bound is {worst.bound:.2g}{some}"
        dtype = self.spec.operands[output].dtype
        rounding = float(rounded_by(dtype, worst.expected))
        rounded = f" (the rounding to {dtype} alone: {rounding:.2g})" if rounding > worst.bound / 2 else ""
        return f"{value} of at most {worst.bound:.2g}{rounded}, {worst.fraction:.0%} of its bound{some}"

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return the contents of `summary` as plain values, by output."""
        return {
            name: {
                "at": list(worst_error.at),
                "off": worst_error.off,
                "bound": worst_error.bound,
                "fraction": worst_error.fraction,
                "compared": self.compared[name],
            }
            | {"got": worst_error.got, "expected": worst_error.expected}
            | ({"unknown": self.unknown[name]} if self.unknown[name] else {})
            | ({"typical": self.typical[name]} if name in self.typical else {})
            | (dict(zip(("norm", "norm_tolerance"), self.norms[name], strict=True)) if name in self.norms else {})
            for name, worst_error in self.closest.items()
        }

    def _expected(self, places: Mapping[str, Any]) -> dict[str, Bounded]:
        """Return the outputs at some positions. Their errors depend on the chunk size of a loop, but their values do not."""
        outputs = expected(self.spec, self.arrays, self.sizes, self.accumulator, places=places, random=self.random)
        steps = fused(self.spec)
        if steps is None or not steps.over:
            return outputs
        whole = expected(self.spec, self.arrays, self.sizes, self.accumulator, chunk=0, places=places)
        return {name: Bounded(whole[name].value, bounded.error) for name, bounded in outputs.items()}

    def _compare(self, output: str, got: Any, reference: Bounded, places: Sequence[Any]) -> Mapping[str, Any] | None:
        import numpy

        worst = compared(got, reference, self.spec.operands[output].dtype)
        if worst is None:
            return None
        places = places if len(places) == len(worst.at) else [None] * len(worst.at)  # the array of a scattered output has other dimensions
        at = tuple(index if place is None else int(place[index]) for place, index in zip(places, worst.at, strict=True))
        worst = attrs.evolve(worst, at=at)
        self.compared[output] = self.compared.get(output, 0) + got.size
        self.unknown[output] = self.unknown.get(output, 0) + int((~numpy.isfinite(reference.error)).sum())
        if output not in self.closest or worst.fraction > self.closest[output].fraction:
            self.closest[output] = worst
        bounds, values = (array[numpy.isfinite(array)] for array in (numpy.asarray(reference.error), numpy.asarray(reference.value)))
        if values.size and bounds.size and values.any():
            typical = float(numpy.median(bounds) / numpy.sqrt((values**2).mean()))
            self.typical[output] = max(typical, self.typical.get(output, 0.0))
        if not worst.count:
            return self._wrong_norm(output, got, reference)
        return {
            "message": f"element {at}: got {worst.got:.9g}, expected {worst.expected:.9g} within {worst.bound:.2g}; "
            f"{worst.count} of {got.size} differ",
            "at": list(at),
            "got": str(worst.got),
            "expected": str(worst.expected),
            "bound": worst.bound,
        }

    def _wrong_norm(self, output: str, got: Any, reference: Bounded) -> Mapping[str, Any] | None:
        """Return the error of all compared elements of a matrix product in the Frobenius norm, if it exceeds its tolerance."""
        import numpy

        spec, dtype = self.spec, self.spec.operands[output].dtype
        if not (self.random and spec.contracts and dtype.kind == "float" and got.size >= FEWEST):
            return None
        lengths = {dim: evaluated(spec.size(dim), self.sizes) for dim in spec.dims if dim not in spec.uses[output]}
        factors = [spec.operands[name].dtype for name in spec.inputs]
        terms = math.prod(lengths.values())
        tolerance = product_error(terms, got.size, dtype, self.accumulator or spec.accumulator or dtype, factors)
        tolerance *= 1 + DEVIATIONS / math.sqrt(2 * got.size)
        values = numpy.asarray(reference.value)
        off, whole = (float(numpy.linalg.norm(array)) for array in (numpy.asarray(got).astype(numpy.float64) - values, values))
        error = off / max(whole, 1e-300)
        self.norms[output] = max((error, tolerance), self.norms.get(output, (0.0, tolerance)))
        if error <= tolerance:
            return None
        message = (
            f"no element exceeds its bound, but the relative error of all {got.size} elements is {error:.2g} of at most {tolerance:.2g}"
        )
        return {"message": message, "got": str(error), "bound": tolerance}


def _same_places(places: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether both mappings have the same positions of the same dimensions."""
    return places.keys() == others.keys() and all(list(positions) == list(others[dim]) for dim, positions in places.items())


__all__: list[str] = ["Judge"]
