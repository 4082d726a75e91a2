"""`fireiron.conv2d` in PyTorch: operators for calls that `torch.compile` or `torch.export` trace, and gradients.

An eager differentiated call is a `torch.autograd.Function` that launches directly, and the gradients of images and of filters are one call.
For traced calls they are two operators. PyTorch computes the gradients of the bias (a sum over pixels) and of `relu` (a selection).
Gradients have no gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from fireiron import operators
from fireiron.conv2d import DIFFERENTIATED, conv2d, options_of, request
from fireiron.conv2d_gradients import both_gradients, input_gradient, weight_gradient
from fireiron.conv2d_gradients import request as gradient_request
from fireiron.errors import ArgumentError
from fireiron.front import traced
from fireiron.front.call import Request

# torch.compile traces this code, so it uses no attrs classes, caches or locks.


def through_torch(x: Any, w: Any, bias: Any, residual: Any, activation: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """Execute a call as an operator."""
    import torch

    _operators()
    pairs = [list(given) if isinstance(given, (tuple, list)) else [given, given] for given in (stride, padding, dilation)]
    return torch.ops.fireiron.conv2d(x, w, bias, residual, activation, *pairs, groups)


def recorded(x: Any, w: Any, bias: Any, residual: Any, activation: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """Execute a call that autograd records and nothing traces."""
    given = x, w, bias, residual, activation
    if operators.watched(*(one for one in given[:4] if one is not None)):
        return through_torch(*given, stride, padding, dilation, groups)
    return _function()(*given, *options_of(stride, padding, dilation), groups)


@operators.constant
def _operators() -> bool:
    with operators.registering:
        register_operators()
    return True


# ---------------------------------------------------------------------------------------------- gradients


def _convolve(x: Any, w: Any, bias: Any, residual: Any, activation: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    return conv2d.launched(_request(x, w, bias, residual, activation, stride, padding, dilation, groups))


def _request(x: Any, w: Any, bias: Any, residual: Any, activation: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    return request(
        x, w, bias, stride=tuple(stride), padding=tuple(padding), dilation=tuple(dilation), groups=groups, residual=residual,
        activation=activation,
    )  # fmt: skip


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    """Save what the gradients need."""
    x, w, _, _, activation, *options, groups = inputs
    if activation not in DIFFERENTIATED:
        raise _without_gradient(activation)
    of_x, of_w = ctx.needs_input_grad[:2]
    ctx.save_for_backward(x if of_w else None, w if of_x else None, output if activation == "relu" else None)
    ctx.options, ctx.image, ctx.taps = [*map(tuple, options), groups], tuple(x.shape[2:]), tuple(w.shape[2:])


def _gradients(ctx: Any, grad: Any) -> tuple[Any, ...]:
    import torch

    output = ctx.saved_tensors[2]
    unused = (None,) * 5
    grad = grad if output is None else torch.where(output > 0, grad, 0)
    of_bias, of_residual = ctx.needs_input_grad[2:4]
    return *_of_both(ctx, grad), grad.sum((0, 2, 3)) if of_bias else None, grad if of_residual else None, *unused


def _of_both(ctx: Any, grad: Any) -> tuple[Any, Any]:
    """Return the gradients of images and of filters for that of the sum; None for those that are not required."""
    import torch

    x, w, _ = ctx.saved_tensors
    last = grad.contiguous(memory_format=torch.channels_last)
    tensors = [one for one in (last, x, w) if one is not None]
    is_operator = operators.is_operator(*tensors)
    if len(tensors) == 3 and not is_operator:
        both: tuple[Any, Any] = both_gradients.launched(Request((last, x, w), None, tuple(ctx.options)))
        return both
    of_images, of_filters = _as_operators() if is_operator else (_of_images, _of_filters)
    image = ctx.image if x is None else x.shape[2:]
    taps = ctx.taps if w is None else w.shape[2:]
    of_x = None if w is None else of_images(last, w, tuple(image), *ctx.options)
    of_w = None if x is None else of_filters(last, x, tuple(taps), *ctx.options)
    return of_x, of_w


def _as_operators() -> tuple[Any, Any]:
    """Return the gradients of images and of filters as operators."""
    import torch

    _operators()
    return torch.ops.fireiron.conv2d_input_gradient, torch.ops.fireiron.conv2d_weight_gradient


def _of_images(*given: Any) -> Any:
    return input_gradient.launched(_gradient_request(*given))


def _of_filters(*given: Any) -> Any:
    return weight_gradient.launched(_gradient_request(*given))


@functools.cache
def _function() -> Any:
    """Return the convolution as an autograd function, for calls that nothing traces."""
    return operators.recording(_convolve, _remember, _gradients)


@functools.cache
def replayed(again: Any) -> Callable[..., Any]:
    """Return the convolution of plain tensors for autograd, by replayed calls of `again`; None if PyTorch needs an operator.

    The function takes the key of the call, the options of the convolution, the images and the filters. The look-ups are done once.
    """
    import torch

    watched, transformed = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
    is_recording, replays, channels_last = torch.is_grad_enabled, both_gradients.replays, torch.channels_last

    def run(ctx: Any, key: Any, options: tuple[Any, ...], x: Any, w: Any) -> Any:
        done = again(key, None, x, w)
        if done is None or done is NotImplemented:
            done = _convolve(x, w, None, None, None, *options)
        ctx.options, (_, _, of_x, of_w) = options, ctx.needs_input_grad
        if not (of_x and of_w):
            ctx.image, ctx.taps = x.shape[2:], w.shape[2:]
        ctx.save_for_backward(x if of_w else None, w if of_x else None, None)
        return done

    def differentiate(ctx: Any, grad: Any) -> tuple[Any, ...]:
        x, w, _ = ctx.saved_tensors
        if x is None or w is None or replays.again is None or is_recording() or watched() or transformed():
            return None, None, *_of_both(ctx, grad)
        done = replays.again(ctx.options, None, grad.contiguous(memory_format=channels_last), x, w)
        if done is None or done is NotImplemented or done is ...:
            return None, None, *_of_both(ctx, grad)
        return None, None, *done

    apply = operators.differentiable(run, differentiate)
    return lambda *given: None if watched() or transformed() else apply(*given)


def _without_gradient(activation: str | None) -> ArgumentError:
    hint = "call under torch.no_grad(), or with detached tensors; torch.nn.functional.conv2d has a gradient"
    got = f"activation={activation}"
    return ArgumentError("conv2d: this call has no gradient, but a tensor requires one", got=got, legal="relu or none", hint=hint)


def _without_second(inputs: Any) -> ArgumentError:
    hint = "remove create_graph=True; torch.nn.functional.conv2d has second derivatives"
    return ArgumentError("conv2d: its gradients have no gradient", got="a second derivative", legal="first derivatives", hint=hint)


# ---------------------------------------------------------------------------------------------- registration


@functools.cache
def register_operators() -> tuple[Any, ...]:
    """Register and return the operators: the convolution, and the gradients of images and of filters."""
    pairs = "int[] stride, int[] padding, int[] dilation"
    schema = f"(Tensor x, Tensor w, Tensor? bias, Tensor? residual, str? activation, {pairs}, int groups) -> Tensor"
    plain = operators.define("conv2d", schema, _convolve, _shape, begin=_begin)
    gradient = f"(Tensor grad, Tensor other, int[] sizes, {pairs}, int groups) -> Tensor"
    begin_images, begin_filters = (functools.partial(_begin_gradient, function) for function in (input_gradient, weight_gradient))
    of_images = operators.define("conv2d_input_gradient", gradient, _of_images, _like_images, begin=begin_images)
    of_filters = operators.define("conv2d_weight_gradient", gradient, _of_filters, _like_filters, begin=begin_filters)
    plain.register_autograd(_gradients, setup_context=_remember)
    for operator in (of_images, of_filters):
        operators.refuse_gradients(operator, _without_second)
    return plain, of_images, of_filters


def _begin(*arguments: Any) -> None:
    """Begin to compile the kernel of a traced call."""
    traced.begin(lambda *given: conv2d.begin(_request(*given)), arguments)


def _begin_gradient(function: Any, *arguments: Any) -> None:
    """Begin to compile the kernels of a traced gradient."""
    traced.begin(lambda *given: function.begin(_gradient_request(*given)), arguments)


def _gradient_request(grad: Any, other: Any, sizes: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    pairs: dict[str, Any] = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation)}
    return gradient_request(grad, other, tuple(sizes), **pairs, groups=groups)


def _shape(x: Any, w: Any, bias: Any, residual: Any, activation: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """Return the result of a traced call."""
    import torch

    from fireiron.conv2d_kernels import sizes_of

    options = _request(x, w, bias, residual, activation, stride, padding, dilation, groups).options
    sizes = sizes_of(x.shape, w.shape, options.convolution, groups)
    return x.new_empty(sizes.result).to(memory_format=torch.channels_last)


def _like_images(grad: Any, w: Any, sizes: Any, *options: Any) -> Any:
    """Return the gradient of images of a traced call."""
    return _empty(grad, w, sizes, options, (grad.shape[0], w.shape[1] * options[-1], *sizes))


def _like_filters(grad: Any, x: Any, sizes: Any, *options: Any) -> Any:
    """Return the gradient of filters of a traced call."""
    return _empty(grad, x, sizes, options, (grad.shape[1], x.shape[1] // options[-1], *sizes))


def _empty(grad: Any, other: Any, sizes: Any, options: Any, shape: Any) -> Any:
    import torch

    _gradient_request(grad, other, sizes, *options)
    return grad.new_empty(shape).to(memory_format=torch.channels_last)


__all__ = ["recorded", "register_operators", "replayed", "through_torch"]
