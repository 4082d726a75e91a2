"""The pytest plugin, in separate sessions, with known numbers instead of measurements."""

import json
import subprocess
import sys

import pytest

import fireiron
from fireiron import *

pytest_plugins = ["pytester"]

CONFTEST = """
import os
import numpy as np
import pytest
import fireiron.gpu.launch, fireiron.measure.timing, fireiron.gpu.kernel
from fireiron.measure.timing import Timing

US = float(os.environ.get("US", "100"))
measured = []

class Data:
    sets = ({"A": 1},)
    def __init__(self, spec, sizes): self.spec, self.sizes = spec, dict(sizes or {})
    def check_rotation(self): pass
    def calls(self, contender): return (contender, contender)
    def tolerance_for(self, contender): return None
    def verify(self, call, tolerance=None):
        if getattr(call, "wrong", False):
            raise fireiron.WrongResultError("C is wrong")
        return 2e-4

def measure(contenders, *, rounds=20, regime="burst", l2="rotated", **options):
    measured.append((tuple(contenders), rounds, regime, l2, options))
    base = {name: US * (1 + 0.5 * place) for place, name in enumerate(contenders)}
    return {name: Timing.of([us + 0.001 * i for i in range(rounds)], 40, regime, l2, clocks=(1980, 1965)) for name, us in base.items()}

class Resources:
    registers, spill_stores, spill_loads = 168, 4, 8

fireiron.gpu.launch.gpu_available = lambda: os.environ.get("GPU", "1") == "1"
fireiron.gpu.launch.device_arch = lambda: "sm_90"
fireiron.gpu.launch.driver_version = lambda: (13, 0)
fireiron.measure.timing.Data.of = staticmethod(lambda spec, *, sizes=None, rotate_bytes=0: Data(spec, sizes))
fireiron.measure.timing.measure = measure
fireiron.gpu.toolchain.serving = lambda *asked: None  # nothing is compiled
fireiron.measure.timing.environment = lambda: {"gpu": "NVIDIA H200"}
fireiron.gpu.kernel.CompiledKernel.resources = property(lambda self: Resources)
"""

SUITE = """
import fireiron
from fireiron import *

strategy = MatMul.tile(Tunable("bm", 64, 32, 36), 64).to(Block).tile(8, 8).to(Thread).tile(1, 1).split(1).done()

def spec(M, N, K):
    return MatMul(M, N, K, dtype=float16, c_dtype=float16, C=RowMajor)(GL, GL, GL)(Kernel)

def library(arrays):
    return lambda: None

def test_gemm(gpu_benchmark):
    found = gpu_benchmark(strategy, spec(128, 128, 64), against={"cublas": library})
"""


@pytest.fixture
def suite(pytester, monkeypatch):
    """A session in a separate process, with the named plugins."""
    pytester.makeconftest(CONFTEST)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(fireiron.__path__[0]).rpartition("/")[0])
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    def run(text, *options, plugins=("pytest_fireiron", "pytest_benchmark.plugin")):
        pytester.makepyfile(test_suite=text)
        loaded = [argument for name in plugins for argument in ("-p", name)]
        return pytester.runpytest_subprocess(*loaded, "--strict-markers", "-W", "error", *options)

    return run


def records(pytester, name="out.json"):
    return json.loads((pytester.path / name).read_text())


# ---------------------------------------------------------------------------------------------- pytest-benchmark


@pytest.mark.nightly
def test_json_holds_the_times_of_the_gpu(suite, pytester):
    result = suite(SUITE, "--benchmark-json=out.json", "--fireiron-rounds=5")
    result.assert_outcomes(passed=1)
    saved = records(pytester)
    (benchmark,) = saved["benchmarks"]
    stats = benchmark["stats"]
    assert stats["data"] == pytest.approx([100e-6, 100.001e-6, 100.002e-6, 100.003e-6, 100.004e-6], rel=1e-12)
    assert stats["median"] == pytest.approx(100.002e-6) and stats["rounds"] == 5 and stats["iterations"] == 1
    assert benchmark["options"]["timer"] == "gpu_clock"
    info = benchmark["extra_info"]
    assert info["us"] == pytest.approx(100.002) and info["tflops"] == pytest.approx(2 * 128 * 128 * 64 / 100.002 / 1e6)
    assert info["gb_s"] == pytest.approx(2 * (128 * 64 * 2 + 128 * 128) / 100.002 / 1e3)
    assert (info["registers"], info["spills"], info["error"], info["rounds"], info["launches"]) == (168, 12, 2e-4, 5, 40)
    assert (info["l2"], info["regime"], info["clocks"], info["graph"]) == ("rotated", "burst", [1980, 1965], True)
    assert info["values"] == {"bm": 64} and info["architecture"] == "sm_90a" and 0 < info["occupancy"] <= 1
    assert info["ratio"] == pytest.approx(1.5, rel=1e-3)
    assert info["against"]["cublas"]["us"] == pytest.approx(150.002) and info["against"]["cublas"]["error"] == 2e-4
    assert saved["gpu_info"] == {"gpu": "NVIDIA H200"}
    result.stdout.fnmatch_lines(["*benchmark: 1 tests*", "*test_gemm*"])
    assert "(time in us)" in result.stdout.str()


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("us", "fails"), [("104", False), ("106", True), ("50", False)])
def test_comparison_with_a_saved_run(suite, monkeypatch, us, fails):
    assert suite(SUITE, "--benchmark-autosave").ret == 0
    monkeypatch.setenv("US", us)
    result = suite(SUITE, "--benchmark-compare", "--benchmark-compare-fail=median:5%")
    assert bool(result.ret) == fails
    assert ("Performance has regressed" in result.stdout.str() + result.stderr.str()) == fails
    assert "(NOW)" in result.stdout.str() and "0001" in result.stdout.str()


@pytest.mark.nightly
def test_own_settings_of_a_benchmark_stay(suite, pytester):
    text = "import pytest\n" + SUITE.replace("def test_gemm", '@pytest.mark.benchmark(group="gemm")\ndef test_gemm')
    suite(text, "--benchmark-json=out.json").assert_outcomes(passed=1)
    (benchmark,) = records(pytester)["benchmarks"]
    assert benchmark["group"] == "gemm" and benchmark["options"]["timer"] == "gpu_clock"


def test_only_and_skip(suite):
    text = SUITE + "\n\ndef test_other(): pass\n"
    suite(text, "--benchmark-only").assert_outcomes(passed=1, skipped=1)
    suite(text, "--benchmark-skip").assert_outcomes(passed=1, skipped=1)


def test_disabled_benchmarks_verify(suite):
    text = SUITE + "    assert found.timing is None and found.us is None and set(found.errors) == {'fireiron', 'cublas'}\n"
    suite(text, "--benchmark-disable").assert_outcomes(passed=1)


@pytest.mark.nightly
def test_xdist_verifies(suite):
    text = SUITE + "    assert found.timing is None\n"
    plugins = ("pytest_fireiron", "pytest_benchmark.plugin", "xdist.plugin")
    suite(text, "-n1", "-W", "ignore", "--fireiron-table", plugins=plugins).assert_outcomes(passed=1)


def test_without_pytest_benchmark(suite):
    text = SUITE + "    assert found.us > 0 and found.ratio > 1.4\n"
    result = suite(text, "--fireiron-table", plugins=("pytest_fireiron",))
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*GPU benchmarks*", "benchmark *TFLOP/s*ratio*registers*shared*", "test_gemm*128x128x64*100*1.5*168*"])


# ---------------------------------------------------------------------------------------------- the fixture


def test_options(suite):
    text = SUITE + (
        "    from conftest import measured\n"
        "    assert measured == [(('fireiron', 'cublas'), 7, 'busy', 'flushed', {})]\n\n"
        "def test_own(gpu_benchmark):\n"
        "    from conftest import measured\n"
        "    gpu_benchmark(strategy(spec(8, 8, 8)), rounds=3, regime='burst', l2='hot', pause=0)\n"
        "    assert measured[-1] == (('fireiron',), 3, 'burst', 'hot', {'pause': 0})\n"
    )
    suite(text, "--fireiron-rounds=7", "--fireiron-regime=busy", "--fireiron-l2=flushed").assert_outcomes(passed=2)
    assert suite(text, "--fireiron-rounds=0").ret == pytest.ExitCode.USAGE_ERROR
    assert suite(text, "--fireiron-l2=warm").ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.nightly
def test_architecture(suite, pytester):
    suite(SUITE, "--fireiron-architecture=sm_80", "--benchmark-json=out.json").assert_outcomes(passed=1)
    assert records(pytester)["benchmarks"][0]["extra_info"]["architecture"] == "sm_80"


def test_wrong_results_fail(suite, pytester):
    text = SUITE.replace("def library(arrays):", "def library(arrays): pass\n\nlibrary.wrong = True\n\ndef other(arrays):")
    result = suite(text + "\n\ndef test_right(gpu_benchmark):\n    gpu_benchmark(strategy, spec(8, 8, 8))\n", "--benchmark-json=out.json")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*WrongResultError: C is wrong*"])
    assert [one["name"] for one in records(pytester)["benchmarks"]] == ["test_right"]


def test_misuse(suite):
    text = SUITE + (
        "\n\ndef test_name(gpu_benchmark):\n"
        "    import pytest\n"
        "    with pytest.raises(ArgumentError, match='name of the kernel itself'):\n"
        "        gpu_benchmark(strategy, spec(8, 8, 8), against={'fireiron': library})\n"
        "    with pytest.raises(ArgumentError, match='the argument is not a kernel'):\n"
        "        gpu_benchmark(print)\n"
        "    gpu_benchmark(strategy(spec(8, 8, 8)).compile('sm_90'))\n"
    )
    suite(text).assert_outcomes(passed=2)


def test_symbolic_sizes(suite):
    text = (
        SUITE
        + "    gpu_benchmark\n\ndef test_symbols(gpu_benchmark):\n    gpu_benchmark(strategy, spec(sym('M'), 64, 64), sizes={'M': 96})\n"
    )
    result = suite(text, "--fireiron-table")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["test_symbols*96x64x64*"])


# ---------------------------------------------------------------------------------------------- without a GPU


def test_no_gpu(suite, monkeypatch):
    monkeypatch.setenv("GPU", "0")
    text = "import pytest\n" + SUITE + "\n\n@pytest.mark.gpu\ndef test_marked(): assert False\n\ndef test_host(): pass\n"
    result = suite(text, "-rs")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["*needs a CUDA GPU and CuPy*"])


def test_sweeps_verify_in_the_simulator(suite, monkeypatch):
    """Nothing is measured; an illegal combination is skipped; a wrong kernel fails."""
    monkeypatch.setenv("GPU", "0")
    text = SWEEP + (
        "@fireiron.sweep({'mine': strategy}, [(64, 64, 16)], spec=spec, bm=(32, 36))\n"
        "def test_all(case, gpu_benchmark):\n"
        "    found = gpu_benchmark(case, against={'cublas': library})\n"
        "    assert found.us is None and found.ratio is None and found.info == {'simulated': 'all 2 blocks'}\n"
        "    assert found.kernel.program.architecture.name == 'sm_80'\n"
        "def test_wrong(gpu_benchmark, monkeypatch):\n"
        "    monkeypatch.setattr('fireiron.measure.simulated.simulated', lambda *_, **__: {'message': 'element (0, 0)'})\n"
        "    gpu_benchmark(strategy, spec(64, 64, 16))\n"
    )
    result = suite(text, "--fireiron-simulate", "--fireiron-table", "--fireiron-arch", "sm_80", "-rs")
    result.assert_outcomes(passed=1, skipped=1, failed=1)
    result.stdout.fnmatch_lines(["benchmark*shape*shared*simulated", "test_all*64x64x16*all 2 blocks"])
    result.stdout.fnmatch_lines(["*WrongResultError: *element (0, 0)*"])
    result.stdout.no_fnmatch_line("*benchmark: 1 tests*")


def test_markers_of_other_plugins_are_ignored(suite, monkeypatch):
    """A suite that does not use Fireiron may define `gpu` differently."""
    monkeypatch.setenv("GPU", "0")
    suite("import pytest\n\n@pytest.mark.gpu\ndef test_theirs(): pass\n").assert_outcomes(passed=1)


def test_an_unused_plugin_imports_nothing(pytester, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(fireiron.__path__[0]).rpartition("/")[0])
    pytester.makepyfile("import sys\n\ndef test_nothing():\n    assert not {'fireiron', 'numpy', 'cupy', 'attrs'} & set(sys.modules)\n")
    pytester.runpytest_subprocess("-p", "pytest_fireiron", "-p", "no:randomly").assert_outcomes(passed=1)


# ---------------------------------------------------------------------------------------------- sweeps

SWEEP = SUITE.partition("def test_gemm")[0]


@pytest.mark.nightly
def test_sweep(suite, pytester):
    text = SWEEP + (
        "@fireiron.sweep({'mine': strategy}, [(128, 128, 64), (64, 64, 64)], spec=spec, bm=(32, 36, 64))\n"
        "def test_all(case, gpu_benchmark):\n    gpu_benchmark(case, against={'cublas': library})\n"
    )
    result = suite(text, "-rs", "-v", "--benchmark-json=out.json", "--fireiron-table")
    result.assert_outcomes(passed=4, skipped=2)
    result.stdout.fnmatch_lines(["*test_all?mine-bm=32-128x128x64? PASSED*", "*test_all?mine-bm=36-128x128x64? SKIPPED*", "*illegal: *"])
    saved = records(pytester)["benchmarks"]
    assert [one["param"] for one in saved] == [f"mine-bm={bm}-{shape}" for bm in (32, 64) for shape in ("128x128x64", "64x64x64")]
    assert [one["extra_info"]["values"] for one in saved] == [{"bm": bm} for bm in (32, 32, 64, 64)]
    assert "Case(mine-bm=32-128x128x64)" in json.dumps(saved[0]["params"])


def test_sweep_makes_marks():
    mark = sweep("gemm_nn", [(128, 128, 64)], bk=(8, 16))
    assert mark.args[0] == "case"
    assert [one.id for one in mark.args[1]] == ["gemm_nn-bk=8-128x128x64", "gemm_nn-bk=16-128x128x64"]
    (case,) = mark.args[1][0].values
    assert case.bound.spec == case.spec and str(case) == "gemm_nn-bk=8-128x128x64"
    from fireiron.strategies import gemm_nn, naive

    cases = sweep([gemm_nn, naive], iter([(8, 8, 8), (16, 8, 8)]), values=[{}], argument="one")
    assert [one.id for one in cases.args[1]] == ["gemm_nn-8x8x8", "gemm_nn-16x8x8", "naive-8x8x8", "naive-16x8x8"]
    skipped = sweep(naive, [(0, 8, 8), (8, 8, 8)]).args[1]
    assert skipped[0].id == "naive-0x8x8" and "no such spec" in skipped[0].marks[0].kwargs["reason"] and not skipped[1].marks


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("gemm_nn", [(8, 8, 8)]), {"bq": (8,)}),
        (("gemm_nn", [(8, 8, 8)]), {"bk": (7,)}),
        (("gemm_nn", [(8, 8, 8)]), {"bk": 8, "values": [{"bk": 16}]}),
        (("gemm_nn", []), {}),
        ((["nothing of this name"], [(8, 8, 8)]), {}),
        ((3, [(8, 8, 8)]), {}),
        ((MatMul.done(), [(8, 8, 8)]), {}),
        ((MatMul(8, 8, 8)(GL, GL, GL)(Kernel).done(), [(8, 8, 8)]), {}),
    ],
)
def test_sweep_refuses(arguments, options):
    with pytest.raises(ArgumentError):
        sweep(*arguments, **options)


def test_import_stays_light():
    """`fireiron.sweep` does not import pytest."""
    code = "import sys, fireiron; assert not {'pytest', 'numpy', 'fireiron.measure.timing'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
