"""`fireiron.ssd` and `fireiron.linear_attention`: recurrences with a decay per head, in chunks (state space duality, Mamba-2).

>>> import fireiron, numpy
>>> x, dt, A = numpy.ones((1, 70, 2, 64), "float16"), numpy.ones((1, 70, 2), "float32"), numpy.zeros(2, "float32")
>>> B = C = numpy.full((1, 70, 1, 64), 1 / 8, "float16")
>>> fireiron.ssd(x, dt, A, B, C)[0, [0, 1, 69], 0, 0]  # without a decay: a running sum
array([ 1.,  2., 70.], dtype=float16)
>>> fireiron.linear_attention(C, B, x)[0, [0, 1, 69], 0, 0]
array([ 1.,  2., 70.], dtype=float16)

A call that `torch.compile` traces or that autograd records uses the PyTorch operators `fireiron::ssd`, `fireiron::ssd_state`,
`fireiron::linear_attention` and `fireiron::linear_attention_state`. The first such call registers them.
"""

from __future__ import annotations

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
    """The options of a call: its name, the names of its arrays, and whether it returns the state after the last position.

    With `past`, it also returns what the gradients need: the part of the outputs that comes from earlier chunks, the state before each
    chunk, and after the last state the sums of logarithms `at` and `au`.
    """

    call: str
    given: tuple[str, ...]
    final: bool
    past: bool = False


def request(
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    D: Any = None,
    z: Any = None,
    initial_state: Any = None,
    return_final_state: bool = False,
    *,
    arch: Architecture | str | None = None,
    require_record: bool | None = None,
) -> Request:
    """Return the request of a call of `ssd`."""
    arrays = {"x": x, "B": B, "C": C, "dt": dt, "A": A, "D": D, "z": z, "initial_state": initial_state}
    return _request("ssd", arrays, return_final_state, arch, require_record)


def linear_request(
    q: Any,
    k: Any,
    v: Any,
    decay: Any = None,
    *,
    scale: float = 1.0,
    initial_state: Any = None,
    return_final_state: bool = False,
    arch: Architecture | str | None = None,
    require_record: bool | None = None,
) -> Request:
    """Return the request of a call of `linear_attention`."""
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < scale < float("inf"):
        raise ArgumentError("linear_attention: scale must be a positive number", got=scale, legal="q.shape[-1] ** -0.5, or 1.0")
    arrays = {"v": v, "k": k, "q": q, "decay": decay, "initial_state": initial_state}
    return _request("linear_attention", arrays, return_final_state, arch, require_record)._replace(numbers=(float(scale),))


def _request(call: str, arrays: dict[str, Any], final: bool, arch: Any, require_record: bool | None) -> Request:
    given = {name: array for name, array in arrays.items() if array is not None}
    return Request(tuple(given.values()), None, Options(call, tuple(given), bool(final)), arch, require_record)


class _Scan(Call):
    """The common part of both calls."""

    arrays: ClassVar[int] = 3

    def is_replayed(self, request: Request) -> bool:
        """Return whether the call is recorded: not if the result is a part of a longer array."""
        from fireiron.ssd_kernels import is_ragged

        return super().is_replayed(request) and not is_ragged(request.inputs[0].shape[1])

    def key_of_options(self, request: Request) -> Any:
        """Return the key of the options."""
        return request.options, request.arch, request.require_record, request.numbers

    def new_answer(self, request: Request) -> Answer:
        """Return the answer for a new request."""
        from fireiron.ssd_kernels import answer_to

        return answer_to(request)


class _SSD(_Scan):
    """`fireiron.ssd`: see `__call__`."""

    def __call__(
        self,
        x: ArrayT,
        dt: ArrayT,
        A: ArrayT,
        B: ArrayT,
        C: ArrayT,
        D: ArrayT | None = None,
        z: ArrayT | None = None,
        initial_state: ArrayT | None = None,
        return_final_state: bool = False,
        *,
        arch: Architecture | str | None = None,
        stream: object = None,
        require_record: bool | None = None,
    ) -> Any:
        """Return the outputs of a state space model with one decay per head (Mamba-2), with the shape and the library of `x`.

        For each head, `state = exp(dt[t] * A) * state + dt[t] * outer(x[t], B[t])`, and the output is `state @ C[t]`. Chunks of 64
        positions are matrix products on tensor cores; the state is float32, and rounded to the type of `x` as an operand. The results are
        equal in all runs. CuPy and PyTorch arrays on a GPU run there, NumPy arrays in the simulator. PyTorch tensors have
        gradients.

        Args:
            x: (batch, length, heads, p), float16 or bfloat16. `p` is a multiple of 16.
            dt: (batch, length, heads), float32 or the type of `x`, not negative: after the bias and softplus.
            A: float32 (heads,), the logarithm of a decay per unit of `dt`; usually negative.
            B, C: (batch, length, groups, n), of the type of `x`. `n` is a multiple of 16, at most 128. `groups` divides `heads`:
                consecutive heads share B and C.
            D: float32 (heads,): `D * x` is added to the result.
            z: of the shape and type of `x`: the result is multiplied by `z * sigmoid(z)`.
            initial_state: float32 (batch, heads, p, n), the state before the first position; zeros if None.
            return_final_state: also return the state after the last position, float32 (batch, heads, p, n).
            arch: the target, sm_80 or newer; the default is that of the GPU (sm_90 in the simulator).
            stream: as for a compiled kernel.
            require_record: must not be True, because no record of these kernels exists.

        If the length is not a multiple of 64, the result is a part of a longer array. Arrays that are not contiguous along the last
        dimension are copied. A decay below 2^-128 per position counts as 2^-128: `-inf` resets the state.

        Raises: ArgumentError for incompatible arrays; StoreError if an exact record is required.
        """
        arrays = tuple(one for one in (x, dt, A, B, C, D, z, initial_state) if one is not None)
        is_traced = operators.traced(*arrays)
        if is_traced or operators.differentiated(*arrays):
            from fireiron.ssd_operator import recorded, through_torch

            operators.refuse_options("ssd", arch=arch, stream=stream, require_record=require_record)
            return (through_torch if is_traced else recorded)("ssd", return_final_state, x, dt, A, B, C, D, z, initial_state)
        asked = request(x, dt, A, B, C, D, z, initial_state, return_final_state, arch=arch, require_record=require_record)
        return self.launched(asked, stream)

    def gradients(
        self,
        grad: ArrayT,
        x: ArrayT,
        dt: ArrayT,
        A: ArrayT,
        B: ArrayT,
        C: ArrayT,
        D: ArrayT | None = None,
        z: ArrayT | None = None,
        initial_state: ArrayT | None = None,
        *,
        grad_state: ArrayT | None = None,
        arch: Architecture | str | None = None,
    ) -> tuple[ArrayT | None, ...]:
        """Return the gradients of x, dt, A, B, C, D, z and the initial state, for that of the result; None for None.

        Args: as for the call; `grad_state` is the gradient of the last state. `p` is at most 128.

        Raises: ArgumentError for incompatible arrays.
        """
        from fireiron.ssd_gradients import of_ssd

        return of_ssd(grad, grad_state, (x, dt, A, B, C, D, z, initial_state), arch)

    @takes(request)
    def choice(self, request: Request) -> Choice:
        """Return the choice for these arrays, and the reason; launch nothing."""
        return self.answer(request).choice

    @takes(request)
    def kernel(self, request: Request) -> CompiledKernel:
        """Return the kernel of the outputs for these arrays."""
        return self.answer(request).kernel


class _LinearAttention(_Scan):
    """`fireiron.linear_attention`: see `__call__`."""

    def __call__(
        self,
        q: ArrayT,
        k: ArrayT,
        v: ArrayT,
        decay: ArrayT | None = None,
        *,
        scale: float = 1.0,
        initial_state: ArrayT | None = None,
        return_final_state: bool = False,
        arch: Architecture | str | None = None,
        stream: object = None,
        require_record: bool | None = None,
    ) -> Any:
        """Return causal linear attention with a decay per head (RetNet, Lightning attention, gated), with the shape and library of `v`.

        For each head, `state = exp(decay[t]) * state + outer(v[t], k[t])`, and the output is `scale * state @ q[t]`. There is no softmax
        and no normalization. The kernels are those of `fireiron.ssd`.

        Args:
            q, k: (batch, length, groups, n), float16 or bfloat16. `groups` divides `heads`; `n` is a multiple of 16, at most 128.
            v: (batch, length, heads, p), of the type of `q`; `p` is a multiple of 16.
            decay: the logarithms of decays: (heads,), constant in time as in RetNet, or (batch, length, heads), as with a scalar gate.
                float32 or the type of `q`. With None, nothing decays. A gate per element of a key is not supported.
            scale: a factor of the result, above 0.
            initial_state: float32 (batch, heads, p, n), the state before the first position; zeros if None.
            return_final_state: also return the state after the last position, float32 (batch, heads, p, n).
            arch, stream, require_record: as in `fireiron.ssd`.

        Raises: ArgumentError for incompatible arrays; StoreError if an exact record is required.
        """
        arrays = tuple(one for one in (q, k, v, decay, initial_state) if one is not None)
        is_traced = operators.traced(*arrays)
        if is_traced or operators.differentiated(*arrays):
            from fireiron.ssd_operator import recorded, through_torch

            operators.refuse_options("linear_attention", arch=arch, stream=stream, require_record=require_record)
            return (through_torch if is_traced else recorded)("linear_attention", return_final_state, q, k, v, decay, initial_state, scale)
        words: dict[str, Any] = {"scale": scale, "initial_state": initial_state, "return_final_state": return_final_state}
        return self.launched(linear_request(q, k, v, decay, **words, arch=arch, require_record=require_record), stream)

    def gradients(
        self,
        grad: ArrayT,
        q: ArrayT,
        k: ArrayT,
        v: ArrayT,
        decay: ArrayT | None = None,
        *,
        scale: float = 1.0,
        initial_state: ArrayT | None = None,
        grad_state: ArrayT | None = None,
        arch: Architecture | str | None = None,
    ) -> tuple[ArrayT | None, ...]:
        """Return the gradients of q, k, v, the decay and the initial state, for that of the result; None for None.

        Args: as for the call; `grad_state` is the gradient of the last state. `p` is at most 128.

        Raises: ArgumentError for incompatible arrays.
        """
        from fireiron.ssd_gradients import of_linear_attention

        return of_linear_attention(grad, grad_state, (q, k, v, decay, initial_state), scale, arch)

    @takes(linear_request)
    def choice(self, request: Request) -> Choice:
        """Return the choice for these arrays, and the reason; launch nothing."""
        return self.answer(request).choice

    @takes(linear_request)
    def kernel(self, request: Request) -> CompiledKernel:
        """Return the kernel of the outputs for these arrays."""
        return self.answer(request).kernel


ssd: Final = _SSD()
"""The recurrence of Mamba-2; see its `__call__`."""

linear_attention: Final = _LinearAttention()
"""Linear attention with a decay; see its `__call__`."""


__all__ = ["linear_attention", "linear_request", "request", "ssd"]
