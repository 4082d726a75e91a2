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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
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


def register(operator: Any, named: Callable[[str], Function]) -> None:
    """Register the gradients of the operator `fireiron::function`."""

    def keep(ctx: Any, inputs: Any, output: Sequence[Any]) -> None:
        arrays, numbers, name = inputs
        _keep(ctx, named(name), arrays, numbers, output)

    def differentiate(ctx: Any, gradients: Sequence[Any]) -> tuple[Any, Any, None]:
        results = _differentiate(ctx, gradients, named, torch_operator)
        no_numbers: Any = None if ctx.numbers else []  # PyTorch takes an empty list for a list of tensors
        return [results.get(name) for name in ctx.function.array_inputs], no_numbers, None

    operator.register_autograd(differentiate, setup_context=keep)


@functools.cache
def recording(named: Callable[[str], Function]) -> Callable[..., Any]:
    """Return the function that autograd records, for calls that nothing traces: it takes a `Function`, and its arrays and numbers."""

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        function, *given = inputs
        values = dict(zip(function.inputs, given, strict=True))
        arrays = [values[name] for name in function.array_inputs]
        numbers = [value for name, value in values.items() if not function.dims[name]]
        _keep(ctx, function, arrays, numbers, output if isinstance(output, tuple) else (output,))

    def differentiate(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        results = _differentiate(ctx, gradients, named, _called)
        return None, *(results.get(name) for name in ctx.function.inputs)

    return operators.recording(lambda function, *given: function(*given), keep, differentiate)


def _keep(ctx: Any, function: Function, arrays: Sequence[Any], numbers: Sequence[float], output: Sequence[Any]) -> None:
    """Keep the tensors and numbers that the backward pass reads."""
    wanted = tuple([one for one, array in zip(function.array_inputs, arrays, strict=True) if array.requires_grad])
    steps, read = function.steps_for(wanted)
    values = dict(zip((*function.array_inputs, *function.outputs), (*arrays, *output), strict=True))
    ctx.function, ctx.steps, ctx.wanted = function, steps, wanted
    ctx.kept = [one for one in values if one in read]
    ctx.save_for_backward(*[values[one] for one in ctx.kept])
    ctx.numbers = dict(zip((one for one in function.inputs if not function.dims[one]), numbers, strict=True))
    ctx.outputs = [(one.shape, one.dtype, one.device) for one in output]
    ctx.types = [array.dtype for one, array in zip(function.array_inputs, arrays, strict=True) if one in wanted]
    ctx.shapes = [array.shape for one, array in zip(function.array_inputs, arrays, strict=True) if one in wanted]


def steps_for(function: Function, wanted: tuple[str, ...]) -> tuple[tuple[Step, ...], frozenset[str]]:
    """Return the steps that the gradients of inputs need, and the values that these read. Raises: `ArgumentError` if one has none."""
    missing = [one for one in wanted if f"d{one}" not in function.gradient.results]
    if missing:
        raise without_gradient(function.name, missing[0] if function.gradient.steps else "")
    steps = function.gradient.needed([f"d{one}" for one in wanted])
    return steps, frozenset(one for step in steps for one in step.reads)


def _differentiate(
    ctx: Any, gradients: Sequence[Any], named: Callable[[str], Function], run: Callable[[Function, Sequence[Any]], Sequence[Any]]
) -> dict[str, Any]:
    """Return the required gradients by the name of the input."""
    function = ctx.function
    if all(0 in shape for shape, _, _ in ctx.outputs):
        return _zeros(ctx)
    values: dict[str, Any] = dict(zip(ctx.kept, ctx.saved_tensors, strict=True)) | ctx.numbers
    values |= dict(_given(function, gradients, ctx.outputs))
    for step in ctx.steps:
        values |= zip(step.writes, run(named(step.function), [values[name] for name in step.reads]), strict=True)
    same = function.gradient.same
    return {name: values[same.get(f"d{name}", f"d{name}")].to(dtype) for name, dtype in zip(ctx.wanted, ctx.types, strict=True)}


def _zeros(ctx: Any) -> dict[str, Any]:
    """Return the gradients of inputs on which no element of an output depends."""
    import torch

    device = ctx.outputs[0][2]
    wanted = zip(ctx.wanted, ctx.shapes, ctx.types, strict=True)
    return {name: torch.zeros(shape, dtype=dtype, device=device) for name, shape, dtype in wanted}


def _given(function: Function, gradients: Sequence[Any], outputs: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the gradients of outputs, contiguous, with zeros for outputs that are not used."""
    import torch

    for name, gradient, (shape, dtype, device) in zip(function.outputs, gradients, outputs, strict=True):
        yield f"d{name}", torch.zeros(shape, dtype=dtype, device=device) if gradient is None else gradient.contiguous()


def _called(function: Function, values: Sequence[Any]) -> Sequence[Any]:
    """Return the results of a function of the backward pass, as an operator only if PyTorch must handle it."""
    if operators.watched(*(value for name, value in zip(function.inputs, values, strict=True) if function.dims[name])):
        return torch_operator(function, values)
    results = function(*values)
    return results if isinstance(results, tuple) else (results,)


def torch_operator(function: Function, values: Sequence[Any]) -> Sequence[Any]:
    """Return the results of the operator for a function."""
    import torch

    arrays = [value for name, value in zip(function.inputs, values, strict=True) if function.dims[name]]
    numbers = [float(value) for name, value in zip(function.inputs, values, strict=True) if not function.dims[name]]
    results: Sequence[Any] = torch.ops.fireiron.function(arrays, numbers, function.name)
    return results


__all__ = ["Gradient", "Step", "gradient_of", "recording", "register", "steps_for", "torch_operator", "without_gradient"]
