"""Gradients of `fireiron.function`: other functions of the library that PyTorch calls in the backward pass.

A strategy's file states them as `gradient`, in the order in which they run:

    gradient = ("rmsnorm_input_gradient", "rmsnorm_weight_gradient")

Each function reads inputs and outputs of the forward function by name, `dY`, the gradient of the output `Y`, and results of functions
before it. It writes `dX`, the gradient of the input `X`, or values that later functions read. `"name(X=Z)"` passes `Z` as its operand `X`,
`"dX = dropout(X=dY)"` names its results, and `"dR = dX"` states that two inputs have the same gradient.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fireiron import operators
from fireiron.batches import new_like
from fireiron.errors import ArgumentError
from fireiron.front.arrays import joined
from fireiron.front.call import Request
from fireiron.frozen import frozen
from fireiron.values.machine import as_dtype

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

    The values are gradients of outputs, saved arrays, numbers, and the results of the steps. `gradients` are positions among the outputs,
    `saved` among the inputs and outputs, `numbers` among the inputs: what the steps read. A step has its function and the positions of the
    values that it reads. `returned` are the values that a backward pass computes, and `results` has the position of the gradient of each
    input among the values that are given and returned, or None. `sources` are the inputs whose gradients the returned values are; if one
    value is the gradient of several inputs, the first of them.
    """

    wanted: tuple[bool, ...]
    gradients: tuple[int, ...]
    saved: tuple[int, ...]
    numbers: tuple[int, ...]
    steps: tuple[tuple[Function, tuple[int, ...]], ...]
    returned: tuple[int, ...]
    results: tuple[int | None, ...]
    sources: tuple[int, ...]

    def computed(self, given: Sequence[Any], call: Callable[[Function, Sequence[Any]], Sequence[Any]]) -> tuple[Any, ...]:
        """Return the values that the steps compute from the given ones. `call` returns the results of a function."""
        values = [*given]
        for step, reads in self.steps:
            values += call(step, [values[place] for place in reads])
        return tuple([values[place] for place in self.returned])

    def placed(self, given: Sequence[Any], returned: Sequence[Any]) -> tuple[Any, ...]:
        """Return the gradient of each input, or None."""
        values = (*given, *returned)
        return tuple([None if place is None else values[place] for place in self.results])


def plan_of(function: Function, wanted: tuple[bool, ...], named: Callable[[str], Function]) -> Plan:
    """Return the backward pass for inputs. Raises: `ArgumentError` if one has no gradient."""
    gradient = function.gradient
    names = [name for name, is_wanted in zip(function.inputs, wanted, strict=True) if is_wanted]
    missing = [name for name in names if f"d{name}" not in gradient.results]
    if missing:
        raise without_gradient(function.name, missing[0] if gradient.steps else "")
    steps = gradient.needed([f"d{name}" for name in names])
    results = [gradient.same.get(f"d{name}", f"d{name}") if name in names else None for name in function.inputs]
    read = {name for step in steps for name in step.reads} | {*results}
    of_outputs = tuple(place for place, name in enumerate(function.outputs) if f"d{name}" in read)
    known = (*function.inputs, *function.outputs)
    arrays = (*function.is_array, *(True for _ in function.outputs))
    saved = tuple(place for place, name in enumerate(known) if name in read and arrays[place])
    numbers = tuple(place for place, name in enumerate(known) if name in read and not arrays[place])
    given = [*(f"d{function.outputs[place]}" for place in of_outputs), *(known[place] for place in (*saved, *numbers))]
    places = {name: place for place, name in enumerate(given)}
    for step in steps:
        places |= {name: len(places) + number for number, name in enumerate(step.writes)}
    returned = tuple(dict.fromkeys(places[name] for name in results if name is not None and places[name] >= len(given)))
    where = {place: place for place in range(len(given))} | {place: len(given) + number for number, place in enumerate(returned)}
    calls = tuple((named(step.function), tuple(places[name] for name in step.reads)) for step in steps)
    where_results = tuple(None if name is None else where[places[name]] for name in results)
    sources = tuple(where_results.index(where[place]) for place in returned)
    return Plan(wanted, of_outputs, saved, numbers, calls, returned, where_results, sources)


def register(operator: Any, named: Callable[[str], Function]) -> None:
    """Register the gradients of the operator `fireiron::function`."""

    def keep(ctx: Any, inputs: Any, output: Sequence[Any]) -> None:
        arrays, numbers, name = inputs
        function = named(name)
        tensors, values = iter(arrays), iter(numbers)
        given = [next(tensors if is_array else values) for is_array in function.is_array]
        wanted = tuple([is_array and one.requires_grad for one, is_array in zip(given, function.is_array, strict=True)])
        ctx.function, ctx.outputs = function, [(one.shape, one.dtype, one.device) for one in output]
        _keep(ctx, function.plan_for(wanted), given, tuple(output))
        ctx.is_empty = _note_empty(ctx, given, tuple(output))

    def differentiate(ctx: Any, gradients: Sequence[Any]) -> tuple[Any, Any, None]:
        known = [_zeros(*one) if gradient is None else gradient for one, gradient in zip(ctx.outputs, gradients, strict=True)]
        results = _differentiate(ctx, ctx.function, known, True)
        is_array = ctx.function.is_array
        no_numbers: Any = None if not all(is_array) else []  # PyTorch takes an empty list for a list of tensors
        return [gradient for gradient, is_given in zip(results, is_array, strict=True) if is_given], no_numbers, None

    operator.register_autograd(differentiate, setup_context=keep)


def replayed(function: Function) -> Callable[..., Any]:
    """Return a function of plain tensors that autograd records, by replayed calls; None if PyTorch needs an operator.

    It takes the arrays and numbers. The look-ups take a third of the time of a call, so they are done once.
    """
    import torch

    watched, transformed = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
    is_recording = torch.is_grad_enabled
    forward_calls, backward_calls, plans = function.replays, function.backward_replays, function.plans

    def run(ctx: Any, *given: Any) -> Any:
        again = forward_calls.again
        done = None if again is None else again(None, None, *given)
        is_launched = done is None or done is NotImplemented
        if is_launched:
            done = function.launched(Request(given, None, None))
        _keep(ctx, plans.get(ctx.needs_input_grad) or function.plan_for(ctx.needs_input_grad), given, done)
        ctx.is_empty = is_launched and _note_empty(ctx, given, done)
        return done

    def differentiate(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        again = backward_calls.again
        plan: Plan = ctx.plan
        if again is None or ctx.is_empty or is_recording() or watched() or transformed():
            return _differentiate(ctx, function, gradients, False)
        given = (*[gradients[place].contiguous() for place in plan.gradients], *ctx.saved_tensors, *ctx.numbers)
        done = again((plan.wanted, ctx.types), None, *given)
        if done is None or done is NotImplemented or done is ...:
            return _differentiate(ctx, function, gradients, False)
        return plan.placed(given, done)

    apply = operators.differentiable(run, differentiate)
    return lambda *given: None if watched() or transformed() else apply(*given)


def _keep(ctx: Any, plan: Plan, given: Sequence[Any], output: Any) -> None:
    """Keep the tensors and numbers that the backward pass reads."""
    values = (*given, *output) if isinstance(output, tuple) else (*given, output)
    ctx.save_for_backward(*[values[place] for place in plan.saved])
    ctx.plan, ctx.numbers = plan, [given[place] for place in plan.numbers]
    ctx.types = tuple([given[place].dtype for place in plan.sources])


def _note_empty(ctx: Any, given: Sequence[Any], output: Any) -> bool:
    """Return whether the outputs have no elements, and keep the shapes of the inputs then. A replayed call has elements."""
    outputs = output if isinstance(output, tuple) else (output,)
    is_empty = all(0 in one.shape for one in outputs)
    if is_empty:
        wanted = ctx.plan.wanted
        ctx.inputs = [(one.shape, one.dtype, one.device) if needed else None for one, needed in zip(given, wanted, strict=True)]
    return is_empty


def _zeros(shape: Any, dtype: Any, device: Any) -> Any:
    import torch

    return torch.zeros(shape, dtype=dtype, device=device)


def _differentiate(ctx: Any, function: Function, gradients: Sequence[Any], is_operator: bool) -> tuple[Any, ...]:
    """Return the gradient of each input; None for those that are not required, and for numbers."""
    plan: Plan = ctx.plan
    if ctx.is_empty:  # no element of an output depends on an input
        return tuple(None if one is None else _zeros(*one) for one in ctx.inputs)
    given = (*[gradients[place].contiguous() for place in plan.gradients], *ctx.saved_tensors, *ctx.numbers)
    if is_operator or operators.is_operator(*(one for one in given if hasattr(one, "is_cuda"))):
        return plan.placed(given, plan.computed(given, torch_operator))

    def make(_: None, *inputs: Any) -> tuple[Any, ...]:
        return _converted(type(function), plan.computed(inputs, _launched), ctx.types)

    return plan.placed(given, function.backward_replays.call((plan.wanted, ctx.types), None, given, make))


def _launched(function: Function, values: Sequence[Any]) -> Sequence[Any]:
    """Return the results of a function of the backward pass as a sequence."""
    results = function.launched(Request(tuple(values), None, None))
    return results if isinstance(results, tuple) else (results,)


def _converted(kind: Callable[..., Function], values: Sequence[Any], types: Sequence[Any]) -> tuple[Any, ...]:
    """Return vectors in these types. One launch converts all of a length; autograd would convert each of them by a separate launch."""
    import torch

    results = [*values]
    lengths: dict[tuple[int, Any], list[int]] = {}
    for place, (value, dtype) in enumerate(zip(values, types, strict=True)):
        if value.dtype == torch.float32 and dtype in (torch.float16, torch.bfloat16) and len(value.shape) == 1:
            lengths.setdefault((value.shape[0], dtype), []).append(place)
    for (length, dtype), places in lengths.items():
        outs = tuple(new_like(values[place], (length,), as_dtype(str(dtype).removeprefix("torch."))) for place in places)
        _conversion(kind, len(places)).launched(Request(tuple(values[place] for place in places), joined(outs), None))
        for place, out in zip(places, outs, strict=True):
            results[place] = out
    return tuple(results)


@functools.cache
def _conversion(kind: Callable[..., Function], count: int) -> Function:
    """Return the function that converts vectors."""
    parts = importlib.import_module("fireiron.strategies._converted")
    definition = parts.converted(count)
    return kind(f"converted_{count}", definition, (parts.by_elements(definition),))


def torch_operator(function: Function, values: Sequence[Any]) -> Sequence[Any]:
    """Return the results of the operator for a function."""
    import torch

    arrays = [value for value, is_array in zip(values, function.is_array, strict=True) if is_array]
    numbers = [float(value) for value, is_array in zip(values, function.is_array, strict=True) if not is_array]
    results: Sequence[Any] = torch.ops.fireiron.function(arrays, numbers, function.name)
    return results


__all__ = ["Gradient", "Plan", "Step", "gradient_of", "plan_of", "register", "replayed", "without_gradient"]
