"""Calls of kernels that JAX traces: a call becomes an XLA custom call, which launches on XLA's stream without Python code.

The handler of the custom call, `jax_handler.cpp`, is compiled by the host's C++ compiler, once for each version of
jaxlib's headers, and stored in the cache. Machine code and launch parameters are attributes of the call, so the program that
XLA compiles is self-contained. Shapes are known and checked when JAX traces. Preceding copy kernels are separate calls.

Sources: https://docs.jax.dev/en/latest/ffi.html, https://openxla.org/xla/custom_call.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from fireiron.errors import ArgumentError, LaunchError
from fireiron.frozen import frozen
from fireiron.gpu import built
from fireiron.gpu.arguments import (
    buffer_shape,
    byte_strides,
    check_facts,
    check_view,
    element_strides,
    evaluated,
    returned,
    solve_symbols,
    steps_of,
)
from fireiron.gpu.arrays import ArrayView, row_major
from fireiron.gpu.maps import SWIZZLES, MapForm, kind_of
from fireiron.gpu.prepared import refuse_reading
from fireiron.ir import Buffer, Counter, Kernel, TensorMap, Workspace
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.ir.semaphore import SEMAPHORE_BYTES
from fireiron.values.scalars import bits_of, value_of

if TYPE_CHECKING:
    from fireiron.gpu.kernel import CompiledKernel

TARGET: Final = "fireiron_launch"
"""The name of the handler in XLA."""

SOURCE: Final = Path(__file__).with_name("jax_handler.cpp")
WHAT: Final = "the handler of JAX's calls"
OPTIONS: Final = ("-std=c++17", "-O1", "-fPIC", "-shared", "-w")
COMPILERS: Final = ("c++", "g++", "clang++")

_POINTER, _NUMBER, _MAP, _PIXELS = range(4)  # kinds of parameters, as in the handler
_WORD: Final = 8
_COUNTER_WORDS: Final = 2


@frozen
class _Stored:
    """The output of a preceding copy kernel: its memory, including gaps, as a one-dimensional array."""

    memory: Any
    shape: tuple[int, ...]
    dtype: Any


def traced_call(kernel: CompiledKernel, arrays: Sequence[Any], out: Any, stream: Any, sizes: Mapping[str, int]) -> Any:
    """Return the outputs of a call that JAX traces.

    Raises:
        ArgumentError: an argument that traced calls do not support.
        LaunchError: the arrays do not fit the kernel, or the handler cannot be compiled.
    """
    for name, value in (("out", out), ("stream", stream)):
        if value is not None:
            hint = "remove it: XLA allocates the output and chooses the stream"
            raise ArgumentError(f"{name}= is illegal in a call that JAX traces", hint=hint)
    inputs = kernel.program.spec.inputs
    if len(arrays) != len(inputs):
        raise ArgumentError(f"{len(arrays)} arrays given, {kernel.program.spec.title} reads {len(inputs)}", legal=inputs)
    register()
    path = kernel.route
    if path.writes:
        path.require_writable(arrays)
        raise ArgumentError(
            f"more than one launch of {path.title} writes {', '.join(path.outputs)}, which a call that JAX traces does not support"
        )
    call_arrays = path.call_arrays(arrays, None)
    for launch in path.before:
        launch.store(call_arrays, returned(_stored(launch.kernel, [call_arrays[place] for place in launch.takes])))
    return returned(_called(kernel, path.last(call_arrays), path.own(sizes)))


def _stored(kernel: CompiledKernel, arrays: Sequence[Any]) -> tuple[_Stored, ...]:
    """Return the temporaries that a launch before the last one writes, including gaps."""
    spec = kernel.program.inner
    symbols = _symbols(kernel, dict(zip(spec.inputs, arrays, strict=True)), {})
    buffers = [kernel.ir.buffer(name) for name in spec.outputs]
    memories = _called(kernel, arrays, {}, flat=True)
    return tuple(
        _Stored(memory, buffer_shape(buffer, symbols), buffer.dtype.to_numpy()) for memory, buffer in zip(memories, buffers, strict=True)
    )


def _called(kernel: CompiledKernel, arrays: Sequence[Any], sizes: Mapping[str, int], flat: bool = False) -> tuple[Any, ...]:
    """Return the outputs of a launch; with `flat` their memory including gaps, each as a one-dimensional array."""
    import jax

    spec = kernel.program.inner
    given = dict(zip(spec.inputs, arrays, strict=True))
    symbols = _symbols(kernel, given, sizes)
    buffers = [buffer for name in (*spec.inputs, *spec.outputs) if not (buffer := kernel.ir.buffer(name)).memory.by_value]
    inputs, outputs = buffers[: -len(spec.outputs)], buffers[-len(spec.outputs) :]
    rows = [buffer.name for buffer in inputs if isinstance(given[buffer.name], _Stored)] + [buffer.name for buffer in outputs if flat]
    orders = {buffer.name: (0,) if buffer.name in rows else _order(buffer, symbols) for buffer in buffers}
    words = _provided_words(kernel.ir, symbols)
    counter = [jax.ShapeDtypeStruct((words,), "int32")] if words else []
    shapes = [(_extent(buffer, symbols),) if flat else buffer_shape(buffer, symbols) for buffer in outputs]
    call = jax.ffi.ffi_call(
        TARGET,
        [*(jax.ShapeDtypeStruct(shape, buffer.dtype.to_numpy()) for shape, buffer in zip(shapes, outputs, strict=True)), *counter],
        vmap_method="sequential",
        input_layouts=[orders[buffer.name] for buffer in inputs],
        output_layouts=[*(orders[buffer.name] for buffer in outputs), *((0,) for _ in counter)],
    )
    tensors = [given[buffer.name].memory if buffer.name in rows else given[buffer.name] for buffer in inputs]
    return tuple(call(*tensors, **_attributes(kernel, buffers, given, symbols))[: len(outputs)])


# ---------------------------------------------------------------------------------------------- tracing


def _symbols(kernel: CompiledKernel, given: Mapping[str, Any], sizes: Mapping[str, int]) -> Mapping[str, int]:
    """Check types and shapes, and return sizes and strides; the arrays get the kernel's layout."""
    spec, numbers = kernel.program.inner, kernel.scalars
    views = {name: _view(array) for name, array in given.items() if name not in numbers}
    symbols = solve_symbols(spec, {name: view.shape for name, view in views.items()}, sizes, steps_of(views))
    refuse_reading(spec, symbols)
    check_facts(kernel.ir, symbols)
    for name, view in views.items():
        buffer = kernel.ir.buffer(name)
        stored_view = ArrayView(view.shape, byte_strides(buffer, symbols), view.dtype, view.itemsize, view.device, view.readonly)
        check_view(name, buffer, stored_view, symbols, spec)
    return symbols


def _view(array: Any) -> ArrayView:
    """Return the row-major view of a traced array; XLA converts it to the order that the kernel requires."""
    import numpy

    dtype = numpy.dtype(array.dtype)
    return ArrayView(tuple(array.shape), row_major(array.shape, dtype.itemsize), str(array.dtype), dtype.itemsize, 0, True)


def _order(buffer: Buffer, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """Return the dimensions of an array in storage order, slowest first. Raises: LaunchError if it has gaps."""
    shape, strides = buffer_shape(buffer, symbols), byte_strides(buffer, symbols)
    order = tuple(sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim) if shape[dim] > 1 else (-math.inf, dim)))
    packed = row_major(shape, buffer.dtype.bytes, order)
    if any(size > 1 and step != packed_stride for size, step, packed_stride in zip(shape, strides, packed, strict=True)):
        hint = f"make the spec with {buffer.name}=RowMajor or ColMajor"
        raise LaunchError(f"{buffer.name} has strides that JAX arrays do not support, in bytes", got=strides, legal=str(packed), hint=hint)
    return order


def _extent(buffer: Buffer, symbols: Mapping[str, int]) -> int:
    """Return the number of elements from the first to the last of an array, including gaps."""
    sizes_and_steps = zip(buffer_shape(buffer, symbols), element_strides(buffer, symbols), strict=True)
    return 1 + sum((size - 1) * step for size, step in sizes_and_steps)


def _attributes(kernel: CompiledKernel, buffers: Sequence[Buffer], given: Mapping[str, Any], symbols: Mapping[str, int]) -> dict[str, Any]:
    """Return the attributes of a call."""
    import numpy

    image = kernel.compiled.cubin
    words = numpy.frombuffer(image.ljust(-(-len(image) // _WORD) * _WORD, b"\0"), numpy.int64)
    key = int.from_bytes(hashlib.sha256(image).digest()[:_WORD], "little", signed=True)
    plan = numpy.array([_signed(word) for word in _plan(kernel, buffers, given, symbols)], numpy.int64)
    return {"image": words, "key": numpy.int64(key), "name": kernel.ir.name, "plan": plan}


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


def _plan(kernel: CompiledKernel, buffers: Sequence[Buffer], given: Mapping[str, Any], symbols: Mapping[str, int]) -> Iterator[int]:
    """Encode a launch as 64-bit words for the handler."""
    ir, places = kernel.ir, {buffer.name: place for place, buffer in enumerate(buffers)}
    filled = [name for name, _ in ir.effects[Zeroed].values]
    if filled:
        raise LaunchError(
            f"{filled[0]} is {ir.effects[Zeroed].value(filled[0])} before the launch, and calls of JAX only zero outputs",
            legal="outputs that are written, or added to", hint="call the kernel with CuPy or PyTorch arrays",
        )  # fmt: skip
    zeroed = [(places[name], _bytes(ir.buffer(name), symbols)) for name in ir.effects[Zeroed].names]
    if ir.workspace is not None:
        zeroed.append((len(buffers), evaluated(ir.workspace.semaphores, symbols) * SEMAPHORE_BYTES))
    elif ir.counter is not None:
        zeroed.append((len(buffers), 4 * _COUNTER_WORDS))
    yield from (evaluated(ir.grid, symbols), ir.threads, ir.dynamic_shared_bytes, 1 if ir.cluster is None else ir.cluster.blocks)
    yield from (int(ir.effects[DependentLaunch].enabled), len(zeroed), len(ir.parameters))
    for position_and_bytes in zeroed:
        yield from position_and_bytes
    for parameter in ir.parameters:
        if isinstance(parameter, TensorMap):
            yield from _map(parameter, places[parameter.buffer], ir.buffer(parameter.buffer), symbols)
        elif isinstance(parameter, (Counter, Workspace)):
            yield from (_POINTER, len(buffers))
        elif isinstance(parameter, Buffer) and parameter.name in places:
            yield from (_POINTER, places[parameter.name])
        else:
            yield from (_NUMBER, _number(kernel, parameter, given, symbols))


def _provided_words(ir: Kernel, symbols: Mapping[str, int]) -> int:
    """Return the 32-bit words of the memory that XLA allocates for a tile counter or a workspace; 0 if the kernel has none."""
    if ir.workspace is not None:
        return -(-evaluated(ir.workspace_bytes, symbols) // 4)
    return 0 if ir.counter is None else _COUNTER_WORDS


def _number(kernel: CompiledKernel, parameter: Any, given: Mapping[str, Any], symbols: Mapping[str, int]) -> int:
    """Return the bits of a size, of a reciprocal, or of a number passed by value."""
    if isinstance(parameter, Buffer):
        positive = parameter.name in kernel._calls.positive
        return bits_of(value_of(parameter.name, given[parameter.name], parameter.dtype, positive))
    return symbols[parameter.name] if parameter.name in symbols else int(parameter.value(symbols))


def _map(tensor_map: TensorMap, place: int, buffer: Buffer, symbols: Mapping[str, int]) -> Iterator[int]:
    form = MapForm.of(tensor_map, buffer.name, buffer, symbols)
    kind = _MAP if form.im2col is None else _PIXELS
    yield from (kind, place, kind_of(form.dtype), SWIZZLES[form.span], len(form.extents))
    yield from (*form.extents, *form.strides, *form.box)
    if form.im2col is not None:
        yield from (*form.im2col.lower, *form.im2col.upper, *form.im2col.steps)


def _bytes(buffer: Buffer, symbols: Mapping[str, int]) -> int:
    return math.prod(buffer_shape(buffer, symbols)) * buffer.dtype.bytes


# ---------------------------------------------------------------------------------------------- the handler


def register() -> None:
    """Register the handler with XLA.

    Raises: LaunchError if JAX does not use a GPU, or the handler cannot be compiled.
    """
    import jax

    backend = jax.default_backend()
    if backend not in ("gpu", "cuda"):
        hint = "install jax[cuda13], or call the kernel with NumPy arrays, which run in the simulator"
        raise LaunchError("a kernel in a program that JAX traces runs on a GPU", got=f"JAX computes on {backend}", hint=hint)
    register_for("CUDA", "fireiron_launch")


@functools.cache
def register_for(platform: str, symbol: str) -> ctypes.CDLL:
    """Register the handler for a platform of XLA, and return the library."""
    import jax

    library = ctypes.CDLL(str(handler()))
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(getattr(library, symbol)), platform=platform)
    return library


def handler() -> Path:
    """Return the file of the handler's library; compile it if the cache has none for this jaxlib.

    Raises: LaunchError if there is no C++ compiler or no header, or the compiler reports an error.
    """
    import jax

    include = Path(jax.ffi.include_dir())
    headers = sorted((include / "xla" / "ffi" / "api").glob("*.h"))
    compiler = built.compiler_among(COMPILERS)
    if compiler is None or not headers:
        missing = "a C++ compiler of the host" if compiler is None else f"the headers of XLA's FFI, in {include}"
        hint = "install g++" if compiler is None else "install a newer jaxlib"
        raise LaunchError("the handler of calls that JAX traces cannot be compiled", got=f"not found: {missing}", hint=hint)
    path = built.folder(WHAT) / f"jax-{built.digest_of(path.read_bytes() for path in (SOURCE, *headers))}.so"
    if path.exists():
        return path
    return built.Building.start([compiler, *OPTIONS, f"-I{include}", str(SOURCE), "-ldl"], path).finish(WHAT)


__all__ = ["TARGET", "handler", "register", "register_for", "traced_call"]
