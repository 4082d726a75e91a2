"""`fireiron.experts`: a mixture-of-experts layer with SwiGLU, from the scores of a router to the sum for each token.

>>> import fireiron, numpy
>>> x, gate_up, down = (numpy.full(shape, 0.125, "float16") for shape in ((3, 16), (4, 32, 16), (4, 16, 16)))
>>> fireiron.experts(x, numpy.eye(3, 4, dtype="float32"), gate_up, down, top_k=2).shape
(3, 16)

A call that `torch.compile` traces, or a call on fake tensors, uses PyTorch operators (`fireiron.experts_operator`). The first such call
registers them. Calls on tensors that require a gradient have one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from fireiron import operators
from fireiron.copies import LIBRARIES, library
from fireiron.errors import ArgumentError
from fireiron.front.call import Answer, Call, Request, takes

if TYPE_CHECKING:
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.tune.records import Choice
    from fireiron.values.machine import Architecture

ArrayT = TypeVar("ArrayT")


def request(
    x: Any,
    scores: Any,
    gate_up: Any,
    down: Any,
    *,
    top_k: int | None = None,
    normalize: bool = True,
    out: Any = None,
    arch: Architecture | str | None = None,
) -> Request:
    """Return the request of a call: its inputs are x, the weights and the numbers of the chosen experts, gate_up and down."""
    return Request((x, *_routed(scores, top_k, normalize), gate_up, down), out, None, arch)


def _routed(scores: Any, top_k: int | None, normalize: bool) -> tuple[Any, Any]:
    """Return the weights and the numbers of the experts of each token."""
    if isinstance(scores, (tuple, list)):
        if len(scores) != 2 or top_k is not None:
            got = f"{len(scores)} arrays, top_k {top_k}"
            raise ArgumentError("experts: scores is not a pair of weights and numbers of experts", got=got, legal="a pair, without top_k")
        weights, index = scores
        return weights, index
    if top_k is None:
        hint = "top_k=2, or a pair of weights and numbers of experts instead of scores"
        raise ArgumentError("experts: scores need the number of experts per token", got="no top_k", hint=hint)
    if library(scores) not in LIBRARIES:
        legal = "a NumPy array, a CuPy array or a PyTorch tensor"
        raise ArgumentError("experts: scores is not an array", got=type(scores).__name__, legal=legal)
    from fireiron.experts_routing import chosen_experts

    weights, index = chosen_experts(scores.reshape(-1, scores.shape[-1]), top_k, normalize)
    shape = (*scores.shape[:-1], top_k)
    return weights.reshape(shape), index.reshape(shape)


class _Experts(Call):
    """`fireiron.experts`: see `__call__`."""

    arrays: ClassVar[int] = 5

    def __call__(
        self,
        x: ArrayT,
        scores: Any,
        gate_up: ArrayT,
        down: ArrayT,
        *,
        top_k: int | None = None,
        normalize: bool = True,
        out: ArrayT | None = None,
        arch: Architecture | str | None = None,
    ) -> ArrayT:
        """Return, for each token, the weighted sum of the results of its experts: down[e] (silu(gate[e] x) * (up[e] x)).

        CuPy and PyTorch arrays on a GPU run there, NumPy arrays in the simulator. The first call for given shapes compiles the kernels;
        later calls only launch them. PyTorch tensors have gradients. Results are equal in each run: the terms of sums have a fixed order.

        Args:
            x: (..., width), float16 or bfloat16, tokens with any number of leading dimensions.
            scores: (..., experts), the scores of a router. The `top_k` experts with the largest softmax are chosen. Or a pair of arrays
                (..., choices): the weights, and the numbers of the experts. On a GPU, it is a promise that these are from 0 to experts - 1.
            gate_up: (experts, 2 * hidden, width), the weights of the gates, then those of the other factor.
            down: (experts, width, hidden). Row-major weights are read in place; others are copied first.
            top_k: the number of experts per token.
            normalize: the weights of a token add up to 1, by a division by their sum.
            out: the array for the result. The default is a new array.
            arch: the target, sm_80 or newer; the default is that of the GPU (sm_90 in the simulator).

        Raises: ArgumentError for incompatible arrays and illegal options.
        """
        weights, index = _routed(scores, top_k, normalize)
        is_differentiated = operators.differentiated(x, weights, gate_up, down)
        if is_differentiated or operators.traced(x, weights, gate_up, down):
            from fireiron.experts_operator import recorded, through_torch  # imported when needed

            operators.refuse_options("experts", out=out, arch=arch)
            run = recorded if is_differentiated and not operators.traced(x, weights, gate_up, down) else through_torch
            result: ArrayT = run(x, weights, index, gate_up, down)
            return result
        result = self.launched(Request((x, weights, index, gate_up, down), out, None, arch))
        return result

    @takes(request)
    def choice(self, request: Request) -> Choice:
        """Return the strategies for these arrays, and the reason; launch nothing."""
        return self.answer(request).choice

    @takes(request)
    def kernel(self, request: Request) -> CompiledKernel:
        """Return the kernel of the first product. It takes rows in tiles `A[t,m,k]`, tables, and weights of experts."""
        return self.answer(request).kernel

    def key_of_options(self, request: Request) -> Any:
        """Return the key of the options."""
        return request.arch

    def is_replayed(self, request: Request) -> bool:
        """Return False: tables are made by the library of the arrays, which a replay does not repeat."""
        return False

    def new_answer(self, request: Request) -> Answer:
        """Return the answer for a new request."""
        from fireiron.experts_kernels import answer_to

        return answer_to(request)


experts: Final = _Experts()
"""A mixture-of-experts layer; see its `__call__`."""

__all__ = ["experts"]
