"""Derive an error bound for each element of a correct kernel from the data, by a running error analysis in float64.

    result = expected(spec, arrays, sizes)                    # by output: values in float64, and their error bounds
    result = expected(..., places=sample(spec, sizes, work))  # only some rows and columns, for large problems
    bounds = error_bounds(spec, arrays, sizes)                # the bounds only
    texts = differing(spec, sizes, got, arrays, right)        # the elements beyond their bounds, as texts
    worst = compared(got["C"], result["C"], float16)          # the element that uses the largest part of its bound

A definition is evaluated in float64, and every operation propagates an error bound together with its value (Higham, Accuracy and Stability
of Numerical Algorithms, 2nd ed., section 3.3). The only parameter is the probability of a false alarm. Let u = 2^-p for a type of p
significant bits.

- *Rounding.* Each result is rounded once to the type of its computation and once to its storage type. The error of each rounding is at most
  u, relative, plus half the least subnormal number. The sums of the float64 reference are rounded too.
- *Sums.* The error of a sum of n terms t, in any order, is at most (n - 1) u (|t1| + ... + |tn|) plus terms of higher order (section 4.2).
  A second bound is probabilistic. Independent rounding errors of mean zero stay below L u times the root of the sum of the squares of all
  partial sums, except with a probability of 2 exp(-L^2 / 2) (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM
  J. Sci. Comput. 41, 2019; theorem 2.4). If the terms are in random order, the i-th partial sum is a share of the sum s, namely s i / n,
  plus the i-th position of a random walk. The walk has n steps, and the sum q^2 of their squares equals that of the terms. The errors due
  to the shares are below L u sqrt(n / 3) s. The errors due to the walk are below `WALK` u sqrt(n) q, because such a walk W has
  E exp(m^2 / 2 times the integral of W^2) <= cos(m)^(-1/2) for m < pi / 2 (Cameron and Martin, Trans. Amer. Math. Soc. 58, 1945). The
  smaller of the two bounds is used.
- *Additions to 16-bit outputs* of several blocks round each time, and their order is not fixed. The strategy determines how many parts of
  a sum are added, and they are at most as many as its terms. So the bound of a sum in the output's type counts each term as an addition,
  over all iterations and elements of a batch, and the rounding of each part to 16 bits before it is added is at most u of the sum of
  absolute terms. If partial sums may overflow, there is no bound. If the standard deviation of the terms is below the spacing of numbers
  near the sum, one addition rounds like the next, so the errors do not have mean zero, and the first bound is used. An error of an
  addition is at most its term, because the sum without the term is a number of the type.
- *Matrix instructions* multiply exactly. They align `terms` products and the accumulator with the largest of these, truncate each `bits`
  below the leading bit of the largest, and truncate the sum (`MatrixArithmetic`). The sum is truncated toward zero, 2 n / terms times.
  These errors accumulate to 2^-bits times the mean size of the partial sums, which is at most s + `ROOT` q. The truncated part of a product
  has the sign of the product. These parts form a walk as above, plus a share of n that grows if most signs are equal.
- *Errors of operands* of a sum of products accumulate to sum |a| e in the worst case. With each product of a chain, this bound grows by the
  sum of the weights. After twenty layers of a network it is useless. If inputs are `random`, an operand that no other step reads has signs
  that are independent of the errors e of the other operand. The mean square of the error is then sum a^2 e^2, and L times its root is a
  bound. It is propagated through the definition as root mean squares. The smaller of the two bounds is used.
- *Functions.* The error of the argument is propagated by the values of the function at both ends of the interval. The error of the function
  is given in units in the last place (CUDA C++ Programming Guide, "Mathematical Functions"; PTX ISA for ex2.approx and tanh.approx). If the
  errors leave the condition of a choice open, the result may be either value. A number equals the maximum of itself and another number if
  their errors leave no choice. Thus the factors of an online softmax are exactly 1, except where its maximum changes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron.frozen import frozen
from fireiron.gpu.arguments import evaluated as number_of_elements
from fireiron.language.strategy import Bindable
from fireiron.measure.inputs import select_at
from fireiron.spec import Spec, as_spec
from fireiron.specs.arithmetic import convert
from fireiron.specs.bits import INTEGER_ONLY, OF_LOW_BITS, TO_INTEGER, Range
from fireiron.specs.formula import Element, Formula, Number, Operation, Value, elements_of
from fireiron.specs.fused import as_direct, fused
from fireiron.specs.fused_definition import FusedDefinition, exact_in, factors
from fireiron.specs.indirect import scattered_to
from fireiron.specs.integers import is_integral, sides_of
from fireiron.specs.meaning import aligned, computing, float_of, integer_of, limits_of, multiplied, reference, summed, value_of
from fireiron.specs.steps import EXTENTS, INDICES, Step
from fireiron.values.machine import DType, float8_e4m3, float8_e5m2, float16, float32, float64, int32, tf32

IMPROBABLE: Final = 1e-13
"""Probability, per element, that a correct kernel is reported as wrong: below 1e-5 for a matrix of 10^8 elements."""

MOST_COMBINED: Final = 64
"""Twice the number of sums and products of a term in a tree over lanes, warps and blocks, in addition to those in order."""

DEVIATIONS: Final = math.sqrt(2 * math.log(2 / IMPROBABLE))
"""Number L of standard deviations. A sum of errors exceeds it with a probability of at most 2 exp(-L^2 / 2), which is `IMPROBABLE`."""


def _minimum(function: Any) -> float:
    """Return the minimum of a function of m, 0 < m < pi / 2."""
    return float(min(function(math.pi / 2 * step / 1000) for step in range(1, 1000)))


WALK: Final = _minimum(lambda m: (math.log(2 / IMPROBABLE) - math.log(math.cos(m)) / 2) / m)
"""Bound of the sum of n independent errors, each proportional to a partial sum of a walk of n steps: 21.

The unit is sqrt(n) times the length of the walk.
"""

ROOT: Final = math.sqrt(_minimum(lambda m: (math.log(1 / IMPROBABLE) - math.log(math.cos(m)) / 2) * 2 / m**2))
"""Bound of the root mean square of the partial sums of a walk, relative to the length of the walk: 5."""

ERROR: Final = "error of "
"""Prefix of the tensor that contains the error bound of another tensor."""

TERMS: Final = "terms of "
"""Prefix of the sums of absolute terms and of their squares, and of the number of terms, of an output whose additions round."""

SAME: Final = "same as "
"""Prefix of the tensor that marks where a tensor certainly equals the maximum of itself and another tensor."""


@frozen
class MatrixArithmetic:
    """The number of products that a matrix instruction adds at once, and the precision of these sums.

    Each product is truncated `bits` below the leading bit of the largest product. The numbers are those of the least precise instruction of
    V100, A100 and H100 for a type, because the spec does not determine which instruction runs. Sources: Fasi,
    Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ Comput. Sci. 7, 2021 (V100 to A100); Khattak and
    Mikaitis, "Accurate Models of NVIDIA Tensor Cores", arXiv:2512.07004 (to B200, including 8-bit floats).
    """

    terms: int
    bits: int


FLOATS: Final = MatrixArithmetic(4, 23)
"""float16 and bfloat16 on V100: four products. Later GPUs add 8 or 16 products at once and keep one or two more bits."""

EIGHT_BITS: Final = MatrixArithmetic(32, 13)
"""8-bit floats on Hopper."""

LAST_PLACES: Final[Mapping[str, float]] = {
    "cos": 2, "exp": 2, "exp2": 4, "log": 1, "log1p": 1, "log2": 1, "erf": 2, "rsqrt": 2, "sin": 2, "tanh": 2, "sqrt": 0.5,
}  # fmt: skip
"""Errors of float32 functions in units in the last place. `exp2` is ex2.approx, whose relative error is 2^-22."""

APPROXIMATE_TANH: Final = 2.0**-10.987
"""Relative error of tanh.approx.f32 (PTX ISA)."""


@attrs.frozen(eq=False)
class Bounded:
    """Values in float64, and the error bounds of the computed values."""

    value: Any
    error: Any


def error_bounds(spec: Spec, arrays: Mapping[str, Any], sizes: Mapping[str, int], accumulator: DType | None = None) -> dict[str, Any]:
    """Return for each output the error bound of each element of a correct kernel, compared with a float64 evaluation on these inputs.

    Args: as for `expected`.
    """
    return {name: bounded.error for name, bounded in expected(spec, arrays, sizes, accumulator).items()}


def expected(
    spec: Spec,
    arrays: Mapping[str, Any],
    sizes: Mapping[str, int],
    accumulator: DType | None = None,
    chunk: int = 32,
    places: Mapping[str, Any] | None = None,
    random: bool = False,
) -> dict[str, Bounded]:
    """Return for each output its float64 values, and the error bound of each element of a correct kernel.

    Integers, fills and copies are exact: they are rounded, and have no error.

    Args:
        spec: the spec of the kernel.
        arrays: the inputs by name. They are whole, even with `places`.
        sizes: the values of the spec's symbols.
        accumulator: the type in which products are accumulated (`accumulator_of` a kernel). Default: the type of the sum.
        chunk: the number of elements that an iteration of a definition's loops processes. Their result is joined once.
        places: coordinates along some of the `free_dims`, to which the outputs are restricted.
        random: whether each number of the inputs is random, independent and of mean zero.
    """
    places = places or {}
    direct, own = as_direct(spec, arrays, sizes)
    selected = {name: select_at(array, spec.uses[name], places) for name, array in own.items()}
    bounded = expected_at(direct, selected, sizes, places, accumulator, chunk, random)
    return bounded | {name: scatter(bounded[name]) for name, scatter in _scatters(spec, arrays, sizes)}


def _scatters(spec: Spec, arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> Iterator[tuple[str, Callable[[Bounded], Bounded]]]:
    """Yield each output that a table scatters, with the function that scatters its values. Other elements are 0."""
    definition = fused(spec)
    for operand in () if definition is None else definition.scattered:
        view = spec.operands[operand.operand]
        shape = [number_of_elements(size, sizes) for size in view.tensor.array.shape]
        extents = {dim: number_of_elements(spec.size(dim), sizes) for dim in spec.dims}
        of = functools.partial(scattered_to, operand, arrays=arrays, shape=shape, sizes=extents)
        combiner = definition.combiner_of(operand.operand) if definition is not None and operand.operand in definition.added else ""
        by_combiner = {"": _stored_at, "sum": _added_at, "max": _extremes_at, "min": _extremes_at}
        yield operand.operand, functools.partial(by_combiner[combiner], of, combiner, view.dtype)


def _stored_at(scatter: Callable[..., Any], combiner: str, dtype: DType, bounded: Bounded) -> Bounded:
    return Bounded(scatter(bounded.value), scatter(bounded.error))


def _extremes_at(scatter: Callable[..., Any], combiner: str, dtype: DType, bounded: Bounded) -> Bounded:
    """Return the maxima or minima of values with equal indices: their error is at most the largest one of these values."""
    import numpy

    error = numpy.maximum(scatter(bounded.error, combiner="max"), 0.0)
    return Bounded(scatter(bounded.value, combiner=combiner, dtype=dtype), error)


def _added_at(scatter: Callable[..., Any], combiner: str, dtype: DType, bounded: Bounded) -> Bounded:
    """Return sums of values with equal indices: each addition rounds a partial sum, which is at most the sum of absolute values."""
    import numpy

    scatter = functools.partial(scatter, combiner="sum")
    total, error = scatter(bounded.value), scatter(bounded.error)
    if dtype.kind == "int":
        return Bounded(convert(total, dtype), error)
    terms, size = scatter(numpy.ones_like(bounded.value)), scatter(abs(bounded.value))
    if dtype.bits == 16:
        most = int(terms.max(initial=0))
        error = error + sum_error((total, size + error, scatter((abs(bounded.value) + bounded.error) ** 2) ** 0.5), most, dtype)
        return Bounded(total, numpy.where(size + error < largest(dtype), error, numpy.inf))
    return Bounded(total, error + 2.0**-dtype.mantissa * terms * (size + error))


def expected_at(
    spec: Spec,
    arrays: Mapping[str, Any],
    sizes: Mapping[str, int],
    places: Mapping[str, Any],
    accumulator: DType | None = None,
    chunk: int = 32,
    random: bool = False,
) -> dict[str, Bounded]:
    """Return the result of `expected` for arrays that contain only the elements at these positions."""
    import numpy

    types = {name: view.dtype for name, view in spec.operands.items()}
    whole = {dim: number_of_elements(spec.size(dim), sizes) for dim in spec.dims}
    known = {dim: len(places[dim]) if dim in places else size for dim, size in whole.items()}
    numpy_arrays = {name: numpy.asarray(array) for name, array in arrays.items()}
    with numpy.errstate(all="ignore"):
        definition = fused(spec)
        if definition is not None:
            bounded = _Analysis.of(definition, _Rounding(types, accumulator)).outputs_at(numpy_arrays, known, chunk, places, whole)
            independent = _independent_inputs(definition) if random else frozenset()
            if not independent:
                return bounded
            typical = _Analysis.of(definition, _Rounding(types, accumulator, independent)).outputs_at(
                numpy_arrays, known, chunk, places, whole
            )
            return {name: _smaller_bound(output, typical[name], types[name]) for name, output in bounded.items()}
        simple = {}
        for formula in spec.definition.formulas:
            shape = [known[dim] for dim in formula.target.dims]
            exact = types[formula.output].kind == "int" and (formula.reduction is not None or computing(formula, types).kind == "int")
            if exact or spec.moves or spec.fills:
                value = reference(formula, numpy_arrays, types, dict(zip(formula.target.dims, shape, strict=True)))
                simple[formula.output] = Bounded(value, numpy.zeros(shape))
                continue
            compute_type = types[formula.output] if spec.accumulator is None else spec.accumulator
            result = _Rounding(types, accumulator).of_formula(formula, _exact_elements(formula, numpy_arrays, types), (), compute_type)
            error = result.error + rounded_by(types[formula.output], result.value)
            if types[formula.output].kind == "int":
                value = reference(formula, numpy_arrays, types, dict(zip(formula.target.dims, shape, strict=True)))
                result, error = Bounded(value, error), _truncation_error(result.value, error)
            simple[formula.output] = Bounded(numpy.broadcast_to(result.value, shape), numpy.broadcast_to(error, shape))
        return simple


def _independent_inputs(definition: FusedDefinition) -> frozenset[str]:
    """Return the inputs that are multiplied by temporaries and that no other step reads."""
    products = [[element.tensor for element in step.formula.elements] for step in definition.steps if step.formula.contracts]
    reads = [name for step in definition.steps for name in step.reads]
    inputs = {name for name in definition.uses if name not in definition.outputs}
    return frozenset(
        name for pair in products if {*pair} & {*definition.temporaries} for name in pair if name in inputs and reads.count(name) == 1
    )


def _smaller_bound(certain: Bounded, typical: Bounded, dtype: DType) -> Bounded:
    """Return the smaller one of the worst-case bound and the bound from the root mean square. The last rounding is always in full."""
    import numpy

    last = rounded_by(dtype, certain.value)
    return Bounded(certain.value, numpy.fmin(certain.error, DEVIATIONS * (typical.error - last) + last))


def differing(
    spec: Bindable,
    sizes: Mapping[str, int],
    got: Mapping[str, Any],
    arrays: Mapping[str, Any],
    right: Mapping[str, Any],
    accumulator: DType | None = None,
) -> list[str]:
    """Return a text for each output with elements beyond their bounds. The text describes the worst element.

    `got` and `right` are the outputs by name. NaN must be NaN. Where infinite inputs leave no bound, any number is accepted.
    """
    import numpy

    whole: Spec = as_spec(spec)
    texts = []
    for name, bound in error_bounds(whole, arrays, sizes, accumulator).items():
        want = numpy.asarray(right[name]).astype(numpy.float64)
        dtype = whole.operands[name].dtype
        worst_element = worst(got[name], Bounded(want, bound + rounded_by(dtype, want)), dtype)
        if worst_element is not None:
            sums = "" if accumulator is None else f", sums in {accumulator}"
            texts.append(f"{name}{list(worst_element.at)} is {worst_element}{sums}; {worst_element.count} of {want.size} are wrong")
    return texts


@frozen
class Worst:
    """The element with the largest error relative to its bound, and the number of elements beyond their bounds."""

    at: tuple[int, ...]
    got: float
    expected: float
    bound: float
    count: int

    def __str__(self) -> str:
        return f"{self.got:.9g}, expected {self.expected:.9g} within {self.bound:.2g}; it is off by {self.off:.2g}"

    @property
    def off(self) -> float:
        """The absolute error. It is 0 for infinities of the same sign."""
        return 0.0 if self.got == self.expected else abs(self.got - self.expected)

    @property
    def fraction(self) -> float:
        """The error relative to its bound. It is at most 1 for a correct element, and 0 for an element without a finite bound."""
        if self.off == 0 or math.isinf(self.bound) or math.isnan(self.bound):
            return 0.0
        return self.off / self.bound if self.bound else math.inf


def worst(got: Any, right: Bounded, dtype: DType) -> Worst | None:
    """Return the worst element beyond its bound; None if there is none.

    NaN must be NaN, and a value that is infinite in the output's type may be infinite. Where the bound is infinite or unknown, any number
    is accepted.
    """
    worst_element = compared(got, right, dtype)
    return worst_element if worst_element is not None and worst_element.count else None


def compared(got: Any, right: Bounded, dtype: DType) -> Worst | None:
    """Return the element that uses the largest part of its bound; None if there are no elements.

    Wrong elements precede correct ones. The rules for NaN and infinity are those of `worst`.
    """
    import numpy

    have, want = numpy.asarray(got).astype(numpy.float64), numpy.asarray(right.value).astype(numpy.float64)
    if not want.size:
        return None
    error = numpy.broadcast_to(right.error, want.shape)
    with numpy.errstate(all="ignore"):
        rounded = convert(want, dtype).astype(numpy.float64)
        # No result is closer than the closest number of the output's type, so that distance is always within the bound.
        error = numpy.where(numpy.isfinite(rounded), numpy.maximum(error, abs(rounded - want)), error)
        off = abs(have - want)
        near = ~(off > error) & (numpy.isnan(have) == numpy.isnan(want)) | numpy.isposinf(error) & ~numpy.isnan(have)
        near |= have == rounded  # infinities of the type
        used = numpy.where(near, numpy.fmin(numpy.where(off > 0, off / error, 0.0), 1.0), off / error + 2.0)
        ratio = numpy.where(near, numpy.nan_to_num(used), numpy.where(numpy.isnan(used), numpy.inf, used))
    at = tuple(int(index) for index in numpy.unravel_index(int(ratio.argmax()), ratio.shape))
    return Worst(at, float(have[at]), float(want[at]), float(error[at]), int((~near).sum()))


# ---------------------------------------------------------------------------------------------- samples of large outputs


def free_dims(spec: Spec) -> tuple[str, ...]:
    """Return the dimensions along which no output element depends on other positions. Their positions can be evaluated separately.

    They are not reduced, no loop iterates over them, and formulas use them only as plain indices.
    """
    definition = fused(spec)
    if definition is not None and definition.scattered:
        return ()  # places are those of the operand, and not of the array
    formulas = [step.formula for step in definition.steps] if definition is not None else spec.definition.formulas
    bound = {dim for formula in formulas for dim in formula.over}
    bound |= {
        index.dim for formula in formulas for element in (*formula.elements, formula.target) for index in element.index if not index.plain
    }
    if definition is not None:
        bound |= {
            *definition.loops,
            *(dim for formula in formulas for dim in formula.along),
            *(step.parts for step in definition.steps),
            *(dim for pair in definition.equal_sizes for dim in pair[:2]),
        }
    return tuple(dim for dim in spec.dims if dim not in bound and all(dim in spec.uses[name] for name in spec.outputs))


MIN_SAMPLES: Final = 8
"""Minimum number of sampled positions of a dimension that has more positions. For batch dimensions, it is 2."""


def sample(spec: Spec, sizes: Mapping[str, int], work: int, generator: Any) -> dict[str, Any]:
    """Return random positions along the free dimensions, so that about `work` terms are evaluated.

    They include the first and the last position. If there are no more than `work` terms, the result is empty. `generator` is a NumPy
    generator.
    """
    import numpy

    whole = {dim: number_of_elements(spec.size(dim), sizes) for dim in spec.dims}
    counts, free = dict(whole), free_dims(spec)
    definition = fused(spec)
    least = {dim: 2 if definition is not None and dim in definition.batch else MIN_SAMPLES for dim in free}
    while math.prod(counts.values()) > work:
        longest = max((dim for dim in free if counts[dim] > least[dim]), key=lambda dim: counts[dim] / least[dim], default=None)
        if longest is None:
            break
        counts[longest] = max(least[longest], counts[longest] // 2)
    places = {}
    for dim in (free_dim for free_dim in free if counts[free_dim] < whole[free_dim]):
        inner = generator.choice(whole[dim] - 2, counts[dim] - 2, replace=False) + 1
        places[dim] = numpy.sort(numpy.concatenate([[0], inner, [whole[dim] - 1]]))
    return places


def _exact_elements(formula: Formula, arrays: Mapping[str, Any], types: Mapping[str, DType]) -> dict[Element, Bounded]:
    """Return the elements of a formula, without errors. Operands of products have the values that matrix instructions use."""
    import numpy

    operands = {element: arrays[element.tensor] for element in formula.elements}
    if formula.is_product_sum:
        operands = {element: multiplied(numpy.asarray(array), types[element.tensor]) for element, array in operands.items()}
    return {element: Bounded(*_exact(array)) for element, array in operands.items()}


def _exact(array: Any) -> tuple[Any, Any]:
    """Return an input in float64, and zero errors."""
    import numpy

    wide = numpy.asarray(array).astype(numpy.float64)
    return wide, numpy.zeros_like(wide)


def largest(dtype: DType) -> float:
    """Return the largest finite number of a 16-bit type."""
    return 65504.0 if dtype == float16 else (2.0 - 2.0**-7) * 2.0**127


HALF_SUBNORMAL: Final[Mapping[DType, float]] = {float16: 2.0**-25, float8_e4m3: 2.0**-10, float8_e5m2: 2.0**-17}
"""Half the least subnormal number of types whose subnormal numbers are larger than those of bfloat16."""


def rounded_by(dtype: DType, value: Any) -> Any:
    """Return the maximum error of rounding a value to a type; zero for integers. The value is a NumPy or CuPy array."""
    if dtype.kind == "int":
        return abs(value) * 0.0
    return _relative(value, 2.0**-dtype.mantissa) + HALF_SUBNORMAL.get(dtype, 2.0**-134)


def _relative(value: Any, unit: float) -> Any:
    """Return a fraction of the absolute value; zero for infinite values."""
    import numpy

    return numpy.where(numpy.isfinite(value), abs(value) * unit, 0.0)


# ---------------------------------------------------------------------------------------------- one formula


@attrs.frozen(eq=False)
class _Rounding:
    """The error analysis of formulas over operands with the given types.

    Errors are bounds. If there are `independent` inputs, errors are root mean squares instead. The signs of such an input are independent
    of the errors of the other operand.
    """

    types: Mapping[str, DType]
    accumulator: DType | None
    independent: frozenset[str] = frozenset()

    @property
    def deviations(self) -> float:
        """The number of standard deviations that an error represents."""
        return 1.0 if self.independent else DEVIATIONS

    def is_independent(self, formula: Formula) -> bool:
        """Whether a formula multiplies by an independent input."""
        return formula.contracts and any(element.tensor in self.independent for element in formula.elements)

    def of_formula(self, formula: Formula, given: Mapping[Element, Bounded], dropped: tuple[str, ...], kept: DType) -> Bounded:
        """Return the value of a formula with its error, before the result is rounded to the type of its output."""
        values = aligned(formula, {element: bounded.value for element, bounded in given.items()}, dropped)
        errors = aligned(formula, {element: bounded.error for element, bounded in given.items()}, dropped)
        read = [self.types.get(element.tensor) for element in formula.elements]
        if formula.contracts:
            return self._contraction(formula, values, errors, kept)
        wide = float64 if float64 in read else float32
        elements = {element: Bounded(values[element], errors[element]) for element in values}
        if formula.recurs:
            factors, added = (self.of_value(value, elements, wide) for value in formula.scanned)
            return self._recurrence(formula, factors, added, kept)
        terms = self.of_value(formula.value, elements, wide)
        if formula.scan is not None:
            return self._scanned(formula, terms, kept)
        if formula.reduction is None:
            return terms
        axes = tuple(range(len(formula.target.dims), len(formula.dims)))
        if formula.reduction in ("max", "min"):
            ends = [_extremum(formula.reduction, end, axes) for end in (terms.value - terms.error, terms.value, terms.value + terms.error)]
            return Bounded(ends[1], _interval_error(*ends))
        count = math.prod(terms.value.shape[axis] for axis in axes)
        if formula.reduction == "prod":
            relative = (terms.error / abs(terms.value)).sum(axes) + count * 2.0**-kept.mantissa
            whole = terms.value.prod(axes)
            return Bounded(whole, abs(whole) * (relative * 2))
        sums = terms.value.sum(axes), abs(terms.value).sum(axes), (terms.value**2).sum(axes) ** 0.5
        return self._sum(sums, terms.error.sum(axes), count, kept if kept.bits > 16 else float32)

    def _scanned(self, formula: Formula, terms: Bounded, kept: DType) -> Bounded:
        """Return a scan with its error: each result is the reduction of at most all elements, in any order."""
        import numpy

        axis = formula.target.dims.index(formula.along[0])
        if formula.combiner in ("max", "min"):
            function = numpy.fmax if formula.combiner == "max" else numpy.fmin
            ends = [function.accumulate(end, axis=axis) for end in (terms.value - terms.error, terms.value, terms.value + terms.error)]
            return Bounded(ends[1], _interval_error(*ends))
        values, error = numpy.asarray(terms.value), numpy.broadcast_to(terms.error, numpy.shape(terms.value))
        wide = kept if kept.bits > 16 else float32
        if formula.combiner == "prod":
            number = numpy.arange(1, values.shape[axis] + 1).reshape([-1 if place == axis else 1 for place in range(values.ndim)])
            rounding = 0.0 if wide.kind == "int" else 2.0**-wide.mantissa
            relative = numpy.where(error == 0, 0.0, error / abs(values)).cumsum(axis) + number * rounding
            whole = values.cumprod(axis)
            return Bounded(whole, abs(whole) * (relative * 2) + number * (rounding and 2.0**-149))
        sums = values.cumsum(axis), abs(values).cumsum(axis), (values**2).cumsum(axis) ** 0.5
        return self._sum(sums, error.cumsum(axis), values.shape[axis], wide)

    def _recurrence(self, formula: Formula, factors: Bounded, terms: Bounded, kept: DType) -> Bounded:
        """Return a linear recurrence with its error, for sums and products of its terms in any order.

        Element n is the sum of x[k] * a[k + 1] * ... * a[n]. A term takes part in at most n - k + 1 products and as many sums, and in a
        few more of a tree over lanes, warps and blocks.
        """
        import numpy

        axis = formula.target.dims.index(formula.along[0])
        given = numpy.broadcast_arrays(factors.value, factors.error, terms.value, terms.error)
        unit = 2.0 ** -(kept if kept.bits > 16 else float32).mantissa
        state = size = depth = inherited = numpy.zeros(())
        results = []
        for factor, factor_error, value, error in zip(*(numpy.moveaxis(one, axis, 0) for one in given), strict=True):
            inherited = (abs(factor) + factor_error) * inherited + abs(state) * factor_error + error
            depth = abs(factor) * (depth + size) + abs(value)
            size = abs(factor) * size + abs(value)
            state = factor * state + value
            results.append((state, inherited + unit * (2 * depth + MOST_COMBINED * size) + 2.0**-126))
        whole, bounds = (numpy.moveaxis(numpy.stack(one), 0, axis) for one in zip(*results, strict=True))
        return Bounded(whole, bounds)

    def _contraction(self, formula: Formula, values: Mapping[Element, Any], errors: Mapping[Element, Any], kept: DType) -> Bounded:
        """Return a sum of products, which matrix instructions may truncate. Sums of integers are exact while they are small."""

        def summed_of(function: Any) -> Any:
            return summed(formula, {element: function(element) for element in values})

        size = summed_of(lambda element: abs(values[element]))
        given = [element for element in values if element.tensor in self.independent]
        if given:
            inherited = summed_of(lambda element: (values if element == given[0] else errors)[element] ** 2) ** 0.5
        else:
            inherited = summed_of(lambda element: abs(values[element]) + errors[element]) - size
        squares = summed_of(lambda element: values[element] ** 2) ** 0.5
        lengths = dict(zip(formula.dims, map(max, zip(*(array.shape for array in values.values()), strict=True)), strict=True))
        count = math.prod(lengths[dim] for dim in formula.over)
        sums = summed_of(values.__getitem__), size, squares
        kinds = [self.types[element.tensor] for element in formula.elements if element.tensor in self.types]
        rounding = sum_error(sums, count, self.accumulator or kept, kinds, self.deviations)
        if all(_are_integers(Bounded(values[element], errors[element])) for element in values):
            rounding = of_integers(rounding, size, self.accumulator or kept, kinds)
        return Bounded(sums[0], inherited + rounding)

    def _sum(self, sums: tuple[Any, Any, Any], inherited: Any, count: int, accumulator: DType) -> Bounded:
        """Return a sum with its error, from its value, the sum of absolute terms, and the root of the sum of squares."""
        return Bounded(sums[0], inherited + sum_error(sums, count, accumulator, (), self.deviations))

    # ------------------------------------------------------------------------------------------ values

    @functools.cached_property
    def ranges(self) -> Mapping[str, Range]:
        """The ranges of integer tensors, according to their types."""
        return limits_of(self.types)

    def _ranges_in(self, value: Value) -> Mapping[str, Range]:
        """Return the ranges of integers, coordinates and extents in a value."""
        coordinates = (element.tensor for element in elements_of(value) if element.tensor.startswith((INDICES, EXTENTS)))
        return {**self.ranges, **dict.fromkeys(coordinates, _COORDINATE_RANGE)}

    def _is_integral(self, value: Value) -> bool:
        return is_integral(value, self._ranges_in(value))

    def of_value(self, value: Value | None, given: Mapping[Element, Bounded], wide: DType) -> Bounded:
        """Return a value as threads compute it in a floating-point type. Integers are computed exactly and converted once."""
        if value is None or isinstance(value, Number) or not self._is_integral(value):
            return self._of_float(value, given, wide)
        integer = self._of_integer(value, given)
        return Bounded(
            integer.value,
            integer.error + _relative(integer.value, 2.0**-wide.mantissa) * (abs(integer.value) > 2.0**wide.mantissa),
        )

    def _of_integer(self, value: Value, given: Mapping[Element, Bounded]) -> Bounded:
        """Return an integer value. Operations on integers do not round."""
        if isinstance(value, Number):
            return Bounded(float(value.value), 0.0)
        if isinstance(value, Element):
            return given[value]
        if value.name == "where":
            condition, *rest = value.arguments
            return _select(self._condition(condition, given, float32), *(self._of_integer(argument, given) for argument in rest))
        if value.name in ("bits", "int32"):
            return self._converted(value, given)
        parts = [self._of_integer(argument, given) for argument in value.arguments]
        if value.name in (*INTEGER_ONLY, *TO_INTEGER):
            return self._of_integers_only(value, given, parts)
        return Bounded(*_propagated(value.name, parts, float64))

    def _converted(self, value: Operation, given: Mapping[Element, Bounded]) -> Bounded:
        """Return a float converted to an integer, by value or by bit pattern, or the low 32 bits of an integer."""
        import numpy

        (argument,) = value.arguments
        part = self.of_value(argument, given, float32)
        if value.name == "int32" and not self._is_integral(argument):
            whole = numpy.clip(numpy.trunc(numpy.nan_to_num(part.value)), *int32.limits)
            return Bounded(whole, _truncation_error(part.value, part.error))
        return self._of_integers_only(value, given, [part])

    def _of_integers_only(self, value: Operation, given: Mapping[Element, Bounded], parts: Sequence[Bounded]) -> Bounded:
        """Return the result of an operator that only integers have. It is exact if the operands are; otherwise it has no bound."""
        import numpy

        arrays = self._arrays(value, given)
        exact = numpy.asarray(integer_of(value, arrays, self._ranges_in(value))).astype(numpy.float64)
        unknown = functools.reduce(numpy.logical_or, [numpy.asarray(part.error) != 0 for part in parts])
        return Bounded(exact, numpy.where(unknown, numpy.inf, 0.0))

    def _of_float(self, value: Value | None, given: Mapping[Element, Bounded], wide: DType) -> Bounded:
        import numpy

        if isinstance(value, Number):
            number = float(value.value)
            return Bounded(number, 0.0 if math.isinf(number) or number.is_integer() else abs(number) * 2.0**-wide.mantissa)
        if isinstance(value, Element):
            return given[value]
        assert value is not None
        if value.name == "where":
            return self._choice(value, given, wide)
        parts = [self.of_value(argument, given, wide) for argument in value.arguments]
        if value.name in (*OF_LOW_BITS, "uniform"):
            return self._float_of_bits(value, given, parts)
        result, error = _propagated(value.name, parts, wide)
        equal = _equality_of(value) if value.name == "-" else None
        same = None if equal is None else given.get(equal)
        if same is not None:
            error = numpy.where(same.value, 0.0, error)
        exact = value.name in ("max", "min", "relu", "abs", "clamp", "floor", "round") or (len(parts) == 1 and value.name == "-")
        if exact or (value.name in ("+", "-", "*") and _exact_integers(parts, result, wide)):
            return Bounded(result, error)
        return Bounded(result, error + _relative(result, 2.0**-wide.mantissa))

    def _float_of_bits(self, value: Operation, given: Mapping[Element, Bounded], parts: Sequence[Bounded]) -> Bounded:
        """Return a float that integers determine. It is exact if they are exact; otherwise it has no bound."""
        import numpy

        arrays = self._arrays(value, given)
        unknown = functools.reduce(numpy.logical_or, [numpy.asarray(part.error) != 0 for part in parts])
        return Bounded(float_of(value, arrays, self._ranges_in(value)), numpy.where(unknown, numpy.inf, 0.0))

    def _arrays(self, value: Value, given: Mapping[Element, Bounded]) -> dict[Element, Any]:
        """Return the arrays of the elements of a value. Integers have the type int64."""
        import numpy

        ranges = self._ranges_in(value)
        arrays = {element: numpy.asarray(given[element].value) for element in elements_of(value)}
        return {element: array.astype(numpy.int64) if element.tensor in ranges else array for element, array in arrays.items()}

    def _choice(self, value: Operation, given: Mapping[Element, Bounded], wide: DType) -> Bounded:
        condition, *rest = value.arguments
        return _select(self._condition(condition, given, wide), *(self.of_value(argument, given, wide) for argument in rest))

    def _condition(self, value: Value, given: Mapping[Element, Bounded], wide: DType) -> tuple[Any, Any]:
        """Return whether a condition holds, and where the errors leave it open."""
        assert isinstance(value, Operation)
        if value.name in ("and", "or"):
            (left, open_left), (right, open_right) = (self._condition(argument, given, wide) for argument in value.arguments)
            return (left & right if value.name == "and" else left | right), open_left | open_right
        integral = all(map(self._is_integral, sides_of(value, self._ranges_in(value))))
        left, right = (
            self._of_integer(argument, given) if integral else self.of_value(argument, given, wide) for argument in value.arguments
        )
        error = left.error + right.error
        return value_of(value.name, left.value, right.value), (error > 0) & (abs(left.value - right.value) <= error)


_COORDINATE_RANGE: Final[Range] = (0, 2**31)
"""The range of coordinates and extents. It suffices to show that they are integers."""


def _select(condition: tuple[Any, Any], first: Bounded, second: Bounded) -> Bounded:
    """Return one of two values by a condition. If the errors leave the condition open, the error covers both values."""
    import numpy

    holds, open_ = condition
    either = numpy.maximum(first.error, second.error) + abs(first.value - second.value)
    either = numpy.where(numpy.isnan(either), numpy.inf, either)
    error = numpy.where(open_, either, numpy.where(holds, first.error, second.error))
    return Bounded(numpy.where(holds, first.value, second.value), error)


def _truncation_error(value: Any, error: Any) -> Any:
    """Return the error of a float with an error after its truncation to an integer."""
    import numpy

    truncated = numpy.trunc(value)
    return numpy.maximum(abs(numpy.trunc(value + error) - truncated), abs(numpy.trunc(value - error) - truncated))


def _exact_integers(parts: Sequence[Bounded], result: Any, wide: DType) -> bool:
    """Whether all parts are integers without an error, such as coordinates, and the type represents the result, which is not rounded."""
    import numpy

    return all(map(_are_integers, parts)) and bool(numpy.all(abs(result) <= 2.0**wide.mantissa))


def _are_integers(part: Bounded) -> bool:
    """Whether all values are integers without an error."""
    import numpy

    return not numpy.any(part.error) and bool(numpy.all(part.value == numpy.floor(part.value)))


def of_integers(error: Any, size: Any, accumulator: DType, factors: Sequence[DType]) -> Any:
    """Return the error bounds of sums of integer terms: zero where no addition rounds and no matrix instruction truncates a product.

    `error` is their bound as sums of any numbers, and `size` the sum of absolute terms.
    """
    import numpy

    arithmetic = matrix_arithmetic(factors)
    exact = 2.0 ** (accumulator.mantissa if arithmetic is None else min(accumulator.mantissa, arithmetic.bits))
    return numpy.where(size <= exact, 0.0, error)


def _equality_of(value: Operation) -> Element | None:
    """Return the tensor that marks where both elements of a difference are equal; None if the operation has other operands."""
    if len(value.arguments) != 2 or not all(isinstance(argument, Element) for argument in value.arguments):
        return None
    left, right = value.arguments
    assert isinstance(left, Element) and isinstance(right, Element)
    return attrs.evolve(right, tensor=f"{SAME}{left.tensor} {right.tensor}") if left.index == right.index else None


def sum_error(
    sums: tuple[Any, Any, Any], count: int, accumulator: DType, factors: Sequence[DType] = (), deviations: float = DEVIATIONS
) -> Any:
    """Return the error bound of a sum of `count` terms, in any order.

    `sums` are its value, the sum of absolute terms, and the root of the sum of squares. Matrix instructions may compute products of the
    types `factors`, if they support these. `deviations` is L.
    """
    import numpy

    total, size, squares = sums
    if accumulator.kind == "int":
        return abs(total) * 0.0
    walk, root = (1.0, 1.0) if deviations == 1 else (WALK, ROOT)
    unit, ways, whole = 2.0**-accumulator.mantissa + 2.0**-float64.mantissa, math.sqrt(count), abs(total)
    chain = unit * numpy.minimum(count * size, ways * (deviations / math.sqrt(3) * whole + walk * squares))
    arithmetic = matrix_arithmetic(factors)
    if arithmetic is None:
        return chain
    partial = numpy.minimum(size, whole + root * squares)
    one_sided = numpy.where(size > 0, whole / numpy.where(size > 0, size, 1.0), 0.0) * count * partial
    products = numpy.minimum(count * size, ways * (deviations * whole + walk * squares) + one_sided)
    return chain + 2.0**-arithmetic.bits * (products + 2 * math.ceil(count / arithmetic.terms) * partial)


def matrix_arithmetic(factors: Sequence[DType]) -> MatrixArithmetic | None:
    """Return the arithmetic of products of these types; None if no matrix instruction supports them."""
    if not factors or not all(kind == tf32 or kind.bits <= 16 for kind in factors):
        return None
    return EIGHT_BITS if any(kind.bits == 8 for kind in factors) else FLOATS


def _extremum(name: str, values: Any, axes: tuple[int, ...]) -> Any:
    import numpy

    return (numpy.fmax if name == "max" else numpy.fmin).reduce(values, axis=axes)


def _interval_error(low: Any, value: Any, high: Any) -> Any:
    """Return the larger distance of a value from the two ends; zero if all are the same infinity."""
    import numpy

    return numpy.where((low == value) & (value == high), 0.0, numpy.maximum(value - low, high - value))


def _propagated(name: str, parts: list[Bounded], wide: DType) -> tuple[Any, Any]:
    """Return the result of an operation, and its error without the rounding of the result."""
    import numpy

    first = parts[0]
    if len(parts) == 1 and name in ("-", "abs"):
        return value_of(name, first.value), first.error
    if len(parts) == 1:
        return _function_error(name, first, wide)
    second = parts[1]
    result = value_of(name, *(part.value for part in parts))
    if name in ("+", "-"):
        return result, first.error + second.error
    if name in ("max", "min", "clamp"):
        low, high = (value_of(name, *(part.value + sign * part.error for part in parts)) for sign in (-1, 1))
        return result, _interval_error(low, result, high)
    if name == "*":
        return result, _scaled_error(first.value, second) + _scaled_error(abs(second.value) + second.error, first)
    assert name == "/", name
    least_divisor = numpy.maximum(abs(second.value) - second.error, 0)
    carried = first.error + _scaled_error(result, second)
    return result, numpy.where(carried == 0, 0.0, carried / least_divisor)


def _scaled_error(factor: Any, other: Bounded) -> Any:
    """Return the error of a product due to the error of one operand.

    Infinity times a value that is certainly not 0 stays infinite, so this error is zero.
    """
    import numpy

    is_exact = (other.error == 0) | numpy.isinf(factor) & (abs(other.value) > other.error)
    return numpy.where(is_exact, 0.0, abs(factor) * other.error)


def _function_error(name: str, argument: Bounded, wide: DType) -> tuple[Any, Any]:
    """Return the value and the error of a function.

    The error consists of the difference of the values at the ends of the argument's interval, and the rounding error of the function.
    """
    import numpy

    result = value_of(name, argument.value)
    ends = [value_of(name, _clamped_to_domain(name, argument.value + sign * argument.error)) for sign in (-1.0, 1.0)]
    propagated = numpy.where(argument.error == 0, 0.0, numpy.maximum(abs(ends[0] - result), abs(ends[1] - result)))
    if name in ("sin", "cos"):  # the slope is at most 1, and extremes may be between the ends
        propagated = numpy.minimum(argument.error, 2.0)
    if name in ("gelu", "silu"):  # their minimum, at -0.75 or -1.28, may be between the ends; the slope is at most 1.13 or 1.1
        propagated = numpy.minimum(
            numpy.where(numpy.isnan(propagated), numpy.inf, propagated) + 1.13 * argument.error, 1.13 * argument.error
        )
    return result, propagated + _function_rounding(name, argument.value, result, wide)


def _clamped_to_domain(name: str, values: Any) -> Any:
    """Clamp values that leave a function's domain only because of the error."""
    import numpy

    least = {"sqrt": 0.0, "rsqrt": 0.0, "log": 0.0, "log2": 0.0, "log1p": -1.0}.get(name)
    return values if least is None else numpy.maximum(values, least)


def _function_rounding(name: str, argument: Any, result: Any, wide: DType) -> Any:
    """Return the error of a function beyond one rounding of its result."""
    unit = 2.0 ** (1 - wide.mantissa)  # one unit in the last place, relative
    if name == "tanh_approx":
        return abs(result) * APPROXIMATE_TANH
    if name == "sigmoid":  # 1 / (1 + exp(-x)): the relative error of the sum is at most that of exp
        return abs(result) * (LAST_PLACES["exp"] + 1) * unit
    if name == "silu":
        return abs(result) * (LAST_PLACES["exp"] + 2) * unit
    if name == "gelu":  # 0.5 x (1 + erf(x / sqrt 2)): the sum may cancel, so the error of erf is relative to 1
        return abs(argument) * (LAST_PLACES["erf"] + 2) * unit
    if name == "exp2" and wide == float32:
        return abs(result) * LAST_PLACES[name] * unit + 2.0**-126
    return abs(result) * LAST_PLACES.get(name, 0.0) * unit


# ---------------------------------------------------------------------------------------------- definitions of several steps


def _differences(value: Value | None) -> Iterator[Operation]:
    """Yield all differences in a value."""
    if isinstance(value, Operation):
        if value.name == "-" and len(value.arguments) == 2:
            yield value
        for argument in value.arguments:
            yield from _differences(argument)


@frozen
class _Analysis(FusedDefinition):
    """A definition that is evaluated together with the error bounds of its values. The bounds are additional tensors."""

    rounding: Any = None
    kept: Any = None

    @staticmethod
    def of(definition: FusedDefinition, rounding: _Rounding) -> _Analysis:  # type: ignore[override]
        """Return the analysis of a definition. `rounding` has the types of its operands."""
        fields = {field.name: getattr(definition, field.name) for field in attrs.fields(FusedDefinition) if field.init}
        kept = {**rounding.types, **{name: definition.dtype_of(name, rounding.types) for name in definition.temporaries}}
        return _Analysis(**fields, rounding=attrs.evolve(rounding, types=kept), kept=kept)

    def outputs_at(
        self, arrays: Mapping[str, Any], sizes: Mapping[str, int], chunk: int, places: Mapping[str, Any], whole: Mapping[str, int]
    ) -> dict[str, Bounded]:
        """Return the outputs at some `places` with their bounds. `sizes` are the numbers of places, `whole` the sizes of the definition."""
        import numpy

        values: dict[str, Any] = {}
        for name in self.outputs:
            shape = [sizes[dim] for dim in self.uses[name]]
            values[name] = numpy.full(shape, self.before_steps(name, self.kept[name]), exact_in(self.kept[name]))
            values[f"{ERROR}{name}"] = numpy.zeros(shape)
        for name, array in arrays.items():
            wide, values[f"{ERROR}{name}"] = _exact(array)
            values[name] = numpy.asarray(array).astype(exact_in(self.kept[name])) if self.kept[name].kind == "int" else wide
        values |= factors(arrays, self.rounding.types)
        values |= {f"{INDICES}{dim}": places.get(dim, numpy.arange(size)) for dim, size in sizes.items()}
        values |= {f"{EXTENTS}{dim}": numpy.asarray(size) for dim, size in whole.items()}
        for name in self._rounded_sums():
            shape = [sizes[dim] for dim in self.uses[name]]
            values |= {f"{TERMS}{name} {part}": numpy.zeros(shape) for part in ("size", "squares", "count")}
        self.run_iterations(values, sizes, chunk, self.kept)
        return {name: Bounded(values[name], values[f"{ERROR}{name}"] + self._rounding_of_additions(name, values)) for name in self.outputs}

    def _rounded_sums(self) -> tuple[str, ...]:
        """Return the outputs of 16-bit floats to which steps add."""
        sums = (name for name in self.added if self.combiner_of(name) == "sum")
        return tuple(name for name in sums if self.kept[name].kind == "float" and self.kept[name].bits == 16)

    def _rounding_of_additions(self, name: str, values: Mapping[str, Any]) -> Any:
        """Return the bound of the rounding errors of all additions to an output, in any order; zero for outputs whose sums do not round."""
        import numpy

        if name not in self._rounded_sums():
            return 0.0
        size, squares, count = (values[f"{TERMS}{name} {part}"] for part in ("size", "squares", "count"))
        dtype, most = self.kept[name], int(count.max(initial=0))
        error = sum_error((values[name], size, squares**0.5), most, dtype, deviations=self.rounding.deviations)
        number = numpy.maximum(count, 1)
        deviation = numpy.maximum(squares / number - (values[name] / number) ** 2, 0) ** 0.5
        equal_rounding = deviation < 2.0 ** (1 - dtype.mantissa) * abs(values[name])
        error = numpy.where(equal_rounding, size * min(most * 2.0**-dtype.mantissa, 1.0), error)
        error = error + size * 2.0**-dtype.mantissa + most * rounded_by(dtype, 0.0)
        return numpy.where(size + error < largest(dtype), error, numpy.inf)

    def _count_terms(self, step: Step, values: dict[str, Any], given: Mapping[Element, Bounded], place: Mapping[str, slice]) -> None:
        """Add the terms of a step to those of its output: the number of them, and the sums of absolute values and of squares."""
        import numpy

        formula, name = step.formula, step.formula.output
        dropped = tuple(dim for dim in (*self.scan, *self.batch) if dim not in formula.target.dims)
        by_element = aligned(formula, {element: bounded.value for element, bounded in given.items()}, dropped)
        lengths = [max(array.shape[axis] for array in by_element.values()) for axis in range(len(formula.dims))] if by_element else []
        if formula.contracts:
            size, squares = (summed(formula, {element: abs(array) ** power for element, array in by_element.items()}) for power in (1, 2))
        else:
            errors = {element: Bounded(array, numpy.zeros_like(array)) for element, array in by_element.items()}
            terms = abs(numpy.asarray(self.rounding.of_value(formula.value, errors, float32).value))
            axes = tuple(range(len(formula.target.dims), len(formula.dims))) if terms.ndim else ()
            size, squares = terms.sum(axes), (terms**2).sum(axes)
        count = math.prod(lengths[len(formula.target.dims) :])
        where = tuple(place.get(dim, slice(None)) for dim in formula.target.dims)
        for part, amount in (("size", size), ("squares", squares), ("count", count)):
            values[f"{TERMS}{name} {part}"][where] += amount

    def perform(self, step: Step, values: dict[str, Any], place: Mapping[str, slice], types: Mapping[str, DType]) -> None:
        """Evaluate a step and its error bounds, which consist of propagated errors and rounding errors."""
        import numpy

        formula = step.formula
        old = self._old(formula, values, place) if formula.accumulates else None
        given = {
            element: Bounded(self.read(formula, values, element, place).astype(numpy.float64), self._error(values, element, place))
            for element in formula.elements
        }
        equal = [element for element in map(_equality_of, _differences(formula.value)) if element is not None and element.tensor in values]
        given |= {element: Bounded(values[element.tensor], values[element.tensor]) for element in equal}
        known = self._which_is_larger(formula, given)
        if formula.accumulates and formula.output in self._rounded_sums():
            self._count_terms(step, values, given, place)
        now = self.present_types(step, values, types)
        now = {name: float32 if kind == float64 and types[name].kind == "int" else kind for name, kind in now.items()}
        dtype = self.storage_type(step, now, types[formula.output])
        super().perform(step, values, place, types)
        for name in [name for name in values if name.startswith(SAME) and formula.output in name[len(SAME) :].split()]:
            del values[name]
        values |= known
        if step.parts:
            formula = attrs.evolve(formula, target=Element(formula.output, formula.target.index[:-1]))
        dropped = tuple(dim for dim in (*self.scan, *self.batch) if dim not in formula.target.dims)
        in_parts = formula.accumulates and formula.output in self._rounded_sums()  # which are computed in float32
        result = attrs.evolve(self.rounding, types={**self.rounding.types, **now}).of_formula(
            formula, given, dropped, float32 if in_parts else dtype
        )
        error = result.error if not step.parts else numpy.expand_dims(result.error, -1)
        output = self.slice_of(values, step.formula.target, place)
        if old is not None:  # sums of products with other elements of an independent input are independent
            error = numpy.hypot(error, old) if self.rounding.is_independent(formula) else error + old
        if dtype.kind == "int":
            error = _truncation_error(result.value, error)
        kept = 2 if dtype == tf32 else 1  # bits below the upper 19 are truncated by the multiplication, not rounded
        error = numpy.broadcast_to(error, output.shape) + kept * rounded_by(dtype, output)
        if self.writes_operand(step):
            values[f"{ERROR}{formula.output}"][tuple(place.get(dim, slice(None)) for dim in step.formula.target.dims)] = error
        else:
            values[f"{ERROR}{formula.output}"] = error

    def _which_is_larger(self, formula: Formula, given: Mapping[Element, Bounded]) -> dict[str, Any]:
        """Return where the result of `new[m] = max(old[m], other[m])` certainly is `old[m]`, or `other[m]`, despite all errors.

        At these positions, the difference of the result and that operand is 0.
        """
        value, target = formula.value, formula.target
        if not isinstance(value, Operation) or value.name != "max" or formula.reduction is not None or formula.output in self.uses:
            return {}
        if any(element.index not in (target.index, ()) for element in formula.elements):
            return {}
        left, right = (self.rounding.of_value(part, given, float32) for part in value.arguments)
        gap, error = left.value - right.value, left.error + right.error
        named = zip(value.arguments, (gap > error, gap < -error), strict=True)
        return {f"{SAME}{part.tensor} {formula.output}": larger for part, larger in named if isinstance(part, Element)}

    def _old(self, formula: Formula, values: Mapping[str, Any], place: Mapping[str, slice]) -> Any:
        return self._error(values, formula.target, place) if formula.output in values else 0.0

    def _error(self, values: Mapping[str, Any], element: Element, place: Mapping[str, slice]) -> Any:
        """Return the bounds of the part of an operand that an iteration uses. Coordinates and sizes are exact."""
        import numpy

        if element.tensor.startswith((INDICES, EXTENTS)):
            return numpy.zeros_like(self.slice_of(values, element, place), numpy.float64)
        errors = {**values, element.tensor: values[f"{ERROR}{element.tensor}"]}
        return self.slice_of(errors, element, place)


__all__: list[str] = [
    "DEVIATIONS", "Bounded", "MatrixArithmetic", "Worst", "compared", "differing", "error_bounds", "expected", "expected_at", "free_dims",
    "of_integers", "rounded_by", "sample", "sum_error", "worst",
]  # fmt: skip
