"""Defects that a review found, each by the shortest program that shows it."""

import re

import numpy as np
import pytest

from fireiron import *
from fireiron.executable.fma import Fma
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.sim import simulate

DOT = """for (int p = 0; p < a_size_k; ++p)
  c_at(0, 0) = (accumulate || p ? c_at(0, 0) : c_type(0)) + a_at(0, p) * b_at(p, 0);"""
INNER = MatMul.tile(4, 4).to(Thread).split(1).tile(1, 1).done()


def kernel(chain, M, N, K, **options):
    return chain(MatMul(M, N, K, **options)(GL, GL, GL)(Kernel))


def right(program, M, N, K, **symbols):
    generator = np.random.default_rng(2)
    a, b = generator.integers(-3, 4, (M, K)).astype(np.float32), generator.integers(-3, 4, (K, N)).astype(np.float32)
    np.testing.assert_array_equal(simulate(program.ir, {"A": a, "B": b}, symbols).outputs["C"], a @ b)
    if toolchains():
        compile_cuda(program.cuda, "sm_90")


def test_accessors_of_micro_kernels_do_not_capture_loop_variables():
    chain = MatMul.tile(8, 8).to(Block).split(4).tile(4, 4).to(Thread).tile(2, 2).tile(1, 1).done(MicroKernel("d", DOT))
    program = kernel(chain, 16, 16, 12).program()
    parameters, body = re.search(r"a_at =\s+\[&\](.*?)\{(.*?);", program.cuda, re.DOTALL).groups()
    assert "int index_0, int index_1" in parameters
    assert "k * 64" in body and "m * 2 + m2" in body and "index_1 * 16" in body
    right(program, 16, 16, 12)


def test_micro_kernels_of_a_thread_take_edges():
    chain = MatMul.tile(8, 8).to(Block).split(4).tile(1, 1).to(Thread).done(MicroKernel("d", DOT))
    right(kernel(chain, 13, 11, 9).program(), 13, 11, 9)


@pytest.mark.parametrize("name", ["src_size_m", "a_at", "dst", "index_0", "float4", "fmaf", "thread", "A", "__x", "NULL"])
def test_symbols_do_not_take_names_of_the_generated_code(name):
    with pytest.raises(ArgumentError, match="symbol called"):
        kernel(MatMul.tile(8, 8).to(Block).then(INNER), sym(name), 8, 8).cuda()


def test_symbols_may_have_the_names_of_loops():
    chain = MatMul.tile(8, 8).to(Block).split(4).load(A, SH).then(INNER)
    m, n, k = (sym(name) for name in "mnk")
    right(kernel(chain, m, n, k).program(), 13, 11, 9, m=13, n=11, k=9)


def test_a_conditional_accumulator_keeps_its_parentheses():
    plain = Fma("X", float32, (float32,), "({a} * {b}) + {c}")
    text = kernel(MatMul.tile(8, 8).to(Block).split(4).tile(2, 2).to(Thread).tile(1, 1).split(1).done(plain), 16, 16, 8).cuda()
    assert ") + (" in text.replace("\n", "") and "? c_target[" in text


def test_an_accumulate_that_holds_needs_its_output():
    strategy = MatMul.tile(8, 8).to(Block).then(INNER)
    compiled = kernel(strategy, 16, 16, 8, accumulate=sym("flag") > 1).compile()
    a, b, c = np.ones((16, 8), np.float32), np.ones((8, 16), np.float32), np.ones((16, 16), np.float32)
    assert (compiled(a, b, flag=1) == 8).all()
    assert (compiled(a, b, flag=2, out=c) == 9).all()
    with pytest.raises(ArgumentError, match="adds to C"):
        compiled(a, b, flag=2)


def test_a_leading_dimension_holds_a_column():
    compiled = kernel(MatMul.tile(8, 8).to(Block).then(INNER), 16, 16, 8, C=ColMajor(ld=sym("ld"))).compile()
    a, b = np.ones((16, 8), np.float32), np.ones((8, 16), np.float32)
    assert (compiled(a, b, ld=17) == 8).all()
    with pytest.raises(LaunchError, match="leading dimension of C is at least 16"):
        compiled(a, b, ld=3)


def test_more_blocks_than_a_grid_has():
    with pytest.raises(ResourceError, match="blocks"):
        kernel(MatMul.tile(1, 1).to(Block).tile(1, 1).to(Thread).split(1).done(), 2**20, 2**20, 1).cuda()


def test_spare_threads_stay_idle_under_a_permutation():
    copy = Move.tile(10, 4).to(Warp).swizzle(lambda uid: (uid + 1) % 3).tile(1, 1).to(Lane).done()
    chain = MatMul.tile(20, 20).to(Block).split(4).load(A, SH, copy).tile(2, 2).to(Thread).split(1).tile(1, 1).done()
    right(kernel(chain, 20, 20, 8).program(), 20, 20, 8)


def test_micro_kernels_reach_swizzled_storage_by_elements_only():
    store = "dst[dst_stride_m] = src[0];"
    chain = MatMul.tile(16, 16).to(Block).split(8).load(A, SH, Move.done(MicroKernel("bad", store))).swizzle(Swizzle(2, 0, 3)).then(INNER)
    with pytest.raises(DecompositionError, match="no fixed step"):
        kernel(chain, 16, 16, 16).cuda()


def test_sizes_that_are_sums_of_symbols():
    H = sym("H")
    chain = MatMul.tile(16, 16).to(Block).split(8).load(A, SH, Move.tile(4, 1).to(Thread).done()).tile(4, 4).to(Thread).split(1)
    chain = chain.load(A, RF, Move.tile(4, 1).done()).tile(1, 1).done()
    right(kernel(chain, H * 2, H + 1, H).program(), 22, 12, 11, H=11)
    right(kernel(chain, H, H + 1, H * 2).program(), 17, 18, 34, H=17)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_a_vector_is_converted_on_its_way_to_registers(dtype):
    """C of 16 bits that a strategy adds to, in a float32 accumulator: neighbours are read at once, and converted one by one."""
    vectors = Move.tile(8, 16).to(Warp).tile(4, 1).to(Lane).tile(4, 1).unroll().done()
    threads = MatMul.tile(16, 32).to(Block).epilog(RF, float32, vectors, vectors).split(8).load(A, SH).load(B, SH)
    threads = threads.tile(8, 16).to(Warp).tile(4, 1).to(Lane).split(1).tile(1, 1).unroll().done()
    warps = MatMul.tile(16, 32).to(Block).epilog(RF, float32, Move.tile(16, 16).to(Warp).done(), Move.tile(16, 16).to(Warp).done())
    warps = (
        warps.split(16).load(A, SH).load(B, SH).tile(16, 16).to(Warp).load(A, RF, Move.done()).load(B, RF, Move.done()).mma_tile().done()
    )
    for strategy, layout, move in ((threads, ColMajor, "uint2"), (warps, RowMajor, "unsigned int")):
        spec = MatMul(32, 64, 16, dtype=dtype, c_dtype=dtype, accumulate=True, A=RowMajor, B=RowMajor, C=layout)(GL, GL, GL)(Kernel)
        text = strategy(spec).cuda("sm_80")
        load = text[text.index("// c_rf:") : text.index("// A to a_sh")]
        assert re.search(rf"reinterpret_cast<const {move}\*>\(\s*&(?:C|c_source\d*)\[", load)
        assert "2float(piece[1])" in text


@pytest.mark.parametrize("stages", [(2, 2, 2), (3, 2, 4), (2, 3, 1), (4, 4, 4)], ids=str)
def test_a_pipeline_to_shared_memory_inside_another(stages):
    """The inner loads are no registers: their groups, waits and stages are their own loop's."""
    outer, inner, registers = stages
    deal = (
        Init.tile(8, 16).to(Warp).tile(4, 1).to(Lane).tile(1, 1).done(),
        Move.tile(8, 16).to(Warp).tile(4, 1).to(Lane).tile(1, 1).done(),
    )
    chain = MatMul.tile(16, 16).to(Block).epilog(RF, *deal).split(16).pipeline(outer).load(A, SH, Move.coalesced(4).done())
    chain = chain.split(4).pipeline(inner).load(B, SH, Move.coalesced(4).done()).tile(8, 16).to(Warp).tile(4, 1).to(Lane)
    chain = chain.split(1).pipeline(registers).load(A, RF, Move.tile(4, 1).unroll().done()).load(B, RF, Move.done())
    chain = chain.tile(1, 1).unroll().done()
    for target in ("sm_75", "sm_80"):
        for m, n, k in ((16, 32, 64), (17, 15, 33), (5, 5, 1)):
            right(kernel(chain, m, n, k).program(target), m, n, k)
    m, n, k = (sym(name) for name in "mnk")
    right(kernel(chain, m, n, k).program("sm_80"), 17, 5, 37, m=17, n=5, k=37)


def test_combine_of_split_k_is_a_tuple_of_steps():
    with pytest.raises(ArgumentError, match="split_k combine"):
        SplitK(2, Warp, 8, np.int64(2))


@pytest.mark.parametrize("wrong", [lambda: Reduction(0, 4, 2), lambda: Reduction(4, 4, 2)(3, GL), lambda: Reduction(4, 4, 2)(SH, GL)(3)])
def test_a_wrong_reduction_names_the_line(wrong):
    with pytest.raises(ArgumentError) as caught:
        wrong()
    assert "test_regressions.py" in str(caught.value.at)


@pytest.mark.parametrize("stages", [(1, 1), (2, 1), (2, 2), (3, 2)], ids=str)
def test_a_wait_at_a_barrier_of_a_warp_is_none_for_other_warps(stages):
    """B is copied by the block, A by each warp for itself: waiting for A in a warp does not make the other warp's B visible."""
    outer, inner = stages
    deal = (
        Init.tile(16, 8).to(Warp).tile(2, 2).to(Lane).tile(1, 1).done(),
        Move.tile(16, 8).to(Warp).tile(2, 2).to(Lane).tile(1, 1).done(),
    )
    chain = MatMul.tile(16, 16).to(Block).epilog(RF, *deal).split(4).pipeline(outer).load(B, SH).split(2).pipeline(inner)
    chain = chain.tile(16, 8).to(Warp).load(A, SH).tile(2, 2).to(Lane).split(1).tile(1, 1).unroll().done()
    for m, n, k in ((16, 16, 24), (17, 15, 9), (16, 32, 1)):
        program = kernel(chain, m, n, k).program("sm_80")
        right(program, m, n, k)
        waits = re.findall(r"cp_async_wait<(\d+)>\(\);[^\n]*\n\s*(\w+)", program.cuda)
        assert {barrier for _, barrier in waits} == {"__syncthreads", "__syncwarp"} or k == 1


@pytest.mark.parametrize("refinement", [Pad(1), SwizzleStorage(Swizzle(2, 1, 4))], ids=str)
def test_stores_of_matrices_fall_back_where_rows_are_not_whole(refinement):
    """stmatrix was chosen for shared rows that do not start at 16 bytes, and refused later; each lane stores what it holds instead."""
    stage = Move.tile(32, 32).to(Warp).done()
    store = Move.load(SRC, SH, stage)
    chain = MatMul.tile(64, 64).to(Block).epilog(RF, Init.tile(32, 32).to(Warp).done(), store.coalesced(1).done())
    ragged = MatMul.tile(64, 64).to(Block).epilog(RF, Init.tile(32, 32).to(Warp).done(), store.refine(refinement).coalesced(1).done())
    rest = MatMul.split(16).load(A, SH).load(B, SH).tile(32, 32).to(Warp).load(A, RF, Move.done()).load(B, RF, Move.done())
    rest = rest.tile(16, 16).mma_tile().done()
    spec = MatMul(64, 64, 16, dtype=float16, c_dtype=float16, A=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    assert "stmatrix" in chain.then(rest)(spec).cuda("sm_90")
    kernel = ragged.then(rest)(spec).compile("sm_90")
    assert "stmatrix" not in kernel.asm["cuda"]
    a, b = (np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float16) for seed, shape in enumerate([(64, 16), (16, 64)]))
    assert np.array_equal(kernel(a, b), a @ b)


@pytest.mark.parametrize("k", [1, 4, 8, 13, 16])
def test_parts_of_k_without_any_k_write_zeros(k):
    """Two of four parts have no k of their own: they skipped what sets their partial sums, and the sum read what nobody wrote."""
    chain = MatMul.tile(8, 8).to(Block).split_k(4, Warp, 4).split(1).tile(4, 4).to(Lane).tile(1, 1).done()
    program = kernel(chain, 8, 8, k).program()
    right(program, 8, 8, k)
    before, _, assignment = program.cuda.partition("p_sh[warp")
    assert "fmaf(" in assignment and "if (warp" not in before and (k >= 16 or ": 0.0f" in assignment)
