"""`fireiron.paged_attention`: attention of few queries to cached keys and values (decoding), in pages or contiguous.

>>> import fireiron, numpy
>>> q, cache = numpy.ones((2, 4, 16), "float16"), numpy.ones((5, 16, 2, 16), "float16")
>>> table, lengths = numpy.array([[3, 1], [0, -1]], "int32"), numpy.array([20, 7], "int32")
>>> fireiron.paged_attention(q, cache, cache, table, lengths)[0, 0, :3]
array([1., 1., 1.], dtype=float16)

A call that `torch.compile` traces, or a call on fake tensors, uses the PyTorch operators `fireiron::paged_attention` and
`fireiron::paged_attention_lse`. The first such call registers them.
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

ARRAYS: Final = ("table", "sinks", "key_scale", "value_scale")
"""The names of arrays that a call may omit, in the order of `Request.inputs` after the queries, the caches and the lengths."""


class Options(NamedTuple):
    """The options of a call. `given` are the names of the arrays of `ARRAYS` that the call has."""

    causal: bool = True
    window: int | None = None
    score: str | None = None
    max_length: int | None = None
    lse: bool = False
    given: tuple[str, ...] = ()


def request(
    q: Any,
    key_cache: Any,
    value_cache: Any,
    page_table: Any,
    lengths: Any,
    *,
    causal: bool = True,
    window: int | None = None,
    scale: float | None = None,
    score: str | None = None,
    sinks: Any = None,
    key_scale: Any = None,
    value_scale: Any = None,
    max_length: int | None = None,
    lse: bool = False,
    out: Any = None,
    arch: Architecture | str | None = None,
    require_record: bool | None = None,
) -> Request:
    """Return the request of a call."""
    _refuse_number("window", window, "the number of keys that a query attends to")
    _refuse_number("max_length", max_length, "a bound of all lengths")
    if score is not None and not isinstance(score, str):
        raise ArgumentError("paged_attention: score must be a formula of s, m and n", got=score, legal='"30 * tanh(s / 30)"')
    named = {name: one for name, one in zip(ARRAYS, (page_table, sinks, key_scale, value_scale), strict=True) if one is not None}
    if ("key_scale" in named) != ("value_scale" in named):
        raise ArgumentError("paged_attention: pass both key_scale and value_scale, or neither", got=", ".join(named))
    shape = getattr(q, "shape", ())
    last = shape[-1] if isinstance(shape, tuple) and shape else 1
    factor = (last or 1) ** -0.5 if scale is None else scale
    options = Options(bool(causal) or window is not None, window, score, max_length, bool(lse), tuple(named))
    return Request((q, key_cache, value_cache, lengths, *named.values()), out, options, arch, require_record, (factor,))


def _refuse_number(name: str, value: Any, meaning: str) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ArgumentError(f"paged_attention: {name} must be {meaning}", got=value, legal="1, 2, ..., or None")


class _PagedAttention(Call):
    """`fireiron.paged_attention`: see `__call__`."""

    arrays: ClassVar[int] = 4

    def __call__(
        self,
        q: ArrayT,
        key_cache: ArrayT,
        value_cache: ArrayT,
        page_table: ArrayT | None,
        lengths: ArrayT,
        *,
        causal: bool = True,
        window: int | None = None,
        scale: float | None = None,
        score: str | None = None,
        sinks: ArrayT | None = None,
        key_scale: ArrayT | None = None,
        value_scale: ArrayT | None = None,
        max_length: int | None = None,
        lse: bool = False,
        out: Any = None,
        arch: Architecture | str | None = None,
        stream: object = None,
        require_record: bool | None = None,
    ) -> Any:
        """Return the attention of the last queries of sequences to their cached keys, with the shape and the library of `q`.

        Blocks compute parts of the keys, and a second kernel combines them in a fixed order, so results are equal in all runs. Lengths and
        tables are read by the kernels: calls with other values launch the same kernels. CuPy and PyTorch arrays on a GPU run there, NumPy
        arrays in the simulator. Tensors that require a gradient are refused.

        Args:
            q: (batch, heads, m, d), or (batch, heads, d) for one query per sequence; float16 or bfloat16. `d` is a multiple of 16, at most
                256.
            key_cache, value_cache: (pages, page_size, groups, d), of the type of `q` or float8_e4m3, contiguous along d, other strides are
                arbitrary. `groups` divides `heads`: consecutive heads share a head of keys.
            page_table: int32 (batch, t). Key n of sequence b is in page page_table[b, n // page_size]. Entries past the length may have any
                value. With None, the caches are (batch, n, groups, d).
            lengths: int32 (batch,), the number of keys of each sequence. Memory past it is not used, whatever it contains.
            causal: query i of m has the position length - m + i and attends to keys up to it. A query without keys gives zeros.
            window: a query attends to the last `window` of these keys.
            scale: the scale of scores, above 0; `d ** -0.5` if None.
            score: as for `fireiron.attention`; `m` and `n` are the positions of query and key.
            sinks: float32 (heads,), a score of each head to which no value belongs.
            key_scale, value_scale: float32, (groups,) or one element. The cached numbers are multiplied by them.
            max_length: a bound of all lengths; the default is that of the table or the cache. It determines the number of parts.
            lse: also return the log-sum-exp of each query's scores, and of its sink, float32, (batch, heads, m), or (batch, heads).
            out: the array for the result, contiguous along d; with `lse`, a pair.
            arch: the target, sm_80 or newer; the default is that of the GPU (sm_90 in the simulator).
            stream: as for a compiled kernel.
            require_record: must not be True, because no record of decoding exists.

        Raises: ArgumentError for incompatible arrays and illegal options; StoreError if an exact record is required.
        """
        given = tuple(one for one in (page_table, sinks, key_scale, value_scale) if one is not None)
        if operators.differentiated(q, key_cache, value_cache, *given):
            raise without_gradient()
        words = {"causal": causal, "window": window, "scale": scale, "score": score, "max_length": max_length}
        if operators.traced(q, key_cache, value_cache, lengths, *given):
            operators.refuse_options("paged_attention", out=out, arch=arch, stream=stream, require_record=require_record)
            return _through_torch(q, key_cache, value_cache, page_table, lengths, sinks, key_scale, value_scale, *words.values(), lse)
        arrays = {"sinks": sinks, "key_scale": key_scale, "value_scale": value_scale}
        others = {"lse": lse, "out": out, "arch": arch, "require_record": require_record}
        asked: dict[str, Any] = {**words, **arrays, **others}
        return self.launched(request(q, key_cache, value_cache, page_table, lengths, **asked), stream)

    @takes(request)
    def choice(self, request: Request) -> Choice:
        """Return the choice for these arrays, and the reason; launch nothing."""
        return self.answer(request).choice

    @takes(request)
    def kernel(self, request: Request) -> CompiledKernel:
        """Return the kernel of the parts for these arrays."""
        return self.answer(request).kernel

    def is_replayed(self, request: Request) -> bool:
        """Return whether the call is recorded: not if the caches overlap, because it would be recorded with copies of them."""
        _, keys, values, *_ = request.inputs
        if not super().is_replayed(request) or not hasattr(keys, "data_ptr"):
            return False
        distance = abs(keys.data_ptr() - values.data_ptr())
        span = sum((size - 1) * step for size, step in zip(keys.shape, keys.stride(), strict=True)) + 1
        return bool(distance >= span * keys.element_size())

    def key_of_options(self, request: Request) -> Any:
        """Return the key of the options."""
        return request.options, request.arch, request.require_record, request.numbers

    def new_answer(self, request: Request) -> Answer:
        """Return the answer for a new request."""
        from fireiron.paged_attention_kernels import answer_to

        return answer_to(request)


paged_attention: Final = _PagedAttention()
"""Attention to cached keys; see its `__call__`."""


def without_gradient() -> ArgumentError:
    """Return the error for tensors that require a gradient."""
    hint = "call under torch.no_grad(), or with detached tensors; fireiron.attention has gradients"
    return ArgumentError("paged_attention has no gradient, but a tensor requires one", legal="tensors without requires_grad", hint=hint)


# ---------------------------------------------------------------------------------------------- PyTorch's operators


# torch.compile traces this function, so it uses no attrs classes, caches or locks.


def _through_torch(q: Any, key_cache: Any, value_cache: Any, *others: Any) -> Any:
    """Call the operator."""
    import torch

    _operators()
    *arguments, lse = others
    if lse:
        return torch.ops.fireiron.paged_attention_lse(q, key_cache, value_cache, *arguments)
    return torch.ops.fireiron.paged_attention(q, key_cache, value_cache, *arguments)


@operators.constant
def _operators() -> bool:
    with operators.registering:
        register_operators()
    return True


def _attend(q: Any, k: Any, v: Any, table: Any, lengths: Any, sinks: Any, ks: Any, vs: Any, *options: Any, lse: bool) -> Any:
    causal, window, scale, score, max_length = options
    asked = request(
        q, k, v, table, lengths, causal=causal, window=window, scale=scale, score=score, sinks=sinks, key_scale=ks, value_scale=vs,
        max_length=max_length, lse=lse,
    )  # fmt: skip
    return paged_attention.launched(asked)


def _shape(q: Any, k: Any, v: Any, table: Any, lengths: Any, *others: Any, lse: bool) -> Any:
    """Return the results of a traced call."""
    import torch

    from fireiron.attention_kernels import result_steps
    from fireiron.paged_attention_kernels import sizes_of

    sizes_of(q.shape, k.shape, v.shape, None if table is None else table.shape, lengths.shape)
    result = q.new_empty_strided(q.shape, result_steps(q.shape, q.stride()))
    return (result, q.new_empty(q.shape[:-1], dtype=torch.float32)) if lse else result


@functools.cache
def register_operators() -> tuple[Any, ...]:
    """Register and return the operators: without and with the log-sum-exp."""
    arrays = "Tensor q, Tensor k, Tensor v, Tensor? table, Tensor lengths, Tensor? sinks, Tensor? key_scale, Tensor? value_scale"
    options = "bool causal, int? window, float? scale, str? score, int? max_length"
    defined = []
    for name, lse, results in (("paged_attention", False, "Tensor"), ("paged_attention_lse", True, "(Tensor, Tensor)")):
        attend, shape = functools.partial(_attend, lse=lse), functools.partial(_shape, lse=lse)
        operator = operators.define(name, f"({arrays}, {options}) -> {results}", attend, shape)
        operators.refuse_gradients(operator, lambda inputs: without_gradient())
        defined.append(operator)
    return tuple(defined)


__all__ = ["paged_attention", "register_operators"]
