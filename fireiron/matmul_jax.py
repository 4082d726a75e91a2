"""`fireiron.matmul` in programs that JAX traces: a custom call of XLA, with gradients by two further matmuls.

Leading dimensions become one batch dimension. XLA broadcasts by copying, because a traced array has no strides.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from fireiron import operators
from fireiron.batches import result_shape
from fireiron.matmul import matmul, request


def through_jax(a: Any, b: Any, out: Any, stream: Any, **options: Any) -> Any:
    """Execute a call of `matmul` that JAX traces; `options` are types, target and records."""
    operators.refuse_options("matmul", "JAX traces", out=out, stream=stream)
    return _differentiable()(a, b, tuple(options.items()))


@functools.cache
def _differentiable() -> Any:
    """Return the matmul with its gradients."""
    import jax

    product = jax.custom_vjp(_product, nondiff_argnums=(2,))
    product.defvjp(lambda a, b, options: (_product(a, b, options), (a, b)), _gradients)
    return product


def _product(a: Any, b: Any, options: tuple[tuple[str, Any], ...]) -> Any:
    shape = result_shape(a.shape, b.shape)
    left, right = a[None] if len(a.shape) == 1 else a, b[:, None] if len(b.shape) == 1 else b
    if max(len(left.shape), len(right.shape)) > 3:
        front = shape[: max(len(left.shape), len(right.shape)) - 2]
        left, right = _flattened(left, front), _flattened(right, front)
    return matmul.launched(request(left, right, **dict(options))).reshape(shape)


def _flattened(array: Any, front: Sequence[int]) -> Any:
    """Return an array with its leading dimensions flattened; a matrix unchanged."""
    import jax

    if math.prod(array.shape[:-2]) == 1:
        return array.reshape(array.shape[-2:])
    matrix = array.shape[-2:]
    return jax.numpy.broadcast_to(array, (*front, *matrix)).reshape(-1, *matrix)


def _gradients(options: tuple[tuple[str, Any], ...], kept: tuple[Any, Any], grad: Any) -> tuple[Any, Any]:
    """Return dA = dC B^T and dB = A^T dC, summed over the matrices for which an operand was broadcast."""
    a, b = kept
    left, right = a[None] if len(a.shape) == 1 else a, b[:, None] if len(b.shape) == 1 else b
    grad = grad[..., None] if len(b.shape) == 1 else grad
    grad = (grad[..., None, :] if len(a.shape) == 1 else grad).astype(a.dtype)
    again = tuple({**dict(options), "c_dtype": str(a.dtype)}.items())
    of_left = _differentiable()(grad, right.swapaxes(-1, -2), again)
    of_right = _differentiable()(left.swapaxes(-1, -2), grad, again)
    return _summed(of_left, left.shape).reshape(a.shape), _summed(of_right, right.shape).reshape(b.shape)


def _summed(array: Any, shape: Sequence[int]) -> Any:
    """Return the sum over dimensions that a shape lacks, or in which it has size 1."""
    array = array.sum(tuple(range(len(array.shape) - len(shape))))
    repeated = tuple(dim for dim, (size, wanted) in enumerate(zip(array.shape, shape, strict=True)) if size != wanted)
    return array.sum(repeated, keepdims=True)


__all__ = ["through_jax"]
