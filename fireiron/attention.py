"""`fireiron.attention`: softmax(Q K^T) V of arrays, in one kernel, by a record or by the library's strategy for the GPU.

>>> import fireiron, numpy
>>> q, k, v = (numpy.ones((2, length, 16), "float16") for length in (4, 8, 8))
>>> fireiron.attention(q, k, v)[0, 0, :3]
array([1., 1., 1.], dtype=float16)
>>> print(fireiron.attention.choice(q, k, v).why)
no record answers; the default for float16 on sm_90: attention:steady bm=64 stages=2 bn=64 wm=32 parts=1

In PyTorch a call that `torch.compile` traces, or one with fake tensors, is one of the operators `fireiron::attention` and
`fireiron::attention_lse`, which are registered when the first such call is made.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, TypedDict, TypeVar, Unpack, overload

from fireiron import operators
from fireiron.errors import ArgumentError
from fireiron.front.call import Answer, Call, Request, takes

if TYPE_CHECKING:
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.tune.records import Choice
    from fireiron.values.machine import Architecture

ArrayT = TypeVar("ArrayT")


class Keywords(TypedDict, total=False):
    """The keywords of a call beside `lse` and `out`."""

    causal: bool
    window: int | None
    scale: float | None
    score: str | None
    arch: Architecture | str | None
    stream: object
    require_record: bool | None


class Options(NamedTuple):
    """What is asked for beside the arrays: which keys a query sees, what becomes of scores, and whether the log-sum-exp is wanted."""

    causal: bool = False
    window: int | None = None
    lse: bool = False
    score: str | None = None
    rescale_threshold: int = 0


def request(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: int | None = None,
    scale: float | None = None,
    lse: bool = False,
    score: str | None = None,
    out: Any = None,
    arch: Architecture | str | None = None,
    require_record: bool | None = None,
) -> Request:
    """The arguments of a call."""
    return Request((q, k, v), out, _options(causal, window, lse, score), arch, require_record, (_factor(scale, q),))


def _options(causal: bool, window: int | None, lse: bool, score: str | None) -> Options:
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ArgumentError("attention: window is the number of keys that a query sees", got=window, legal="1, 2, ..., or None")
    if score is not None and not isinstance(score, str):
        raise ArgumentError("attention: score is a formula of s, m and n", got=score, legal='"30 * tanh(s / 30)"')
    return Options(bool(causal) or window is not None, window, bool(lse), score)


def _factor(scale: float | None, q: Any) -> float:
    """What scores are multiplied by."""
    shape = getattr(q, "shape", ())
    last = shape[-1] if isinstance(shape, tuple) and shape else 1  # what has no shape is refused where it is read
    return (last or 1) ** -0.5 if scale is None else scale


class _Attention(Call):
    """`fireiron.attention`: see `__call__`."""

    arrays: ClassVar[int] = 3

    @overload
    def __call__(
        self, q: ArrayT, k: ArrayT, v: ArrayT, *, lse: Literal[False] = False, out: ArrayT | None = None, **options: Unpack[Keywords]
    ) -> ArrayT: ...

    @overload
    def __call__(
        self, q: ArrayT, k: ArrayT, v: ArrayT, *, lse: Literal[True], out: tuple[ArrayT, ArrayT] | None = None, **options: Unpack[Keywords]
    ) -> tuple[ArrayT, ArrayT]: ...

    def __call__(
        self,
        q: Any,
        k: Any,
        v: Any,
        *,
        causal: bool = False,
        window: int | None = None,
        scale: float | None = None,
        lse: bool = False,
        score: str | None = None,
        out: Any = None,
        arch: Any = None,
        stream: Any = None,
        require_record: bool | None = None,
    ) -> Any:
        """`softmax(scale * q @ k.T) @ v` for each head, as PyTorch's `scaled_dot_product_attention`: an array of q's shape and library.

        `q` is (batch, heads, m, d), `k` and `v` are (batch, groups, n, d), all float16 or bfloat16; fewer dimensions are one of those in
        front. `groups` divides `heads`: so many heads of queries, one after the other, read each head of keys. `d` is a multiple of 8.
        Arrays of multiples of 16 whose elements of a head lie side by side are read as they lie, others are copied first. CuPy and
        PyTorch arrays on a GPU run there, NumPy arrays in the simulator. The first call
        for shapes and strides compiles a kernel; later ones launch only. Tensors that require a gradient are refused.

        Args:
            causal: query m sees keys 0 to m.
            window: it sees the last so many of these, itself included.
            scale: what scores are multiplied by, above 0; `d ** -0.5` if None.
            lse: give the logarithm of the sum of the exponentials of each query's scores too, float32, (batch, heads, m).
            score: what becomes of a scaled score `s` of query `m` and key `n`: `"30 * tanh(s / 30)"`, `"s - 0.1 * (m - n)"`.
            out: where to store the result; of `lse` a pair. By default new arrays; the result's dimensions lie in the order of `q`'s.
            arch: the target of the compiler; by default that of the GPU (of the simulator, sm_90).
            stream: as for a compiled kernel.
            require_record: only a record of exactly this problem may answer; as `FIREIRON_REQUIRE_RECORD` says if None.

        A query that sees no key gives zeros, and a log-sum-exp of minus infinity.

        Raises: ArgumentError for arrays that do not fit each other, of other types or libraries, and for options that are not legal;
            StoreError if an exact record is required and none answers.
        """
        if hasattr(q, "is_cuda"):
            replays = self.replays
            if replays.again is not None and stream is None and not replays.tracing():
                q, k, v = operators.autocast(q, k, v) if out is None and replays.casting() else (q, k, v)
                said = bool(causal) or window is not None, window, type(window), _factor(scale, q), bool(lse), score, arch, require_record
                done = replays.again(said, out, q, k, v)
                if done is not None and done is not NotImplemented and done is not ...:
                    return done
            q, k, v = (q, k, v) if out is not None else operators.autocast(q, k, v)
            if operators.differentiated(q, k, v):
                raise _without_gradient()
        if operators.traced(q, k, v):
            operators.refuse_options("attention", out=out, arch=arch, stream=stream, require_record=require_record)
            return _through_torch(q, k, v, bool(causal), window, scale, score, bool(lse))
        options = _options(causal, window, lse, score)
        return self.launched(Request((q, k, v), out, options, arch, require_record, (_factor(scale, q),)), stream)

    @takes(request)
    def choice(self, request: Request) -> Choice:
        """What `attention` takes for these arrays: the record, if one answers, else the strategy, and why; nothing is launched."""
        return self.answer(request).choice

    @takes(request)
    def kernel(self, request: Request) -> CompiledKernel:
        """The kernel that `attention` calls for these arrays, with views `Q[b,m,g,r,d]`, `K[b,n,g,d]` and `V[b,n,g,d]` of them."""
        return self.answer(request).kernel

    def said(self, request: Request) -> Any:
        """What tells calls with the same arrays apart, as `__call__` says it; `True`, which is refused as a window, from 1."""
        _, _, (causal, window, lse, score, _), arch, require_record, (factor,) = request
        return causal, window, type(window), factor, lse, score, arch, require_record

    def new_answer(self, request: Request) -> Answer:
        """What answers a request that was not made before."""
        from fireiron.attention_kernels import answer_to

        return answer_to(request)


attention: Final = _Attention()
"""Attention of arrays; see its `__call__`."""


def _without_gradient() -> ArgumentError:
    hint = "call under torch.no_grad(), or with detached tensors; torch's scaled_dot_product_attention has a gradient"
    return ArgumentError("attention has no gradient yet, and a tensor requires one", legal="tensors that require none", hint=hint)


# ---------------------------------------------------------------------------------------------- PyTorch's operators


# What stands between here and the operators is traced by torch.compile itself: no classes of attrs, no caches, no locks.


def _through_torch(q: Any, k: Any, v: Any, causal: bool, window: Any, scale: Any, score: Any, lse: bool) -> Any:
    """The call as an operator."""
    import torch

    _operators()
    if lse:
        return torch.ops.fireiron.attention_lse(q, k, v, causal, window, scale, score)
    return torch.ops.fireiron.attention(q, k, v, causal, window, scale, score)


@operators.constant
def _operators() -> bool:
    with attention.lock:
        register_operators()
    return True


@functools.cache
def register_operators() -> tuple[Any, ...]:
    """The operators, registered: the result alone, and with the log-sum-exp."""
    return tuple(_defined(lse) for lse in (False, True))


def _defined(lse: bool) -> Any:
    """An operator, registered."""
    import torch

    from fireiron.attention_kernels import result_steps, sizes_of

    def attend(q: Any, k: Any, v: Any, causal: bool, window: Any, scale: Any, score: Any) -> Any:
        return attention.launched(request(q, k, v, causal=causal, window=window, scale=scale, lse=lse, score=score))

    def shaped(q: Any, k: Any, v: Any, causal: bool, window: Any, scale: Any, score: Any) -> Any:
        _options(causal, window, lse, score)
        sizes_of(q.shape, k.shape, v.shape)
        result = q.new_empty_strided(q.shape, result_steps(q.shape, q.stride()))
        return (result, q.new_empty(q.shape[:-1], dtype=torch.float32)) if lse else result

    given = "Tensor q, Tensor k, Tensor v, bool causal, int? window, float? scale, str? score"
    name, made = ("attention_lse", "(Tensor, Tensor)") if lse else ("attention", "Tensor")
    operator = operators.define(name, f"({given}) -> {made}", attend, shaped)
    operators.refuse_gradients(operator, lambda inputs: _without_gradient())
    return operator


__all__ = ["attention", "register_operators"]
