"""User-defined extensions and their size: a kernel effect and three completion mechanisms, two files each in `toys/`; a memory in a
separate region and a tile order, one file each; a level above a launch and the step that makes its launches, two. No other file mentions
them.

Each is simulated, checked and printed; the checks and the simulator report a fault injected into its kernel.
"""

import itertools
import random
import re

import attrs
import numpy as np
import pytest
from toys.counted_load import CountedLoad
from toys.counted_loads import COUNTED
from toys.deferred_copies import DEFERRED
from toys.deferred_copy import DeferredCopy
from toys.in_launches import InLaunches
from toys.late_copies import LATE
from toys.late_copy import LateCopy
from toys.max_registers import MaxRegisters
from toys.max_registers_step import AtMostRegisters
from toys.morton import Morton
from toys.sequence import SEQUENCE
from toys.table import TABLE, TABLES

from fireiron import *
from fireiron import ir
from fireiron.check import check
from fireiron.check.launches import check_launches
from fireiron.cost import predict
from fireiron.errors import FireironError, ResourceError, SimulationError
from fireiron.gpu import toolchain
from fireiron.gpu.kernel import CompiledKernel
from fireiron.inspect.explain import explain, text
from fireiron.inspect.show import show
from fireiron.ir.effect import Effects
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.language.store import dumps
from fireiron.sim import simulate, simulate_launches

DATA = np.random.default_rng(7)


def product(copies=None, count=None, sizes=(16, 16, 32)):
    """A GEMM by threads, with tiles in shared memory."""
    blocks = MatMul.tile(8, 8).to(Block)
    blocks = blocks if count is None else blocks.refine(AtMostRegisters(count))
    copied = Move.tile(1, 1).to(Thread).done(copies) if copies is not None else Move.tile(1, 1).to(Thread).done()
    steps = blocks.epilog(RF, Init.tile(1, 1).to(Thread).done(), Move.tile(1, 1).to(Thread).done()).split(8)
    return steps.load(A, SH, copied).load(B, SH, copied).tile(1, 1).to(Thread).split(1).done()(MatMul(*sizes)(GL, GL, GL)(Kernel))


def outputs(kernel, M=16, N=16, K=32):
    a, b = DATA.integers(-3, 4, (M, K)).astype(np.float32), DATA.integers(-3, 4, (K, N)).astype(np.float32)
    return simulate(kernel, {"A": a, "B": b}, order=random.Random(3)).outputs["C"], a @ b


def compiles(program, target="sm_90"):
    if toolchain.serving(target, None) is not None:
        assert toolchain.compile_cuda(program.cuda, target).cubin


# ---------------------------------------------------------------------------------------------- an effect


def test_an_effect_is_stated_preserved_and_printed():
    program = product(count=64).program("sm_90")
    assert program.ir.effects[MaxRegisters] == MaxRegisters(64)
    assert "__launch_bounds__(64) __maxnreg__(64)" in program.cuda
    np.testing.assert_array_equal(*outputs(program.ir))
    plain = product().program("sm_90")
    assert MaxRegisters not in {type(one) for one in plain.ir.effects} and "__maxnreg__" not in plain.cuda


def test_a_dropped_effect_is_an_error():
    blocks = MatMul.tile(16, 16).to(Block).refine(AtMostRegisters(3))
    steps = blocks.epilog(RF, Init.tile(2, 2).to(Thread).done(), Move.tile(2, 2).to(Thread).done()).split(8)
    bound = steps.tile(2, 2).to(Thread).split(1).tile(1, 1).done()(MatMul(16, 16, 32)(GL, GL, GL)(Kernel))
    with pytest.raises(ResourceError, match=r"max_registers\(3\): buffers alone take [0-9]+ registers"):
        _ = bound.program("sm_90").ir


def test_effects_of_one_kind_are_combined_from_the_outside_in():
    outer, inner = Effects((MaxRegisters(64), Zeroed(("C",)))), Effects((MaxRegisters(48), Zeroed(("D",))))
    assert outer.joined(inner)[MaxRegisters].count == 48 and outer.joined(inner)[Zeroed].names == ("C", "D")
    assert outer.joined(Effects()) == outer == Effects().joined(outer) and not Effects((MaxRegisters(),))


def test_an_effect_is_about_tiles_of_blocks():
    inner = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).refine(AtMostRegisters(64)).split(1).done()
    with pytest.raises(FireironError, match="apply to blocks"):
        _ = inner(MatMul(16, 16, 32)(GL, GL, GL)(Kernel)).program("sm_90").ir


# ---------------------------------------------------------------------------------------------- an in-order mechanism


def late():
    return product(LateCopy("LATE_COPY")).program("sm_90")


def test_a_mechanism_gets_its_commits_waits_and_barriers():
    program = late()
    kernel = program.ir
    inside = list(ir.statements(kernel.body))
    assert {one.mechanism for one in inside if isinstance(one, ir.Exec) and one.asynchronous} == {LATE}
    waits = [one for one in inside if isinstance(one, ir.Wait)]
    assert waits and all(one.mechanism is LATE for one in waits) and "have come late" in waits[0].reason
    assert "late_commit();" in program.cuda and "late_wait<0>();" in program.cuda
    np.testing.assert_array_equal(*outputs(kernel))
    assert not [one for one in check(kernel) if one.severity == "error"]
    compiles(program)


@pytest.mark.parametrize("what", ["wait", "commit", "barrier"])
def test_removed_statements_are_reported_by_both_detectors(what):
    kernel = late().ir
    kinds = {"wait": ir.Wait, "commit": ir.Commit, "barrier": ir.Barrier}
    wrong = attrs.evolve(kernel, body=ir.rewritten(kernel.body, lambda one: () if isinstance(one, kinds[what]) else (one,)))
    assert [one for one in check(wrong) if one.severity == "error"]
    with pytest.raises(SimulationError):
        outputs(wrong)


# ---------------------------------------------------------------------------------------------- a counted mechanism


def counted():
    """A warpgroup GEMM with a ring that a producer fills by user-defined loads."""
    load = Move.done(CountedLoad("COUNTED_LOAD"))
    blocks = MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(64).pipeline(3).warp_specialize()
    strategy = blocks.load(A, SH, load).load(B, SH, load).tile(64, 64).to(Warpgroup).done()
    float16_rows = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    return strategy(MatMul(128, 128, 256, **float16_rows)(GL, GL, GL)(Kernel)).program("sm_90a")


def product_of(kernel):
    a, b = (DATA.integers(-2, 3, shape).astype(np.float16) for shape in ((128, 256), (256, 128)))
    got = simulate(kernel, {"A": a, "B": b}, order=random.Random(5)).outputs["C"]
    return got, (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)


def test_a_counted_mechanism_fills_rings():
    program = counted()
    loads = [one for one, _ in ir.execs(program.ir.body) if one.mechanism is COUNTED]
    assert loads and all(one.ring for one in loads) and len(program.ir.rings) == 1
    np.testing.assert_array_equal(*product_of(program.ir))
    assert not [one for one in check(program.ir) if one.severity == "error"]
    compiles(program, "sm_90a")


@pytest.mark.parametrize(("kind", "number"), [(ir.Acquire, 0), (ir.Acquire, 1), (ir.Release, 0), (ir.Release, 1)])
def test_a_violated_ring_protocol_is_reported_by_both_detectors(kind, number):
    kernel, seen = counted().ir, itertools.count()
    without = lambda one: () if isinstance(one, kind) and next(seen) == number else (one,)
    wrong = attrs.evolve(kernel, body=ir.rewritten(kernel.body, without))
    assert [one for one in check(wrong) if one.severity == "error"]
    with pytest.raises(SimulationError):
        product_of(wrong)


# ---------------------------------------------------------------------------------------------- a counted mechanism with deferred arrivals


def deferred():
    """A warpgroup GEMM with a ring that producer threads fill by user-defined copies; TMA loads the tiles of A."""
    copies = Move.tile(1, 8).to(Thread).done(DeferredCopy("DEFERRED_COPY"))
    blocks = MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(64).pipeline(3).warp_specialize(copies=True)
    strategy = blocks.load(A, SH, Move.done()).load(B, SH, copies).tile(64, 64).to(Warpgroup).done()
    float16_rows = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    return strategy(MatMul(128, 128, 256, **float16_rows)(GL, GL, GL)(Kernel)).program("sm_90a")


def test_a_mechanism_with_deferred_arrivals_fills_rings():
    program = deferred()
    inside = list(ir.statements(program.ir.body))
    arrivals = [one for one in inside if isinstance(one, ir.Release) and one.by is DEFERRED]
    assert arrivals and all(one.state is ir.StageState.FULL for one in arrivals) and program.ir.rings[0].producers == 33
    assert not [one for one in inside if isinstance(one, (ir.Commit, ir.Wait)) and one.mechanism is DEFERRED], "nothing waits for groups"
    assert [line.strip() for line in program.cuda.splitlines() if line.strip().startswith("deferred_arrive(")]
    np.testing.assert_array_equal(*product_of(program.ir))
    assert not [one for one in check(program.ir) if one.severity == "error"]
    compiles(program, "sm_90a")


@pytest.mark.parametrize("by", [ir.AT_ONCE, None], ids=["not deferred", "no arrival"])
def test_an_arrival_that_is_not_deferred_is_found_by_both_detectors(by):
    kernel = deferred().ir
    changed = lambda one: () if by is None else (attrs.evolve(one, by=by),)
    edit = lambda one: changed(one) if isinstance(one, ir.Release) and one.by is DEFERRED else (one,)
    wrong = attrs.evolve(kernel, body=ir.rewritten(kernel.body, edit))
    assert [one for one in check(wrong) if one.severity == "error"]
    with pytest.raises(SimulationError):
        product_of(wrong)


# ---------------------------------------------------------------------------------------------- a memory in a separate region


def tabled(size=8, bk=8):
    """A GEMM by threads, with tiles of A in shared memory and tiles of B in tables."""
    copied = Move.tile(1, 1).to(Thread).done()
    steps = MatMul.tile(size, size).to(Block).epilog(RF, Init.tile(1, 1).to(Thread).done(), Move.tile(1, 1).to(Thread).done()).split(bk)
    strategy = steps.load(A, SH, copied).load(B, TABLE, copied).tile(1, 1).to(Thread).split(1).done()
    return strategy(MatMul(16, 16, 32)(GL, GL, GL)(Kernel)).program("sm_90")


def test_a_region_has_separate_bytes():
    program = tabled()
    kernel, plain = program.ir, product().program("sm_90").ir
    table = kernel.buffer("b_table")
    assert (table.memory, table.bytes, table.offset) == (TABLE, 256, 1024) and not table.shares(kernel.buffer("a_sh"))
    assert (kernel.shared_bytes, plain.shared_bytes) == (256, 512), "of shared memory it takes nothing"
    assert "__shared__ __align__(16) float b_table[64];  // byte 0 of tables" in program.cuda
    np.testing.assert_array_equal(*outputs(kernel))
    assert not [one for one in check(kernel) if one.severity == "error"]
    assert [one.scope for one in ir.statements(kernel.body) if isinstance(one, ir.Barrier)] == [ir.BLOCK_SCOPE] * 2, "who shares it decides"
    compiles(program)


def test_a_region_has_an_end():
    with pytest.raises(ResourceError, match=r"2048 bytes in tables: b_table 2048") as caught:
        _ = tabled(16, 32).lowered
    assert caught.value.legal == f"at most {TABLES.bytes} bytes"


@pytest.mark.parametrize("number", [0, 1])
def test_a_barrier_left_out_of_a_region_is_found_by_both_detectors(number):
    kernel, seen = tabled().ir, itertools.count()
    without = lambda one: () if isinstance(one, ir.Barrier) and next(seen) == number else (one,)
    wrong = attrs.evolve(kernel, body=ir.rewritten(kernel.body, without))
    assert [one for one in check(wrong) if one.severity == "error" and "b_table" in str(one)]
    with pytest.raises(SimulationError):
        outputs(wrong)


@pytest.mark.parametrize(("offset", "why"), [(0, "other arrays use the bytes up to 256"), (512, "the region has 1024 bytes")])
def test_arrays_outside_their_region_are_errors(offset, why):
    kernel = tabled().ir
    table = kernel.buffer("b_table")
    other = attrs.evolve(table, tensor=attrs.evolve(table.tensor, name="other"), offset=4096)
    placed = tuple(attrs.evolve(one, offset=offset) if one is table else one for one in kernel.buffers)
    wrong = attrs.evolve(kernel, buffers=placed if offset < 256 else (*placed, other))
    assert [one.message for one in check(wrong) if one.severity == "error" and why in one.message]


def test_no_instruction_for_shared_memory_reaches_another_region():
    from fireiron.executable.cp_async import CP_ASYNC

    program = tabled()
    assert not TABLE.like(SH) and TABLE.of_block and not TABLE.in_shared
    assert all(one.instruction is not CP_ASYNC for one, _ in ir.execs(program.ir.body) if one.accesses[-1].buffer == "b_table")


# ---------------------------------------------------------------------------------------------- on disk


def test_a_program_with_user_defined_parts_is_not_cached_on_disk():
    from fireiron.gpu import programs

    assert programs.key_of(late()) is None
    with pytest.raises(FireironError):
        dumps(product(LateCopy("LATE_COPY")))


# ---------------------------------------------------------------------------------------------- a tile order


BLOCKS = MatMul.tile(4, 4).to(Block)


def on_curve(*steps, chain=BLOCKS):
    """A GEMM whose blocks follow a user-defined curve, with further options of the tile order."""
    blocks = chain.refine(Morton())
    for step in steps:
        blocks = step(blocks)
    return blocks.tile(1, 1).to(Thread).split(1).done()


@pytest.mark.parametrize("step", [lambda one: one, lambda one: one.persistent(3), lambda one: one.swizzle(lambda uid: uid ^ 5)])
def test_a_tile_order_is_printed_and_right(step):
    program = on_curve(step)(MatMul(16, 16, 8)(GL, GL, GL)(Kernel)).program("sm_90")
    np.testing.assert_array_equal(*outputs(program.ir, K=8))
    assert not [finding for finding in check(program.ir) if finding.severity == "error"]
    compiles(program)


@pytest.mark.parametrize("sizes", [(4, 4, 8), (12, 4, 8), (8, 8, 8)])
def test_a_tile_order_is_right_on_small_grids(sizes):
    got, wanted = outputs(on_curve()(MatMul(*sizes)(GL, GL, GL)(Kernel)).program("sm_90").ir, *sizes)
    np.testing.assert_array_equal(got, wanted)


def test_a_tile_order_states_the_tile_of_a_block():
    program = on_curve()(MatMul(16, 16, 8)(GL, GL, GL)(Kernel)).program("sm_90")
    lines = [line.strip() for line in program.cuda.splitlines() if "int block_" in line]
    assert lines == [
        "const int block_n = blockIdx.x / 4 % 2 * 2 + blockIdx.x % 2;",
        "const int block_m = blockIdx.x / 8 * 2 + blockIdx.x / 2 % 2;",
    ]


@pytest.mark.parametrize(
    ("build", "sizes", "message"),
    [
        (on_curve(), (16, 12, 8), "morton is not a permutation of the 12 blocks"),
        (on_curve(), (32, 16, 8), "morton is not a permutation of the 32 blocks"),
        (on_curve(), (sym("M"), 16, 8), "morton: the number of blocks is known only at run time, so the permutation cannot be checked"),
        (on_curve(lambda one: one.rasterize(group_m=2)), (16, 16, 8), "morton walks through the whole grid, without rasterize"),
        (on_curve(lambda one: one.longest_first("m")), (16, 16, 8), "longest_first: morton also determines the tile of a block"),
        (on_curve(chain=MatMul.tile(8, 8).to(Block).tile(4, 4).to(Warp)), (16, 16, 8), "apply to blocks"),
    ],
)
def test_an_invalid_tile_order_is_refused(build, sizes, message):
    with pytest.raises(FireironError, match=message):
        _ = build(MatMul(*sizes)(GL, GL, GL)(Kernel)).program("sm_90").ir


# ---------------------------------------------------------------------------------------------- a level above a launch

BY_THREADS = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).done()
SUM = AnySpec.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()
SIZES = (16, 24, 32)
LAUNCHED = {
    "k": (InLaunches("k", 2), BY_THREADS, SIZES, 2),
    "four of k": (InLaunches("k", 4), BY_THREADS, SIZES, 4),
    "rows": (InLaunches("m", 2), BY_THREADS, SIZES, 2),
    "columns, with a copy": (InLaunches("n", 3), MatMul.repack(A, order=RowMajor).then(BY_THREADS), SIZES, 6),
    "temporaries": (InLaunches("k", 2, BY_THREADS.steps), SUM, SIZES, 3),
    "rows of columns": (InLaunches("n", 3), BY_THREADS, (sym("M"), 24, 32), 3),
}


def launched(name):
    """A GEMM at the level above, by the launches of a step."""
    step, rest, sizes, _ = LAUNCHED[name]
    return MatMul.then(step).then(rest)(MatMul(*sizes, C=RowMajor)(GL, GL, GL)(SEQUENCE)).program("sm_90")


def operands():
    M, N, K = SIZES
    a, b = (DATA.integers(-3, 4, shape).astype(np.float32) for shape in ((M, K), (K, N)))
    return {"A": np.asfortranarray(a), "B": np.asfortranarray(b)}


def together(program, launches, arrays):
    symbols = {"M": SIZES[0]} if "M" in str(program.spec.sizes) else {}
    return simulate_launches(launches, arrays, symbols, outputs=("C",), order=random.Random(3))["C"]


@pytest.mark.parametrize("name", LAUNCHED)
def test_launches_of_a_level_above_are_right(name):
    program, arrays = launched(name), operands()
    assert len(program.launches) == LAUNCHED[name][-1] and program.launches[-1].program is program
    np.testing.assert_array_equal(together(program, program.launches, arrays), arrays["A"] @ arrays["B"])
    for launch in program.launches:
        assert not [finding for finding in check(launch.kernel) if finding.severity == "error"]
    assert not list(check_launches(program.spec, program.launches))


@pytest.mark.parametrize("name", LAUNCHED)
def test_launches_of_a_level_above_are_one_unit_in_order(name):
    program = launched(name)
    names = [launch.kernel.name for launch in program.launches]
    assert len(set(names)) == len(names) and program.cuda.startswith(f"// {len(names)} launches, in this order\n")
    places = [program.cuda.index(f"\n{kernel}(") for kernel in names]
    assert places == sorted(places) and program.cuda.count("__global__") == len(names)
    compiles(program)


def test_results_pass_through_temporaries():
    first, second, last = launched("temporaries").launches
    assert (first.reads, first.writes, second.writes) == (("A", "B"), ("sum0",), ("sum1",))
    assert (last.reads, last.writes) == (("sum0", "sum1"), ("C",)) and last.arrays == {"lhs": "sum0", "rhs": "sum1", "dst": "C"}
    assert str(first) == "matmul_part0: MatMul(16,24,16)(GL,GL,GL)(Kernel), since its terms are added apart"


def test_launches_of_launches_are_one_sequence():
    """Each part has the steps after it, including a copy of its operand."""
    *copies, last = launched("columns, with a copy").launches
    assert [(launch.program.name, *launch.writes) for launch in copies] == [
        ("matmul_part0_repack_a", "part0_copy_of_A"), ("matmul_part0", "C"),
        ("matmul_part1_repack_a", "part1_copy_of_A"), ("matmul_part1", "C"), ("matmul_repack_a", "copy_of_A"),
    ]  # fmt: skip
    assert last.reads == ("copy_of_A", "B")


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_call_makes_all_launches(name):
    kernel, arrays = CompiledKernel(launched(name)), operands()
    expected = arrays["A"] @ arrays["B"]
    np.testing.assert_array_equal(kernel(*arrays.values()), expected)
    c = np.full(expected.shape, 7, np.float32)
    assert kernel(*arrays.values(), out=c) is c
    np.testing.assert_array_equal(c, expected)
    with pytest.raises(FireironError, match="1 arrays given, MatMul reads 2"):
        kernel(arrays["A"])


@pytest.mark.parametrize(
    ("name", "wrong", "finding", "simulator_message"),
    [
        ("k", lambda first, last: (last, first), "the launch last reads C, which no earlier launch wrote", "is read before any write"),
        ("k", lambda first, last: (last,), "the launch last reads C, which no earlier launch wrote", "is read before any write"),
        ("rows", lambda first, last: (first,), r"writes C, but no earlier launch wrote C\[8, 0\]", r"no launch writes C\[8, 0\]"),
        ("rows", lambda first, last: (last,), r"writes C, but no earlier launch wrote C\[0, 0\]", r"no launch writes C\[0, 0\]"),
        ("rows of columns", lambda first, _, last: (first, last), r"writes C, but no earlier launch wrote C\[0, 8\]", r"no launch writes C\[0, 8\]"),
        ("temporaries", lambda one, other, last: (one, last, other), "reads sum1, which no earlier launch wrote", "reads sum1, which no earlier launch wrote"),
        ("temporaries", lambda one, other, last: (one, other), "MatMul writes C, but no launch does", "no launch writes C"),
        ("columns, with a copy", lambda _, first, *more: (first, *more), "reads part0_copy_of_A, which no earlier launch", "reads part0_copy_of_A, which no"),
    ],
)  # fmt: skip
def test_launches_in_another_order_are_found_by_check_and_simulator(name, wrong, finding, simulator_message):
    program = launched(name)
    launches = wrong(*program.launches)
    messages = [finding.message for finding in check_launches(program.spec, launches) if finding.severity == "error"]
    assert any(re.search(finding, message) for message in messages), messages
    with pytest.raises(SimulationError, match=simulator_message):
        together(program, launches, operands())


def test_outputs_list_all_launches():
    program = launched("temporaries")
    assert "launched first   matmul_part1: MatMul(16,24,16)(GL,GL,GL)(Kernel), since its terms are added apart" in "\n".join(show(program))
    assert f"preceding launch: {program.launches[0]}" in text(explain(program.strategy))
    assert predict(program).us > sum(predict(launch.program).us for launch in program.preceding) > 0
    assert {line.steps[0][0] for line in program.lines if line.steps} == {launch.program.name for launch in program.launches}


@pytest.mark.parametrize(
    ("chain", "level", "message"),
    [
        (MatMul.then(InLaunches("k", 3)).then(BY_THREADS), SEQUENCE, r"in_launches\(k\): 3 parts of 32 at Sequence"),
        (BY_THREADS, SEQUENCE, r"consists of launches: tile\(8, 8\).to\(Block\) divides the work of one launch"),
        (MatMul.then(InLaunches()).then(BY_THREADS), Level("Graph", consists_of=SEQUENCE), "2 parts of 32 at Graph"),
        (MatMul.then(InLaunches()).then(BY_THREADS), Kernel, "2 parts of 32 at Kernel"),
        (MatMul.tile(8, 8).to(Block).then(InLaunches()).then(BY_THREADS), Kernel, "must precede all steps that divide the work of one launch"),
    ],
)  # fmt: skip
def test_illegal_launches_are_refused(chain, level, message):
    with pytest.raises(FireironError, match=message):
        _ = chain(MatMul(*SIZES, C=RowMajor)(GL, GL, GL)(level)).program("sm_90").ir
