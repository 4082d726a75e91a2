"""`fireiron.conv2d` in PyTorch: operators for calls that `torch.compile` or `torch.export` trace, and gradients.

An eager differentiated call is a `torch.autograd.Function` that launches directly. The gradients of images and of filters are operators,
too. PyTorch computes the gradients of the bias (a sum over pixels) and of `relu` (a selection). Gradients have no gradients.
"""

from __future__ import annotations

import functools
from typing import Any

from fireiron import operators
from fireiron.conv2d import DIFFERENTIATED, conv2d, options_of, request
from fireiron.conv2d_gradients import input_gradient, weight_gradient
from fireiron.conv2d_gradients import request as gradient_request
from fireiron.errors import ArgumentError
from fireiron.front import traced

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

    x, w, output = ctx.saved_tensors
    unused = (None,) * 5
    grad = grad if output is None else torch.where(output > 0, grad, 0)
    last = grad.contiguous(memory_format=torch.channels_last)
    tensors = [one for one in (last, x, w) if one is not None]
    of_images, of_filters = _as_operators() if operators.is_operator(*tensors) else (_of_images, _of_filters)
    of_x = None if w is None else of_images(last, w, ctx.image, *ctx.options)
    of_w = None if x is None else of_filters(last, x, ctx.taps, *ctx.options)
    of_bias, of_residual = ctx.needs_input_grad[2:4]
    return of_x, of_w, grad.sum((0, 2, 3)) if of_bias else None, grad if of_residual else None, *unused


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


__all__ = ["recorded", "register_operators", "through_torch"]
