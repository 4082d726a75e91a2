"""Tuning on a GPU: a real search compared with cuBLAS, and candidates that are wrong, hang, or crash the GPU's context."""

import pytest
from problems import library

from fireiron import *
from fireiron.gpu import launch
from fireiron.gpu.kernel import architecture_here
from fireiron.tune import OnGpu, Prune, tune

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]

FEW = {"stages": 4, "lookahead": 2, "bk": 64, "wm": 16}
"""Values of `small` that leave few combinations."""

QUICK = OnGpu(rounds=5, final_rounds=10)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FIREIRON_CACHE_DIR", str(tmp_path / "cache"))


def gpus():
    if not launch.gpu_available():
        return 0
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


def small():
    module = library("small")
    return module.strategy, module.spec(256, 256, 256)


def check(tuning):
    """Assertions for every successful tuning of `small`."""
    assert set(tuning.counts) <= {"ok", "pruned", "illegal"} and tuning.counts["ok"] >= 5
    timed = [one for one in tuning.results if one.status == "ok"]
    assert all(0.5 < one.us < 1000 and 0 <= one.error < 2e-3 and one.registers > 0 and one.text for one in timed)
    assert all(one.quartiles[0] <= one.us <= one.quartiles[1] for one in timed if one.final_us is None)
    best = tuning.best
    assert best.us == min(one.final_us for one in timed if one.final_us is not None)
    assert best.architecture == architecture_here() and "NVIDIA" in best.gpu and best.toolchain.startswith("NVRTC") and best.error > 0
    assert best.library_us is not None and 0.5 < best.library_us < 1000, "cuBLAS beside the finalists"
    strategy, spec = small()
    return strategy.with_(**best.values)(spec)


def test_small(tmp_path):
    """Twelve candidates; the best runs, and the record is found for the spec."""
    strategy, spec = small()
    tuning = tune(strategy, spec, fixed=FEW, prune=Prune(factor=None, most=12), measure=QUICK, journal=tmp_path / "a.jsonl", name="small")
    assert tuning.counts["ok"] == 12
    check(tuning).compile(launch.device_arch())
    tuning.save(tmp_path / "records.jsonl")
    (record,) = Records.load(tmp_path / "records.jsonl").records
    assert record == tuning.best
    again = tune(strategy, spec, fixed=FEW, prune=Prune(factor=None, most=12), measure=QUICK, journal=tmp_path / "a.jsonl", name="small")
    assert again.best == tuning.best and again.results == tuning.results, "everything is in the journal"


TEXT = """
for (int i = threadIdx.x; i < c_size_m * c_size_n; i += blockDim.x) {
  const int row = i % c_size_m, column = i / c_size_m;
  float sum = 0.0f;
  for (int k = 0; k < a_size_k; k++) sum += a_at(row, k) * b_at(k, column);
  if (c_size_m == 32 && i == 5) sum += 100.0f;
  if (c_size_m == 64) while (clock64() != 0) {}
  if (c_size_m == 128) *reinterpret_cast<volatile int*>(8) = 1;
  c_at(row, column) = sum;
}
"""
"""Right for tiles of 16 rows; with 32 one element per tile is wrong, with 64 it never ends, with 128 it writes to an illegal address."""

faulty = MatMul.tile(Tunable("bm", 32, 64, 128, 16), 16).to(Block).done(MicroKernel.of(TEXT, threads=64))


def check_faulty(tuning):
    assert [one.status for one in tuning.results] == ["wrong", "hung", "crashed", "ok"], tuning.table()
    wrong, hung, crashed, _ = (one.reason for one in tuning.results)
    assert "C is wrong" in wrong and "stopped after" in hung and "illegal" in crashed.lower()
    assert dict(tuning.best.values) == {"bm": 16}


def test_candidates_that_fail(tmp_path):
    """One is wrong, one hangs, one crashes the context: each is a result, and the next one is still measured."""
    check_faulty(tune(faulty, MatMul(256, 256, 256)(GL, GL, GL)(Kernel), prune=False, timeout=10.0, measure=QUICK))
    import cupy

    assert int(cupy.arange(10).sum()) == 45, "this process' own context is well"


def test_on_an_executor(tmp_path):
    import concurrent.futures

    spec = MatMul(256, 256, 256)(GL, GL, GL)(Kernel)
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        options = {"fixed": {"bm": 16}, "prune": False, "measure": QUICK, "executor": executor, "arch": launch.device_arch()}
        tuning = tune(faulty, spec, **options)
    assert tuning.counts == {"ok": 1} and tuning.best.library_us is not None


@pytest.mark.skipif(gpus() < 2, reason="needs two GPUs")
def test_two_gpus(tmp_path):
    strategy, spec = small()
    tuning = tune(strategy, spec, fixed=FEW, prune=Prune(factor=None, most=12), measure=QUICK, gpu_ids=[0, 1])
    check(tuning)
    assert {one.gpu for one in tuning.results if one.status == "ok"} == {0, 1}
    check_faulty(tune(faulty, MatMul(256, 256, 256)(GL, GL, GL)(Kernel), prune=False, timeout=10.0, measure=QUICK, gpu_ids=[0, 1]))


def test_no_such_gpu():
    strategy, spec = small()
    with pytest.raises(ArgumentError, match="there is no GPU 99"):
        tune(strategy, spec, fixed=FEW, gpu_ids=[99])
