"""Scans across blocks in one pass: `look_back`, and linear recurrences within blocks and across them.

Oracles: NumPy in float64, `reference()` with error bounds, random schedules of blocks, the printed text on a CPU, the checks on planted faults.
"""

import functools
import random

import attrs
import numpy as np
import pytest
from own_file import drawn_and_exported, output_of
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron import draw, ir, predict
from fireiron.check import safety
from fireiron.errors import ArgumentError, DecompositionError, FireironError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.inspect.explain import explain
from fireiron.inspect.explain import text as explained
from fireiron.ir.look_back import looks_back
from fireiron.language.store import dumps, loads
from fireiron.measure.data import all_sizes
from fireiron.measure.rounding import expected
from fireiron.sim import simulate
from fireiron.values.expr import as_expr

needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
row = Move.tile(1, 64).to(Warp).tile(1, 1).to(Lane).done()
"""Two elements per lane, in two iterations of its warp."""

vectors = Move.tile(1, 64).to(Warp).tile(1, 2).to(Lane).done()
iterations = Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()


def sums(by="cumsum", **words):
    usual = {"name": "sums", "dims": "m n", "operands": {"X": "m n", "Y": "m n"}}
    return Fused(**{**usual, "body": {"scan": f"t[m,n] = {by}(n, X[m,n])", "out": "Y[m,n] = t[m,n]"}, **words})


def recurrence(**words):
    usual = {"name": "recurrence", "dims": "m n", "operands": {"A": "m n", "X": "m n", "Y": "m n"}}
    body = {"scan": "h[m,n] = linear_recurrence(n, A[m,n], X[m,n])", "out": "Y[m,n] = h[m,n]"}
    return Fused(**{**usual, "body": body, **words})


def of_block(definition, load=row):
    return definition.tile(m=1).to(Block).load("A", RF, load).load("X", RF, load).done()


def recurred(a, x):
    """h[n] = a[n] * h[n - 1] + x[n], in float64."""
    state, rows = np.zeros(x.shape[0]), []
    for factor, value in zip(a.T.astype(float), x.T.astype(float), strict=True):
        state = factor * state + value
        rows.append(state)
    return np.stack(rows, 1)


RUNNING = {"cumsum": np.cumsum, "cummax": np.maximum.accumulate, "cummin": np.minimum.accumulate, "cumprod": np.cumprod}


def numbers(m, n, dtype, by="cumsum", seed=0):
    generator = np.random.default_rng(seed)
    if by == "cumprod":
        return generator.choice([1, 1, 1, -1, 2] if dtype == int32 else [0.5, 1, 1, 2], (m, n)).astype(dtype.to_numpy())
    return generator.integers(-9, 10, (m, n)).astype(dtype.to_numpy())


@functools.cache
def program(kind, m, n, dtype=float32, rows=1, load=row):
    return bound_of(kind, m, n, dtype, rows, load).program("sm_80")


def bound_of(kind, m, n, dtype=float32, rows=1, load=row):
    definition = recurrence() if kind == "recurrence" else sums(kind, types={"t": dtype if dtype.bits >= 32 else float32})
    chain = definition.tile(m=rows, n=128).to(Block).look_back()
    for name in ("A", "X") if kind == "recurrence" else ("X",):
        chain = chain.load(name, RF, load)
    return chain.done()(definition(m=m, n=n, dtype=dtype))


def arrays_of(kind, m, n, dtype=float32):
    arrays = {"X": numbers(m, n, dtype, kind)}
    if kind == "recurrence":
        arrays["A"] = np.random.default_rng(7).uniform(0.5, 1.1, (m, n)).astype(dtype.to_numpy())
    return arrays


def wanted(kind, arrays):
    if kind == "recurrence":
        return recurred(arrays["A"], arrays["X"])
    with np.errstate(over="ignore"):
        return RUNNING[kind](arrays["X"], axis=1, **({"dtype": arrays["X"].dtype} if kind in ("cumsum", "cumprod") else {}))


def agrees(kind, got, arrays):
    right = wanted(kind, arrays)
    return np.allclose(got, right, rtol=1e-5, atol=1e-4) if kind == "recurrence" else np.array_equal(got, right)


# ---------------------------------------------------------------------------------------------- formulas


def test_a_recurrence_is_a_formula():
    definition = recurrence()
    assert eval(repr(definition)) == definition and "linear_recurrence(n, A[m,n], X[m,n])" in str(definition)
    a, x = np.full((1, 4), 0.5, np.float32), np.ones((1, 4), np.float32)
    assert definition(m=1, n=4, dtype=float32).reference(a, x).tolist() == [[1, 1.5, 1.75, 1.875]]


def test_expressions_and_factors_without_a_dimension_are_separate_steps():
    body = {"scan": "h[m,n] = linear_recurrence(n, exp(A[n]), X[m,n] * 2)", "out": "Y[m,n] = h[m,n]"}
    definition = recurrence(operands={"A": "n", "X": "m n", "Y": "m n"}, body=body)
    text = str(definition)
    assert "scan_factors[m,n] = exp(A[n])" in text and "scan_terms[m,n] = X[m,n] * 2" in text
    strategy = definition.tile(m=1).to(Block).load("X", RF, row).done()
    x = numbers(2, 100, float32)
    a = np.random.default_rng(0).uniform(-1, 0, 100).astype(np.float32)
    got = strategy(definition(m=2, n=100, dtype=float32)).compile("sm_80")(a, x)
    assert np.allclose(got, recurred(np.broadcast_to(np.exp(a), (2, 100)), 2 * x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("formula", "parts"),
    [
        ("h[m,n] = linear_recurrence(n, X[m,n])", ("expected ,",)),
        ("h[m,n] += linear_recurrence(n, A[m,n], X[m,n])", ("linear_recurrence needs the sign =",)),
        ("h[m,n] = linear_recurrence(n, A[m,n], 1)", ("linear_recurrence along n, but the value does not have n",)),
        ("h[m,n] = linear_recurrence(n, A[m,n], X[m,n]) + 1", ("expected the end",)),
        ("h[m,n] = 2 * linear_recurrence(n, A[m,n], X[m,n])", ("a scan must be the whole right side",)),
    ],
)
def test_refused_formulas(formula, parts):
    with pytest.raises(ArgumentError) as refused:
        recurrence(body={"scan": formula, "out": "Y[m,n] = h[m,n]"})
    assert all(part in str(refused.value) for part in parts), str(refused.value)


# ---------------------------------------------------------------------------------------------- within a block


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n", [1, 77, 256])
@pytest.mark.parametrize("load", [row, vectors, iterations, Move.tile(1, 8).to(Thread).tile(1, 1).unroll().done()])
def test_recurrences_of_a_block(n, load):
    """Elements of threads, lanes, iterations of a warp, warps: n is past the end of some of them."""
    if n < 64 and load is not row:
        pytest.skip("fewer elements than a tile of the load")
    definition = recurrence()
    arrays = arrays_of("recurrence", 2, n)
    kernel = of_block(definition, load)(definition(m=2, n=n, dtype=float32)).program("sm_80").ir
    assert agrees("recurrence", simulate(kernel, arrays).outputs["Y"], arrays)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [float16, float64], ids=str)
def test_types_of_recurrences(dtype):
    definition = recurrence(types={"h": float32} if dtype == float16 else {})
    arrays = arrays_of("recurrence", 1, 128, dtype)
    kernel = of_block(definition)(definition(m=1, n=128, dtype=dtype)).program("sm_80").ir
    got = simulate(kernel, arrays).outputs["Y"].astype(float)
    assert np.allclose(got, recurred(arrays["A"], arrays["X"]), rtol=2e-3 if dtype == float16 else 1e-12, atol=1e-2)


def test_error_bounds_of_a_recurrence():
    """The bound covers the parallel order, and is not much larger than the error of a long row."""
    definition = recurrence()
    spec = definition(m=1, n=2048, dtype=float32)
    generator = np.random.default_rng(1)
    arrays = {"A": generator.uniform(0.2, 1.0, (1, 2048)).astype(np.float32), "X": generator.standard_normal((1, 2048)).astype(np.float32)}
    bound = expected(spec, arrays, all_sizes(spec, {}), None)["Y"].error[0]
    loads_ = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()
    off = np.abs(of_block(definition, loads_)(spec).compile("sm_80")(arrays["A"], arrays["X"])[0] - recurred(arrays["A"], arrays["X"])[0])
    assert (off <= bound).all() and bound.max() < 1e-4


# ---------------------------------------------------------------------------------------------- across blocks

CASES = (
    ("cumsum", 3, 300, int32, 1), ("cumsum", 3, 300, float32, 2), ("cummax", 1, 257, float32, 1), ("cumprod", 1, 400, int32, 1),
    ("cumsum", 2, 384, float64, 1), ("recurrence", 2, 300, float32, 1), ("cumsum", 2, 100, float32, 1),
)  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("kind", "m", "n", "dtype", "rows"), CASES, ids=str)
def test_one_pass(kind, m, n, dtype, rows):
    """In the order of the blocks, and in random schedules, with equal results."""
    built, arrays = program(kind, m, n, dtype, rows), arrays_of(kind, m, n, dtype)
    assert not [finding for finding in safety(built.ir) if finding.severity == "error"]
    first = simulate(built.ir, arrays).outputs["Y"]
    assert agrees(kind, first, arrays)
    assert np.array_equal(first, simulate(built.ir, arrays, order=random.Random(n)).outputs["Y"])


def in_shared_memory(kind, m, n, copy=vectors):
    """A program whose tiles are in shared memory: the results follow from the elements there, which the block reads again."""
    definition = recurrence() if kind == "recurrence" else sums(kind)
    chain = definition.tile(m=1, n=128).to(Block).look_back()
    for name in ("A", "X") if kind == "recurrence" else ("X",):
        chain = chain.load(name, SH, copy)
    return chain.step("out", vectors).done()(definition(m=m, n=n, dtype=float32)).program("sm_80")


ASYNCHRONOUS = Move.tile(1, 64).to(Warp).tile(1, 2).to(Lane).done(CP_ASYNC[1])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "copy"), [("cumsum", vectors), ("recurrence", ASYNCHRONOUS), ("cummax", ASYNCHRONOUS)], ids=["0", "1", "2"]
)
def test_tiles_in_shared_memory(kind, copy):
    built, arrays = in_shared_memory(kind, 2, 300, copy), arrays_of(kind, 2, 300)
    assert f"float scan_{kind}_own" not in built.cuda and not [finding for finding in safety(built.ir) if finding.severity == "error"]
    for order in (None, random.Random(1)):
        assert agrees(kind, simulate(built.ir, arrays, order=order).outputs["Y"], arrays)
    assert parse_kernel(graphene_text(built)).cuda == built.cuda


def test_a_row_of_one_tile_in_shared_memory_is_read_once():
    assert "float scan_cumsum_own" in in_shared_memory("cumsum", 2, 100).cuda


def test_results_are_equal_in_all_orders():
    """Sums of floats whose order matters."""
    built = program("cumsum", 1, 384)
    x = np.random.default_rng(0).standard_normal((1, 384)).astype(np.float32) * 10.0 ** np.random.default_rng(1).integers(-3, 4, (1, 384))
    first, *others = (simulate(built.ir, {"X": x.astype(np.float32)}, order=order).outputs["Y"] for order in (None, random.Random(1)))
    assert all(np.array_equal(first, other) for other in others)


def test_iterations_of_all_threads():
    """A tile of which each thread has elements in several iterations of the block."""
    arrays = arrays_of("recurrence", 1, 300)
    again = Move.tile(1, 64).unroll().tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()
    definition = recurrence()
    chain = definition.tile(m=1, n=128).to(Block).look_back().load("A", RF, again).load("X", RF, again).done()
    built = chain(definition(m=1, n=300, dtype=float32)).program("sm_80")
    assert "in 2\n  //     iterations" in built.cuda and agrees("recurrence", simulate(built.ir, arrays).outputs["Y"], arrays)


def test_several_scans_and_later_steps():
    """Two scans of one definition publish in separate words, and elementwise steps follow."""
    body = {
        "a": "s[m,n] = cumsum(n, X[m,n])", "b": "u[m,n] = cummax(n, X[m,n])", "out": "Y[m,n] = s[m,n] - X[m,n] + 1000 * u[m,n]",
    }  # fmt: skip
    definition = sums(body=body)
    built = (
        definition.tile(m=1, n=128).to(Block).look_back().load("X", RF, row).done()(definition(m=2, n=300, dtype=float32)).program("sm_80")
    )
    x = numbers(2, 300, float32)
    got = simulate(built.ir, {"X": x}, order=random.Random(3)).outputs["Y"]
    assert np.array_equal(got, np.cumsum(x, 1) - x + 1000 * np.maximum.accumulate(x, 1))
    assert "a_words" in built.cuda and "b_words" in built.cuda


def test_batches_are_rows():
    definition = Fused(
        name="batches", dims="b m n", batch="b", operands={"X": "b m n", "Y": "b m n"},
        body={"scan": "t[m,n] = cumsum(n, X[b,m,n])", "out": "Y[b,m,n] = t[m,n]"},
    )  # fmt: skip
    chain = definition.tile(b=1, m=1, n=128).to(Block).look_back().load("X", RF, row).done()
    x = numbers(6, 200, float32).reshape(2, 3, 200)
    kernel = chain(definition(b=2, m=3, n=200, dtype=float32)).program("sm_80").ir
    assert np.array_equal(simulate(kernel, {"X": x}, order=random.Random(1)).outputs["Y"], np.cumsum(x, 2))


def test_sizes_known_at_run_time():
    definition = sums()
    spec = definition(m=sym("M"), n=sym("N", high=1 << 30), dtype=float32)
    built = definition.tile(m=1, n=128).to(Block).look_back().load("X", RF, row).done()(spec).program("sm_80")
    for m, n in ((1, 1), (2, 300)):
        x = numbers(m, n, float32)
        assert np.array_equal(simulate(built.ir, {"X": x}, {"M": m, "N": n}, order=random.Random(n)).outputs["Y"], np.cumsum(x, 1))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_texts_on_a_cpu(tmp_path):
    """Trees of one level and of two, with rows past the end; words are zero again after the launch."""
    cases = [("cumsum", 3, 128 * 3 + 5, float32, 2), ("recurrence", 1, 128 * 34, float32, 1)]
    built = [program(kind, m, n, dtype, rows) for kind, m, n, dtype, rows in cases]
    cases, built = [*cases, ("recurrence", 2, 300, float32, 1)], [*built, in_shared_memory("recurrence", 2, 300, ASYNCHRONOUS)]
    host = HostProgram([Printed.of(one) for one in built], tmp_path)
    for number, (kind, m, n, dtype, _) in enumerate(cases):
        arrays = arrays_of(kind, m, n, dtype)
        assert agrees(kind, host.run(number, arrays, {}, number)["Y"], arrays)


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_trees_of_three_levels_on_a_cpu(tmp_path):
    cases = [("cumsum", 1, 128 * 1030, int32, 1), ("cumsum", 1, 128 * 34, float64, 1), ("cummin", 2, 128 * 40, float32, 1)]
    built = [program(kind, m, n, dtype, rows) for kind, m, n, dtype, rows in cases]
    host = HostProgram([Printed.of(one) for one in built], tmp_path)
    for number, (kind, m, n, dtype, _) in enumerate(cases):
        arrays = arrays_of(kind, m, n, dtype)
        assert agrees(kind, host.run(number, arrays, {}, number)["Y"], arrays)


@needs_nvrtc
@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_nvrtc_compiles(target):
    for kind, m, n, dtype, rows in (CASES[1], CASES[2], CASES[4], CASES[5]):
        definition = program(kind, m, n, dtype, rows)
        compile_cuda(definition.cuda, target)
    compile_cuda(in_shared_memory("recurrence", 2, 300, ASYNCHRONOUS).cuda, target)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["cumsum", "recurrence"])
def test_values_and_notation(kind):
    built = program(kind, 2, 300)
    assert parse_kernel(graphene_text(built)).cuda == built.cuda
    definition = recurrence() if kind == "recurrence" else sums()
    strategy = definition.tile(m=1, n=128).to(Block).look_back().load("X", RF, row).done()
    assert eval(repr(strategy)) == strategy == Strategy.from_json(strategy.to_json())
    bound = strategy(definition(m=2, n=300, dtype=float32)) if kind == "cumsum" else None
    assert bound is None or loads(dumps(bound)) == bound


def test_a_row_of_one_tile_exchanges_nothing():
    text = program("cumsum", 2, 100).cuda
    assert "look_back(" not in text.split("{", 1)[1] and "workspace" not in text


def test_text():
    """Blocks are numbered in the order in which they start; each launch clears the words of the one before."""
    text = program("cumsum", 2, 300).cuda
    assert "const unsigned started = start_in_order(workspace, started_sh);" in text
    assert "const unsigned block_number = started & 0x7fffffff;" in text and "clear_words(workspace, started, dirty_words, 22);" in text
    assert "look_back(scan_words, scan_cumsum_tile, scan_cumsum_tiles_before, block_m, 1, block_n, 3);" in text
    assert "requires: workspace has" in text and "blockIdx" not in text


@pytest.mark.nightly
def test_what_users_inspect():
    definition = sums()
    bound = definition.tile(m=1, n=128).to(Block).look_back().load("X", RF, row).done()(definition(m=2, n=300, dtype=float32))
    built = bound.program("sm_80")
    assert explained(explain(bound, "sm_80")) and predict(built) and "cumsum(n, X[m,n])" in draw(built, "flow").svg


SOURCE = """
from fireiron import *

total = Fused(name="total", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"scan": "t[m,n] = cumsum(n, X[m,n])", "out": "Y[m,n] = t[m,n]"})
row = Move.tile(1, 64).to(Warp).tile(1, 2).to(Lane).done()
strategy = total.tile(m=1, n=128).to(Block).look_back().load("X", RF, row).done()(total(m=sym("M"), n=250))
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("command", "part", "options"),
    [
        ("show", "look_back()", ()),
        ("check", "no ", ()),
        ("run", "PASS", ("--simulate", "--size", "M=2")),
        ("cost", "DRAM", ("--size", "M=64")),
    ],
)
def test_commands(command, part, options, tmp_path, capsys):
    assert part in output_of(command, SOURCE, options, tmp_path, capsys)


@pytest.mark.nightly
def test_draw_and_export(tmp_path, capsys):
    assert "X" in drawn_and_exported(SOURCE, tmp_path, capsys)


# ---------------------------------------------------------------------------------------------- faults


def with_words(kernel, change):
    """The kernel with other coordinates of the words of its scan: `change` takes and returns the row and the tile."""

    def edit(stmt):
        if not (isinstance(stmt, ir.Exec) and looks_back(stmt)):
            return (stmt,)
        accesses = tuple(
            attrs.evolve(access, base=change(*access.base)) if access.buffer == stmt.operands["words"].buffer else access
            for access in stmt.accesses
        )
        return (attrs.evolve(stmt, accesses=accesses),)

    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, edit))


def without_exchange(kernel):
    return attrs.evolve(
        kernel, body=ir.rewritten(kernel.body, lambda stmt: () if isinstance(stmt, ir.Exec) and looks_back(stmt) else (stmt,))
    )


FAULTS = {
    "tiles in the opposite order": lambda kernel: with_words(kernel, lambda row, tile: (row, 2 - tile)),
    "one row for all": lambda kernel: with_words(kernel, lambda row, tile: (as_expr(0), tile)),
    "one tile for all": lambda kernel: with_words(kernel, lambda row, tile: (row, as_expr(0))),
    "no exchange": without_exchange,
    "blocks by their index": lambda kernel: attrs.evolve(kernel, workspace=None),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_found_by_a_check(name):
    kernel = FAULTS[name](program("cumsum", 2, 300).ir)
    assert any(finding.severity == "error" for finding in safety(kernel))


@pytest.mark.parametrize("name", ["tiles in the opposite order", "one tile for all"])
def test_faults_are_found_by_the_simulator(name):
    built, arrays = program("cumsum", 2, 300), arrays_of("cumsum", 2, 300)
    for order in (None, random.Random(1)):
        with pytest.raises(FireironError):
            simulate(FAULTS[name](built.ir), arrays, order=order)


@pytest.mark.nightly
def test_dropped_statements_are_found():
    """Each statement of the scan is needed: a check, the simulator or a wrong result reports its absence."""
    built, arrays = program("recurrence", 1, 256), arrays_of("recurrence", 1, 256)
    right = simulate(built.ir, arrays).outputs["Y"]
    count = sum(isinstance(stmt, ir.Exec) for stmt in ir.statements(built.ir.body))
    for number in random.Random(5).sample(range(count), 6):
        seen = iter(range(count))

        def drop(stmt, number=number, seen=seen):
            return () if isinstance(stmt, ir.Exec) and next(seen) == number else (stmt,)

        faulty = attrs.evolve(built.ir, body=ir.rewritten(built.ir.body, drop))
        if any(finding.severity == "error" for finding in safety(faulty)):
            continue
        try:
            outputs = [simulate(faulty, arrays, order=order).outputs["Y"] for order in (None, random.Random(1))]
        except FireironError:
            continue
        assert not all(np.array_equal(right, one) for one in outputs), number


# ---------------------------------------------------------------------------------------------- refusals


def refused(chain, spec):
    with pytest.raises(FireironError) as error:
        _ = chain(spec).program("sm_80").ir
    return str(error.value)


def test_refused_strategies():
    definition = sums()
    spec = definition(m=4, n=512, dtype=float32)
    text = refused(definition.tile(m=1, n=128).to(Block).look_back().persistent().load("X", RF, row).done(), spec)
    assert "look_back()" in text and "persistent" in text
    text = refused(definition.tile(m=4, n=128).to(Block).look_back().tile(m=1).to(Warp).load("X", RF, row).done(), spec)
    assert "a Warp scans its own rows" in text and "a scan by all threads of a block" in text
    normalized = sums(body={"scan": "t[m,n] = cumsum(n, X[m,n])", "sum": "s[m] = sum(n, X[m,n])", "out": "Y[m,n] = t[m,n] / s[m]"})
    text = refused(normalized.tile(m=1, n=128).to(Block).look_back().load("X", RF, row).done(), normalized(m=4, n=512, dtype=float32))
    assert "step sum reduces n, of which a block has one tile" in text and "compute s in another kernel" in text
    whole = recurrence(types={"h": int32})
    text = refused(of_block(whole), whole(m=1, n=128, dtype=int32))
    assert "a linear recurrence of integers" in text and "x * 1.0" in text


def test_look_back_without_a_scan_is_refused():
    text = refused(MatMul.tile(16, 16).to(Block).look_back().tile(1, 1).to(Thread).split(1).done(), MatMul(32, 32, 8)(GL, GL, GL)(Kernel))
    assert "look_back(): no step scans a dimension that the tile divides" in text and "remove .look_back()" in text


def test_tiles_without_look_back_name_it():
    definition = sums()
    with pytest.raises(DecompositionError, match=r"look_back\(\)"):
        _ = definition.tile(m=1, n=128).to(Block).load("X", RF, row).done()(definition(m=1, n=512, dtype=float32)).program("sm_80").ir
