"""Other forms of a definition that compute the same result and may be faster. Nothing is rewritten silently: a form is only suggested.

Each form is a function of a definition and its sizes that returns the arguments of another definition, or None if it does not apply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from fireiron.frozen import frozen
from fireiron.spec import Spec
from fireiron.specs.formula import Element, Formula, Number, Operation, Value
from fireiron.specs.fused import Fused, fused
from fireiron.specs.fused_texts import arguments_of
from fireiron.specs.steps import Step

Arguments = dict[str, Any]
"""The arguments of `Fused`."""

FEW_RESULTS: Final = 1 << 15
"""Results of a sum below which one thread or block for each would leave SMs idle."""

FEWEST_TERMS: Final = 1 << 12
"""Terms of a sum from which several blocks share it."""


@attrs.frozen(eq=False)
class OtherForm:
    """Another form of a definition with its predicted time.

    - `name`, `because`: the form, and what it changes. `definition`: the rewritten definition, which a user may adopt.
    - `us`: the predicted microseconds of its derived strategy; `gain`: how many times as fast that is as the present form.
    """

    name: str
    because: str
    definition: Fused
    us: float
    gain: float

    def __str__(self) -> str:
        return f"{self.name}: {self.because}; {self.us:.4g} us predicted, {self.gain:.2f} times as fast\n{self.definition!r}"


@frozen
class Form:
    """A way to rewrite a definition: a name, what it changes, and the function that rewrites."""

    name: str
    because: str
    rewritten: Callable[[Fused, Mapping[str, int]], Arguments | None]


def forms_of(spec: Spec) -> tuple[tuple[Form, Spec], ...]:
    """Return the forms that apply to a spec of a definition, each with the spec of the rewritten definition."""
    definition = fused(spec)
    sizes = {dim: int(spec.size(dim).evaluate({})) for dim in spec.dims if not spec.size(dim).variables()}
    if definition is None or len(sizes) < len(spec.dims) or not isinstance(spec.starter, Fused):
        return ()
    rewritten = ((form, form.rewritten(spec.starter, sizes)) for form in FORMS)
    return tuple((form, _spec(Fused(**arguments), spec)) for form, arguments in rewritten if arguments is not None)


def _spec(start: Fused, spec: Spec) -> Spec:
    """Return the spec of a rewritten definition with the operands of another spec."""
    definition = start.fused_definition
    sizes: dict[str, Any] = {dim: spec.size(dim) for dim in definition.order} | definition.extents_of_arrays(spec)
    types = {name: view.dtype for name, view in spec.operands.items() if name in definition.uses and not view.memory.is_coordinate}
    plain = start(types=types, level=spec.level, **sizes)
    views = tuple(spec.operands.get(name, view) for name, view in plain.operands.items())
    return attrs.evolve(plain, views=views)


# ---------------------------------------------------------------------------------------------- sums of several blocks


def _added(start: Fused, sizes: Mapping[str, int]) -> Arguments | None:
    """Let several blocks add to the results of a sum: `y[m] += sum(n, x[m,n])`."""
    definition = start.fused_definition
    sums = [step for step in definition.steps if step.formula.reduction is not None]
    if len(sums) != 1 or definition.loops or definition.added or sums[0].formula.reduction != "sum" or sums[0].formula.contracts:
        return None
    (total,) = sums
    readers = [step for step in definition.steps if any(element.tensor == total.formula.output for element in step.formula.elements)]
    results = math.prod(sizes[dim] for dim in total.formula.target.dims)
    if results > FEW_RESULTS or math.prod(sizes[dim] for dim in total.formula.over) < FEWEST_TERMS:
        return None
    target = str(total.formula.target)
    if readers:
        if len(readers) > 1 or not readers[0].formula.copies or readers[0] is not definition.steps[-1]:
            return None
        target = str(readers[0].formula.target)
    elif total is not definition.steps[-1]:
        return None
    arguments = arguments_of(start.kind)  # type: ignore[arg-type]
    value = str(total.formula).partition(" = ")[2]
    body = {name: text for name, text in arguments["body"].items() if name not in {step.name for step in readers}}
    body[total.name] = f"{target} += {value}"
    return {**arguments, "name": f"{arguments['name']}_added", "body": body}


# ---------------------------------------------------------------------------------------------- scans


def _scanned(start: Fused, sizes: Mapping[str, int]) -> Arguments | None:
    """Compute a running sum or product of a sequential loop by a parallel scan: `y[m,n] = cumsum(n, x[m,n])`."""
    definition = start.fused_definition
    steps = definition.steps
    body, init = ([step for step in steps if step.part == part] for part in ("body", "init"))
    if len(definition.scan) != 1 or len(init) != 1 or len(body) != 2 or len(steps) != 3:
        return None
    (dim,), (update, store) = definition.scan, body
    combined = update.formula.value
    if not isinstance(combined, Operation) or combined.name not in SCANNED or combined.arguments[0] != update.formula.target:
        return None
    word, neutral = SCANNED[combined.name]
    is_state = store.formula.reduction is None and store.formula.value == update.formula.target
    if not is_state or init[0].formula.output != update.formula.output or init[0].formula.value != Number(neutral):
        return None
    term = combined.arguments[1]
    if any(element.tensor == update.formula.output for element in _elements(term)) or dim not in store.formula.target.dims:
        return None
    arguments = {key: value for key, value in arguments_of(start.kind).items() if key not in ("scan", "loop", "init")}  # type: ignore[arg-type]
    index = ",".join(store.formula.target.dims)
    steps_of = {"term": f"term[{index}] = {term}", update.name: f"running[{index}] = {word}({dim}, term[{index}])"}
    types = {name: dtype for name, dtype in arguments.get("types", {}).items() if name != update.formula.output}
    body_of = {**steps_of, store.name: f"{store.formula.target} = running[{index}]"}
    return {**arguments, "name": f"{arguments['name']}_scan", "body": body_of, "types": types}


SCANNED: Final = {"+": ("cumsum", 0), "*": ("cumprod", 1)}
"""The scan of an operation, and the value that changes nothing."""


def _elements(value: Value) -> tuple[Element, ...]:
    if isinstance(value, Operation):
        return tuple(element for argument in value.arguments for element in _elements(argument))
    return (value,) if isinstance(value, Element) else ()


# ---------------------------------------------------------------------------------------------- online softmax


@frozen
class _Softmax:
    """The steps of a softmax over a dimension: the maximum, the power, the sum, and the quotient, if any."""

    dim: str
    top: Step
    power: Step
    total: Step
    quotient: Step | None


def _online(start: Fused, sizes: Mapping[str, int]) -> Arguments | None:
    """Compute a softmax in a loop, by a running maximum and a running sum, so that a block never has a whole row."""
    definition = start.fused_definition
    softmax = None if definition.loops else _softmax(definition.steps)
    if softmax is None:
        return None
    steps, dim = definition.steps, softmax.dim
    own = [step for step in (softmax.top, softmax.power, softmax.total, softmax.quotient) if step is not None]
    place = steps.index(softmax.top)
    before = [step for step in steps[:place] if step not in own]
    after = [step for step in steps[place:] if step not in own]
    weights = (softmax.power if softmax.quotient is None else softmax.quotient).formula.output
    product = next((step for step in after if _reads(step, weights)), None)
    if any(_reads(step, name) for step in after for name in {weights, softmax.power.formula.output} if step is not product):
        return None
    if product is None and softmax.quotient is not None:
        return None
    if product is not None and not (product.formula.contracts and product.formula.over == (dim,)):
        return None
    if any(dim in step.formula.dims for step in after if step is not product):
        return None
    inside = [step for step in before if dim in step.formula.dims]
    if any(dim in step.formula.over for step in inside):
        return None
    return _looped(start, softmax, before, inside, product, [step for step in after if step is not product])


def _softmax(steps: tuple[Step, ...]) -> _Softmax | None:
    """Return the steps of the only softmax; None if there is none."""
    for top in steps:
        if top.formula.reduction != "max" or len(top.formula.over) != 1:
            continue
        powers = [step for step in steps if _is_power(step.formula, top.formula)]
        totals = [
            step
            for step in steps
            if powers and step.formula.reduction == "sum" and step.formula.reduces and _reads(step, powers[0].formula.output)
        ]
        if len(powers) == len(totals) == 1:
            power, total = powers[0], totals[0]
            quotient = next((step for step in steps if _is_quotient(step.formula, power.formula, total.formula)), None)
            return _Softmax(top.formula.over[0], top, power, total, quotient)
    return None


def _is_power(formula: Formula, top: Formula) -> bool:
    """Whether a formula is `exp(x - top)` of the operand of a maximum."""
    value = formula.value
    difference = value.arguments[0] if isinstance(value, Operation) and value.name in ("exp", "exp2") else None
    return isinstance(difference, Operation) and difference.name == "-" and difference.arguments == (top.value, top.target)


def _is_quotient(formula: Formula, power: Formula, total: Formula) -> bool:
    value = formula.value
    return isinstance(value, Operation) and value.name == "/" and value.arguments == (power.target, total.target)


def _reads(step: Step, tensor: str) -> bool:
    return any(element.tensor == tensor for element in step.formula.elements)


def _looped(
    start: Fused, softmax: _Softmax, before: list[Step], inside: list[Step], product: Step | None, after: list[Step]
) -> Arguments | None:
    """Return the arguments of the definition with a loop."""
    top, power, total, dim = softmax.top, softmax.power, softmax.total, softmax.dim
    rows = ",".join(top.formula.target.dims)
    at = f"[{rows}]" if rows else ""
    function = power.formula.value.name if isinstance(power.formula.value, Operation) else "exp"
    old, new, part = (f"{name}{at}" for name in ("running_max", "new_max", "part"))
    maximum, sum_of, weights = top.formula.target, total.formula.target, power.formula.target
    init = {step.name: str(step.formula) for step in before if step not in inside}
    init |= {"start_max": f"{old} = -1e+30", "start_sum": f"{sum_of} = 0"}
    body = {step.name: str(step.formula) for step in inside}
    body |= {
        top.name: str(top.formula),
        "new_max": f"{new} = max({old}, {maximum})",
        "factor": f"factor{at} = {function}({old} - {new})",
        "keep_max": f"{old} = {new}",
        power.name: f"{weights} = {function}({top.formula.value} - {old})",
        "part": f"{part} = sum({dim}, {weights})",
        "scale_sum": f"{sum_of} = {sum_of} * factor{at}",
        total.name: f"{sum_of} = {sum_of} + {part}",
    }
    final: dict[str, str] = {}
    if product is not None:
        result, name = product.formula.target, f"acc[{','.join(product.formula.target.dims)}]"
        read = softmax.quotient.formula.target if softmax.quotient is not None else weights
        text = str(product.formula).partition(" = ")[2].replace(str(read), f"rounded[{','.join(weights.dims)}]")
        init["start_acc"] = f"{name} = 0"
        body |= {
            "rounded": f"rounded[{','.join(weights.dims)}] = {weights}",
            "scale_acc": f"{name} = {name} * factor{at}",
            product.name: f"{name} += {text}",
        }
        divided = f"{name} / {sum_of}" if softmax.quotient is not None else name
        final = {"divide": f"{result} = {divided}"} if str(result) != divided else {}
    final |= {step.name: str(step.formula) for step in after}
    final = {name: text.replace(str(maximum), old) for name, text in final.items()}
    arguments = arguments_of(start.kind)  # type: ignore[arg-type]
    return {**arguments, "name": f"{arguments['name']}_online", "init": init, "body": body, "final": final, "loop": dim}


FORMS: Final = (
    Form("added", "several blocks add to each result", _added),
    Form("scan", "a parallel scan replaces the sequential loop", _scanned),
    Form("online", "a running maximum and sum in a loop, so that no block has whole rows", _online),
)
"""The forms, in the order of suggestions."""
