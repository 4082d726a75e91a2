"""Load machine code and launch kernels on a GPU, through CuPy. Other modules call the driver only through this one.

CuPy is imported when it is first needed, so code that needs no GPU works without it. Compile with
`compile_cuda(source, device_arch(), newest=driver_version())`, load the `cubin` once, launch it often:

    launcher = load(compiled.cubin, "saxpy", dynamic_shared=0)
    launcher(grid=(n + 255) // 256, block=256, args=(x, y, n))

`launcher.fixed(...)` returns a launch of which only addresses and stream may change. Its overhead is about a microsecond lower.

Sources: CUDA Driver API, https://docs.nvidia.com/cuda/cuda-driver-api/, sections Module Management, Execution Control, Memory
Management (memset), Stream Management (capture mode) and Tensor Map Object Management; `cupy.cuda.Module`, `cupy.cuda.Function` and
`cupy.cuda.driver` of CuPy 14.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import itertools
import operator
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from attrs import field, frozen

from fireiron.errors import LaunchError

_PIP = "pip install 'fireiron[cuda13]', or 'fireiron[cuda12]' for Volta and older"
_DEFAULT_SHARED = 48 * 1024  # bytes that a block may use without an attribute; CUDA C++ Programming Guide, compute capabilities
_MAX_PARAMETERS = 32764  # bytes, hence an upper bound of their number too; CUDA C++ Programming Guide, kernel parameters
_CAPABILITY = (75, 76)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_PROGRAMMATIC_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
LEGACY = 1  # CU_STREAMLEGACY, the same stream as 0
_NOT_INTERLEAVED = 0  # CU_TENSOR_MAP_INTERLEAVE_NONE
PROMOTED = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B: with 256 bytes no kernel is faster, and narrow matrices are slower
_ZEROS_OUTSIDE = 0  # CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE

MAP_BYTES = 128
"""Bytes of a tensor map, a kernel parameter (CUDA Driver API, `CUtensorMap`)."""
_MAP_ALIGNMENT = 64


def gpu_available() -> bool:
    """Return whether CuPy is installed and sees a GPU. Never raises."""
    try:
        return bool(importlib.import_module("cupy").cuda.is_available())
    except (ImportError, RuntimeError):  # RuntimeError: CuPy's errors of a broken driver
        return False


def device_arch() -> str:
    """Return the architecture of the current GPU, `"sm_90"`.

    Raises:
        LaunchError: CuPy or a GPU is missing.
    """
    return f"sm_{require_cupy().cuda.Device().compute_capability}"


def multiprocessors() -> int:
    """Return the number of SMs of the current GPU.

    Raises:
        LaunchError: CuPy or a GPU is missing.
    """
    return int(require_cupy().cuda.Device().attributes["MultiProcessorCount"])


def visible_arch() -> str | None:
    """Return the architecture of the GPU in use, `"sm_90"`; None without driver or GPU. Never raises.

    Calls the driver directly, because importing CuPy would take a second. The GPU is the current GPU of the calling thread, if a library
    has set one, and otherwise the first GPU.
    """
    driver = _driver()
    if driver is None or driver.cuInit(0):
        return None
    device, context, parts = ctypes.c_int(), ctypes.c_void_p(), (ctypes.c_int(), ctypes.c_int())
    if driver.cuCtxGetCurrent(ctypes.byref(context)):
        return None
    if driver.cuCtxGetDevice(ctypes.byref(device)) if context.value else driver.cuDeviceGet(ctypes.byref(device), 0):
        return None
    for part, attribute in zip(parts, _CAPABILITY, strict=True):
        if driver.cuDeviceGetAttribute(ctypes.byref(part), attribute, device):
            return None
    return f"sm_{parts[0].value}{parts[1].value}"


def driver_version() -> tuple[int, int]:
    """Return the newest CUDA (major, minor) that the driver supports: `compile_cuda(..., newest=driver_version())`.

    Raises:
        LaunchError: CuPy or a GPU is missing.
    """
    number: int = require_cupy().cuda.runtime.driverGetVersion()  # 13000 is 13.0, 12080 is 12.8
    return number // 1000, number % 1000 // 10


def newest_loadable() -> tuple[int, int] | None:
    """Return the newest CUDA whose machine code the driver loads; None without a GPU."""
    return driver_version() if gpu_available() else None


_PORTABLE_CLUSTER = 8
"""Largest portable cluster size."""

_NON_PORTABLE_CLUSTER = 14
"""CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED."""


def load(cubin: bytes, name: str, dynamic_shared: int = 0, cluster: int = 1) -> Launcher:
    """Load one kernel onto the current GPU.

    Args:
        cubin: machine code for this GPU's architecture.
        name: the kernel's name in it.
        dynamic_shared: bytes of dynamic shared memory per block. If static and dynamic shared memory exceed 48 KiB, this function sets the
            attribute that permits it.
        cluster: blocks per cluster, as in the code. For more than 8 blocks, this function sets the attribute for non-portable sizes.

    Raises:
        LaunchError: CuPy or a GPU is missing, or the code is for another architecture, has no kernel of this name, or needs more shared
            memory than the GPU has.
    """
    cupy = require_cupy()
    try:
        with _loading_in_a_capture():
            module = cupy.cuda.Module()
            module.load(cubin)
            function = module.get_function(name)
            _reserve_shared(cupy, function, name, dynamic_shared)
            if cluster > _PORTABLE_CLUSTER:
                cupy.cuda.driver.funcSetAttribute(function.ptr, _NON_PORTABLE_CLUSTER, 1)
    except RuntimeError as error:  # CuPy's CUDADriverError and CUDARuntimeError
        hint = f"compile it for {device_arch()} with a CUDA not newer than the driver's {'.'.join(map(str, driver_version()))}"
        raise LaunchError(f"the GPU does not load kernel {name!r}", got=str(error), hint=hint) from error
    _keep_loaded(module)
    return Launcher(name, dynamic_shared, _parameter_sizes(function.ptr), function, cupy.ndarray)


@functools.cache
def _keep_loaded(module: Any) -> Any:
    """Keep a module for the rest of the process: captured graphs and recorded calls use its code after the kernel object is deleted.

    A module takes 10 to 100 KB.
    """
    return module


@frozen(eq=False)
class Launcher:
    """A kernel on a GPU, ready to launch.

    Attributes:
        name: the kernel's name.
        dynamic_shared: bytes of dynamic shared memory per block.
        parameters: the size of each parameter in bytes. A driver before 12.4 does not report it; then it is None and not checked.
    """

    name: str
    dynamic_shared: int
    parameters: tuple[int, ...] | None
    _function: Any = field(repr=False)
    _array: type = field(repr=False)  # cupy.ndarray, which needs no conversion

    def __call__(self, grid: int | tuple[int, ...], block: int | tuple[int, ...], args: Sequence[object], stream: object = None) -> None:
        """Launch the kernel asynchronously. The caller keeps the arrays alive and checks shapes and devices.

        A kernel with PDL is launched without PDL here: it starts after the end of the preceding kernel.

        Args:
            grid: blocks, as `x` or `(x, y, z)`.
            block: threads per block, likewise.
            args: for each parameter a CuPy array or an object with `__cuda_array_interface__` (passed as a pointer), a NumPy
                scalar or one-element array (passed by value, of exactly the parameter's size), a tensor map (passed by value),
                or a plain number, which is converted to the parameter's size as a signed integer or a float.
            stream: CuPy's, PyTorch's or another stream (`__cuda_stream__`), or its address; by default CuPy's current one.

        Raises:
            LaunchError: the arguments do not fit the kernel's parameters, or the driver refuses the launch.
        """
        shape = _extent("grid", grid), _extent("block", block)
        values = self._values(args)
        try:
            self._function(*shape, values, self.dynamic_shared, _stream(stream))
        except RuntimeError as error:  # CuPy's CUDADriverError and CUDARuntimeError
            sizes = f"grid {shape[0]}, block {shape[1]}, {self.dynamic_shared} bytes of dynamic shared memory"
            raise LaunchError(f"the driver refuses to launch {self.name!r} with {sizes}", got=str(error)) from error

    def resident_clusters(self, blocks: int, threads: int) -> int:
        """Return how many clusters of a kernel with cluster dimensions the current GPU executes at once.

        Args: `blocks` of the grid, a multiple of those of a cluster, and `threads` per block.
        Raises: LaunchError if the driver cannot tell (before CUDA 11.8).
        """
        query, count = getattr(_driver(), "cuOccupancyMaxActiveClusters", None), ctypes.c_int()
        config = _Config((ctypes.c_uint * 6)(blocks, 1, 1, threads, 1, 1), self.dynamic_shared, None, None, 0)
        status = 1 if query is None else query(ctypes.byref(count), ctypes.c_void_p(self._function.ptr), ctypes.byref(config))
        if status:
            raise LaunchError(f"the driver does not report the clusters of {self.name!r} that are resident", got=_error_text(status))
        return count.value

    def fixed(
        self,
        device: int,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        pointers: int,
        values: Sequence[int],
        fills: Fills = (),
        scalars: Mapping[int, int] = MappingProxyType({}),
        parameters: Sequence[Parameter] | None = None,
        programmatic: bool = False,
        counter: Callable[[int], int] | None = None,
    ) -> FixedLaunch:
        """Return a launch of which only addresses and stream may change.

        Args:
            device: the GPU on which the kernel is loaded.
            grid: blocks, as for a call.
            block: threads per block, as for a call.
            pointers: the number of addresses of each launch.
            values: integers, passed as 4 bytes if they fit, and otherwise as 8 bytes, unsigned.
            fills: `(position among the addresses, fill)` of arrays that are set to zero before the launch.
            parameters: the kernel's parameters in order; by default all addresses, then all values.
            scalars: positions among the addresses of numbers passed by value (their bits instead of an address), with their bytes.
            programmatic: launch with PDL. The kernel itself waits for the preceding kernel.
            counter: returns the address of the tile counter for a stream. It is the last address, and callers do not pass it.

        Raises:
            LaunchError: the arguments do not fit the kernel's parameters, or the driver does not support PDL.
        """
        cupy = require_cupy()
        slots: list[Any] = [np.void(scalars[position]) if position in scalars else np.uintp(0) for position in range(pointers)]
        slots += [np.int32(value) if value < 1 << 31 else np.uint64(value) for value in values]
        self._values(
            slots if parameters is None else [slots[index] if isinstance(index, int) else np.void(MAP_BYTES) for index in parameters]
        )
        shape = (*_whole(_extent("grid", grid)), *_whole(_extent("block", block)))
        given = cupy, self.name, self._function, device, shape, self.dynamic_shared, pointers, values, fills
        if counter is not None:
            every = range(pointers + len(values)) if parameters is None else parameters
            fixed: FixedLaunch = DynamicTileLaunch(*given, parameters=every, counter=counter)
        else:
            fixed = FixedLaunch(*given) if parameters is None else TensorMapLaunch(*given, parameters=parameters)
        if programmatic:
            fixed.launch_by(ProgrammaticLaunch(fixed.function, shape, self.dynamic_shared))
            fixed.is_programmatic = True
        return fixed

    def _values(self, args: Sequence[object]) -> tuple[object, ...]:
        sizes: Sequence[int | None] = (None,) * len(args) if self.parameters is None else self.parameters
        if len(sizes) != len(args):
            raise LaunchError(f"{self.name!r} takes {len(sizes)} arguments", got=len(args))
        return tuple(self._value(position, *pair) for position, pair in enumerate(zip(args, sizes, strict=True)))

    def _value(self, position: int, arg: object, size: int | None) -> object:
        """Return the CuPy argument for a parameter: an object with exactly its bytes."""
        if isinstance(arg, self._array):
            value, got = arg, 8
        elif isinstance(arg, EncodedMap):
            value, got = arg.value, MAP_BYTES
        elif isinstance(arg, np.generic) or (isinstance(arg, np.ndarray) and arg.size == 1):
            value, got = arg, arg.nbytes
        elif isinstance(arg, int | float) and not isinstance(arg, bool):
            return self._number(position, arg, size)
        else:
            value, got = self._pointer(position, arg), 8
        if size is not None and got != size:
            raise self._misfit(position, arg, f"its parameter has {size} bytes, the argument {got}")
        return value

    def _number(self, position: int, arg: float, size: int | None) -> object:
        if size is None:
            raise self._misfit(
                position, arg, "this driver does not report the parameter's size: pass np.int32(...) or another NumPy scalar"
            )
        kind, widths = ("i", (1, 2, 4, 8)) if isinstance(arg, int) else ("f", (2, 4, 8))
        if size not in widths or (isinstance(arg, int) and not -(2 ** (8 * size - 1)) <= arg < 2 ** (8 * size - 1)):
            raise self._misfit(position, arg, f"it does not fit a parameter of {size} bytes")
        return np.dtype(f"{kind}{size}").type(arg)

    def _pointer(self, position: int, arg: object) -> object:
        interface = getattr(arg, "__cuda_array_interface__", None)
        if interface is None:
            raise self._misfit(position, arg, "it is not in GPU memory: copy it to the GPU, for example with cupy.asarray")
        return np.uintp(interface["data"][0])

    def _misfit(self, position: int, arg: object, why: str) -> LaunchError:
        got = arg if isinstance(arg, int | float | np.number) else type(arg).__name__
        return LaunchError(f"argument {position} of {self.name!r}: {why}", got=got)


class FixedLaunch:
    """A launch of which only addresses and stream change between calls.

    Its arguments are prepared in memory. Concurrent calls use separate memory, so it is thread-safe. The GPU need not be the current one.
    """

    def __init__(
        self,
        cupy: Any,
        name: str,
        function: Any,
        device: int,
        shape: tuple[int, ...],
        dynamic_shared: int,
        pointers: int,
        values: Sequence[int],
        fills: Fills,
    ) -> None:
        self.device = device
        self._name, self.shape, self.shared, self.fills = name, shape, dynamic_shared, fills
        self._function = function
        self._launch: Callable[[int, int, int], None] = functools.partial(
            cupy.cuda.driver.launchKernel, function.ptr, *shape, dynamic_shared
        )
        self._runtime, self._current = cupy.cuda.runtime, cupy.cuda.runtime.getDevice
        self._pointers, self.values = pointers, values
        self._pack = struct.Struct(f"={pointers}Q").pack_into
        self._idle: list[Frame] = []
        self._thread = threading.local()

    parameters: Sequence[Parameter] | None = None
    """The parameters in order; None if these are all addresses, then all `values`."""
    counter: Callable[[int], int] | None = None
    """Returns, for a stream, the address of the tile counter, which is the last address and not an argument of callers."""
    is_programmatic = False
    """Whether the kernel may start before the preceding kernel in the stream ends (PDL)."""

    @property
    def function(self) -> int:
        """The driver's handle of the kernel."""
        handle: int = self._function.ptr
        return handle

    def launch_by(self, launch: Callable[[int, int, int], None]) -> None:
        """Replace the function that launches. It takes the stream, the table of arguments, and 0."""
        self._launch = launch

    def frame(self, addresses: Sequence[int]) -> Frame:
        """Return memory with the arguments of one launch, for `fire`."""
        return Frame(self._pack, self._pointers, addresses, self.values)

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Launch on these addresses, asynchronously.

        Raises:
            LaunchError: the driver refuses the launch.
        """
        try:
            frame = self._idle.pop()
        except IndexError:
            frame = self.frame(addresses)
        else:
            self._pack(frame.slots, 0, *addresses)
        self.fire(frame, addresses, stream)
        self._idle.append(frame)

    def fire(self, frame: Frame, addresses: Sequence[int], stream: int) -> None:
        """Launch with prepared arguments. Raises: `LaunchError` if the driver refuses the launch.

        Threads may share a frame that does not change.
        """
        if self._current() != self.device:
            return self._elsewhere(frame, addresses, stream)
        if not hasattr(self._thread, "ready"):
            self._runtime.setDevice(self.device)  # gives a new thread its context
            self._thread.ready = True
        try:
            for position, fill in self.fills:
                fill(addresses[position], stream)
            self._launch(stream, frame.table, 0)
        except RuntimeError as error:  # CuPy's CUDADriverError and CUDARuntimeError
            raise self._refused(error) from error

    def _elsewhere(self, frame: Frame, addresses: Sequence[int], stream: int) -> None:
        """Launch while another GPU is the current one."""
        with on_device(self.device):
            self.fire(frame, addresses, stream)

    def _refused(self, error: RuntimeError) -> LaunchError:
        grid, block = self.shape[:3], self.shape[3:]
        sizes = f"grid {grid}, block {block}, {self.shared} bytes of dynamic shared memory"
        capturing = "CAPTURE" in str(error).upper()
        hint = "a graph captures only launches on its stream: make it the current stream of the arrays' library, or pass stream="
        asked = f"the driver refuses to launch {self._name!r} on GPU {self.device} with {sizes}"
        return LaunchError(asked, got=str(error), hint=hint if capturing else None)


class Frame:
    """The arguments of one launch in memory, and the table of their addresses that `cuLaunchKernel` reads.

    Each argument has a slot of 8 bytes. Slots are little-endian, so a parameter of 4 bytes reads the lower half.
    """

    __slots__ = ("_table", "slots", "table")

    def __init__(self, pack: Any, pointers: int, addresses: Sequence[int], values: Sequence[int]) -> None:
        count = pointers + len(values)
        self.slots = (ctypes.c_int64 * count)()
        self.slots[pointers:] = list(values)
        pack(self.slots, 0, *addresses)
        start = ctypes.addressof(self.slots)
        self._table = (ctypes.c_void_p * count)(*(start + 8 * position for position in range(count)))
        self.table = ctypes.addressof(self._table)


# --- programmatic dependent launch -------------------------------------------------------------------------------------------------


class _Attribute(ctypes.Structure):
    """`CUlaunchAttribute` with an integer value: 8 bytes before a union of 64."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60))


class _Config(ctypes.Structure):
    """`CUlaunchConfig`: blocks, threads of a block, bytes of dynamic shared memory, stream, attributes."""

    _fields_ = (
        ("shape", ctypes.c_uint * 6),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class ProgrammaticLaunch:
    """`cuLaunchKernelEx` with programmatic stream serialization (PDL): the kernel may start before the preceding kernel in its stream ends.

    In a captured graph it becomes a programmatic edge. Thread-safe: each thread has its own configuration.
    """

    def __init__(self, function: int, shape: Sequence[int], dynamic_shared: int) -> None:
        self._function, self._shape, self._shared = function, tuple(shape), dynamic_shared
        launch = getattr(_driver(), "cuLaunchKernelEx", None)
        if launch is None:
            hint = "install a driver of CUDA 11.8 or newer, or remove .programmatic_launch()"
            raise LaunchError("this driver does not support programmatic dependent launch", hint=hint)
        self._launch = launch
        self._thread = threading.local()

    def __call__(self, stream: int, table: int, extra: int) -> None:
        """Launch. Raises: RuntimeError with the driver's error code."""
        config = getattr(self._thread, "config", None)
        if config is None:
            attribute = _Attribute(_PROGRAMMATIC_SERIALIZATION, b"", 1)
            config = self._thread.config = _Config((ctypes.c_uint * 6)(*self._shape), self._shared, None, ctypes.pointer(attribute), 1)
        config.stream = stream
        status = self._launch(ctypes.byref(config), self._function, table, extra)
        if status:
            raise RuntimeError(_error_text(status))


def _error_text(status: int) -> str:
    """Return the driver's name of an error."""
    get_name, name = getattr(_driver(), "cuGetErrorName", None), ctypes.c_char_p()
    if get_name is not None and not get_name(status, ctypes.byref(name)) and name.value:
        return f"{name.value.decode()} ({status})"
    return f"CUDA error {status}"


# --- tensor maps ------------------------------------------------------------------------------------------------------


@frozen(eq=False)
class EncodedMap:
    """A tensor map in host memory for launches. It is valid as long as this object exists.

    Attributes:
        address: the address of its 128 bytes, a multiple of 64.
    """

    address: int
    _room: Any = field(repr=False)

    @property
    def value(self) -> np.void:
        """The bytes of the tensor map."""
        return np.void(ctypes.string_at(self.address, MAP_BYTES))


def encoded_map(kind: int, address: int, extents: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int) -> EncodedMap:
    """Encode a tensor map by the driver. Elements out of bounds are read as zeros and are not written.

    Args:
        kind: the element type, a `CUtensorMapDataType`.
        address: of the first element, in GPU memory.
        extents: elements along each dimension, contiguous dimension first.
        strides: bytes between consecutive elements along each other dimension.
        box: elements of a copy along each dimension.
        swizzle: the layout of the copy in shared memory, a `CUtensorMapSwizzle`.

    Raises:
        LaunchError: the driver is older than CUDA 12, or refuses the tensor map.
    """
    encode = _encoder("cuTensorMapEncodeTiled")
    rank, uint32s = len(extents), ctypes.c_uint32 * len(extents)
    start, room = _room_of_map()
    shape = *_arrays_of_map(extents, strides), uint32s(*box), uint32s(*(1,) * rank)
    status = encode(start, kind, rank, address, *shape, _NOT_INTERLEAVED, swizzle, PROMOTED, _ZEROS_OUTSIDE)
    if status:
        asked = f"the driver refuses a tensor map of {tuple(extents)} elements at {address:#x}"
        raise LaunchError(asked, got=f"CUDA error {status}; strides {tuple(strides)} bytes, box {tuple(box)}, swizzle {swizzle}")
    return EncodedMap(start, room)


def encoded_pixels(
    kind: int, address: int, extents: Sequence[int], strides: Sequence[int], box: Sequence[int], corners: Sequence[Sequence[int]],
    steps: Sequence[int], swizzle: int,
) -> EncodedMap:  # fmt: skip
    """Encode a tensor map in im2col mode by the driver. Pixels out of bounds are read as zeros.

    Args:
        box: the channels and the pixels of a copy.
        corners: the lower and the upper corner of the base pixels, width first.
        steps: the traversal strides of the image dimensions, width first.

    The other arguments are those of `encoded_map`.

    Raises:
        LaunchError: the driver is older than CUDA 12, or refuses the tensor map.
    """
    encode = _encoder("cuTensorMapEncodeIm2col")
    rank, integers = len(extents), ctypes.c_int * len(steps)
    start, room = _room_of_map()
    lower, upper = (integers(*corner) for corner in corners)
    traversal = (ctypes.c_uint32 * rank)(1, *steps, 1)
    pixels = lower, upper, box[0], box[1], traversal
    status = encode(
        start, kind, rank, address, *_arrays_of_map(extents, strides), *pixels, _NOT_INTERLEAVED, swizzle, PROMOTED, _ZEROS_OUTSIDE
    )
    if status:
        asked = f"the driver refuses a tensor map of the pixels of {tuple(extents)} elements at {address:#x}"
        given = ", ".join(str(tuple(numbers)) for numbers in corners)
        got = f"CUDA error {status}; strides {tuple(strides)} bytes, box {tuple(box)}, corners {given}, steps {tuple(steps)}"
        raise LaunchError(asked, got=f"{got}, swizzle {swizzle}")
    return EncodedMap(start, room)


def _encoder(name: str) -> Callable[..., int]:
    encode: Callable[..., int] | None = getattr(_driver(), name, None)
    if encode is None:
        raise LaunchError("this driver does not support tensor maps", hint="install a driver of CUDA 12 or newer")
    return encode


def _room_of_map() -> tuple[int, Any]:
    """The address of memory for a tensor map, and the object that owns it."""
    room = ctypes.create_string_buffer(MAP_BYTES + _MAP_ALIGNMENT)
    start = ctypes.addressof(room)
    return start + -start % _MAP_ALIGNMENT, room


def _arrays_of_map(extents: Sequence[int], strides: Sequence[int]) -> tuple[Any, Any]:
    return (ctypes.c_uint64 * len(extents))(*extents), (ctypes.c_uint64 * len(strides))(*strides)


@frozen
class TiledForm:
    """The arguments of `encoded_map` without the address."""

    kind: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int


@frozen(eq=False)
class Mapped:
    """A kernel parameter that is a tensor map of the array whose address is at `place` in a launch.

    `encode` returns the map of an address; `form` is the map without the address, if known.
    """

    place: int
    encode: Callable[[int], EncodedMap]
    form: TiledForm | None = None


Parameter = int | Mapped
"""A kernel parameter: the index of a value among the addresses and the integers after them, or a tensor map."""


class TensorMapLaunch(FixedLaunch):
    """A fixed launch of a kernel with tensor maps.

    To create a frame, each map must be looked up, so the frames of the last `KEPT_FRAMES` sets of addresses are cached. Frames do not
    change, so threads may share them.
    """

    def __init__(self, *given: Any, parameters: Sequence[Parameter]) -> None:
        super().__init__(*given)
        self.parameters = parameters
        self._known = functools.lru_cache(maxsize=KEPT_FRAMES)(self.frame)

    def frame(self, addresses: Sequence[int]) -> Frame:
        """Return memory with the arguments of one launch, for `fire`."""
        return TensorMapFrame(self._pack, self._pointers, addresses, self.values, self.parameters or ())

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Launch on these addresses, asynchronously.

        Raises:
            LaunchError: TMA does not support an address, or the driver refuses the launch.
        """
        self.fire(self._known(tuple(addresses)), addresses, stream)


class DynamicTileLaunch(TensorMapLaunch):
    """A fixed launch of a kernel with a dynamic tile scheduler. The address of the tile counter depends on the stream."""

    def __init__(self, *given: Any, parameters: Sequence[Parameter], counter: Callable[[int], int]) -> None:
        super().__init__(*given, parameters=parameters)
        self.counter = counter

    def frame(self, addresses: Sequence[int]) -> Frame:
        """Return memory with the arguments of one launch. Before the stream is known, the address of the counter is 0."""
        return super().frame(addresses if len(addresses) == self._pointers else (*addresses, 0))

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Launch on these addresses, asynchronously.

        Raises:
            LaunchError: TMA does not support an address, or the driver refuses the launch.
        """
        assert self.counter is not None
        all_addresses = (*addresses, self.counter(stream))
        super().fire(self._known(all_addresses), all_addresses, stream)

    def fire(self, frame: Frame, addresses: Sequence[int], stream: int) -> None:
        """Launch with prepared arguments. If these do not include the counter, add it."""
        if len(addresses) == self._pointers:
            super().fire(frame, addresses, stream)
        else:
            self(addresses, stream)


class TensorMapFrame(Frame):
    """The arguments of a launch with tensor maps. The table points to the maps, which the frame keeps alive."""

    __slots__ = ("_maps",)

    def __init__(self, pack: Any, pointers: int, addresses: Sequence[int], values: Sequence[int], parameters: Sequence[Parameter]) -> None:
        super().__init__(pack, pointers, addresses, values)
        slots = self._table
        self._maps = {mapped: mapped.encode(addresses[mapped.place]) for mapped in parameters if isinstance(mapped, Mapped)}
        places = [slots[index] if isinstance(index, int) else self._maps[index].address for index in parameters]
        self._table = (ctypes.c_void_p * len(places))(*places)
        self.table = ctypes.addressof(self._table)


KEPT_FRAMES = 64
"""Number of sets of addresses whose arguments a launch with tensor maps caches. The least recently used set is removed first."""


# --- setting to zero --------------------------------------------------------------------------------------------------


@frozen
class Fill:
    """Sets the elements of an array to zero: `height` rows of `width` bytes, `pitch` bytes apart, at each of the offsets `starts`.

    With `bits`, it sets elements of 32 bits to these. It only uses memsets on the stream, so a graph may capture it.
    """

    width: int
    height: int
    pitch: int
    starts: tuple[int, ...]
    _memset: Any = field(repr=False, eq=False)
    bits: int = 0

    def __call__(self, address: int, stream: int) -> None:
        """Fill at an address of the current GPU.

        Raises:
            LaunchError: the driver reports an error.
        """
        for start in self.starts:
            if self.bits:
                _fill_words(address + start, self, stream)
            elif self.height == 1:
                self._memset(address + start, 0, self.width, stream)
            else:
                _fill_rows(address + start, self, stream)


Fills = Sequence[tuple[int, Fill]]


def fill_of(shape: Sequence[int], strides: Sequence[int], itemsize: int, bits: int = 0) -> Fill:
    """Return the fill of an array, from its shape and its strides in bytes: with zeros, or with the `bits` of elements of 4 bytes."""
    width = itemsize
    outer: list[tuple[int, int]] = []
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride == width:  # contiguous with the dimensions so far
            width *= size
        else:
            outer.append((size, stride))
    (height, pitch), *rest = outer or [(1, width)]
    if pitch < width:  # rows that interleave
        width, height, pitch, rest = itemsize, 1, itemsize, [(size, stride) for size, stride in zip(shape, strides, strict=True)]
    steps = [[stride * index for index in range(size)] for size, stride in rest]
    starts = tuple(sum(step) for step in itertools.product(*steps)) if 0 not in shape else ()
    return Fill(width, height, pitch, starts, require_cupy().cuda.runtime.memsetAsync, bits)


def _fill_rows(address: int, fill: Fill, stream: int) -> None:
    driver = _driver()
    status = 1 if driver is None else driver.cuMemsetD2D8Async(address, fill.pitch, 0, fill.width, fill.height, stream)
    if status:
        raise LaunchError(f"the driver refuses to set {fill.height} rows of {fill.width} bytes to zero", got=f"CUDA error {status}")


def _fill_words(address: int, fill: Fill, stream: int) -> None:
    driver = _driver()
    status = 1 if driver is None else driver.cuMemsetD2D32Async(address, fill.pitch, fill.bits, fill.width // 4, fill.height, stream)
    if status:
        raise LaunchError(f"the driver refuses to set {fill.height} rows of {fill.width} bytes to a number", got=f"CUDA error {status}")


def zero(array: Any, stream: object = None) -> None:
    """Set a CuPy array to zero on the stream of a kernel that accumulates into it, by default CuPy's current stream.

    Only the array's elements are written, not the gaps between padded rows.

    Raises:
        LaunchError: `stream` is not a stream, or the driver reports an error.
    """
    cupy = require_cupy()
    device = array.data.device_id
    with on_device(device):
        address = cupy.cuda.get_current_stream(device).ptr if stream is None else stream_address(stream, device)
        fill_of(array.shape, array.strides, array.dtype.itemsize)(array.data.ptr, address)


# --- CuPy and the driver ----------------------------------------------------------------------------------------------


def require_cupy() -> Any:
    """Return CuPy, if it can use a GPU.

    Raises:
        LaunchError: CuPy, the driver or a GPU is missing; the message names it.
    """
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise _no_cupy(error) from error
    try:
        if cupy.cuda.runtime.getDeviceCount() > 0:
            return cupy
        got = None
    except RuntimeError as error:  # CuPy's CUDARuntimeError
        got = str(error)
    raise _no_gpu(got)


def _no_cupy(error: ImportError) -> LaunchError:
    builds = cupy_builds()
    if len(builds) > 1:
        hint = f"pip uninstall {' '.join(builds)}, then {_PIP}"
        return LaunchError(f"CuPy cannot be imported: {' and '.join(builds)} are installed together", got=str(error), hint=hint)
    if builds or getattr(error, "name", None) != "cupy":
        return LaunchError(f"CuPy ({', '.join(builds) or 'installed'}) cannot be imported", got=str(error), hint=_PIP)
    return LaunchError("running on a GPU requires CuPy, which is not installed", hint=_PIP)


def _no_gpu(got: str | None) -> LaunchError:
    """Return the reason why CuPy sees no GPU: no driver, an old driver, no GPU, or a hidden GPU."""
    if _driver() is None:
        return LaunchError(
            "CuPy is installed, but the NVIDIA driver is not (no libcuda.so.1)", got=got, hint="install the driver, or simulate"
        )
    if got is not None and "InsufficientDriver" in got:
        hint = "install a newer driver, or pip install 'fireiron[cuda12]'"
        return LaunchError("the NVIDIA driver is older than CuPy needs", got=got, hint=hint)
    hidden = _gpus_of_the_driver()
    if hidden:
        asked = f"the driver has {hidden} GPU{'s' * (hidden > 1)}, this process sees none"
        return LaunchError(asked, got=got, hint="CUDA_VISIBLE_DEVICES hides them, or this user may not open /dev/nvidia*")
    return LaunchError("CuPy and the driver are installed, but there is no GPU", got=got, hint="run in the simulator: pass NumPy arrays")


def cupy_builds() -> tuple[str, ...]:
    """Return the installed packages that provide `cupy`. Only one of them may be installed."""
    return tuple(name for name in _BUILDS if _installed(name))


_BUILDS = ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x")


def _installed(package: str) -> bool:
    from importlib import metadata

    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _gpus_of_the_driver(folder: str = "/proc/driver/nvidia/gpus") -> int:
    """Return the number of GPUs of the kernel module, whether visible to the process or not."""
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0


@functools.cache
def _driver() -> Any:
    """Return the driver's library with the signatures of its functions; None if it is missing."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        integer, size, pointer, address = ctypes.c_int, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint64
        library.cuInit.argtypes = (ctypes.c_uint,)
        library.cuCtxGetCurrent.argtypes = (pointer,)
        library.cuCtxGetDevice.argtypes = (pointer,)
        library.cuDeviceGet.argtypes = (pointer, integer)
        library.cuDeviceGetAttribute.argtypes = (pointer, integer, integer)
        library.cuMemsetD2D8Async.argtypes = (address, size, ctypes.c_ubyte, size, size, pointer)
        library.cuThreadExchangeStreamCaptureMode.argtypes = (pointer,)
        library.cuGetErrorName.argtypes = (integer, pointer)
    except (OSError, AttributeError):
        return None
    words = getattr(library, "cuMemsetD2D32Async", None)
    if words is not None:
        words.argtypes = (address, size, ctypes.c_uint, size, size, pointer)
    launch = getattr(library, "cuLaunchKernelEx", None)  # from CUDA 11.8
    if launch is not None:
        launch.argtypes = (pointer,) * 4
    encode = getattr(library, "cuTensorMapEncodeTiled", None)  # from CUDA 12
    if encode is not None:
        code, arrays = ctypes.c_uint, (pointer,) * 4
        encode.argtypes = (pointer, code, ctypes.c_uint32, address, *arrays, code, code, code, code)
        number, pixels = ctypes.c_uint32, library.cuTensorMapEncodeIm2col
        pixels.argtypes = (pointer, code, number, address, *arrays, number, number, pointer, code, code, code, code)
    return library


def addresses_of(functions: Sequence[str]) -> tuple[int, ...]:
    """Return the addresses of driver functions for calls from C; 0 for missing functions."""
    driver = _driver()
    pointers = [getattr(driver, name, None) for name in functions]
    return tuple(0 if pointer is None else ctypes.cast(pointer, ctypes.c_void_p).value or 0 for pointer in pointers)


def context_of(device: int) -> int:
    """Return the driver's handle of the context in which a GPU's kernels are loaded.

    Raises: LaunchError if there is no context.
    """
    context = ctypes.c_void_p()
    with on_device(device):
        status = 1 if (driver := _driver()) is None else driver.cuCtxGetCurrent(ctypes.byref(context))
    if status or not context.value:
        raise LaunchError(f"GPU {device} has no context", got=f"CUDA error {status}")
    return context.value


@contextlib.contextmanager
def on_device(device: int) -> Iterator[None]:
    """Make a GPU the current one of this thread."""
    runtime = require_cupy().cuda.runtime
    before = runtime.getDevice()
    runtime.setDevice(device)
    try:
        yield
    finally:
        runtime.setDevice(before)


@contextlib.contextmanager
def _loading_in_a_capture() -> Iterator[None]:
    """Permit this thread to load code while one of its streams is being captured."""
    driver = _driver()
    mode = ctypes.c_int(_RELAXED)
    if driver is None or driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)):
        yield
        return
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


def _reserve_shared(cupy: Any, function: Any, name: str, dynamic: int) -> None:
    """Permit a kernel to use more than 48 KiB of shared memory, static and dynamic together."""
    driver = cupy.cuda.driver
    static: int = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function.ptr)
    limit: int = cupy.cuda.Device().attributes.get("MaxSharedMemoryPerBlockOptin", _DEFAULT_SHARED)
    if dynamic < 0 or static + dynamic > limit:
        asked = f"{name!r} needs {static} + {dynamic} bytes of shared memory per block (static + dynamic)"
        raise LaunchError(asked, legal=f"at most {limit} on this GPU")
    if static + dynamic > _DEFAULT_SHARED:
        driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic)


def _parameter_sizes(function: int) -> tuple[int, ...] | None:
    """Return the bytes of each parameter of a loaded kernel, from `cuFuncGetParamInfo` (CUDA 12.4); None if unknown."""
    query = getattr(_driver(), "cuFuncGetParamInfo", None)
    if query is None:
        return None
    query.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p)
    sizes: list[int] = []
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    for position in range(_MAX_PARAMETERS):
        status = query(function, position, ctypes.byref(offset), ctypes.byref(size))
        if status == 1:  # CUDA_ERROR_INVALID_VALUE: no such parameter
            return tuple(sizes)
        if status:
            return None
        sizes.append(size.value)
    return None


def _extent(what: str, value: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return a grid or block as a tuple. Refuse zero, for which CuPy would launch one block."""
    extent = tuple(map(operator.index, value)) if isinstance(value, tuple) else (operator.index(value),)
    if not 1 <= len(extent) <= 3 or min(extent) < 1:
        raise LaunchError(f"a {what} has one to three sizes of at least 1", got=value)
    return extent


def _whole(extent: tuple[int, ...]) -> tuple[int, ...]:
    return (*extent, 1, 1)[:3]


# --- streams ----------------------------------------------------------------------------------------------------------


@frozen
class _Stream:
    """A stream of another library for CuPy's launch: an object with its address in `ptr`."""

    ptr: int


def _stream(stream: object) -> object:
    if stream is None or hasattr(stream, "ptr"):
        return stream
    if isinstance(stream, int) and not isinstance(stream, bool) and stream >= 0:
        return _Stream(stream)
    if hasattr(stream, "__cuda_stream__"):  # (protocol version, address)
        return _Stream(stream.__cuda_stream__()[1])
    if hasattr(stream, "cuda_stream"):  # PyTorch before it had the protocol
        return _Stream(stream.cuda_stream)
    raise LaunchError("the value is not a CUDA stream", got=stream, legal="None, a CuPy stream, an object with __cuda_stream__, an address")


def stream_address(stream: object, device: int) -> int:
    """Return the address of a given stream.

    Raises:
        LaunchError: it is not a stream, or it is known to belong to another GPU.
    """
    address: int = _stream(stream).ptr  # type: ignore[attr-defined]
    owner = getattr(stream, "device_id", None)  # CuPy: -1 is any
    owner = getattr(stream, "device_index", owner)  # PyTorch
    if isinstance(owner, int) and owner not in (-1, device) and address > 2:
        raise LaunchError(
            f"the stream is of GPU {owner}, the arrays are on GPU {device}", hint="create the stream on the GPU of the arrays"
        )
    return address


def same_stream(stream: int, other: int) -> bool:
    """Return whether two addresses are the same stream: 0 and 1 both are the legacy default stream."""
    return (stream or LEGACY) == (other or LEGACY)


def capturing(stream: int) -> bool:
    """Return whether a graph is being captured from a stream."""
    try:
        return bool(require_cupy().cuda.runtime.streamIsCapturing(stream))
    except RuntimeError:  # the legacy stream while another one is captured
        return False


def capture_of(stream: int) -> int:
    """Return the id of the capture of a stream, from 1; 0 if there is none."""
    if not capturing(stream):
        return 0
    status, number = ctypes.c_int(), ctypes.c_uint64()
    get_capture_info = getattr(_driver(), "cuStreamGetCaptureInfo_v2", None) or getattr(_driver(), "cuStreamGetCaptureInfo", None)
    if get_capture_info is None or get_capture_info(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None):
        raise LaunchError("the driver does not report which graph is captured", hint="in graphs, use persistent() without dynamic=True")
    return number.value + 1


def zeros(device: int, size: int) -> int:
    """Return the address of new GPU memory that is set to zero and never freed.

    A graph that is being captured does not include the memset.

    Raises:
        LaunchError: the GPU has too little free memory.
    """
    cupy = require_cupy()
    try:
        with on_device(device), _loading_in_a_capture():
            stream = cupy.cuda.Stream(non_blocking=True)
            address: int = cupy.cuda.runtime.malloc(size)
            cupy.cuda.runtime.memsetAsync(address, 0, size, stream.ptr)
            cupy.cuda.runtime.streamSynchronize(stream.ptr)
    except RuntimeError as error:
        raise LaunchError(f"GPU {device} cannot allocate {size} bytes", got=str(error)) from error
    return address


def order(first: int, then: int) -> None:
    """Make later work on the stream `then` wait for the present work of the stream `first`. Do nothing while either is being captured."""
    if same_stream(first, then) or capturing(first) or capturing(then):
        return
    cupy = require_cupy()
    event = cupy.cuda.Event(disable_timing=True)
    cupy.cuda.runtime.eventRecord(event.ptr, first)
    cupy.cuda.runtime.streamWaitEvent(then, event.ptr)


class KeptAlive:
    """Keeps objects alive until the present work of a stream has completed. Completion is checked whenever an object is added."""

    def __init__(self) -> None:
        self._queue: list[tuple[Any, object]] = []
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._queue)

    def until_done(self, kept: object, stream: int) -> None:
        """Keep an object until the work on the stream has completed. During a capture, the caller must keep the arrays."""
        if capturing(stream):
            return
        cupy = require_cupy()
        event = cupy.cuda.Event(disable_timing=True)
        cupy.cuda.runtime.eventRecord(event.ptr, stream)
        with self._lock:
            self._queue = [pair for pair in self._queue if not pair[0].done]
            self._queue.append((event, kept))
