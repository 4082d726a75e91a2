"""The tolerance of a whole output as one number in the Frobenius norm; derived, as the bounds of elements are.

Elements have separate bounds (`measure/rounding.py`), which hold except for one case in 10^13. A norm is sharper: it depends on the root
mean square of the errors, so it detects a small error everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from fireiron.gpu.arguments import evaluated
from fireiron.measure.inputs import all_sizes, random_inputs_at
from fireiron.measure.rounding import DEVIATIONS, IMPROBABLE, Bounded, expected_at, matrix_arithmetic, sample
from fireiron.spec import Spec
from fireiron.specs.fused import as_direct
from fireiron.values.machine import DType, tf32

PER_ELEMENT: Final = DEVIATIONS
"""Factor of the norm tolerance for one element, relative to its magnitude and the root mean square of all. Errors that are sums of many
terms are normally distributed, and one in 10^13 of them exceeds this many standard deviations.
"""

WORK: Final = 1 << 24
"""Number of terms that are evaluated for the tolerance of a definition, sampled by rows and columns if it has more: a tenth of a second."""


def tolerance_of(
    spec: Spec, sizes: Mapping[str, int] | None = None, accumulator: DType | None = None, *, output: str | None = None
) -> float:
    """The relative error, in the Frobenius norm, that a correct kernel stays below on standard normal data.

    `accumulator` is the type of sums (`accumulator_of` a kernel); by default the spec's accumulator, or else its output's type. `output`
    names one of several outputs; by default the first.

    Zero for integers and for pure copies; `product_error` for matrix products. For anything else, such as definitions of several steps, the
    norm of the element bounds relative to that of the values, on random data for some rows and columns.

    For float16 output accumulated in float32 that is 0.6e-3 for K = 4096.
    """
    return tolerances_of(spec, sizes, accumulator)[spec.outputs[0] if output is None else output]


def tolerances_of(spec: Spec, sizes: Mapping[str, int] | None = None, accumulator: DType | None = None) -> dict[str, float]:
    """`tolerance_of` each output, by name."""
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
    operands = [spec.operands[one].dtype for one in spec.inputs]
    return {name: product_error(terms, elements, result, accumulator or spec.accumulator or result, operands)}


def product_error(terms: int, elements: int, result: DType, accumulator: DType, operands: Sequence[DType]) -> float:
    """The relative error of sums of products of independent normal numbers, in the Frobenius norm of `elements` elements.

    With u = 2^-p for a type of p significant bits, and K terms, whose partial sums have half the mean square of the result on average:

    - The output's type rounds once: u(C), a certain bound.
    - Each addition rounds by at most u times the partial sum, independently: u sqrt(K / 2).
    - Matrix instructions truncate each product, by less than 2^-bits times the largest (`MatrixArithmetic`), with the product's own sign:
      2^-bits sqrt(K / 2).
    - They truncate the sum twice per `terms` products, by half a last bit on average and always toward zero, so these errors accumulate: K
      / terms 2^-bits / sqrt 2.
    - tf32 drops 13 bits of its operands. A kernel that rounds them instead enlarges each of the two by half of 2^-10 on average: 2^-10.

    The norm of n independent errors exceeds its expectation sqrt(n) by the factor `_spread` (Hsu, Kakade and Zhang, "A tail inequality for
    quadratic forms of subgaussian random vectors", Electron. Commun. Probab. 17, 2012).
    """
    arithmetic = matrix_arithmetic(operands)
    truncation = 0.0 if arithmetic is None else 2.0**-arithmetic.bits
    independent = math.hypot(2.0**-accumulator.mantissa, truncation) * math.sqrt(terms / 2) * _spread(elements)
    systematic = 0.0 if arithmetic is None else math.ceil(terms / arithmetic.terms) * truncation / math.sqrt(2)
    return 2.0**-result.mantissa + independent + systematic + (2.0**-10 if tf32 in operands else 0.0)


def _spread(elements: int) -> float:
    """The factor by which a vector of independent errors exceeds its average length, except for one case in 10^13."""
    share = -math.log(IMPROBABLE) / max(elements, 1)
    return math.sqrt(1 + 2 * math.sqrt(share) + 2 * share)


def _from_a_sample(spec: Spec, sizes: Mapping[str, int], accumulator: DType | None) -> dict[str, float]:
    """From the bounds of elements of some rows and columns, on random data for them."""
    import numpy

    generator = numpy.random.default_rng(0)
    spec, _ = as_direct(spec, {}, sizes)
    places = sample(spec, sizes, WORK, generator)
    bounded = expected_at(spec, random_inputs_at(spec, sizes, places, generator), sizes, places, accumulator, random=True)
    return {name: 0.0 if spec.operands[name].dtype.kind == "int" else ratio(one) for name, one in bounded.items()}


def ratio(bounded: Bounded) -> float:
    """The norm of the bounds relative to that of the values, where both are finite."""
    import numpy

    finite = numpy.isfinite(bounded.value) & numpy.isfinite(bounded.error)
    values, errors = (math.sqrt(float((numpy.asarray(one)[finite] ** 2).sum())) for one in (bounded.value, bounded.error))
    return errors / values if values else errors


__all__: list[str] = ["PER_ELEMENT", "product_error", "ratio", "tolerance_of", "tolerances_of"]
