"""How far the whole of an output may be off, as one number in the Frobenius norm; derived, as the bounds of elements are.

Elements have bounds of their own (`measure/rounding.py`), which are met but for one case in 10^13. A norm is sharper: errors of many
elements differ, so it is the root of their mean square that counts, and a small error everywhere shows in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from fireiron.gpu.arguments import evaluated
from fireiron.measure.inputs import all_sizes, drawn_at
from fireiron.measure.rounding import DEVIATIONS, IMPROBABLE, Bounded, expected_at, matrix_arithmetic, sample
from fireiron.spec import Spec
from fireiron.values.machine import DType, tf32

PER_ELEMENT: Final = DEVIATIONS
"""Factor of the norm tolerance for one element, relative to its magnitude and the root mean square of all. Errors that are sums of many
are normal, and one in 10^13 of them exceeds this many standard deviations.
"""

WORK: Final = 1 << 24
"""Terms that are evaluated for the tolerance of a definition, sampled by rows and columns if it has more: a tenth of a second."""


def tolerance_of(spec: Spec, sizes: Mapping[str, int] | None = None, adder: DType | None = None, *, output: str | None = None) -> float:
    """The relative error, in the Frobenius norm, that a correct kernel stays below on standard normal data.

    `adder` is the type that sums are kept in (`adder_of` a kernel); by default the spec's accumulator, or else its output's type.
    `output` names one of several outputs; by default it is the first.

    Zero for integers and for what only copies; of products of matrices what `product_error` says. Of anything else, definitions of several
    steps among them, the norm of the bounds of elements beside that of their values, on data drawn for some rows and columns.

    For float16 output accumulated in float32 that is 0.6e-3 for K = 4096.
    """
    return tolerances_of(spec, sizes, adder)[spec.outputs[0] if output is None else output]


def tolerances_of(spec: Spec, sizes: Mapping[str, int] | None = None, adder: DType | None = None) -> dict[str, float]:
    """`tolerance_of` each output, by name."""
    known = all_sizes(spec, sizes)
    types = {name: spec.operands[name].dtype for name in spec.outputs}
    if spec.moves or spec.fills or all(dtype.kind == "int" for dtype in types.values()):
        return dict.fromkeys(types, 0.0)
    if not spec.contracts:
        return _of_a_sample(spec, known, adder)
    ((name, result),) = types.items()
    lengths = {dim: evaluated(spec.size(dim), known) for dim in spec.dims}
    terms = math.prod(size for dim, size in lengths.items() if dim not in spec.uses[name])
    elements = math.prod(lengths[dim] for dim in spec.uses[name])
    factors = [spec.operands[one].dtype for one in spec.inputs]
    return {name: product_error(terms, elements, result, adder or spec.accumulator or result, factors)}


def product_error(terms: int, elements: int, result: DType, adder: DType, factors: Sequence[DType]) -> float:
    """The relative error of sums of products of independent normal numbers, in the Frobenius norm of so many elements.

    With u = 2^-p for a type of p significant bits, and K terms, whose partial sums have half the mean square of the result on average:

    - the output's type, once: u(C), a certain bound;
    - each addition rounds by at most u times the partial sum, independently: u sqrt(K / 2);
    - matrix instructions cut each product off, by less than 2^-bits times the largest (`MatrixArithmetic`), with the product's own sign:
      2^-bits sqrt(K / 2);
    - they cut the sum off twice for so many `terms`, by half a last bit on average and always toward zero, so that these errors add up:
      K / terms 2^-bits / sqrt 2;
    - tf32 leaves out 13 bits of its factors; who rounds them instead makes each of the two larger by half of 2^-10 on average: 2^-10.

    The norm of n independent errors exceeds its expectation sqrt(n) by the factor `_spread` (Hsu, Kakade and Zhang, "A tail inequality for
    quadratic forms of subgaussian random vectors", Electron. Commun. Probab. 17, 2012).
    """
    how = matrix_arithmetic(factors)
    cut = 0.0 if how is None else 2.0**-how.bits
    independent = math.hypot(2.0**-adder.mantissa, cut) * math.sqrt(terms / 2) * _spread(elements)
    alike = 0.0 if how is None else math.ceil(terms / how.terms) * cut / math.sqrt(2)
    return 2.0**-result.mantissa + independent + alike + (2.0**-10 if tf32 in factors else 0.0)


def _spread(elements: int) -> float:
    """How much longer than on average a vector of independent errors is, but for one case in 10^13."""
    share = -math.log(IMPROBABLE) / max(elements, 1)
    return math.sqrt(1 + 2 * math.sqrt(share) + 2 * share)


def _of_a_sample(spec: Spec, sizes: Mapping[str, int], adder: DType | None) -> dict[str, float]:
    """By the bounds of elements of some rows and columns, of data drawn for them."""
    import numpy

    generator = numpy.random.default_rng(0)
    places = sample(spec, sizes, WORK, generator)
    made = expected_at(spec, drawn_at(spec, sizes, places, generator), sizes, places, adder, random=True)
    return {name: 0.0 if spec.operands[name].dtype.kind == "int" else ratio(one) for name, one in made.items()}


def ratio(made: Bounded) -> float:
    """The norm of bounds beside that of the values, where both are finite."""
    import numpy

    finite = numpy.isfinite(made.value) & numpy.isfinite(made.error)
    values, errors = (math.sqrt(float((numpy.asarray(one)[finite] ** 2).sum())) for one in (made.value, made.error))
    return errors / values if values else errors


__all__: list[str] = ["PER_ELEMENT", "product_error", "ratio", "tolerance_of", "tolerances_of"]
