"""`fireiron.conv2d`: convolution of images in one kernel, with the tiles that an estimate of the time selects.

>>> import fireiron, numpy
>>> x, w = numpy.ones((1, 16, 4, 4), "float16"), numpy.ones((8, 16, 3, 3), "float16")
>>> fireiron.conv2d(x, w, padding=1)[0, 0].astype(int).tolist()[0]
[64, 96, 96, 64]

A call that `torch.compile` traces, or a call on fake tensors, uses the PyTorch operator `fireiron::conv2d`. The first such call registers
it. Calls on tensors that require a gradient have one (`fireiron.conv2d_operator`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from fireiron import operators
from fireiron.errors import ArgumentError
from fireiron.front.call import Answer, Call, Request, takes

if TYPE_CHECKING:
    from fireiron.batches import Places
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.tune.records import Choice
    from fireiron.values.machine import Architecture

ArrayT = TypeVar("ArrayT")

Pair = tuple[int, int]
"""Numbers for rows and columns of an image."""

ACTIVATIONS: Final = ("relu", "silu")
"""Functions that are applied to the result in the kernel."""

DIFFERENTIATED: Final = (None, "relu")
"""Functions for which a call has a gradient."""

PLAIN: Final = (None, (), None, None)
"""The key of a call, after the options of the convolution, without an activation, further arrays, a target and a required record."""


class Options(NamedTuple):
    """The stride, the padding and the dilation, for rows and columns."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)


class CallOptions(NamedTuple):
    """The options of a call: `names` are those of the further arrays, in order."""

    convolution: Options = Options()
    groups: int = 1
    activation: str | None = None
    names: tuple[str, ...] = ()

    @property
    def epilogue(self) -> dict[str, Any]:
        """The arguments of the library's definitions for what follows the sums."""
        return {"bias": "bias" in self.names, "residual": "residual" in self.names, "activation": self.activation}

    def further(self, outputs: int, output: Places) -> tuple[Places, ...]:
        """Return the views of the further arrays, from the number of output channels and the view of the result."""
        return tuple(((outputs,), (1,)) if name == "bias" else output for name in self.names)


def options_of(stride: Any, padding: Any, dilation: Any) -> Options:
    """Return the options of a call. Raises: ArgumentError for others than an integer or a pair of integers."""
    return Options(pair_of("stride", stride, 1), pair_of("padding", padding, 0), pair_of("dilation", dilation, 1))


def pair_of(name: str, given: Any, least: int) -> Pair:
    """Return numbers for rows and columns. Raises: ArgumentError for others than an integer or a pair of integers."""
    numbers = tuple(given) if isinstance(given, (tuple, list)) else (given, given)
    if len(numbers) != 2 or any(isinstance(number, bool) or not isinstance(number, int) or number < least for number in numbers):
        raise ArgumentError(f"conv2d: {name} must be an integer or a pair of integers", got=given, legal=f"at least {least}")
    return numbers[0], numbers[1]


def request(
    x: Any,
    w: Any,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    residual: Any = None,
    activation: str | None = None,
    out: Any = None,
    arch: Architecture | str | None = None,
    require_record: bool | None = None,
) -> Request:
    """Return the request of a call."""
    if activation is not None and activation not in ACTIVATIONS:
        raise ArgumentError("conv2d: no kernel applies this activation", got=activation, legal=(None, *ACTIVATIONS))
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise ArgumentError("conv2d: groups must be an integer", got=groups, legal="at least 1")
    further = {name: array for name, array in (("bias", bias), ("residual", residual)) if array is not None}
    options = CallOptions(options_of(stride, padding, dilation), groups, activation, tuple(further))
    return Request((x, w, *further.values()), out, options, arch, require_record)


class _Convolution(Call):
    """`fireiron.conv2d`: see `__call__`."""

    arrays: ClassVar[int] = 2

    def __call__(
        self,
        x: ArrayT,
        w: ArrayT,
        bias: ArrayT | None = None,
        *,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        residual: ArrayT | None = None,
        activation: str | None = None,
        out: ArrayT | None = None,
        arch: Architecture | str | None = None,
        stream: object = None,
        require_record: bool | None = None,
    ) -> ArrayT:
        """Return the convolution of images `x` with filters `w`, as `torch.nn.functional.conv2d` does (cross-correlation).

        CuPy and PyTorch arrays on a GPU run there, NumPy arrays in the simulator. The first call for given shapes and strides compiles a
        kernel; later calls only launch it. On GPUs of compute capability 8.0 or newer, PyTorch tensors have gradients.

        Args:
            x: (images, channels, rows, columns), float16 or bfloat16. Contiguous channels (channels_last) that are a multiple of 16 are
                read in place; other arrays are copied first, and channels padded with zeros.
            w: (outputs, channels / groups, rows, columns), of the same type; contiguous channels are read in place, too.
            bias: (outputs,), of the same type, which is added to each pixel.
            stride, padding, dilation: integers, or pairs for rows and columns. Images are padded with zeros.
            groups: 1, or the number of channels (depthwise), with as many outputs.
            residual: an array with the shape and the type of the result, which is added to it.
            activation: a function of the sum: "relu" or "silu".
            out: the array for the result, with contiguous channels; others are copied to. The default is a new array with contiguous
                channels, (images, outputs, rows, columns).
            arch: the target; the default is that of the GPU (sm_90 in the simulator).
            stream: as for a compiled kernel.
            require_record: must not be True, because no record of convolutions exists.

        Raises: ArgumentError for incompatible arrays and illegal options; StoreError if an exact record is required.
        """
        further = () if bias is None and residual is None else tuple(one for one in (bias, residual) if one is not None)
        if hasattr(x, "is_cuda"):
            replays = self.replays
            if replays.again is not None and stream is None and not replays.tracing():
                if out is None and replays.casting():
                    x, w, *others = operators.autocast(x, w, *further)
                    further = tuple(others)
                names = () if not further else _names(bias, residual)
                key = _key(stride), _key(padding), _key(dilation), groups, activation, names, arch, require_record
                done = replays.again(key, out, x, w, *further)
                if done is ... and out is None and key[4:] == PLAIN and all(type(pair) is tuple for pair in key[:3]):
                    done = self._differentiated(key, key[:4], x, w)
                if done is not None and done is not NotImplemented and done is not ...:
                    result: ArrayT = done
                    return result
            if out is None:
                x, w, *others = operators.autocast(x, w, *further)
                further = tuple(others)
        bias, residual = _by_name(bias, residual, further)
        is_differentiated = operators.differentiated(x, w, *further)
        if is_differentiated or operators.traced(x, w, *further):
            from fireiron.conv2d_operator import recorded, through_torch  # imported when needed

            operators.refuse_options("conv2d", out=out, arch=arch, stream=stream, require_record=require_record)
            run = recorded if is_differentiated and not operators.traced(x, w, *further) else through_torch
            result = run(x, w, bias, residual, activation, stride, padding, dilation, groups)
            return result
        asked = request(
            x, w, bias, stride=stride, padding=padding, dilation=dilation, groups=groups, residual=residual, activation=activation,
            out=out, arch=arch, require_record=require_record,
        )  # fmt: skip
        result = self.launched(asked, stream)
        return result

    @takes(request)
    def choice(self, request: Request) -> Choice:
        """Return the choice for these arrays, and the reason; launch nothing."""
        return self.answer(request).choice

    @takes(request)
    def kernel(self, request: Request) -> CompiledKernel:
        """Return the kernel for these arrays. It takes views `X[n,h,w,c]` or `X[m,k]`, and `W[o,k]` of them."""
        return self.answer(request).kernel

    @functools.cached_property
    def _differentiated(self) -> Callable[..., Any]:
        """The convolution of plain tensors that autograd records, by replayed calls."""
        from fireiron.conv2d_operator import replayed

        return replayed(self.replays.again)

    def key_of_options(self, request: Request) -> Any:
        """Return the key of the options, as `__call__` makes it."""
        pairs, groups, activation, names = request.options
        return *pairs, groups, activation, names, request.arch, request.require_record

    def new_answer(self, request: Request) -> Answer:
        """Return the answer for a new request."""
        from fireiron.conv2d_kernels import answer_to

        return answer_to(request)


def _key(given: Any) -> Any:
    """Return a pair for an integer, as in `key_of_options`. Other values have no recorded call."""
    return (given, given) if type(given) is int else tuple(given) if type(given) is list else given


def _names(bias: Any, residual: Any) -> tuple[str, ...]:
    """Return the names of further arrays."""
    return ("bias",) * (bias is not None) + ("residual",) * (residual is not None)


def _by_name(bias: Any, residual: Any, further: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the bias and the residual from the further arrays in their order."""
    given = dict(zip(_names(bias, residual), further, strict=True))
    return given.get("bias"), given.get("residual")


conv2d: Final = _Convolution()
"""Convolution of images; see its `__call__`."""

__all__ = ["conv2d"]
