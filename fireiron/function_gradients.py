"""Gradients of `fireiron.function`: other functions of the library that PyTorch calls in the backward pass.

A strategy's file states them as `gradient`, in the order in which they run:

    gradient = ("rmsnorm_input_gradient", "rmsnorm_weight_gradient")

Each function reads inputs and outputs of the forward function by name, `dY`, the gradient of the output `Y`, and results of functions
before it. It writes `dX`, the gradient of the input `X`, or values that later functions read. `"name(X=Z)"` passes `Z` as its operand `X`,
`"dX = dropout(X=dY)"` names its results, and `"dR = dX"` states that two inputs have the same gradient.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fireiron import operators
from fireiron.errors import ArgumentError
from fireiron.frozen import frozen

if TYPE_CHECKING:
    from fireiron.function import Function

CALL: Final = re.compile(r"(?:(?P<results>\w+(?:, ?\w+)*) = )?(?P<name>[\w:]+)(?:\((?P<renamed>[\w=, ]*)\))?")
"""A function, the names of its results, and the values of operands whose names differ."""

SAME: Final = re.compile(r"(?P<target>\w+) = (?P<source>\w+)")
"""Two equal gradients."""


@frozen
class Step:
    """A function of a backward pass: the values that it reads, by operand in the order of its inputs, and its results."""

    function: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@frozen
class Gradient:
    """The backward pass of a function: functions in their order, and equal gradients (`{"dR": "dX"}`)."""

    steps: tuple[Step, ...]
    same: Mapping[str, str]

    @property
    def results(self) -> tuple[str, ...]:
        """The gradients that the steps compute, and those equal to them."""
        return (*(name for step in self.steps for name in step.writes), *self.same)

    def needed(self, wanted: Collection[str]) -> tuple[Step, ...]:
        """Return the steps that the wanted gradients need, in their order."""
        open_names = {self.same.get(name, name) for name in wanted}
        kept = []
        for step in reversed(self.steps):
            if open_names & set(step.writes):
                kept.append(step)
                open_names |= set(step.reads)
        return tuple(reversed(kept))


def gradient_of(forward: Function, stated: Sequence[str], named: Callable[[str], Function]) -> Gradient:
    """Return the backward pass that a strategy's file states for a function.

    Args: `named` returns the function of a name.

    Raises: ArgumentError if a text has another form, a step reads a value that does not exist, or writes the gradient of no input.
    """
    known = [*forward.inputs, *forward.outputs, *(f"d{output}" for output in forward.outputs)]
    steps: list[Step] = []
    same: dict[str, str] = {}
    for text in stated:
        equal = SAME.fullmatch(text)
        if equal and equal["source"] in known:
            same[equal["target"]] = equal["source"]
            continue
        step = _step(forward, text, named, known)
        known += step.writes
        steps.append(step)
    gradients = {f"d{name}" for name in forward.inputs if forward.dims[name]}
    read = {name for step in steps for name in step.reads}
    unused = next((name for step in steps for name in step.writes if name not in gradients | read), "")
    unused = unused or next((name for name in same if name not in gradients), "")
    if unused:
        raise ArgumentError(
            f"the gradient of {forward.name} writes {unused}, which is no gradient of an input and is not read", legal=sorted(gradients)
        )
    return Gradient(tuple(steps), same)


def _step(forward: Function, text: str, named: Callable[[str], Function], known: Sequence[str]) -> Step:
    """Return a step for its text."""
    call = CALL.fullmatch(text)
    if call is None:
        raise ArgumentError(
            f"the gradient of {forward.name} has an illegal step", got=text, legal='"name", "name(X=Z)", "dX = name" or "dR = dX"'
        )
    pairs = [pair.partition("=") for pair in (call["renamed"] or "").replace(" ", "").split(",") if pair]
    renamed = {operand: value for operand, _, value in pairs}
    function = named(call["name"])
    reads = tuple(_known(forward, text, renamed.get(name, name), known) for name in function.inputs)
    writes = tuple(call["results"].replace(" ", "").split(",")) if call["results"] else function.outputs
    if len(writes) != len(function.outputs):
        raise ArgumentError(
            f"the gradient of {forward.name} names {len(writes)} results in {text!r}", legal=f"{len(function.outputs)} results"
        )
    return Step(call["name"], reads, writes)


def _known(forward: Function, text: str, name: str, known: Sequence[str]) -> str:
    if name not in known:
        raise ArgumentError(f"the gradient of {forward.name} reads {name} in {text!r}, which does not exist there", legal=known)
    return name


def without_gradient(name: str, missing: str = "") -> ArgumentError:
    """Return the error for a tensor that requires a gradient which the function does not have."""
    if missing:
        return ArgumentError(f"{name} has no gradient of {missing}, but it requires one", hint=f"pass {missing}.detach()")
    hint = "call under torch.no_grad(), or with detached tensors"
    return ArgumentError(f"{name} has no gradient, but a tensor requires one", legal="tensors without requires_grad", hint=hint)


# ---------------------------------------------------------------------------------------------- PyTorch


@frozen
class Plan:
    """A backward pass for the inputs that require gradients, by positions in a list of values.

    The values are the inputs, the outputs, the gradients of the outputs, and the results of the steps. `saved` are the arrays among inputs
    and outputs that the steps read. A step has its function and the positions of what it reads. `results` has the position of the gradient
    of each input, or None.
    """

    saved: tuple[int, ...]
    steps: tuple[tuple[Function, tuple[int, ...]], ...]
    results: tuple[int | None, ...]


def plan_of(function: Function, wanted: Collection[str], named: Callable[[str], Function]) -> Plan:
    """Return the backward pass for inputs. Raises: `ArgumentError` if one has no gradient."""
    gradient = function.gradient
    missing = [name for name in wanted if f"d{name}" not in gradient.results]
    if missing:
        raise without_gradient(function.name, missing[0] if gradient.steps else "")
    places = {name: place for place, name in enumerate((*function.inputs, *function.outputs, *(f"d{name}" for name in function.outputs)))}
    steps, known, count = [], len(function.inputs) + len(function.outputs), len(places)
    for step in gradient.needed([f"d{name}" for name in wanted]):
        steps.append((named(step.function), tuple(places[name] for name in step.reads)))
        places |= {name: count + number for number, name in enumerate(step.writes)}
        count += len(step.writes)
    read = {place for _, reads in steps for place in reads}
    saved = tuple(place for place in sorted(read) if place < known and (place >= len(function.inputs) or function.is_array[place]))
    results = (places[gradient.same.get(f"d{name}", f"d{name}")] if name in wanted else None for name in function.inputs)
    return Plan(saved, tuple(steps), tuple(results))


def register(operator: Any, named: Callable[[str], Function]) -> None:
    """Register the gradients of the operator `fireiron::function`."""

    def keep(ctx: Any, inputs: Any, output: Sequence[Any]) -> None:
        arrays, numbers, name = inputs
        function = named(name)
        tensors, values = iter(arrays), iter(numbers)
        _keep(ctx, function, [next(tensors if is_array else values) for is_array in function.is_array], output)

    def differentiate(ctx: Any, gradients: Sequence[Any]) -> tuple[Any, Any, None]:
        results = _differentiate(ctx, gradients, True)
        is_array = ctx.function.is_array
        no_numbers: Any = None if not all(is_array) else []  # PyTorch takes an empty list for a list of tensors
        return [gradient for gradient, is_given in zip(results, is_array, strict=True) if is_given], no_numbers, None

    operator.register_autograd(differentiate, setup_context=keep)


@functools.cache
def recording() -> Callable[..., Any]:
    """Return the function that autograd records, for calls that nothing traces: it takes a `Function`, and its arrays and numbers."""

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        function, *given = inputs
        _keep(ctx, function, given, output if isinstance(output, tuple) else (output,))

    def differentiate(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        return None, *_differentiate(ctx, gradients, False)

    return operators.recording(lambda function, *given: function(*given), keep, differentiate)


def _keep(ctx: Any, function: Function, inputs: Sequence[Any], output: Sequence[Any]) -> None:
    """Keep the tensors and numbers that the backward pass reads."""
    plan = function.plan_for(tuple([is_array and one.requires_grad for one, is_array in zip(inputs, function.is_array, strict=True)]))
    values = (*inputs, *output)
    ctx.save_for_backward(*[values[place] for place in plan.saved])
    ctx.function, ctx.plan = function, plan
    ctx.inputs = [(one.shape, one.dtype) if is_array else one for one, is_array in zip(inputs, function.is_array, strict=True)]
    ctx.outputs = [(one.shape, one.dtype, one.device) for one in output]


def _differentiate(ctx: Any, gradients: Sequence[Any], is_operator: bool) -> list[Any]:
    """Return the gradient of each input; None for those that are not required, and for numbers."""
    import torch

    plan = ctx.plan
    if all(0 in shape for shape, _, _ in ctx.outputs):  # no element of an output depends on an input
        device, wanted = ctx.outputs[0][2], zip(ctx.inputs, plan.results, strict=True)
        return [None if place is None else torch.zeros(one[0], dtype=one[1], device=device) for one, place in wanted]
    values = [*ctx.inputs, *[None] * len(ctx.outputs)]
    for place, tensor in zip(plan.saved, ctx.saved_tensors, strict=True):
        values[place] = tensor
    for gradient, (shape, dtype, device) in zip(gradients, ctx.outputs, strict=True):
        values.append(torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient.contiguous())
    is_operator = is_operator or operators.watched(*(one for one in values if hasattr(one, "is_cuda")))
    for step, reads in plan.steps:
        results = (torch_operator if is_operator else _called)(step, [values[place] for place in reads])
        values += results
    return [None if place is None else values[place].to(one[1]) for one, place in zip(ctx.inputs, plan.results, strict=True)]


def _called(function: Function, values: Sequence[Any]) -> Sequence[Any]:
    """Return the results of a function of the backward pass as a sequence."""
    results = function(*values)
    return results if isinstance(results, tuple) else (results,)


def torch_operator(function: Function, values: Sequence[Any]) -> Sequence[Any]:
    """Return the results of the operator for a function."""
    import torch

    arrays = [value for value, is_array in zip(values, function.is_array, strict=True) if is_array]
    numbers = [float(value) for value, is_array in zip(values, function.is_array, strict=True) if not is_array]
    results: Sequence[Any] = torch.ops.fireiron.function(arrays, numbers, function.name)
    return results


__all__ = ["Gradient", "Plan", "Step", "gradient_of", "plan_of", "recording", "register", "without_gradient"]
