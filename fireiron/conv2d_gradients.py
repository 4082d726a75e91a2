"""The gradients of `fireiron.conv2d` with respect to the images and to the filters, each a call on arrays.

>>> import numpy
>>> g, w = numpy.ones((1, 8, 4, 4), "float16"), numpy.ones((8, 16, 3, 3), "float16")
>>> input_gradient(g, w, (4, 4), padding=1)[0, 0].astype(int).tolist()[0]
[32, 48, 48, 32]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

from fireiron.conv2d import Options, Pair, options_of, pair_of
from fireiron.front.call import Answer, Call, Request, takes

if TYPE_CHECKING:
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.tune.records import Choice
    from fireiron.values.machine import Architecture

ArrayT = TypeVar("ArrayT")


class GradientOptions(NamedTuple):
    """The options of a call: the sizes that the arrays do not determine, and the options of the convolution.

    `sizes` are the rows and columns of the images for their gradient, and of the filters for theirs.
    """

    sizes: Pair
    options: Options
    groups: int = 1


def request(
    grad: Any,
    other: Any,
    sizes: Pair,
    *,
    stride: int | Pair = 1,
    padding: int | Pair = 0,
    dilation: int | Pair = 1,
    groups: int = 1,
    out: Any = None,
    arch: Architecture | str | None = None,
) -> Request:
    """Return the request of a call."""
    options = GradientOptions(pair_of("sizes", sizes, 1), options_of(stride, padding, dilation), groups)
    return Request((grad, other), out, options, arch, None)


class _Gradient(Call):
    """A gradient of a convolution."""

    arrays: ClassVar[int] = 2

    def __call__(
        self,
        grad: ArrayT,
        other: ArrayT,
        sizes: Pair,
        *,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        out: ArrayT | None = None,
        arch: Architecture | str | None = None,
    ) -> ArrayT:
        """Return the gradient for the gradient of the result of `fireiron.conv2d`.

        Args:
            grad: (images, outputs, rows, columns), the gradient of the result; float16 or bfloat16.
            other: the filters for the gradient of the images, and the images for that of the filters.
            sizes: rows and columns of the images, or of the filters.
            stride, padding, dilation, groups: those of the convolution.
            out: the array for the gradient; the default is a new array with contiguous channels.
            arch: the target; the default is that of the GPU (sm_90 in the simulator).

        Raises: ArgumentError for incompatible arrays and illegal options.
        """
        result: ArrayT = self.launched(
            request(grad, other, sizes, stride=stride, padding=padding, dilation=dilation, groups=groups, out=out, arch=arch)
        )
        return result

    @takes(request)
    def choice(self, request: Request) -> Choice:
        """Return the choice for these arrays, and the reason; launch nothing."""
        return self.answer(request).choice

    @takes(request)
    def kernel(self, request: Request) -> CompiledKernel:
        """Return the kernel for these arrays; of several, the first."""
        return self.answer(request).kernel

    def key_of_options(self, request: Request) -> Any:
        """Return the key of the options."""
        return request.options, request.arch


class _InputGradient(_Gradient):
    """The gradient of the images: `input_gradient(grad, w, (rows, columns))`."""

    def new_answer(self, request: Request) -> Answer:
        """Return the answer for a new request."""
        from fireiron.conv2d_gradient_kernels import answer_for_images

        return answer_for_images(request)


class _WeightGradient(_Gradient):
    """The gradient of the filters: `weight_gradient(grad, x, (rows, columns))`."""

    def new_answer(self, request: Request) -> Answer:
        """Return the answer for a new request."""
        from fireiron.conv2d_gradient_kernels import answer_for_filters

        return answer_for_filters(request)


class _BothGradients(Call):
    """The gradients of images and of filters as one call of (grad, x, w), so that a backward pass is one replay."""

    arrays: ClassVar[int] = 3

    def key_of_options(self, request: Request) -> Any:
        """Return the options of the convolution: strides, padding, dilation and groups."""
        return request.options

    def run(self, request: Request, stream: Any) -> tuple[Any, Any]:
        """Return both gradients without a replay."""
        grad, x, w = request.inputs
        *pairs, groups = request.options
        of_images = Request((grad, w), None, GradientOptions(tuple(x.shape[2:]), Options(*pairs), groups), request.arch)
        of_filters = Request((grad, x), None, GradientOptions(tuple(w.shape[2:]), Options(*pairs), groups), request.arch)
        return input_gradient.run(of_images, stream), weight_gradient.run(of_filters, stream)


input_gradient: Final = _InputGradient()
"""The gradient of the images of a convolution."""

weight_gradient: Final = _WeightGradient()
"""The gradient of the filters of a convolution."""

both_gradients: Final = _BothGradients()
"""The gradients of the images and of the filters of a convolution."""

__all__ = ["GradientOptions", "both_gradients", "input_gradient", "request", "weight_gradient"]
