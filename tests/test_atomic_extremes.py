"""Maxima and minima that several blocks combine in an output (oracle: NumPy on float64, without NaN)."""

import random

import attrs
import making
import numpy as np
import pytest
from near import Near
from printed_text import COMPILER, HostProgram, Printed
from test_added import rewritten, stored
from test_scalar_outputs import fused, lanes

from fireiron import *
from fireiron.check import check
from fireiron.check.access_trace import AccessTrace
from fireiron.check.races import check_races
from fireiron.errors import ArgumentError, DecompositionError, SimulationError
from fireiron.executable.atomic_add import ATOMIC_ADD
from fireiron.export import export
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate

needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")

INF = np.inf


def columns():
    top = fused({"top": "M[n] max= max(m, X[m,n])"}, {"X": "m n", "M": "n"}, types={"M": float32})
    strategy = top.tile(m=8, n=64).to(Block).load("X", RF, lanes).done()
    return strategy(top(m=20, n=70)), lambda x: {"M": x.max(0)}


def threads_only():
    both = fused(
        {"least": "M[n] min= min(m, X[m,n])", "top": "N[m] max= max(n, X[m,n])"}, {"X": "m n", "M": "n", "N": "m"},
        types={"M": float32, "N": float32},
    )  # fmt: skip
    strategy = both.tile(m=8, n=64).to(Block).tile(m=2, n=1).to(Thread).done()
    return strategy(both(m=sym("M_"), n=sym("N_"))), lambda x: {"M": x.min(0), "N": x.max(1)}


def scalar():
    top = fused({"size": "t[m,n] = abs(X[m,n])", "top": "L max= max(m, n, t[m,n])"}, {"X": "m n", "L": ""})
    strategy = top.tile(m=8, n=64).to(Block).load("X", RF, lanes).done()
    return strategy(top(m=20, n=70, dtype=float32)), lambda x: {"L": abs(x).max()}


def integers():
    both = fused(
        {"top": "M[n] max= max(m, X[m,n])", "least": "N[n] min= min(m, X[m,n])"}, {"X": "m n", "M": "n", "N": "n"},
        types={"M": int32, "N": int32, "X": int32},
    )  # fmt: skip
    strategy = both.tile(m=8, n=64).to(Block).tile(m=1, n=1).to(Thread).done()
    return strategy(both(m=20, n=70)), lambda x: {"M": x.max(0), "N": x.min(0)}


def iterations():
    top = fused(
        {"t": "t[m,n] = X[m,n] * 2", "rows": "M[m] max= max(n, t[m,n])", "columns": "N[n] min= min(m, t[m,n])"},
        {"X": "m n", "M": "m", "N": "n"}, loop="n",
    )  # fmt: skip
    strategy = top.tile(m=4).to(Block).tile(m=1).to(Warp).split(n=32).load("X", RF, Move.tile(1, 1).to(Lane).done()).done()
    return strategy(top(m=10, n=100, dtype=float32)), lambda x: {"M": 2 * x.max(1), "N": 2 * x.min(0)}


def batch():
    top = Fused(name="heads", dims="b m n", batch="b", operands={"X": "b m n", "M": "m n"}, types={"M": float32},
        body={"top": "M[m,n] max= X[b,m,n]"})  # fmt: skip
    strategy = top.tile(b=1, m=8, n=32).to(Block).tile(m=1, n=1).to(Thread).done()
    return strategy(top(b=3, m=20, n=40)), lambda x: {"M": x.max(0)}


def rows():
    top = Fused(
        name="rows",
        dims="m n r",
        operands={"G": "m n", "rows": "m", "M": "r n"},
        types={"M": float32},
        body={"top": "M[rows[m],n] max= G[m,n]"},
    )

    def right(g, numbers):
        result, inside = np.full((9, 40), -INF), (numbers >= 0) & (numbers < 9)
        np.maximum.at(result, numbers[inside].astype(int), g[inside])
        return {"M": result}

    strategy = top.tile(m=8, n=32).to(Block).tile(m=1, n=1).to(Thread).done()
    return strategy(top(m=12, n=40, r=9)), right


CASES = {case.__name__: case for case in (columns, threads_only, scalar, integers, iterations, batch, rows)}
SYMBOLS = {"M_": 20, "N_": 70}


def symbols_of(name):
    return SYMBOLS if name == "threads_only" else {}


def case_of(name, seed=0):
    bound, right = CASES[name]()
    generator, arrays = np.random.default_rng(seed), {}
    for key in [key for key in bound.spec.inputs if not key.startswith("index_")]:
        view = bound.spec.operands[key]
        shape = [int(size.evaluate(SYMBOLS)) for size in view.tensor.array.shape]
        numbers = generator.integers(-2, 11, shape) if key == "rows" else generator.standard_normal(shape) * 1000 - 500
        arrays[key] = numbers.astype(view.dtype.to_numpy()) / (1 if view.dtype == int32 else np.float16(1000))
        arrays[key] = arrays[key].astype(view.dtype.to_numpy())
    values = right(*(array.astype(float) for array in arrays.values()))
    return bound, arrays, Near(bound.spec, arrays, values, symbols_of(name))


@pytest.mark.parametrize("name", CASES)
def test_extremes_are_exact(name):
    bound, arrays, near = case_of(name)
    kernel = bound.program("sm_80").ir
    assert not [finding for finding in check(kernel) if finding.severity == "error"]
    for order in (None, random.Random(1)):
        near.require(simulate(kernel, arrays, symbols_of(name), order=order).outputs)
    reference = bound.spec.reference(*arrays.values())
    near.require(dict(zip(bound.spec.outputs, reference if isinstance(reference, tuple) else (reference,), strict=True)))
    results = bound.compile("sm_80")(*arrays.values())
    near.require(dict(zip(bound.spec.outputs, results if isinstance(results, tuple) else (results,), strict=True)))


@pytest.mark.parametrize("name", ["threads_only", "integers", "rows"])
def test_definitions_are_values_with_texts(name):
    bound, _ = CASES[name]()
    definition = bound.spec.starter
    definition.check()
    program = bound.program("sm_80")
    assert eval(repr(definition)) == definition and eval(repr(bound.spec)) == bound.spec and loads(dumps(bound)) == bound
    text = graphene_text(program)
    assert parse_kernel(text).text == program.text and parse_kernel(text).ir.effects == program.ir.effects
    start = "2147483647" if name == "integers" else "inf"
    assert f"= {start}" in text.replace("= -", "= ") and "before the launch (blocks combine values in it)" in program.cuda


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_extremes_on_a_cpu(tmp_path):
    cases = {name: case_of(name, number) for number, name in enumerate(CASES)}
    host = HostProgram([Printed.of(bound.program("sm_80")) for bound, _, _ in cases.values()], tmp_path)
    for number, (name, (_, arrays, near)) in enumerate(cases.items()):
        near.require(host.run(number, arrays, symbols_of(name), number))
    # special numbers: the text, the simulator and the reference agree bit by bit
    bound, special = columns()[0], specials()
    wanted = bound.spec.reference(special)
    for got in (host.run(0, {"X": special}, {}, 5)["M"], simulate(bound.program("sm_80").ir, {"X": special}).outputs["M"]):
        assert np.array_equal(got.view(np.int32), wanted.view(np.int32))


def specials():
    """Columns with NaN of both signs, infinities, zeros of both signs, and no number at all."""
    array = np.full((20, 70), np.nan, np.float16)
    array[3:5, 1], array[7, 2], array[7, 3] = [-0.0, 0.0], -np.inf, np.inf
    array[0, 4], array[19, 4], array[0, 5], array[10:12, 6] = -1, -2, -0.0, [3, -4]
    array[2] = -array[2]  # NaN with a sign
    return array


def test_nan_is_ignored():
    """Columns without a number keep the start value."""
    got = columns()[0].spec.reference(specials())
    assert got[:7].tolist() == [-INF, 0.0, -INF, INF, -1, 0.0, 3] and not np.signbit(got[1]) and np.signbit(got[5])


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.nightly)])
def test_extremes_compile(arch):
    for name, case in CASES.items():
        ptx = compile_cuda(case()[0].cuda(arch), arch).ptx
        assert ("max" in ptx or "min" in ptx) and ("red.global." in ptx or "atom.global." in ptx), name


def test_exports_set_the_first_value(tmp_path):
    files = {path.suffix: path.read_text() for path in export(columns()[0].program("sm_80"), tmp_path, "top", cubin=False).files}
    assert "M: 70 elements of float32, set to -inf by the launcher, then combined in no fixed order" in files[".h"]
    assert "top_fill(M, 0xff800000u, (size_t)(70) * 4 / 4" in files[".cu"] and "top_set<<<256, 256, 0, stream>>>" in files[".cu"]


# ---------------------------------------------------------------------------------------------- injected faults


@pytest.mark.parametrize("name", ["columns", "scalar", "integers", "batch"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_store_is_found(name, beside):
    bound, arrays, _ = case_of(name)
    (output, *_) = bound.spec.outputs
    planted = rewritten(bound.program("sm_80").ir, lambda add: (add, stored(add)) if beside else (stored(add),))
    assert any(finding.severity == "error" and finding.buffer == output for finding in check_races(AccessTrace(planted)))
    with pytest.raises(SimulationError, match="race on"):
        simulate(planted, arrays, order=random.Random(1))


@pytest.mark.parametrize("name", ["columns", "scalar", "integers"])
@pytest.mark.parametrize("start", [None, 0, 1])
def test_a_wrong_first_value_is_found(name, start):
    """Maxima of negative numbers: an output that is not set, or to a number, gives another result."""
    bound, arrays, near = case_of(name)
    arrays = {key: -abs(array) - 1 if name != "scalar" else array * 0 for key, array in arrays.items()}
    near = Near(bound.spec, arrays, CASES[name]()[1](*(array.astype(float) for array in arrays.values())))
    names = making.effect_of(bound.program("sm_80").ir, "zeroed")
    effect = Zeroed() if start is None else Zeroed(names, tuple((output, start) for output in names))
    kernel = bound.program("sm_80").ir
    planted = attrs.evolve(kernel, effects=kernel.effects.without(Zeroed).adding(effect))
    if start == 0 and name == "scalar":
        return  # 0 is the maximum of no absolute value
    try:
        assert near.wrong(simulate(planted, arrays).outputs)
    except SimulationError as error:
        assert "read before any write" in str(error)


def test_an_addition_in_place_of_or_beside_a_maximum_is_found():
    bound, arrays, near = case_of("columns")

    def added(statement):
        return attrs.evolve(statement, spec=AtomicAdd.on(Thread, statement.spec.src, statement.spec.dst), instruction=ATOMIC_ADD)

    kernel = bound.program("sm_80").ir
    assert near.wrong(simulate(rewritten(kernel, lambda add: (added(add),)), arrays).outputs)
    mixed = rewritten(kernel, lambda add: (add, added(add)))
    assert any(finding.severity == "error" and finding.buffer == "M" for finding in check_races(AccessTrace(mixed)))
    assert near.wrong(simulate(rewritten(kernel, lambda add: ()), arrays).outputs)


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("body", "words"), [
    ({"t": "M[n] *= prod(m, X[m,n])"}, "only sums, maxima and minima are combined in memory"),
    ({"t": "M[n] max= max(m, X[m,n])", "s": "M[n] += sum(m, X[m,n])"}, "the result would depend on their order"),
    ({"t": "M[n] max= max(m, X[m,n])", "s": "M[n] min= min(m, X[m,n])"}, "the result would depend on their order"),
    ({"t": "M[n] max= max(m, X[m,n])", "s": "Y[m,n] = X[m,n] - M[n]"}, "step s reads it before all blocks have added"),
    ({"t": "M[n] max= max(m, X[m,n])", "s": "M[n] = max(m, X[m,n])"}, "step s stores it: blocks are not ordered"),
])  # fmt: skip
def test_what_cannot_be_combined_is_refused(body, words):
    operands = {"X": "m n", "M": "n"} | ({"Y": "m n"} if "Y[" in str(body) else {})
    with pytest.raises(ArgumentError, match=words) as refused:
        fused(body, operands)
    assert refused.value.hint


@pytest.mark.parametrize("dtype", [float16, float64, int64], ids=str)
def test_other_types_are_refused(dtype):
    top = fused({"t": "M[n] max= X[m,n]"}, {"X": "m n", "M": "n"}, batch="m", types={"M": dtype, "X": dtype})
    strategy = top.tile(m=1, n=64).to(Block).tile(n=1).to(Thread).done()
    with pytest.raises(DecompositionError, match=f"{dtype} has no atomic maximum"):
        strategy(top(m=16, n=16)).cuda("sm_80")


def test_floats_are_not_combined_with_integers():
    top = fused({"t": "M[n] max= max(m, X[m,n])"}, {"X": "m n", "M": "n"}, types={"M": int32})
    with pytest.raises(DecompositionError, match="M is int32"):
        top.tile(m=8, n=64).to(Block).tile(m=1, n=1).to(Thread).done()(top(m=16, n=16)).cuda("sm_80")
