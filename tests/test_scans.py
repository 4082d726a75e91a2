"""Scans: `cumsum cummax cummin cumprod` within threads, warps and blocks, in iterations, in chunks of a loop, and in three kernels.

Oracles: a loop over the elements in Python, `reference()` with error bounds, the race checks, shadow memory, the printed text on a CPU.
"""

import os
import random

import attrs
import numpy as np
import pytest
import scans
from faults import dropped
from own_file import drawn_and_exported, output_of
from printed_text import COMPILER, HostProgram, Printed
from scans import FORMS
from scans import draw as drawn_scan

from fireiron import *
from fireiron import draw, ir, predict
from fireiron.check import safety
from fireiron.errors import ArgumentError, DecompositionError, FireironError, SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.inspect.explain import explain
from fireiron.inspect.explain import text as explained
from fireiron.language.store import dumps, loads
from fireiron.measure.data import all_sizes
from fireiron.measure.rounding import expected
from fireiron.sim import simulate
from fireiron.specs.formula import formula_of
from fireiron.tune.record import describe, spec_of

SEED = 20261201
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
row = Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done()


def rows(by="cumsum", **words):
    usual = {"name": "scan", "dims": "m n", "operands": {"X": "m n", "Y": "m n"}}
    return Fused(**{**usual, "body": {"scan": f"t[m,n] = {by}(n, X[m,n])", "out": "Y[m,n] = t[m,n]"}, **words})


def by_block(definition=None):
    return (rows() if definition is None else definition).tile(m=1).to(Block).load("X", RF, row).done()


# ---------------------------------------------------------------------------------------------- formulas


@pytest.mark.parametrize("by", scans.OPERATIONS)
def test_texts_are_read_back(by):
    text = f"t[m,n] = {by}(n, X[m,n])"
    assert str(formula_of(text)) == text and str(formula_of(text.replace(" ", ""))) == text
    definition = rows(by)
    assert eval(repr(definition)) == definition and f"{by}(n, X[m,n])" in str(definition)
    assert formula_of(text).combiner == by.removeprefix("cum") and not formula_of(text).copies and not formula_of(text).pointwise


def test_terms_are_a_separate_step():
    assert "scan_terms[m,n] = exp(X[m,n])" in str(rows(body={"scan": "t[m,n] = cumsum(n, exp(X[m,n]))", "out": "Y[m,n] = t[m,n]"}))


@pytest.mark.parametrize(
    ("formula", "parts"),
    [
        ("t[m,n] += cumsum(n, X[m,n])", ("cumsum needs the sign =, not +=", "add the old value in a later step")),
        ("t[m] = cumsum(n, X[m,n])", ("cumsum along n, but the result does not have n",)),
        ("t[m,n] = cumsum(m, X[n])", ("cumsum along m, but the value does not have m",)),
        ("t[m,n] = cumsum(n, X[m,n]) * 2", ("expected the end",)),
        ("t[m,n] = 2 * cumsum(n, X[m,n])", ("unknown function 'cumsum'", "a scan must be the whole right side")),
        ("t[m,n] = cumsum(X[m,n])", ("expected ,",)),
    ],
)
def test_refused_formulas(formula, parts):
    with pytest.raises(ArgumentError) as refused:
        rows(body={"scan": formula, "out": "Y[m,n] = t[m,n]"})
    assert all(part in str(refused.value) for part in parts), str(refused.value)


@pytest.mark.parametrize("role", ["scan", "batch"])
def test_a_scan_along_single_elements_is_refused(role):
    with pytest.raises(ArgumentError, match="step scan scans n, but steps have only one element of n at a time"):
        rows(**{role: "n"})


def test_chunks_without_a_carried_sum_are_found():
    with pytest.raises(ArgumentError, match="Y depends on the number of elements of n per iteration"):
        rows(loop="n").check()


# ---------------------------------------------------------------------------------------------- kernels


@pytest.mark.parametrize("form", FORMS)
def test_generated_scans(form):
    for seed in range(SEED, SEED + 2 * SCALE):
        case, _ = drawn_scan(seed, form)
        assert not (objection := scans.objection(case, seed)), objection + scans.program_to_paste(case)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_texts_on_a_cpu(tmp_path):
    forms = FORMS if SCALE > 1 else ("several rows", "block", "iterations")
    cases = [drawn_scan(SEED + 50 + number, form)[0] for number, form in enumerate(forms)]
    host = HostProgram([Printed.of(case.program) for case in cases], tmp_path)
    for number, case in enumerate(cases):
        objection = scans.objection(case, number, lambda arrays, sizes, number=number: host.run(number, arrays, sizes, number))
        assert not objection, objection + scans.program_to_paste(case)


def test_generated_definitions_are_values():
    for seed in range(SEED, SEED + 6 * SCALE):
        case, _ = drawn_scan(seed)
        bound = case.strategy(case.bound)
        assert loads(dumps(bound)) == bound and eval(repr(bound.spec)) == case.bound and spec_of(describe(case.bound)) == case.bound
        assert parse_kernel(graphene_text(case.program)).cuda == case.program.cuda


@pytest.mark.nightly
def test_generator_covers_all_features():
    wanted = {
        *FORMS,
        *scans.OPERATIONS,
        scans.RECURRENCE,
        "float32",
        "float16",
        "bfloat16",
        "int32",
        "after a step",
        "placed",
        "ragged",
        "symbolic",
        "symbolic length",
    }
    for seed in range(SEED, SEED + 150):
        wanted -= drawn_scan(seed)[0].features
        if not wanted:
            return
    raise AssertionError(f"never drawn: {wanted}")


def test_stages_of_a_block():
    """Elements of a thread, lanes by shuffles, warps through shared memory with one barrier."""
    text = by_block()(rows()(m=3, n=512, dtype=float32)).cuda("sm_80")
    assert "Scan(1,512)(RF,RF)(Block): of 4 elements in each thread, over 32 lanes by shuffles, over 4 partial results in" in text
    assert text.count("__shfl_up_sync(") == 6 and text.count("__syncthreads();") == 1


def test_a_row_of_a_warp_needs_no_shared_memory():
    chain = rows().tile(m=4).to(Block).tile(m=1).to(Warp).load("X", RF, Move.tile(1, 4).to(Lane).done()).done()
    text = chain(rows()(m=8, n=128)).cuda("sm_80")
    assert "no shared memory" in text and "__syncthreads" not in text


@needs_nvrtc
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_nvrtc_compiles(target):
    compile_cuda(by_block()(rows()(m=3, n=500)).cuda(target), target)


def test_what_users_inspect():
    bound = by_block()(rows()(m=3, n=500))
    program = bound.program("sm_80")
    assert explained(explain(bound, "sm_80")) and predict(program) and "cumsum(n, X[m,n])" in draw(program, "flow").svg


SOURCE = """
from fireiron import *

total = Fused(name="total", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"scan": "Y[m,n] = cumsum(n, X[m,n])"})
row = Move.tile(1, 64).to(Warp).tile(1, 2).to(Lane).done()
strategy = total.tile(m=1).to(Block).load("X", RF, row).done()(total(m=sym("M"), n=250))
"""


@pytest.mark.parametrize(
    ("command", "wanted", "options"),
    [
        ("show", "cumsum(n, X[m,n])", ()),
        ("check", "no ", ()),
        ("run", "PASS", ("--simulate", "--size", "M=3")),
        ("cost", "DRAM", ("--size", "M=64")),
    ],
)
def test_commands(command, wanted, options, tmp_path, capsys):
    assert wanted in output_of(command, SOURCE, options, tmp_path, capsys)


def test_draw_and_export(tmp_path, capsys):
    assert "X" in drawn_and_exported(SOURCE, tmp_path, capsys)


def test_three_kernels():
    """A row of several blocks: sums of tiles, a scan of these sums, and a scan of each tile that starts at the sum before it."""
    sums = Fused(
        name="tile_sums", dims="r b n", batch="r", operands={"X": "r b n", "S": "r b"}, types={"S": float32},
        body={"sum": "s[b] = sum(n, X[r,b,n])", "out": "S[r,b] = s[b]"},
    )  # fmt: skip
    starts = Fused(
        name="starts", dims="r b", operands={"S": "r b", "F": "r b"}, types={"S": float32, "F": float32},
        body={"scan": "t[r,b] = cumsum(b, S[r,b])", "out": "F[r,b] = t[r,b] - S[r,b]"},
    )  # fmt: skip
    tiles = Fused(
        name="tiles", dims="r b n", batch="r", operands={"X": "r b n", "F": "r b", "Y": "r b n"}, types={"F": float32},
        body={"scan": "t[b,n] = cumsum(n, X[r,b,n])", "out": "Y[r,b,n] = t[b,n] + F[r,b]"},
    )  # fmt: skip
    sizes = {"r": 2, "b": 5, "n": 256}

    def of_tile(definition):
        return definition.tile(r=1, b=1).to(Block).load("X", RF, row).done()(definition(**sizes))

    warp = Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()
    kernels = {
        "sums": of_tile(sums),
        "starts": starts.tile(r=1).to(Block).load("S", RF, warp).done()(starts(r=2, b=5)),
        "tiles": of_tile(tiles),
    }
    graph = KernelGraph("long_scan", kernels, {"starts": "sums", "tiles.F": "starts.F", "tiles.X": "sums.X"})
    x = np.random.default_rng(0).standard_normal((2, 5, 256)).astype(np.float16)
    y = graph.compile("sm_80")(x)
    np.testing.assert_allclose(y.reshape(2, -1).astype(float), np.cumsum(x.reshape(2, -1).astype(float), 1), rtol=2e-3, atol=0.04)


# ---------------------------------------------------------------------------------------------- bounds


def test_bounds_grow_along_the_row():
    """The error bound of an element covers every order of the elements up to it, but not those after it."""
    spec = rows()(m=1, n=512, dtype=float32)
    x = np.random.default_rng(1).standard_normal((1, 512)).astype(np.float32)
    x[:, 400] = 1e8
    bound = expected(spec, {"X": x}, all_sizes(spec, {}), None)["Y"].error[0]
    off = np.abs(by_block()(spec).compile("sm_80")(x)[0] - np.cumsum(x[0].astype(np.float64)))
    assert (off <= bound).all() and bound[399] < 1e-2 < 1 < bound[400] and (np.diff(bound[:400]) >= -1e-4).all()


@pytest.mark.parametrize("by", ["cumsum", "cummax", "cumprod"])
def test_integers_are_exact(by):
    """Partial sums and products wrap around in 32 bits."""
    definition = rows(by, types={"t": int32})
    x = np.random.default_rng(2).integers(-(2**31), 2**31, (2, 300)).astype(np.int32)
    got = by_block(definition)(definition(m=2, n=300, dtype=int32)).compile("sm_80")(x)
    case = scans.Drawn(definition, None, None, {}, set(), by, 0)
    assert np.array_equal(got, scans.expected(case, {"X": x}))


def test_integers_past_the_end_of_a_chunk_are_exact():
    """Terms that replace values past the end have the type of the integers: a float32 has 24 bits."""
    definition = Fused(
        name="largest", dims="m n", loop="n", operands={"X": "m n", "y": "m"}, types={"t": int32, "p": int32},
        init={"t0": "t[m] = -2147483648"}, body={"part": "p[m] = max(n, X[m,n])", "join": "t[m] = max(t[m], p[m])"},
        final={"out": "y[m] = t[m]"},
    )  # fmt: skip
    x = (2**30 + np.arange(2 * 37).reshape(2, 37)).astype(np.int32)
    chain = definition.tile(m=1).to(Block).split(n=32).load("X", RF, Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()).done()
    assert chain(definition(m=2, n=37, dtype=int32)).compile("sm_80")(x).tolist() == x.max(1).tolist()


# ---------------------------------------------------------------------------------------------- faults


def reported(kernel, arrays, right):
    """Whether a check or the simulator reports a kernel, or its outputs differ."""
    if any(finding.severity == "error" for finding in safety(kernel)):
        return True
    for order in (None, random.Random(1), random.Random(2)):
        try:
            outputs = simulate(kernel, arrays, order=order).outputs
        except (SimulationError, FireironError):
            return True
        if any(not np.array_equal(outputs[name], right[name], equal_nan=True) for name in right):
            return True
    return False


def test_faults_are_found():
    """A dropped barrier, and each dropped statement of the scan."""
    program = by_block()(rows()(m=2, n=512, dtype=float32)).program("sm_80")
    arrays = {"X": np.random.default_rng(3).standard_normal((2, 512)).astype(np.float32)}
    right = simulate(program.ir, arrays).outputs
    assert all(reported(kernel, arrays, right) for _, kernel in dropped(program.ir))
    statements = [stmt for stmt in ir.statements(program.ir.body) if isinstance(stmt, ir.Exec)]
    for number, stmt in enumerate(statements):
        seen = []

        def drop(statement, number=number, seen=seen):
            seen += [statement] if isinstance(statement, ir.Exec) else []
            return () if isinstance(statement, ir.Exec) and len(seen) - 1 == number else (statement,)

        faulty = attrs.evolve(program.ir, body=ir.rewritten(program.ir.body, drop))
        assert reported(faulty, arrays, right), stmt


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (
            lambda: rows().tile(m=1, n=128).to(Block).done()(rows()(m=2, n=512)),
            ("tile(n=128): n is a reduction dimension", "tile(n=512), the whole dimension", "tile(n=128).to(Block).look_back()"),
        ),
        (lambda: by_block()(rows()(m=2, n=512, dtype=int32)), ("a scan of int32 with a result in float32", "types={'t': int32}")),
        (lambda: by_block(rows(types={"t": int32}))(rows(types={"t": int32})(m=2, n=512)), ("a scan of float16 with a result in int32",)),
        (lambda: by_block(rows(types={"t": int64}))(rows(types={"t": int64})(m=2, n=512, dtype=int64)), ("a scan of int64", "int32(X[...])")),
        (
            lambda: rows().tile(m=1).to(Block).load("X", RF, Move.tile(1, 1).to(Lane).done()).step("scan", AnySpec.split(4).done()).done()(rows()(m=2, n=64)),
            ("split(4): Scan is a scan, whose iterations depend on each other", "loop="),
        ),
    ],
    ids=["tiles", "integers to floats", "floats to integers", "int64", "split"],
)  # fmt: skip
def test_refused_strategies(make, parts):
    with pytest.raises(DecompositionError) as refused:
        _ = make().program("sm_80").ir
    assert all(part in str(refused.value) for part in parts), str(refused.value)


@pytest.mark.parametrize(("by", "combine"), [("cumsum", np.cumsum), ("cumprod", np.cumprod), ("cummax", np.maximum.accumulate)])
@pytest.mark.parametrize("dtype", [float32, int32], ids=str)
def test_reference_of_a_spec(by, combine, dtype):
    values = np.random.default_rng(0).integers(-3, 4, (3, 5)).astype(dtype.to_numpy())
    got = Scan(3, 5, by=by, dtype=dtype)(RF, RF)(Warp).reference(values)
    np.testing.assert_array_equal(got, combine(values, axis=1))
