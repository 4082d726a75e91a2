"""`fold_single_trip`: if a condition leaves one value of a loop variable, accesses use the value."""

import numpy as np
import pytest
from problems import integers

from fireiron import *
from fireiron.gpu import launch
from fireiron.ir import execs
from fireiron.lower.fold_single_trip import fold_single_trip
from fireiron.sim import simulate

needs_gpu = pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')")

COPY = """for (int e = threadIdx.x; e < dst_size_m * dst_size_n; e += blockDim.x) {
  const int i = e % dst_size_m, j = e / dst_size_m;
  dst_at(i, j) = i < src_size_m && j < src_size_n ? src_at(i, j) : src_type(0);
}"""


def kernel_of(K, stages=2, M=16, N=80):
    strategy = (
        MatMul.tile(8, 40).to(Block).split(8).pipeline(stages).load(A, SH).load(B, SH).tile(2, 1).to(Thread).split(1).tile(1, 1).done()
    )
    return strategy(MatMul(M, N, K)(GL, GL, GL)(Kernel)).program("sm_80")


def steady_copies(program):
    """The copies of the steady state, and the variables in their addresses."""
    loops = [(one, loops) for one, loops in execs(program.lowered.body) if one.spec.moves and loops and loops[0].var.name == "k"]
    return [{var.name for access in one.accesses for part in (*access.base, access.copy) for var in part.variables()} for one, _ in loops]


@pytest.mark.parametrize(("K", "stages"), [(16, 2), (11, 2), (24, 3)])
def test_loads_of_one_iteration_have_its_number(K, stages):
    """A loop with as many iterations as stages loads in its first iteration only."""
    program = kernel_of(K, stages)
    assert all("k" not in names for names in steady_copies(program)) and len(steady_copies(program)) == 2
    assert f"(k + {stages - 1}) % {stages}" not in program.cuda and f"if (k + {stages - 1} < {stages})" in program.cuda
    assert (
        program.stages["fold_single_trip"] is not program.stages["fence"]
        and fold_single_trip(program.stages["fold_single_trip"]) is program.stages["fold_single_trip"]
    )


@pytest.mark.parametrize("K", [24, sym("K")])
def test_loads_of_several_iterations_are_kept(K):
    program = kernel_of(K)
    assert all("k" in names for names in steady_copies(program)) and "k_stage_1" in program.cuda
    assert program.stages["fold_single_trip"] is program.stages["fence"]


def test_the_condition_is_kept():
    """Data prefetched in the first iteration is not loaded again in the second, which reads its stage."""
    program = kernel_of(16)
    generator = np.random.default_rng(1)
    a, b = integers((16, 16), float32, generator), integers((16, 80), float32, generator)
    assert np.array_equal(simulate(program.lowered, {"A": a, "B": b}).outputs["C"], a @ b)
    copies = [one for one, loops in execs(program.lowered.body) if one.spec.moves and loops and loops[0].var.name == "k"]
    assert all(any(var.name == "k" for var in one.active.variables()) for one in copies)


def copied_by_text():
    """Two iterations, user code that copies B, and half of the lanes idle in the last step: ptxas compiled this incorrectly."""
    threads = lambda start: start.tile(2, 40).to(Warp).layout(ColMajor).tile(2, 1).to(Thread).layout(ColMajor)
    chain = MatMul.tile(8, 40).to(Block).epilog(RF, threads(Init).tile(1, 1).done(), threads(Move).tile(1, 1).done())
    chain = chain.split(8).pipeline(2, interleave=True).load(A, SH, Move.tile(4, 1).to(Thread).layout(RowMajor).done())
    chain = (
        chain.load(B, SH, Move.done(MicroKernel("copy", COPY))).tile(2, 40).to(Warp).layout(ColMajor).tile(2, 1).to(Thread).layout(ColMajor)
    )
    chain = chain.split(2).pipeline(2).load(A, RF, Move.tile(1, 1).done()).load(B, RF, Move.tile(1, 1).unroll().done()).split(1)
    return chain.tile(1, 1).done()(MatMul(16, 80, 11, A=RowMajor, B=RowMajor(ld=83))(GL, GL, GL)(Kernel))


@pytest.mark.gpu
@needs_gpu
def test_two_iterations_on_a_gpu():
    """CUDA 12.6 and 13.0 lost the stage of these loads."""
    import cupy

    generator = np.random.default_rng(2)
    a, whole = integers((16, 11), float32, generator), integers((11, 83), float32, generator)
    got = copied_by_text().compile()(cupy.asarray(a), cupy.asarray(whole)[:, :80])
    assert np.array_equal(cupy.asnumpy(got), a @ whole[:, :80])


def test_the_text_that_ptxas_compiled_incorrectly():
    text = copied_by_text().cuda("sm_90a")
    assert "(k + 1) % 2" not in text and "return b_sh[index_0 * 40 + index_1 + 320];" in text
