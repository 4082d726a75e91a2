"""Indirect operands: digits of coordinates and elements of tables as indices, against NumPy's own indexing.

Kernels are simulated, checked, and compiled for sm_80 and sm_90a. Injected faults are found by a check or by the simulator.
"""

import random
import re

import attrs
import numpy as np
import pytest
from own_file import drawn_and_exported, output_of

from fireiron import *
from fireiron.check import check, safety
from fireiron.errors import ArgumentError, DecompositionError, FireironError, SimulationError, VerificationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import verify
from fireiron.language.store import dumps, loads
from fireiron.measure.data import random_inputs
from fireiron.measure.rounding import expected
from fireiron.sim import simulate
from fireiron.specs.fused import as_direct
from fireiron.specs.indirect import table_extents
from fireiron.tune.record import describe, spec_of
from fireiron.values.notation import parse_tensor, tensor_text
from fireiron.values.notation.words import symbols_of as symbols_of_text

COPY, FRAGMENTS, VECTOR = Move.coalesced_copy(8).done(), Move.done(), Move.tile(1, 8).to(Thread).done()
MMA = MatMul.tile(16, 16).unroll().mma_tile().done()
LOOP = (
    MatMul.split(32).pipeline(3).load(A, SH, COPY).swizzle_storage().load(B, SH, COPY).swizzle_storage()
    .tile(32, 32).to(Warp).split(16).unroll().load(A, RF, FRAGMENTS).load(B, RF, FRAGMENTS).then(MMA)
)  # fmt: skip
WGMMA = MatMul.split(32).pipeline(3).load(A, SH, COPY).load(B, SH, COPY).tile(64, 64).to(Warpgroup).done()
PRODUCER = (
    MatMul.split(32).pipeline(3).warp_specialize(128, copies=True).load(A, SH, COPY).load(B, SH, COPY).tile(64, 64).to(Warpgroup).done()
)

SCALED = Fused(name="scaled", dims="n k q", operands={"X": "n k", "S": "n q", "Y": "n k"}, body={"o": "Y[n,k] = X[n,k] * S[n,k // 64]"})
CYCLED = Fused(name="cycled", dims="m k c", operands={"X": "m k", "w": "c", "Y": "m k"}, body={"o": "Y[m,k] = X[m,k] * w[k % 8]"})
PACKED = Fused(
    name="packed", dims="n k w", operands={"P": "n w", "Y": "n k"}, types={"P": int32},
    body={"o": "Y[n,k] = ((P[n,k // 8] >> (k % 8 * 4)) & 15) - 8"},
)  # fmt: skip
GATHERED = Fused(name="gathered", dims="m k r", operands={"A": "r k", "rows": "m", "Y": "m k"}, body={"o": "Y[m,k] = A[rows[m],k]"})
PROMISED = Fused(
    name="promised", dims="m k r", operands={"A": "r k", "rows": "m", "Y": "m k"}, body={"o": "Y[m,k] = A[rows[m],k]"},
    ranges={"rows": "0 <= rows < r"},
)  # fmt: skip
GEMM = Fused(
    name="gathered_gemm", dims="m n k r", operands={"A": "r k", "rows": "m", "B": "k n", "C": "m n"},
    body={"mm": "acc[m,n] = sum(k, A[rows[m],k] * B[k,n])", "o": "C[m,n] = acc[m,n]"},
)  # fmt: skip
PAGED = Fused(
    name="paged", dims="b n d page slot t", operands={"K": "page slot d", "table": "b t", "Y": "b n d"}, batch="b",
    body={"o": "Y[b,n,d] = K[table[b,n // 16],n % 16,d]"},
)  # fmt: skip
CHECKED = Fused(
    name="checked", dims="m k r", operands={"A": "r k", "rows": "m", "Y": "m k"},
    body={"o": "Y[m,k] = where(rows[m] < 5, A[rows[m],k], 0)"},
)  # fmt: skip


def elements(start, *sizes):
    """A tile of a block, and one element per thread."""
    dims = start.fused_definition.tile_dims
    tile = dict(zip(dims, sizes, strict=True))
    return start.tile(**tile).to(Block).tile(**dict.fromkeys(dims, 1)).to(Thread).done()


CASES = {
    "element loads of scales": (elements(SCALED, 4, 64), SCALED, {"n": 7, "k": 250}),
    "scales in shared memory": (SCALED.tile(n=4, k=256).to(Block).load("S", SH).tile(n=1, k=8).to(Thread).done(), SCALED, {"n": 8, "k": 512}),
    "scales by vectors": (
        SCALED.tile(n=4, k=256).to(Block).load("S", SH, Move.coalesced_copy(4).done()).load("X", RF, VECTOR).tile(n=1, k=8).to(Thread).done(),
        SCALED, {"n": 8, "k": 512},
    ),
    "scales in registers": (
        SCALED.tile(n=4, k=256).to(Block).load("S", RF).load("X", RF, VECTOR).tile(n=1, k=8).to(Thread).done(), SCALED, {"n": 8, "k": 512}
    ),
    "part of a group per tile": (SCALED.tile(n=4, k=32).to(Block).load("S", SH).tile(n=1, k=4).to(Thread).done(), SCALED, {"n": 5, "k": 200}),
    "packed words": (elements(PACKED, 4, 64), PACKED, {"n": 5, "k": 200}),
    "packed words in shared memory": (
        PACKED.tile(n=4, k=64).to(Block).load("P", SH, Move.coalesced_copy(4).done()).tile(n=1, k=8).to(Thread).done(), PACKED, {"n": 5, "k": 200}
    ),
    "remainder": (elements(CYCLED, 4, 32), CYCLED, {"m": 5, "k": 70}),
    "rows": (elements(GATHERED, 4, 64), GATHERED, {"m": 10, "k": 64, "r": 20}),
    "rows by vectors": (
        GATHERED.tile(m=8, k=64).to(Block).step("o", COPY).done(), GATHERED, {"m": 10, "k": 64, "r": 20}
    ),
    "promised rows": (elements(PROMISED, 4, 64), PROMISED, {"m": 10, "k": 64, "r": 20}),
    "rows that a formula reads": (elements(CHECKED, 4, 32), CHECKED, {"m": 10, "k": 64, "r": 20}),
    "gathered GEMM": (GEMM.tile(m=64, n=64).to(Block).step("mm", LOOP).done(), GEMM, {"m": 100, "n": 128, "k": 96, "r": 50}),
    "pages": (
        PAGED.tile(b=1, n=32).to(Block).load("K", SH, COPY).step("o", COPY).done(), PAGED, {"b": 2, "n": 70, "d": 64, "page": 9}
    ),
}  # fmt: skip


def inputs_of(spec, sizes=None, seed=0):
    return random_inputs(spec, sizes or {}, np.random.default_rng(seed))


def by_numpy(spec, arrays):
    """The result, with NumPy's own indexing."""
    name = spec.title
    wide = {key: np.asarray(value, np.int64 if value.dtype.kind == "i" else np.float64) for key, value in arrays.items()}
    if name == "scaled":
        columns = wide["X"].shape[1]
        return wide["X"] * np.repeat(wide["S"], 64, axis=1)[:, :columns]
    if name == "packed":
        columns = np.arange(int(spec.operands["Y"].shape[1].high))
        return ((wide["P"][:, columns // 8] >> (columns % 8 * 4)) & 15) - 8
    if name == "cycled":
        return wide["X"] * np.resize(wide["w"], wide["X"].shape[1])
    if name == "paged":
        pages = wide["K"][wide["table"]]
        flat = pages.reshape(pages.shape[0], -1, pages.shape[-1])
        return flat[:, : spec.operands["Y"].shape[1].high if isinstance(spec.operands["Y"].shape[1].high, int) else None]
    gathered = wide["A"][wide["rows"]]
    if name == "checked":
        return np.where(wide["rows"][:, None] < 5, gathered, 0)
    return gathered @ wide["B"] if name == "gathered_gemm" else gathered


def require_right(got, want):
    assert got.shape == want.shape
    assert np.abs(np.asarray(got, float) - want).max() <= 2e-3 * max(1, np.abs(want).max())


@pytest.mark.parametrize("name", CASES)
def test_right(name):
    strategy, definition, sizes = CASES[name]
    spec = definition(**sizes)
    program = strategy(spec).program("sm_80")
    assert safety(program.lowered) == ()
    for seed in (0, 1):
        arrays = inputs_of(spec, seed=seed)
        want = by_numpy(spec, arrays)
        require_right(spec.reference(*arrays.values()), want)
        require_right(simulate(program.ir, arrays, order=random.Random(seed)).outputs[spec.outputs[0]], want)


@pytest.mark.parametrize("name", CASES)
def test_texts(name):
    """A definition, its spec, its strategy and its kernel are equal after they are written and read."""
    strategy, definition, sizes = CASES[name]
    spec = definition(**sizes)
    bound = strategy(spec)
    program = bound.program("sm_80")
    assert eval(repr(definition)) == definition and eval(repr(spec)) == spec
    assert loads(dumps(bound)) == bound and Strategy.from_json(strategy.to_json()) == strategy
    assert parse_kernel(graphene_text(program)).cuda == program.cuda
    assert spec_of(describe(spec)) == spec
    for view in spec.views:
        assert parse_tensor(tensor_text(view.tensor), symbols_of_text(view.tensor)) == view.tensor


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", CASES)
def test_compiled(name, target):
    strategy, definition, sizes = CASES[name]
    program = strategy(definition(**sizes)).program(target)
    report = compile_cuda(program.cuda, target).resources[program.name]
    assert report.spill_stores == report.stack_frame == 0


@pytest.mark.parametrize("loop", [WGMMA, PRODUCER], ids=["threads", "producer"])
def test_wgmma(loop):
    """Rows are gathered by cp.async into swizzled stages; the fence before wgmma is derived."""
    spec = GEMM(m=200, n=128, k=128, r=50)
    program = GEMM.tile(m=128, n=64).to(Block).step("mm", loop).done()(spec).program("sm_90a")
    assert safety(program.lowered) == ()
    assert "fence_proxy_async" in program.cuda and "cp_async_16_zfill" in program.cuda
    arrays = inputs_of(spec)
    for order in (None, random.Random(3)):
        require_right(simulate(program.ir, arrays, order=order).outputs["C"], by_numpy(spec, arrays))
    if toolchains():
        report = compile_cuda(program.cuda, "sm_90a").resources[program.name]
        assert report.spill_stores == report.stack_frame == 0


@pytest.mark.parametrize("definition", [GATHERED, PROMISED], ids=["clamped", "promised"])
def test_run_time_sizes(definition):
    spec = definition(m=sym("M"), k=64, r=sym("R"))
    program = elements(definition, 4, 64)(spec).program("sm_80")
    assert safety(program.lowered) == ()
    for sizes in ({"M": 1, "R": 1}, {"M": 9, "R": 30}):
        arrays = inputs_of(spec, sizes)
        require_right(simulate(program.ir, arrays, sizes).outputs["Y"], by_numpy(spec, arrays))
    promised = definition == PROMISED
    assert ("min(R - 1" in program.cuda) is not promised
    assert ("requires: each element of rows is from 0 to R - 1" in program.cuda) is promised
    assert parse_kernel(graphene_text(program)).cuda == program.cuda


def test_pages_of_run_time():
    spec = PAGED(b=2, n=sym("N"), d=64, page=sym("P"))
    program = CASES["pages"][0](spec).program("sm_80")
    assert safety(program.lowered) == ()
    arrays = inputs_of(spec, {"N": 40, "P": 5})
    assert arrays["table"].shape == (2, 3) and arrays["K"].shape == (5, 16, 64)
    pages = arrays["K"][arrays["table"]].reshape(2, 48, 64)[:, :40]
    np.testing.assert_array_equal(simulate(program.ir, arrays, {"N": 40, "P": 5}).outputs["Y"], pages)


def test_vectors():
    """Elements of one row, and of one page, are loaded as vectors; a group's scale is copied to shared memory once."""
    by_name = {name: strategy(definition(**sizes)).program("sm_80").cuda for name, (strategy, definition, sizes) in CASES.items()}
    assert "uint4" in by_name["rows by vectors"] and "uint4" in by_name["pages"]
    assert "__half s_sh[16]" in by_name["scales in shared memory"] and "uint2" in by_name["scales by vectors"]
    assert "% 16 * 64" in by_name["pages"] and "min(max(table[" in by_name["pages"]


def test_unpromised_numbers_are_clamped():
    """The place of a number is inside the table for elements past the end, too: cp.async evaluates their addresses."""
    text = CASES["gathered GEMM"][0](GEMM(m=100, n=128, k=96, r=50)).cuda("sm_80")
    looked_up = re.findall(r"min\(max\(rows\[min\(99, .*?\)\], 0\), 49\) \* 96", " ".join(text.split()))
    assert looked_up and "rows[" not in text[text.index("__launch_bounds__") :].replace("min(max(rows[min(99,", "").replace("A[rows[m]", "")


# ---------------------------------------------------------------------------------------------- data


@pytest.mark.parametrize("number", [-1, 20, 2**31 - 1, -(2**31)])
def test_wrong_numbers_are_found(number):
    """A number that is not an index is an error in the simulator if an element that is accessed uses it; the reference clamps it."""
    spec = GATHERED(m=10, k=64, r=20)
    program = elements(GATHERED, 4, 64)(spec).program("sm_80")
    arrays = inputs_of(spec)
    arrays["rows"][7] = number
    with pytest.raises(SimulationError, match=r"A\[7, 0\] is element -?\d+ of its array, by rows"):
        simulate(program.ir, arrays)
    np.testing.assert_array_equal(spec.reference(*arrays.values())[7], arrays["A"][0 if number < 0 else 19])


def test_random_inputs():
    """Tables contain indices of the dimension that they index; equal seeds give equal numbers."""
    for strategy, definition, sizes in CASES.values():
        spec = definition(**sizes)
        arrays = inputs_of(spec)
        assert all(
            array.shape == tuple(int(size.high) for size in spec.operands[name].tensor.array.shape) for name, array in arrays.items()
        )
        for table, count in table_extents(definition.fused_definition.indirect, {**sizes}).items():
            assert arrays[table].dtype == np.int32 and 0 <= arrays[table].min() <= arrays[table].max() < count
        assert all((array == inputs_of(spec)[name]).all() for name, array in arrays.items())
        assert strategy(spec).program("sm_80").spec == spec


def test_error_bounds():
    """Bounds of elements are those of the gathered operands."""
    spec = GEMM(m=40, n=16, k=32, r=20)
    arrays = inputs_of(spec)
    direct, gathered = as_direct(spec, arrays, {})
    bounds, direct_bounds = expected(spec, arrays, {})["C"], expected(direct, gathered, {})["C"]
    np.testing.assert_array_equal(bounds.value, direct_bounds.value)
    np.testing.assert_array_equal(bounds.error, direct_bounds.error)
    np.testing.assert_array_equal(gathered["A"], arrays["A"][arrays["rows"]])


def test_check_of_definitions():
    for definition in (SCALED, GATHERED, PAGED, GEMM):
        definition.check()


# ---------------------------------------------------------------------------------------------- injected faults


def with_table(program, **changes):
    """The lowered kernel with another table of A."""
    kernel = program.lowered

    def changed(buffer):
        (table,) = buffer.storage.tables or (None,)
        if table is None:
            return buffer
        return attrs.evolve(buffer, storage=attrs.evolve(buffer.storage, tables=(attrs.evolve(table, **changes),)))

    return attrs.evolve(kernel, buffers=tuple(map(changed, kernel.buffers)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"promised": True}, "elements of rows are not clamped, and the definition promises no range"),
        ({"most": 63}, "an element of rows is an index up to 63, but the dimension has 20 elements"),
        ({"stride": 128}, "it reads rows at"),
        ({"layout": Layout((16, 64), (1, 0))}, "it reads rows at"),
    ],
)
def test_faulty_tables_are_found(changes, message):
    program = elements(GATHERED, 4, 64)(GATHERED(m=10, k=64, r=20)).program("sm_80")
    assert check(with_table(program)) == check(program.lowered)
    assert any(message in finding.message and finding.kind == "bounds" for finding in safety(with_table(program, **changes)))


def test_written_tables_are_found():
    program = elements(GATHERED, 4, 64)(GATHERED(m=10, k=64, r=20)).program("sm_80")
    written = [attrs.evolve(one, written=True) if one.name == "rows" else one for one in program.lowered.buffers]
    with pytest.raises(VerificationError, match="addresses in A depend on rows"):
        verify(attrs.evolve(program.lowered, buffers=tuple(written)))


def test_programmatic_launch():
    """A kernel reads no table before `griddepcontrol.wait`; an input whose table a preceding kernel may write is not loaded early."""
    spec = GEMM(m=200, n=128, k=128, r=50)
    blocks = GEMM.tile(m=128, n=64).to(Block).programmatic_launch()
    text = blocks.step("mm", PRODUCER).done()(spec).cuda("sm_90a")
    assert text.index("griddepcontrol_wait();") < text.index("rows[", text.index("__launch_bounds__") + 400)
    early = GEMM.tile(m=128, n=64).to(Block).programmatic_launch(no_wait="A").step("mm", PRODUCER).done()
    with pytest.raises(DecompositionError, match="rows"):
        early(spec).cuda("sm_90a")


# ---------------------------------------------------------------------------------------------- refusals


def fused(body, dims="m k r", operands=None, **options):
    given = operands or {"A": "r k", "rows": "m", "Y": "m k"}
    return Fused(name="refused", dims=dims, operands=given, body={"o": body}, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fused("Y[m,k] = A[rows[other[m]],k]"), "an index of rows is an element of another array"),
        (lambda: fused("Y[m,k] = A[rows[m],k] + A[m,k]"), "A has two index lists"),
        (lambda: fused("Y[m,k] = A[columns[m],k]"), "columns of A[columns[m],k] is not an operand"),
        (lambda: fused("Y[m,k] = A[rows[m,k],k]"), "rows[m,k] of A[rows[m,k],k] has other dimensions than the operand rows"),
        (lambda: fused("Y[m,k] = A[rows[m]]"), "A[rows[m]] has other dimensions than the operand"),
        (lambda: fused("Y[m,k] = A[rows[m],k // 0]"), "k // 0"),
        (lambda: fused("Y[m // 2,k] = A[rows[m],k]"), "Y[m // 2,k] is written"),
        (lambda: fused("Y[m,k] = A[A[m,k],k]"), "A[A[m,k],k] is an index of itself"),
        (lambda: fused("Y[m,k] = A[rows[m],k ^ 3]"), "the index k ^ 3"),
        (lambda: fused("Y[m,k] = A[rows[m],k]", ranges={"rows": "0 <= rows < k"}), "the range of rows does not promise"),
        (lambda: fused("Y[m,k] = A[rows[m],k]", ranges={"A": "0 <= A < r"}), "ranges has A, which is not an index"),
        (
            lambda: fused("Y[m,k] = A[rows[m],k] + B[m,k]", operands={"A": "r k", "rows": "m", "B": "r k", "Y": "m k"}),
            "B has the dimension r, which no formula has",
        ),
        (lambda: fused("Y[m,k] = A[rows[m],k]")(m=4, k=8, r=4, types={"rows": float32}), "rows is an index of A[rows[m],k]"),
        (lambda: fused("Y[m,k] = A[rows[m],k]")(m=4, k=8), "the sizes must be those of its dimensions"),
        (lambda: SCALED(n=4, k=128, q=3), "the size of q must be that of the index k // 64"),
        (lambda: MatMul.fuse_epilogue("acc * S[n // 4]")(m=4, n=8, k=8), "S"),
    ],
)
def test_refusals(make, message):
    with pytest.raises(FireironError) as caught:
        make()
    assert message in str(caught.value)


def test_written_tables_are_refused():
    with pytest.raises(ArgumentError, match="rows is written"):
        Fused(
            name="refused", dims="m k r", operands={"A": "r k", "rows": "m", "Y": "m k"},
            body={"r": "rows[m] = m", "o": "Y[m,k] = A[rows[m],k]"}, types={"rows": int32},
        )  # fmt: skip


def test_loads_of_tables_are_refused():
    """Addresses read tables from global memory; a formula may read one, too."""
    with pytest.raises(DecompositionError, match="addresses read it from global memory"):
        GATHERED.tile(m=4, k=64).to(Block).load("rows", SH).tile(m=1, k=1).to(Thread).done()(GATHERED(m=8, k=64, r=9)).cuda("sm_80")
    strategy = CHECKED.tile(m=4, k=64).to(Block).load("rows", SH).tile(m=1, k=1).to(Thread).done()
    assert "rows_sh" in strategy(CHECKED(m=8, k=64, r=9)).cuda("sm_80")


def test_digits_of_kinds_are_refused():
    with pytest.raises(ArgumentError, match="selects elements by a digit or an array"):
        Kind("Halved", "y[m] = x[m // 2]").starter(8)


def test_digits_of_one_dimension_divide_each_other():
    odd = Fused(name="odd", dims="m a b", operands={"X": "a b", "Y": "m"}, body={"o": "Y[m] = X[m // 6,m % 4]"})
    with pytest.raises(ArgumentError, match="digits of a dimension by 4 and by 6"):
        odd(m=12)


def test_derived_sizes():
    """A dimension that a digit determines needs no size."""
    assert SCALED(n=4, k=100) == SCALED(n=4, k=100, q=2)
    assert [int(size.high) for size in PAGED(b=1, n=40, d=8, page=3).operands["K"].tensor.array.shape] == [3, 16, 8]


# ---------------------------------------------------------------------------------------------- commands


SOURCE = """
from fireiron import *

gathered = Fused(
    name="gathered", dims="m k r", operands={"A": "r k", "rows": "m", "Y": "m k"}, body={"o": "Y[m,k] = A[rows[m],k]"},
    ranges={"rows": "0 <= rows < r"},
)
strategy = gathered.tile(m=8, k=64).to(Block).step("o", Move.coalesced_copy(8).done()).done()(gathered(m=sym("M"), k=64, r=sym("R")))
"""

COMMANDS = {
    "show": ("A float16 RowMajor at [rows[m],k]", ()),
    "check": ("A read by Move", ()),
    "explain": ("performed by Move", ()),
    "cost": ("DRAM", ("--size", "M=4096", "--size", "R=4096")),
    "run": ("PASS", ("--simulate", "--size", "M=70", "--size", "R=33")),
    "emit": ("requires: each element of rows is from 0 to R - 1", ()),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command, tmp_path, capsys):
    wanted, options = COMMANDS[command]
    assert wanted in output_of(command, SOURCE, options, tmp_path, capsys)


def test_draw_and_export(tmp_path, capsys):
    header = drawn_and_exported(SOURCE, tmp_path, capsys)
    assert "element (r, k) is A[r * 64 + k]" in header and "Its elements are indices of A, from 0 to R - 1; not checked." in header


def test_only_threads_that_add_read_their_table():
    """4 of 128 threads add; the others have no element of T, and the printed text tests that first."""
    body = {"a": "t[m,n] = X[m,n] * 2", "b": "y[T[m]] += sum(n, t[m,n])"}
    definition = Fused(name="s", dims="m n r", operands={"X": "m n", "T": "m", "y": "r"}, body=body)
    chain = definition.tile(m=4, n=32).to(Block).set_memory("t", SH)
    chain = chain.load("X", RF, Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()).done()
    kernel = chain(definition(m=8, n=32, r=3, dtype=int32)).program("sm_80").lowered
    arrays = {"X": np.arange(8 * 32, dtype=np.int32).reshape(8, 32), "T": np.array([0, 1, 2, 1, -1, 7, 2, 2], np.int32)}
    sums = 2 * arrays["X"].sum(axis=1)
    assert simulate(kernel, arrays).outputs["y"].tolist() == [sums[0], sums[1] + sums[3], sums[2] + sums[6] + sums[7]]
