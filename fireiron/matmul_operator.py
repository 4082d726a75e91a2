"""`fireiron.matmul` in PyTorch: operators for calls that `torch.compile` or `torch.export` trace, and gradients.

An eager differentiated call is a `torch.autograd.Function` that launches directly, because dispatching a Python operator takes longer on
the host than a small matmul on the GPU. The gradients are two further matmuls of transposed views, dA = dC B^T and dB = A^T dC. The
gradient of the result is copied only if it is neither row-major nor column-major, such as that of a sum. The gradient of a broadcast
operand is the sum over the batch; for one matrix B it is one matmul over all rows. Calls with an epilogue have no gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fireiron import operators
from fireiron.batches import result_shape
from fireiron.errors import ArgumentError
from fireiron.front import traced
from fireiron.front.call import Request
from fireiron.matmul import matmul, request
from fireiron.matmul_problem import multiplied_type, result_type
from fireiron.specs.epilogue import epilogue as epilogue_of

DIFFERENTIATED: Final = ("float16", "bfloat16", "float32", "float64")
"""Element types with gradients."""

Product = Callable[[Any, Any], Any]
"""A function that returns the matmul of two tensors."""

# torch.compile traces this code, so it uses no attrs classes, caches or locks.


def through_torch(
    a: Any, b: Any, out: Any, c_dtype: Any, ab_dtype: Any, epilogue: str | None, types: Any, operands: Mapping[str, Any]
) -> Any:
    """Execute a call of `matmul` as an operator."""
    import torch

    _operators()
    kinds = _name(c_dtype), _name(ab_dtype)
    if out is not None:
        if epilogue is not None or operators.differentiated(a, b):
            operators.refuse_options("matmul", out=out)
        torch.ops.fireiron.matmul_into(a, b, out, *kinds)
        return out
    if epilogue is None:
        if operands or types:
            raise ArgumentError("matmul: operands are given, but no epilogue reads them", got=[*operands, *(types or {})])
        return torch.ops.fireiron.matmul(a, b, *kinds)
    if operators.differentiated(a, b, *operands.values()):
        raise _without_gradient(epilogue)
    arrays = [name for name in operands if _is_tensor(operands[name])]
    numbers = [name for name in operands if name not in arrays]
    values = [operands[name] for name in arrays], [float(operands[name]) for name in numbers]
    type_words = [word for name in (types or {}) for word in (name, _name(types[name]))]
    results = torch.ops.fireiron.matmul_epilogue(a, b, epilogue, *values, [*arrays, *numbers], type_words, *kinds)
    return tuple(results) if len(results) > 1 else results[0]


def recorded(a: Any, b: Any, out: Any, c_dtype: Any, ab_dtype: Any, epilogue: str | None, types: Any, operands: Mapping[str, Any]) -> Any:
    """Execute a call of `matmul` that autograd records and nothing traces."""
    if out is not None or epilogue is not None or types or operands or operators.watched(a, b):
        return through_torch(a, b, out, c_dtype, ab_dtype, epilogue, types, operands)
    return _function()(a, b, _name(c_dtype), _name(ab_dtype))


def _is_tensor(given: Any) -> bool:
    return hasattr(given, "is_cuda")


def _name(kind: Any) -> str | None:
    """Return the name of an element type, of fireiron or PyTorch, for an operator."""
    return None if kind is None else str(kind).removeprefix("torch.")


@operators.constant
def _operators() -> bool:
    with operators.registering:
        register_operators()
    return True


# ---------------------------------------------------------------------------------------------- operators


def _request(a: Any, b: Any, c_dtype: str | None, ab_dtype: str | None, out: Any = None) -> Request:
    return request(a, b, out, c_dtype=c_dtype, ab_dtype=ab_dtype)


def _multiply(a: Any, b: Any, c_dtype: str | None, ab_dtype: str | None, out: Any = None) -> Any:
    return matmul.launched(_request(a, b, c_dtype, ab_dtype, out))


def _multiply_into(a: Any, b: Any, out: Any, c_dtype: str | None, ab_dtype: str | None) -> None:
    _multiply(a, b, c_dtype, ab_dtype, out)


def _request_on(
    a: Any, b: Any, epilogue: str, arrays: Sequence[Any], numbers: Sequence[float], names: Sequence[str], types: Sequence[str], *kinds: Any
) -> Request:
    """Return the request of a call with an epilogue."""
    operands = dict(zip(names, (*arrays, *numbers), strict=True))
    c_dtype, ab_dtype = kinds
    output_types = dict(zip(types[::2], types[1::2], strict=True))
    return request(a, b, c_dtype=c_dtype, ab_dtype=ab_dtype, epilogue=epilogue, types=output_types, **operands)


def _multiply_on(*arguments: Any) -> list[Any]:
    results = matmul.launched(_request_on(*arguments))
    return list(results) if isinstance(results, tuple) else [results]


def _begin(*arguments: Any) -> None:
    traced.begin(lambda a, b, *kinds: matmul.begin(_request(a, b, *kinds)), arguments)


def _begin_into(*arguments: Any) -> None:
    traced.begin(lambda a, b, out, c_dtype, ab_dtype: matmul.begin(_request(a, b, c_dtype, ab_dtype, out)), arguments)


def _begin_on(*arguments: Any) -> None:
    traced.begin(lambda *known: matmul.begin(_request_on(*known)), arguments)


# ---------------------------------------------------------------------------------------------- results of traced tensors


def _kind(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _dtype(kind: str) -> Any:
    import torch

    return getattr(torch, kind)


def shape_of_result(a: Any, b: Any, c_dtype: str | None, ab_dtype: str | None) -> Any:
    """Return the result of a traced call."""
    kind = result_type(multiplied_type(_kind(a), _kind(b), ab_dtype), c_dtype)
    return a.new_empty(result_shape(a.shape, b.shape), dtype=_dtype(kind))


def _shape_into(a: Any, b: Any, out: Any, c_dtype: str | None, ab_dtype: str | None) -> None:
    expected = shape_of_result(a, b, c_dtype or _kind(out), ab_dtype)
    if tuple(expected.shape) != tuple(out.shape) or expected.dtype != out.dtype:
        got = f"{tuple(out.shape)} of {_kind(out)}"
        raise ArgumentError(
            "matmul: out does not match the result of a and b", got=got, legal=f"{tuple(expected.shape)} of {_kind(expected)}"
        )


def _shape_on(
    a: Any, b: Any, epilogue: str, arrays: Sequence[Any], numbers: Sequence[float], names: Sequence[str], types: Sequence[str], *kinds: Any
) -> list[Any]:
    if not 2 <= len(a.shape) <= 3 or not 2 <= len(b.shape) <= 3:
        got = (tuple(a.shape), tuple(b.shape))
        raise ArgumentError("matmul: with an epilogue, a and b must be matrices or batches", got=got, legal="2 or 3 dimensions")
    product = shape_of_result(a, b, *kinds)
    batched = len(product.shape) == 3
    definition = epilogue_of(epilogue, signature="bmk,bkn->bmn" if batched else "").fused_definition
    sizes = dict(zip("bmn" if batched else "mn", product.shape, strict=True))
    output_types = dict(zip(types[::2], types[1::2], strict=True))
    return [_output(product, name, definition.uses[name], sizes, output_types) for name in definition.outputs]


def _output(product: Any, name: str, dims: Sequence[str], sizes: Mapping[str, int], output_types: Mapping[str, str]) -> Any:
    """Return an output of an epilogue, with its given type, or the type of the result (float32 with fewer dimensions)."""
    plain = product.dtype if len(dims) == len(product.shape) else _dtype("float32")
    return product.new_empty([sizes[dim] for dim in dims], dtype=_dtype(output_types[name]) if name in output_types else plain)


# ---------------------------------------------------------------------------------------------- gradients


def _remember(ctx: Any, inputs: Any, output: Any) -> None:
    """Save the tensors that the required gradients need."""
    a, b, _, ab_dtype = inputs
    if _kind(a) not in DIFFERENTIATED:
        raise _without_gradients_of(a)
    of_a, of_b = ctx.needs_input_grad[:2]
    ctx.save_for_backward(b if of_a else None, a if of_b else None)
    ctx.shapes, ctx.ab_dtype = (a.shape, b.shape), ab_dtype


def _without_gradients_of(tensor: Any) -> ArgumentError:
    return ArgumentError(
        "matmul: gradients of this element type are not supported", got=_kind(tensor), legal=DIFFERENTIATED, hint="detach it"
    )


def _gradients(ctx: Any, grad: Any) -> tuple[Any, Any, None, None]:
    b, a = ctx.saved_tensors
    product = _product_of([one for one in (grad, b, a) if one is not None], ctx.ab_dtype)
    return *_gradients_by(product, grad, a, b, ctx.shapes), None, None


def _gradients_by(product: Product, grad: Any, a: Any, b: Any, shapes: tuple[Sequence[int], Sequence[int]]) -> tuple[Any, Any]:
    """Return the gradients of operands of these shapes. An operand is None if the gradient of the other one is not required."""
    left, right = shapes
    dtype = (a if b is None else b).dtype
    grad = grad if grad.dtype == dtype else grad.to(dtype)
    if len(left) == 2 and len(right) == 2:
        return None if b is None else product(grad, b.t()), None if a is None else product(a.t(), grad)
    vectors = [len(left) == 1, len(right) == 1]
    grad = grad.unsqueeze(-1) if vectors[1] else grad
    grad = grad.unsqueeze(-2) if vectors[0] else grad
    of_a = None if b is None else _of_left(product, grad, b.unsqueeze(-1) if vectors[1] else b, left)
    of_b = None if a is None else _of_right(product, grad, a.unsqueeze(0) if vectors[0] else a, right)
    return of_a, of_b


def _of_left(product: Product, grad: Any, b: Any, shape: Sequence[int]) -> Any:
    """Return dA = dC B^T, summed over the matrices for which A was broadcast."""
    gradient = product(grad, b.transpose(-1, -2))
    return gradient.sum_to_size((1, *shape) if len(shape) == 1 else shape).reshape(shape)


def _of_right(product: Product, grad: Any, a: Any, shape: Sequence[int]) -> Any:
    """Return dB = A^T dC. If B is one matrix for a batch A, one matmul over all rows of A computes it."""
    if len(shape) <= 2 and len(a.shape) > 2:
        return product(a.reshape(-1, a.shape[-1]).transpose(0, 1), grad.reshape(-1, grad.shape[-1])).reshape(shape)
    gradient = product(a.transpose(-1, -2), grad)
    return gradient.sum_to_size((*shape, 1) if len(shape) == 1 else shape).reshape(shape)


def _product_of(tensors: Sequence[Any], ab_dtype: str | None) -> Product:
    """Return the matmul for the gradients: a launch, unless the call is traced or differentiated again."""
    run: Callable[..., Any]
    if operators.traced(*tensors) or operators.watched(*tensors):
        import torch

        _operators()
        run = torch.ops.fireiron.matmul
    else:
        run = _function() if operators.differentiated(*tensors) else _multiply
    return lambda a, b: run(a, b, _kind(a), ab_dtype)


@functools.cache
def _function() -> Any:
    """Return the matmul as an autograd function, for calls that nothing traces."""
    return operators.recording(_multiply, _remember, _gradients)


@functools.cache
def replayed(again: Any) -> Callable[[Any, Any], Any]:
    """Return the matmul of two plain tensors for autograd, by replayed calls of `again`; None if PyTorch needs an operator.

    The look-ups in this function take half of the time of a call, so they are done once.
    """
    import torch

    watched, transformed = torch._C._len_torch_dispatch_stack, torch._C._are_functorch_transforms_active
    kinds, is_recording = frozenset(map(_dtype, DIFFERENTIATED)), torch.is_grad_enabled

    def product(a: Any, b: Any) -> Any:
        done = again(None, None, a, b)
        return _multiply(a, b, None, None) if done is None or done is NotImplemented or done is ... else done

    def forward(ctx: Any, a: Any, b: Any) -> Any:
        if a.dtype not in kinds:
            raise _without_gradients_of(a)
        of_a, of_b = ctx.needs_input_grad
        ctx.save_for_backward(b if of_a else None, a if of_b else None)
        ctx.shapes = a.shape, b.shape
        return product(a, b)

    def backward(ctx: Any, grad: Any) -> Any:
        b, a = ctx.saved_tensors
        if is_recording() or watched() or transformed():
            tensors = [one for one in (grad, b, a) if one is not None]
            return _gradients_by(_product_of(tensors, None), grad, a, b, ctx.shapes)
        return _gradients_by(product, grad, a, b, ctx.shapes)

    apply = operators.differentiable(forward, backward)
    return lambda a, b: None if watched() or transformed() else apply(a, b)


def _without_gradient(epilogue: str) -> ArgumentError:
    hint = "apply the epilogue to matmul(a, b) with PyTorch's functions, or call under torch.no_grad(), or with detached tensors"
    return ArgumentError("matmul: a call with an epilogue has no gradient", got=epilogue, legal="calls without an epilogue", hint=hint)


# ---------------------------------------------------------------------------------------------- vmap and registration


def _mapped(info: Any, where: Sequence[int | None], a: Any, b: Any, c_dtype: str | None, ab_dtype: str | None) -> tuple[Any, int]:
    """Implement `torch.vmap`: the mapped dimension becomes a leading dimension."""
    import torch

    ranks = [len(one.shape) - (at is not None) for one, at in zip((a, b), where[:2], strict=True)]
    left, right = (one if at is None else one.movedim(at, 0) for one, at in zip((a, b), where[:2], strict=True))
    left = left.unsqueeze(-2) if ranks[0] == 1 else left
    right = right.unsqueeze(-1) if ranks[1] == 1 else right
    rank = max(*ranks, 2)
    left, right = (_padded(one, rank, at is not None) for one, at in zip((left, right), where[:2], strict=True))
    result = torch.ops.fireiron.matmul(left, right, c_dtype, ab_dtype)
    result = result.squeeze(-2) if ranks[0] == 1 else result
    return (result.squeeze(-1) if ranks[1] == 1 else result), 0


def _padded(tensor: Any, rank: int, mapped: bool) -> Any:
    """Return a tensor with `rank` dimensions in addition to a mapped one."""
    missing = rank - (len(tensor.shape) - mapped)
    return tensor.reshape(*tensor.shape[:mapped], *(1,) * missing, *tensor.shape[mapped:]) if missing else tensor


@functools.cache
def register_operators() -> tuple[Any, ...]:
    """Register and return the operators."""
    kinds = "str? c_dtype, str? ab_dtype"
    plain = operators.define("matmul", f"(Tensor a, Tensor b, {kinds}) -> Tensor", _multiply, shape_of_result, begin=_begin)
    schema = f"(Tensor a, Tensor b, Tensor(a!) out, {kinds}) -> ()"
    into = operators.define("matmul_into", schema, _multiply_into, _shape_into, ("out",), begin=_begin_into)
    schema = f"(Tensor a, Tensor b, str epilogue, Tensor[] arrays, float[] numbers, str[] names, str[] types, {kinds}) -> Tensor[]"
    sum_kernel = operators.define("matmul_epilogue", schema, _multiply_on, _shape_on, begin=_begin_on)
    plain.register_autograd(_gradients, setup_context=_remember)
    plain.register_vmap(_mapped)
    operators.refuse_gradients(sum_kernel, lambda inputs: _without_gradient(inputs[2]))
    return plain, into, sum_kernel


__all__ = ["recorded", "register_operators", "replayed", "shape_of_result", "through_torch"]
