"""`fireiron.experts` in PyTorch: operators for calls that `torch.compile` or `torch.export` trace, and gradients.

The forward pass of a differentiated call also stores both products before the activation, and the rows in tiles. The backward pass reads
them; it computes no product of the forward pass again. Gradients have no gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from fireiron import operators
from fireiron.errors import ArgumentError
from fireiron.experts import experts
from fireiron.experts_kernels import NAMES, BoundExperts, Saved, answer_to, sizes_of
from fireiron.experts_routing import UNIT, Tables, most_tiles
from fireiron.front.call import Answer, Call, Request

# torch.compile traces this code, so it uses no attrs classes, caches or locks.


def through_torch(x: Any, weights: Any, index: Any, gate_up: Any, down: Any) -> Any:
    """Execute a call as an operator."""
    import torch

    _operators()
    if operators.differentiated(x, weights, gate_up, down):
        return torch.ops.fireiron.experts_kept(x, weights, index, gate_up, down)[0]
    return torch.ops.fireiron.experts(x, weights, index, gate_up, down)


def recorded(x: Any, weights: Any, index: Any, gate_up: Any, down: Any) -> Any:
    """Execute a call that autograd records and nothing traces."""
    if operators.watched(x, weights, index, gate_up, down):
        return through_torch(x, weights, index, gate_up, down)
    return _function()(x, weights, index, gate_up, down)[0]


@operators.constant
def _operators() -> bool:
    with operators.registering:
        register_operators()
    return True


# ---------------------------------------------------------------------------------------------- calls


class _Differentiated(Call):
    """The kernels of differentiated calls, which keep what the gradients need."""

    arrays: ClassVar[int] = len(NAMES)

    def new_answer(self, request: Request) -> Answer:
        """Return the answer for a new request."""
        return answer_to(request, differentiated=True)


_differentiated: Final = _Differentiated()


def _layer(*arrays: Any) -> BoundExperts | None:
    """Return the kernels of a differentiated call; None if it has no tokens."""
    answer = _differentiated.answer(Request(arrays, None, None))
    return answer if isinstance(answer, BoundExperts) else None


def _run(x: Any, weights: Any, index: Any, gate_up: Any, down: Any) -> Any:
    return experts.launched(Request((x, weights, index, gate_up, down), None, None))


def _run_kept(x: Any, weights: Any, index: Any, gate_up: Any, down: Any) -> list[Any]:
    """Return the result, and what the gradients need."""
    bound = _layer(x, weights, index, gate_up, down)
    if bound is None:
        return _shape_kept(x, weights, index, gate_up, down)
    result, saved = bound.layer.forward(bound.prepared((x, weights, index, gate_up, down)), True)
    assert saved is not None
    return [result.reshape(x.shape), *saved.tables, *saved[1:]]


def _gradients_of(grad: Any, x: Any, weights: Any, index: Any, gate_up: Any, down: Any, saved: Sequence[Any]) -> tuple[Any, ...]:
    """Return the gradients of x, weights, gate_up and down."""
    import torch

    bound = _layer(x, weights, index, gate_up, down)
    if bound is None:
        return tuple(torch.zeros_like(one) for one in (x, weights, gate_up, down))
    count = len(Tables._fields)
    kept = Saved(Tables(*saved[:count]), *saved[count:])
    _, factors, _, left, right = bound.prepared((x, weights, index, gate_up, down))
    rows = grad.to(x.dtype).reshape(-1, x.shape[-1]).contiguous()
    of_x, of_weights, of_gate_up, of_down = bound.layer.backward(rows, factors, left, right, kept)
    return of_x.reshape(x.shape), of_weights.reshape(weights.shape).to(weights.dtype), of_gate_up, of_down


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs, *output[1:])


def _gradients(ctx: Any, grads: Any) -> tuple[Any, ...]:
    grad = grads[0]
    if grad is None:
        return (None,) * len(NAMES)
    x, weights, index, gate_up, down, *saved = ctx.saved_tensors
    run = _gradient_operator() if operators.is_operator(grad, x, weights, gate_up, down) else _gradients_of
    of_x, of_weights, of_gate_up, of_down = run(grad, x, weights, index, gate_up, down, saved)
    return of_x, of_weights, None, of_gate_up, of_down


def _gradient_operator() -> Callable[..., Any]:
    import torch

    _operators()
    run: Callable[..., Any] = torch.ops.fireiron.experts_gradients
    return run


@functools.cache
def _function() -> Callable[..., Any]:
    """Return the layer as an autograd function, for calls that nothing traces."""

    def run(*given: Any) -> tuple[Any, ...]:
        return tuple(_run_kept(*given))

    def remember(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output[1:])
        _remember(ctx, inputs, output)

    return operators.recording(run, remember, lambda ctx, *grads: _gradients(ctx, grads))


def _without_gradient(inputs: Any) -> ArgumentError:
    hint = "remove create_graph=True"
    return ArgumentError("experts: its gradients have no gradient", got="a second derivative", legal="first derivatives", hint=hint)


# ---------------------------------------------------------------------------------------------- registration


@functools.cache
def register_operators() -> tuple[Any, ...]:
    """Register and return the operators: without and with what the gradients need, and the gradients."""
    parameters = "Tensor x, Tensor weights, Tensor index, Tensor gate_up, Tensor down"
    plain = operators.define("experts", f"({parameters}) -> Tensor", _run, _shape)
    kept = operators.define("experts_kept", f"({parameters}) -> Tensor[]", _run_kept, _shape_kept)
    schema = f"(Tensor grad, {parameters}, Tensor[] saved) -> (Tensor, Tensor, Tensor, Tensor)"
    backward = operators.define("experts_gradients", schema, _gradients_of, _shape_of_gradients)
    operators.refuse_gradients(plain, _without_gradient)
    kept.register_autograd(_gradients, setup_context=_remember)
    operators.refuse_gradients(backward, _without_gradient)
    return plain, kept, backward


def _shape(x: Any, weights: Any, index: Any, gate_up: Any, down: Any) -> Any:
    """Return the result of a traced call."""
    sizes_of(dict(zip(NAMES, (tuple(one.shape) for one in (x, weights, index, gate_up, down)), strict=True)))
    return x.new_empty(x.shape)


def _shape_kept(x: Any, weights: Any, index: Any, gate_up: Any, down: Any) -> list[Any]:
    """Return the results of a traced call that keeps what the gradients need."""
    import torch

    sizes = sizes_of(dict(zip(NAMES, (tuple(one.shape) for one in (x, weights, index, gate_up, down)), strict=True)))
    rows = max(sizes.rows_of_tile(differentiated=True), UNIT)
    tiles = most_tiles(sizes.rows, sizes.experts, rows)
    shapes = ((tiles,), (tiles,), (tiles,), (tiles, rows), (tiles, rows), (sizes.tokens, sizes.choices), (sizes.experts,), (sizes.experts,))
    tables = [x.new_empty(shape, dtype=torch.int32) for shape in shapes]
    return [
        x.new_empty(x.shape),
        *tables,
        *(x.new_empty((tiles, rows, own)) for own in (sizes.width, 2 * sizes.hidden, sizes.hidden, sizes.width)),
    ]


def _shape_of_gradients(grad: Any, x: Any, weights: Any, index: Any, gate_up: Any, down: Any, saved: Any) -> tuple[Any, ...]:
    """Return the gradients of a traced call."""
    return tuple(one.new_empty(one.shape) for one in (x, weights, gate_up, down))


__all__ = ["recorded", "register_operators", "through_torch"]
