"""Read GPU arrays of CuPy, PyTorch, JAX, `__cuda_array_interface__` and DLPack through each library's own interface.

Arrays are read before every launch, so a reading must be fast: it takes one microsecond for three arrays. It returns the address and a
*signature*, that is, the properties that are checked once for many launches. This module imports no array library, because the library of
an array is already imported.

Streams. CuPy and PyTorch have a current stream. Kernels on their arrays run on it, in order with the library's own work.
The other libraries have no current stream. Kernels on their arrays run on CuPy's current stream, and this module synchronizes:

- JAX computes asynchronously on its own streams. The launch waits for the inputs (`block_until_ready`) and keeps them alive until the
  kernel has run. When JAX imports an output through DLPack, it waits for the kernel before it reads the output.
- `__cuda_array_interface__` version 3 names the producer's stream. The kernel's stream waits for an event on it, and the producer's
  stream waits for the kernel. If the interface names no stream, nothing is synchronized.
- DLPack: the producer orders its work before CuPy's current stream; the array is kept alive until the kernel has run.

Sources: https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html, https://dmlc.github.io/dlpack/latest/python_spec.html.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fireiron.errors import ArgumentError, LaunchError
from fireiron.frozen import frozen
from fireiron.gpu import launch

Signature = tuple["Library", tuple[int, ...], Any, Any, int, bool]
"""Library, shape, strides in the library's unit (None: row-major), element type by the library's name, GPU, read-only."""

Reading = tuple[int, Signature, "Order | None"]
"""Address, signature, and the synchronization with the array's producer, if necessary."""

NO_DEVICE = -1
"""Device number of an array in host memory."""

_ON_GPU = (2, 13)  # kDLCUDA, kDLCUDAManaged


@frozen(eq=False)
class Order:
    """Synchronization with the producer of an array: wait for its stream, and keep the array alive until the kernel has run."""

    stream: int | None
    keep: object
    kept_alive: launch.KeptAlive | None

    def before(self, stream: int) -> None:
        """Synchronize before a launch on a stream."""
        if self.stream is not None:
            launch.order(self.stream, stream)

    def after(self, stream: int) -> None:
        """Synchronize after a launch on a stream."""
        if self.stream is not None:
            launch.order(stream, self.stream)
        if self.kept_alive is not None:
            self.kept_alive.until_done(self.keep, stream)


@frozen
class ArrayView:
    """The common description of an array on a GPU; strides are in bytes, `dtype` is the name in NumPy or `ml_dtypes`."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    itemsize: int
    device: int
    readonly: bool

    @property
    def end(self) -> int:
        """The offset in bytes from the address to the end of the last element."""
        return sum(max((size - 1) * stride, 0) for size, stride in zip(self.shape, self.strides, strict=True)) + self.itemsize


class Library:
    """An array library: how to read its arrays, which stream to use, and how to allocate outputs."""

    name = "CuPy"
    owns_stream = False
    """Whether the library has a current stream; otherwise CuPy's current stream is used."""

    def __init__(self, module: Any = None) -> None:
        self.module = module
        self.kept_alive = launch.KeptAlive()

    def read(self, name: str, array: Any) -> Reading:
        """Read an array of this library, called `name` in messages.

        Raises:
            LaunchError: the array is not in GPU memory, or has no memory.
        """
        raise NotImplementedError

    def itemsize(self, dtype: Any) -> int:
        """Return the bytes of an element."""
        return int(dtype.itemsize)

    def view(self, signature: Signature) -> ArrayView:
        """Convert a signature to the common description."""
        _, shape, strides, dtype, device, readonly = signature
        itemsize = self.itemsize(dtype)
        return ArrayView(tuple(shape), self.in_bytes(shape, strides, itemsize), self.type_name(dtype), itemsize, device, readonly)

    def type_name(self, dtype: Any) -> str:
        """Return the name of an element type in NumPy or `ml_dtypes`."""
        return str(dtype)

    def in_bytes(self, shape: Sequence[int], strides: Any, itemsize: int) -> tuple[int, ...]:
        """Convert strides to bytes."""
        return row_major(shape, itemsize) if strides is None else tuple(strides)

    def stream(self, device: int) -> int:
        """Return the address of the current stream: CuPy's, unless the library has its own."""
        address: int = launch.require_cupy().cuda.get_current_stream(device).ptr
        return address

    def using(self, stream: object, device: int) -> contextlib.AbstractContextManager[None]:
        """Make a stream the current one, for allocations."""
        return _cupy_stream(stream, device)

    def maker(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: int) -> Callable[[], Any]:
        """Return a function that allocates outputs on the current GPU; `strides` in bytes, `dtype` a `fireiron.DType`."""
        cupy, kind = launch.require_cupy(), dtype.to_numpy()
        array, alloc = cupy.ndarray, cupy.cuda.alloc
        size = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) + dtype.bytes
        return lambda: array(shape, kind, alloc(size), strides)

    def finished(self, array: Any) -> Any:
        """Convert an output from `maker`, which a kernel on the current stream fills, to the caller's array.

        Raises: LaunchError if the library has no arrays of this shape and these strides.
        """
        return array

    def between(self, array: Any) -> Any:
        """Convert the output of a preceding copy kernel for the next launch. It is not returned to the caller."""
        return array


def row_major(shape: Sequence[int], itemsize: int, order: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the strides in bytes of a contiguous array; `order` lists its dimensions, slowest first."""
    strides, step = [0] * len(shape), itemsize
    for dim in reversed(range(len(shape)) if order is None else order):
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)


# ---------------------------------------------------------------------------------------------- libraries


class CuPy(Library):
    """`cupy.ndarray`."""

    owns_stream = True

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._current = module.cuda.get_current_stream

    def read(self, name: str, array: Any) -> Reading:
        data = array.data
        return data.ptr, (self, array.shape, array.strides, array.dtype, data.device_id, False), None

    def stream(self, device: int) -> int:
        address: int = self._current(device).ptr
        return address


class Torch(Library):
    """`torch.Tensor`, of every element type: `__cuda_array_interface__` has no bfloat16 and no 8-bit floats."""

    name = "PyTorch"
    owns_stream = True

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._strided, self._grad = module.strided, module.is_grad_enabled
        raw = getattr(module._C, "_cuda_getCurrentRawStream", None)  # not public, but ten times faster
        self.stream = raw or self._public_stream  # type: ignore[method-assign]

    def read(self, name: str, array: Any) -> Reading:
        if not array.is_cuda or (array.requires_grad and self._grad()) or array.layout is not self._strided or array.is_neg():
            raise self._refused(name, array)
        try:
            address = array.data_ptr()
        except RuntimeError as error:  # FakeTensor and other tensors without memory
            raise LaunchError(f"{name} has no memory", got=str(error), hint="call the kernel outside torch.compile") from error
        return address, (self, array.shape, array.stride(), array.dtype, array.get_device(), False), None

    def _refused(self, name: str, array: Any) -> LaunchError:
        if not array.is_cuda:
            hint = "pass .cuda(), or .numpy() (of all arrays) for the simulator"
            legal = "a GPU, cuda"
            return LaunchError(f"{name} is a PyTorch tensor that is not in GPU memory", got=str(array.device), legal=legal, hint=hint)
        if array.requires_grad and self._grad():
            hint = "pass .detach(), or call under torch.no_grad(); kernel.as_torch_op(...) can have a gradient, and matmul has one"
            return LaunchError(f"{name} requires a gradient, but autograd cannot differentiate a kernel", hint=hint)
        if array.layout is not self._strided:
            return LaunchError(f"{name} is a tensor without strides", got=str(array.layout), hint="pass .to_dense()")
        return LaunchError(f"{name} is a lazily negated tensor", hint="pass .resolve_neg()")

    def type_name(self, dtype: Any) -> str:
        return str(dtype).removeprefix("torch.")

    def in_bytes(self, shape: Sequence[int], strides: Any, itemsize: int) -> tuple[int, ...]:
        return tuple(stride * itemsize for stride in strides)

    def _public_stream(self, device: int) -> int:
        address: int = self.module.cuda.current_stream(device).cuda_stream
        return address

    @contextlib.contextmanager
    def using(self, stream: object, device: int) -> Iterator[None]:
        cuda = self.module.cuda
        with cuda.stream(cuda.ExternalStream(launch.stream_address(stream, device), device=device)):
            yield

    def maker(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: int) -> Callable[[], Any]:
        steps = tuple(stride // dtype.bytes for stride in strides)
        options = {"dtype": getattr(self.module, dtype.numpy), "device": f"cuda:{device}"}
        return functools.partial(self.module.empty_strided, shape, steps, **options)


@frozen(eq=False)
class Between:
    """The copy of a JAX array that a preceding copy kernel wrote. Its rows may be padded, which JAX arrays do not support."""

    array: Any
    """The copy, a CuPy array."""
    library: Library


class _Copies(Library):
    """The library of `Between`. The signature of a copy names the library of the copied array."""

    def read(self, name: str, array: Any) -> Reading:
        copy, library = array.array, array.library
        signature = library, copy.shape, copy.strides, copy.dtype, copy.data.device_id, True
        return copy.data.ptr, signature, Order(None, copy, library.kept_alive)


class Jax(Library):
    """`jax.Array` that is completely on one GPU."""

    name = "JAX"

    def read(self, name: str, array: Any) -> Reading:
        if isinstance(array, self.module.core.Tracer):
            raise LaunchError(
                f"{name} is a JAX tracer, which has no memory",
                hint="call the kernel with tracers only: JAX cannot trace prepared launches or calls with other arrays",
            )
        try:
            kind, device = array.__dlpack_device__()
            array.block_until_ready()
            address = array.unsafe_buffer_pointer() if kind in _ON_GPU else 0
        except (ValueError, BufferError, RuntimeError) as error:  # sharded, deleted, or its computation failed
            raise LaunchError(f"{name} is not a JAX array on a single GPU", got=str(error)) from error
        if kind not in _ON_GPU:
            raise LaunchError(f"{name} is a JAX array that is not in GPU memory", hint="jax.device_put(...), or numpy.asarray(...)")
        layout = getattr(getattr(array, "format", None), "layout", None)
        order = getattr(layout, "major_to_minor", None)
        strides = None if order is None else row_major(array.shape, array.dtype.itemsize, order)
        return address, (self, array.shape, strides, array.dtype, device, True), Order(None, array, self.kept_alive)

    def finished(self, array: Any) -> Any:
        rows = row_major(array.shape, array.dtype.itemsize)
        transposed_rows = row_major(array.T.shape, array.dtype.itemsize)
        if array.strides == rows:
            return self._imported(array)
        if array.T.strides == transposed_rows:
            return self._imported(array.T).T
        raise LaunchError("JAX arrays cannot have padded rows", got=array.strides, hint="pass a CuPy or PyTorch array as out=")

    def between(self, array: Any) -> Any:
        return Between(array, self)

    def _imported(self, array: Any) -> Any:
        if array.dtype.isbuiltin == 1:
            return self.module.dlpack.from_dlpack(array)
        bits = self.module.dlpack.from_dlpack(array.view(f"u{array.dtype.itemsize}"))  # bfloat16 and 8-bit floats, as bits
        return self.module.lax.bitcast_convert_type(bits, array.dtype)


class Interface(Library):
    """Objects with `__cuda_array_interface__`."""

    name = "__cuda_array_interface__"

    def read(self, name: str, array: Any) -> Reading:
        interface = array.__cuda_array_interface__
        address, readonly = interface["data"]
        if interface.get("mask") is not None:
            raise masked(name)
        strides = interface.get("strides")
        signature = (
            self,
            tuple(interface["shape"]),
            None if strides is None else tuple(strides),
            _element_type(array, interface["typestr"]),
            _device_of(name, address) if address else 0,
            bool(readonly),
        )
        stream = interface.get("stream")
        return address, signature, None if stream is None else Order(stream, None, None)


class Scalars(Library):
    """Numbers passed by value: their bits are passed instead of an address."""

    name = "a number"

    @staticmethod
    def signature(dtype: Any) -> Signature:
        """Return the signature of numbers that are passed as elements of a `fireiron.DType`."""
        return _library(Scalars, None), (), (), dtype, NO_DEVICE, True

    def itemsize(self, dtype: Any) -> int:
        return int(dtype.bytes)

    def type_name(self, dtype: Any) -> str:
        return str(dtype.numpy)


class Dlpack(Library):
    """Objects with `__dlpack__`, through `cupy.from_dlpack`."""

    name = "DLPack"

    def read(self, name: str, array: Any) -> Reading:
        kind, device = array.__dlpack_device__()
        if kind not in _ON_GPU:
            raise LaunchError(
                f"{name} is not in GPU memory", got=type(array).__name__, hint="copy it to the GPU, for example with cupy.asarray"
            )
        cupy = launch.require_cupy()
        try:
            imported = cupy.from_dlpack(array)
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise LaunchError(f"{name} cannot be imported through DLPack", got=str(error), hint="pass a CuPy or PyTorch array") from error
        data = imported.data
        signature = (self, imported.shape, imported.strides, imported.dtype, device, False)
        return data.ptr, signature, Order(self.stream(device), (array, imported), self.kept_alive)


def _element_type(array: Any, typestr: str) -> Any:
    """Return the element type of an interface; if the interface cannot name it (`<V2`), the `dtype` of the array."""
    import numpy

    dtype = numpy.dtype(typestr)
    own = getattr(array, "dtype", None)
    return own if dtype.kind == "V" and getattr(own, "itemsize", None) == dtype.itemsize else dtype


def _device_of(name: str, address: int) -> int:
    runtime = launch.require_cupy().cuda.runtime
    try:
        attributes = runtime.pointerGetAttributes(address)
    except RuntimeError as error:  # CuPy's CUDARuntimeError
        raise LaunchError(f"{name} is not in GPU memory", got=str(error)) from error
    if not attributes.devicePointer:
        raise LaunchError(f"{name} is not in GPU memory", hint="copy it to the GPU, for example with cupy.asarray")
    return int(attributes.device)


# ---------------------------------------------------------------------------------------------- which library


def _library_of(kind: type) -> Library | None:
    import numpy

    if issubclass(kind, numpy.ndarray | numpy.generic):
        return None
    for module, array, library in (("cupy", "ndarray", CuPy), ("torch", "Tensor", Torch), ("jax", "Array", Jax)):
        imported = sys.modules.get(module)
        base = getattr(imported, array, None)
        if base is not None and issubclass(kind, base):
            return _library(library, imported)
    if kind is Between:
        return _library(_Copies, None)
    if imported := _jax_of(kind):
        return _library(Jax, imported)
    if hasattr(kind, "__cuda_array_interface__"):
        return _library(Interface, None)
    return _library(Dlpack, None) if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__") else None


library_of: Callable[[type], Library | None] = functools.lru_cache(maxsize=256)(_library_of)
"""Return the library of an array type; None for NumPy arrays and for types that are not arrays."""


def _jax_of(kind: type) -> Any:
    """Return JAX if the type is one of its arrays or tracers, which only an instance check recognizes as `jax.Array`."""
    jax = sys.modules.get("jax")
    own = kind.__module__.split(".")[0] in ("jax", "jaxlib") and hasattr(kind, "unsafe_buffer_pointer")
    return jax if own else None


@functools.cache
def _library(kind: Callable[[Any], Library], module: Any) -> Library:
    return kind(module)


@contextlib.contextmanager
def _cupy_stream(stream: object, device: int) -> Iterator[None]:
    """Make a stream CuPy's current stream.

    Raises: LaunchError if it is not a stream, or belongs to another GPU.
    """
    cupy = launch.require_cupy()
    address = launch.stream_address(stream, device)
    chosen: Any = stream
    if not isinstance(stream, cupy.cuda.Stream):
        foreign = _Foreign(address)
        from_external = getattr(cupy.cuda.Stream, "from_external", None)  # CuPy 14
        chosen = cupy.cuda.ExternalStream(foreign.address) if from_external is None else from_external(foreign)
    with chosen:
        yield


@frozen
class _Foreign:
    """A stream by its address, in CUDA's stream protocol."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def masked(name: str) -> LaunchError:
    """Return the error for a masked array: kernels do not read masks."""
    return LaunchError(f"{name} is a masked array", hint="fill it first")


def refused(name: str, array: object) -> ArgumentError:
    """Return the error for an object without a library in `library_of`."""
    legal = "NumPy, CuPy, PyTorch, JAX, or anything with __cuda_array_interface__ or __dlpack__"
    return ArgumentError(f"{name} is not an array", got=type(array).__name__, legal=legal)
