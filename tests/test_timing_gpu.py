"""Measuring on a GPU: graphs of both libraries, the states of the cache, wrong kernels, and the plugin from end to end."""

import json
import math
import time

import attrs
import numpy as np
import outputs
import pytest

import fireiron
from fireiron import *
from fireiron.gpu import launch
from fireiron.gpu import state as gpu_state
from fireiron.language import library
from fireiron.measure import timing
from fireiron.measure.timing import Data, measure

pytest_plugins = ["pytester"]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]

QUICK = {"rounds": 5, "pause": 0.02}


def half(*sizes):
    types = {"dtype": float16, "c_dtype": float16, "accumulator": float32}
    return MatMul(*sizes, **types, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)


def compiled(name, spec):
    return library.find(name).strategy(spec).compile(launch.device_arch())


def copy(size=4096):
    """A kernel that only reads and writes 4 size**2 bytes."""
    chain = Move.tile(16, 256).to(Block).tile(1, 8).to(Thread).tile(1, 4).done()
    return chain(Move(size, size, src=RowMajor, dst=RowMajor)(GL, GL)(Kernel)).compile(launch.device_arch())


def eventually(condition, measured):
    """Assert a condition in one of eight measurements: other processes on the GPU may disturb some."""
    for _ in range(8):
        value = measured()
        if condition(value):
            return
    pytest.fail(f"in none of eight measurements; in the last {value}")


def test_ours_and_cublas_in_graphs():
    pytest.importorskip("torch")
    spec = half(1024, 1024, 1024)
    data = Data.of(spec)
    calls = {"ours": data.calls(compiled("hmma_ampere", spec)), "cublas": data.calls(timing.cublas)}
    for launches in calls.values():
        assert 0 < data.verify(launches[0]) < data.tolerance < 1e-3
    times = measure(calls, **QUICK)
    for timing_ in times.values():
        assert timing_.graph and timing_.note == "" and timing_.minimum <= timing_.quartiles[0] <= timing_.us <= timing_.quartiles[1]
        assert timing_.clocks is None or min(timing_.clocks) > 200
        speed = timing.throughput(spec, timing_.us)
        assert 0 < speed.tflops < 1500, "no GPU is faster: the graph holds all launches"
    assert json.dumps(attrs.asdict(times["ours"]))
    eventually(lambda again: timing.throughput(spec, again["ours"].us).tflops > 20, lambda: measure(calls, **QUICK))


def test_cublas_through_cupy_agrees(monkeypatch):
    import sys

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    data = Data.of(MatMul(300, 200, 100, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel), rotate_bytes=0)
    data.verify(data.calls(timing.cublas)[0])


def test_layouts_of_cublas():
    pytest.importorskip("torch")
    for order in (RowMajor, ColMajor):
        spec = MatMul(256, 128, 64, dtype=float16, c_dtype=float16, accumulator=float32, A=order, B=RowMajor, C=order)(GL, GL, GL)(Kernel)
        data = Data.of(spec, rotate_bytes=0)
        data.verify(data.calls(timing.cublas)[0])


def test_cache():
    """Arrays that fit into the cache are read faster from it; overwriting the cache evicts them."""
    kernel = copy(1024)

    def timings():
        return {l2: timing.time_kernel(kernel, l2=l2, **QUICK) for l2 in ("hot", "flushed", "rotated")}

    assert {l2: one.l2 for l2, one in timings().items()} == {l2: l2 for l2 in ("hot", "flushed", "rotated")}
    eventually(lambda one: one["flushed"].us >= one["hot"].us and one["rotated"].us >= 0.9 * one["hot"].us, timings)
    eventually(lambda one: one["flushed"].us < one["hot"].us + 60, timings)  # the flush itself is not counted


def test_small_problems_cannot_rotate():
    with pytest.raises(ArgumentError, match="fit into the L2 cache"):
        timing.time_kernel(compiled("naive", MatMul(4, 4, 4)(GL, GL, GL)(Kernel)))


def test_wrong_kernels_are_refused():
    spec = MatMul(200, 100, 300)(GL, GL, GL)(Kernel)
    data = Data.of(spec, rotate_bytes=0)
    call, c = data.calls(compiled("naive", spec))[0], data.sets[0]["C"]
    assert data.verify(call) < 1e-5

    def one_element():
        call()
        c[123, 45] += 100

    with pytest.raises(WrongResultError, match=r"1 of 20000 elements, the first is C\[123, 45\]"):
        data.verify(one_element)
    with pytest.raises(WrongResultError, match="may not write"):
        data.verify(lambda: None)
    with pytest.raises(WrongResultError):
        timing.time_kernel(
            compiled("naive", attrs.evolve(spec)), data=Data.of(attrs.evolve(spec, accumulate=True), rotate_bytes=0), l2="hot"
        )
    assert data.verify(call) < 1e-5


@pytest.mark.parametrize("dtype", [float64, float32, float16, bfloat16, int8, int32], ids=str)
def test_types(dtype):
    if dtype == bfloat16:
        pytest.importorskip("ml_dtypes")
    spec = MatMul(130, 70, 333, dtype=dtype)(GL, GL, GL)(Kernel)
    data = Data.of(spec, rotate_bytes=0)
    assert data.verify(data.calls(compiled("naive", spec))[0]) <= data.tolerance
    expected = launch.require_cupy().asnumpy(data.expected)
    arrays = [data.expected.__class__.get(data.sets[0][name]) for name in "AB"]
    np.testing.assert_allclose(spec.reference(*arrays).astype(expected.dtype), expected, rtol=2e-2, atol=1 if dtype.kind == "float" else 0)


def test_accumulation_and_copies():
    adding = MatMul(130, 70, 33, accumulate=True)(GL, GL, GL)(Kernel)
    data = Data.of(adding, rotate_bytes=0)
    data.verify(data.calls(compiled("naive", adding))[0])
    moved = copy(512)
    data = Data.of(moved.program.spec, rotate_bytes=0)
    assert data.verify(data.calls(moved)[0]) == 0


def test_several_outputs(capsys):
    """Verified one by one, timed, and run from the command line."""
    from fireiron.cli import main

    spec = outputs.cross(1000, 800, apart=RowMajor(ld=832))
    kernel = outputs.by_elements(spec).compile(launch.device_arch())
    data = Data.of(spec)
    calls = data.calls(kernel)
    assert data.verify(calls[0]) < 1e-6
    timed = timing.time_kernel(kernel, data=data, **QUICK)
    assert 0 < timed.us < 1000
    for left_out in spec.outputs:

        def call(left_out=left_out):
            before = data.sets[0][left_out].copy()
            calls[0]()
            data.sets[0][left_out][...] = before

        with pytest.raises(WrongResultError, match=f"^{left_out} is wrong: 800000 of 800000"):
            data.verify(call)
    for name in ("elements", "lines"):
        assert main(["run", f"{outputs.__file__}:{name}"]) == 0
        output = capsys.readouterr().out
        assert "PASS" in output and "ran on        GPU" in output


def test_sizes_known_at_run_time():
    spec = MatMul(sym("M"), sym("N"), sym("K"))(GL, GL, GL)(Kernel)
    timed = timing.time_kernel(compiled("gemm_nn", spec), sizes={"M": 1000, "N": 500, "K": 300}, **QUICK)
    assert timed.graph and timed.us > 1


def test_a_call_that_waits_is_not_captured():
    import cupy

    a, b = cupy.ones((256, 256), cupy.float32), cupy.empty((256, 256), cupy.float32)

    def waits():
        cupy.copyto(b, a)
        cupy.cuda.get_current_stream().synchronize()

    def fine():
        cupy.copyto(b, a)

    times = measure({"waits": [waits], "fine": [fine]}, l2="hot", **QUICK)
    assert not times["waits"].graph and "cannot be captured" in times["waits"].note
    assert times["fine"].graph and times["fine"].us < times["waits"].us
    assert not cupy.cuda.get_current_stream().is_capturing()


def test_work_on_another_stream_is_refused():
    import cupy

    other = cupy.cuda.Stream(non_blocking=True)
    a, b = cupy.ones(1000), cupy.empty(1000)

    def elsewhere():
        with other:
            cupy.copyto(b, a)

    with pytest.raises(ArgumentError, match="does not launch on the current stream"):
        measure({"elsewhere": [elsewhere]}, l2="hot", **QUICK)


def test_graph_time_is_the_time_of_the_kernel():
    """A long kernel takes the same by the host's clock."""
    import cupy

    spec = MatMul(2048, 2048, 2048)(GL, GL, GL)(Kernel)
    kernel = compiled("gemm_nn", spec)
    data = Data.of(spec, rotate_bytes=0)
    (call,) = data.calls(kernel)
    device = cupy.cuda.Device()

    def by_the_host():
        device.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            call()
        device.synchronize()
        return (time.perf_counter() - start) / 20 * 1e6

    # Other processes that use the GPU increase both times.
    microseconds = min(measure({"x": [call]}, l2="hot", **QUICK)["x"].us for _ in range(5))
    assert microseconds == pytest.approx(min(by_the_host() for _ in range(10)), rel=0.35)


def test_busy_and_one_launch_a_round():
    kernel = copy(1024)
    assert timing.time_kernel(kernel, regime="busy", heating=0.1, rounds=3, l2="hot").regime == "busy"
    timed = timing.time_kernel(kernel, rounds=100, launches=1, l2="hot", pause=0)
    assert len(timed.rounds) == 100 and timed.minimum <= timed.us


def test_state_and_environment():
    environment = timing.environment()
    assert json.dumps(environment) and environment["gpu"] and environment["architecture"] == launch.device_arch() and environment["cupy"]
    state = gpu_state.read_state()
    assert state is None or (100 < state.clock < 5000 and (state.power is None or 10 < state.power < 2000))
    assert gpu_state.captured_nodes(launch.require_cupy().cuda.Stream(non_blocking=True).ptr) is None


def test_plugin(pytester, monkeypatch):
    """A user's suite on the GPU: the saved times are the GPU's, the second run compares with them."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # pytest-benchmark measures nothing where it is set
    monkeypatch.setenv("PYTHONPATH", str(fireiron.__path__[0]).rpartition("/")[0])
    pytester.makepyfile("""
        import fireiron
        from fireiron.measure import timing

        @fireiron.sweep("gemm_nn", [(1024, 1024, 1024)], bk=(8, 16))
        def test_gemm(case, gpu_benchmark):
            found = gpu_benchmark(case, against={"cublas": timing.cublas}, pause=0.02)
            assert found.timing.graph and 5 < found.us and 0 < found.ratio
    """)
    options = [
        "-p",
        "pytest_fireiron",
        "-p",
        "pytest_benchmark.plugin",
        "--fireiron-rounds=5",
        "--fireiron-table",
        "--benchmark-json=out.json",
    ]
    result = pytester.runpytest_subprocess(*options, "--benchmark-autosave")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*GPU benchmarks*", "*test_gemm?gemm_nn-bk=8-1024x1024x1024?*"])
    for benchmark in json.loads((pytester.path / "out.json").read_text())["benchmarks"]:
        assert math.isclose(benchmark["stats"]["median"] * 1e6, benchmark["extra_info"]["us"], rel_tol=1e-6)
        assert benchmark["extra_info"]["registers"] > 0 and benchmark["extra_info"]["graph"]
    result = pytester.runpytest_subprocess(*options, "--benchmark-compare", "--benchmark-compare-fail=median:50000%")
    result.assert_outcomes(passed=2)
