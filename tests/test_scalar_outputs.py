"""Results and temporaries without dimensions: sums over blocks, norms, losses (oracle: float64)."""

import random

import making
import numpy as np
import pytest
from near import Near
from printed_text import COMPILER, HostProgram, Printed
from test_added import rewritten, stored

from fireiron import *
from fireiron.check import check, safety
from fireiron.check.access_trace import AccessTrace
from fireiron.check.races import check_races
from fireiron.cost import predict
from fireiron.errors import ArgumentError, DecompositionError, LaunchError, SimulationError
from fireiron.export import export
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.inspect.explain import explain
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate

needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")

lanes = Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()
warps = Move.tile(4, 32).to(Warp).tile(1, 1).to(Lane).done()
threads = Move.tile(1).to(Thread).done()
copy, fragments = Move.coalesced_copy(8).done(), Move.done()
mma = MatMul.tile(16, 16).unroll().mma_tile().done()
product = MatMul.tile(32, 32).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(mma)


def fused(body, operands, dims="m n", **more):
    return Fused(name="scalars", dims=dims, operands=operands, body=body, **more)


SQUARED_ERROR = fused(
    {"loss": "L += sum(m, n, (X[m,n] - Y[m,n]) * (X[m,n] - Y[m,n]) / (size(m) * size(n)))"},
    {"X": "m n", "Y": "m n", "L": ""}, types={"L": float32},
)  # fmt: skip


def total():
    sums = fused({"sum": "L += sum(m, n, X[m,n])"}, {"X": "m n", "L": ""})
    return sums.tile(m=8, n=64).to(Block).load("X", RF, lanes).done()(sums(m=20, n=70, dtype=float32)), lambda x: {"L": x.sum()}


def threads_only():
    strategy = SQUARED_ERROR.tile(m=8, n=64).to(Block).tile(m=2, n=1).to(Thread).done()
    return strategy(SQUARED_ERROR(m=20, n=70)), lambda x, y: {"L": ((x - y) ** 2).mean()}


def sizes():
    strategy = SQUARED_ERROR.tile(m=8, n=64).to(Block).load("X", RF, lanes).done()
    return strategy(SQUARED_ERROR(m=sym("M"), n=sym("N"))), lambda x, y: {"L": ((x - y) ** 2).mean()}


def rows_and_columns():
    sums = fused(
        {"rows": "r[m] += sum(n, X[m,n])", "columns": "c[n] += sum(m, X[m,n])", "sum": "L += sum(m, n, X[m,n])"},
        {"X": "m n", "r": "m", "c": "n", "L": ""},
    )  # fmt: skip
    strategy = sums.tile(m=8, n=64).to(Block).load("X", RF, lanes).done()
    return strategy(sums(m=20, n=70, dtype=float32)), lambda x: {"r": x.sum(1), "c": x.sum(0), "L": x.sum()}


def after_a_product():
    norm = fused(
        {"mm": "acc[m,n] = sum(k, A[m,k] * B[k,n])", "store": "C[m,n] = acc[m,n]", "norm": "L += sum(m, n, acc[m,n] * acc[m,n])"},
        {"A": "m k", "B": "k n", "C": "m n", "L": ""}, "m n k", types={"L": float32},
    )  # fmt: skip
    loop = MatMul.split(32).load(A, SH, copy).load(B, SH, copy).then(product)
    strategy = norm.tile(m=64, n=64).to(Block).step("mm", loop).done()
    return strategy(norm(m=100, n=72, k=64)), lambda a, b: {"C": a @ b, "L": ((a @ b) ** 2).sum()}


def iterations():
    sums = fused({"sum": "L += sum(m, n, X[m,n])"}, {"X": "m n", "L": ""}, loop="n")
    strategy = sums.tile(m=4).to(Block).tile(m=1).to(Warp).split(n=32).load("X", RF, Move.tile(1, 1).to(Lane).done()).done()
    return strategy(sums(m=10, n=100, dtype=float32)), lambda x: {"L": x.sum()}


def batch():
    sums = Fused(
        name="scalars", dims="b m", batch="b", operands={"X": "b m", "y": "b", "L": ""},
        body={"each": "y[b] = sum(m, X[b,m])", "all": "L += sum(m, X[b,m])"},
    )  # fmt: skip
    strategy = sums.tile(b=1, m=128).to(Block).load("X", RF, threads).done()
    return strategy(sums(b=3, m=100, dtype=float32)), lambda x: {"y": x.sum(1), "L": x.sum()}


def one_block():
    norm = fused(
        {"square": "t = sum(m, n, X[m,n] * X[m,n])", "norm": "L = sqrt(t)", "scale": "Y[m,n] = X[m,n] * rsqrt(t)"},
        {"X": "m n", "Y": "m n", "L": ""},
    )  # fmt: skip
    strategy = norm.tile(m=20, n=96).to(Block).load("X", RF, warps).done()
    return strategy(norm(m=20, n=70, dtype=float32)), lambda x: {"Y": x / np.sqrt((x**2).sum()), "L": np.sqrt((x**2).sum())}


def in_shared_memory():
    bound, right = one_block()
    definition = bound.spec.starter
    strategy = definition.tile(m=20, n=96).to(Block).load("X", RF, warps).set_memory("t", SH).done()
    return strategy(bound.spec), right


def softmax():
    row = fused(
        {"top": "t = max(n, X[n])", "e": "e[n] = exp(X[n] - t)", "s": "s = sum(n, e[n])", "y": "Y[n] = e[n] / s", "l": "L = log(s) + t"},
        {"X": "n", "Y": "n", "L": ""}, "n",
    )  # fmt: skip
    strategy = row.tile(n=128).to(Block).load("X", RF, threads).done()
    return strategy(row(n=100, dtype=float32)), lambda x: {"Y": np.exp(x) / np.exp(x).sum(), "L": np.log(np.exp(x).sum())}


def carried():
    dot = fused(
        {"sum": "acc += sum(n, X[n] * Y[n])"}, {"X": "n", "Y": "n", "L": ""}, "n", loop="n",
        init={"zero": "acc = 0"}, final={"store": "L = acc"},
    )  # fmt: skip
    strategy = dot.tile(n=128).to(Block).split(n=32).load("X", RF, threads).done()
    return strategy(dot(n=100, dtype=float32)), lambda x, y: {"L": x @ y}


def numbers():
    plain = fused(
        {"y": "Y[m] = X[m] * a", "fill": "L = 3", "copy": "K = a", "twice": "t = a * 2", "sum": "S = t + a"},
        {"X": "m", "a": "", "Y": "m", "L": "", "K": "", "S": ""}, "m", types={"L": float16, "K": float32},
    )  # fmt: skip
    strategy = plain.tile(m=64).to(Block).tile(m=1).to(Thread).done()
    return strategy(plain(m=100, dtype=float32)), lambda x, a: {"Y": x * a, "L": 3, "K": a, "S": 3 * a}


CASES = {
    case.__name__: case
    for case in (
        total, threads_only, sizes, rows_and_columns, after_a_product, iterations, batch, one_block, in_shared_memory, softmax, carried,
        numbers,
    )
}  # fmt: skip
SYMBOLS = {"M": 20, "N": 70}


def arrays_of(spec, seed=0):
    generator = np.random.default_rng(seed)
    shapes = {name: [int(size.evaluate(SYMBOLS)) for size in spec.operands[name].shape] for name in spec.inputs if name[:6] != "index_"}
    return {
        name: np.asarray(generator.standard_normal(shape)).astype(spec.operands[name].dtype.to_numpy()) for name, shape in shapes.items()
    }


def symbols_of(name):
    return SYMBOLS if name == "sizes" else {}


@pytest.mark.parametrize("name", CASES)
def test_scalars_equal_float64(name):
    bound, right = CASES[name]()
    kernel, arrays = bound.program("sm_80").ir, arrays_of(bound.spec)
    values = right(*(array.astype(float) for array in arrays.values()))
    near = Near(bound.spec, arrays, values, symbols_of(name))
    assert not [finding for finding in check(kernel) if finding.severity == "error"]
    for order in (None, random.Random(1)):
        near.require(simulate(kernel, arrays, symbols_of(name), order=order).outputs)
    reference = bound.spec.reference(*arrays.values())
    near.require(dict(zip(bound.spec.outputs, reference if isinstance(reference, tuple) else (reference,), strict=True)))
    result = bound.compile("sm_80")(*arrays.values())
    for output, array in zip(bound.spec.outputs, result if isinstance(result, tuple) else (result,), strict=True):
        assert np.shape(array) == np.shape(values[output])


@pytest.mark.parametrize("name", ["sizes", "batch", "one_block", "carried", "numbers"])
def test_scalars_are_values_with_texts(name):
    bound, _ = CASES[name]()
    definition = bound.spec.starter
    definition.check()
    program = bound.program("sm_80")
    assert eval(repr(definition)) == definition and eval(repr(bound.spec)) == bound.spec and loads(dumps(bound)) == bound
    assert parse_kernel(graphene_text(program)).text == program.text
    assert str(explain(bound, "sm_80")) and predict(program, sizes=symbols_of(name))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_scalars_on_a_cpu(tmp_path):
    bounds = {name: case() for name, case in CASES.items()}
    host = HostProgram([Printed.of(bound.program("sm_80")) for bound, _ in bounds.values()], tmp_path)
    for number, (name, (bound, right)) in enumerate(bounds.items()):
        arrays = arrays_of(bound.spec, number)
        values = right(*(array.astype(float) for array in arrays.values()))
        Near(bound.spec, arrays, values, symbols_of(name)).require(host.run(number, arrays, symbols_of(name), number))


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.nightly)])
def test_scalars_compile(arch):
    for case in CASES.values():
        assert compile_cuda(case()[0].cuda(arch), arch).ptx


def test_a_scalar_is_exported_and_drawn(tmp_path):
    from fireiron.cli import main

    bound, _ = total()
    header, source = (path.read_text() for path in export(bound.program("sm_80"), tmp_path, "total", cubin=False).files[:2])
    assert "L: one element of float32, zeroed by the launcher" in header and "cudaMemsetAsync(L, 0, (size_t)(1) * 4" in source
    (tmp_path / "own.py").write_text(
        "from fireiron import *\n"
        'D = Fused(name="norm", dims="m", operands={"X": "m", "L": ""}, body={"t": "t = sum(m, X[m] * X[m])", "l": "L = sqrt(t)"})\n'
        'S = D.tile(m=128).to(Block).load("X", RF, Move.tile(1).to(Thread).done()).set_memory("t", SH).done()\n'
    )
    arguments = [f"{tmp_path}/own.py:S", "-s", "m=100", "--arch", "sm_80"]
    assert main(["draw", *arguments, "-o", str(tmp_path / "page.html")]) == 0 and main(["check", *arguments]) == 0
    assert main(["run", *arguments]) == 0


def test_an_output_is_an_array_without_dimensions():
    kernel = threads_only()[0].compile("sm_80")
    x = np.ones((20, 70), np.float16)
    out = np.full((), 7, np.float32)
    assert kernel(x, 3 * x, out=out) is out and out == pytest.approx(4, rel=1e-4)
    with pytest.raises(LaunchError, match="out does not have the shape"):
        kernel(x, x, out=np.zeros(1, np.float32))


def test_a_scalar_needs_the_alignment_of_its_type():
    """A result may be one element of an array, such as the losses of several steps."""
    assert threads_only()[0].spec.operands["L"].tensor.align == 4


def test_brackets_without_indices_are_the_same():
    plain, bracketed = (fused({"sum": f"{target} += sum(m, X[m])"}, {"X": "m", "L": ""}, "m") for target in ("L", "L[]"))
    assert plain == bracketed and "L += " in str(bracketed)


# ---------------------------------------------------------------------------------------------- injected faults


@pytest.mark.parametrize("name", ["total", "threads_only", "after_a_product"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_store_of_several_blocks_is_found(name, beside):
    bound, _ = CASES[name]()
    planted = rewritten(bound.program("sm_80").ir, lambda add: (add, stored(add)) if beside else (stored(add),))
    assert any(finding.severity == "error" and finding.buffer == "L" for finding in check_races(AccessTrace(planted)))
    with pytest.raises(SimulationError, match="race on L"):
        simulate(planted, arrays_of(bound.spec), order=random.Random(1))


@pytest.mark.parametrize("name", ["total", "after_a_product"])
def test_a_missing_zeroing_or_addition_is_found(name):
    bound, right = CASES[name]()
    arrays, kernel = arrays_of(bound.spec), bound.program("sm_80").ir
    values = right(*(array.astype(float) for array in arrays.values()))
    try:
        assert np.isnan(simulate(making.evolved(kernel, zeroed=()), arrays).outputs["L"])
    except SimulationError as error:
        assert "read before any write" in str(error)
    assert Near(bound.spec, arrays, values).wrong(simulate(rewritten(kernel, lambda add: ()), arrays).outputs)


def test_a_shared_scalar_without_its_barrier_is_found():
    kernel = in_shared_memory()[0].program("sm_80").ir
    barriers = [number for number, stmt in enumerate(kernel.body) if type(stmt).__name__ == "Barrier"]
    without = making.evolved(kernel, body=tuple(stmt for number, stmt in enumerate(kernel.body) if number not in barriers[-1:]))
    assert barriers and any(finding.severity == "error" for finding in safety(without))


# ---------------------------------------------------------------------------------------------- refusals


def test_a_tile_with_a_part_of_a_maximum_is_refused():
    top = fused({"top": "L = max(m, n, X[m,n])"}, {"X": "m n", "L": ""})
    with pytest.raises(DecompositionError, match="each tile computes a part of L"):
        top.tile(m=8, n=70).to(Block).load("X", RF, lanes).done()(top(m=20, n=70, dtype=float32)).cuda("sm_80")


def test_a_scalar_that_is_read_and_added_to_is_refused():
    with pytest.raises(ArgumentError, match="step use reads it before all blocks have added"):
        fused({"sum": "L += sum(m, X[m])", "use": "Y[m] = X[m] / L"}, {"X": "m", "Y": "m", "L": ""}, "m")


def test_a_scalar_per_batch_names_the_addition():
    with pytest.raises(ArgumentError, match="L lacks the batch dimension b") as refused:
        Fused(name="sums", dims="b m", batch="b", operands={"X": "b m", "L": ""}, body={"t": "L = sum(m, X[b,m])"})
    assert refused.value.hint == "L += ... for a sum over b"


def test_a_copy_of_one_element_cannot_be_divided():
    scalar = Move()(GL, SH)(Block)
    with pytest.raises(DecompositionError, match="one element has nothing to divide"):
        _ = Move.coalesced_copy(8).done()(scalar).program("sm_80").ir
