"""Calls of launches to the driver and CuPy: structures and prototypes of the CUDA driver API, launcher arguments, streams, captures."""

import ctypes
import re
import sys
import threading
import types

import numpy as np
import pytest
from fake_gpu import DriverError, FakeGpu, Interfaced

from fireiron import LaunchError
from fireiron.gpu import launch

SHAPE = (7, 1, 1, 64, 1, 1)


@pytest.fixture
def gpu(monkeypatch):
    gpu = FakeGpu()
    monkeypatch.setitem(sys.modules, "cupy", gpu.cupy)
    monkeypatch.setattr(launch, "_driver", lambda: gpu)
    return gpu


# ---------------------------------------------------------------------------------------------- structures and prototypes


def field_offsets(structure):
    """The offset of each field of a structure, and its size."""
    return {name: (getattr(structure, name).offset, getattr(structure, name).size) for name, *_ in structure._fields_}


def test_structures_have_the_offsets_of_the_header():
    """cuda.h: `CUlaunchAttribute` is an id, 4 bytes of padding and a union of 64; `CUlaunchConfig` has 7 words, a stream, a pointer, a count."""
    attribute, config = field_offsets(launch._Attribute), field_offsets(launch._Config)
    assert attribute["id"] == (0, 4) and attribute["value"] == (8, 4) and ctypes.sizeof(launch._Attribute) == 72
    assert config == {"shape": (0, 24), "shared": (24, 4), "stream": (32, 8), "attributes": (40, 8), "count": (48, 4)}
    assert ctypes.sizeof(launch._Config) == 56


PROTOTYPES = {
    "cuInit": "4",
    "cuCtxGetCurrent": "8",
    "cuCtxGetDevice": "8",
    "cuDeviceGet": "8 4",
    "cuDeviceGetAttribute": "8 4 4",
    "cuMemsetD2D8Async": "8 8 1 8 8 8",
    "cuMemsetD2D32Async": "8 8 4 8 8 8",
    "cuThreadExchangeStreamCaptureMode": "8",
    "cuGetErrorName": "4 8",
    "cuLaunchKernelEx": "8 8 8 8",
    "cuTensorMapEncodeTiled": "8 4 4 8 8 8 8 8 4 4 4 4",
    "cuTensorMapEncodeIm2col": "8 4 4 8 8 8 8 8 4 4 8 4 4 4 4",
}
"""Bytes of the parameters of each function, as declared in cuda.h."""


class Library:
    """A library with all functions except some."""

    def __init__(self, without=()):
        self.without, self.functions = without, {}

    def __getattr__(self, name):
        if name in self.without:
            raise AttributeError(name)
        return self.functions.setdefault(name, types.SimpleNamespace(argtypes=None))


@pytest.mark.parametrize(
    "missing", [(), ("cuLaunchKernelEx",), ("cuTensorMapEncodeTiled",), ("cuLaunchKernelEx", "cuTensorMapEncodeTiled")]
)
def test_parameters_of_the_driver_have_the_sizes_of_the_header(monkeypatch, missing):
    """Also an old driver, without launch attributes and tensor maps."""
    opened = []
    monkeypatch.setattr(launch.ctypes, "CDLL", lambda name: (opened.append(name), Library(missing))[1])
    functions = launch._driver.__wrapped__()
    widths = {name: " ".join(str(ctypes.sizeof(one)) for one in function.argtypes) for name, function in functions.functions.items()}
    absent = {*missing, *(("cuTensorMapEncodeIm2col",) if "cuTensorMapEncodeTiled" in missing else ())}
    assert widths == {name: given for name, given in PROTOTYPES.items() if name not in absent} and opened == ["libcuda.so.1"]


def test_a_driver_without_a_required_function_is_rejected(monkeypatch):
    monkeypatch.setattr(launch.ctypes, "CDLL", lambda name: Library(("cuMemsetD2D8Async",)))
    assert launch._driver.__wrapped__() is None
    monkeypatch.setattr(launch.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    assert launch._driver.__wrapped__() is None


# ---------------------------------------------------------------------------------------------- loading


class Modes:
    """The capture mode of a thread, which `cuThreadExchangeStreamCaptureMode` exchanges."""

    def __init__(self, mode=0, status=0):
        self.mode, self.status, self.seen = mode, status, []

    def cuThreadExchangeStreamCaptureMode(self, reference):
        if not self.status:
            given = reference._obj
            self.mode, given.value = given.value, self.mode
        return self.status


@pytest.mark.parametrize("before", [0, 1, 2])
def test_code_is_loaded_in_the_relaxed_mode_and_the_mode_is_restored(monkeypatch, before):
    """CU_STREAM_CAPTURE_MODE_RELAXED is 2; the previous mode is restored also after an error."""
    modes = Modes(before)
    monkeypatch.setattr(launch, "_driver", lambda: modes)
    with launch._loading_in_a_capture():
        assert modes.mode == 2
    assert modes.mode == before
    with pytest.raises(KeyError), launch._loading_in_a_capture():
        raise KeyError
    assert modes.mode == before


def test_a_driver_without_capture_modes_loads_code(monkeypatch):
    done = []
    for driver in (None, Modes(status=1)):
        monkeypatch.setattr(launch, "_driver", lambda driver=driver: driver)
        with launch._loading_in_a_capture():
            done.append(driver)
    assert len(done) == 2


def test_a_gpu_is_current_within_a_context(monkeypatch):
    gpu = FakeGpu(devices=3)
    monkeypatch.setitem(sys.modules, "cupy", gpu.cupy)
    gpu.current = 2
    with launch.on_device(1):
        assert gpu.current == 1
    with pytest.raises(KeyError), launch.on_device(0):
        raise KeyError
    assert gpu.current == 2


def test_code_that_the_gpu_does_not_load(gpu):
    """The message names the GPU and the CUDA version to compile for."""
    gpu.cupy.cuda.Module.load = lambda module, cubin: (_ for _ in ()).throw(DriverError("no binary for GPU"))
    with pytest.raises(LaunchError, match="the GPU does not load kernel 'k'") as caught:
        launch.load(b"", "k")
    assert caught.value.got == "no binary for GPU"
    assert caught.value.hint == "compile it for sm_90 with a CUDA not newer than the driver's 13.0"


def test_a_launcher_has_the_arguments_of_load(gpu, monkeypatch):
    requests = []
    monkeypatch.setattr(launch, "_parameter_sizes", lambda function: requests.append(function) or (8, 4))
    assert launch.load(b"", "k").parameters == (8, 4) and requests == [1]


def test_whether_there_is_a_gpu(gpu, monkeypatch):
    assert launch.gpu_available() is True and launch.device_arch() == "sm_90"
    gpu.devices = 0
    assert launch.gpu_available() is False
    gpu.cupy.cuda.is_available = lambda: (_ for _ in ()).throw(DriverError("broken"))
    assert launch.gpu_available() is False
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert launch.gpu_available() is False


# ---------------------------------------------------------------------------------------------- a launcher


@pytest.fixture
def calls():
    return []


def launcher(gpu, calls, sizes, shared=0):
    return launch.Launcher("k", shared, sizes, lambda *given: calls.append(given), gpu.cupy.ndarray)


def test_a_launcher_passes_shape_arguments_shared_memory_and_stream(gpu, calls):
    array = gpu.array((2, 2))
    launcher(gpu, calls, (8, 4), 512)((3, 2), np.int64(64), (array, 5), 4096)
    ((grid, block, values, shared, stream),) = calls
    assert (grid, block, shared, stream.ptr) == ((3, 2), (64,), 512, 4096) and values == (array, 5)
    launcher(gpu, calls, (8,))(1, (8, 4, 2), (Interfaced(array),))
    grid, block, values, shared, stream = calls[-1]
    assert (grid, block, shared, stream) == ((1,), (8, 4, 2), 0, None) and values == (np.uintp(array.data.ptr),)


@pytest.mark.parametrize("what, shape", [("grid", 0), ("grid", ()), ("grid", (1, 1, 1, 1)), ("block", (1, 0)), ("block", -1)])
def test_what_is_not_a_grid_or_block(gpu, calls, what, shape):
    with pytest.raises(LaunchError, match=f"a {what} has one to three sizes of at least 1") as caught:
        launcher(gpu, calls, ())(**{"grid": 1, "block": 1, "args": (), what: shape})
    assert caught.value.got == shape and not calls


INTEGERS = [(size, value) for size in (1, 2, 4, 8) for value in (-(2 ** (8 * size - 1)), -1, 0, 2 ** (8 * size - 1) - 1)]


@pytest.mark.parametrize("size, value", INTEGERS)
def test_integers_become_signed_integers_of_the_size_of_the_parameter(gpu, calls, size, value):
    launcher(gpu, calls, (size,))(1, 1, (value,))
    (value_passed,) = calls[0][2]
    assert value_passed == value and value_passed.nbytes == size and value_passed.dtype.kind == "i"


@pytest.mark.parametrize("size", [2, 4, 8])
def test_numbers_become_floats_of_the_size_of_the_parameter(gpu, calls, size):
    launcher(gpu, calls, (size,))(1, 1, (1.5,))
    (value_passed,) = calls[0][2]
    assert value_passed == 1.5 and value_passed.nbytes == size and value_passed.dtype.kind == "f"


@pytest.mark.parametrize(
    ("size", "value", "message"),
    [
        *((size, 2 ** (8 * size - 1), f"does not fit a parameter of {size} bytes") for size in (1, 2, 4, 8)),
        *((size, -(2 ** (8 * size - 1)) - 1, f"does not fit a parameter of {size} bytes") for size in (1, 2, 4, 8)),
        (1, 1.5, "does not fit a parameter of 1 bytes"),
        (16, 1, "does not fit a parameter of 16 bytes"),
        (16, 1.5, "does not fit a parameter of 16 bytes"),
        (None, 1, r"does not report the parameter's size: pass np.int32\(...\)"),
        (4, True, "not in GPU memory"),
        (8, "text", "not in GPU memory"),
        (8, np.zeros(2), "not in GPU memory"),
        (8, np.float32(1), "its parameter has 8 bytes, the argument 4"),
    ],
)
def test_values_that_fit_no_parameter(gpu, calls, size, value, message):
    with pytest.raises(LaunchError, match=f"argument 1 of 'k': .*{message}") as caught:
        launcher(gpu, calls, None if size is None else (8, size))(1, 1, (gpu.array((1, 1)), value))
    expected = value if isinstance(value, (int, float, np.number)) else type(value).__name__
    assert caught.value.got == expected and not calls


def test_one_element_is_passed_by_value_and_all_arrays_by_address(gpu, calls):
    number, array = np.array([2.5], np.float64), gpu.array((4, 4))
    launcher(gpu, calls, (8, 8, 8, 2))(1, 1, (number, array, Interfaced(array), np.float16(3)))
    assert calls[0][2] == (number, array, np.uintp(array.data.ptr), np.float16(3))
    with pytest.raises(LaunchError, match="its parameter has 4 bytes, the argument 8"):
        launcher(gpu, calls, (4,))(1, 1, (array,))
    with pytest.raises(LaunchError, match="its parameter has 4 bytes, the argument 8"):
        launcher(gpu, calls, (4,))(1, 1, (Interfaced(array),))
    launcher(gpu, calls, None)(1, 1, (array, np.int16(3)))
    assert calls[-1][2] == (array, np.int16(3)), "a driver that tells no sizes"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_number_of_arguments(gpu, calls, count):
    with pytest.raises(LaunchError, match="'k' takes 2 arguments") as caught:
        launcher(gpu, calls, (4, 4))(1, 1, (1,) * count)
    assert caught.value.got == count


def test_a_launch_that_the_driver_refuses_is_reported_with_its_shape(gpu):
    def refuse(*_):
        raise DriverError("CUDA_ERROR_INVALID_VALUE")

    with pytest.raises(
        LaunchError, match=re.escape("launch 'k' with grid (3,), block (64,), 512 bytes of dynamic shared memory")
    ) as caught:
        launch.Launcher("k", 512, (), refuse, gpu.cupy.ndarray)(3, 64, ())
    assert caught.value.got == "CUDA_ERROR_INVALID_VALUE"


# ---------------------------------------------------------------------------------------------- launches with fixed arguments


def fixed(gpu, sizes, *given, **options):
    gpu.parameters = len(sizes)
    return launch.Launcher("k", 96, sizes, gpu.cupy.cuda.Module().get_function("k"), gpu.cupy.ndarray).fixed(0, 7, 64, *given, **options)


def test_values_follow_the_addresses_and_the_counter(gpu):
    """Also for a kernel without tensor maps, which takes all of them in order."""
    counted = fixed(gpu, (8, 8, 4, 8), 2, (5, 2**40), counter=lambda stream: stream + 1)
    for stream in (4096, 8192):
        counted((64,), stream)
    assert [one[-1] for one in gpu.launches] == [[64, 4097, 5, 2**40], [64, 8193, 5, 2**40]]
    mapped = fixed(gpu, (4, 8, 8), 2, (5,), parameters=[2, 0, 1])
    mapped((64, 128), 0)
    assert gpu.launches[-1][1:] == ((7, 1, 1), (64, 1, 1), 96, 0, [5, 64, 128])


def test_the_sizes_of_numbers_instead_of_addresses_are_checked(gpu):
    fixed(gpu, (8, 2), 2, (), scalars={1: 2})((64, 7), 0)
    assert gpu.launches[-1][-1] == [64, 7]
    with pytest.raises(LaunchError, match="argument 1 of 'k': its parameter has 4 bytes, the argument 2"):
        fixed(gpu, (8, 4), 2, (), scalars={1: 2})
    with pytest.raises(LaunchError, match="argument 0 of 'k': its parameter has 4 bytes, the argument 8"):
        fixed(gpu, (4, 2), 2, (), scalars={1: 2})


@pytest.mark.parametrize("value, size", [(2**31 - 1, 4), (2**31, 8), (2**32, 8), (2**63 + 1, 8), (-1, 4)])
def test_large_values_have_eight_bytes(gpu, value, size):
    fixed(gpu, (size,), 0, (value,))
    with pytest.raises(LaunchError, match="argument 0 of 'k'"):
        fixed(gpu, (12 - size,), 0, (value,))


def test_argument_memory_is_reused(gpu):
    """But not by two concurrent calls."""
    tables, nested = [], []

    def slow(stream, table, extra):
        tables.append(table)
        if nested:
            nested.pop()((1,), 0)

    plan = fixed(gpu, (8,), 1, ())
    plan.launch_by(slow)
    nested.append(plan)
    plan((2,), 0)
    assert tables[0] != tables[1] and len(plan._idle) == 2
    plan((3,), 0)
    plan((4,), 0)
    assert set(tables[2:]) <= set(tables[:2]) and len(plan._idle) == 2


def test_a_refusal_reports_grid_block_gpu_and_the_stream_for_a_graph(gpu):
    plan = fixed(gpu, (8,), 1, ())
    for error, hint in (
        ("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", True),
        ("cudaErrorStreamCaptureImplicit", True),
        ("CUDA_ERROR_UNKNOWN", False),
    ):
        gpu.refuse = error
        with pytest.raises(LaunchError, match=re.escape("'k' on GPU 0 with grid (7, 1, 1), block (64, 1, 1), 96 bytes")) as caught:
            plan((1,), 0)
        assert caught.value.got == error and bool(caught.value.hint) is hint


def test_a_frame_is_reused_for_many_launches(gpu):
    plan = fixed(gpu, (8, 8, 4), 2, (9,))
    frame = plan.frame((64, 128))
    for stream in (0, 4096):
        plan.fire(frame, (64, 128), stream)
    assert [launched[-2:] for launched in gpu.launches] == [(0, [64, 128, 9]), (4096, [64, 128, 9])]


def test_a_programmatic_launch_has_a_configuration_per_thread(gpu):
    """Shape, shared memory, stream and the attribute; reused by the launches of that thread."""
    launch_plan, seen = launch.ProgrammaticLaunch(1, SHAPE, 48), []
    gpu.parameters = 1
    plain = gpu.cuLaunchKernelEx
    launch_plan._launch = lambda config, *rest: (seen.append(ctypes.addressof(config._obj)), plain(config, *rest))[1]
    frame = launch.Frame(fixed(gpu, (8,), 1, ())._pack, 1, (64,), ())
    for stream in (4096, 8192):
        launch_plan(stream, frame.table, 0)
    thread = threading.Thread(target=lambda: launch_plan(0, frame.table, 0))
    thread.start()
    thread.join()
    assert gpu.launches == [(0, SHAPE[:3], SHAPE[3:], 48, stream, [64]) for stream in (4096, 8192, 0)]
    assert gpu.of("attributes") == [([(6, 1)],)] * 3 and seen[0] == seen[1] != seen[2]


@pytest.mark.parametrize("get_name, text", [
    (lambda status, name: _named(name), "CUDA_ERROR_TOO_LARGE (1)"),
    (lambda status, name: 1, "CUDA error 1"),
    (lambda status, name: 0, "CUDA error 1"),
    (None, "CUDA error 1"),
])  # fmt: skip
def test_the_driver_names_its_errors(gpu, get_name, text):
    if get_name is not None:
        gpu.cuGetErrorName = get_name
    gpu.refuse = "yes"
    with pytest.raises(RuntimeError, match=re.escape(text)):
        launch.ProgrammaticLaunch(1, SHAPE, 0)(0, 0, 0)


def _named(name):
    name._obj.value = b"CUDA_ERROR_TOO_LARGE"
    return 0


# ---------------------------------------------------------------------------------------------- streams and captures


def test_streams_of_libraries():
    """By address: an integer, the protocol, PyTorch's attribute; objects with `ptr`, and None, as in CuPy."""
    own = types.SimpleNamespace(ptr=5)
    assert launch._stream(None) is None and launch._stream(own) is own
    protocol, torch = types.SimpleNamespace(__cuda_stream__=lambda: (0, 77)), types.SimpleNamespace(cuda_stream=78)
    assert [launch._stream(one).ptr for one in (0, 9, protocol, torch)] == [0, 9, 77, 78]
    assert launch._stream(types.SimpleNamespace(__cuda_stream__=lambda: (0, 77), cuda_stream=78)).ptr == 77


@pytest.mark.parametrize(
    ("stream", "device", "fits"),
    [
        ({"ptr": 4096, "device_id": 1}, 1, True), ({"ptr": 4096, "device_id": 1}, 0, False), ({"ptr": 4096, "device_id": 0}, 1, False),
        ({"ptr": 4096, "device_id": -1}, 0, True), ({"ptr": 4096}, 3, True), ({"ptr": 0, "device_id": 1}, 0, True),
        ({"ptr": 1, "device_id": 1}, 0, True), ({"ptr": 2, "device_id": 1}, 0, True), ({"ptr": 3, "device_id": 1}, 0, False),
        ({"cuda_stream": 4096, "device_index": 1}, 0, False), ({"cuda_stream": 4096, "device_index": 1}, 1, True),
        ({"cuda_stream": 4096, "device_index": None}, 1, True), ({"ptr": 4096, "device_id": 1, "device_index": 0}, 0, True),
    ],
)  # fmt: skip
def test_streams_of_another_gpu_are_refused_but_the_three_that_every_gpu_has(stream, device, fits):
    given = types.SimpleNamespace(**stream)
    if fits:
        assert launch.stream_address(given, device) == stream.get("ptr", stream.get("cuda_stream"))
    else:
        owner = stream.get("device_id", stream.get("device_index"))
        with pytest.raises(LaunchError, match=f"the stream is of GPU {owner}, the arrays are on GPU {device}"):
            launch.stream_address(given, device)


@pytest.mark.parametrize(
    "first, second, same", [(0, 1, True), (1, 0, True), (0, 0, True), (2, 2, True), (0, 2, False), (2, 1, False), (4, 8, False)]
)
def test_the_default_stream_has_two_addresses(gpu, first, second, same):
    """Nothing is recorded and nothing waits between identical streams."""
    assert launch.same_stream(first, second) is same
    launch.order(first, second)
    assert [step[0] for step in gpu.done] == ([] if same else ["record", "wait"])


def test_a_stream_waits_for_the_work_of_another(gpu, monkeypatch):
    """By an event without timing, recorded on the first stream."""
    events = []
    plain = gpu.cupy.cuda.Event
    monkeypatch.setattr(gpu.cupy.cuda, "Event", lambda **options: (events.append(options), plain(**options))[1])
    launch.order(4096, 8192)
    ((_, event, first), (_, then, waited)) = gpu.done
    assert (first, then, event) == (4096, 8192, waited)
    owned = launch.KeptAlive()
    owned.until_done("thing", 4096)
    assert gpu.done[-1][0] == "record" and gpu.done[-1][2] == 4096 and events == [{"disable_timing": True}] * 2
    for captured in ({4096}, {8192}):
        gpu.captured = captured
        launch.order(4096, 8192)
    assert len(gpu.done) == 3, "in a capture nothing waits"


def test_kept_arrays_are_released_after_their_work(gpu):
    owned = launch.KeptAlive()
    for thing in "abc":
        owned.until_done(thing, 4096)
    assert len(owned) == 3
    owned._queue[1][0].done = True
    owned.until_done("d", 4096)
    assert [thing for _, thing in owned._queue] == ["a", "c", "d"]
    gpu.captured = {4096}
    owned.until_done("e", 4096)
    assert len(owned) == 3, "arrays of a capture are the caller's"


def test_whether_a_stream_is_captured(gpu):
    gpu.captured = {4096}
    assert launch.capturing(4096) is True and launch.capturing(0) is False
    gpu.cupy.cuda.runtime.streamIsCapturing = lambda stream: (_ for _ in ()).throw(DriverError("cudaErrorStreamCaptureImplicit"))
    assert launch.capturing(0) is False


@pytest.mark.parametrize("name", ["cuStreamGetCaptureInfo_v2", "cuStreamGetCaptureInfo"])
def test_captures_have_numbers(gpu, name):
    """From 1 on, by the newest function of the driver; not queried without a capture."""

    def info(stream, status, number, *rest):
        assert rest == (None, None, None) and isinstance(stream, ctypes.c_void_p) and isinstance(status._obj, ctypes.c_int)
        number._obj.value = stream.value - 4096 + 2**40
        return 0

    assert launch.capture_of(4096) == 0
    gpu.captured = {4096, 4098}
    with pytest.raises(LaunchError, match="does not report which graph is captured"):
        launch.capture_of(4096)
    if name.endswith("v2"):
        gpu.cuStreamGetCaptureInfo = None
    setattr(gpu, name, info)
    assert launch.capture_of(4096) == 2**40 + 1 and launch.capture_of(4098) == 2**40 + 3


def test_permanent_memory_is_zero_on_its_gpu(monkeypatch):
    """Zeroed on a stream that waits for no other, in relaxed capture mode, and synchronized."""
    gpu = FakeGpu(devices=2)
    monkeypatch.setitem(sys.modules, "cupy", gpu.cupy)
    modes, done = Modes(), []
    monkeypatch.setattr(launch, "_driver", lambda: modes)
    runtime = gpu.cupy.cuda.runtime
    monkeypatch.setattr(gpu.cupy.cuda, "Stream", lambda **options: (done.append(options), types.SimpleNamespace(ptr=12))[1])
    runtime.malloc = lambda size: (done.append(("malloc", size, gpu.current, modes.mode)), 4096)[1]
    runtime.memsetAsync = lambda *given: done.append(given)
    runtime.streamSynchronize = lambda stream: done.append(("wait", stream))
    assert launch.zeros(1, 640) == 4096
    assert done == [{"non_blocking": True}, ("malloc", 640, 1, 2), (4096, 0, 640, 12), ("wait", 12)]
    assert gpu.current == 0 and modes.mode == 0
    runtime.malloc = lambda size: (_ for _ in ()).throw(DriverError("out of memory"))
    with pytest.raises(LaunchError, match="GPU 1 cannot allocate 640 bytes") as caught:
        launch.zeros(1, 640)
    assert caught.value.got == "out of memory" and gpu.current == 0


# ---------------------------------------------------------------------------------------------- setting to zero


def test_rows_are_set_by_one_call_and_refusals_are_reported(gpu, monkeypatch):
    array = gpu.array((3, 16))
    launch.fill_of((3, 5), (64, 4), 4)(array.data.ptr, 4096)
    assert gpu.done == [("memset2d", 0, 20, 3, 4096)]
    launch.fill_of((0, 5), (64, 4), 4)(1, 4096)
    assert len(gpu.done) == 1, "nothing of an empty array"
    for driver, status in ((None, 1), (types.SimpleNamespace(cuMemsetD2D8Async=lambda *_: 7), 7)):
        monkeypatch.setattr(launch, "_driver", lambda driver=driver: driver)
        with pytest.raises(LaunchError, match="refuses to set 3 rows of 20 bytes to zero") as caught:
            launch.fill_of((3, 5), (64, 4), 4)(4096, 0)
        assert caught.value.got == f"CUDA error {status}"


def test_an_array_is_set_to_zero_on_its_own_gpu(monkeypatch):
    gpu = FakeGpu(devices=2)
    monkeypatch.setitem(sys.modules, "cupy", gpu.cupy)
    array = gpu.array((4, 4), device=1)
    with gpu.cupy.cuda.Stream():
        launch.zero(array)
    assert gpu.done == [("memset", 1, 64, 0)] and gpu.current == 0
