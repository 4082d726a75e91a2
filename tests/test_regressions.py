"""Regression tests for defects from reviews, each with the shortest program that shows it."""

import random
import re
import sys
import time
import types

import attrs
import numpy as np
import pytest

from fireiron import *
from fireiron import attention, compiler, ir, operators
from fireiron.check import safety
from fireiron.errors import FireironError, LaunchError
from fireiron.executable.fma import Fma
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.language import library
from fireiron.lower.walk import grow_tree
from fireiron.measure.rounding import expected
from fireiron.measure.simulated import data_for, order_of
from fireiron.sim import simulate
from fireiron.values import typed
from fireiron.values.expr import TRUE, Var, all_of, any_of
from fireiron.values.layout import logical_product
from fireiron.values.machine import as_dtype

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
    with pytest.raises(ArgumentError, match="the symbol name .* is used by generated code"):
        kernel(MatMul.tile(8, 8).to(Block).then(INNER), sym(name), 8, 8).cuda()


def test_symbols_may_have_the_names_of_loops():
    chain = MatMul.tile(8, 8).to(Block).split(4).load(A, SH).then(INNER)
    m, n, k = (sym(name) for name in "mnk")
    right(kernel(chain, m, n, k).program(), 13, 11, 9, m=13, n=11, k=9)


def test_conditional_accumulator_is_printed_in_parentheses():
    plain = Fma("X", float32, (float32,), "({a} * {b}) + {c}")
    text = kernel(MatMul.tile(8, 8).to(Block).split(4).tile(2, 2).to(Thread).tile(1, 1).split(1).done(plain), 16, 16, 8).cuda()
    assert ") + (" in text.replace("\n", "") and "? c_target[" in text


def test_a_true_accumulate_needs_its_output():
    strategy = MatMul.tile(8, 8).to(Block).then(INNER)
    compiled = kernel(strategy, 16, 16, 8, accumulate=sym("flag") > 1).compile()
    a, b, c = (np.ones(shape, np.float32, order="F") for shape in ((16, 8), (8, 16), (16, 16)))
    assert (compiled(a, b, flag=1) == 8).all()
    assert (compiled(a, b, flag=2, out=c) == 9).all()
    with pytest.raises(ArgumentError, match="adds to C"):
        compiled(a, b, flag=2)


def test_a_leading_dimension_is_at_least_a_column():
    compiled = kernel(MatMul.tile(8, 8).to(Block).then(INNER), 16, 16, 8, C=ColMajor(ld=sym("ld"))).compile()
    a, b = np.ones((16, 8), np.float32, order="F"), np.ones((8, 16), np.float32, order="F")
    assert (compiled(a, b, ld=17) == 8).all()
    with pytest.raises(LaunchError, match="leading dimension of C is at least 16"):
        compiled(a, b, ld=3)


def test_more_blocks_than_a_grid_can_have():
    with pytest.raises(ResourceError, match="blocks"):
        kernel(MatMul.tile(1, 1).to(Block).tile(1, 1).to(Thread).split(1).done(), 2**20, 2**20, 1).cuda()


def test_spare_threads_stay_idle_under_a_permutation():
    copy = Move.tile(10, 4).to(Warp).swizzle(lambda uid: (uid + 1) % 3).tile(1, 1).to(Lane).done()
    chain = MatMul.tile(20, 20).to(Block).split(4).load(A, SH, copy).tile(2, 2).to(Thread).split(1).tile(1, 1).done()
    right(kernel(chain, 20, 20, 8).program(), 20, 20, 8)


def test_micro_kernels_reach_swizzled_storage_by_elements_only():
    store = "dst[dst_stride_m] = src[0];"
    chain = (
        MatMul.tile(16, 16)
        .to(Block)
        .split(8)
        .load(A, SH, Move.done(MicroKernel("bad", store)))
        .swizzle_storage(Swizzle(2, 0, 3))
        .then(INNER)
    )
    with pytest.raises(DecompositionError, match="no fixed stride"):
        kernel(chain, 16, 16, 16).cuda()


def test_sizes_that_are_sums_of_symbols():
    H = sym("H")
    chain = MatMul.tile(16, 16).to(Block).split(8).load(A, SH, Move.tile(4, 1).to(Thread).done()).tile(4, 4).to(Thread).split(1)
    chain = chain.load(A, RF, Move.tile(4, 1).done()).tile(1, 1).done()
    right(kernel(chain, H * 2, H + 1, H).program(), 22, 12, 11, H=11)
    right(kernel(chain, H, H + 1, H * 2).program(), 17, 18, 34, H=17)


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_a_vector_is_converted_on_its_way_to_registers(dtype):
    """C has 16 bits and is added to a float32 accumulator: adjacent elements are read at once and converted one by one."""
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
    """The inner loads do not target registers: their groups, waits and stages belong to their own loop."""
    outer, inner, registers = stages
    thread_tiles = (
        Init.tile(8, 16).to(Warp).tile(4, 1).to(Lane).tile(1, 1).done(),
        Move.tile(8, 16).to(Warp).tile(4, 1).to(Lane).tile(1, 1).done(),
    )
    chain = MatMul.tile(16, 16).to(Block).epilog(RF, *thread_tiles).split(16).pipeline(outer).load(A, SH, Move.coalesced_copy(4).done())
    chain = chain.split(4).pipeline(inner).load(B, SH, Move.coalesced_copy(4).done()).tile(8, 16).to(Warp).tile(4, 1).to(Lane)
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
def test_wait_at_a_warp_barrier_does_not_cover_other_warps(stages):
    """The block copies B, and each warp copies A for itself: a wait for A in a warp does not make the other warp's B visible."""
    outer, inner = stages
    thread_tiles = (
        Init.tile(16, 8).to(Warp).tile(2, 2).to(Lane).tile(1, 1).done(),
        Move.tile(16, 8).to(Warp).tile(2, 2).to(Lane).tile(1, 1).done(),
    )
    chain = MatMul.tile(16, 16).to(Block).epilog(RF, *thread_tiles).split(4).pipeline(outer).load(B, SH).split(2).pipeline(inner)
    chain = chain.tile(16, 8).to(Warp).load(A, SH).tile(2, 2).to(Lane).split(1).tile(1, 1).unroll().done()
    for m, n, k in ((16, 16, 24), (17, 15, 9), (16, 32, 1)):
        program = kernel(chain, m, n, k).program("sm_80")
        right(program, m, n, k)
        waits = re.findall(r"cp_async_wait_group<(\d+)>\(\);[^\n]*\n\s*(\w+)", program.cuda)
        assert {barrier for _, barrier in waits} == {"__syncthreads", "__syncwarp"} or k == 1


@pytest.mark.parametrize("refinement", [Pad(1), SwizzleStorage(Swizzle(2, 1, 4))], ids=str)
def test_stores_of_matrices_fall_back_where_rows_are_not_whole(refinement):
    """stmatrix was chosen for shared rows that are not aligned to 16 bytes, and refused later; now each lane stores its own elements."""
    stage = Move.tile(32, 32).to(Warp).done()
    store = Move.load(SRC, SH, stage)
    chain = MatMul.tile(64, 64).to(Block).epilog(RF, Init.tile(32, 32).to(Warp).done(), store.coalesced_copy(1).done())
    ragged = MatMul.tile(64, 64).to(Block).epilog(RF, Init.tile(32, 32).to(Warp).done(), store.refine(refinement).coalesced_copy(1).done())
    rest = MatMul.split(16).load(A, SH).load(B, SH).tile(32, 32).to(Warp).load(A, RF, Move.done()).load(B, RF, Move.done())
    rest = rest.tile(16, 16).mma_tile().done()
    spec = MatMul(64, 64, 16, dtype=float16, c_dtype=float16, A=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    assert "stmatrix" in chain.then(rest)(spec).cuda("sm_90")
    kernel = ragged.then(rest)(spec).compile("sm_90")
    assert "stmatrix" not in kernel.asm["cuda"]
    a, b = (np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float16) for seed, shape in enumerate([(64, 16), (16, 64)]))
    assert np.array_equal(kernel(a, np.asfortranarray(b)), a @ b)


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 6])
def test_quad_pairs_in_any_number_share_k(parts):
    """A warp has four quad-pairs; those without a part of k are idle."""
    chain = MatMul.tile(16, 16).to(Block).split_k(parts, QuadPair, 4).split(1).tile(4, 8).to(Thread).tile(1, 1).done()
    for m, n, k in ((16, 16, 8 * parts), (20, 30, 37)):
        program = kernel(chain, m, n, k).program()
        assert program.ir.threads == 32 * -(-parts // 4)
        right(program, m, n, k)


def test_threads_beyond_the_last_part_of_k_are_idle():
    """If a block has more threads than whole units, the remaining threads belong to no unit."""
    spec = MatMul.tile(16, 16).to(Block)(MatMul(16, 16, 16)(GL, GL, GL)(Kernel)).result
    context = grow_tree(spec, (), ARCHITECTURES[-1], INSTRUCTIONS).context
    body = SplitK(1, Warp, 8).expand(spec, attrs.evolve(context, workers=40, thread=Var("thread", 0, 39))).child("body")
    assert [body.active.evaluate({"warp": thread // 32, "thread": thread}) for thread in (0, 31, 32, 39)] == [1, 1, 0, 0]


MASKS = (lambda u: (u & ~7) + (7 - u % 8), lambda u: (~7 & u) + ((u & 7) ^ 3), "(uid & ~7) + ((uid & 7) ^ 5)", "(uid & -8) + (7 - uid % 8)")


@pytest.mark.parametrize("permutation", MASKS, ids=range(len(MASKS)))
def test_masks_that_clear_bits(permutation):
    chain = MatMul.tile(8, 8).to(Block).swizzle(permutation).then(INNER)
    assert Strategy.from_json(chain.to_json()) == chain
    right(kernel(chain, 32, 32, 4).program(), 32, 32, 4)


def test_layout_repeated_once_needs_no_complement():
    """A layout without a complement can still be repeated once."""
    assert str(logical_product(Layout((2, 2), (2, 3)), Layout(1))) == "((2,2),1):((2,3),0)"
    assert str(logical_product(Layout((2, 2), (2, 3)), Layout((3, 2), (0, 0)))) == "((2,2),(3,2)):((2,3),(0,0))"
    assert str(logical_product(Layout((2, 2), (2, 3)), Layout(2))) == "((2,2),2):((2,3),6)"


def chain_of(steps):
    """A thread's tile, tiled repeatedly."""
    chain = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread)
    for _ in range(steps - 4):
        chain = chain.tile(1, 1)
    return chain.split(1).done()


HUGE = {
    "accumulated in memory": MatMul.tile(2**20, 2**10).to(Block).tile(2**10, 2**10).to(Thread).split(1).tile(1, 1).done(),
    "accumulated in registers": MatMul.tile(2**13, 2**13).to(Block).epilog(RF).split(8).tile(2**8, 2**8).to(Thread).tile(1, 1).split(1).done(),
    "loaded to registers": MatMul.tile(2**12, 2**12).to(Block).split(2**10).tile(2**7, 2**7).to(Thread).load(A, RF).split(1).tile(1, 1).done(),
    "loaded to shared memory": MatMul.tile(2**19, 64).to(Block).epilog(RF).split(8).load(A, SH).tile(2**16, 64).to(Warp).tile(1, 1).to(Lane).split(1).done(),
    "partial sums": MatMul.tile(2**12, 2**12).to(Block).split_k(2, Warp, 8).tile(1, 1).to(Lane).split(1).done(),
    "a micro-kernel": MatMul.tile(2**15, 2**15).to(Block).tile(2**10, 2**10).to(Thread).done(MicroKernel("own", DOT)),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", HUGE)
def test_excessive_sizes_are_refused_before_enumeration(name):
    """Some of these cases requested terabytes from NumPy."""
    start = time.process_time()
    with pytest.raises(ResourceError):
        _ = kernel(HUGE[name], 2**22, 2**20, 64).program().ir
    assert time.process_time() - start < 30, "refused at once, not when it has been enumerated"


def test_chains_are_not_deeper_than_the_recursion_limit():
    right(kernel(chain_of(100), 8, 8, 4).program(), 8, 8, 4)
    for steps in (101, 2000):
        with pytest.raises(DecompositionError, match="has more than 100 steps") as caught:
            _ = kernel(chain_of(steps), 8, 8, 4).program().tree
        assert "test_regressions.py" in caught.value.at


ELEMENTS = "for (int i = 0; i < dst_size_m; ++i) for (int j = 0; j < dst_size_n; ++j) dst_at(i, j) = src_at(i, j);"
TILE = """for (int i = 0; i < c_size_m; ++i) for (int j = 0; j < c_size_n; ++j) for (int p = 0; p < a_size_k; ++p)
  c_at(i, j) = (accumulate || p ? c_at(i, j) : c_type(0)) + a_at(i, p) * b_at(p, j);"""
PARTS = MatMul.tile(16, 16).to(Block).split_k(2, Warp, 4)
STORE = Move.tile(4, 2).to(Lane)


def test_the_simulator_accepts_tiles_at_fixed_coordinates():
    """Each warp has its own element of the partial sums: a two-dimensional view of a three-dimensional buffer."""
    init, rest = Init.tile(4, 2).to(Lane).tile(1, 1).done(), MatMul.split(4).tile(4, 2).to(Lane).split(1).tile(1, 1).done()
    chains = (
        PARTS.split(4).tile(4, 4).to(Lane).done(MicroKernel("tile", TILE)),
        PARTS.epilog(RF, init, STORE.tile(4, 1).done()).then(rest),
        PARTS.epilog(RF, init, STORE.done(MicroKernel("elements", ELEMENTS))).then(rest),
    )
    a, b = (np.random.default_rng(seed).integers(-3, 4, (16, 16)).astype(np.float32) for seed in (1, 2))
    for chain in chains:
        program = kernel(chain, 16, 16, 16).program()
        np.testing.assert_array_equal(simulate(program.ir, {"A": a, "B": b}).outputs["C"], a @ b)


def test_names_that_passes_create_are_new():
    """The loop of the first loads had the name of the symbol."""
    chain = MatMul.tile(8, 8).to(Block).split(4).pipeline(3).load(A, SH).load(B, SH).then(INNER)
    program = kernel(chain, 16, sym("k_ahead"), 20).program()
    assert "k_ahead2" in program.cuda
    right(program, 16, 8, 20, k_ahead=8)


class Rude:
    """A user's class with a defect."""

    def __repr__(self):
        raise ValueError("no repr")


@pytest.mark.parametrize(
    "call",
    [
        lambda: MatMul.tile(Rude(), 2),
        lambda: MatMul.tile(2, 2).refine(Rude()),
        lambda: MatMul.load(A, Rude()),
        lambda: MatMul(Rude(), 2, 2),
        lambda: MatMul.tile(2, 2).swizzle(lambda uid: Rude()),
        lambda: MatMul.tile(Tunable("a", 1, 2), 2).with_(a=Rude()),
        lambda: sym("M", multiple_of=Rude()),
        lambda: sym("M") + Rude(),
        lambda: Tunable("a", 1, 2) / Rude(),
    ],
)
def test_values_without_a_text_are_refused(call):
    with pytest.raises(FireironError) as caught:
        call()
    assert "whose repr raises ValueError" in str(caught.value)


@pytest.mark.parametrize("join", [all_of, any_of])
@pytest.mark.parametrize("wrong", [1j, None, 5, (1j,), (2,)], ids=str)
def test_conditions_of_other_types_cannot_be_joined(join, wrong):
    with pytest.raises(ArgumentError):
        join(wrong)


@pytest.mark.parametrize("field", [field.name for field in attrs.fields(Mma)])
def test_a_matrix_instruction_with_an_array_for_a_field(field):
    """Arrays have no truth value, so the comparison raised NumPy's error."""
    with pytest.raises(ArgumentError, match=f"needed|Mma: {field} has"):
        attrs.evolve(HMMA_16816_F32, **{field: np.array([1, 2])})


def test_many_illegal_combinations_are_given_up():
    """Each of 540 combinations was lowered before it was refused; now only those near the first one are, and the message reports this."""
    rows, stages, parts = Tunable("rows", 4, 2, 8), Tunable("stages", 4, 2, 3, 5), Tunable("parts", 8, 16, 4, 32, 2)
    thread_tiles = [start.tile(rows, 4).to(Thread).layout(ColMajor).tile(1, 1).done() for start in (Init, Move)]
    chain = MatMul.tile(Tunable("m", 16, 32, 64), Tunable("n", 16, 32, 64)).to(Block).epilog(RF, *thread_tiles)
    chain = chain.split(parts).pipeline(stages).load(A, SH).load(B, SH).tile(rows, 4).to(Thread).split(1).tile(1, 1).done()
    with pytest.raises(DecompositionError, match="distributes elements over threads differently") as caught:
        kernel(chain, 1024, 1024, 1024).program()
    tried = int(re.search(r"(\d+) of the 540 combinations of the tunables were tried", caught.value.hint).group(1))
    assert 16 < tried < 100 and "strategy.legal_assignments(target)" in caught.value.hint


def test_last_combination_is_found_if_it_alone_is_legal():
    """Each illegal value hides the error of the next one, and only the last of 45 combinations is legal."""
    depth, rows, inner = Tunable("depth", 3, 5, 6, 7, 8), Tunable("rows", 5, 7, 8), Tunable("inner", 3, 5, 2)
    chain = MatMul.tile(32, 32).to(Block).split(16).split(depth).tile(rows, 4).to(Thread).tile(inner, 1).split(1).tile(1, 1).done()
    assert kernel(chain, 64, 64, 32).program().chosen == {"depth": 8, "rows": 8, "inner": 2}
    small = MatMul.tile(Tunable("m", 1024, 512, 256, 128, 64), Tunable("n", 1024, 512, 256, 128, 64)).to(Block).split(64).load(A, SH)
    small = small.load(B, SH).tile(8, 8).to(Thread).split(1).tile(1, 1).done()
    assert kernel(small, 1024, 1024, 1024).program("sm_52").chosen == {"m": 128, "n": 64}


@pytest.mark.parametrize("k", [1, 4, 8, 13, 16])
def test_parts_of_k_without_any_k_write_zeros(k):
    """Two of four parts have no k: they skipped the initialization of their partial sums, and the sum read uninitialized memory."""
    chain = MatMul.tile(8, 8).to(Block).split_k(4, Warp, 4).split(1).tile(4, 4).to(Lane).tile(1, 1).done()
    program = kernel(chain, 8, 8, k).program()
    right(program, 8, 8, k)
    before, _, assignment = program.cuda.partition("          p_sh_target[")
    assert "fmaf(" in assignment and "if (warp" not in before and (k >= 16 or ": 0.0f" in assignment)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MatMul.then(INNER)(np.ones((4, 4)), np.ones((4, 4))), "strategy is bound to a spec"),
        (lambda: MatMul.then(INNER)(MatMul(4, 4, 4)(GL, GL, GL)(Kernel), np.ones((4, 4))), r"not to \(MatMul\(4,4,4\)\(GL,GL,GL\)\(Kernel\), ndarray 4x4\)"),
        (lambda: MatMul.then(INNER)(), r"bound to a spec, not to \(\)"),
        (lambda: MatMul(8, 8, 8, layout=RowMajor), "MatMul: got an unexpected keyword argument 'layout'\n  legal +MatMul\\(M, N, K, \\*others, dtype"),
        (lambda: MatMul(8, 8), "MatMul: missing a required argument: 'K'"),
        (lambda: MatMul.load(A), "load: missing a required argument: 'memory'\n  legal +load\\(operand, memory, move=None\\)"),
        (lambda: MatMul.tile(8, 8).to(Block, Warp), "to: too many positional arguments"),
        (lambda: MatMul.tile(8, 8).at(Tile).unrefine(Pad), "unrefine\\(Pad\\): tile\\(8, 8\\) has no such refinement"),
        (lambda: MatMul.tile(8, 8).to(Block).at(Tile).unrefine(Unroll), "legal +To"),
        (lambda: MatMul.tile(64, 64).then(Move.done()), "starts from Move, this chain from MatMul"),
        (lambda: Move.tile(64, 64).then(Init.done()), "starts from Init, this chain from Move"),
        (lambda: Move.tile(64, 64).then(MatMul.split(8)), "starts from MatMul, this chain from Move"),
        (lambda: AnySpec.tile(8, 8).then(Move.tile(1, 1)).then(MatMul.done()), "starts from MatMul, this chain from Move"),
        (lambda: MatMul.load(A, SH, AnySpec), "load: AnySpec has no steps yet"),
        (lambda: MatMul.load(A, SH, Init.tile(1, 1).done()), "load: the strategy starts from Init, but it must decompose a Move"),
        (lambda: MatMul.load(A, SH, MatMul.tile(1, 1).done()), "load: the strategy starts from MatMul, but it must decompose a Move"),
        (lambda: MatMul.split_k(2, Warp, 4, Move.tile(1, 1).done()), "combine: the strategy starts from Move, .* decompose a Reduction"),
        (lambda: MatMul.epilog(RF, MatMul.tile(1, 1).done()), "epilog init: the strategy starts from MatMul, .* decompose a Init or a Move"),
        (lambda: MatMul.epilog(RF, store=Init.tile(1, 1).done()), "epilog store: the strategy starts from Init, .* decompose a Move"),
        (lambda: Move.tile(8, 8).done()(MatMul(8, 8, 8)(GL, GL, GL)(Kernel)), "starts from Move, but the spec is a MatMul"),
        (lambda: MatMul.tile(8, 8).done()(Reduction(8, 8, 8)(GL, GL)(Kernel)), "from MatMul, but the spec is a Reduction"),
        (lambda: MatMul.tile(8, 8).done().fallback(Move.tile(8, 8).done()), "starts from Move, but the spec is a MatMul"),
        (lambda: Strategy((), Move(8, 8)(GL, GL)(Kernel), MatMul), "starts from MatMul, but the spec is a Move"),
    ],
)  # fmt: skip
def test_calls_that_do_not_fit_are_refused(call, message):
    with pytest.raises(FireironError, match=message) as caught:
        call()
    assert "test_regressions.py" in caught.value.at


def test_arrays_by_name():
    chain = MatMul.tile(8, 8).to(Block).then(INNER)
    compiled = kernel(chain, 8, 8, 8).compile()
    array = np.ones((8, 8), np.float32, order="F")
    other = 2 * array
    for call in (lambda: compiled(B=other, A=array), lambda: compiled(array, B=other)):
        assert np.array_equal(call(), array @ other)
    for call, message in (
        (lambda: compiled(array, A=other), "A: given by position and by name"),
        (lambda: compiled(B=other), "A: missing"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()


def test_operands_as_the_paper_names_them():
    chain = MatMul.tile(8, 8).to(Block).split(8)
    assert chain.load(MatMul.a, SH).load(MatMul.b, SH) == chain.load(A, SH).load(B, SH)
    assert Move.tile(8, 8).to(Block).load(Move.src, SH) == Move.tile(8, 8).to(Block).load("src", SH)
    assert (str(MatMul.c), repr(Move.dst), repr(Init.dst)) == ("C", "'dst'", "'dst'")


def test_combinations_that_fit_are_found_although_the_first_ones_do_not_fit():
    """Two tunables must change together, and the error differs from one combination to the next."""
    entry = library.find("hmma_ampere")
    chosen = entry.strategy(entry.problem(256, 384, 320)).program("sm_75").chosen
    assert chosen == {"bm": 128, "bn": 64, "wm": 64, "wn": 64, "stages": 4, "bk": 32}


def test_elements_that_are_never_inside():
    """Three columns with vectors of eight: elements past the edge are zero without a load, and need no proof of their address."""
    copy = Move.tile(1, 8).to(Thread).layout(RowMajor).done()
    chain = MatMul.tile(24, 40).to(Block).split(5).load(A, SH).load(B, SH, copy).tile(1, 10).to(Thread).split(1).tile(1, 1).done()
    program = chain(MatMul(sym("M"), 3, sym("K"))(GL, GL, GL)(Kernel)).program("sm_75")
    assert [one for one in safety(program.lowered) if one.severity == "error"] == []
    assert "= 0.0f;" in program.cuda and not re.search(r"[^\w]0 \?", program.cuda)
    generator = np.random.default_rng(4)
    a, b = (np.asfortranarray(generator.integers(-4, 5, shape).astype("float32")) for shape in ((30, 11), (11, 3)))
    result = simulate(program.ir, {"A": a, "B": b}, {"M": 30, "K": 11}).outputs["C"]
    assert np.array_equal(result, a @ b)


def test_a_legal_combination_far_from_the_first_is_found_soon(monkeypatch):
    """All combinations with the first value of the slowest tunable are illegal, and there are 4096 of them."""
    rows, depth, pad = Tunable("rows", 84, 64), Tunable("depth", *range(1, 65)), Tunable("pad", *range(64))
    chain = MatMul.tile(rows, 64).to(Block).split(depth).load(A, SH).pad(pad).tile(32, 2).to(Thread).split(1).tile(1, 1).done()
    tried, program = [], compiler._Search.program
    monkeypatch.setattr(compiler._Search, "program", lambda search, values: tried.append(values) or program(search, values))
    assert kernel(chain, 128, 64, 64).program().chosen == {"rows": 64, "depth": 1, "pad": 0}
    assert len(tried) < 300


# ---------------------------------------------------------------------------------------------- found by the second generator


def test_registers_of_one_thread_are_not_read_by_others():
    """A single tile belongs to the first thread, and all threads read its load. Only the condition names that thread."""
    copy = Move.tile(3, 1).tile(3, 1).to(Thread).done()
    chain = MatMul.tile(16, 2).to(Block).load(B, RF, copy).tile(1, 2).to(Thread).tile(1, 1).done()
    with pytest.raises(DecompositionError, match="thread 1 needs element"):
        _ = kernel(chain, 2, 1, 1).program("sm_80").ir


def _one_choice():
    """One thread compares a number, and seven threads choose by the result."""
    choice = Fused(
        name="choice", dims="m n", loop="n", operands={"R": "m n", "alpha": "", "y": "m"}, init={"low": "a[m] = -inf"},
        body={"number": "t[m] = alpha", "top": "s[m] = max(n, where(t[m] < n, 0, R[m,n]))", "join": "a[m] = max(a[m], s[m])"}, final={"out": "y[m] = a[m]"},
    )  # fmt: skip
    return choice.tile(m=1).to(Block).tile(m=1).to(Warp).done()(choice(m=2, n=7, dtype=float32))


def test_comparison_results_of_one_thread_are_not_read_by_others():
    with pytest.raises(DecompositionError, match="t: this path distributes elements over threads differently"):
        _ = _one_choice().program("sm_80").ir


def test_poison_that_a_comparison_drops_is_found(monkeypatch):
    """A comparison with NaN is false, so an uninitialized register left no NaN in the result."""
    monkeypatch.setattr("fireiron.lower.distribute._is_partial", lambda kernel, use: False)
    program = _one_choice().program("sm_80")
    with pytest.raises(SimulationError, match=r"t\[0\] \(register 0\) is read before any write to it: thread 1"):
        simulate(program.lowered, {"R": np.zeros((2, 7), np.float32), "alpha": np.float32(0)})


def test_registers_of_other_warps_are_not_exchanged_in_a_warp():
    """Twenty threads of the first warp own the tile of the block; the other warps read registers that were never written for them."""
    chain = Move.tile(1, 16, 5).to(Block).load(SRC, RF, Move.tile(1, 4, 1).to(Thread).done())
    chain = chain.tile(1, 2, 5).to(Warp).load(SRC, RF).tile(1, 2, 1).to(Lane).done()
    with pytest.raises(MatchError, match="no instruction of sm_80 performs"):
        _ = chain(Move(1, 16, 5)(GL, GL)(Kernel)).program("sm_80").ir


def test_clusters_of_more_blocks_than_are_persistent():
    chain = MatMul.tile(64, 80).to(Block).persistent(1).cluster(2, 2).done()
    with pytest.raises(ResourceError, match="1 blocks are not a multiple of 4"):
        _ = kernel(chain, 1, 1, 1).program("sm_90a").ir


def test_stagger_blocks_iterations_of_data_in_shared_memory():
    chain = (
        MatMul.tile(32, 96).to(Block).epilog(RF).load(B, SH).split(16).stagger_blocks(2).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    )
    with pytest.raises(DecompositionError, match="which is private to a block"):
        _ = kernel(chain, 1, 1, 48).program("sm_80").ir


def test_pointwise_work_without_operands():
    """In a formula of numbers and functions no element defines the shape."""
    constant = Fused(name="ones", dims="m n", operands={"Y": "m n"}, body={"one": "t[m,n] = relu(abs(1))", "out": "Y[m,n] = t[m,n] * 2"})
    program = constant.tile(m=2, n=4).to(Block).done()(constant(m=3, n=5, types={"Y": float32})).program("sm_80")
    assert (simulate(program.ir, {}).outputs["Y"] == 2).all()


def test_the_trace_of_storage_with_gaps():
    """A whole tile's spec cannot state the strides of a smaller array with gaps; its long form can be printed."""
    chain = MatMul.tile(32, 32).to(Block).tile(1, 32).to(Thread).tile(1, 1).done()
    assert all(repr(spec) for _, spec in kernel(chain, 1, 1, 1, C=Strides(m=6, n=1)).trace())


def test_a_named_instruction_that_does_not_divide_k():
    chain = MatMul.tile(32, 32).to(Block).epilog(RF, float32).split(16).tile(16, 16).to(Warp).mma_tile(HMMA_16816_F32).done()
    with pytest.raises(DecompositionError, match=r"mma_tile\(HMMA_16816_F32\): the instruction's 16 elements of k do not divide the 8"):
        _ = kernel(chain.at(Split).replace(Split((8,))), 32, 32, 64, dtype=float16).program("sm_80").ir


def test_errors_print_conditions_readably():
    with pytest.raises(ArgumentError, match="accumulate=False") as caught:
        MatMul(5, 7, signature="mk,k->m")
    assert "Const" not in str(caught.value)
    with pytest.raises(ArgumentError, match="the symbol name A is used") as caught:
        _ = kernel(MatMul.tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1).done(), sym("A"), 4, 4).program().ir
    assert caught.value.within is not None


# ---------------------------------------------------------------------------------------------- found by the walker


def test_copy_between_units_that_own_different_parts_is_refused():
    """Sixteen threads of four quad-pairs own a row, and every quad-pair copies its part of it: the parts of the other pairs were never
    written.
    """
    tiles = MatMul.tile(8).to(Block).split(k=1).load(B, RF).tile(1, 4).to(QuadPair)
    chain = tiles.load(B, SH, Move.done()).tile(1).to(Thread).tile(1, 1).done()
    with pytest.raises(MatchError, match="one whose threads own all of the 1x4 elements"):
        _ = chain(MatMul(8, 16, 24)(GL, GL, GL)(Kernel)).program("sm_89").tree


def test_registers_distributed_over_iterations_have_no_lane_map():
    """The comparison of lane ownership in instructions raised KeyError."""
    chain = MatMul.tile(1).to(Block).load(B, SH).tile(1, 24).to(Warp).load(B, RF).load(B, SH)
    with pytest.raises(DecompositionError, match="its tiles are distributed in iterations"):
        _ = chain(MatMul(1, 1, 24, dtype=bfloat16)(GL, GL, GL)(Kernel)).program("sm_86").tree


def test_producer_without_loads_inside_a_pipeline_is_removed():
    """Its loop inside a pipelined loop was not examined and became a role without rings, which the simulator could not run."""
    chain = MatMul.tile(64, 8).to(Block).epilog(RF).split(64).pipeline(2).load(B, SH).split(32).pipeline(2).warp_specialize()
    program = chain.tile(64).to(Warpgroup).load(A, RF).done()(MatMul(64, 8, 192, dtype=int8)(GL, GL, GL)(Kernel)).program("sm_90a")
    assert (program.lowered.threads, program.lowered.rings) == (128, ())
    a, b = (np.random.default_rng(5).integers(-3, 4, shape).astype("int8") for shape in ((64, 192), (192, 8)))
    assert np.array_equal(simulate(program.lowered, {"A": a, "B": b}).outputs["C"], program.spec.reference(a, b))


def test_fewer_blocks_than_a_cluster_has_are_refused():
    """One persistent block with clusters of four raised AssertionError."""
    with pytest.raises(ResourceError, match=r"persistent\(1\) in clusters of 4 blocks: 1 blocks are not a multiple of 4"):
        _ = MatMul(8, 8, 8)(GL, GL, GL)(Kernel).tile(2, 2).to(Block).cluster(m=2, n=2).persistent(1).program("sm_90a").tree


# ---------------------------------------------------------------------------------------------- found in printed texts


def test_idle_lanes_are_proved_in_bounds_at_run_time_sizes():
    """48 elements of a warp in two iterations, half of the lanes active in the second: their condition keeps them within the 12 rows of the
    tile for any N.

    A wrong condition is still reported, between blocks and at the end.
    """
    tile = lambda start: start.tile(12, 4).to(Warp).tile(1, 1).to(Thread).tile(1, 1).done()
    chain = MatMul.tile(12, 16).to(Block).epilog(RF, tile(Init), tile(Move)).tile(12, 4).to(Warp).tile(1, 1).to(Thread).split(1).tile(1, 1)
    for rows in (24, 20):
        program = kernel(chain.done(), rows, sym("n"), 8).program("sm_80")
        assert [one for one in safety(program.lowered) if one.severity == "error"] == []
        right(program, rows, 37, 8, n=37)
    loose = attrs.evolve(program.lowered, body=ir.rewritten(program.lowered.body, _without_a_condition))
    assert loose.body != program.lowered.body and {one.kind for one in safety(loose) if one.severity == "error"} >= {"race"}


def _without_a_condition(stmt):
    """The store without its last condition, which excludes the idle lanes."""
    stores = isinstance(stmt, ir.Exec) and stmt.spec.copies
    return (attrs.evolve(stmt, active=TRUE, guard=TRUE),) if stores else (stmt,)


def test_a_producer_inside_a_producer_is_refused():
    """The walker's first draw raised KeyError in the pipeline pass."""
    chain = MatMul.tile(128, 64).to(Block).epilog(RF).split(64).pipeline(3).warp_specialize().load(B, SH, Move.done())
    chain = chain.split(32).pipeline(4).warp_specialize().load(A, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
    with pytest.raises(DecompositionError, match="is inside loop k, whose loads a producer issues, too"):
        _ = (
            chain(MatMul(128, 128, 256, B=ColMajor, C=ColMajor, dtype=float16, accumulator=float32)(GL, GL, GL)(Kernel))
            .program("sm_90a")
            .ir
        )


def test_share_of_a_load_that_no_engine_does_is_refused():
    """A producer without loads has no ring: its buffer was removed but still written, which raised VerificationError."""
    chain = (
        MatMul.tile(16, 16)
        .to(Block)
        .epilog(RF)
        .load(A, SH)
        .split(16)
        .pipeline(1)
        .warp_specialize()
        .load(B, SH, Move.done())
        .share_stages("A")
    )
    with pytest.raises(DecompositionError, match="share_stages: no producer fills b_sh, so there is no ring whose stages it could share"):
        _ = (
            chain.tile(16, 8)
            .to(Warp)
            .load(B, RF)
            .load(A, RF)
            .done()(MatMul(1, 1, 1, dtype=float8_e5m2)(GL, GL, GL)(Kernel))
            .program("sm_90a")
            .ir
        )


def wide(K, M=64, N=64):
    """Row-major float16 matrices with block tiles of 64 x 64 elements."""
    spec = MatMul(M, N, K, dtype=float16, c_dtype=float32, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    return spec.tile(64, 64).to(Block)


def right_by_roles(chain, K, M=64, N=64):
    """The kernel with a producer has no findings, and is right in any order of its warps."""
    kernel, shapes = chain.program("sm_90a").ir, ((M, K), (K, N))
    generator = np.random.default_rng(7)
    a, b = (generator.integers(-3, 4, shape).astype(np.float16) for shape in shapes)
    for order in (None, random.Random(1)):
        got = simulate(kernel, {"A": a, "B": b}, order=order).outputs["C"]
        np.testing.assert_array_equal(got, a.astype(np.float32) @ b.astype(np.float32))
    return kernel


@pytest.mark.parametrize(("stages", "K"), [(1, 144), (2, 256), (3, 200)], ids=str)
def test_fills_of_a_ring_inside_a_pipeline_count_its_iterations(stages, K):
    """Each iteration of the pipeline restarted the fills of the ring at 0, so that waits passed by parity or never: refused as a race."""
    chain = wide(K).epilog(RF).split(96).pipeline(stages).load(B, SH).split(32).pipeline(2).warp_specialize().load(A, SH, Move.done())
    kernel = right_by_roles(chain.tile(64, 64).to(Warpgroup).done(), K)
    (ring,) = kernel.rings
    fills = {one.fill_index for one in ir.statements(kernel.body) if isinstance(one, ir.Acquire)}
    assert {str(one) for one in fills} == {"k * 3 + k2"} and ring.name == "k2_ring"


@pytest.mark.parametrize("stages", (2, 5))
def test_roles_follow_the_same_iterations_of_a_long_loop(stages):
    """The consumers' copies repeat with another period than the ring, and the race check followed more of their iterations than of the
    producer's.
    """
    chain = wide(64 * 40).epilog(RF).split(64).pipeline(stages).load(B, SH).split(32).pipeline(3).warp_specialize().load(A, SH, Move.done())
    lowered = chain.tile(64, 64).to(Warpgroup).done().program("sm_90a").lowered
    assert safety(lowered) == ()
    released = ir.rewritten(lowered.body, lambda one: () if isinstance(one, ir.Release) and one.state is ir.StageState.EMPTY else (one,))
    assert safety(attrs.evolve(lowered, body=released))


def test_loads_of_an_engine_inside_the_loop_of_a_producer_have_a_separate_ring():
    """This raised KeyError in the pipeline pass."""
    chain = wide(200).epilog(RF).split(96).pipeline(2).warp_specialize().load(A, SH, Move.done()).split(32).load(B, SH, Move.done())
    kernel = right_by_roles(chain.tile(64, 64).to(Warpgroup).done(), 200)
    assert [(one.name, one.stages) for one in kernel.rings] == [("k_ring", 2), ("b_sh_ring", 2)]


def test_steps_with_loads_of_an_engine_do_not_begin_in_the_iteration_before():
    """A loop with prefetched registers and a producer's loop inside was split, and its loads lost their ring."""
    chain = wide(256).epilog(RF).split(128).pipeline(2).load(A, SH).split(64).pipeline(2).load(A, RF, Move.done())
    chain = chain.split(32).pipeline(2).warp_specialize().load(B, SH, Move.done())
    right_by_roles(chain.tile(64, 64).to(Warpgroup).done(), 256)


def test_parts_of_terms_that_have_fewer_dimensions():
    """A minimum over `n` of a term that does not depend on `m`: `rfactor` raised ValueError."""
    rows = Fused(
        name="rows", dims="m n", operands={"X": "m n", "w": "n", "Y": "m n"},
        body={"least": "s_sh[m] = min(n, abs(w[n]))", "store": "Y[m,n] = where(X[m,n] >= s_sh[m], X[m,n], n + 0)"},
    )  # fmt: skip
    with pytest.raises(DecompositionError, match="threads have no parts of a result"):
        _ = rows.rfactor("least", 32).tile(m=2).to(Block).done()(rows(m=sym("M", high=4096), n=1)).program("sm_90").lowered


def test_the_cost_of_loops_that_depend_on_data_and_tiles():
    """Whether a group has an iteration depends on the tile of the block: `predict` raised KeyError."""
    groups = Fused(
        name="of_groups", dims="m n k g", scan="g", operands={"A": "m k", "B": "g k n", "begin": "g", "end": "g", "D": "m n"},
        init={"zero": "acc[m,n] = 0"},
        body={
            "product": "p[m,n] = sum(k, A[m,k] * B[g,k,n])",
            "keep": "acc[m,n] = where(m < end[g] and begin[g] <= m, p[m,n] + g, acc[m,n])",
        },
        final={"store": "D[m,n] = acc[m,n]"},
    )  # fmt: skip
    problem = groups(m=21, n=8, k=4, g=4, types={"begin": int32, "end": int32, "D": float32})
    product = MatMul.split(4).load(A, SH).tile(1, 1).to(Thread).split(1).tile(1, 1).done()
    strategy = groups.tile(m=8, n=16).to(Block).persistent(2).split(g=1).skip_masked_tiles().step("product", product).done()
    assert predict(strategy(problem), "H200").us > 0


def test_fake_tensors_without_pytorch(monkeypatch):
    """An object with every attribute raised ModuleNotFoundError."""
    monkeypatch.setitem(sys.modules, "torch", None)
    assert not operators.traced(types.SimpleNamespace(is_cuda=True))


class _Anything:
    """It has every attribute, and none has a useful value."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__init__


@pytest.mark.parametrize(
    "call", [lambda one, array: matmul(array, one), lambda one, array: attention(one, array, array)], ids=["matmul", "attention"]
)
def test_arrays_whose_shape_is_none(call):
    """They raised TypeError."""
    with pytest.raises(FireironError):
        call(_Anything(), np.ones((1, 1, 8, 8), np.float32))


@pytest.mark.parametrize("rows", [1, 2, 48])
def test_sums_of_an_only_tile_ignore_tiles_past_the_end(rows):
    """One row, and tiles of one row: the first tile has the whole sum, and tiles past the end must not overwrite it."""
    definition = MatMul.fuse_epilogue("C = acc; y[n] += sum(m, acc)")
    problem = definition(m=rows, n=3, k=1, types={"C": float32, "y": float32})
    strategy = MatMul.tile(48, 64).to(Block).tile(8, 64).to(Warp).tile(2, 8).to(Lane).tile(1, 1).done()
    arrays = {"A": np.ones((rows, 1), np.float16), "B": np.array([[1, 2, 3]], np.float16)}
    got = simulate(strategy(problem).program("sm_80").ir, arrays, {}).outputs
    assert np.array_equal(got["y"], rows * np.array([1, 2, 3]))


def test_maxima_of_an_only_tile_with_tiles_past_the_end_are_refused():
    definition = MatMul.fuse_epilogue("C = acc; y[n] = max(m, acc)")
    problem = definition(m=1, n=3, k=1, types={"C": float32, "y": float32})
    strategy = MatMul.tile(48, 64).to(Block).tile(8, 64).to(Warp).tile(2, 8).to(Lane).tile(1, 1).done()
    with pytest.raises(DecompositionError, match="step store_y: each tile computes a part of y, but = combines only sums in memory"):
        _ = strategy(problem).program("sm_80").ir


@pytest.mark.parametrize("threads", [8, 17, 20, 24, 48])
def test_quad_pairs_of_a_block_are_whole(threads):
    """A quad-pair is threads 0-3 and 16-19 of a warp. Eight contiguous threads are not a quad-pair: the threads of two such groups wrote the same
    elements.
    """
    copy = Move.tile(1).to(QuadPair).tile(1, 1).to(Thread).done()
    strategy = MatMul.tile(1).to(Block).load(B, SH, copy).tile(1, 1).to(Thread).split(1).done()
    if threads >= 20:
        program = kernel(strategy, 1, threads, 3).program()
        assert not safety(program.lowered)
        return right(program, 1, threads, 3)
    with pytest.raises(DecompositionError, match=rf"of {threads} threads has no complete QuadPair(.|\n)*legal +at least 20 threads"):
        _ = kernel(strategy, 1, threads, 3).program().ir


def stored_as(layout, memory=SH):
    copy = Move.done() if memory is RF else None
    chain = MatMul.tile(4, 4).to(Block).split(8).load(A, memory, copy).storage_layout(layout)
    chain = chain.tile(1, 4).to(Thread) if memory is RF else chain.tile(1, 1).to(Thread)
    return chain.split(1).tile(1, 1).done()(MatMul(8, 8, 8)(GL, GL, GL)(Kernel)).program("sm_80")


@pytest.mark.parametrize("memory", [SH, RF])
@pytest.mark.parametrize(("strides", "apart"), [((0, 1), (1, 4)), ((1, 1), (1, 4)), ((1, 3), (1, 4)), ((1, (4, 4)), (1, (4, 16)))])
def test_buffers_with_two_elements_at_one_address_are_refused(memory, strides, apart):
    """They gave wrong results, without an error if one thread writes both."""
    shape = (4, 8) if isinstance(strides[1], int) else (4, (4, 2))
    with pytest.raises(DecompositionError, match="two elements have the same address") as refusal:
        _ = stored_as(Layout(shape, strides), memory).ir
    assert f"such as {Layout(shape, apart)}" in str(refusal.value)


@pytest.mark.parametrize("layout", [RowMajor(ld=8), RowMajor(ld=9), Layout((4, 8), (1, 5)), Layout((4, (4, 2)), (1, (8, 4)))])
def test_buffers_with_gaps_and_in_parts_are_right(layout):
    right(stored_as(layout), 8, 8, 8)


def test_buffers_whose_lines_are_too_short_are_refused():
    for layout, least in ((RowMajor(ld=7), 8), (ColMajor(ld=3), 4)):
        with pytest.raises(DecompositionError, match=rf"less than the {least} elements(.|\n)*legal +ld >= {least}"):
            _ = stored_as(layout).ir
    with pytest.raises(DecompositionError, match="known only at run time"):
        _ = stored_as(RowMajor(ld=sym("ld", low=8))).ir


def test_types_of_fields_are_resolved_before_they_are_checked():
    """After a stored strategy was read, only plain types were checked."""
    attrs.resolve_types(Kind)
    typed._fields.cache_clear()
    with pytest.raises(ArgumentError, match="Kind: parameters has"):
        Kind("K", "y[i] = x[i]", 3)


@pytest.mark.parametrize("threads", [48, 80])
def test_units_beyond_the_whole_ones_have_no_copy(threads):
    """A buffer has a copy for each whole warp. The threads of a partial warp are idle, also if there is one whole warp."""
    staged = Move.tile(4, 1).to(Warp).load(SRC, SH).tile(4, 1).to(Thread).done()
    chain = MatMul.tile(threads, 3).to(Block).split(4).load(A, SH, staged).load(B, SH, Move.tile(1, 1).to(Thread).done())
    right(kernel(chain.tile(1, 3).to(Thread).split(1).tile(1, 1).done(), threads, 3, 8).program("sm_61"), threads, 3, 8)


def test_equal_terms_of_16_bit_sums_round_alike():
    """The rounding errors of equal terms do not have mean zero: 6 added to 8000 in float16 adds 8, each time."""
    definition = Fused(name="c", dims="m", operands={"X": "m", "z": ""}, types={"z": float16}, body={"a": "z += sum(m, X[m])"})
    spec, x = definition(m=1400, dtype=float32), np.full(1400, 6.0, np.float32)
    total = np.float16(0)
    for value in x:
        total = np.float16(total + np.float16(value))
    bound = expected(spec, {"X": x}, {})["z"]
    assert 900 < abs(float(total) - float(bound.value)) <= float(bound.error)
    spread = np.random.default_rng(0).standard_normal(1400).astype(np.float32)
    assert float(expected(spec, {"X": spread}, {})["z"].error) < 20


def test_elements_of_scattered_outputs_are_described():
    """The array of a scattered output has other dimensions than its step."""
    definition = Fused(
        name="s", dims="b m n r", operands={"X": "b m n", "T": "b m", "Y": "r n"}, body={"a": "Y[T[b,m],n] = X[b,m,n]"}, distinct="T",
        ranges={"T": "0 <= T < r"},
    )  # fmt: skip
    chain = definition.tile(b=1, m=4, n=8).to(Block).tile(b=1, m=1, n=1).to(Thread).done()
    program = chain(definition(b=2, m=5, n=9, r=17, dtype=float32)).program("sm_80")
    arrays, judge = data_for(program, {}, 1)
    assert judge.wrong("Y", program.spec.reference(*arrays.values())) is None


def test_vectors_inside_of_a_part_need_no_stride_of_parts():
    """The rows of a part are contiguous, whatever the run-time stride between the parts is."""
    parts = {"A": ColMajor.over(GPU, "m"), "B": ColMajor.over(GPU, "k"), "C": ColMajor.over(GPU, "m")}
    chain = MatMul.to_gpus("m").load(B, GL).tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1).done()
    copy, _ = chain(MatMul(18, 10, 12, dtype=float16, **parts)(GL, GL, GL)(Node(3))).program("sm_80").launches
    assert "uint2" in copy.program.text and safety(copy.program.lowered) == ()


def test_writes_past_the_end_need_no_test_of_their_table():
    """Accumulators of 16 columns of an array with 8: the second half is never written."""
    definition = Fused(
        name="s", dims="m n k r", operands={"A": "m k", "B": "k n", "T": "m", "C": "r n"},
        body={"mm": "acc[m,n] = sum(k, A[m,k] * B[k,n])", "relu": "t[m,n] = max(acc[m,n], 0)", "store": "C[T[m],n] = t[m,n]"}, distinct="T",
    )  # fmt: skip
    inner = (
        AnySpec.split(16).load(A, SH, Move.coalesced_copy(8).done()).load(B, SH, Move.coalesced_copy(8).done()).tile(16, 16).to(Warp).split(16)
        .unroll().load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).unroll().mma_tile().done()
    )  # fmt: skip
    program = (
        definition.tile(m=16, n=16).to(Block).step("mm", inner).done()(definition(m=18, n=8, k=16, r=9, dtype=float16)).program("sm_80")
    )
    assert "T[" in program.unproved_text and safety(program.lowered) == ()


def test_elements_of_a_vector_are_below_a_limit_that_is_no_multiple():
    """Elements 8 * x and 8 * x + 4 are both below 38, or neither."""
    definition = Fused(name="s", dims="m k q", operands={"S": "q", "X": "m k", "Y": "m k"}, body={"a": "Y[m,k] = S[k // 4] * X[m,k]"})
    chain = definition.tile(m=8, k=32).to(Block).load("S", SH, Move.coalesced_copy(8).done()).tile(m=1, k=4).to(Thread).done()
    program = chain(definition(m=16, k=38, dtype=float32)).program("sm_80")
    assert "float2" in program.text and safety(program.lowered) == ()


@pytest.mark.parametrize("units", [4, 8])
def test_blocks_of_streams_are_in_order(units):
    """With one segment per block, a pass removes the loop over segments; with several, blocks compute parts of tiles."""
    chain = MatMul.tile(8, 8).to(Block).stream_k(units, 8).epilog(RF, float32).split(8).tile(1, 1).to(Thread).split(1).done()
    program = chain(MatMul(24, 16, 5)(GL, GL, GL)(Kernel)).program("sm_80")
    assert sorted(order_of(program, {}, units)) == list(range(units))


def test_the_only_index_of_an_array_keeps_vectors_aligned():
    """An index that is clamped to an array of one column is 0, whatever it computes."""
    definition = Fused(
        name="s", dims="m n h", operands={"X": "m h", "Y": "m n"}, body={"a": "Y[m,n] = X[m,n + 2]"}, outside={"X": "replicate"}
    )
    chain = definition.tile(m=8, n=32).to(Block).load("X", SH, Move.coalesced_copy(8).done()).tile(m=1, n=4).to(Thread).done()
    program = chain(definition(m=10, n=85, h=1, dtype=float32)).program("sm_80")
    assert "float2" in program.unproved_text and safety(program.lowered) == ()


def test_sizes_of_arrays_are_positive():
    """The size q is that of an array alone; without elements, the kernel would read past its end."""
    q = assume_positive(sym("K", high=64) // 8)
    definition = Fused(name="s", dims="m k q", operands={"X": "m q", "Y": "m k"}, body={"a": "Y[m,k] = X[m,k // 32 * 4 + k // 2 % 4]"})
    chain = definition.tile(m=8, k=32).to(Block).tile(m=1, k=1).to(Thread).done()
    kernel = chain(definition(m=16, k=sym("K", high=64), q=q, dtype=float32)).compile("sm_80")
    with pytest.raises(LaunchError, match="K // 8 is at least 1"):
        kernel(np.zeros((16, 0), np.float32), K=7)


def test_fills_by_threads_of_persistent_blocks_continue_their_count():
    """A loop inside of the ring's loop uses the stage, whose count is defined before the loop over tiles."""
    chain = MatMul.tile(64, 64).to(Block).persistent(8).epilog(RF, float32).split(64).pipeline(3).warp_specialize(copies=True)
    chain = chain.load(A, SH).load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
    n, k = (sym(name, multiple_of=8, high=4096) for name in "NK")
    text = chain(MatMul(128, n, k, dtype=float16, c_dtype=float32, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)).cuda("sm_90a")
    assert "int k_first_fill = 0;" in text and "++k_first_fill" in text
    if any(one.serves("sm_90a") for one in toolchains()):
        compile_cuda(text, "sm_90a")


def test_digits_of_a_remainder_of_blocks_stay_below_their_count():
    """Tiles in column-major order of batches: the index of a column is a digit of the block's remainder by the tiles of a batch."""
    copies = Fused(name="copies", dims="b m n", operands={"X": "b m n", "Y": "b m n"}, body={"copy": "Y[b,m,n] = X[b,m,n]"}, batch="b")
    tiles = copies(b=2, m=Var("m", 8, 16384, 8, True), n=72).tile(b=1).to(Block).tile(m=32, n=64).to(Block).layout(ColMajor)
    program = tiles.tile(m=8, n=8).to(Thread).done().program("sm_90")
    array = np.arange(2 * 40 * 72).reshape(2, 40, 72).astype(program.spec.operands["X"].dtype.numpy)
    assert np.array_equal(simulate(program.ir, {"X": array}, {"m": 40}).outputs["Y"], array)


class Unprintable:
    """A value without a text."""

    __hash__ = None

    def __repr__(self):
        raise RuntimeError("no text")


@pytest.mark.parametrize("value", [Unprintable(), {8}, np.array(8), None], ids=["unprintable", "a set", "an array", "None"])
def test_names_of_other_kinds_are_refused(value):
    """Neither a hash nor a text of the value is needed."""
    with pytest.raises(FireironError, match="the name of an instruction must be a string"):
        instruction(value)
    with pytest.raises(FireironError, match="unknown element type"):
        as_dtype(value)
