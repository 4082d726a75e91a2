"""Tile counters of launches, with a simulated GPU: which launches share one, and the argument of the kernel."""

import ctypes
import sys

import pytest
from fake_gpu import FakeGpu, memory
from mapped import kernel_of
from ringed import float16_gemm, product

from fireiron.errors import LaunchError
from fireiron.gpu import launch
from fireiron.gpu.counters import COUNTER_STRIDE, COUNTERS_PER_ALLOCATION, Counters, counters

ARRAYS, MAP = 2, 0x1000


@pytest.fixture
def gpu(monkeypatch):
    """A GPU whose driver numbers captures by their streams."""
    gpu = FakeGpu()
    gpu.parameters = 2
    runtime, kept = gpu.cupy.cuda.runtime, []

    def malloc(size):
        kept.append(memory(size))
        return kept[-1].ctypes.data

    def info(stream, status, number, *more):
        number._obj.value = gpu.captures[stream.value]
        return 0

    runtime.malloc, runtime.streamSynchronize = malloc, lambda stream: None
    gpu.captures, gpu.cuStreamGetCaptureInfo_v2, gpu.kept = {}, info, kept
    plain = gpu.cupy.cuda.Stream
    monkeypatch.setattr(gpu.cupy.cuda, "Stream", lambda non_blocking: plain())
    monkeypatch.setitem(sys.modules, "cupy", gpu.cupy)
    monkeypatch.setattr(launch, "_driver", lambda: gpu)
    return gpu


def test_launches_that_share_a_counter(gpu):
    """The launches of one stream share one; other streams and each capture have another, which starts at zero."""
    own = Counters(0)
    streams = [own.of(stream) for stream in (4096, 8192, 4096, 0, 1)]
    assert streams[0] == streams[2] != streams[1] and streams[3] == streams[4]
    gpu.captured, gpu.captures = {4096}, {4096: 7}
    first = own.of(4096)
    gpu.captures[4096] = 8
    assert len({*streams, first, own.of(4096)}) == 5
    assert all(ctypes.c_uint32.from_address(one).value == 0 for one in streams)
    assert all((one - other) % COUNTER_STRIDE == 0 for one in streams for other in streams)


def test_more_counters_than_are_allocated_at_once(gpu):
    own = Counters(0)
    assert (
        len({own.of(4096 * number) for number in range(1, COUNTERS_PER_ALLOCATION + 2)}) == COUNTERS_PER_ALLOCATION + 1
        and len(gpu.kept) == 2
    )


def test_a_launch_is_given_the_counter_of_its_stream(gpu):
    """With prepared arguments or not, and also if another GPU is current."""
    given = gpu.cupy, "tiles", gpu.cupy.cuda.Module().get_function("tiles"), 0, (3, 1, 1, 64, 1, 1), 0, 2, ()
    fixed = launch.DynamicTileLaunch(*given, (), parameters=[0, 1], counter=Counters(0).of)
    frame = fixed.frame((MAP,))
    for stream in (4096, 8192):
        fixed((MAP,), stream)
        fixed.fire(frame, (MAP,), stream)
    counters = [one[-1] for one in gpu.launches]
    assert counters[0] == counters[1] != counters[2] == counters[3] and all(one[0] == MAP and one[1] for one in counters)


def test_each_gpu_has_a_counter(gpu):
    counters.cache_clear()
    assert counters(0) is counters(0) is not counters(1)
    counters.cache_clear()


def test_drivers_without_capture_information(gpu):
    gpu.captured = {4096}
    gpu.cuStreamGetCaptureInfo_v2 = lambda *_: 1
    with pytest.raises(LaunchError, match="which graph is captured"):
        Counters(0).of(4096)


def test_a_kernel_is_given_its_counter(gpu, monkeypatch):
    """As the last parameter, after a tensor map in place of each pointer."""
    program = product((64, 64, 64), (64, 64), blocks=3, dynamic=True)(float16_gemm(256, 128, 64)).program("sm_90a")
    gpu.parameters = len(program.ir.parameters)
    monkeypatch.setattr(launch, "_parameter_sizes", lambda function: (128, 128, 128, 8))
    counters.cache_clear()
    kernel, (a, b, c) = kernel_of(program), (gpu.array(shape, "float16") for shape in ((256, 64), (64, 128), (256, 128)))
    call = kernel.prepare(a, b, out=c)
    kernel(a, b, out=c)
    call()
    call(stream=gpu.cupy.cuda.Stream(False))
    first, second, third = (one[-1] for one in gpu.launches)
    assert first == second and first[:3] == third[:3] == [a.data.ptr, b.data.ptr, c.data.ptr] and first[3] != third[3]
    counters.cache_clear()
