"""Find the kernels for the gradients of `fireiron.conv2d`.

The gradient of images has one kernel, or with a stride one kernel per phase (`strategies/convolution_input_gradient.py`). The gradient of
filters has a kernel for parts of the pixels, and a kernel that adds them (`strategies/convolution_weight_gradient.py`).
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.batches import Places, Shape, new_like, packed, viewed
from fireiron.conv2d_copies import ChannelsCopy, RowCopy, channels_copy, is_copied_by_rows, options_by_rows, row_copy
from fireiron.conv2d_depthwise import FEWEST_ROWS, orders_of_rows, rows_at_once
from fireiron.conv2d_kernels import CHANNELS, OLDER, TYPES, channels_first, is_packed
from fireiron.copies import LIBRARIES, library, store, zeroed
from fireiron.errors import ArgumentError, FireironError
from fireiron.front.arrays import ALIGNMENT, Operand, operands_of, refuse_places
from fireiron.front.call import Answer, Empty, Request
from fireiron.front.place import Place, fits
from fireiron.frozen import frozen
from fireiron.gpu.kernel import CompiledKernel
from fireiron.language.library import LIBRARY, find
from fireiron.language.strategy import Strategy
from fireiron.spec import Spec
from fireiron.tune.records import Choice
from fireiron.values.machine import WARPGROUP_ARCHITECTURE, DType, as_dtype, float32
from fireiron.values.strides import Strides

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.conv2d import Options, Pair

OLDEST: Final = 80
"""The first compute capability with kernels for gradients."""


@frozen
class Sizes:
    """The sizes of a convolution: images, channels, output channels; rows and columns of an image, of the filter, and of the result."""

    images: int
    channels: int
    outputs: int
    image: Pair
    taps: Pair
    pixels: Pair
    groups: int = 1

    @property
    def channels_of_filters(self) -> int:
        """The channels of a filter: one if the convolution is depthwise."""
        return 1 if self.groups > 1 else self.channels


# ---------------------------------------------------------------------------------------------- arrays


def _given(request: Request, names: Sequence[str]) -> dict[str, Operand]:
    """Return the properties of the arrays by name. Raises: ArgumentError for arrays of several libraries or other types."""
    arrays = dict(zip((*names, "out"), (*request.inputs, *(() if request.out is None else (request.out,))), strict=False))
    kinds = {name: library(array) for name, array in arrays.items()}
    wrong = next((name for name, kind in kinds.items() if kind not in LIBRARIES or kind != kinds["grad"]), None)
    if wrong is not None:
        legal = "NumPy arrays, CuPy arrays or PyTorch tensors, all of one library"
        raise ArgumentError(f"gradients of conv2d: {wrong} is not an array of the same library as grad", got=kinds, legal=legal)
    given = operands_of(arrays)
    for name, operand in given.items():
        if operand.dtype not in TYPES or operand.dtype != given["grad"].dtype:
            got = {one: array.dtype for one, array in given.items()}
            raise ArgumentError(f"gradients of conv2d: no kernel supports the element type of {name}", got=got, legal=f"one of {TYPES}")
        if len(operand.shape) != 4:
            raise ArgumentError(f"gradients of conv2d: {name} must have four dimensions", got=operand.shape)
    refuse_places(given, "gradients of conv2d: ", "all on one GPU, or all NumPy")
    return given


def _check_shape(name: str, got: Shape, legal: Shape) -> None:
    """Refuse an array whose shape differs from that of the convolution."""
    if got != legal:
        raise ArgumentError(f"gradients of conv2d: {name} has another shape than the convolution", got=got, legal=legal)


def _require_depthwise(groups: int, outputs: int, channels: int) -> None:
    """Refuse groups other than one, and those of a depthwise convolution; `channels` are those of a filter."""
    if groups > 1 and (outputs, channels) != (groups, 1):
        got = f"groups={groups}, {outputs} outputs, filters of {channels} channels"
        raise ArgumentError("gradients of conv2d: no kernel computes these groups", got=got, legal="groups=1; groups=channels=outputs")


def _pixels(image: Sequence[int], taps: Sequence[int], options: Options) -> Pair:
    """Return the rows and columns of the result of a convolution."""
    rows, columns = (
        (size + 2 * padding - dilation * (count - 1) - 1) // stride + 1
        for size, count, stride, padding, dilation in zip(image, taps, *options, strict=True)
    )
    return rows, columns


def _pair(operand: Operand) -> Pair:
    """Return the rows and columns of an array."""
    return operand.shape[2], operand.shape[3]


def _rounded(channels: int) -> int:
    """Return a number of channels that kernels read in place."""
    return -(-channels // CHANNELS) * CHANNELS


Read = bool | ChannelsCopy
"""Whether kernels read an array in place; the kernel that copies it, or False if its library does."""


def _read(array: Any, how: Read, outer: int, channels: int) -> Any:
    """Return an array (n, c, h, w), or a packed copy of it, padded with zeros to `outer` x `channels`."""
    if isinstance(how, ChannelsCopy):
        return how(array)
    if how:
        return array
    rows, own, *pixels = array.shape
    shape = (outer, *pixels, channels)
    new = new_like(array, shape, _dtype(array))
    target = viewed(zeroed(new) if (rows, own) != (outer, channels) else new, channels_first(shape, packed(shape)))
    store(target[:rows, :own], array)
    return target


def _how(operand: Operand, is_whole: bool, place: Place) -> Read:
    """Return how kernels read an array; `is_whole` states that no channels are added."""
    if not is_whole:
        return False
    return True if is_packed(operand) else channels_copy(operand, place) or False


def _dtype(array: Any) -> DType:
    return as_dtype(next(iter(operands_of({"": array}).values())).dtype)


def _new(like: Any, shape: Shape) -> Any:
    """Return a new array (n, c, h, w) with contiguous channels."""
    images, channels, *pixels = shape
    last = (images, *pixels, channels)
    new = new_like(like, (math.prod(shape),), _dtype(like))
    return viewed(new, channels_first(last, packed(last)))


def _given_out(result: Any, out: Any, shape: Shape) -> Any:
    """Return a result, or `out` after the result is copied to it; without the rows, columns and channels by which it was padded."""
    part = result[tuple(slice(size) for size in shape)]
    if out is None and tuple(result.shape) == shape:
        return result
    target = _new(result, shape) if out is None else out
    store(target, part)
    return target


# ---------------------------------------------------------------------------------------------- images


@frozen
class Phase:
    """The kernel of a phase of the images, and the views of the arrays that it takes.

    `filters` is the view of the filters from the first tap on, and `pixels` that of the result from the first pixel on.
    """

    kernel: CompiledKernel
    choice: Choice
    grad: Places
    first_tap: Pair
    filters: Places
    first_pixel: Pair
    pixels: Places

    def __call__(self, grad: Any, w: Any, target: Any, stream: Any) -> None:
        """Launch the kernel."""
        (tap, other_tap), (row, column) = self.first_tap, self.first_pixel
        filters = viewed(w[:, :, tap:, other_tap:], self.filters)
        self.kernel(viewed(grad, self.grad), filters, out=viewed(target[:, :, row:, column:], self.pixels), stream=stream)


@frozen
class RowsPhase:
    """The kernel of a phase of a depthwise convolution that loads each row of dY once: an operand for each row of taps.

    `filters` is the view of a row of taps of the filters, and `rows` are the numbers of these rows. A thread loads `at_once` rows of dY
    together. The other fields are those of `Phase`.
    """

    kernel: CompiledKernel
    choice: Choice
    grad: Places
    rows: tuple[int, ...]
    at_once: int
    first_column: int
    filters: Places
    first_pixel: Pair
    pixels: Places

    def __call__(self, grad: Any, w: Any, target: Any, stream: Any) -> None:
        """Launch the kernel."""
        row, column = self.first_pixel
        filters = [viewed(w[:, :, tap:, self.first_column :], self.filters) for tap in self.rows]
        grads = [viewed(grad, self.grad)] * (len(self.rows) - 1 + self.at_once)
        self.kernel(*grads, *filters, out=rows_at_once(target[:, :, row:, column:], self.pixels, self.at_once), stream=stream)


@frozen
class ZeroPixels:
    """The kernel that sets the pixels of phases without taps to zero, from a first pixel on."""

    kernel: CompiledKernel
    first_pixel: Pair
    pixels: Places

    def __call__(self, target: Any, stream: Any) -> None:
        """Launch the kernel."""
        row, column = self.first_pixel
        self.kernel(out=viewed(target[:, :, row:, column:], self.pixels), stream=stream)


@frozen
class BoundInputGradient:
    """The kernels of the phases of a gradient of images.

    `read` states whether dY and the filters are read in place. `sizes` are padded: channels to those of a kernel, and images to a multiple
    of the stride. `zeros` set the pixels that no tap reads to zero.
    """

    phases: tuple[Phase | RowsPhase, ...]
    read: tuple[Read, Read]
    sizes: Sizes
    result: Shape
    zeros: tuple[ZeroPixels, ...]
    is_direct: bool

    @property
    def kernel(self) -> CompiledKernel:
        """The kernel of the first phase."""
        return self.phases[0].kernel

    @property
    def choice(self) -> Choice:
        """The choice of the first phase."""
        return self.phases[0].choice

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the gradient."""
        sizes = self.sizes
        grad = _read(inputs[0], self.read[0], sizes.images, sizes.outputs)
        w = _read(inputs[1], self.read[1], sizes.outputs, sizes.channels_of_filters)
        whole = (sizes.images, sizes.channels, *sizes.image)
        target = out if self.is_direct and out is not None else _new(grad, whole)
        for zero in self.zeros:
            zero(target, stream)
        for phase in self.phases:
            phase(grad, w, target, stream)
        return target if target is out else _given_out(target, out, self.result)


def answer_for_images(request: Request) -> Answer:
    """Return the answer for the gradient of images."""
    given, (image, options, groups) = _given(request, ("grad", "w")), request.options
    grad, w = given["grad"], given["w"]
    _require_depthwise(groups, w.shape[0], w.shape[1])
    result = (grad.shape[0], w.shape[1] * groups, *image)
    _check_shape("grad", grad.shape, (grad.shape[0], w.shape[0], *_pixels(image, w.shape[2:], options)))
    if "out" in given:
        _check_shape("out", given["out"].shape, result)
    if 0 in (*grad.shape, *w.shape):
        return Empty("gradients of conv2d", ((result, as_dtype(grad.dtype), 0.0),), unchosen="nothing is chosen")
    outputs, channels = (groups, groups) if groups > 1 else (_rounded(w.shape[0]), _rounded(w.shape[1]))
    padded = tuple(-(-size // step) * step for size, step in zip(image, options.stride, strict=True))
    sizes = Sizes(grad.shape[0], channels, outputs, (padded[0], padded[1]), _pair(w), _pair(grad), groups)
    place = Place.of(grad.device, request.arch, None)
    _check_target(place)
    read = _how(grad, outputs == w.shape[0], place), _how(w, (outputs, sizes.channels_of_filters) == w.shape[:2], place)
    is_whole = (sizes.channels, *sizes.image) == result[1:]
    is_direct = is_whole and "out" in given and is_packed(given["out"])
    aligned = {
        name: given[own].align for name, own, used in zip("GWD", ("grad", "w", "out"), (*read, is_direct), strict=True) if used is True
    }
    parts = _phases(sizes, options)
    kernel_of = _depthwise_phase if groups > 1 else _phase
    phases = tuple(kernel_of(part, sizes, options, as_dtype(grad.dtype), aligned, place) for part in parts if math.prod(part.taps))
    if not phases:
        return Empty("gradients of conv2d", ((result, as_dtype(grad.dtype), 0.0),), unchosen="no pixel has a tap")
    zeros = tuple(_zeros(parts, sizes, options, as_dtype(grad.dtype), aligned.get("D"), place))
    return BoundInputGradient(phases, read, sizes, result, zeros, is_direct)


def _check_target(place: Place) -> None:
    """Refuse targets without kernels."""
    if place.architecture.capability < OLDEST:
        hint = "call under torch.no_grad(), or with detached tensors"
        asked = "conv2d: no kernel computes gradients on this target"
        raise ArgumentError(asked, got=place.architecture.name, legal=f"sm_{OLDEST} or newer", hint=hint)


@frozen
class PhaseSizes:
    """A phase: its number along rows and columns, its pixels, the first taps and their number, and the pixels of dY that they read."""

    number: Pair
    pixels: Pair
    first: Pair
    taps: Pair
    shift: Pair
    step: Pair


def _phases(sizes: Sizes, options: Options) -> list[PhaseSizes]:
    """Return the phases of images."""
    module = _strategies("convolution_input_gradient")
    along = [list(enumerate(module.phases(*one))) for one in zip(sizes.image, sizes.taps, *options, strict=True)]
    return [
        PhaseSizes((row, column), *zip(rows, columns, strict=True))
        for (row, rows), (column, columns) in itertools.product(*along)
    ]  # fmt: skip


def _strategies(name: str) -> Any:
    return importlib.import_module(f"{LIBRARY}.{name}")


def _zeros(
    parts: Sequence[PhaseSizes], sizes: Sizes, options: Options, dtype: DType, align: int | None, place: Place
) -> Iterator[ZeroPixels]:
    """Yield the kernels for phases without taps; one for all columns of a row that no tap reads."""
    (row_step, column_step), (_, columns) = options.stride, sizes.image
    whole_rows = {part.number[0]: part for part in parts if part.taps[0] == 0}
    rest = [part for part in parts if part.taps[0] and not part.taps[1]]
    module = _strategies("zero_pixels")
    for part in (*whole_rows.values(), *rest):
        is_whole = part.taps[0] == 0
        row = row_step * columns * sizes.channels
        shape = sizes.images * part.pixels[0], *((1, columns * sizes.channels) if is_whole else (part.pixels[1], sizes.channels))
        steps = row, columns * sizes.channels if is_whole else column_step * sizes.channels, 1
        order = Strides(**dict(zip("uve", steps, strict=True))).aligned(math.gcd(ALIGNMENT, sizes.channels * dtype.bytes))
        spec = module.spec(*shape, dtype=dtype, Y=order)
        program = module.strategy.with_(**module.values(spec))(spec).program(place.architecture)
        if align is not None and not fits({"Y": align}, program):
            asked = "gradients of conv2d: out is not aligned"
            raise ArgumentError(asked, got=f"{align} bytes", legal="16 bytes", hint="pass a new array, or omit out=")
        place.prove(program)
        yield ZeroPixels(CompiledKernel(program), (part.number[0], 0 if is_whole else part.number[1]), (shape, steps))


def _phase(part: PhaseSizes, sizes: Sizes, options: Options, dtype: DType, aligned: Mapping[str, int], place: Place) -> Phase:
    """Return the kernel of a phase."""
    module = _strategies("convolution_input_gradient")
    (row_stride, column_stride), strided = options.stride, options.stride != (1, 1)
    columns = sizes.image[1]
    joined = module.joins(part.pixels, sizes.pixels, part.taps, part.shift)
    pixels = sizes.images * math.prod(part.pixels)
    grad: Shape = (pixels, sizes.outputs) if joined else (sizes.images, *sizes.pixels, sizes.outputs)
    names, filters = _filters(part, sizes, [module.tap_step(*one) for one in zip(options.stride, options.dilation, strict=True)])
    if strided:
        target: Places = (
            (sizes.images * part.pixels[0], part.pixels[1], sizes.channels),
            (row_stride * columns * sizes.channels, column_stride * sizes.channels, 1),
        )
    else:
        target = (pixels, sizes.channels), (sizes.channels, 1)
    orders = {"W": Strides(**dict(zip(names, filters[1], strict=True)))}
    orders |= {"D": Strides(**dict(zip("uvc", target[1], strict=True)))} if strided else {}

    def spec(channels_first: bool) -> Spec:
        problem: Spec = module.phase(
            sizes.images, part.pixels, sizes.pixels, part.taps, part.shift, part.step, sizes.outputs, sizes.channels,
            strided=strided, channels_first=channels_first, dtype=dtype, **orders,
        )  # fmt: skip
        return problem

    def candidates() -> Iterator[tuple[str, Strategy, Spec, int]]:
        if place.architecture.name == WARPGROUP_ARCHITECTURE:
            kernel = module.strided if strided else module.strategy
            for first, values in module.tiles(pixels, sizes.channels, sizes.outputs, math.prod(part.taps), strided):
                yield f"convolution_input_gradient{_text(values)}", kernel.with_(**values), spec(first), int(first)
        for name in OLDER:
            yield name, find(name).strategy, spec(False), 0

    key = (attrs.astuple(part), attrs.astuple(sizes), *options, dtype.name, dict(aligned))
    choose = functools.partial(_chosen, candidates, dtype, aligned, place)
    choice, first = place.chosen("conv2d_input_gradient", key, choose)
    target = tuple(one[::-1] for one in target) if first and not strided else target  # type: ignore[assignment]
    first_tap = part.first if math.prod(part.taps) else (0, 0)
    return Phase(CompiledKernel(choice.program), choice, (grad, packed(grad)), first_tap, filters, part.number, target)


def _depthwise_phase(
    part: PhaseSizes, sizes: Sizes, options: Options, dtype: DType, aligned: Mapping[str, int], place: Place
) -> Phase | RowsPhase:
    """Return the kernel of a phase of a depthwise convolution."""
    module, forward, channels = _strategies("_depthwise_gradients"), _strategies("depthwise"), sizes.channels
    steps = [_strategies("convolution_input_gradient").tap_step(*one) for one in zip(options.stride, options.dilation, strict=True)]
    filters: Places = (channels, *part.taps), (math.prod(sizes.taps), steps[0] * sizes.taps[1], steps[1])
    grad: Shape = (sizes.images, *sizes.pixels, channels)
    target = _pixels_of(part, sizes, options, 0)
    orders = {"W": Strides(**dict(zip("crs", filters[1], strict=True))).aligned(dtype.bytes)}  # it starts at the first tap of the phase
    orders["D"] = Strides(**dict(zip("bpqc", target[1], strict=True))).aligned(math.gcd(ALIGNMENT, channels * dtype.bytes))
    spec = module.images(
        sizes.images, part.pixels, sizes.pixels, channels, part.taps, part.shift, part.step, dtype=dtype, **orders
    )  # fmt: skip
    by_rows, pixels = _by_rows(part, sizes, options, dtype)

    def candidates() -> Iterator[tuple[str, Strategy, Spec, int]]:
        yield from by_rows
        for values in forward.ranked(part.pixels, channels):
            yield f"depthwise{_text(values)}", forward.strategy.with_(**values), spec, 0
        yield "naive", find("naive").strategy, spec, 0

    key = (attrs.astuple(part), attrs.astuple(sizes), *options, dtype.name, dict(aligned))
    choose = functools.partial(_chosen, candidates, dtype, aligned, place)
    choice, together = place.chosen("conv2d_depthwise_input_gradient", key, choose)
    kernel, (first_row, first_column) = CompiledKernel(choice.program), part.first
    if not together:
        return Phase(kernel, choice, (grad, packed(grad)), part.first, filters, part.number, target)
    rows = tuple(first_row + number * steps[0] for number in range(part.taps[0]))
    columns: Places = filters[0][::2], filters[1][::2]
    return RowsPhase(kernel, choice, (grad, packed(grad)), rows, together, first_column, columns, part.number, pixels)


def _pixels_of(part: PhaseSizes, sizes: Sizes, options: Options, parts: int) -> Places:
    """Return the view of the result of a phase: images, rows, columns, channels. The rows are divided into `parts`, if it is not 0."""
    (row_stride, column_stride), (rows, columns) = options.stride, sizes.image
    row, count = row_stride * columns * sizes.channels, part.pixels[0] // max(parts, 1)
    outer: Places = ((parts, count), (count * row, row)) if parts else ((count,), (row,))
    inner = (part.pixels[1], sizes.channels), (column_stride * sizes.channels, 1)
    return (sizes.images, *outer[0], *inner[0]), (rows * columns * sizes.channels, *outer[1], *inner[1])


def _by_rows(part: PhaseSizes, sizes: Sizes, options: Options, dtype: DType) -> tuple[list[tuple[str, Strategy, Spec, int]], Places]:
    """Return the candidates that load each row of dY once, and the view of the result; none if the rows of taps are not adjacent.

    The number of a candidate is that of the rows that a thread loads together.
    """
    module, channels = _strategies("_depthwise_rows"), sizes.channels
    rows = module.rows_of_result(sizes.images, part.pixels, channels, part.taps)
    pixels = _pixels_of(part, sizes, options, rows.parts)
    if part.taps[0] < FEWEST_ROWS or part.step[0] != 1 or not module.suits(part.pixels[0], part.taps):
        return [], pixels
    step = _strategies("convolution_input_gradient").tap_step(options.stride[1], options.dilation[1])
    taps = Strides(c=math.prod(sizes.taps), s=step).aligned(dtype.bytes)
    orders = dict.fromkeys((f"W{row}" for row in range(part.taps[0])), taps)
    align = math.gcd(ALIGNMENT, channels * dtype.bytes)
    orders |= orders_of_rows(module, "D", pixels[1], rows.together, align)
    sizes_of_spec = sizes.images, part.pixels, sizes.pixels, channels, part.taps, part.shift, part.step, rows
    spec = module.images(*sizes_of_spec, dtype=dtype, **orders)
    return [("depthwise rows", module.by_rows(channels, part.taps, rows), spec, rows.together)], pixels


def _filters(part: PhaseSizes, sizes: Sizes, step: Sequence[int]) -> tuple[str, Places]:
    """Return the dimensions of the filters of a phase, and their view: taps, output channels, channels."""
    rows, columns = sizes.taps
    steps = (step[0] * columns * sizes.channels, step[1] * sizes.channels)
    taps = [(name, count, by) for name, count, by in zip("rs", part.taps, steps, strict=True) if count > 1]
    own = [*taps, ("o" if taps else "k", sizes.outputs, rows * columns * sizes.channels), ("c", sizes.channels, 1)]
    names, shape, strides = zip(*own, strict=True)
    return "".join(names), (shape, strides)


def _text(values: Mapping[str, int]) -> str:
    return "".join(f" {name}={value}" for name, value in values.items())


def _chosen(candidates: Any, dtype: DType, aligned: Mapping[str, int], place: Place) -> tuple[Choice, int]:
    """Return the first legal candidate, probably the fastest one, and its form."""
    refusals: list[str] = []
    for text, strategy, spec, form in candidates():
        try:
            program = strategy(spec).program(place.architecture)
            place.prove(program)
        except FireironError as error:
            refusals.append(f"{text}: {error.headline}")
            continue
        is_hopper = text.startswith("convolution")
        if not fits(aligned, program) or (is_hopper and not program.sequential.rings):
            refusals.append(f"{text}: the arrays have another alignment, or threads would copy")
            continue
        refused = place.refusal(CompiledKernel(program))
        if refused is not None:
            raise refused
        why = f"no record applies; the least estimated time for {dtype} on {place.architecture}: {text}"
        return Choice(None, False, "; ".join((why, *refusals)), program), form
    asked = f"conv2d: no strategy of the library computes this gradient on {place.architecture}"
    raise ArgumentError(asked, got="; ".join(refusals))


# ---------------------------------------------------------------------------------------------- filters


@frozen
class BoundWeightGradient:
    """The kernel of a gradient of filters, and the kernel that adds its parts if there are several.

    `read` states whether dY and the images are read in place; `sizes` have padded channels.
    """

    kernel: CompiledKernel
    choice: Choice
    sum_kernel: CompiledKernel | None
    views: tuple[Places, Places]
    read: tuple[Read, Read]
    sizes: Sizes
    result: Shape
    is_direct: bool

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the gradient."""
        sizes = self.sizes
        grad = _read(inputs[0], self.read[0], sizes.images, sizes.outputs)
        x = _read(inputs[1], self.read[1], sizes.images, sizes.channels)
        target = out if self.is_direct and out is not None else _new(grad, (sizes.outputs, sizes.channels, *sizes.taps))
        terms = math.prod(sizes.taps) * sizes.channels
        matrix = viewed(target, ((sizes.outputs, terms), (terms, 1)))
        arrays = [viewed(array, places) for array, places in zip((grad, x), self.views, strict=True)]
        if self.sum_kernel is None:
            self.kernel(*arrays, out=matrix, stream=stream)
        else:
            self.sum_kernel(self.kernel(*arrays, stream=stream), out=matrix, stream=stream)
        return target if target is out else _given_out(target, out, self.result)


def answer_for_filters(request: Request) -> Answer:
    """Return the answer for the gradient of filters."""
    given, (taps, options, groups) = _given(request, ("grad", "x")), request.options
    grad, x = given["grad"], given["x"]
    _require_depthwise(groups, grad.shape[1], x.shape[1] // groups)
    result = (grad.shape[1], x.shape[1] // groups, *taps)
    _check_shape("grad", grad.shape, (x.shape[0], grad.shape[1], *_pixels(x.shape[2:], taps, options)))
    if "out" in given:
        _check_shape("out", given["out"].shape, result)
    if 0 in (*grad.shape, *x.shape):
        return Empty("gradients of conv2d", ((result, as_dtype(grad.dtype), 0.0),), unchosen="nothing is chosen")
    place = Place.of(grad.device, request.arch, None)
    _check_target(place)
    if groups > 1:
        return _depthwise_filters(given, taps, options, place)
    if is_copied_by_rows(x, x.shape[1]):
        return _filters_by_rows(request, given, result, place)
    outputs, channels = _rounded(grad.shape[1]), _rounded(x.shape[1])
    sizes = Sizes(x.shape[0], channels, outputs, _pair(x), taps, _pair(grad))
    read = _how(grad, outputs == grad.shape[1], place), _how(x, channels == x.shape[1], place)
    is_direct = (outputs, channels) == result[:2] and "out" in given and is_packed(given["out"])
    arrays = zip("GXD", ("grad", "x", "out"), (*read, is_direct), strict=True)
    aligned = {name: given[own].align for name, own, used in arrays if used is True}
    return _bound_filters(sizes, options, as_dtype(grad.dtype), aligned, place, (read, result, is_direct))


@frozen
class BoundDepthwiseFilters:
    """The kernel of a gradient of filters of a depthwise convolution, for parts of the pixels, and the kernel that adds the parts.

    If `at_once` is not 0, the kernel loads each row of the images once, this number together. It has an output for each row of taps.
    """

    kernel: CompiledKernel
    choice: Choice
    sum_kernel: CompiledKernel
    read: tuple[Read, Read]
    sizes: Sizes
    at_once: int
    is_direct: bool

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the gradient."""
        sizes = self.sizes
        grad, x = (_read(array, how, sizes.images, sizes.channels) for array, how in zip(inputs, self.read, strict=True))
        pixels: list[Shape] = [(sizes.images, *own, sizes.channels) for own in (sizes.pixels, sizes.image)]
        views = [viewed(array, (shape, packed(shape))) for array, shape in zip((grad, x), pixels, strict=True)]
        parts = self._parts(views, stream)
        result = (sizes.channels, 1, *sizes.taps)
        terms = math.prod(result)
        target = out if self.is_direct else _new(grad, result)
        shape = math.prod(parts.shape) // terms, 1, terms
        self.sum_kernel(viewed(parts, (shape, packed(shape))), out=viewed(target, ((1, terms), (terms, 1))), stream=stream)
        return target if target is out else _given_out(target, out, result)

    def _parts(self, views: Sequence[Any], stream: Any) -> Any:
        """Return the sums of all parts."""
        if not self.at_once:
            return self.kernel(*views, stream=stream)
        sizes, module = self.sizes, _strategies("_depthwise_rows")
        tiles = module.tiles(sizes.channels, sizes.taps, sizes.pixels[1])
        parts = new_like(views[0], (sizes.images, tiles, sizes.channels, *sizes.taps), float32)
        grads, images = ([view] * self.at_once for view in views)
        self.kernel(*grads, *images, out=tuple(parts[:, :, :, row] for row in range(sizes.taps[0])), stream=stream)
        return parts


def _depthwise_filters(given: Mapping[str, Operand], taps: Pair, options: Options, place: Place) -> BoundDepthwiseFilters:
    """Return the answer for the gradient of filters of a depthwise convolution."""
    grad, x, module = given["grad"], given["x"], _strategies("_depthwise_gradients")
    channels, dtype, rows = x.shape[1], as_dtype(grad.dtype), _strategies("_depthwise_rows")
    sizes = Sizes(x.shape[0], channels, channels, _pair(x), taps, _pair(grad), channels)
    spec = module.filters(sizes.images, sizes.image, sizes.pixels, channels, taps, *options, dtype=dtype)
    read = _how(grad, True, place), _how(x, True, place)
    aligned = {name: given[own].align for name, own, used in zip("GX", ("grad", "x"), read, strict=True) if used is True}
    height = sizes.image[0] + options.padding[0]

    def candidates() -> Iterator[tuple[str, Strategy, Spec, int]]:
        if taps[0] >= FEWEST_ROWS and options.stride == options.dilation == (1, 1):
            tiles = rows.tiles(channels, taps, sizes.pixels[1])
            order = Strides(n=math.prod((tiles, channels, *taps)), v=math.prod((channels, *taps)), c=math.prod(taps), s=1)
            orders = dict.fromkeys((f"D{row}" for row in range(taps[0])), order.aligned(float32.bytes))
            of_rows = rows.filters(sizes.images, sizes.image, sizes.pixels, channels, taps, options.padding, dtype=dtype, **orders)
            yield "depthwise rows", rows.by_columns(channels, taps, height), of_rows, rows.filter_rows(height, taps)
        yield "depthwise filters", module.by_columns(channels, taps), spec, 0
        yield "naive", find("naive").strategy, spec, 0

    key = (attrs.astuple(sizes), *options, dtype.name, dict(aligned))
    choose = functools.partial(_chosen, candidates, dtype, aligned, place)
    choice, at_once = place.chosen("conv2d_depthwise_weight_gradient", key, choose)
    tiles = rows.tiles(channels, taps, sizes.pixels[1]) if at_once else module.tiles(sizes.pixels[1])
    program = _sum_of_parts(1, channels * math.prod(taps), sizes.images * tiles, dtype, place)
    is_direct = "out" in given and is_packed(given["out"])
    return BoundDepthwiseFilters(CompiledKernel(choice.program), choice, CompiledKernel(program), read, sizes, at_once, is_direct)


def _sum_of_parts(rows: int, columns: int, parts: int, dtype: DType, place: Place) -> Program:
    """Return the kernel that adds the parts of a number of rows and columns."""
    many, adding, is_hopper = _strategies("_many_parts"), _strategies("add_parts"), place.architecture.name == WARPGROUP_ARCHITECTURE
    if parts >= many.FEWEST:
        bound: Strategy = many.adding(rows, columns, parts, dtype, is_hopper)
    else:
        whole = adding.spec(rows, columns, parts, dtype=dtype)
        bound = (adding.hopper if is_hopper else adding.strategy).with_(**adding.values(whole))(whole)
    program = bound.program(place.architecture)
    place.prove(program)
    return program


@frozen
class _ByRows:
    """A gradient of filters of few channels, from a copy of the images whose channels are the pixels of a row of the filter."""

    answer: BoundWeightGradient
    rows: RowCopy
    result: Shape

    @property
    def kernel(self) -> CompiledKernel:
        """The kernel for the copy."""
        return self.answer.kernel

    @property
    def choice(self) -> Choice:
        """The choice of the kernel, with its reason."""
        return self.answer.choice

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the gradient."""
        new = self.answer((inputs[0], self.rows(inputs[1])), None, stream)
        elements, (_, channels, rows, _) = self.rows.shape[3], self.result
        part = viewed(new, (self.result, (rows * elements, 1, elements, channels)))
        target = _new(inputs[0], self.result) if out is None else out
        store(target, part)
        return target


def _filters_by_rows(request: Request, given: Mapping[str, Operand], result: Shape, place: Place) -> _ByRows:
    """Return the answer for the gradient of filters of few channels."""
    taps, options, _ = request.options
    along = options.stride[1], options.padding[1], options.dilation[1]
    rows = row_copy(given["x"], taps[1], given["grad"].shape[3], along, place)
    inner = request._replace(
        inputs=(request.inputs[0], rows.new(request.inputs[1])), out=None,
        options=request.options._replace(sizes=(taps[0], 1), options=options_by_rows(options)),
    )  # fmt: skip
    answer = answer_for_filters(inner)
    assert isinstance(answer, BoundWeightGradient), answer
    return _ByRows(answer, rows, result)


def _bound_filters(
    sizes: Sizes, options: Options, dtype: DType, aligned: Mapping[str, int], place: Place, rest: tuple[Any, ...]
) -> BoundWeightGradient:
    """Return the kernels for a gradient of filters."""
    module, shapes = _strategies("convolution_weight_gradient"), _strategies("convolution")
    joined = shapes.joins(sizes.taps, options.stride, options.padding)
    terms, pixels = math.prod(sizes.taps) * sizes.channels, math.prod(sizes.pixels)

    def spec(parts: int) -> Spec:
        problem: Spec = module.images(
            sizes.images, sizes.image, sizes.channels, sizes.outputs, sizes.taps, *options, parts=parts, dtype=dtype
        )  # fmt: skip
        return problem

    def candidates() -> Iterator[tuple[str, Strategy, Spec, int]]:
        if place.architecture.name == WARPGROUP_ARCHITECTURE:
            for parts, values in module.ranked(sizes.images, pixels, sizes.outputs, sizes.channels, math.prod(sizes.taps), joined):
                kernel = module.strategy if parts > 1 else module.whole
                yield f"convolution_weight_gradient parts={parts}{_text(values)}", kernel.with_(**values), spec(parts), parts
        for name in OLDER:
            yield name, find(name).strategy, spec(1), 1

    key = (attrs.astuple(sizes), *options, dtype.name, dict(aligned))
    choose = functools.partial(_chosen, candidates, dtype, aligned, place)
    choice, parts = place.chosen("conv2d_weight_gradient", key, choose)
    sum_kernel = None
    if parts > 1:
        sum_kernel = CompiledKernel(_sum_of_parts(sizes.outputs, terms, parts, dtype, place))
    rows = sizes.images * pixels
    lead = (parts, rows // parts) if parts > 1 else (rows,)
    grad = (*lead, sizes.outputs)
    image = (*lead, sizes.channels) if joined else (sizes.images, *sizes.image, sizes.channels)
    views = (grad, packed(grad)), (image, packed(image))
    read, result, is_direct = rest
    return BoundWeightGradient(CompiledKernel(choice.program), choice, sum_kernel, views, read, sizes, result, is_direct)


__all__ = ["BoundDepthwiseFilters", "BoundInputGradient", "BoundWeightGradient", "answer_for_filters", "answer_for_images"]
