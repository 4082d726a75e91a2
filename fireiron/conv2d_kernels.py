"""Find the kernel for a call of `fireiron.conv2d`. It reads the arrays in place, or copies of them with contiguous channels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.batches import Places, Shape, new_like, packed, viewed
from fireiron.compiler import Program
from fireiron.conv2d_copies import ChannelsCopy, RowCopy, channels_copy, is_copied_by_rows, options_by_rows, row_copy
from fireiron.conv2d_depthwise import BoundRows, bound_by_rows, loads_rows_once
from fireiron.copies import LIBRARIES, copied, library, refuse_stream, store, zeroed
from fireiron.errors import ArgumentError, FireironError
from fireiron.front.arrays import Operand, operands_of, refuse_places
from fireiron.front.call import Answer, Copied, Empty, Request
from fireiron.front.place import Place, fits
from fireiron.frozen import frozen
from fireiron.gpu.kernel import CompiledKernel
from fireiron.language.library import find
from fireiron.spec import Spec
from fireiron.tune.records import Choice
from fireiron.tune.records.choosing import any_program
from fireiron.values.machine import WARPGROUP_ARCHITECTURE, DType, as_dtype

if TYPE_CHECKING:
    from fireiron.conv2d import CallOptions, Options

TYPES: Final = ("float16", "bfloat16")
"""Element types of images and filters."""

CHANNELS: Final = 16
"""Channels are a multiple of this number, K of one tensor-core MMA. Other images and filters are copied and padded with zeros."""

OPERANDS: Final = {"x": "X", "w": "W", "bias": "bias", "residual": "R", "out": "Y"}
"""The operands of the kernels by the names of arrays."""

OLDER: Final = ("hmma_ampere", "hmma_turing", "hmma_volta", "naive")
"""Strategies for targets without TMA, by preference."""


@frozen
class Sizes:
    """The sizes of a problem: images, channels, output channels; rows and columns of an image, of the filter, and of the result; groups."""

    images: int
    channels: int
    outputs: int
    image: tuple[int, int]
    taps: tuple[int, int]
    pixels: tuple[int, int]
    groups: int = 1

    @property
    def result(self) -> Shape:
        """The shape of the result."""
        return (self.images, self.outputs, *self.pixels)

    @property
    def rows(self) -> int:
        """The pixels of all images of the result."""
        return self.images * math.prod(self.pixels)


def sizes_of(x: Sequence[int], w: Sequence[int], options: Options, groups: int = 1) -> Sizes:
    """Return the sizes of a problem by the shapes of its arrays.

    Raises: an `ArgumentError` if the shapes are incompatible.
    """
    shapes = {"x": tuple(x), "w": tuple(w)}
    if len(x) != 4 or len(w) != 4:
        legal = "x (images, channels, rows, columns), w (outputs, channels / groups, rows, columns)"
        raise ArgumentError("conv2d: x and w must have four dimensions", got=shapes, legal=legal, hint="add dimensions of one element")
    if x[1] != w[1] * groups:
        legal = f"w has {x[1]} / {groups} channels" if groups > 1 else "w has all channels of x, without groups"
        raise ArgumentError("conv2d: x and w must have the same channels", got=shapes, legal=legal)
    if groups > 1 and not x[1] == w[0] == groups:
        hint = "one call per group; or torch.nn.functional.conv2d"
        got = f"groups={groups}, {x[1]} channels, {w[0]} outputs"
        raise ArgumentError("conv2d: no kernel computes these groups", got=got, legal="groups=1; groups=channels=outputs", hint=hint)
    pixels = [
        (size + 2 * padding - dilation * (taps - 1) - 1) // stride + 1
        for size, taps, stride, padding, dilation in zip(x[2:], w[2:], *options, strict=True)
    ]
    if 0 in w[2:] or any(size < 1 for size in pixels):
        got = f"x {shapes['x']}, w {shapes['w']}, padding {options.padding}, dilation {options.dilation}"
        raise ArgumentError("conv2d: the filter is larger than the padded image, or empty", got=got, hint="a larger padding")
    return Sizes(x[0], x[1], w[0], (x[2], x[3]), (w[2], w[3]), (pixels[0], pixels[1]), groups)


# ---------------------------------------------------------------------------------------------- storage of arrays


def channels_last(shape: Shape, steps: Shape) -> Places:
    """Return shape and strides of an array (n, c, h, w) as (n, h, w, c)."""
    return (shape[0], *shape[2:], shape[1]), (steps[0], *steps[2:], steps[1])


def channels_first(shape: Shape, steps: Shape) -> Places:
    """Return shape and strides of an array (n, h, w, c) as (n, c, h, w)."""
    return (shape[0], shape[3], *shape[1:3]), (steps[0], steps[3], *steps[1:3])


def is_packed(operand: Operand) -> bool:
    """Return whether the channels of an array (n, c, h, w) are contiguous, and pixels follow each other without gaps."""
    shape, steps = channels_last(*operand.places)
    return all(size == 1 or step == row for size, step, row in zip(shape, steps, packed(shape), strict=True))


def _packed_copy(array: Any, channels: int) -> Any:
    """Return a copy of an array (n, c, h, w) with contiguous channels, padded with zeros to `channels`."""
    images, own, *pixels = array.shape
    shape = (images, *pixels, channels)
    dtype = as_dtype(next(iter(operands_of({"": array}).values())).dtype)
    new = new_like(array, shape, dtype)
    target = viewed(zeroed(new) if own < channels else new, channels_first(shape, packed(shape)))
    store(target[:, :own], array)
    return target


@frozen
class BoundConvolution:
    """A kernel, and the views of the arrays of a call that it takes; `result` is the shape of the result."""

    kernel: CompiledKernel
    choice: Choice
    inputs: tuple[Places, ...]
    output: Places
    result: Places
    dtype: DType

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the result."""
        target = viewed(new_like(inputs[0], (math.prod(self.result[0]),), self.dtype), self.result) if out is None else out
        views = [viewed(array, places) for array, places in zip(inputs, self.inputs, strict=True)]
        self.kernel(*views, out=viewed(target, self.output), stream=stream)
        return target


@attrs.frozen(kw_only=True)
class _PackedArrays(Copied):
    """An answer that copies arrays to contiguous channels, those of images and filters padded with zeros to `channels`.

    `kernels` copy those at their places, and the library of the arrays the others.
    """

    channels: int
    kernels: Mapping[int, ChannelsCopy]

    def copies(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the inputs, with copies of those that no kernel reads."""
        return _packed_inputs(inputs, self.places, self.channels, self.kernels)


def _packed_inputs(
    inputs: Sequence[Any], places: frozenset[int], channels: int, kernels: Mapping[int, Callable[[Any], Any]]
) -> tuple[Any, ...]:
    """Return the inputs, with copies of those at `places`: images, filters, and further arrays of one or four dimensions."""

    def copy(place: int, array: Any) -> Any:
        if place in kernels:
            return kernels[place](array)
        is_padded = place < 2 and array.shape[1] > 1  # depthwise filters have one channel
        return copied(array) if len(array.shape) == 1 else _packed_copy(array, channels if is_padded else array.shape[1])

    return tuple(copy(place, array) if place in places else array for place, array in enumerate(inputs))


# ---------------------------------------------------------------------------------------------- from arrays to a kernel


def answer_to(request: Request) -> Answer:
    """Return the answer for a new request."""
    given = _operands(request)
    sizes = sizes_of(given["x"].shape, given["w"].shape, request.options.convolution, request.options.groups)
    _check(given, sizes)
    dtype = as_dtype(given["x"].dtype)
    if 0 in (sizes.rows, sizes.channels, sizes.outputs):
        if request.options.names and 0 not in (sizes.rows, sizes.outputs):
            raise ArgumentError("conv2d: x has no channels, and a bias or a residual is added", got=given["x"].shape, legal="1 channel")
        return Empty("conv2d", ((sizes.result, dtype, 0.0),), unchosen="nothing is chosen")
    if sizes.groups == 1 and all(is_copied_by_rows(given[name], sizes.channels) for name in "xw"):
        return _by_rows(request, given, sizes)
    channels = -(-sizes.channels // CHANNELS) * CHANNELS if sizes.groups == 1 else sizes.channels
    wider = channels > sizes.channels
    names = ("x", "w", *request.options.names)
    places = frozenset(place for place, name in enumerate(names) if (wider and place < 2) or not _is_read(given[name]))
    is_direct = "out" not in given or is_packed(given["out"])
    if not places and is_direct:
        return _bound(request, given, sizes)
    kernels = {} if wider else _copies_by_kernels(given, names, places, request)
    copies = _packed_inputs(request.inputs, places, channels, {place: kernel.new for place, kernel in kernels.items()})
    inner = request._replace(inputs=copies, out=request.out if is_direct else None)
    answer = _bound(inner, _operands(inner), attrs.evolve(sizes, channels=channels))
    return _PackedArrays("conv2d", answer, places, not is_direct, channels=channels, kernels=kernels)


def _copies_by_kernels(
    given: Mapping[str, Operand], names: Sequence[str], places: frozenset[int], request: Request
) -> dict[int, ChannelsCopy]:
    """Return the kernels that copy arrays at `places`, if they can."""
    place = Place.of(given["x"].device, request.arch, request.require_record)
    wide = [number for number in places if len(given[names[number]].shape) == 4]
    kernels = {number: channels_copy(given[names[number]], place) for number in wide}
    return {number: kernel for number, kernel in kernels.items() if kernel is not None}


@frozen
class _ByRows:
    """An answer that copies rows of images and filters of few channels by kernels, and further arrays at `places`.

    If `stored`, no kernel can write the given output, so a new result is copied to it.
    """

    answer: BoundConvolution | BoundRows
    rows: tuple[RowCopy, RowCopy]
    places: frozenset[int]
    stored: bool

    @property
    def kernel(self) -> CompiledKernel:
        """The kernel for the copies."""
        return self.answer.kernel

    @property
    def choice(self) -> Choice:
        """The choice of the kernel, with its reason."""
        return self.answer.choice

    def __call__(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """Return the result."""
        refuse_stream("conv2d", "arrays are copied", stream)
        further = _packed_inputs(inputs, self.places, 1, {})[2:]
        copies = [copy(array) for copy, array in zip(self.rows, inputs[:2], strict=True)]
        result = self.answer((*copies, *further), None if self.stored else out, None)
        if self.stored:
            store(out, result)
        return out if self.stored else result


def _by_rows(request: Request, given: Mapping[str, Operand], sizes: Sizes) -> _ByRows:
    """Return the answer for few channels: the pixels of a row of the filter become channels."""
    place, options = Place.of(given["x"].device, request.arch, request.require_record), request.options.convolution
    along = options.stride[1], options.padding[1], options.dilation[1]
    rows = row_copy(given["x"], sizes.taps[1], sizes.pixels[1], along, place), row_copy(given["w"], sizes.taps[1], 1, (1, 0, 1), place)
    places = frozenset(place for place, name in enumerate(request.options.names, 2) if not _is_read(given[name]))
    stored = "out" in given and not is_packed(given["out"])
    copies = *(copy.new(array) for copy, array in zip(rows, request.inputs[:2], strict=True)), *request.inputs[2:]
    inner = request._replace(
        inputs=copies, out=None if stored else request.out, options=request.options._replace(convolution=options_by_rows(options))
    )
    image = sizes.image[0], sizes.pixels[1]
    by_rows = attrs.evolve(sizes, channels=rows[0].shape[3], image=image, taps=(sizes.taps[0], 1))
    return _ByRows(_bound(inner, _operands(inner), by_rows), rows, places, stored)


def _is_read(operand: Operand) -> bool:
    """Return whether kernels read an array in place."""
    return operand.steps == (1,) if len(operand.shape) == 1 else is_packed(operand)


def _operands(request: Request) -> dict[str, Operand]:
    """Return the properties of the arrays by name."""
    arrays = dict(zip(("x", "w", *request.options.names), request.inputs, strict=True))
    arrays |= {} if request.out is None else {"out": request.out}
    kinds = {name: library(array) for name, array in arrays.items()}
    for name, kind in kinds.items():
        if kind not in LIBRARIES or kind != kinds["x"]:
            legal = "NumPy arrays, CuPy arrays or PyTorch tensors, all of one library"
            raise ArgumentError(f"conv2d: {name} is not an array of the same library as x", got=kinds, legal=legal)
    return operands_of(arrays)


def _check(given: Mapping[str, Operand], sizes: Sizes) -> None:
    """Refuse unsupported types and devices, and an output that does not match the inputs."""
    if given["x"].dtype not in TYPES:
        raise ArgumentError("conv2d: no kernel supports the element type of x", got=given["x"].dtype, legal=TYPES, hint="convert x and w")
    for name, operand in given.items():
        if operand.dtype != given["x"].dtype:
            raise ArgumentError(f"conv2d: {name} has elements of {operand.dtype}", legal=given["x"].dtype, hint="convert one of the arrays")
    for name in ("out", "residual", "bias"):
        legal = (sizes.outputs,) if name == "bias" else sizes.result
        if name in given and given[name].shape != legal:
            raise ArgumentError(f"conv2d: {name} has the shape {given[name].shape}", legal=f"{legal}")
    if "out" in given and given["out"].repeats:
        raise ArgumentError(
            "conv2d: several indices of out share an element (broadcast)", got=given["out"].steps, hint="pass a separate array"
        )
    refuse_places(given, "conv2d: ", "all on one GPU, or all NumPy")


def _bound(request: Request, given: Mapping[str, Operand], sizes: Sizes) -> BoundConvolution | BoundRows:
    """Return the kernel for arrays with contiguous channels."""
    x = given["x"]
    place = Place.of(x.device, request.arch, request.require_record)
    aligned = {OPERANDS[name]: operand.align for name, operand in given.items()}
    dtype, last = as_dtype(x.dtype), (sizes.images, *sizes.pixels, sizes.outputs)
    result = channels_first(last, packed(last))
    if loads_rows_once(sizes, request.options) and not place.require_record:
        by_rows = bound_by_rows(sizes, request.options, dtype, aligned, result, place)
        if by_rows is not None:
            return by_rows
    key = (*request.options, attrs.astuple(sizes), x.dtype, dict(aligned), place.require_record)
    choice, form = place.chosen("conv2d", key, lambda: _chosen(sizes, request.options, dtype, aligned, place))
    inputs, output = _views(choice.program.spec, sizes, bool(form))
    further = request.options.further(sizes.outputs, output)
    return BoundConvolution(CompiledKernel(choice.program), choice, (*inputs, *further), output, result, dtype)


def _views(spec: Spec, sizes: Sizes, outputs_first: bool) -> tuple[tuple[Places, Places], Places]:
    """Return the views of images and filters, and of the result, that a kernel takes."""
    filters = sizes.taps if sizes.groups > 1 else (sizes.channels * math.prod(sizes.taps),)
    image = (sizes.images, *sizes.image, sizes.channels)
    shape = (sizes.rows, sizes.channels) if len(spec.operands["X"].tensor.array.shape) == 2 else image
    rows = (sizes.images, *sizes.pixels) if sizes.groups > 1 else (sizes.rows,)
    whole = (*rows, sizes.outputs)
    output = whole, packed(whole)
    output = (output[0][::-1], output[1][::-1]) if outputs_first else output
    weights = (sizes.outputs, *filters)
    return ((shape, packed(shape)), (weights, packed(weights))), output


def _chosen(sizes: Sizes, options: CallOptions, dtype: DType, aligned: Mapping[str, int], place: Place) -> tuple[Choice, int]:
    """Return the first legal candidate, probably the fastest one, and whether its result is transposed (1)."""
    if place.require_record:
        return place.exact_record(_spec(sizes, options, dtype, False), any_program), 0
    refusals: list[str] = []
    for name, values, form in _candidates(sizes, place):
        text = " ".join([name, *(f"{tunable}={value}" for tunable, value in values.items())])
        try:
            strategy = find(name).strategy.with_(**values)
            program = strategy(_spec(sizes, options, dtype, bool(form))).program(place.architecture)
            place.prove(program)
            if not _suits(program, name, aligned, place):
                refusals.append(f"{text}: the arrays have another alignment, or threads would copy")
                continue
        except FireironError as error:
            refusals.append(f"{text}: {error.headline}")
            continue
        why = f"no record applies; the least estimated time for {dtype} on {place.architecture}: {text}"
        return Choice(None, False, "; ".join((why, *refusals)), program), form
    asked = f"conv2d: no strategy of the library computes {_spec(sizes, options, dtype, False)} on {place.architecture}"
    raise ArgumentError(asked, got="; ".join(refusals))


def _suits(program: Program, name: str, aligned: Mapping[str, int], place: Place) -> bool:
    """Return whether arrays have the required alignment, TMA loads the tiles of Hopper, and the compiler accepts the kernel."""
    if not fits(aligned, program) or (name == "convolution" and not program.sequential.rings):
        return False
    refused = place.refusal(CompiledKernel(program))
    if refused is not None:
        raise refused
    return True


def _spec(sizes: Sizes, options: CallOptions, dtype: DType, outputs_first: bool) -> Spec:
    """Return the problem, with pixels or with output channels first."""
    from fireiron.strategies import convolution, depthwise

    if options.groups > 1:
        grouped: Spec = depthwise.images(
            sizes.images, sizes.image, sizes.channels, sizes.taps, *options.convolution, **options.epilogue, dtype=dtype
        )  # fmt: skip
        return grouped
    spec: Spec = convolution.images(
        sizes.images, sizes.image, sizes.channels, sizes.outputs, sizes.taps, *options.convolution, outputs_first,
        **options.epilogue, dtype=dtype,
    )  # fmt: skip
    return spec


def _candidates(sizes: Sizes, place: Place) -> Iterator[tuple[str, Mapping[str, int], int]]:
    """Yield strategies with values of tunables, and the form of the problem, probably the fastest first."""
    if sizes.groups > 1:
        from fireiron.strategies import depthwise

        yield from (("depthwise", values, 0) for values in depthwise.ranked(sizes.pixels, sizes.channels))
        yield "naive", {}, 0
        return
    if place.architecture.name == WARPGROUP_ARCHITECTURE:
        from fireiron.strategies import convolution

        for form, values in convolution.ranked(sizes.rows, sizes.outputs, sizes.channels, math.prod(sizes.taps)):
            yield "convolution", values, int(form)
    for name in OLDER:
        yield name, {}, 0


__all__ = ["BoundConvolution", "Sizes", "answer_to", "channels_first", "channels_last", "is_packed", "sizes_of"]
