"""`fireiron.ssd` and `fireiron.linear_attention` in PyTorch: operators for traced calls, and gradients.

An operator stores its inputs for the gradients, which compute the outputs again. Gradients have no gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from fireiron import operators
from fireiron.errors import ArgumentError
from fireiron.ssd import linear_attention, linear_request, request, ssd

# torch.compile traces this code, so it uses no attrs classes, caches or locks.


class Operator(NamedTuple):
    """The parameters of a call: those of arrays, of which some may be None, and others; and the places of x and B among the arrays."""

    arrays: tuple[str, ...]
    optional: tuple[str, ...]
    others: tuple[str, ...]
    x: int
    b: int


CALLS: Final = {
    "ssd": Operator(("x", "dt", "A", "B", "C", "D", "z", "initial_state"), ("D", "z", "initial_state"), (), 0, 3),
    "linear_attention": Operator(("q", "k", "v", "decay", "initial_state"), ("decay", "initial_state"), ("float scale",), 2, 1),
}
"""The calls that are operators."""


def through_torch(call: str, final: bool, *arguments: Any) -> Any:
    """Call the operator."""
    import torch

    _operators()
    return getattr(torch.ops.fireiron, f"{call}_state" if final else call)(*arguments)


def recorded(call: str, final: bool, *arguments: Any) -> Any:
    """Execute a call that autograd records and nothing traces."""
    if operators.watched(*(one for one in arguments if hasattr(one, "is_cuda"))):
        return through_torch(call, final, *arguments)
    return _function(call, final)(*arguments)


@operators.constant
def _operators() -> bool:
    with operators.registering:
        register_operators()
    return True


# ---------------------------------------------------------------------------------------------- calls


def _run(call: str, final: bool, *arguments: Any) -> Any:
    if call == "ssd":
        x, dt, A, B, C, D, z, state = arguments
        results = ssd.launched(request(x, dt, A, B, C, D, z, state, final))
    else:
        *arrays, state, scale = arguments
        results = linear_attention.launched(linear_request(*arrays, scale=scale, initial_state=state, return_final_state=final))
    return (results[0].contiguous(), results[1]) if final else results.contiguous()


def _shape(call: str, final: bool, *arguments: Any) -> Any:
    """Return the results of a traced call."""
    import torch

    values = arguments[CALLS[call].x]
    result = values.new_empty(values.shape)
    batch, _, heads, elements = values.shape
    state = (batch, heads, elements, arguments[CALLS[call].b].shape[-1])
    return (result, values.new_empty(state, dtype=torch.float32)) if final else result


def _run_gradients(call: str, grad: Any, grad_state: Any, *arguments: Any) -> list[Any]:
    """Return the gradients of the arrays that are not None."""
    from fireiron.ssd_gradients import of_linear_attention, of_ssd

    arrays = arguments[: len(CALLS[call].arrays)]
    results = of_ssd(grad, grad_state, arrays) if call == "ssd" else of_linear_attention(grad, grad_state, arrays, arguments[-1])
    return [result.contiguous() for result in results if result is not None]


def _shape_of_gradients(call: str, grad: Any, grad_state: Any, *arguments: Any) -> list[Any]:
    return [array.new_empty(array.shape) for array in arguments[: len(CALLS[call].arrays)] if array is not None]


def _remember(call: str, ctx: Any, inputs: Any, output: Any) -> None:
    count = len(CALLS[call].arrays)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:count])
    ctx.others = inputs[count:]


def _gradients(call: str, ctx: Any, *grads: Any) -> tuple[Any, ...]:
    import torch

    arrays, others = ctx.saved_tensors, ctx.others
    grad, grad_state = (*grads, None)[:2]
    if grad is None and grad_state is None:
        return (None,) * (len(arrays) + len(others))
    grad = torch.zeros_like(arrays[CALLS[call].x]) if grad is None else grad
    given = [one for one in (grad, grad_state, *arrays) if one is not None]
    run = _gradient_operator(call) if operators.is_operator(*given) else functools.partial(_run_gradients, call)
    results = iter(run(grad, grad_state, *arrays, *others))
    return (*(None if array is None else next(results) for array in arrays), *(None for _ in others))


def _gradient_operator(call: str) -> Callable[..., Any]:
    import torch

    _operators()
    run: Callable[..., Any] = getattr(torch.ops.fireiron, f"{call}_gradients")
    return run


@functools.cache
def _function(call: str, final: bool) -> Callable[..., Any]:
    """Return a call as an autograd function, for calls that nothing traces."""
    run, remember = functools.partial(_run, call, final), functools.partial(_remember, call)
    return operators.recording(run, remember, functools.partial(_gradients, call))


def _without_gradient(call: str, inputs: Any) -> ArgumentError:
    hint = "remove create_graph=True"
    return ArgumentError(f"{call}: its gradients have no gradient", got="a second derivative", legal="first derivatives", hint=hint)


# ---------------------------------------------------------------------------------------------- registration


@functools.cache
def register_operators() -> tuple[Any, ...]:
    """Register and return the operators: for each call, without and with the last state, and the gradients."""
    defined = []
    for call, parameters in CALLS.items():
        arrays = [f"Tensor{'?' * (name in parameters.optional)} {name}" for name in parameters.arrays]
        schema = ", ".join((*arrays, *parameters.others))
        for final, ending, results in ((False, "", "Tensor"), (True, "_state", "(Tensor, Tensor)")):
            run, shaped = (functools.partial(function, call, final) for function in (_run, _shape))
            operator = operators.define(f"{call}{ending}", f"({schema}) -> {results}", run, shaped)
            operator.register_autograd(functools.partial(_gradients, call), setup_context=functools.partial(_remember, call))
            defined.append(operator)
        run, shaped = functools.partial(_run_gradients, call), functools.partial(_shape_of_gradients, call)
        backward = operators.define(f"{call}_gradients", f"(Tensor grad, Tensor? grad_state, {schema}) -> Tensor[]", run, shaped)
        operators.refuse_gradients(backward, functools.partial(_without_gradient, call))
        defined.append(backward)
    return tuple(defined)


__all__ = ["recorded", "register_operators", "through_torch"]
