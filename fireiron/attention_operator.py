"""`fireiron.attention` in PyTorch: operators for calls that `torch.compile` or `torch.export` trace, and gradients.

An eager differentiated call is a `torch.autograd.Function` that launches directly. The forward pass saves the log-sum-exp of each query,
from which the backward pass computes the probabilities again. Gradients have no gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fireiron import operators
from fireiron.attention import attention, is_deterministic, request
from fireiron.errors import ArgumentError
from fireiron.front import traced

# torch.compile traces this code, so it uses no attrs classes, caches or locks.


def through_torch(q: Any, k: Any, v: Any, options: tuple[Any, ...], lse: bool) -> Any:
    """Execute a call as an operator. `options` are causal, window, scale, score and deterministic."""
    import torch

    _operators()
    if lse:
        return torch.ops.fireiron.attention_lse(q, k, v, *options)
    if operators.differentiated(q, k, v):  # the backward pass needs the log-sum-exp
        return torch.ops.fireiron.attention_lse(q, k, v, *options)[0]
    return torch.ops.fireiron.attention(q, k, v, *options)


def recorded(q: Any, k: Any, v: Any, options: tuple[Any, ...], lse: bool) -> Any:
    """Execute a call that autograd records and nothing traces. `options` as in `through_torch`."""
    if operators.watched(q, k, v):
        return through_torch(q, k, v, options, lse)
    result, sums = _function()(q, k, v, *options)
    return (result, sums) if lse else result


@operators.constant
def _operators() -> bool:
    with operators.registering:
        register_operators()
    return True


# ---------------------------------------------------------------------------------------------- gradients


def _attend(q: Any, k: Any, v: Any, causal: bool, window: Any, scale: Any, score: Any, deterministic: Any, lse: bool = True) -> Any:
    return attention.launched(request(q, k, v, causal=causal, window=window, scale=scale, lse=lse, score=score))


def _gradients_of(grad: Any, q: Any, k: Any, v: Any, o: Any, lse: Any, lse_grad: Any, *options: Any) -> tuple[Any, Any, Any]:
    names = ("causal", "window", "scale", "score", "deterministic")
    return attention.gradients(grad, q, k, v, o, lse, lse_grad=lse_grad, **dict(zip(names, options, strict=True)))


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    """Save what the gradients need; a missing gradient of an output stays None."""
    q, k, v, *options = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output)
    ctx.options = options


def _gradients(ctx: Any, grad: Any, lse_grad: Any) -> tuple[Any, ...]:
    import torch

    *tensors, o, lse = ctx.saved_tensors
    unused = (None,) * len(ctx.options)
    if grad is None and lse_grad is None:
        return (None, None, None, *unused)
    grad = torch.zeros_like(o) if grad is None else grad if grad.dtype == o.dtype else grad.to(o.dtype)
    given = (grad, *tensors, o, lse, lse_grad)
    every = [one for one in given if one is not None]
    if operators.is_operator(*every):
        _operators()
        return (*torch.ops.fireiron.attention_gradients(*given, *ctx.options), *unused)
    return (*_gradients_of(*given, *ctx.options), *unused)


def _remember_inputs(ctx: Any, inputs: Any, output: Any) -> None:
    """Save the inputs of a call without log-sum-exp, which its backward pass repeats."""
    q, k, v, *ctx.options = inputs
    ctx.save_for_backward(q, k, v)


def _gradients_again(ctx: Any, grad: Any) -> tuple[Any, ...]:
    import torch

    q, k, v = ctx.saved_tensors
    o, lse = torch.ops.fireiron.attention_lse(q, k, v, *ctx.options)
    unused = (None,) * len(ctx.options)
    return (*torch.ops.fireiron.attention_gradients(grad, q, k, v, o, lse, None, *ctx.options), *unused)


@functools.cache
def _function() -> Any:
    """Return attention as an autograd function, for calls that nothing traces."""
    return operators.recording(_attend, _remember, _gradients)


@functools.cache
def replayed(again: Any) -> Callable[..., Any]:
    """Return attention of plain tensors for autograd, by replayed calls of `again`; None if PyTorch needs an operator.

    The function takes q, k, v, their mask with the scale and the score, the options as in `through_torch`, and whether the log-sum-exp is
    returned. The look-ups take half of the time of a call, so they are done once.
    """
    import torch

    from fireiron.attention_gradients import GradientOptions
    from fireiron.attention_gradients import gradients as backward

    watched, transformed = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
    is_recording, replays = torch.is_grad_enabled, backward.replays

    def run(ctx: Any, q: Any, k: Any, v: Any, mask: tuple[Any, ...], options: tuple[Any, ...]) -> Any:
        causal, window, kind, factor, score = mask
        done = again((causal, window, kind, factor, True, score, None, None), None, q, k, v)
        if done is None or done is NotImplemented:
            done = _attend(q, k, v, *options)
        ctx.mask, ctx.options = mask, options
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, *done)
        return done

    def differentiate(ctx: Any, grad: Any, lse_grad: Any) -> tuple[Any, ...]:
        if grad is None or replays.again is None or is_recording() or watched() or transformed():
            return *_gradients(ctx, grad, lse_grad)[:3], None, None
        causal, window, kind, factor, score = ctx.mask
        q, k, v, o, lse = ctx.saved_tensors
        given = (grad, q, k, v, o, lse) if lse_grad is None else (grad, q, k, v, o, lse, lse_grad)
        own = GradientOptions(causal, window, score, is_deterministic(ctx.options[-1], q))
        done = replays.again((*own, kind, None, (factor,)), None, *given)
        if done is None or done is NotImplemented or done is ...:
            return *_gradients(ctx, grad, lse_grad)[:3], None, None
        return *done, None, None

    apply = operators.differentiable(run, differentiate)

    def attend(q: Any, k: Any, v: Any, mask: tuple[Any, ...], options: tuple[Any, ...], lse: bool) -> Any:
        if watched() or transformed():
            return None
        results = apply(q, k, v, mask, options)
        return results if lse else results[0]

    return attend


def _without_gradient(inputs: Any) -> ArgumentError:
    hint = "remove create_graph=True; torch's scaled_dot_product_attention with SDPBackend.MATH has second derivatives"
    return ArgumentError("attention: its gradients have no gradient", got="a second derivative", legal="first derivatives", hint=hint)


# ---------------------------------------------------------------------------------------------- registration


@functools.cache
def register_operators() -> tuple[Any, ...]:
    """Register and return the operators: without and with the log-sum-exp, and the gradients."""
    parameters = "Tensor q, Tensor k, Tensor v"
    options = "bool causal, int? window, float? scale, str? score, bool? deterministic"
    both = f"({parameters}, {options}) -> (Tensor, Tensor)"
    attend, shape, begin = (functools.partial(each, lse=False) for each in (_attend, _shape, _begin))
    plain = operators.define("attention", f"({parameters}, {options}) -> Tensor", attend, shape, begin=begin)
    with_lse = operators.define("attention_lse", both, _attend, _shape, begin=_begin)
    schema = f"(Tensor grad, {parameters}, Tensor o, Tensor lse, Tensor? lse_grad, {options}) -> (Tensor, Tensor, Tensor)"
    backward = operators.define("attention_gradients", schema, _gradients_of, _shape_of_gradients)
    plain.register_autograd(_gradients_again, setup_context=_remember_inputs)
    with_lse.register_autograd(_gradients, setup_context=_remember)
    operators.refuse_gradients(backward, _without_gradient)
    return plain, with_lse, backward


def _begin(*arguments: Any, lse: bool = True) -> None:
    """Begin to compile the kernel of a traced call."""

    def begin(q: Any, k: Any, v: Any, causal: bool, window: Any, scale: Any, score: Any, _: Any) -> None:
        attention.begin(request(q, k, v, causal=causal, window=window, scale=scale, lse=lse, score=score))

    traced.begin(begin, arguments)


def _shape(q: Any, k: Any, v: Any, causal: bool, window: Any, scale: Any, score: Any, deterministic: Any, lse: bool = True) -> Any:
    """Return the results of a traced call."""
    import torch

    from fireiron.attention_kernels import result_steps, sizes_of

    request(q, k, v, causal=causal, window=window, scale=scale, lse=lse, score=score)
    sizes_of(q.shape, k.shape, v.shape)
    result = q.new_empty_strided(q.shape, result_steps(q.shape, q.stride()))
    return (result, q.new_empty(q.shape[:-1], dtype=torch.float32)) if lse else result


def _shape_of_gradients(grad: Any, q: Any, k: Any, v: Any, *others: Any) -> tuple[Any, ...]:
    """Return the gradients of a traced call."""
    from fireiron.attention_kernels import result_steps

    return tuple(one.new_empty_strided(one.shape, result_steps(one.shape, one.stride())) for one in (q, k, v))


__all__ = ["recorded", "register_operators", "replayed", "through_torch"]
