"""`fireiron.latent_attention`: attention of few queries to cached latent vectors (multi-head latent attention), in pages or contiguous.

>>> import fireiron, numpy
>>> q, cache = numpy.ones((2, 4, 96), "float16"), numpy.ones((5, 16, 96), "float16")
>>> table, lengths = numpy.array([[3, 1], [0, -1]], "int32"), numpy.array([20, 7], "int32")
>>> fireiron.latent_attention(q, cache, table, lengths, value_elements=64).shape
(2, 4, 64)

A call that `torch.compile` traces, or a call on fake tensors, uses the PyTorch operators `fireiron::latent_attention` and
`fireiron::latent_attention_lse`. The first such call registers them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from fireiron import operators
from fireiron.errors import ArgumentError
from fireiron.front.call import Answer, Call, Request, takes

if TYPE_CHECKING:
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.tune.records import Choice
    from fireiron.values.machine import Architecture

ArrayT = TypeVar("ArrayT")


class Options(NamedTuple):
    """The options of a call. `has_table` is whether the cache is in pages."""

    value_elements: int = 512
    causal: bool = True
    max_length: int | None = None
    lse: bool = False
    has_table: bool = True


def request(
    q: Any,
    cache: Any,
    page_table: Any,
    lengths: Any,
    *,
    value_elements: int = 512,
    causal: bool = True,
    scale: float | None = None,
    max_length: int | None = None,
    lse: bool = False,
    out: Any = None,
    arch: Architecture | str | None = None,
    require_record: bool | None = None,
) -> Request:
    """Return the request of a call."""
    for name, value in (("value_elements", value_elements), ("max_length", max_length)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ArgumentError(f"latent_attention: {name} must be a positive integer", got=value, legal="1, 2, ...")
    shape = getattr(q, "shape", ())
    last = shape[-1] if isinstance(shape, tuple) and shape else 1
    factor = (last or 1) ** -0.5 if scale is None else scale
    options = Options(value_elements, bool(causal), max_length, bool(lse), page_table is not None)
    inputs = (q, cache, lengths) if page_table is None else (q, cache, lengths, page_table)
    return Request(inputs, out, options, arch, require_record, (factor,))


class _LatentAttention(Call):
    """`fireiron.latent_attention`: see `__call__`."""

    arrays: ClassVar[int] = 3

    def __call__(
        self,
        q: ArrayT,
        cache: ArrayT,
        page_table: ArrayT | None,
        lengths: ArrayT,
        *,
        value_elements: int = 512,
        causal: bool = True,
        scale: float | None = None,
        max_length: int | None = None,
        lse: bool = False,
        out: Any = None,
        arch: Architecture | str | None = None,
        stream: object = None,
        require_record: bool | None = None,
    ) -> Any:
        """Return the attention of the last queries of sequences to cached latent vectors, (batch, heads, m, value_elements).

        All heads share the keys, and the first `value_elements` elements of a key are its value, so both are read once. On sm_90a, wgmma
        computes whole tiles of 64 keys, and mma.sync the others. Results are equal in all runs. CuPy and PyTorch arrays on a GPU run
        there, NumPy arrays in the simulator. Tensors that require a gradient are refused.

        Args:
            q: (batch, heads, m, k), or (batch, heads, k) for one query per sequence; float16 or bfloat16.
            cache: (pages, page_size, k), or (pages, page_size, 1, k), of the type of `q`, contiguous along k. `k - value_elements`, the
                elements of the rotated part of a key, is a multiple of 16, at least 32.
            page_table: int32 (batch, t). Key n of sequence b is in page page_table[b, n // page_size]. Entries past the length may have any
                value. With None, the cache is (batch, n, k).
            lengths: int32 (batch,), the number of keys of each sequence. Memory past it is not used, whatever it contains.
            value_elements: a multiple of 64, at most 512.
            causal: query i of m has the position length - m + i and attends to keys up to it. A query without keys gives zeros.
            scale: the scale of scores, above 0; `k ** -0.5` if None.
            max_length: a bound of all lengths; the default is that of the table or the cache.
            lse: also return the log-sum-exp of each query's scores, float32, (batch, heads, m), or (batch, heads).
            out: the array for the result, packed, with its dimensions in the order of those of `q`; with `lse`, a pair.
            arch: the target, sm_80 or newer; the default is that of the GPU (sm_90 in the simulator).
            stream: as for a compiled kernel.
            require_record: must not be True, because no record of decoding exists.

        Raises: ArgumentError for incompatible arrays and illegal options; StoreError if an exact record is required.
        """
        if operators.differentiated(q, cache):
            raise without_gradient()
        if operators.traced(*(one for one in (q, cache, page_table, lengths) if one is not None)):
            operators.refuse_options("latent_attention", out=out, arch=arch, stream=stream, require_record=require_record)
            return _through_torch(q, cache, page_table, lengths, value_elements, causal, scale, max_length, lse)
        options: dict[str, Any] = {"value_elements": value_elements, "causal": causal, "scale": scale, "max_length": max_length, "lse": lse}
        asked = request(q, cache, page_table, lengths, **options, out=out, arch=arch, require_record=require_record)
        return self.launched(asked, stream)

    @takes(request)
    def choice(self, request: Request) -> Choice:
        """Return the choice for these arrays, and the reason; launch nothing."""
        return self.answer(request).choice

    @takes(request)
    def kernel(self, request: Request) -> CompiledKernel:
        """Return the kernel of the parts for these arrays."""
        return self.answer(request).kernel

    def key_of_options(self, request: Request) -> Any:
        """Return the key of the options."""
        return request.options, request.arch, request.require_record, request.numbers

    def new_answer(self, request: Request) -> Answer:
        """Return the answer for a new request."""
        from fireiron.latent_attention_kernels import answer_to

        return answer_to(request)


latent_attention: Final = _LatentAttention()
"""Attention to cached latent vectors; see its `__call__`."""


def without_gradient() -> ArgumentError:
    """Return the error for tensors that require a gradient."""
    hint = "call under torch.no_grad(), or with detached tensors"
    return ArgumentError("latent_attention has no gradient, but a tensor requires one", legal="tensors without requires_grad", hint=hint)


# ---------------------------------------------------------------------------------------------- PyTorch's operators


# torch.compile traces this function, so it uses no attrs classes, caches or locks.


def _through_torch(*arguments: Any) -> Any:
    """Call the operator."""
    import torch

    _operators()
    *others, lse = arguments
    if lse:
        return torch.ops.fireiron.latent_attention_lse(*others)
    return torch.ops.fireiron.latent_attention(*others)


@operators.constant
def _operators() -> bool:
    with operators.registering:
        register_operators()
    return True


def _attend(q: Any, cache: Any, table: Any, lengths: Any, value_elements: Any, causal: Any, scale: Any, bound: Any, *, lse: bool) -> Any:
    asked = request(
        q, cache, table, lengths, value_elements=value_elements, causal=causal, scale=scale, max_length=bound, lse=lse
    )  # fmt: skip
    return latent_attention.launched(asked)


def _shape(q: Any, cache: Any, table: Any, lengths: Any, value_elements: Any, *others: Any, lse: bool) -> Any:
    """Return the results of a traced call."""
    import torch

    from fireiron.latent_attention_kernels import results_of, sizes_of

    sizes_of(q.shape, cache.shape, None if table is None else table.shape, lengths.shape, value_elements)
    (shape, steps), (rows, row_steps) = results_of(tuple(q.shape), tuple(q.stride()), value_elements)
    result = q.new_empty_strided(shape, steps)
    return (result, torch.empty_strided(rows, row_steps, dtype=torch.float32, device=q.device)) if lse else result


@functools.cache
def register_operators() -> tuple[Any, ...]:
    """Register and return the operators: without and with the log-sum-exp."""
    arguments = "Tensor q, Tensor cache, Tensor? table, Tensor lengths, int value_elements, bool causal, float? scale, int? max_length"
    defined = []
    for name, lse, results in (("latent_attention", False, "Tensor"), ("latent_attention_lse", True, "(Tensor, Tensor)")):
        run, shape = functools.partial(_attend, lse=lse), functools.partial(_shape, lse=lse)
        operator = operators.define(name, f"({arguments}) -> {results}", run, shape)
        operators.refuse_gradients(operator, lambda inputs: without_gradient())
        defined.append(operator)
    return tuple(defined)


__all__ = ["latent_attention", "register_operators"]
