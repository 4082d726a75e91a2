"""Outputs that are written by tables: `Y[rows[m],n] = ...`, with distinct indices; elements by other numbers are dropped."""

import random

import attrs
import numpy as np
import pytest
from own_file import drawn_and_exported, output_of
from test_indirect import COPY, LOOP, PRODUCER, elements, fused, inputs_of, require_right
from test_indirect import WGMMA as BY_WGMMA

from fireiron import *
from fireiron.check import safety
from fireiron.errors import ArgumentError, FireironError, SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import execs, rewritten
from fireiron.language.store import dumps, loads
from fireiron.sim import memory as sim_memory
from fireiron.sim import simulate
from fireiron.tune.record import describe, spec_of
from fireiron.values.expr import all_of, conjuncts

SCATTERED = Fused(
    name="scattered", dims="m n r", operands={"X": "m n", "rows": "m", "Y": "r n"}, body={"o": "Y[rows[m],n] = X[m,n] * 2"}, distinct="rows"
)
MOE = Fused(
    name="moe_rows", dims="m n k r", operands={"A": "r k", "rows": "m", "B": "k n", "to": "m", "Y": "r n"},
    body={"mm": "acc[m,n] = sum(k, A[rows[m],k] * B[k,n])", "o": "Y[to[m],n] = acc[m,n]"}, distinct="to",
)  # fmt: skip
CACHE = Fused(
    name="append", dims="b n d page slot t", operands={"X": "b n d", "table": "b t", "K": "page slot d"}, batch="b",
    body={"o": "K[table[b,n // 16],n % 16,d] = X[b,n,d]"}, distinct="table",
)  # fmt: skip


def numbers(count, extent, seed=0):
    """Distinct indices; some numbers are not indices."""
    values = np.random.default_rng(seed).permutation(extent)[:count].astype(np.int32)
    values[::4], values[1::7] = -1, extent + 5
    return values


def kept(extent, columns):
    return np.full((extent, columns), 7, np.float16)


def by_numpy(rows, values, out):
    for row, value in zip(rows, values, strict=True):
        if 0 <= row < len(out):
            out[row] = value
    return out


CASES = {
    "elements": elements(SCATTERED, 4, 32),
    "vectors": SCATTERED.tile(m=8, n=64).to(Block).load("X", RF, Move.tile(1, 8).to(Thread).done()).done(),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("symbolic", [False, True], ids=["fixed", "run time"])
def test_right(name, symbolic):
    spec = SCATTERED(m=sym("M") if symbolic else 10, n=64, r=sym("R") if symbolic else 20)
    bound = CASES[name](spec)
    program, sizes = bound.program("sm_80"), {"M": 10, "R": 20} if symbolic else {}
    assert safety(program.lowered) == ()
    x, rows = np.random.default_rng(0).standard_normal((10, 64)).astype(np.float16), numbers(10, 20)
    want = by_numpy(rows, 2 * x.astype(float), kept(20, 64).astype(float))
    for order in (None, random.Random(1)):
        got = simulate(program.ir, {"X": x, "rows": rows, "Y": kept(20, 64)}, sizes, order=order).outputs["Y"]
        require_right(got, want)
    out = kept(20, 64)
    require_right(bound.compile("sm_80")(x, rows, out=out, **({"R": 20} if symbolic else {})), want)
    if not symbolic:
        require_right(spec.reference(x, rows), by_numpy(rows, 2 * x.astype(float), np.zeros((20, 64))))
    assert "uint4" in program.cuda or name != "vectors"


@pytest.mark.parametrize("name", CASES)
def test_texts(name):
    spec = SCATTERED(m=10, n=64, r=20)
    bound = CASES[name](spec)
    program = bound.program("sm_80")
    assert eval(repr(SCATTERED)) == SCATTERED and eval(repr(spec)) == spec and "rows[m] distinct" in str(SCATTERED)
    assert loads(dumps(bound)) == bound and spec_of(describe(spec)) == spec
    assert parse_kernel(graphene_text(program)).cuda == program.cuda


@pytest.mark.parametrize(
    ("loop", "target", "tile"),
    [(LOOP, "sm_80", {"m": 64, "n": 64}), (BY_WGMMA, "sm_90a", {"m": 128, "n": 64}), (PRODUCER, "sm_90a", {"m": 128, "n": 64})],
    ids=["mma", "wgmma", "producer"],
)
def test_experts(loop, target, tile):
    """Rows are gathered, multiplied and scattered in one kernel."""
    spec = MOE(m=200, n=128, k=128, r=250)
    program = MOE.tile(**tile).to(Block).step("mm", loop).done()(spec).program(target)
    assert safety(program.lowered) == ()
    arrays = inputs_of(spec) | {"to": numbers(200, 250)}
    product = arrays["A"][arrays["rows"]].astype(float) @ arrays["B"].astype(float)
    want = by_numpy(arrays["to"], product, np.zeros((250, 128)))
    require_right(simulate(program.ir, {**arrays, "Y": np.zeros((250, 128), np.float16)}).outputs["Y"], want)
    if toolchains():
        report = compile_cuda(program.cuda, target).resources[program.name]
        assert report.spill_stores == report.stack_frame == 0


def test_pages():
    """Keys are appended to a cache: a page and a place in it."""
    spec = CACHE(b=2, n=40, d=64, page=9)
    program = CACHE.tile(b=1, n=32).to(Block).step("o", COPY).done()(spec).program("sm_80")
    assert safety(program.lowered) == () and "uint4" in program.cuda
    x = np.random.default_rng(0).standard_normal((2, 40, 64)).astype(np.float16)
    table = np.random.default_rng(1).permutation(9)[:6].reshape(2, 3).astype(np.int32)
    table[1, 1] = -1
    got = simulate(program.ir, {"X": x, "table": table, "K": np.zeros((9, 16, 64), np.float16)}).outputs["K"]
    want = np.zeros((9, 16, 64), np.float16)
    for b, page in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 2)):
        part = x[b, 16 * page : 16 * page + 16]
        want[table[b, page], : len(part)] = part
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(spec.reference(x, table), want)


def test_digits_of_outputs():
    """Rows are written by pages without a table; elements of the last page past the end keep their values."""
    split = Fused(name="split", dims="n d p s", operands={"X": "n d", "Y": "p s d"}, body={"o": "Y[n // 8,n % 8,d] = X[n,d]"})
    kernel = elements(split, 4, 32)(split(n=20, d=32)).compile("sm_80")
    x, out = np.random.default_rng(0).standard_normal((20, 32)).astype(np.float16), np.full((3, 8, 32), 7, np.float16)
    kernel(x, out=out)
    np.testing.assert_array_equal(out.reshape(24, 32), np.concatenate([x, np.full((4, 32), 7, np.float16)]))
    with pytest.raises(ArgumentError, match="writes only the elements of Y"):
        kernel(x)


# ---------------------------------------------------------------------------------------------- data


def test_equal_indices_are_found(monkeypatch):
    """The simulator refuses them, and without this test its race detector finds two threads that write one element."""
    program = CASES["elements"](SCATTERED(m=10, n=64, r=20)).program("sm_80")
    arrays = inputs_of(program.spec)
    arrays |= {"rows": np.arange(10, dtype=np.int32), "Y": np.zeros((20, 64), np.float16)}
    simulate(program.ir, arrays)
    arrays["rows"][7] = 2
    with pytest.raises(SimulationError, match=r"rows\[2\] and rows\[7\] are both 2"):
        simulate(program.ir, arrays)
    monkeypatch.setattr(sim_memory, "_check_distinct", lambda *_: None)
    arrays["rows"][:] = range(10)
    arrays["rows"][3] = 2  # of the same block
    with pytest.raises(SimulationError, match="race on Y"):
        simulate(program.ir, arrays)


def test_random_indices_are_distinct():
    for seed in range(3):
        rows = inputs_of(SCATTERED(m=10, n=8, r=12), seed=seed)["rows"]
        inside = rows[(rows >= 0) & (rows < 12)]
        assert len(set(inside)) == len(inside) >= 5
    few = inputs_of(SCATTERED(m=10, n=8, r=4))["rows"]
    assert sorted(few[few >= 0]) == [0, 1, 2, 3]


def test_outputs_are_given():
    kernel = CASES["elements"](SCATTERED(m=10, n=64, r=20)).compile("sm_80")
    arrays = inputs_of(SCATTERED(m=10, n=64, r=20))
    with pytest.raises(ArgumentError, match="writes only the elements of Y that its indices name"):
        kernel(*arrays.values())


# ---------------------------------------------------------------------------------------------- injected faults


def test_unguarded_writes_are_found():
    """Without its condition, a write is reported by the check; the simulator finds it if a number is not an index."""
    program = CASES["elements"](SCATTERED(m=10, n=64, r=20)).program("sm_80")
    kernel = program.lowered
    assert any("rows" in str(stmt.guard) for stmt, _ in execs(kernel.body))

    def without(stmt):
        if not hasattr(stmt, "guard"):
            return (stmt,)
        return (attrs.evolve(stmt, guard=all_of(part for part in conjuncts(stmt.guard) if "rows" not in str(part))),)

    bare = attrs.evolve(kernel, body=rewritten(kernel.body, without))
    assert any("is written without the condition" in finding.message for finding in safety(bare))
    arrays = inputs_of(program.spec) | {"rows": numbers(10, 20), "Y": np.zeros((20, 64), np.float16)}
    with pytest.raises(SimulationError, match="by rows"):
        simulate(bare, arrays)


def test_clamped_writes_are_found():
    """A write that is clamped, as a read is, changes a row that nothing names."""
    kernel = CASES["elements"](SCATTERED(m=10, n=64, r=20)).program("sm_80").lowered
    buffers = []
    for buffer in kernel.buffers:
        tables = tuple(attrs.evolve(table, drops=False) for table in buffer.storage.tables)
        buffers.append(attrs.evolve(buffer, storage=attrs.evolve(buffer.storage, tables=tables)))
    messages = [finding.message for finding in safety(attrs.evolve(kernel, buffers=tuple(buffers)))]
    assert any("its elements are written whatever the numbers in rows are" in message for message in messages)


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fused("A[rows[m],k] = Y[m,k]"), 'distinct="rows"'),
        (lambda: fused("A[rows[m],k] = Y[m,k]", distinct="columns"), "distinct are tables by which outputs are written"),
        (lambda: fused("Y[m,k] = A[rows[m],k]", distinct="rows"), "distinct are tables by which outputs are written"),
        (lambda: fused("A[rows[m // 2],k] = Y[m,k]", distinct="rows"), "its indices do not determine m"),
        (lambda: fused("Y[m // 2,k] = A[rows[m],k]"), "its indices do not determine m"),
        (
            lambda: fused("A[rows[m],k] = A[rows[m],k] + 1", operands={"A": "r k", "rows": "m"}, distinct="rows"),
            "A is not an operand, and no step writes it",
        ),
    ],
)
def test_refusals(make, message):
    with pytest.raises(FireironError) as caught:
        make()
    assert message in str(caught.value)


def test_stores_by_tma_are_refused():
    """TMA stores whole tiles; the store falls back to threads, or is refused if the strategy names TMA."""
    store = Move.done(TMA_STORE)
    strategy = MOE.tile(m=64, n=64).to(Block).step("mm", BY_WGMMA).step("o", store).done()
    with pytest.raises(FireironError):
        strategy(MOE(m=64, n=64, k=64, r=64)).cuda("sm_90a")


SOURCE = """
from fireiron import *

scattered = Fused(
    name="scattered", dims="m n r", operands={"X": "m n", "rows": "m", "Y": "r n"}, body={"o": "Y[rows[m],n] = X[m,n]"}, distinct="rows"
)
strategy = scattered.tile(m=8, n=64).to(Block).step("o", Move.coalesced_copy(8).done()).done()(scattered(m=sym("M"), n=64, r=sym("R")))
"""

COMMANDS = {
    "show": ("Y float16 RowMajor at [rows[m],n]", ()),
    "check": ("Y written by Move", ()),
    "explain": ("performed by Move", ()),
    "cost": ("DRAM", ("--size", "M=4096", "--size", "R=4096")),
    "run": ("PASS", ("--simulate", "--size", "M=70", "--size", "R=83")),
    "emit": ("min((unsigned)rows[", ()),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command, tmp_path, capsys):
    wanted, options = COMMANDS[command]
    assert wanted in output_of(command, SOURCE, options, tmp_path, capsys)


def test_draw_and_export(tmp_path, capsys):
    header = drawn_and_exported(SOURCE, tmp_path, capsys)
    assert "elements by other numbers are not written" in header
