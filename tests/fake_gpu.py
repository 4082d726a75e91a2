"""A simulated GPU: the part of CuPy, PyTorch and JAX that launches use, on host memory, with every call recorded.

Addresses are real, so memsets take effect; kernels do not run, but the arguments of a launch are read back from memory as the driver reads
them. Several devices share that memory, each owning the arrays allocated on it.
"""

import contextlib
import ctypes
import itertools
import sys
import types

import numpy as np
import pytest

from fireiron.gpu import launch

ALIGNED = 512


class DriverError(RuntimeError):
    """A stand-in for CuPy's CUDADriverError and CUDARuntimeError."""


def memory(nbytes, offset=0):
    """Bytes at an aligned address (plus an offset), all 7s, as a NumPy array."""
    buffer = np.full(nbytes + 2 * ALIGNED, 7, np.uint8)
    start = -buffer.ctypes.data % ALIGNED + offset
    return buffer[start : start + nbytes]


class FakeGpu:
    """The machine: devices, the current one, streams, and the log of calls."""

    def __init__(self, devices=1, parameters=3, capability="90"):
        self.devices, self.parameters, self.capability = devices, parameters, capability
        self.current, self.done, self.captured, self.refuse = 0, [], set(), None
        self.loaded, self.owners, self.maps, self.map_status = [], {}, [], 0
        self.cupy = self._cupy()

    def of(self, kind):
        """The recorded steps of a kind."""
        return [step[1:] for step in self.done if step[0] == kind]

    @property
    def launches(self):
        """(device, grid, block, shared, stream, arguments) of each launch."""
        return self.of("launch")

    # ------------------------------------------------------------------------------------------ the driver

    def _launch(self, function, gx, gy, gz, bx, by, bz, shared, stream, table, extra):
        assert extra == 0 and function // 100 == self.current, "a function of the current device"
        if self.refuse:
            raise DriverError(self.refuse)
        slots = (ctypes.c_void_p * self.parameters).from_address(table)
        values = [ctypes.c_uint64.from_address(slot).value for slot in slots]
        self.done.append(("launch", self.current, (gx, gy, gz), (bx, by, bz), shared, stream, values))

    def cuInit(self, flags):
        return 0

    def cuCtxGetCurrent(self, context):
        return 0  # no context yet: the first device is used

    def cuDeviceGet(self, device, ordinal):
        device._obj.value = ordinal
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device):
        value._obj.value = int({75: self.capability[:-1], 76: self.capability[-1]}[attribute])
        return 0

    def cuLaunchKernelEx(self, config, function, table, extra):
        """A launch with attributes: `done` has them, as numbers and values, after the launch itself."""
        given = config._obj
        if self.refuse:
            return 1
        attributes = [(given.attributes[place].id, given.attributes[place].value) for place in range(given.count)]
        self._launch(function, *given.shape, given.shared, given.stream or 0, table, extra or 0)
        self.done.append(("attributes", attributes))
        return 0

    def _memset(self, address, value, count, stream):
        ctypes.memset(address, value, count)
        self.done.append(("memset", self.current, count, stream))

    def cuMemsetD2D8Async(self, address, pitch, value, width, height, stream):
        if pitch < width:
            return 1
        for row in range(height):
            ctypes.memset(address + row * pitch, value, width)
        self.done.append(("memset2d", self.current, width, height, stream))
        return 0

    def cuMemsetD2D32Async(self, address, pitch, bits, width, height, stream):
        for row in range(height):
            (ctypes.c_uint32 * width).from_address(address + row * pitch)[:] = [bits] * width
        self.done.append(("words", self.current, width, height, stream))
        return 0

    def cuTensorMapEncodeTiled(self, place, kind, rank, address, extents, strides, box, steps, *modes):
        """A map whose first word is the address, the second a number; `maps` has the arguments."""
        assert place % 64 == 0 and list(steps) == [1] * rank == [1] * len(box) and len(strides) == rank - 1
        ctypes.memset(place, 0, 128)
        (ctypes.c_uint64 * 2).from_address(place)[:] = address, len(self.maps)
        self.maps.append((kind, address, tuple(extents), tuple(strides), tuple(box), modes))
        return self.map_status

    def cuThreadExchangeStreamCaptureMode(self, mode):
        return 0

    def _set(self, device):
        if not 0 <= device < self.devices:
            raise DriverError("cudaErrorInvalidDevice")
        self.current = device

    def _attributes(self, address):
        return types.SimpleNamespace(device=self.owners.get(address, 0), devicePointer=address)

    # ------------------------------------------------------------------------------------------ CuPy

    def _cupy(gpu):
        numbers = itertools.count(1)
        streams = {}

        class Stream:
            def __init__(self, ptr=None, device_id=None):
                self.ptr = next(numbers) * 4096 if ptr is None else ptr
                self.device_id = gpu.current if device_id is None else device_id

            def __enter__(self):
                streams.setdefault(gpu.current, []).append(self)
                return self

            def __exit__(self, *_):
                streams[gpu.current].pop()

            @classmethod
            def from_external(cls, other):
                version, address = other.__cuda_stream__()
                assert version == 0, "of the protocol"
                return cls(address, -1)

        null = Stream(0, -1)

        class Event:
            def __init__(self, disable_timing=False):
                self.ptr, self.done = next(numbers), False

        class Module:
            def load(self, cubin):
                gpu.loaded.append((gpu.current, cubin))

            def get_function(self, name):
                return types.SimpleNamespace(ptr=gpu.current * 100 + 1)

        class Device:
            def __init__(self):
                self.id, self.compute_capability = gpu.current, gpu.capability
                self.attributes = {"MaxSharedMemoryPerBlockOptin": 232448}

        class ndarray:
            def __init__(self, shape, dtype, data, strides=None, device=None):
                dtype = np.dtype(dtype)
                self.host = np.ndarray(shape, dtype, data, strides=strides)
                self.data = types.SimpleNamespace(ptr=self.host.ctypes.data, device_id=gpu.current if device is None else device)
                gpu.owners[self.data.ptr] = self.data.device_id

            shape = property(lambda self: self.host.shape)
            strides = property(lambda self: self.host.strides)
            dtype = property(lambda self: self.host.dtype)

            @property
            def T(self):
                transposed = object.__new__(ndarray)
                transposed.host, transposed.data = self.host.T, self.data
                return transposed

        runtime = types.SimpleNamespace(
            getDevice=lambda: gpu.current,
            setDevice=gpu._set,
            getDeviceCount=lambda: gpu.devices,
            driverGetVersion=lambda: 13000,
            memsetAsync=gpu._memset,
            streamIsCapturing=lambda stream: stream in gpu.captured,
            eventRecord=lambda event, stream: gpu.done.append(("record", event, stream)),
            streamWaitEvent=lambda stream, event: gpu.done.append(("wait", stream, event)),
            pointerGetAttributes=gpu._attributes,
        )
        driver = types.SimpleNamespace(
            launchKernel=gpu._launch,
            funcGetAttribute=lambda attribute, function: 0,
            funcSetAttribute=lambda function, attribute, value: None,
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES=1,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
        )
        cupy = types.ModuleType("cupy")
        cupy.ndarray = ndarray
        cupy.cuda = types.SimpleNamespace(
            Stream=Stream,
            Event=Event,
            Module=Module,
            Device=Device,
            runtime=runtime,
            driver=driver,
            alloc=memory,
            is_available=lambda: gpu.devices > 0,
            get_current_stream=lambda device=None: (streams.get(gpu.current if device is None else device) or [null])[-1],
        )
        cupy.from_dlpack = lambda array: array.__dlpack__()
        return cupy

    def array(self, shape, dtype="float32", order="C", ld=None, device=None, offset=0):
        """A CuPy array with a leading dimension of `ld` elements."""
        dtype = np.dtype(dtype)
        rows, columns = shape
        strides = ((ld or columns) * dtype.itemsize, dtype.itemsize) if order == "C" else (dtype.itemsize, (ld or rows) * dtype.itemsize)
        count = sum((size - 1) * stride for size, stride in zip(shape, strides)) + dtype.itemsize
        return self.cupy.ndarray(shape, dtype, memory(count, offset), strides, device)


def fake_torch(gpu):
    """The part of PyTorch that is read: tensors over NumPy arrays."""
    torch = types.ModuleType("torch")
    state = types.SimpleNamespace(grad=True, stream=0)

    class dtype:
        def __init__(self, name, itemsize):
            self.name, self.itemsize = name, itemsize

        def __repr__(self):
            return f"torch.{self.name}"

    sizes = {"float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "int8": 1, "uint8": 1, "int32": 4, "float64": 8}
    types_of = {name: dtype(name, size) for name, size in sizes.items()}

    class Tensor:
        def __init__(self, shape, strides, dtype, device=0, data=None, requires_grad=False):
            span = sum((size - 1) * stride for size, stride in zip(shape, strides)) + 1
            self.bytes = memory(span * dtype.itemsize) if data is None else data
            self.shape, self._strides, self.dtype = tuple(shape), tuple(strides), dtype
            self.index, self.requires_grad, self.layout, self.negative = device, requires_grad, torch.strided, False

        is_cuda = property(lambda self: self.index >= 0)
        device = property(lambda self: f"cuda:{self.index}" if self.is_cuda else "cpu")
        stride = lambda self: self._strides
        data_ptr = lambda self: self.bytes.ctypes.data
        get_device = lambda self: self.index
        is_neg = lambda self: self.negative
        element_size = lambda self: self.dtype.itemsize

    @contextlib.contextmanager
    def on(stream):
        before, state.stream = state.stream, stream.cuda_stream
        yield
        state.stream = before

    def empty_strided(shape, strides, dtype, device):
        gpu.done.append(("empty", state.stream))
        return Tensor(shape, strides, dtype, int(device.removeprefix("cuda:")))

    torch.__dict__.update(types_of, Tensor=Tensor, strided="strided", state=state, empty_strided=empty_strided)
    torch.is_grad_enabled = lambda: state.grad
    torch._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda device: state.stream)
    torch.cuda = types.SimpleNamespace(stream=on, ExternalStream=lambda address, device: types.SimpleNamespace(cuda_stream=address))
    return torch


def fake_jax(gpu):
    """The part of JAX that is read: arrays that record when they are waited for."""
    jax = types.ModuleType("jax")

    class Array:
        def __init__(self, shape, dtype="float32", device=0, kind=2, host=None):
            self.host = np.ndarray(shape, dtype, memory(int(np.prod(shape)) * np.dtype(dtype).itemsize)) if host is None else host
            self.index, self.kind, self.waited = device, kind, 0

        shape = property(lambda self: self.host.shape)
        dtype = property(lambda self: self.host.dtype)

        @property
        def T(self):
            return Array(None, host=self.host.T)

        def __dlpack_device__(self):
            return self.kind, self.index

        def block_until_ready(self):
            self.waited += 1

        def unsafe_buffer_pointer(self):
            return self.host.ctypes.data

    class Tracer(Array):
        def __init__(self):
            pass

    def from_dlpack(array):
        assert array.host.flags.c_contiguous
        gpu.done.append(("import", gpu.cupy.cuda.get_current_stream().ptr))
        return Array(None, host=array.host)

    jax.Array, jax.core, jax.dlpack = Array, types.SimpleNamespace(Tracer=Tracer), types.SimpleNamespace(from_dlpack=from_dlpack)
    return jax


class Interfaced:
    """An array that supports `__cuda_array_interface__` only."""

    def __init__(self, array, stream=None, readonly=False, **entries):
        self.array, self.entries = array, entries
        self.stream, self.readonly = stream, readonly

    @property
    def __cuda_array_interface__(self):
        host = self.array.host
        interface = {"shape": host.shape, "strides": host.strides, "typestr": host.dtype.str, "data": (self.array.data.ptr, self.readonly)}
        return {**interface, "version": 3, "stream": self.stream, **self.entries}


class Capsule:
    """An array that supports DLPack only."""

    def __init__(self, array, kind=2):
        self.array, self.kind = array, kind

    def __dlpack_device__(self):
        return self.kind, self.array.data.device_id

    def __dlpack__(self, **_):
        return self.array


# ---------------------------------------------------------------------------------------------- for tests


def installed(monkeypatch, gpu):
    """Install the machine instead of CuPy and the driver."""
    monkeypatch.setitem(sys.modules, "cupy", gpu.cupy)
    monkeypatch.setattr(launch, "_driver", lambda: gpu)
    monkeypatch.setattr(launch, "_parameter_sizes", lambda function: None)
    return gpu


@pytest.fixture
def torch(gpu, monkeypatch):
    """PyTorch on the machine of a file's fixture `gpu`."""
    module = fake_torch(gpu)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.fixture
def jax(gpu, monkeypatch):
    """JAX on it."""
    module = fake_jax(gpu)
    monkeypatch.setitem(sys.modules, "jax", module)
    return module
