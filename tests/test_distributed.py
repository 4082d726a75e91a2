"""`fireiron.distributed`: the plans of its matmuls, in the simulator, and processes on CPUs and GPUs."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import scripts

from fireiron import *
from fireiron import distributed
from fireiron.distributed_plan import EXCHANGES, NodeProduct, candidates
from fireiron.errors import ArgumentError, LaunchError
from fireiron.gpu import barrier
from fireiron.gpu.toolchain import compile_cuda, toolchains

PARTS = {
    "all_gather": ((6, 16), (16, 10)),
    "all_gather_k": ((24, 4), (8, 10)),
    "all_gather_b": ((12, 8), (4, 20)),
    "reduce_scatter": ((12, 8), (8, 20)),
    "all_reduce": ((5, 8), (8, 20)),
}
"""The shapes of the parts of A and B on a GPU, of two."""


def has_torch():
    try:
        import torch.distributed as processes
    except ModuleNotFoundError:
        return False
    return processes.is_available()


def problem_of(kind, dtype=float32, **options):
    orders = (ColMajor if kind in ("all_gather_k", "all_gather_b") else RowMajor, RowMajor)
    return NodeProduct.of(kind, *PARTS[kind], dtype, orders, **options)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", EXCHANGES)
def test_all_candidates_compute_the_product(kind):
    problem = problem_of(kind, float16)
    generator = np.random.default_rng(1)
    m, n, k = problem.sizes
    a, b = (
        np.array(generator.integers(-2, 3, shape), np.float16, order=order)
        for shape, order in (((m, k), "C" if kind not in ("all_gather_k", "all_gather_b") else "F"), ((k, n), "C"))
    )
    expected = (a.astype(float) @ b.astype(float)).astype(np.float16)
    names = []
    for candidate in candidates(problem, "sm_90a"):
        names.append(candidate.name)
        if candidate.strategy is not None:
            assert np.array_equal(candidate.strategy(problem.spec).compile("sm_90a")(a, b), expected), candidate.name
    assert sorted(names) == sorted(["library", *(("gathered", "direct") if problem.exchange.gathers else ("sums", "rounded sums"))])


def test_choices():
    """The expected time decides: parts that are read once are read directly, and few bytes are not worth a collective."""
    wide, narrow = (NodeProduct.of("all_gather", (512, 8192), (8192, n), float16) for n in (3584, 128))
    assert [candidates(one, "sm_90a")[0].name for one in (wide, narrow)] == ["overlapped", "direct"]
    best, *others = candidates(NodeProduct.of("reduce_scatter", (1024, 3584), (3584, 8192), float16), "sm_90a")
    assert best.name == "exchanged" and [one.name for one in others] == ["rounded sums", "library", "sums"]
    assert best.link_bytes == 512 * 8192 * 2 and "8.4 MB over the link" in str(best)
    plain = candidates(problem_of("reduce_scatter"), "sm_90a")
    assert {one.name for one in plain} == {"sums", "library"}
    assert best.us == pytest.approx(sum(best.parts.values()))


def test_four_gpus():
    """Each GPU reads the parts of three others."""
    parts = {gpus: NodeProduct.of("all_gather", (1024 // gpus, 512), (512, 256), float16, gpus=gpus) for gpus in (2, 4)}
    moved = {
        gpus: next(one.link_bytes for one in candidates(problem, "sm_90a") if one.name == "gathered") for gpus, problem in parts.items()
    }
    assert moved == {2: 1024 * 512 * 2 / 2, 4: 1024 * 512 * 2 * 3 / 4}
    assert parts[4].spec.level == Node(4) and parts[4].own(float16).size("n").evaluate({}) == 256


@pytest.mark.nightly
def test_the_table_of_expected_times():
    """The page has the times that the model computes now."""
    page = scripts.loaded("docs/make_gpus.py")
    assert page.with_table(page.PAGE.read_text(encoding="utf-8")) == page.PAGE.read_text(encoding="utf-8"), "run docs/make_gpus.py"


def test_many_numbers_of_rows_share_kernels():
    """The first numbers of rows have separate kernels; further ones share those for any number of rows up to a power of two."""
    problems = [NodeProduct.of("all_gather", (rows, 64), (64, 32), float16) for rows in (*range(1, 12), 3)]
    assert [distributed._is_one_of_many(problem, "a group") for problem in problems] == [*[False] * 8, True, True, True, False]
    gradient = NodeProduct.of("all_gather_k", (64, 4), (8, 10), float16)
    assert not any(distributed._is_one_of_many(gradient, "another group") for _ in range(20))
    spec = problems[0].for_rows(64)
    assert str(spec).startswith("MatMul(M,64,64)(GL,GL,GL)(Node(2))") and problems[4].with_rows(8).sizes == (8, 64, 64)
    assert NodeProduct.of("all_reduce", (3, 8), (8, 8), float16).for_rows(8).size("m").factor == 1


REFUSALS = {
    "another K": (lambda: NodeProduct.of("all_gather", (6, 16), (12, 10), float32), "columns of a (16) and rows of b (12)"),
    "rows": (lambda: NodeProduct.of("reduce_scatter", (7, 16), (16, 10), float32), "6 or 8"),
    "few rows": (lambda: NodeProduct.of("reduce_scatter", (1, 16), (16, 10), float32, gpus=4), "legal   4"),
    "no elements": (lambda: NodeProduct.of("all_reduce", (0, 16), (16, 10), float32), "with elements"),
    "the fallback": (lambda: distributed.configure(fallback="maybe"), "warn silent refuse"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name):
    make, expected = REFUSALS[name]
    with pytest.raises(ArgumentError) as caught:
        make()
    assert expected in str(caught.value)


# ---------------------------------------------------------------------------------------------- the barrier


def test_a_gpu_that_does_not_arrive_is_named():
    late = barrier.PeerBarrier.__new__(barrier.PeerBarrier)
    late.rank, late.gpus, late.seconds, late.places = 0, 4, 2.0, ("before launch 1 of 2, sums", "after the last launch, total")
    late._seen = np.zeros(5, np.int32)
    late.check()
    late._seen[[0, 2, 4]] = 2, 1, 1
    with pytest.raises(LaunchError, match="GPU 0 waited after the last launch, total, and GPU 1, GPU 3 did not arrive within 2 s"):
        late.check()


@pytest.mark.skipif(not toolchains(), reason="no NVRTC is installed")
def test_nvrtc_compiles_the_barrier():
    for target in ("sm_80", "sm_90"):
        assert compile_cuda(barrier.TEXT, target).cubin


# ---------------------------------------------------------------------------------------------- processes

CHECKS = ("results", "candidates", "gradients", "compiled", "dtensors", "refused", "graphs", "experts", "rows", "launches")


def finished(*arguments, limit):
    """The output of two processes."""
    folder = pathlib.Path(__file__).parent
    off = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", folder / "distributed_processes.py", *arguments],
        capture_output=True, text=True, timeout=limit,
        env={**os.environ, **off, "PYTHONPATH": f"{folder.parent}{os.pathsep}{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    return done.stdout.splitlines(), done.stderr


def gpus():
    if not has_torch():
        return 0
    import torch

    return torch.cuda.device_count()


@pytest.mark.nightly
@pytest.mark.skipif(not has_torch(), reason="needs PyTorch with torch.distributed")
def test_two_processes_on_cpus():
    lines, errors = finished("cpu", limit=300)
    assert lines == [f"{name}: passed" for name in CHECKS], errors[-3000:]


@pytest.mark.gpu
@pytest.mark.gpu2
@pytest.mark.skipif(gpus() < 2, reason="needs two CUDA GPUs of one host, and PyTorch")
def test_two_processes_on_gpus():
    lines, errors = finished(limit=300)
    assert lines == [f"{name}: passed" for name in CHECKS], errors[-3000:]


@pytest.mark.gpu
@pytest.mark.gpu2
@pytest.mark.parametrize("how", ["ended", "late"])
@pytest.mark.skipif(gpus() < 2, reason="needs two CUDA GPUs of one host, and PyTorch")
def test_a_process_that_does_not_arrive(how):
    lines, errors = finished("absent", *(("late",) if how == "late" else ()), limit=120)
    assert len(lines) == 2 and all("absent: LaunchError" in line for line in lines), errors[-3000:]
