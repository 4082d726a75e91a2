"""Random data for definitions of several steps, and how far a correct kernel may be off what they mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from fireiron.gpu.arguments import evaluated
from fireiron.spec import Spec
from fireiron.specs.fused import FusedDefinition, Step
from fireiron.values.machine import DType, float32

AMPLIFIED: Final = 4.0
"""How much functions such as `exp` may widen the error of what they are given, on data of the size that `spreads` says."""


def spreads(spec: Spec, made: FusedDefinition, sizes: Mapping[str, int]) -> dict[str, float]:
    """The standard deviation of each input, 1 but for factors of products: so that sums of K products are as large as their terms.

    A chain of products, such as the layers of a network, then stays within the range of float16.
    """
    found = dict.fromkeys(spec.inputs, 1.0)
    for step in made.steps:
        if not step.formula.contracts:
            continue
        factors = [one.tensor for one in step.formula.elements]
        known = [name for name in factors if name in found]
        terms = math.prod(evaluated(spec.size(dim), sizes) for dim in step.formula.over)
        for name in known:
            found[name] = min(found[name], terms ** (-0.5 / len(known)))
    return found


def bound(spec: Spec, made: FusedDefinition, output: str, sizes: Mapping[str, int], adder: DType | None = None) -> float:
    """The relative error, in the Frobenius norm, below which a correct kernel stays: what the steps may give, each rounding once.

    Sums are kept in the type of their result, or in `adder`, if it is less precise; zero for integers.
    """
    result = spec.operands[output].dtype
    if result.kind == "int":
        return 0.0
    types = {name: view.dtype for name, view in spec.operands.items()}
    types |= {name: made.dtype_of(name, types) for name in made.temporaries}
    steps = sum(_of_step(one, spec, made, types, sizes, adder) for one in made.steps if one.formula.output not in made.outputs)
    last = sum(_of_sum(one, spec, made, types, sizes, adder) for one in made.steps if one.formula.output in made.outputs)
    return 1.5 * 2.0**-result.mantissa + AMPLIFIED * (steps + last)


def _of_step(
    step: Step, spec: Spec, made: FusedDefinition, types: Mapping[str, DType], sizes: Mapping[str, int], adder: DType | None
) -> float:
    """Of a temporary: rounded to its type, and added up."""
    dtype = types[step.formula.output]
    rounded = 0.0 if dtype.kind == "int" or step.formula.fills else 2.0**-dtype.mantissa
    return rounded + _of_sum(step, spec, made, types, sizes, adder)


def _of_sum(
    step: Step, spec: Spec, made: FusedDefinition, types: Mapping[str, DType], sizes: Mapping[str, int], adder: DType | None
) -> float:
    """What a sum, or a product of many, gives, as `tolerance_of` says of products: a random walk, and what tensor cores drop."""
    one = step.formula
    if one.reduction not in ("sum", "prod") or types[one.output].kind == "int":
        return 0.0
    terms = math.prod(evaluated(spec.size(dim), sizes) for dim in dict.fromkeys((*one.over, *(made.over if one.joins else ()))))
    kept = types[one.output] if types[one.output].bits >= 32 else float32
    if one.contracts and adder is not None and adder.mantissa < kept.mantissa:
        kept = adder
    small = one.contracts and any(types[element.tensor].bits == 8 for element in one.elements)
    unit = 2.0 ** -(min(kept.mantissa, 13) if small else kept.mantissa)
    return 2 * unit * math.sqrt(terms) + (unit * terms / 8 if one.contracts and kept == float32 else 0.0)
