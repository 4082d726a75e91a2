"""Kernels on a GPU: loading machine code and launching it, through CuPy. The only module that touches the driver.

CuPy is imported when it is first needed, so everything that needs no GPU works without it. Compile with
`compile_cuda(source, device_arch(), newest=driver_version())`, load the `cubin` once, launch it often:

    launcher = load(compiled.cubin, "saxpy", dynamic_shared=0)
    launcher(grid=(n + 255) // 256, block=256, args=(x, y, n))

Sources: CUDA Driver API, https://docs.nvidia.com/cuda/cuda-driver-api/, sections Module Management and Execution Control;
`cupy.cuda.Module` and `cupy.cuda.Function` of CuPy 14.
"""

from __future__ import annotations

import ctypes
import importlib
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import field, frozen

from fireiron.errors import LaunchError

_PIP = "pip install fireiron[cuda13], or fireiron[cuda12] for Volta and older"
_DEFAULT_SHARED = 48 * 1024  # bytes a block may use without asking; CUDA C++ Programming Guide, compute capabilities
_MAX_PARAMETERS = 32764  # bytes, hence an upper bound of their number too; CUDA C++ Programming Guide, kernel parameters


def gpu_available() -> bool:
    """Whether CuPy is installed and sees a GPU. Never raises."""
    try:
        return bool(importlib.import_module("cupy").cuda.is_available())
    except (ImportError, RuntimeError):  # RuntimeError: CuPy's errors of a broken driver
        return False


def device_arch() -> str:
    """The architecture of the current GPU, `"sm_90"`.

    Raises:
        LaunchError: CuPy or a GPU is missing.
    """
    return f"sm_{require_cupy().cuda.Device().compute_capability}"


def driver_version() -> tuple[int, int]:
    """The newest CUDA (major, minor) that the driver knows: a cap for the compiler, `compile_cuda(..., newest=driver_version())`.

    Raises:
        LaunchError: CuPy or a GPU is missing.
    """
    number: int = require_cupy().cuda.runtime.driverGetVersion()  # 13000 is 13.0, 12080 is 12.8
    return number // 1000, number % 1000 // 10


def load(cubin: bytes, name: str, dynamic_shared: int = 0) -> Launcher:
    """Load one kernel onto the current GPU.

    Args:
        cubin: machine code for this GPU's architecture.
        name: the kernel's name in it.
        dynamic_shared: bytes of dynamic shared memory a block. More than 48 KiB in all is asked of the driver here.

    Raises:
        LaunchError: CuPy or a GPU is missing, the code is for another architecture, has no such kernel, or needs more
            shared memory than the GPU has.
    """
    cupy = require_cupy()
    try:
        module = cupy.cuda.Module()
        module.load(cubin)
        function = module.get_function(name)  # keeps the module
        _reserve_shared(cupy, function, name, dynamic_shared)
    except RuntimeError as error:  # CuPy's CUDADriverError and CUDARuntimeError
        hint = f"compile it for {device_arch()} with a CUDA not newer than the driver's {'.'.join(map(str, driver_version()))}"
        raise LaunchError(f"the GPU does not load kernel {name!r}", got=str(error), hint=hint) from error
    return Launcher(name, dynamic_shared, _parameter_sizes(function.ptr), function, cupy.ndarray)


@frozen(eq=False)
class Launcher:
    """A kernel on a GPU, ready to run.

    Attributes:
        name: the kernel's name.
        dynamic_shared: bytes of dynamic shared memory a block.
        parameters: size of each parameter in bytes; None if the driver (older than 12.4) cannot tell, then nothing is checked.
    """

    name: str
    dynamic_shared: int
    parameters: tuple[int, ...] | None
    _function: Any = field(repr=False)
    _array: type = field(repr=False)  # cupy.ndarray, which needs no conversion

    def __call__(self, grid: int | tuple[int, ...], block: int | tuple[int, ...], args: Sequence[object], stream: object = None) -> None:
        """Launch the kernel; returns before it has run. The caller keeps the arrays alive and checks shapes and devices.

        Args:
            grid: blocks, as `x` or `(x, y, z)`.
            block: threads a block, likewise.
            args: for each parameter a CuPy array or anything with `__cuda_array_interface__` (passed as a pointer), a NumPy
                scalar or one-element array (passed by value, of exactly the parameter's size), or a plain number, which is
                converted to the parameter's size as a signed integer or a float.
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

    def _values(self, args: Sequence[object]) -> tuple[object, ...]:
        sizes: Sequence[int | None] = (None,) * len(args) if self.parameters is None else self.parameters
        if len(sizes) != len(args):
            raise LaunchError(f"{self.name!r} takes {len(sizes)} arguments", got=len(args))
        return tuple(self._value(position, *pair) for position, pair in enumerate(zip(args, sizes, strict=True)))

    def _value(self, position: int, arg: object, size: int | None) -> object:
        """What CuPy is given for one argument: an object whose bytes are exactly those of the parameter."""
        if isinstance(arg, self._array):
            value, got = arg, 8
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
            raise self._misfit(position, arg, "this driver does not tell the parameter's size: pass np.int32(...) or the like")
        kind, widths = ("i", (1, 2, 4, 8)) if isinstance(arg, int) else ("f", (2, 4, 8))
        if size not in widths or (isinstance(arg, int) and not -(2 ** (8 * size - 1)) <= arg < 2 ** (8 * size - 1)):
            raise self._misfit(position, arg, f"it does not fit a parameter of {size} bytes")
        return np.dtype(f"{kind}{size}").type(arg)

    def _pointer(self, position: int, arg: object) -> object:
        interface = getattr(arg, "__cuda_array_interface__", None)
        if interface is None:
            raise self._misfit(position, arg, "it is not in GPU memory; copy it there, say with cupy.asarray")
        return np.uintp(interface["data"][0])

    def _misfit(self, position: int, arg: object, why: str) -> LaunchError:
        got = arg if isinstance(arg, int | float | np.number) else type(arg).__name__
        return LaunchError(f"argument {position} of {self.name!r}: {why}", got=got)


def zero(array: Any, stream: object = None) -> None:
    """Set an array to zero, on the stream on which a kernel will add to it; a memset or a kernel, so a graph may capture it.

    Only the array's own elements are touched, not what lies between rows that are further apart than they are long.

    Raises:
        LaunchError: `stream` is no stream.
    """
    cupy = require_cupy()
    chosen = _stream(stream)
    with cupy.cuda.get_current_stream() if chosen is None else cupy.cuda.ExternalStream(chosen.ptr):  # type: ignore[attr-defined]
        array.fill(0)


# --- CuPy and the driver ----------------------------------------------------------------------------------------------


def require_cupy() -> Any:
    """CuPy, if it sees a GPU."""
    try:
        cupy = importlib.import_module("cupy")
    except ImportError as error:
        raise LaunchError("running on a GPU needs CuPy, which cannot be imported", got=str(error), hint=_PIP) from error
    if not gpu_available():
        raise LaunchError("CuPy sees no GPU here", hint=f"run in the simulator, or on a machine with an NVIDIA GPU ({_PIP})")
    return cupy


def _reserve_shared(cupy: Any, function: Any, name: str, dynamic: int) -> None:
    """Let a kernel use more than 48 KiB of shared memory (static and dynamic count together)."""
    driver = cupy.cuda.driver
    static: int = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function.ptr)
    limit: int = cupy.cuda.Device().attributes.get("MaxSharedMemoryPerBlockOptin", _DEFAULT_SHARED)
    if dynamic < 0 or static + dynamic > limit:
        asked = f"{name!r} needs {static} + {dynamic} bytes of shared memory a block (static + dynamic)"
        raise LaunchError(asked, legal=f"at most {limit} on this GPU")
    if static + dynamic > _DEFAULT_SHARED:
        driver.funcSetAttribute(function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic)


def _parameter_sizes(function: int) -> tuple[int, ...] | None:
    """The bytes of each parameter of a loaded kernel, from `cuFuncGetParamInfo` (CUDA 12.4); None where that is unknown."""
    try:
        query = ctypes.CDLL("libcuda.so.1").cuFuncGetParamInfo
    except (OSError, AttributeError):
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
    """A grid or block as a tuple. Zero is refused: CuPy would launch one block for it."""
    extent = tuple(map(operator.index, value)) if isinstance(value, tuple) else (operator.index(value),)
    if not 1 <= len(extent) <= 3 or min(extent) < 1:
        raise LaunchError(f"a {what} has one to three sizes of at least 1", got=value)
    return extent


@frozen
class _Stream:
    """A stream of another library, as CuPy's launch wants it: an object with its address in `ptr`."""

    ptr: int


def _stream(stream: object) -> object:
    if stream is None or hasattr(stream, "ptr"):
        return stream
    if isinstance(stream, int):
        return _Stream(stream)
    if hasattr(stream, "__cuda_stream__"):  # (protocol version, address)
        return _Stream(stream.__cuda_stream__()[1])
    if hasattr(stream, "cuda_stream"):  # PyTorch before it had the protocol
        return _Stream(stream.cuda_stream)
    raise LaunchError("this is no CUDA stream", got=stream, legal="None, a CuPy stream, an object with __cuda_stream__, an address")
