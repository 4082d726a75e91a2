"""Derive the tolerance of a whole output: a relative error in the Frobenius norm.

Elements have separate bounds (`measure/rounding.py`), which hold except for one case in 10^13. The norm is sharper. It depends on the root
mean square of the errors, so it detects a small error in all elements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from fireiron.gpu.arguments import evaluated
from fireiron.language.strategy import Bindable
from fireiron.measure.inputs import all_sizes, random_inputs_at
from fireiron.measure.rounding import DEVIATIONS, IMPROBABLE, Bounded, expected_at, matrix_arithmetic, sample
from fireiron.spec import Spec, as_spec
from fireiron.specs.fused import as_direct
from fireiron.values.machine import DType, tf32

PER_ELEMENT: Final = DEVIATIONS
"""Factor of the norm tolerance for one element, relative to its magnitude plus the root mean square of all elements.

Errors that are sums of many terms are normally distributed. One in 10^13 of them exceeds this number of standard deviations.
"""

WORK: Final = 1 << 24
"""Number of terms that are evaluated for the tolerance of a definition, in a tenth of a second. Larger definitions are sampled."""


def tolerance_of(
    spec: Bindable, sizes: Mapping[str, int] | None = None, accumulator: DType | None = None, *, output: str | None = None
) -> float:
    """Return the maximum relative error, in the Frobenius norm, of a correct kernel on standard normal data.

    `accumulator` is the type of sums (`accumulator_of` a kernel). Default: the spec's accumulator, or else the type of its output. `output`
    is the name of one of several outputs. Default: the first.

    The tolerance is zero for integers and for pure copies, and `product_error` for matrix products. For other specs, such as definitions of
    several steps, it is the norm of the element bounds relative to the norm of the values, on random data for some rows and columns.

    Example: for float16 output, a float32 accumulator and K = 4096, the tolerance is 0.6e-3.
    """
    whole: Spec = as_spec(spec)
    return tolerances_of(whole, sizes, accumulator)[whole.outputs[0] if output is None else output]


def tolerances_of(spec: Spec, sizes: Mapping[str, int] | None = None, accumulator: DType | None = None) -> dict[str, float]:
    """Return `tolerance_of` for each output, by name."""
    known = all_sizes(spec, sizes)
    types = {name: spec.operands[name].dtype for name in spec.outputs}
    if spec.moves or spec.fills or all(dtype.kind == "int" for dtype in types.values()):
        return dict.fromkeys(types, 0.0)
    if not spec.contracts:
        return _from_a_sample(spec, known, accumulator)
    ((name, result),) = types.items()
    lengths = {dim: evaluated(spec.size(dim), known) for dim in spec.dims}
    terms = math.prod(size for dim, size in lengths.items() if dim not in spec.uses[name])
    elements = math.prod(lengths[dim] for dim in spec.uses[name])
    operands = [spec.operands[operand].dtype for operand in spec.inputs]
    return {name: product_error(terms, elements, result, accumulator or spec.accumulator or result, operands)}


def product_error(terms: int, elements: int, result: DType, accumulator: DType, operands: Sequence[DType]) -> float:
    """Return the maximum relative error of sums of products of independent normal numbers, in the Frobenius norm of `elements` elements.

    Let u = 2^-p for a type of p significant bits, and let K be the number of terms. The mean square of the partial sums is on average half
    the mean square of the result. The error is the sum of these parts:

    - The rounding to the output's type: u(C), a certain bound.
    - The rounding of each addition, by at most u times the partial sum, independently: u sqrt(K / 2).
    - The truncation of each product by matrix instructions, by less than 2^-bits times the largest product (`MatrixArithmetic`), toward
      zero: 2^-bits sqrt(K / 2).
    - The truncation of the sum, twice per `terms` products, by half a last bit on average. It is always toward zero, so these errors
      accumulate: K / terms 2^-bits / sqrt 2.
    - The truncation of tf32 operands by 13 bits. A kernel that rounds them instead enlarges each of the two operands by half of 2^-10 on
      average: 2^-10.

    The norm of n independent errors exceeds its expectation sqrt(n) by the factor `_spread` (Hsu, Kakade and Zhang, "A tail inequality for
    quadratic forms of subgaussian random vectors", Electron. Commun. Probab. 17, 2012).
    """
    arithmetic = matrix_arithmetic(operands)
    truncation = 0.0 if arithmetic is None else 2.0**-arithmetic.bits
    independent = math.hypot(2.0**-accumulator.mantissa, truncation) * math.sqrt(terms / 2) * _spread(elements)
    systematic = 0.0 if arithmetic is None else math.ceil(terms / arithmetic.terms) * truncation / math.sqrt(2)
    return 2.0**-result.mantissa + independent + systematic + (2.0**-10 if tf32 in operands else 0.0)


def _spread(elements: int) -> float:
    """Return the factor by which a vector of independent errors may exceed its average length, except for one case in 10^13."""
    share = -math.log(IMPROBABLE) / max(elements, 1)
    return math.sqrt(1 + 2 * math.sqrt(share) + 2 * share)


def _from_a_sample(spec: Spec, sizes: Mapping[str, int], accumulator: DType | None) -> dict[str, float]:
    """Return the tolerances from the element bounds of some rows and columns, on random data."""
    import numpy

    generator = numpy.random.default_rng(0)
    spec, _ = as_direct(spec, {}, sizes)
    places = sample(spec, sizes, WORK, generator)
    bounded = expected_at(spec, random_inputs_at(spec, sizes, places, generator), sizes, places, accumulator, random=True)
    return {name: 0.0 if spec.operands[name].dtype.kind == "int" else ratio(output) for name, output in bounded.items()}


def ratio(bounded: Bounded) -> float:
    """Return the norm of the bounds relative to the norm of the values, over elements for which both are finite."""
    import numpy

    finite = numpy.isfinite(bounded.value) & numpy.isfinite(bounded.error)
    values, errors = (math.sqrt(float((numpy.asarray(array)[finite] ** 2).sum())) for array in (bounded.value, bounded.error))
    return errors / values if values else errors


__all__: list[str] = ["PER_ELEMENT", "product_error", "ratio", "tolerance_of", "tolerances_of"]
