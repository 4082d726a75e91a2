"""`fireiron.conv2d`: convolution of images in one kernel, with the tiles that an estimate of the time selects.

>>> import fireiron, numpy
>>> x, w = numpy.ones((1, 16, 4, 4), "float16"), numpy.ones((8, 16, 3, 3), "float16")
>>> fireiron.conv2d(x, w, padding=1)[0, 0].astype(int).tolist()[0]
[64, 96, 96, 64]

A call that `torch.compile` traces, or a call on fake tensors, uses the PyTorch operator `fireiron::conv2d`. The first such call registers
it.
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

Pair = tuple[int, int]
"""Numbers for rows and columns of an image."""


class Options(NamedTuple):
    """The stride, the padding and the dilation, for rows and columns."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)


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
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    out: Any = None,
    arch: Architecture | str | None = None,
    require_record: bool | None = None,
) -> Request:
    """Return the request of a call."""
    return Request((x, w), out, options_of(stride, padding, dilation), arch, require_record)


class _Convolution(Call):
    """`fireiron.conv2d`: see `__call__`."""

    arrays: ClassVar[int] = 2

    def __call__(
        self,
        x: ArrayT,
        w: ArrayT,
        *,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        dilation: int | Pair = 1,
        out: ArrayT | None = None,
        arch: Architecture | str | None = None,
        stream: object = None,
        require_record: bool | None = None,
    ) -> ArrayT:
        """Return the convolution of images `x` with filters `w`, as `torch.nn.functional.conv2d` does (cross-correlation).

        CuPy and PyTorch arrays on a GPU run there, NumPy arrays in the simulator. The first call for given shapes and strides compiles a
        kernel; later calls only launch it. Tensors that require a gradient are refused.

        Args:
            x: (images, channels, rows, columns), float16 or bfloat16. Contiguous channels (channels_last) that are a multiple of 16 are
                read in place; other arrays are copied first, and channels padded with zeros.
            w: (outputs, channels, rows, columns), of the same type; contiguous channels are read in place, too.
            stride, padding, dilation: integers, or pairs for rows and columns. Images are padded with zeros.
            out: the array for the result, with contiguous channels; others are copied to. The default is a new array with contiguous
                channels, (images, outputs, rows, columns).
            arch: the target; the default is that of the GPU (sm_90 in the simulator).
            stream: as for a compiled kernel.
            require_record: must not be True, because no record of convolutions exists.

        Raises: ArgumentError for incompatible arrays and illegal options; StoreError if an exact record is required.
        """
        if hasattr(x, "is_cuda"):
            x, w = (x, w) if out is not None else operators.autocast(x, w)
            if operators.differentiated(x, w):
                raise _without_gradient()
        if operators.traced(x, w):
            operators.refuse_options("conv2d", out=out, arch=arch, stream=stream, require_record=require_record)
            traced: ArrayT = _through_torch(x, w, stride, padding, dilation)
            return traced
        result: ArrayT = self.launched(Request((x, w), out, options_of(stride, padding, dilation), arch, require_record), stream)
        return result

    @takes(request)
    def choice(self, request: Request) -> Choice:
        """Return the choice for these arrays, and the reason; launch nothing."""
        return self.answer(request).choice

    @takes(request)
    def kernel(self, request: Request) -> CompiledKernel:
        """Return the kernel for these arrays. It takes views `X[n,h,w,c]` or `X[m,k]`, and `W[o,k]` of them."""
        return self.answer(request).kernel

    def key_of_options(self, request: Request) -> Any:
        """Return the key of the options."""
        return request.options, request.arch, request.require_record

    def new_answer(self, request: Request) -> Answer:
        """Return the answer for a new request."""
        from fireiron.conv2d_kernels import answer_to

        return answer_to(request)


conv2d: Final = _Convolution()
"""Convolution of images; see its `__call__`."""


def _without_gradient() -> ArgumentError:
    hint = "call under torch.no_grad(), or with detached tensors; torch.nn.functional.conv2d has a gradient"
    return ArgumentError("conv2d has no gradient yet, but a tensor requires one", legal="tensors without requires_grad", hint=hint)


# ---------------------------------------------------------------------------------------------- PyTorch's operator


# torch.compile traces this function, so it uses no attrs classes, caches or locks.


def _through_torch(x: Any, w: Any, stride: Any, padding: Any, dilation: Any) -> Any:
    """Call the operator."""
    import torch

    _operator()
    pairs = [list(given) if isinstance(given, (tuple, list)) else [given, given] for given in (stride, padding, dilation)]
    return torch.ops.fireiron.conv2d(x, w, *pairs)


@operators.constant
def _operator() -> bool:
    with conv2d.lock:
        register_operator()
    return True


@functools.cache
def register_operator() -> Any:
    """Register and return the operator."""
    import torch

    from fireiron.conv2d_kernels import sizes_of

    def convolve(x: Any, w: Any, stride: Any, padding: Any, dilation: Any) -> Any:
        return conv2d.launched(request(x, w, stride=stride, padding=padding, dilation=dilation))

    def shaped(x: Any, w: Any, stride: Any, padding: Any, dilation: Any) -> Any:
        sizes = sizes_of(x.shape, w.shape, options_of(stride, padding, dilation))
        return x.new_empty(sizes.result).to(memory_format=torch.channels_last)

    schema = "(Tensor x, Tensor w, int[] stride, int[] padding, int[] dilation) -> Tensor"
    operator = operators.define("conv2d", schema, convolve, shaped)
    operators.refuse_gradients(operator, lambda inputs: _without_gradient())
    return operator


__all__ = ["conv2d", "register_operator"]
