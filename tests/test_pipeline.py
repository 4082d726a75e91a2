"""Pipelines: exact in simulation, few barriers and deep waits, refused if illegal; two detectors report injected faults."""

import itertools
import random
import re

import attrs
import making
import numpy as np
import pytest
from faults import faults, located
from problems import integers, library

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_banks, safety
from fireiron.refine.swizzle_storage import by_rows
from fireiron.sim import simulate
from fireiron.values.expr import constant, hilbert

FLOAT16 = {"dtype": float16, "c_dtype": float16, "accumulator": float32, "A": RowMajor, "B": RowMajor, "C": RowMajor}


def fma(stages, ahead=1, spread=False, step=8, width=4):
    """A GEMM by threads: a pipeline to shared memory, and one to registers."""
    return (
        MatMul.tile(32, 32)
        .to(Block)
        .epilog(
            RF,
            Init.tile(4, 4).to(Thread).tile(1, 1).unroll().done(),
            Move.tile(4, 4).to(Thread).tile(1, 1).unroll().done(),
        )
        .split(step)
        .pipeline(stages, interleave=spread)
        .load(A, SH, Move.coalesced_copy(width).done())
        .load(B, SH, Move.coalesced_copy(width).done())
        .tile(4, 4)
        .to(Thread)
        .split(1)
        .unroll()
        .pipeline(ahead)
        .load(A, RF, Move.tile(1, 1).unroll().done())
        .load(B, RF, Move.tile(1, 1).unroll().done())
        .tile(1, 1)
        .unroll()
        .done()
    )


def small(**tunables):
    return library("small").strategy.with_(**{"bm": 32, "bn": 32, "bk": 32, "wm": 16, "wn": 16, **tunables})


def ampere(**tunables):
    return library("hmma_ampere").strategy.with_(**{"bm": 64, "bn": 64, "bk": 32, "wm": 32, "wn": 32, **tunables})


def lowered(strategy, sizes, target="sm_80", symbolic=False, **options):
    M, N, K = sizes
    return strategy(MatMul(M, N, sym("K") if symbolic else K, **options)(GL, GL, GL)(Kernel)).program(target).lowered


def arrays_for(kernel, sizes):
    M, N, K = sizes
    generator = np.random.default_rng(5)
    a, b = integers((M, K), kernel.spec.A.dtype, generator), integers((K, N), kernel.spec.B.dtype, generator)
    return {"A": a, "B": b}, {var.name: K for var in kernel.symbols}


def require_exact(kernel, sizes, orders=(None, 1)):
    """The simulation equals NumPy, with warps in lockstep and in random order; the static check has no findings."""
    arrays, symbols = arrays_for(kernel, sizes)
    for order in orders:
        got = simulate(kernel, arrays, symbols, order=None if order is None else random.Random(order)).outputs["C"]
        assert np.array_equal(got, kernel.spec.reference(arrays["A"], arrays["B"]))
    assert safety(kernel) == ()


def count(kernel, kind):
    return len(list(located(kernel.body, kind)))


def all_execs(kernel):
    return [statement for statement, _ in ir.execs(kernel.body)]


# ---------------------------------------------------------------------------------------------- exact


@pytest.mark.sampled(12)
@pytest.mark.parametrize("target", ["sm_70", "sm_80"])
@pytest.mark.parametrize("stages", range(1, 7))
def test_pipelines_of_threads(stages, target):
    """Fewer K steps than stages, as many, more; partial last steps; numbers of steps known at run time."""
    ways = [(1, False), (2, False), *([(1 + stages % 2, True)] if stages > 1 else [])]
    problems = [(5, False), (8 * stages, False), (8 * stages + 20, False), (8 * stages - 3, True), (8 * stages + 28, True)]
    for (ahead, spread), (K, symbolic) in itertools.product(ways, problems):
        sizes = (33, 20, K)
        kernel = lowered(fma(stages, ahead, spread), sizes, target, symbolic)
        assert any(one.asynchronous for one in all_execs(kernel)) == (target == "sm_80" and (symbolic or K > 8))
        require_exact(kernel, sizes, (None,) if (K + ahead) % 2 else (2,))


@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16, int32, int8], ids=str)
def test_element_types(dtype):
    """Narrow elements are copied four bytes at a time if the alignment to four bytes is proved, otherwise one by one."""
    for sizes, order in (((64, 32, 40), RowMajor), ((33, 31, 50), ColMajor)):
        kernel = lowered(fma(3, 2, width=16), sizes, dtype=dtype, A=order)
        require_exact(kernel, sizes)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("sizes", [(32, 32, 16), (40, 56, 72), (33, 31, 33), (16, 100, 160)])
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_pipelines_of_tensor_cores(stages, sizes):
    for ahead, symbolic in itertools.product((1, 2), (False, True)):
        require_exact(lowered(small(stages=stages, lookahead=ahead), sizes, symbolic=symbolic, **FLOAT16), sizes)


@pytest.mark.parametrize("orders", list(itertools.product((RowMajor, ColMajor), repeat=2)), ids=str)
def test_spread_pipelines_of_tensor_cores(orders):
    for sizes, stages in (((64, 72, 200), 3), ((65, 63, 64), 4)):
        kernel = lowered(ampere(stages=stages), sizes, **{**FLOAT16, "A": orders[0], "B": orders[1]})
        require_exact(kernel, sizes)


@pytest.mark.parametrize("name", ["small", "hmma_ampere"])
def test_tensor_cores_without_asynchronous_copies(name):
    strategy = small(stages=3) if name == "small" else ampere(stages=3)
    kernel = lowered(strategy, (40, 40, 130), "sm_75", **FLOAT16)
    assert count(kernel, ir.Commit) == count(kernel, ir.Wait) == 0
    require_exact(kernel, (40, 40, 130))


# ---------------------------------------------------------------------------------------------- structure


def loop_of(kernel):
    return next(one for _, one in located(kernel.body, ir.For) if one.period)


def test_fragments_ahead_wait_late():
    """Registers are loaded one step ahead: the wait is before the last step, and leaves the youngest groups in flight."""
    for stages in (3, 4, 5):
        kernel = lowered(fma(stages, 2), (64, 64, 128))
        loop = loop_of(kernel)
        assert loop.period == stages
        assert [one.groups for _, one in located(kernel.body, ir.Wait)] == [stages - 2] * 2
        assert [one.scope for _, one in located(kernel.body, ir.Barrier)] == [ir.BLOCK_SCOPE] * 2
        inside = [type(one) for one in loop.body]
        assert inside.count(ir.Barrier) == inside.count(ir.Wait) == 1
        at = inside.index(ir.Barrier)
        assert inside[at - 1] is ir.Wait and ir.For in inside[:at]
        assert all(any(one.spec.memories == (SH, RF) for one, _ in ir.execs(part)) for part in (loop.body[:at], loop.body[at:]))
        assert kernel.shared_bytes == stages * 2 * 32 * 8 * 4


def test_without_fragments_ahead_the_loop_has_one_barrier():
    for stages in (2, 3, 4):
        kernel = lowered(fma(stages, 1), (64, 64, 128))
        loop = loop_of(kernel)
        assert [one.groups for _, one in located(kernel.body, ir.Wait)] == [stages - 2]
        assert count(kernel, ir.Barrier) == 1 and isinstance(loop.body[1], ir.Barrier)


def test_a_single_stage_waits_for_all():
    for sizes in ((64, 64, 64), (33, 36, 64)):
        kernel = lowered(fma(1), sizes)
        assert [one.groups for _, one in located(kernel.body, ir.Wait)] == [0]
        assert [one.scope for _, one in located(kernel.body, ir.Barrier)] == [ir.BLOCK_SCOPE] * 2, "copies in turns need none between them"


def test_more_stages_than_steps_load_before_the_loop_only():
    for spread in (False, True):
        kernel = lowered(fma(4, 1, spread), (64, 64, 16))
        assert not any(one.asynchronous for one, _ in ir.execs((loop_of(kernel),)))
        assert count(kernel, ir.Commit) == 1
        require_exact(kernel, (64, 64, 16))
    kernel = fma(4)(MatMul(sym("m"), sym("n"), 16)(GL, GL, GL)(Kernel)).program("sm_80").lowered
    assert safety(kernel) == ()


def test_a_barrier_of_the_user_is_none_for_the_first_iteration():
    """With one warp and a requested barrier at the end of each step, prefetched copies still need a barrier before the loop."""
    chain = MatMul.tile(32, 8).to(Block).split(4).pipeline(4).load(A, SH, Move.tile(1, 4).to(Thread).done()).load(B, SH)
    chain = chain.tile(8, 1).to(Thread).split(1).sync().tile(1, 1).done()
    for target in ("sm_70", "sm_80"):
        kernel = lowered(chain, (40, 8, 9), target)
        assert kernel.threads == 32
        assert next(one.scope for _, one in located(kernel.body, ir.Barrier)) == ir.WARP_SCOPE
        require_exact(kernel, (40, 8, 9))


def test_text_of_a_pipeline():
    text = fma(4, 2)(MatMul(64, 64, 128)(GL, GL, GL)(Kernel)).cuda("sm_80")
    assert text.count("cp_async_wait_group<2>();") == 2 and text.count("__syncthreads") == 2
    assert text.count(" cp_async_commit_group();") == 2 and text.count("cp.async.cg.shared.global") == 1
    assert text.count("cp.async.wait_group") == 1 and text.count("cp.async.commit_group") == 1
    assert "cp.async" not in fma(4, 2)(MatMul(64, 64, 128)(GL, GL, GL)(Kernel)).cuda("sm_75")


def test_every_copy_in_flight_is_waited_for():
    """Every asynchronous copy is committed, and every group is waited for before its data is read, if it is read at all."""
    for strategy, options in ((fma(4, 2), {}), (fma(3, 1, True), {}), (small(stages=4), FLOAT16), (ampere(stages=3), FLOAT16)):
        kernel = lowered(strategy, (64, 64, 256), **options)
        for path, stmt in located(kernel.body, ir.Exec):
            if stmt.asynchronous:
                outer = [kernel.body]
                for position in path[:-1]:
                    outer.append(outer[-1][position].body)
                later_statements = [other for depth, body in enumerate(outer) for other in body[path[depth] :]]
                assert any(isinstance(other, ir.Commit) for other in later_statements), stmt


@pytest.mark.parametrize("dtype", [float16, bfloat16, int8], ids=str)
def test_narrow_copies_are_plain(dtype):
    """A copy of fewer than four bytes cannot be asynchronous: it remains a load and a store, and nothing is committed."""
    kernel = lowered(fma(3, 1), (33, 31, 49), dtype=dtype)
    copies = [one for one in all_execs(kernel) if one.spec.title == "Move" and one.spec.memories == (GL, SH)]
    assert len(copies) == 4 and not any(one.asynchronous for one in copies)
    assert {one.instruction.name for one in copies} == {"Move"}
    assert count(kernel, ir.Commit) == count(kernel, ir.Wait) == 0


def test_mixed_widths():
    """A is copied element by element, B sixteen bytes at a time: one copy is asynchronous, and both are right."""
    sizes = (33, 64, 72)
    kernel = lowered(fma(3, 2, width=8), sizes, **{**FLOAT16, "A": ColMajor})
    asynchronous = {one.accesses[1].buffer: one.asynchronous for one in all_execs(kernel) if one.spec.memories == (GL, SH)}
    assert asynchronous == {"a_sh": False, "b_sh": True}
    require_exact(kernel, sizes)


def test_spread_copies_are_issued_in_the_steps():
    kernel = lowered(fma(3, 2, True), (64, 64, 128))
    loop = loop_of(kernel)
    assert not any(isinstance(one, ir.Exec) and one.asynchronous for one in loop.body)
    steps = next(one for one in loop.body if isinstance(one, ir.For))
    assert any(one.asynchronous for one, _ in ir.execs((steps,)))
    assert sum(isinstance(one, ir.Commit) for one in loop.body) == 1


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_barrier_of_the_user_among_spread_copies(symbolic):
    """The barrier of each step precedes the commit, so the copies of the steps cannot be waited for there."""
    chain = MatMul.tile(16, 8).to(Block).epilog(RF).split(k=8).pipeline(2, interleave=True).load(B, SH)
    chain = chain.split(4).sync().tile(2, 2).to(Thread).split(1).tile(1, 1).done()
    require_exact(lowered(chain, (16, 8, 24), symbolic=symbolic), (16, 8, 24))


def test_spread_loops_have_names_of_their_own():
    """A part of a copy takes fewer iterations than the whole copy, and a name has one range."""
    copy = Move.tile(1, 4).to(Warp).tile(1, 2).unroll().tile(1, 2).to(Lane).done()
    chain = MatMul.tile(16, 16).to(Block).split(2).pipeline(3, interleave=True).load(A, SH).load(B, SH, copy)
    chain = chain.tile(16, 16).to(Warp).tile(2, 4).to(Lane).split(1).tile(1, 1).done()
    kernel = lowered(chain, (16, 42, 13), symbolic=True)
    ranges = {}
    for _, loop in located(kernel.body, ir.For):
        assert ranges.setdefault(loop.var.name, (loop.var, loop.extent)) == (loop.var, loop.extent)
    require_exact(kernel, (16, 42, 13))


# ---------------------------------------------------------------------------------------------- refusals


def block(step=8):
    return MatMul.tile(32, 32).to(Block).split(step)


REFUSED = {
    "no load": (block().pipeline(2).tile(4, 4).to(Thread).tile(1, 1).split(1).done(), "no load directly under this split", 64),
    "an odd number of steps": (fma(3, 2, step=9), "has 9 iterations.*multiple of 2", 64),
    "registers in a loop of unknown length": (
        MatMul.tile(32, 32).to(Block).tile(4, 4).to(Thread).split(1).pipeline(2).load(A, RF).load(B, RF).tile(1, 1).done(),
        "are in registers, which have no run-time index",
        sym("K"),
    ),
    "registers in a long loop": (
        MatMul.tile(32, 32).to(Block).tile(4, 4).to(Thread).split(1).pipeline(2).load(A, RF).load(B, RF).tile(1, 1).done(),
        "loop k runs 100 times",
        100,
    ),
    "spread over nothing": (
        block().pipeline(2, interleave=True).load(A, SH).load(B, SH).done("__syncthreads();\n"),
        "no inner loop to distribute the copies over",
        64,
    ),
    "spread of nothing": (lambda: fma(1, spread=True), "no copy runs ahead", 64),
    "no stages": (lambda: fma(0), "a positive integer", 64),
    "too many stages": (lambda: fma(17), "1 ... 16", 64),
    "half a stage": (lambda: fma(2.5), "pipeline", 64),
    "spread is no truth value": (lambda: fma(2, spread=1), "True or False", 64),
    "an output": (MatMul.tile(32, 32).to(Block).load(C, SH).done(), r"an output cannot be loaded.*A B.*epilog\(memory, init, store\)", 64),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    strategy, message, K = REFUSED[name]
    with pytest.raises(DecompositionError) as caught:
        strategy = strategy() if not isinstance(strategy, Strategy) else strategy
        _ = strategy(MatMul(64, 64, K)(GL, GL, GL)(Kernel)).program("sm_80").lowered
    assert re.search(message, str(caught.value), re.DOTALL)
    assert "test_pipeline.py" in str(caught.value.at)


def test_outputs_other_than_products_are_not_loaded():
    for start, spec, legal in ((Move, Move(64, 64)(GL, GL)(Kernel), ("src",)), (Init, Init(64, 64)(GL)(Kernel), "none: it has no inputs")):
        with pytest.raises(DecompositionError, match=r"load\(dst\): an output cannot be loaded") as caught:
            _ = start.tile(16, 16).to(Block).load("dst", SH).tile(4, 4).to(Thread).tile(1, 1).done()(spec).program("sm_80").lowered
        assert caught.value.hint == "load(src, ...) instead" and caught.value.legal == legal


# ---------------------------------------------------------------------------------------------- injected faults


FAULTY = {
    "threads, 4 stages, 2 ahead": (fma(4, 2), (33, 40, 72), "sm_90", False, {}),
    "threads, 3 stages": (fma(3), (33, 40, 70), "sm_80", False, {}),
    "threads, 2 stages": (fma(2), (33, 40, 70), "sm_80", False, {}),
    "threads, 1 stage": (fma(1), (33, 40, 70), "sm_80", False, {}),
    "threads, 3 stages, 2 ahead, spread": (fma(3, 2, True), (33, 40, 72), "sm_90", False, {}),
    "threads, 4 stages, spread": (fma(4, 1, True), (33, 40, 72), "sm_90", False, {}),
    "threads, 3 stages, 2 ahead, K at run time": (fma(3, 2), (33, 40, 72), "sm_90", True, {}),
    "threads, 3 stages, plain": (fma(3), (33, 40, 72), "sm_70", False, {}),
    "threads, 3 stages, 2 ahead, plain": (fma(3, 2), (33, 40, 72), "sm_70", False, {}),
    "small, 2 ahead": (small(stages=3, lookahead=2), (40, 40, 256), "sm_90", False, FLOAT16),
    "small": (small(stages=4, lookahead=1), (40, 40, 320), "sm_80", False, FLOAT16),
    "hmma_ampere": (ampere(stages=3), (72, 80, 256), "sm_80", False, FLOAT16),
    "sgemm": (library("sgemm").strategy.with_(bk=8, stages=3), (100, 130, 64), "sm_80", False, {}),
}

EQUIVALENT = {
    (
        "threads, 3 stages, 2 ahead, plain",
        "behind the next touch",
    ): "plain copies have arrived an iteration before they are needed: the barrier of that iteration orders the reads moved before this one",
}
"""Faults without effect, each with the reason."""


@pytest.mark.parametrize("name", FAULTY)
def test_planted_faults_are_found_by_both_detectors(name):
    strategy, sizes, target, symbolic, options = FAULTY[name]
    kernel = lowered(strategy, sizes, target, symbolic, **options)
    require_exact(kernel, sizes, (None, 1, 2))
    arrays, symbols = arrays_for(kernel, sizes)
    missed = []
    detected = 0
    for fault, faulty in faults(kernel):
        replay = any(one.severity == "error" for one in safety(faulty))
        shadow = any(is_seen(faulty, arrays, symbols, order) for order in (None, 1, 2))
        detected += replay and shadow
        if not (replay and shadow):
            missed.append((fault, replay, shadow))
    reasons = [(fault, replay or shadow) for fault, replay, shadow in missed if (name, fault.split(":")[0]) in EQUIVALENT]
    assert len(reasons) == len(missed) and len(missed) <= 1, missed
    assert not any(seen for _, seen in reasons), "what makes no difference is no alarm for either"
    assert detected >= 5


def test_number_of_planted_faults():
    """At least 60, of every kind."""
    kinds = [fault.split(":")[0] for s, sizes, target, symbolic, options in FAULTY.values() for fault, _ in faults(lowered(s, sizes, target, symbolic, **options))]  # fmt: skip
    assert len(kinds) >= 150
    assert set(kinds) == {
        "dropped", "raised", "narrowed", "before its wait", "behind the next touch", "one stage less", "stored a stage further",
    }  # fmt: skip


def is_seen(faulty, arrays, symbols, order):
    """Whether shadow memory reports a fault."""
    try:
        simulate(faulty, arrays, symbols, order=None if order is None else random.Random(order))
    except SimulationError as error:
        return bool(re.search("race|in flight|before any write", str(error)))
    return False


# ---------------------------------------------------------------------------------------------- bank conflicts of ldmatrix


def banks(strategy, **options):
    """Findings about reads by ldmatrix, by buffer."""
    kernel = lowered(strategy, (64, 64, 128), **{**FLOAT16, **options})
    return {one.buffer: one for one in check_banks(AccessTrace(kernel)) if "LDMATRIX" in one.access}


def test_ldmatrix_counts_by_phases():
    """Four phases of eight lanes with 16 bytes each: rows of 128 bytes all start in bank 0, rows of 64 bytes in two banks."""
    whole = small(bk=64, stages=2, lookahead=1)
    plain = whole.at(Load, "A").unrefine(SwizzleStorage).at(Load, "B").unrefine(SwizzleStorage)
    findings = banks(plain)
    assert [(findings[name].details["wavefronts"], findings[name].details["ideal"]) for name in ("a_sh", "b_sh")] == [(32, 4), (16, 4)]
    assert [(findings[name].details["degree"], findings[name].severity) for name in ("a_sh", "b_sh")] == [(8, "warning"), (4, "warning")]
    assert (findings["a_sh"].details["pad"], findings["a_sh"].details["vector_bytes"]) == (8, 16)
    assert {one.severity for one in banks(whole).values()} == {"note"}
    for name, buffer in (("A", "a_sh"), ("B", "b_sh")):
        swizzled = plain.at(Load, name).refine(SwizzleStorage(Swizzle(*findings[buffer].details["swizzle"])))
        assert banks(swizzled)[buffer].details["degree"] == 1
    assert banks(plain.at(Load, "A").refine(Pad(findings["a_sh"].details["pad"])))["a_sh"].details["degree"] == 1
    half = banks(plain.at(Load, "A").refine(Pad(16)))["a_sh"]
    assert half.details["degree"] == 2, "rows 160 bytes apart: the fifth one starts in the bank of the first"


@pytest.mark.parametrize("orders", list(itertools.product((RowMajor, ColMajor), repeat=2)), ids=str)
def test_main_loop_of_hmma_ampere_has_no_conflicts(orders):
    checked = 0
    strategy = library("hmma_ampere").strategy
    spec = library("hmma_ampere").spec(1024, 1024, 1024, A=orders[0], B=orders[1])
    assignments = list(strategy(spec).assignments())
    for values in random.Random(3).sample(assignments, 40):
        try:
            kernel = strategy.with_(**values)(spec).program("sm_80").lowered
        except FireironError:
            continue
        findings = [one for one in check_banks(AccessTrace(kernel)) if one.buffer in ("a_sh", "b_sh")]
        assert findings and all(one.details["degree"] == 1 and one.severity == "note" for one in findings), values
        checked += 1
        if checked == 5:
            return
    assert checked >= 3


@pytest.mark.parametrize("element", [1, 2, 4, 8])
def test_swizzle_by_rows_is_free_of_conflicts(element):
    """Eight 16-byte pieces of adjacent rows cover all banks: rows of 32 to 512 bytes, including odd multiples of 16."""
    for size in range(32, 513, 16):
        leading = size // element
        swizzle = by_rows(leading, element) or (lambda offset: offset)
        for first, column in itertools.product(range(0, 32, 8), range(0, size, 16)):
            places = {swizzle(row * leading + column // element) * element // 16 % 8 for row in range(first, first + 8)}
            assert len(places) == 8, (size, first, column)
    assert by_rows(20 // element or 1, element) is None or element == 1
    assert by_rows(9, element) is None, "pieces are not whole"


# ---------------------------------------------------------------------------------------------- raster order, blocks per SM, coalesced
# copies, casts


def tiles_of_blocks(kernel, symbols):
    """The tile of each block, by row and column: where its first thread writes first."""
    grid = int(kernel.grid.evaluate(symbols))
    values = {"block": np.arange(grid), "thread": 0, **symbols}
    for var, value in ir.lets(kernel.body).items():
        values[var.name] = value.evaluate(values)
    statement, loops = list(ir.execs(kernel.body))[-1]
    values |= {loop.var.name: 0 for loop in loops}
    return [np.broadcast_to(base.evaluate(values), (grid,)) // 16 for base in statement.accesses[-1].base]


GRIDS = ((1, 1), (1, 7), (5, 1), (8, 3), (7, 5), (16, 16), (17, 2), (3, 20))
"""Tiles along M and N: lines, columns, squares and others."""


def ordered(order, *numbers):
    """A GEMM with a raster order: groups of tile rows or columns, or the Hilbert curve."""
    tile = MatMul.tile(16, 16).to(Block)
    chain = tile.hilbert() if order == "hilbert" else tile.rasterize(group_n=numbers[0]) if order == "group_n" else tile.rasterize(*numbers)
    return chain.tile(4, 4).to(Thread).tile(1, 1).split(1).done()


def ordered_kernel(order, numbers, grid, symbolic=""):
    """The kernel and the values of its symbols, for a grid of tiles whose last ones extend past the edge."""
    sizes = {"M": grid[0] * 16 - 3, "N": grid[1] * 16 - 5}
    named = {name: sym(name) if name in symbolic else size for name, size in sizes.items()}
    kernel = ordered(order, *numbers)(MatMul(named["M"], named["N"], 4)(GL, GL, GL)(Kernel)).program("sm_80").lowered
    return kernel, {name: sizes[name] for name in symbolic}


def places_of(kernel, symbols, grid):
    """The tile of each block, as pairs; every tile of the grid belongs to one block."""
    places = list(zip(*(one.tolist() for one in tiles_of_blocks(kernel, symbols)), strict=True))
    assert sorted(places) == list(itertools.product(*map(range, grid)))
    return places


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 16])
@pytest.mark.parametrize("symbolic", ["", "M", "N", "MN"])
@pytest.mark.parametrize("order", ["group_m", "group_n"])
def test_raster_groups_are_a_permutation(order, rows, symbolic):
    for grid in GRIDS:
        kernel, symbols = ordered_kernel(order, (rows,), grid, symbolic)
        places = places_of(kernel, symbols, grid)
        along, across = (0, 1) if order == "group_m" else (1, 0)
        band = places[: min(rows, grid[along]) * grid[across]]
        assert max(place[along] for place in band) < rows, "the first band is left before the next begins"
        assert safety(kernel) == ()


@pytest.mark.parametrize("symbolic", ["", "M", "N", "MN"])
def test_hilbert_is_a_permutation(symbolic):
    for grid in GRIDS:
        kernel, symbols = ordered_kernel("hilbert", (), grid, symbolic)
        places = places_of(kernel, symbols, grid)
        if grid == (16, 16):
            steps = [abs(m - k) + abs(n - i) for (m, n), (k, i) in itertools.pairwise(places)]
            assert set(steps) == {1}, "in a square of a power of two each tile is a neighbor of the one before it"
        assert safety(kernel) == ()


@pytest.mark.parametrize(("order", "numbers"), [("group_m", (3,)), ("group_n", (4,)), ("hilbert", ())])
def test_orders_of_all_small_grids(order, numbers):
    """One kernel for all sizes visits each tile of each grid once, and agrees with a kernel for that grid alone."""
    kernel, _ = ordered_kernel(order, numbers, (1, 1), "MN")
    for grid in itertools.product(range(1, 21), repeat=2):
        places_of(kernel, {"M": grid[0] * 16 - 3, "N": grid[1] * 16 - 5}, grid)
    chance = random.Random(20270110)
    for grid in [(chance.randint(1, 70), chance.randint(1, 70)) for _ in range(6)]:
        own, _ = ordered_kernel(order, numbers, grid)
        places = places_of(kernel, {"M": grid[0] * 16 - 3, "N": grid[1] * 16 - 5}, grid)
        assert places == places_of(own, {}, grid) and safety(own) == ()


@pytest.mark.parametrize(("walk", "order", "numbers"), [(0, "group_m", (4,)), (1, "group_n", (4,)), (2, "hilbert", ())])
def test_a_tunable_chooses_the_order(walk, order, numbers):
    rows, chosen = Tunable("rows", 1, 4), Tunable("walk", 0, 1, 2)
    open_strategy = ordered("group_m", rows, chosen)
    assert str(ordered("group_m", rows, chosen)) != str(ordered("group_m", rows))
    spec = MatMul(70, 40, 4)(GL, GL, GL)(Kernel)
    text = open_strategy.with_(rows=4 if numbers else 1, walk=walk)(spec).cuda("sm_80")
    assert (
        text == ordered(order, *numbers)(spec).cuda("sm_80") and (".hilbert()" if order == "hilbert" else f".rasterize({order}=4)") in text
    )


def test_orders_that_are_refused():
    spec = MatMul(64, 64, 4)(GL, GL, GL)(Kernel)
    with pytest.raises(DecompositionError, match="Hilbert's curve has no groups"):
        _ = ordered("group_m", 8, 2)(spec).program().ir
    for numbers in ((8, 3), (8, -1), (0,), (8, "columns")):
        with pytest.raises(DecompositionError, match="rasterize"):
            ordered("group_m", *numbers)
    with pytest.raises(DecompositionError, match="rasterize: group_n"):
        ordered("group_n", 0)
    with pytest.raises(DecompositionError, match="apply to blocks"):
        _ = MatMul.tile(64, 64).to(Block).tile(16, 16).to(Warp).hilbert().tile(1, 1).done()(spec).program().ir


CURVE_FAULTS = {
    "sides exchanged": lambda place: hilbert(place.number, place.columns, place.lines),
    "half of the tiles": lambda place: place // 2 * 2,
    "another number": lambda place: hilbert(place.number // 2, place.lines, place.columns),
    "a smaller grid": lambda place: hilbert(place.number, place.lines, place.columns - 1),
}


@pytest.mark.parametrize("sizes", [("M", "N"), (70, 40)], ids=str)
@pytest.mark.parametrize("fault", CURVE_FAULTS)
def test_another_curve_is_not_believed(fault, sizes):
    """The proof that blocks on a curve do not overlap holds for this curve on this grid. For known sizes the check compares the tiles, and
    with exchanged sides they are still all different.
    """
    M, N = (sym(size) if isinstance(size, str) else size for size in sizes)
    kernel = ordered("hilbert")(MatMul(M, N, 4)(GL, GL, GL)(Kernel)).program("sm_80").lowered
    (place,) = [one for one in kernel.body if isinstance(one, ir.Let) and one.var.name == "place"]
    body = [making.let(one.var, CURVE_FAULTS[fault](one.value)) if one is place else one for one in kernel.body]
    findings = safety(with_body(kernel, body))
    harmless = fault == "sides exchanged" and "M" not in sizes
    assert {one.buffer for one in findings if one.kind == "race"} == (set() if harmless else {"C"})


def test_raster_groups_of_wrong_height_are_not_proved():
    """The proof that grouped blocks do not overlap holds only for this order, not for a similar one."""
    kernel = (
        MatMul.tile(16, 16)
        .to(Block)
        .rasterize(group_m=4)
        .tile(4, 4)
        .to(Thread)
        .tile(1, 1)
        .split(1)
        .done()(MatMul(sym("M"), sym("N"), 4)(GL, GL, GL)(Kernel))
        .program("sm_80")
        .lowered
    )
    body = list(kernel.body)
    at = next(number for number, one in enumerate(body) if isinstance(one, ir.Let) and one.var.name == "block_m")
    for wrong in (body[at].value // 2 * 2, body[at].value % 3):
        changed = making.let(body[at].var, wrong)
        findings = safety(with_body(kernel, (*body[:at], changed, *body[at + 1 :])))
        assert findings and {one.buffer for one in findings} == {"C"}


def with_body(kernel, body):
    return attrs.evolve(kernel, body=tuple(body))


def test_resident_prints_launch_bounds():
    strategy = fma(2)
    spec = MatMul(64, 64, 64)(GL, GL, GL)(Kernel)
    for blocks in (1, 2, 32):
        text = strategy.at(Tile).refine(MinBlocksPerSm(blocks))(spec).cuda("sm_80") if blocks else ""
        assert f"__launch_bounds__(64, {blocks})" in text
    assert "__launch_bounds__(64)" in strategy(spec).cuda("sm_80")
    for wrong in (0, 33):
        with pytest.raises(DecompositionError, match="min_blocks_per_sm"):
            _ = MatMul.tile(32, 32).to(Block).min_blocks_per_sm(wrong).tile(1, 1).to(Thread).split(1).done()(spec).cuda("sm_80")


def test_coalesced_picks_widths_by_alignment():
    """The widest vector that sizes, tiles and leading dimensions prove, along the contiguous dimension in global memory."""
    cases = (
        ((64, 32), 8, {"src": RowMajor}, (1, 8)),
        ((64, 32), 8, {"src": ColMajor}, (8, 1)),
        ((64, 36), 8, {"src": RowMajor}, (1, 4)),
        ((64, 35), 8, {"src": RowMajor}, (1, 1)),
        ((66, 32), 4, {"src": ColMajor}, (2, 1)),
        ((64, sym("N", multiple_of=2)), 8, {"src": RowMajor}, (1, 2)),
        ((64, 32), 8, {"src": RowMajor(ld=34)}, (1, 2)),
        ((64, 32), 8, {"src": ColMajor(ld=sym("ld", multiple_of=4))}, (4, 1)),
    )
    for shape, width, layouts, wanted in cases:
        copy = Move.tile(32, 16).to(Block).load(SRC, SH, Move.coalesced_copy(width).done()).coalesced_copy(width).done()
        spec = Move(*shape, **layouts)(GL, GL)(Kernel)
        step = next(node for node in copy(spec).program().tree.nodes() if node.step is not None and node.step.verb == "coalesced_copy")
        (child,) = (node for _, node in step.children)
        assert tuple(constant(size) for size in child.spec.sizes) == wanted, (shape, layouts)


def test_coalesced_is_for_copies_of_groups():
    for wrong in (
        MatMul.tile(32, 32).to(Block).coalesced_copy(4),
        MatMul.tile(32, 32).to(Block).split(8).load(A, SH, Move.tile(1, 1).to(Thread).coalesced_copy(4)),
    ):
        with pytest.raises(DecompositionError, match="coalesced") as caught:
            _ = wrong(MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).program().tree
        assert "test_pipeline.py" in str(caught.value.at)
    with pytest.raises(DecompositionError, match="coalesced"):
        Move.coalesced_copy(0)


def test_converted_stages_in_the_type_of_the_destination():
    sizes = (64, 64, 64)
    for converted, dtype, size in ((True, float16, 2), (False, float32, 4)):
        strategy = ampere(stages=3)
        if not converted:
            store = Move.load(SRC, SH, Move.tile(32, 32).to(Warp).done()).pad(8).reuse_buffer().coalesced_copy(8).done()
            strategy = strategy.at(Epilog).replace(MatMul.epilog(RF, float32, Init.tile(32, 32).to(Warp).done(), store).steps[0])
        kernel = lowered(strategy, sizes, **FLOAT16)
        staged = next(buffer for buffer in kernel.buffers if buffer.name.startswith("store"))
        assert staged.dtype == dtype and staged.bytes == 64 * (64 + 8) * size
        require_exact(kernel, sizes)
    with pytest.raises(DecompositionError, match="cast_on_copy: the other factor of MatMul has no type with all numbers of float32"):
        _ = MatMul.tile(32, 32).to(Block).split(8).load(A, SH).cast_on_copy()(MatMul(64, 64, 64)(GL, GL, GL)(Kernel)).program().tree


@pytest.mark.parametrize(("elements", "iterations"), [(1, 64), (4, 16)])
def test_copies_of_many_iterations_are_loops(elements, iterations):
    """Up to sixteen iterations of a coalesced copy are unrolled; more remain a loop."""
    blocks = MatMul.tile(64, 64).to(Block).split(64).load(A, SH, Move.coalesced_copy(elements).done()).load(B, SH)
    strategy = blocks.tile(8, 8).to(Thread).split(1).tile(1, 1).done()
    text = strategy(MatMul(64, 64, 64, A=RowMajor, B=RowMajor)(GL, GL, GL)(Kernel)).program("sm_80").cuda
    copy = text[text.index("// A to a_sh") : text.index("// B to b_sh")]
    assert f"a_sh_m < {iterations}" in copy and ("#pragma unroll" in copy) == (iterations <= 16)


COPIED = "for (int number = 0; number < dst_registers; ++number) dst[number] = src_at(dst_m(number), dst_n(number));"


def test_registers_that_all_threads_fill_have_no_stages():
    """A block-level micro-kernel has one name for its registers, so each stage would be the first one."""

    def by_block(stages):
        chain = MatMul.tile(8, 8).to(Block).split(4).pipeline(stages).load(B, RF, Move.done(MicroKernel("copy", text=COPIED)))
        return chain.tile(1, 1).to(Thread).split(1).done()(MatMul(8, 8, 8)(GL, GL, GL)(Kernel))

    arrays = {name: np.arange(64, dtype=np.float32).reshape(8, 8) % 5 for name in "AB"}
    result = simulate(by_block(1).program("sm_75").lowered, arrays).outputs["C"]
    assert np.array_equal(result, arrays["A"] @ arrays["B"])
    with pytest.raises(FireironError, match=r"pipeline\(2\): copy fills b_rf with all threads of a Block"):
        by_block(2).cuda("sm_75")
