"""`fireiron.attention`: softmax(Q K^T) V of arrays in one kernel, with a recorded or a default strategy of the library.

>>> import fireiron, numpy
>>> q, k, v = (numpy.ones((2, length, 16), "float16") for length in (4, 8, 8))
>>> fireiron.attention(q, k, v)[0, 0, :3]
array([1., 1., 1.], dtype=float16)
>>> print(fireiron.attention.choice(q, k, v).why)
no record applies; the default for float16 on sm_90: attention:steady bm=64 stages=2 bn=64 wm=32 score_parts=1

A call that `torch.compile` traces, or a call on fake tensors, uses PyTorch operators (`fireiron.attention_operator`). The first such call
registers them. Calls on tensors that require a gradient have one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
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
    """The keywords of a call other than `lse` and `out`."""

    causal: bool
    window: int | None
    scale: float | None
    score: str | None
    deterministic: bool | None
    arch: Architecture | str | None
    stream: object
    require_record: bool | None


class Options(NamedTuple):
    """The options of a call: the mask, the score formula, and whether the log-sum-exp is returned."""

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
    """Return the request of a call."""
    return Request((q, k, v), out, _options(causal, window, lse, score), arch, require_record, (_factor(scale, q),))


def _options(causal: bool, window: int | None, lse: bool, score: str | None) -> Options:
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ArgumentError("attention: window must be the number of keys that a query attends to", got=window, legal="1, 2, ..., or None")
    if score is not None and not isinstance(score, str):
        raise ArgumentError("attention: score must be a formula of s, m and n", got=score, legal='"30 * tanh(s / 30)"')
    return Options(bool(causal) or window is not None, window, bool(lse), score)


def _factor(scale: float | None, q: Any) -> float:
    """Return the scale of scores."""
    shape = getattr(q, "shape", ())
    last = shape[-1] if isinstance(shape, tuple) and shape else 1  # a later check refuses arguments without a shape
    return (last or 1) ** -0.5 if scale is None else scale


def is_deterministic(deterministic: bool | None, q: Any) -> bool:
    """Return whether gradients must have the same bits in each run."""
    if deterministic is not None or not hasattr(q, "is_cuda"):
        return bool(deterministic)
    return bool(sys.modules["torch"].are_deterministic_algorithms_enabled())


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
        deterministic: bool | None = None,
        out: Any = None,
        arch: Any = None,
        stream: Any = None,
        require_record: bool | None = None,
    ) -> Any:
        """Return `softmax(scale * q @ k.T) @ v` for each head, as PyTorch's `scaled_dot_product_attention` does.

        The result has the shape and the library of `q`. A query without keys to attend to gives zeros, and a log-sum-exp of minus infinity.
        CuPy and PyTorch arrays on a GPU run there, NumPy arrays in the simulator. The first call for given shapes and strides compiles a
        kernel; later calls only launch it. On GPUs of compute capability 8.0 or newer, PyTorch tensors have gradients.

        Args:
            q: (batch, heads, m, d), float16 or bfloat16; batch, or batch and heads, may be missing. `d` is a multiple of 8.
            k, v: (batch, groups, n, d). `groups` divides `heads`: `heads / groups` consecutive heads of queries share a head of keys.
                Arrays that are contiguous along d and aligned to 16 bytes are read in place; other arrays are copied first.
            causal: query m attends only to keys 0 to m. With more keys than queries, the other keys are not read.
            window: query m attends to the last `window` of these keys, including key m.
            scale: the scale of scores, above 0; `d ** -0.5` if None.
            lse: also return the log-sum-exp of each query's scores, float32, (batch, heads, m).
            score: a formula that replaces the scaled score `s` of query `m` and key `n`: `"30 * tanh(s / 30)"`, `"s - 0.1 * (m - n)"`.
            deterministic: compute gradients with the same bits in each run, as in `gradients`. The result itself always has the same bits.
            out: the array for the result; with `lse`, a pair. The default is new arrays, whose dimensions are stored in the order of those
                of `q`.
            arch: the target; the default is that of the GPU (sm_90 in the simulator).
            stream: as for a compiled kernel.
            require_record: use only a record of exactly this problem; None means the value of `FIREIRON_REQUIRE_RECORD`.

        Raises: ArgumentError for incompatible arrays and illegal options; StoreError if an exact record is required and there is none.
        """
        if hasattr(q, "is_cuda"):
            replays = self.replays
            if replays.again is not None and stream is None and not replays.tracing():
                q, k, v = operators.autocast(q, k, v) if out is None and replays.casting() else (q, k, v)
                mask = bool(causal) or window is not None, window, type(window)
                factor = _factor(scale, q)
                done = replays.again((*mask, factor, bool(lse), score, arch, require_record), out, q, k, v)
                if done is ... and out is None and arch is None and require_record is None:
                    done = self._differentiated(q, k, v, (*mask, factor, score), (bool(causal), window, scale, score, deterministic), lse)
                if done is not None and done is not NotImplemented and done is not ...:
                    return done
            q, k, v = (q, k, v) if out is not None else operators.autocast(q, k, v)
        is_differentiated = operators.differentiated(q, k, v)
        if is_differentiated or operators.traced(q, k, v):
            from fireiron.attention_operator import recorded, through_torch  # imported when needed

            operators.refuse_options("attention", out=out, arch=arch, stream=stream, require_record=require_record)
            run = recorded if is_differentiated and not operators.traced(q, k, v) else through_torch
            return run(q, k, v, (bool(causal), window, scale, score, deterministic), bool(lse))
        options = _options(causal, window, lse, score)
        return self.launched(Request((q, k, v), out, options, arch, require_record, (_factor(scale, q),)), stream)

    @takes(request)
    def choice(self, request: Request) -> Choice:
        """Return the choice for these arrays, a record or a default strategy, and the reason; launch nothing."""
        return self.answer(request).choice

    @takes(request)
    def kernel(self, request: Request) -> CompiledKernel:
        """Return the kernel for these arrays. It takes views `Q[b,m,g,r,d]`, `K[b,n,g,d]` and `V[b,n,g,d]` of them."""
        return self.answer(request).kernel

    def gradients(
        self,
        grad: ArrayT,
        q: ArrayT,
        k: ArrayT,
        v: ArrayT,
        o: ArrayT,
        lse: ArrayT,
        *,
        lse_grad: ArrayT | None = None,
        causal: bool = False,
        window: int | None = None,
        scale: float | None = None,
        score: str | None = None,
        deterministic: bool | None = None,
        arch: Architecture | str | None = None,
    ) -> tuple[ArrayT, ArrayT, ArrayT]:
        """Return the gradients of `q`, `k` and `v`. PyTorch's autograd calls this; call it for arrays of NumPy and CuPy.

        Additions to the gradient of `q` have no fixed order on a GPU, so its last bits vary, unless `deterministic` is true.

        >>> import numpy
        >>> q, k, v = (numpy.ones((2, length, 64), "float16") for length in (4, 8, 8))
        >>> o, lse = attention(q, k, v, lse=True)
        >>> dq, dk, dv = attention.gradients(o, q, k, v, o, lse)
        >>> dv[0, 0, :3]
        array([0.5, 0.5, 0.5], dtype=float16)

        Args:
            grad: the gradient of the result, with the shape and the type of `q`.
            q, k, v: as for a call, with heads of at most 256 elements.
            o, lse: the result of that call with `lse=True`.
            lse_grad: the gradient of the log-sum-exp, (batch, heads, m), float32.
            causal, window, scale, score: as for the call. `score` has a derivative: it consists of `+ - * /` and functions such as `tanh`.
            deterministic: compute the gradients with the same bits in each run, by a separate kernel for `q`; this takes longer. None
                means `torch.are_deterministic_algorithms_enabled()` for PyTorch tensors, and False for others.
            arch: the target, sm_80 or newer; the default is that of the GPU (sm_90 in the simulator).

        Raises: ArgumentError for incompatible arrays, options without a gradient, and older targets.
        """
        from fireiron.attention_gradients import GradientOptions
        from fireiron.attention_gradients import gradients as call

        options = _options(causal, window, True, score)
        arrays = (grad, q, k, v, o, lse, *(() if lse_grad is None else (lse_grad,)))
        own = GradientOptions(options.causal, window, score, is_deterministic(deterministic, q))
        request = Request(arrays, None, own, arch, None, (_factor(scale, q),))
        results: tuple[ArrayT, ArrayT, ArrayT] = call.launched(request)
        return results

    @functools.cached_property
    def _differentiated(self) -> Callable[..., Any]:
        """Attention of plain tensors that autograd records, by replayed calls."""
        from fireiron.attention_operator import replayed

        return replayed(self.replays.again)

    def key_of_options(self, request: Request) -> Any:
        """Return the key of the options, as `__call__` makes it. It includes the type of `window`, because True equals 1 but is refused."""
        _, _, (causal, window, lse, score, _), arch, require_record, (factor,) = request
        return causal, window, type(window), factor, lse, score, arch, require_record

    def new_answer(self, request: Request) -> Answer:
        """Return the answer for a new request."""
        from fireiron.attention_kernels import answer_to

        return answer_to(request)


attention: Final = _Attention()
"""Attention of arrays; see its `__call__`."""


__all__ = ["attention", "is_deterministic"]
