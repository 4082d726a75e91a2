"""The simulator equals NumPy exactly, and reports each injected fault (TESTING.md, O4 to O6)."""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable
from types import MappingProxyType

import attrs
import making
import numpy as np
import pytest
from guards import with_conditions
from handmade import THREAD, access, execution, local
from handmade import kernel_of as handmade

from fireiron import *
from fireiron import ir
from fireiron.errors import ArgumentError, SimulationError, VerificationError
from fireiron.executable import INSTRUCTIONS
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.executable.thread_move import MOVE
from fireiron.lower.guard import guard
from fireiron.sim import simulate
from fireiron.sim.launch import SingleLaunch
from fireiron.sim.plan import Plan
from fireiron.sim.shadow import Clock, Shadow
from fireiron.values.expr import all_of, as_expr, less

scalar_copy = Move.tile(1, 1).to(Thread).done()
element_copy = Move.tile(1, 1).done()


def listing2(bm=128, bn=128, bk=8, wm=64, wn=32, tm=8, tn=8, load_a=lambda s: s, load_b=lambda s: s):
    """Listing 2 of the paper, with its tile sizes as parameters."""

    def distributed(verb):
        return verb.tile(wm, wn).to(Warp).tile(tm, tn).to(Thread).tile(1, 1).done()

    start = MatMul.tile(bm, bn).to(Block).epilog(RF, distributed(Init), distributed(Move)).split(bk)
    loaded = load_b(load_a(start.load(A, SH, scalar_copy)).load(B, SH, scalar_copy))
    return (
        loaded.tile(wm, wn).to(Warp).tile(tm, tn).to(Thread).split(1).load(A, RF, element_copy).load(B, RF, element_copy).tile(1, 1).done()
    )


def small(**options):
    """The same with 64 threads and 32 x 32 tiles."""
    return listing2(32, 32, 8, 16, 32, 4, 4, **options)


FULL = listing2()
SMALL = small()


def kernel_of(M=64, N=64, K=16, strategy=SMALL, **options):
    return strategy(MatMul(M, N, K, **options)(GL, GL, GL)(Kernel)).program().lowered


def integers(shape, dtype="float32", seed=0):
    return np.random.default_rng([seed, *shape]).integers(-3, 4, shape).astype(dtype)


def check(kernel, a, b, symbols=MappingProxyType({}), **options):
    """Simulate and compare with NumPy, exactly."""
    result = simulate(kernel, {"A": a, "B": b}, symbols, **options)
    wide = np.int64 if a.dtype.kind == "i" else np.float64
    expected = (a.astype(wide) @ b.astype(wide)).astype(result.outputs["C"].dtype)
    np.testing.assert_array_equal(result.outputs["C"], expected)
    return result


def run(kernel, M=64, N=64, K=16, **options):
    return simulate(kernel, {"A": integers((M, K)), "B": integers((K, N), seed=1)}, **options)


# ---------------------------------------------------------------------------------------------- clean kernels


@pytest.mark.parametrize(
    "M, N, K",
    [(128, 128, 64), (512, 256, 16), (1, 1, 1), (7, 7, 7), (127, 127, 127), (129, 129, 129), (200, 100, 50), (7, 129, 1)],
)
def test_listing2_equals_numpy(M, N, K):
    check(kernel_of(M, N, K, FULL), integers((M, K)), integers((K, N), seed=1))


@pytest.mark.parametrize("a", [ColMajor, RowMajor])
@pytest.mark.parametrize("b", [ColMajor, RowMajor])
@pytest.mark.parametrize("c", [ColMajor, RowMajor])
def test_layouts(a, b, c):
    check(kernel_of(70, 33, 19, A=a, B=b, C=c), integers((70, 19)), integers((19, 33), seed=1))


@pytest.mark.parametrize("order", [ColMajor, RowMajor])
def test_leading_dimensions(order):
    kernel = kernel_of(70, 33, 19, A=order(ld=77), B=order(ld=80), C=order(ld=99))
    check(kernel, integers((70, 19)), integers((19, 33), seed=1))


def test_symbolic_sizes():
    M, N, K, ld = sym("M"), sym("N"), sym("K"), sym("ld")
    kernel = kernel_of(M, N, K, A=RowMajor(ld=ld))
    for m, n, k in ((64, 32, 16), (33, 65, 9), (1, 1, 1)):
        check(kernel, integers((m, k)), integers((k, n), seed=1), {"M": m, "N": n, "K": k, "ld": k + 3})


@pytest.mark.parametrize("dtype, out", [(float64, "float64"), (float16, "float16"), (int32, "int32"), (int8, "int32"), (bfloat16, None)])
def test_element_types(dtype, out):
    kernel = kernel_of(40, 33, 11, dtype=dtype)
    names = dtype.to_numpy()
    result = check(kernel, integers((40, 11), names), integers((11, 33), names, 1))
    assert out is None or result.outputs["C"].dtype == out


def test_float16_with_float32_result():
    check(kernel_of(40, 33, 11, dtype=float16, c_dtype=float32), integers((40, 11), "float16"), integers((11, 33), "float16", 1))


def test_without_epilog_or_loads():
    plain = MatMul.tile(16, 16).to(Block).split(4).tile(2, 2).to(Thread).split(1).tile(1, 1).done()
    check(kernel_of(33, 20, 10, plain), integers((33, 10)), integers((10, 20), seed=1))


def test_storage_refinements():
    refined = small(load_a=lambda s: s.pad(4), load_b=lambda s: s.swizzle_storage(Swizzle(2, 0, 3)))
    check(kernel_of(65, 64, 17, refined), integers((65, 17)), integers((17, 64), seed=1))


def test_thread_level_micro_kernel():
    tail = MatMul.tile(16, 16).to(Block).split(4).tile(4, 4).to(Thread).done("// a, b, c\n")
    check(kernel_of(33, 20, 10, tail), integers((33, 10)), integers((10, 20), seed=1))


@pytest.mark.parametrize("order", [None, 3])
def test_collective_micro_kernel_reads_registers_of_all_threads(order):
    warps = Move.tile(16, 32).to(Warp).tile(4, 4).to(Thread).tile(1, 1).done()
    init = Init.tile(16, 32).to(Warp).tile(4, 4).to(Thread).tile(1, 1).done()
    body = MatMul.tile(32, 32).to(Block)
    for store in (Move.done("// text\n"), Move.tile(16, 32).to(Warp).done("// text\n"), warps):
        strategy = body.epilog(RF, init, store).split(8).load(A, SH, scalar_copy).load(B, SH, scalar_copy)
        strategy = (
            strategy.tile(16, 32)
            .to(Warp)
            .tile(4, 4)
            .to(Thread)
            .split(1)
            .load(A, RF, element_copy)
            .load(B, RF, element_copy)
            .tile(1, 1)
            .done()
        )
        kernel = kernel_of(45, 33, 10, strategy)
        check(kernel, integers((45, 10)), integers((10, 33), seed=1), order=None if order is None else random.Random(order))


def distributed(verb, rows=1):
    return verb.tile(16, 32).to(Warp).tile(4, 4).to(Thread).tile(rows, 1).done()


def inner(strategy):
    per_thread = strategy.tile(16, 32).to(Warp).tile(4, 4).to(Thread).split(1)
    return per_thread.load(A, RF, element_copy).load(B, RF, element_copy).tile(1, 1).done()


def with_store(store, copy=scalar_copy):
    return MatMul.tile(32, 32).to(Block).epilog(RF, distributed(Init), store).split(8).load(A, SH, copy).load(B, SH, scalar_copy)


def strided(verb):
    return verb.tile(64, 32).to(Warp).tile(Strided((4, 32), (4, 16))).to(Thread)


through_shared = Move.load("src", SH, distributed(Move)).reuse_buffer().tile(1, 1).to(Thread).done()
lanes = Move.tile(1, 1).to(Lane).done()
iterated = lambda verb: verb.tile(12, 12).to(Warp).tile(3, 2).to(Thread).tile(1, 1).done()
float16_pairs = (
    MatMul.tile(32, 32)
    .to(Block)
    .epilog(RF, distributed(Init), distributed(Move, 2))
    .split(8)
    .load(A, SH, scalar_copy)
    .load(B, SH, scalar_copy)
)
block_kernel = MicroKernel("m", "// x\n", threads=64)
strided_start = MatMul.tile(128, 64).to(Block).epilog(RF, strided(Init).tile(1, 1).done(), strided(Move).tile(1, 1).done())

FEATURES = {
    "reuse": (inner(with_store(through_shared)), {}),
    "reuse with mixed types": (inner(with_store(through_shared)), {"dtype": float16, "c_dtype": float32}),
    "vector moves, swizzle": (inner(with_store(distributed(Move), Move.tile(4, 1).to(Thread).done())), {}),
    "scratch": (inner(with_store(Move.done(MicroKernel("m", "// x\n", scratch_bytes=256)))), {}),
    "collective on integers": (inner(with_store(Move.done("// text\n"))), {"dtype": int32}),
    "copies of warps": (
        MatMul.tile(32, 32).to(Block).epilog(RF, distributed(Init), distributed(Move)).split(8).tile(16, 32).to(Warp).load(A, SH, lanes)
        .load(B, SH, lanes).tile(4, 4).to(Thread).split(1).load(A, RF, element_copy).load(B, RF, element_copy).tile(1, 1).done(), {}
    ),
    "iterations": (
        MatMul.tile(24, 24).to(Block).epilog(RF, iterated(Init), iterated(Move)).split(5).load(A, SH).load(B, SH).tile(12, 12).to(Warp)
        .tile(3, 2).to(Thread).tile(1, 1).split(1).done(), {}
    ),
    "pairs of float16 values": (
        float16_pairs.tile(16, 32).to(Warp).tile(4, 4).to(Thread).split(1).load(A, RF, element_copy).load(B, RF, element_copy).tile(2, 1).done(),
        {"dtype": float16},
    ),
    "strided tiles": (
        strided(strided_start.split(8).load(A, SH, scalar_copy).load(B, SH, scalar_copy)).split(1)
        .load(A, RF, element_copy).load(B, RF, element_copy).tile(1, 1).done(), {}
    ),
    "micro-kernel of a block": (MatMul.tile(32, 32).to(Block).done(block_kernel), {}),
    "micro-kernel in a split": (MatMul.tile(32, 32).to(Block).split(8).load(A, SH, scalar_copy).load(B, SH, scalar_copy).done(block_kernel), {}),
    "micro-kernel of the kernel": (MatMul.done(block_kernel), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", FEATURES)
@pytest.mark.parametrize("seed", [None, 1])
def test_features(name, seed):
    strategy, options = FEATURES[name]
    dtype = options.get("dtype", float32).to_numpy()
    a, b = integers((46, 10), dtype), integers((10, 34), dtype, 1)
    check(kernel_of(46, 34, 10, strategy, **options), a, b, order=None if seed is None else random.Random(seed))


def test_moves_convert_types():
    strategy = Move.tile(32, 32).to(Block).tile(4, 4).to(Thread).tile(1, 4).done()
    spec = Move(40, 36, src=RowMajor, dst=RowMajor, dtype=float32, dst_dtype=float16)(GL, GL)(Kernel)
    data = integers((40, 36)) + np.float32(0.1)
    result = simulate(strategy(spec).program().lowered, {"src": data}).outputs["dst"]
    np.testing.assert_array_equal(result, data.astype("float16"))


@pytest.mark.parametrize("reordered", ["src", "dst"])
def test_values_are_paired_by_index(reordered):
    """A thread copies three elements, which one of the operands has in another order."""
    accesses = [access(name, (0, THREAD), (3, 1), write=name == "dst") for name in ("src", "dst")]
    accesses = [attrs.evolve(operand, points=((1, 0), (2, 0), (0, 0))) if operand.buffer == reordered else operand for operand in accesses]
    kernel = handmade(Move(3, 32)(GL, GL), (execution(MOVE, Move(3, 1)(GL, GL)(Thread), *accesses),))
    data = integers((3, 32))
    np.testing.assert_array_equal(simulate(guard(kernel), {"src": data}).outputs["dst"], data)


def test_counts_and_blocks():
    result = check(kernel_of(64, 64, 16), integers((64, 16)), integers((16, 64), seed=1))
    assert result.blocks == (0, 1, 2, 3) and result.threads == 64 and result.barriers == 4
    assert result.written_bytes == 64 * 64 * 4 and result.read_bytes == 4 * 2 * 32 * 16 * 4
    sample = run(kernel_of(64, 64, 16), blocks=[3])
    whole = run(kernel_of(64, 64, 16))
    np.testing.assert_array_equal(sample.outputs["C"][32:, 32:], whole.outputs["C"][32:, 32:])
    assert np.isnan(sample.outputs["C"][:32]).all()


def test_given_output_is_kept_where_nothing_is_written():
    kernel = kernel_of(64, 64, 16)
    start = integers((64, 64), seed=5)
    result = simulate(kernel, {"A": integers((64, 16)), "B": integers((16, 64)), "C": start}, blocks=[0])
    np.testing.assert_array_equal(result.outputs["C"][32:], start[32:])


@pytest.mark.parametrize("seed", range(4))
def test_random_warp_orders_give_identical_bits(seed):
    kernel = kernel_of(150, 140, 20, FULL)
    a, b = (np.random.default_rng(9).standard_normal(shape).astype("float32") for shape in ((150, 20), (20, 140)))
    results = [simulate(kernel, {"A": a, "B": b}, order=order).outputs["C"] for order in (None, random.Random(seed))]
    assert results[0].tobytes() == results[1].tobytes()


@pytest.mark.parametrize("seed", range(3))
def test_names_of_a_loop_end_with_it(seed):
    """The loop of A's copy is vectorized in the last warp, whose second iteration is outside the tile, and a loop in the others; all synchronize at that of B."""
    start = MatMul.tile(48, 20).to(Block).epilog(SH).split(2).load(A, SH).load(B, SH, Move.done("// text\n"))
    strategy = start.tile(3, 4).to(Thread).layout(ColMajor).split(1).load(B, RF, element_copy).tile(1, 1).done()
    check(kernel_of(48, 20, 4, strategy), integers((48, 4)), integers((4, 20), seed=1), order=random.Random(seed))


# ---------------------------------------------------------------------------------------------- arguments


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "arrays, symbols, message",
    [
        ({"A": np.ones((64, 16), "f4")}, {}, "the input B is missing"),
        ({"A": np.ones((64, 16), "f4"), "B": np.ones((16, 63), "f4")}, {}, "B: wrong shape"),
        ({"A": np.ones((64, 16), "f8"), "B": np.ones((16, 64), "f4")}, {}, "A: wrong element type"),
        ({"A": [[1.0]], "B": np.ones((16, 64), "f4")}, {}, "A: not a NumPy array"),
        ({"A": np.ones((64, 16), "f4"), "B": np.ones((16, 64), "f4"), "D": np.ones(1)}, {}, "no parameter D"),
        ({"A": np.ones((64, 16), "f4"), "B": np.ones((16, 64), "f4")}, {"M": 3}, "no symbol M"),
    ],
)
def test_wrong_arrays(arrays, symbols, message):
    with pytest.raises(ArgumentError, match=message):
        simulate(kernel_of(), arrays, symbols)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "symbols, message",
    [
        ({}, "has no value"),
        ({"M": 12}, "violates its declaration"),
        ({"M": True}, "must be an integer"),
        ({"M": 2.0}, "must be an integer"),
    ],
)
def test_wrong_symbols(symbols, message):
    with pytest.raises(ArgumentError, match=message):
        simulate(kernel_of(M=sym("M", multiple_of=8)), {}, symbols)


def test_false_facts_and_blocks():
    kernel = attrs.evolve(kernel_of(M=sym("M")), facts=(("M is small", sym("M") < 10),))
    with pytest.raises(ArgumentError, match="requires that M is small"):
        simulate(kernel, {}, {"M": 64})
    with pytest.raises(ArgumentError, match="no such block"):
        run(kernel_of(), blocks=[4])


# ---------------------------------------------------------------------------------------------- injected faults


def edited(kernel: ir.Kernel, change: Callable[[ir.Stmt], object]) -> ir.Kernel:
    """The kernel with every statement replaced by what `change` returns: a statement, or a list of them."""

    def visit(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        result: list[ir.Stmt] = []
        for statement in body:
            if isinstance(statement, ir.For):
                statement = attrs.evolve(statement, body=visit(statement.body))
            new = change(statement)
            result += new if isinstance(new, list) else [new]
        return tuple(result)

    return attrs.evolve(kernel, body=visit(kernel.body))


def with_barriers(kernel, change):
    """The kernel with `change(number, barrier)` for each barrier in program order."""
    numbers = iter(range(100))
    return edited(kernel, lambda s: change(next(numbers), s) if isinstance(s, ir.Barrier) else s)


def writes(statement, name):
    return isinstance(statement, ir.Exec) and any(access.buffer == name and access.write for access in statement.accesses)


def evolved_access(statement, name, **changes):
    accesses = tuple(attrs.evolve(access, **changes) if access.buffer == name else access for access in statement.accesses)
    return attrs.evolve(statement, accesses=accesses)


def fails(kernel, *patterns, **options):
    """The message contains each pattern, in lockstep and in several warp orders."""
    for order in (None, random.Random(0), random.Random(1)):
        with pytest.raises(SimulationError) as caught:
            run(kernel, order=order, **options)
        for pattern in patterns:
            assert re.search(pattern, str(caught.value)), str(caught.value)
    return str(caught.value)


def test_clean_kernel_has_two_barriers_in_its_loop():
    kernel = kernel_of()
    assert sum(isinstance(statement, ir.Barrier) for statement in ir.statements(kernel.body)) == 2
    run(kernel)


def test_dropped_barrier():
    fails(with_barriers(kernel_of(), lambda number, barrier: [] if number == 0 else barrier), "race on [ab]_sh", r"k=0", "test_sim.py")


def test_dropped_loop_back_barrier():
    fails(with_barriers(kernel_of(), lambda number, barrier: [] if number == 1 else barrier), "race on [ab]_sh", r"k=[01]")


def test_barrier_narrowed_to_warp():
    for which in (0, 1):
        faulty = with_barriers(
            kernel_of(), lambda number, barrier, which=which: making.barrier(ir.WARP_SCOPE) if number == which else barrier
        )
        fails(faulty, "race on [ab]_sh")


def test_barrier_moved_before_its_write():
    def moved(loop):
        if not (isinstance(loop, ir.For) and any(isinstance(stmt, ir.Barrier) for stmt in loop.body)):
            return loop
        body = list(loop.body)
        at = next(number for number, stmt in enumerate(body) if isinstance(stmt, ir.Barrier))
        copy = max(number for number, stmt in enumerate(body[:at]) if isinstance(stmt, ir.For))
        body.insert(copy, body.pop(at))
        return attrs.evolve(loop, body=tuple(body))

    fails(edited(kernel_of(), moved), "race on b_sh")


def test_race_message_names_everything():
    text = fails(with_barriers(kernel_of(), lambda number, barrier: [] if number == 0 else barrier))
    assert re.search(r"race on a_sh\[\d+, \d+\] \(address \d+\): thread \d+ (reads|writes) it \(Move Move\(", text), text
    assert re.search(r"\n  in .*block 0, k=0", text) and "\n  at " in text and "\n  do " in text


def test_two_lanes_write_one_address():
    def shifted(statement):
        if not writes(statement, "a_sh"):
            return statement
        base = statement.operands["dst"].base
        return evolved_access(statement, "a_sh", base=(base[0] // 2 * 2, base[1]))

    fails(edited(kernel_of(), shifted), r"race on a_sh", "thread .* writes .* thread .* writes")


def test_two_blocks_write_one_element():
    def shifted(statement):
        if not writes(statement, "C"):
            return statement
        block = next(var for value in statement.operands["dst"].base for var in value.variables() if var.name == "block_n")
        base = tuple(value.substitute({block: 0}) for value in statement.operands["dst"].base)
        return evolved_access(statement, "C", base=base)

    fails(edited(kernel_of(), shifted), "race on C", "block 0", "block 1")


def test_dropped_guard_of_a_store():
    faulty = with_conditions(kernel_of(60, 60, 16), "C", True, lambda condition: None)
    fails(faulty, r"C\[\d+, \d+\] is outside of the tensor: thread \d+ of block \d+ writes", M=60, N=60)


def test_dropped_guard_of_a_load():
    unguarded = with_conditions(kernel_of(60, 60, 13), "A", False, lambda condition: None)
    fails(unguarded, r"A\[\d+, \d+\] is outside of the tensor: .* reads", M=60, N=60, K=13)


def test_guard_one_too_wide():
    wide = with_conditions(kernel_of(60, 60, 16), "C", True, lambda condition: less(condition.left, condition.right + 1))
    fails(wide, r"C\[(60, \d+|\d+, 60)\] is outside of the tensor", M=60, N=60)


def test_wrong_leading_dimension():
    def wrong(s):
        if not writes(s, "C"):
            return s
        storage = kernel.buffer("C").storage
        return evolved_access(s, "C", storage=attrs.evolve(storage, layout=Layout(storage.layout.shape, (1, 65))))

    kernel = kernel_of()
    fails(edited(kernel, wrong), "address .* of C.* is outside of the buffer")


def test_guard_rows_are_checked():
    kernel = kernel_of(60, 60, 16, C=ColMajor(ld=66))
    storage = kernel.buffer("C").storage
    shifted = attrs.evolve(storage, layout=Layout(storage.layout.shape, (1, 65)))
    faulty = edited(kernel, lambda s: evolved_access(s, "C", storage=shifted) if writes(s, "C") else s)
    with pytest.raises(SimulationError, match="outside of the tensor, was written"):
        run(faulty, 60, 60)


@pytest.mark.parametrize("dtype", [float32, int32])
def test_skipped_init(dtype):
    faulty = edited(kernel_of(dtype=dtype), lambda s: [] if writes(s, "c_rf") and s.spec.fills else s)
    name = dtype.name
    for order in (None, random.Random(0)):
        with pytest.raises(SimulationError, match=r"c_rf\[\d+, \d+\] \(register \d+\) is read before any write"):
            simulate(faulty, {"A": integers((64, 16), name), "B": integers((16, 64), name)}, order=order)


@pytest.mark.parametrize("dtype", [float32, int32])
def test_pad_on_one_side_only(dtype):
    padded = small(load_a=lambda s: s.pad(4))
    kernel = kernel_of(strategy=padded, dtype=dtype)
    plain = kernel_of(dtype=dtype).buffer("a_sh").storage
    faulty = edited(kernel, lambda s: evolved_access(s, "a_sh", storage=plain) if writes(s, "a_sh") else s)
    a, b = integers((64, 16), dtype.name), integers((16, 64), dtype.name, 1)
    with pytest.raises(SimulationError, match=r"a_sh.* is read before any write"):
        simulate(faulty, {"A": a, "B": b})


def test_swizzle_on_one_side_only():
    kernel = kernel_of()
    storage = attrs.evolve(kernel.buffer("a_sh").storage, swizzle=Swizzle(2, 0, 3))
    for side in (True, False):
        faulty = edited(
            kernel,
            lambda s, side=side: (
                evolved_access(s, "a_sh", storage=storage)
                if isinstance(s, ir.Exec) and writes(s, "a_sh") == side and any(access.buffer == "a_sh" for access in s.accesses)
                else s
            ),
        )
        a, b = integers((64, 16)), integers((16, 64), seed=1)
        assert not np.array_equal(simulate(faulty, {"A": a, "B": b}).outputs["C"], a @ b)
    both = edited(
        kernel,
        lambda s: (
            evolved_access(s, "a_sh", storage=storage)
            if isinstance(s, ir.Exec) and any(access.buffer == "a_sh" for access in s.accesses)
            else s
        ),
    )
    check(both, integers((64, 16)), integers((16, 64), seed=1))


def test_read_of_unwritten_shared_memory_under_a_narrow_guard():
    def narrow(s):
        if not writes(s, "a_sh"):
            return s
        thread = kernel.thread
        return attrs.evolve(s, active=all_of([s.active, thread < 60]))

    kernel = kernel_of()
    fails(edited(kernel, narrow), "a_sh.* is read before any write")


def test_guarded_statement_leaves_other_threads_alone():
    kernel = kernel_of()
    faulty = edited(kernel, lambda s: attrs.evolve(s, active=kernel.thread < 32) if writes(s, "C") else s)
    result = run(faulty).outputs["C"]
    good = run(kernel).outputs["C"]
    kept = ~np.isnan(result)
    assert 0 < kept.sum() < kept.size
    np.testing.assert_array_equal(result[kept], good[kept])


def test_shared_memory_that_differs_between_blocks():
    kernel = kernel_of()
    some = edited(kernel, lambda s: attrs.evolve(s, active=kernel.block < 3) if isinstance(s, ir.Exec) else s)
    result, good = run(some).outputs["C"], run(kernel).outputs["C"]
    np.testing.assert_array_equal(result[:32], good[:32])
    assert np.isnan(result[32:, 32:]).all()
    fails(with_barriers(some, lambda number, barrier: []), "race on [ab]_sh")
    less = edited(kernel, lambda s: attrs.evolve(s, active=kernel.block < 3) if writes(s, "a_sh") else s)
    fails(less, "a_sh.* is read before any write to it: thread (0|32|64|96) of block 3")  # of the first warp
    with pytest.raises(SimulationError, match="thread 0 of block 3"):
        run(less)


def test_collective_units_must_not_share_elements():
    kernel = kernel_of(64, 64, 16, inner(with_store(Move.tile(16, 32).to(Warp).done("// text\n"))))
    run(kernel)

    def shifted(s):
        if not writes(s, "C"):
            return s
        warp = next(var for value in s.operands["dst"].base for var in value.variables() if var.name.startswith("warp"))
        return evolved_access(s, "C", base=tuple(value.substitute({warp: 0}) for value in s.operands["dst"].base))

    fails(edited(kernel, shifted), "race on C")


def test_threads_of_a_unit_must_agree():
    kernel = kernel_of(64, 64, 16, inner(with_store(Move.tile(16, 32).to(Warp).done("// text\n"))))
    faulty = edited(kernel, lambda s: attrs.evolve(s, active=kernel.thread < 7) if writes(s, "C") else s)
    fails(faulty, "threads of one Warp specify different operands")


def test_element_that_no_thread_has():
    kernel = kernel_of(64, 64, 16, inner(with_store(Move.done("// text\n"))))
    rows, columns = kernel.buffer("c_rf").register_origin
    moved = attrs.evolve(kernel.buffer("c_rf"), register_origin=(rows + 1, columns))
    buffers = tuple(moved if buffer.name == "c_rf" else buffer for buffer in kernel.buffers)
    fails(attrs.evolve(kernel, buffers=buffers), r"no thread of Block 0 has c_rf\[0, 0\]")


def test_iterations_that_write_one_element_are_in_order():
    """A loop whose iterations write the same registers is not vectorized: the last iteration counts."""

    def folded(s):
        if not writes(s, "a_rf"):
            return s
        base = s.operands["dst"].base
        return evolved_access(s, "a_rf", base=(base[0] // 2 * 2, base[1]))

    kernel = kernel_of()
    with pytest.raises(SimulationError, match=r"a_rf\[1, 0\].* is read before any write"):
        run(edited(kernel, folded))


def test_deadlock_is_named():
    kernel = kernel_of()
    loop = making.loop(Var("odd", 0, 1), kernel.thread // 32, (making.barrier(ir.BLOCK_SCOPE),))
    faulty = attrs.evolve(kernel, body=(*kernel.body, loop))
    with pytest.raises(VerificationError, match="differs between threads"):
        run(faulty)
    launch = SingleLaunch(Plan(faulty, {}), _inputs(), (0,), True, random.Random(0))
    with pytest.raises(SimulationError, match="deadlock: warp 1 waits at the block barrier"):
        launch.run()


def test_uniform_extent_is_required_in_lockstep():
    kernel = kernel_of()
    loop = making.loop(Var("odd", 0, 1), kernel.thread // 32, (making.barrier(ir.BLOCK_SCOPE),))
    launch = SingleLaunch(Plan(attrs.evolve(kernel, body=(*kernel.body, loop)), {}), _inputs(), (0,), True, None)
    with pytest.raises(SimulationError, match="differs between threads"):
        launch.run()


def _inputs():
    return {"A": integers((64, 16)), "B": integers((16, 64))}


def test_no_race_detection_without_shadow_memory():
    run(with_barriers(kernel_of(), lambda number, barrier: []), shadow=False)


# ---------------------------------------------------------------------------------------------- barriers of any scope


def exchange(other, *barriers, threads=256, seeds=(None, 0, 1)):
    """Each thread writes its element of shared memory, and reads that of another after barriers of the given numbers of threads.

    In lockstep, and with warps in the random orders of the seeds.
    """
    steps = {instruction.name: instruction for instruction in INSTRUCTIONS}
    element, own, far = access("r", (0,), write=True), access("x", (Var("thread", 0, threads - 1),), write=True), access("x", (other,))
    body = (
        execution(steps["Init"], Init(1, 1)(RF)(Thread), element),
        execution(steps["Move"], Move(1, 1)(RF, SH)(Thread), attrs.evolve(element, write=False), own),
        *(making.barrier(making.scope(f"group of {size}", size)) for size in barriers),
        execution(steps["Move"], Move(1, 1)(SH, RF)(Thread), far, element),
    )
    buffers = local("r", (1,), RF), attrs.evolve(local("x", (threads,), SH), offset=0)
    kernel = guard(attrs.evolve(handmade(Move(8, 8)(GL, GL), body, *buffers, threads=threads), shared_bytes=4 * threads))
    for seed in seeds:
        simulate(kernel, {"src": integers((8, 8))}, order=None if seed is None else random.Random(seed))


@pytest.mark.parametrize("size", [2, 32, 64, 128])
def test_a_barrier_orders_the_groups_of_its_scope(size):
    own_thread = Var("thread", 0, 255)
    opposite = own_thread // size * size + (size - 1 - own_thread % size)
    exchange(opposite, size)
    exchange(opposite, 256)
    with pytest.raises(SimulationError, match="race on x"):
        exchange(opposite)
    for seed in (None, 0, 1):
        with pytest.raises(SimulationError, match="race on x.* and no barrier orders them"):
            exchange(255 - own_thread, size, seeds=(seed,))


def test_barriers_of_several_scopes_in_one_program():
    """Each orders its groups; later narrow barriers do not affect the order of a wide one."""
    own_thread = Var("thread", 0, 255)
    exchange(own_thread // 128 * 128 + (127 - own_thread % 128), 32, 64, 128, 64, 8)
    with pytest.raises(SimulationError, match="race on x"):
        exchange(own_thread // 128 * 128 + (127 - own_thread % 128), 32, 64, 64, 8)


def test_overlapping_groups_are_rejected():
    exchange(Var("thread", 0, 191), 96, threads=192)
    with pytest.raises(VerificationError, match="no rule for barriers of 64 and of 96 threads"):
        exchange(Var("thread", 0, 191), 64, 96, threads=192)


# ---------------------------------------------------------------------------------------------- shadow memory itself


PITCH = 256
"""Threads of a block; the shadows below have two blocks."""


def passed(*barriers):
    """The clock after barriers of these numbers of threads, in this order."""
    return functools.reduce(Clock.after, barriers, Clock())


def thread(number):
    return np.array([number])


KEY = np.zeros(1, np.int64)


@pytest.mark.parametrize("size", [8, 32, 64, 128, PITCH])
def test_a_barrier_orders_threads_of_one_of_its_groups_only(size):
    def conflicts(first, second, then, now):
        shadow = Shadow(1, PITCH)
        shadow.write(KEY, thread(first), thread(first), then, 0)
        return len(shadow.conflicts(shadow.writer, shadow.write_clock, KEY, thread(second), thread(second), now)) > 0

    assert not conflicts(3, 3, passed(), passed())
    assert conflicts(3, 4, passed(), passed())
    assert not conflicts(3, size - 1, passed(), passed(size))
    assert conflicts(3, size, passed(), passed(size))
    assert conflicts(3, size - 1, passed(size), passed(size)), "both after it"
    assert not conflicts(3, size - 1, passed(2), passed(2, size, 2)), "between, but not the last barrier"
    assert conflicts(3, PITCH + 3, passed(), passed(size, PITCH)), "of two blocks"


@pytest.mark.parametrize("pitch", [32, 64, 128])
def test_readers_of_several_blocks_are_kept(pitch):
    """A barrier does not order blocks: a reader of one block is not older than a reader of the next."""
    shadow = Shadow(1, pitch)
    shadow.read(KEY, thread(3), thread(3), passed(), 0)
    shadow.read(KEY, thread(pitch + 3), thread(pitch + 3), passed(pitch), 0)
    conflict = shadow.conflicts(shadow.reader, shadow.read_clock, KEY, thread(pitch + 3), thread(pitch + 3), passed(pitch, pitch))
    assert len(conflict) == 1


def ordered_before(old, new, barriers):
    """Whether two accesses (least and greatest thread, barriers before them) need no further barrier."""
    ends = [*old[:2], *new[:2]]
    return len(set(ends)) == 1 or any(len({end // size for end in ends}) == 1 for size in barriers[old[2] : new[2]])


@pytest.mark.parametrize("seed", range(40))
def test_shadow_equals_brute_force(seed):
    """Random accesses and barriers of all scopes: a conflict is found exactly when two accesses are not ordered."""
    draw = random.Random(seed)
    shadow, history, barriers = Shadow(1, PITCH), [], []
    for _ in range(60):
        action = draw.choice(["read"] * 8 + ["write"] + ["barrier"] * 6)
        if action == "barrier":
            barriers.append(draw.choice([8, 32, 64, 128, PITCH, PITCH]))
            continue
        low = draw.choice([0, 0, 0, 0, PITCH]) + draw.choice([0, 8, 32, 64, 128]) + draw.randrange(3)
        high = low + draw.choice([0, 0, 1])
        access, clock, write = (low, high, len(barriers)), passed(*barriers), action == "write"
        expected = any(not ordered_before(old, access, barriers) for old, was_write in history if write or was_write)
        ends = thread(low), thread(high)
        sides = [(shadow.writer, shadow.write_clock)] + [(shadow.reader, shadow.read_clock)] * write
        got = any(len(shadow.conflicts(side, clocks, KEY, *ends, clock)) for side, clocks in sides)
        assert got == expected
        if got:
            return
        (shadow.write if write else shadow.read)(KEY, *ends, clock, 0)
        history.append((access, write))


def test_accumulation_reads_the_given_output():
    kernel = kernel_of(strategy=MatMul.tile(16, 16).to(Block).split(4).tile(2, 2).to(Thread).split(1).tile(1, 1).done())
    adds = edited(kernel, lambda s: attrs.evolve(s, accumulate=as_expr(1)) if isinstance(s, ir.Exec) else s)
    start = integers((64, 64), seed=4)
    inputs = {"A": integers((64, 16)), "B": integers((16, 64), seed=1)}
    np.testing.assert_array_equal(simulate(adds, {**inputs, "C": start}).outputs["C"], start + inputs["A"] @ inputs["B"])
    with pytest.raises(SimulationError, match=r"C\[.* is read before any write"):
        simulate(adds, inputs)
