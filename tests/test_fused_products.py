"""Fused GEMMs of the library: dual, gated, LSTM, row sums, LayerNorm after a GEMM, multilayer perceptrons.

The simulator runs them with warps in order and in random order; the printed text runs on the CPU. NumPy formulas are the reference.
Injected faults show that missing waits and barriers are found. Refusals state what was asked, what is legal and what to do.
"""

import random

import numpy as np
import pytest
from faults import faults
from printed_text import COMPILER, HostProgram, Printed
from problems import library

from fireiron import *
from fireiron.check import check, safety
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.sim import simulate
from fireiron.values.expr import compiled

TARGET = "sm_80"
SMALL = {"bm": 64, "bn": 64, "wm": 32, "wn": 32, "stages": 3}
HALF = 2e-3
"""Relative to the largest value of a result: float16 rounding errors of intermediate and final values."""


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def normed(x, gamma, beta):
    x = x - x.mean(axis=1, keepdims=True)
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * gamma + beta


def layers(x, w, bias):
    """Activations are rounded to float16 between layers, as in the kernel."""
    for weights, row in zip(w, bias):
        x = np.maximum(x @ weights + row, 0).astype(np.float16).astype(np.float64)
    return (x,)


FORMULAS = {
    "dual": lambda a, b, c: (a @ b + a @ c,),
    "gated": lambda a, b, c: ((a @ b) * sigmoid(a @ b) * (a @ c),),
    "lstm": lambda x, w, h, r, bias: (np.maximum(x @ w + h @ r + bias, 0),),
    "lstm:tanh": lambda x, w, h, r, bias: (np.tanh(x @ w + h @ r + bias),),
    "lstm:two_loops": lambda x, w, h, r, bias: (np.maximum(x @ w + h @ r + bias, 0),),
    "gemm_row_sum": lambda a, b: (a @ b, a.sum(axis=1)),
    "gemm_layernorm": lambda a, b, bias, gamma, beta: (normed(a @ b + bias, gamma, beta),),
    "mlp": layers,
    "mlp:registers": layers,
}
"""The result of each strategy as an independent formula."""

ROWS = {"bm": 64, "bk": 32, "wm": 32, "wn": 32, "stages": 3}
LAYERS = {"bm": 64, "wm": 32, "wn": 32}
CASES = [
    *((name, sizes, SMALL) for name in ("dual", "gated", "lstm", "lstm:tanh", "lstm:two_loops", "gemm_row_sum") for sizes in ((128, 128, 64), (100, 72, 40), (65, 130, 33))),
    *(("gemm_layernorm", sizes, ROWS) for sizes in ((128, 64, 64), (70, 96, 40))),
    *((name, sizes, LAYERS) for name in ("mlp", "mlp:registers") for sizes in ((128, 64, 1), (100, 64, 4), (33, 32, 3))),
]  # fmt: skip
KINDS = tuple(FORMULAS)


def bound(name, sizes, values, **options):
    """A strategy of the library on a problem, by `file` or `file:strategy`."""
    file, _, chosen = name.partition(":")
    module = library(file)
    if chosen in ("tanh", "two_loops"):
        options["form"] = chosen
    return getattr(module, chosen or "strategy").with_(**values)(module.spec(*sizes, **options))


def arrays_of(spec, symbols=None, seed=0):
    """Normal numbers; the weights are small enough for results of about 1."""
    random_numbers = np.random.default_rng(seed)
    arrays = {}
    for name in spec.inputs:
        view = spec.operands[name]
        shape = tuple(int(compiled(size)(symbols or {})) for size in view.shape)
        scale = 1 if name in ("A", "X", "H") or len(shape) == 1 else (shape[-2] or 1) ** -0.5
        arrays[name] = (random_numbers.standard_normal(shape) * scale).astype(view.dtype.to_numpy())
    return arrays


def require_right(name, spec, got, arrays):
    """Check that outputs equal the formula and the definition's float64 meaning."""
    wide = [arrays[one].astype(np.float64) for one in spec.inputs]
    meant = spec.reference(*arrays.values())
    meant = meant if isinstance(meant, tuple) else (meant,)
    for output, wanted, own in zip(spec.definition.outputs, FORMULAS[name](*wide), meant, strict=True):
        most = max(np.abs(wanted).max(), 1)
        assert np.isfinite(got[output].astype(float)).all()
        assert np.abs(own - wanted).max() <= 4 * HALF * most
        assert np.abs(got[output] - wanted).max() <= 2 * HALF * most, (output, np.abs(got[output] - wanted).max())


def problems_of(kernel, *kinds):
    """Findings of the checks: errors, and warnings of these kinds."""
    return [one for one in check(kernel) if one.severity == "error" or (one.severity == "warning" and one.kind in kinds)]


# ---------------------------------------------------------------------------------------------- results


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "sizes", "values"), CASES, ids=lambda one: one if isinstance(one, str) else None)
def test_simulated_results(name, sizes, values):
    """With warps in order and in random order; no finding."""
    strategy = bound(name, sizes, values)
    kernel = strategy.program(TARGET).ir
    assert not problems_of(kernel)
    arrays = arrays_of(strategy.spec)
    for order in (None, random.Random(7)):
        require_right(name, strategy.spec, simulate(kernel, arrays, order=order).outputs, arrays)


SYMBOLIC = {
    "gemm_layernorm": ((sym("M"), 64, sym("K", multiple_of=8)), {"M": 70, "K": 40}, ROWS),
    "mlp": ((sym("M"), 64, sym("L", high=100)), {"M": 70, "L": 3}, LAYERS),
    "mlp:registers": ((sym("M"), 64, sym("L", high=100)), {"M": 70, "L": 2}, LAYERS),
}
UNKNOWN = tuple(sym(one, multiple_of=8) for one in "MNK")


@pytest.mark.parametrize("name", KINDS)
def test_run_time_sizes(name):
    sizes, symbols, values = SYMBOLIC.get(name, (UNKNOWN, {"M": 72, "N": 136, "K": 40}, SMALL))
    strategy = bound(name, sizes, values)
    kernel = strategy.program(TARGET).ir
    assert not problems_of(kernel)
    arrays = arrays_of(strategy.spec, symbols)
    require_right(name, strategy.spec, simulate(kernel, arrays, symbols, order=random.Random(3)).outputs, arrays)


@pytest.mark.sampled(3)
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("chunk", range(2))
def test_printed_text_on_a_cpu(chunk, tmp_path):
    """The printed text on the CPU, threads in random order."""
    chosen = [next(case for case in CASES[::-1] if case[0] == name) for name in KINDS[chunk::2]]
    strategies = [bound(*case) for case in chosen]
    host = HostProgram([Printed.of(one.program(TARGET)) for one in strategies], tmp_path)
    for number, ((name, *_), strategy) in enumerate(zip(chosen, strategies)):
        arrays = arrays_of(strategy.spec)
        require_right(name, strategy.spec, host.run(number, arrays), arrays)


@pytest.mark.parametrize("name", KINDS)
def test_definitions_do_not_depend_on_the_split(name):
    """No result depends on the number of elements of `loop` per iteration."""
    bound(name, (64, 64, 4), {}).spec.kind.starter.check()


@pytest.mark.parametrize("sizes", [(128, 128, 64), (100, 72, 40)])
def test_grouped_gemm_pads_groups(sizes):
    """Rows past the end of a group are zero, whatever memory contains there."""
    M, N, K = sizes
    module, groups = library("grouped"), 3
    strategy = module.strategy.with_(**SMALL)(module.spec(*sizes, groups=groups))
    kernel = strategy.program(TARGET).ir
    assert not problems_of(kernel)
    random_numbers = np.random.default_rng(1)
    a, b = (random_numbers.standard_normal(shape).astype(np.float16) for shape in ((groups, M, K), (groups, K, N)))
    rows = np.array([0, 37, M], np.int32)
    inside = np.arange(M)[None, :, None] < rows[:, None, None]
    a[np.broadcast_to(~inside, a.shape)] = np.nan
    wanted = np.where(inside, np.nan_to_num(a.astype(float)) @ b.astype(float), 0)
    for order in (None, random.Random(5)):
        got = simulate(kernel, {"A": a, "B": b, "rows": rows}, order=order).outputs["D"]
        assert np.abs(got - wanted).max() <= HALF * np.abs(wanted).max()
    assert np.array_equal(strategy.spec.reference(a, b, rows) == 0, ~np.broadcast_to(inside, wanted.shape))


# ---------------------------------------------------------------------------------------------- printed CUDA


@pytest.mark.sampled(6)
@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", KINDS)
def test_fused_gemms_do_not_spill(name, target):
    program = bound(name, library(name.partition(":")[0]).SIZES, {}).program(target)
    report = compile_cuda(program.cuda, target).resources[program.name]
    assert report.spill_stores == report.spill_loads == report.stack_frame == 0


@pytest.mark.sampled(3)
@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("name", ["dual", "gated", "gemm_row_sum"])
def test_fused_gemms_of_run_time_sizes_do_not_spill(name):
    """With the library's tunables. With the next step's fragments in registers, too, two of the kernels spill on sm_80."""
    spec = library(name).spec(*UNKNOWN)
    program = library(name).strategy.with_(**library(name).values(spec))(spec).program(TARGET)
    report = compile_cuda(program.cuda, TARGET).resources[program.name]
    assert report.spill_stores == report.spill_loads == report.stack_frame == 0


@pytest.mark.parametrize("name", KINDS)
def test_copies_use_16_bytes(name):
    """Asynchronous loads and stores through shared memory use 16-byte vectors without bank conflicts."""
    program = bound(name, library(name.partition(":")[0]).SIZES, {}).program(TARGET)
    kernel = program.ir
    assert not problems_of(kernel, "banks", "alignment")
    assert "cp_async_16(" in program.cuda and "ldmatrix_x4" in program.cuda
    stores = [line for line in program.cuda.splitlines() if "*>(&d_target[" in line or "*>(&y_target[" in line]
    assert name == "mlp:registers" or (stores and all("uint4" in line for line in stores))


def test_layers_in_registers_synchronize_only_for_weights():
    text = bound("mlp:registers", (128, 64, 20), LAYERS).program(TARGET).cuda
    loop = text[text.index("for (int l = 0;") :]
    assert loop.count("__syncthreads()") == 1 and "cp_async_wait_group" in loop


def test_one_block_stores_a_row_sum():
    """All tiles of a row have its sum; the first one stores it."""
    text = bound("gemm_row_sum", (128, 256, 64), SMALL).program(TARGET).cuda
    assert "if (block_n == 0 && warp_n == 0 && thread % 4 == 0)" in text
    assert text.count("if (block_n == 0 && warp_n == 0) {") == 2, "and sums it up, in both steps of a stage"


def test_set_memory_moves_a_row_sum():
    """Each iteration adds to the row sum in registers or, with `set_memory`, in shared memory; the rest of the chain is the same."""
    dual_definition, kinds, copy = library("gemm_row_sum").definition, [], Move.coalesced_copy(8).done()
    spec = library("gemm_row_sum").spec(100, 72, 96)
    mma = MatMul.tile(16, 16).unroll().mma_tile().done()
    for chain in (dual_definition.tile(m=64, n=64).to(Block), dual_definition.tile(m=64, n=64).to(Block).set_memory("s", SH)):
        chain = (
            chain.split(k=32)
            .pipeline(3)
            .load("A", SH, copy)
            .swizzle_storage()
            .load("B", SH, copy)
            .swizzle_storage()
            .tile(m=32, n=32)
            .to(Warp)
        )
        chain = chain.split(k=16).unroll().load("A", RF, Move.done()).load("B", RF, Move.done())
        program = chain.step("product", mma).done()(spec).program(TARGET)
        assert not problems_of(program.ir)
        arrays = arrays_of(spec)
        require_right("gemm_row_sum", spec, simulate(program.ir, arrays, order=random.Random(1)).outputs, arrays)
        kinds.append("__shared__ __align__(16) float s[64];" in program.cuda)
    assert kinds == [False, True]


def test_layers_on_turing():
    """With a single stage for the weights, the activations fit into 64 KiB."""
    program = bound("mlp:single", (100, 128, 3), {}).program("sm_75")
    assert not problems_of(program.ir)
    arrays = arrays_of(program.spec)
    require_right("mlp", program.spec, simulate(program.ir, arrays).outputs, arrays)


# ---------------------------------------------------------------------------------------------- injected faults


@pytest.mark.parametrize("name", ["mlp", "gemm_layernorm"])
def test_missing_synchronization_is_found(name):
    sizes = {"mlp": (64, 32, 3), "gemm_layernorm": (64, 64, 64)}[name]
    kernel = bound(name, sizes, {"mlp": LAYERS, "gemm_layernorm": ROWS}[name]).program(TARGET).ir
    assert not safety(kernel)
    planted = list(faults(kernel))
    assert len(planted) > 8
    for fault, faulty in planted:
        assert safety(faulty) or fault.startswith(("raised", "dropped: Commit")), fault


def test_unguarded_replicas_are_found():
    """Without the conditions several blocks store the same sum."""
    import attrs

    from fireiron.ir import rewritten
    from fireiron.ir.statement import Exec
    from fireiron.values.expr import TRUE

    kernel = bound("gemm_row_sum", (128, 256, 64), SMALL).program(TARGET).ir

    def unguarded(statement):
        stores = isinstance(statement, Exec) and any(one.write and one.buffer == "y" for one in statement.accesses)
        return (attrs.evolve(statement, active=TRUE) if stores else statement,)

    assert not safety(kernel)
    findings = safety(attrs.evolve(kernel, body=rewritten(kernel.body, unguarded)))
    assert any("blocks" in one.message and one.buffer == "y" for one in findings)


# ---------------------------------------------------------------------------------------------- refusals

COPY, FRAGMENTS = Move.coalesced_copy(8).done(), Move.done()
PRODUCT = MatMul.tile(16, 16).unroll().mma_tile().done()


def dual_definition(**changes):
    """A definition with one matmul, with changes."""
    given = {"name": "x", "dims": "m n k", "operands": {"A": "m k", "B": "k n", "D": "m n"}, **changes}
    return Fused(**given)


def written(strategy, spec):
    return strategy(spec).program(TARGET).text


def in_warps():
    """The strategy of the dual GEMM up to its steps."""
    start = library("dual").definition.tile(m=64, n=64).to(Block).split(k=32).load("A", SH, COPY).load("B1", SH, COPY).load("B2", SH, COPY)
    return start.tile(m=32, n=32).to(Warp).split(k=16)


def dual(strategy):
    return written(strategy.done(), library("dual").spec(128, 128, 64))


def perceptron(strategy):
    return written(strategy.done(), library("mlp").spec(128, 64, 4))


MM = "acc[m,n] += sum(k, A[m,k] * B[k,n])"
REFUSALS = {
    "unknown step": (
        lambda: dual(library("dual").definition.tile(m=64, n=64).to(Block).step("midle", PRODUCT)),
        ["step('midle'): dual has no such step", "in      dual(64,64,64)", "legal   zero left right store", "at      "],
    ),
    "missing init": (
        lambda: dual_definition(loop="k", body={"mm": MM}, final={"s": "D[m,n] = acc[m,n]"}),
        ["step mm: acc is read before it is written", "got     'acc[m,n] += ", "do      init={...: 'acc[m,n] = 0'}", "at      "],
    ),
    "read before it is written": (
        lambda: dual_definition(body={"s": "D[m,n] = acc[m,n]", "mm": "acc[m,n] = sum(k, A[m,k] * B[k,n])"}),
        ["step s: acc is read before it is written", "do      an earlier step that writes it"],
    ),
    "duplicate step": (
        lambda: dual_definition(loop="k", init={"mm": "acc[m,n] = 0"}, body={"mm": MM}, final={"s": "D[m,n] = acc[m,n]"}),
        ["the step mm is in two parts", "legal   different identifiers"],
    ),
    "loose dimension": (
        lambda: dual_definition(body={"mm": "D[m,n] = A[m,k] * B[k,n]"}),
        ["step mm: k of A[m,k] is neither in the result nor reduced", "got     'D[m,n] = A[m,k] * B[k,n]'"],
    ),
    "reduced dimension tiled": (
        lambda: written(library("gemm_layernorm").definition.tile(m=64, n=64).to(Block).done(), library("gemm_layernorm").spec(128, 128, 64)),
        ["tile(n=64): n is a reduction dimension", "in      gemm_layernorm(128,128,64)", "at      "],
    ),
    "columns of a layer tiled": (
        lambda: perceptron(library("mlp").definition.tile(m=64, n=32).to(Block)),
        ["tile(n=32): n is a reduction dimension", "in      mlp(128,64,64,4)"],
    ),
    "dimension of the loop tiled": (
        lambda: dual(library("dual").definition.tile(m=64, k=32).to(Block)),
        ["tile(k=32): k is a reduction dimension", "do      split(k=32)"],
    ),
    "dimension that is not gone over split": (
        lambda: perceptron(library("mlp").definition.tile(m=64).to(Block).split(k=16)),
        ["split(k=16) names no loop dimension of mlp", "legal   l", ".step('product', AnySpec.split(16)...)"],
    ),
    "product without a strategy": (
        lambda: dual(in_warps().load("A", RF, FRAGMENTS).load("B1", RF, FRAGMENTS).load("B2", RF, FRAGMENTS).step("left", PRODUCT)),
        ["1 open leaf: MatMul(32,32,16)(RF,RF,RF)(Warp)", "in      dual(128,128,64)", '.step("right", '],
    ),
    "wrong holder": (
        lambda: dual(in_warps().load("A", RF, Move.tile(2, 16).to(Lane).done()).load("B1", RF, FRAGMENTS).load("B2", RF, FRAGMENTS).step("left", PRODUCT).step("right", PRODUCT)),
        ["performs Move(2,16)(SH,RF)(Lane)", "level    requires one whose threads own all of the 2x16 elements, got Lane", "in      Move(2,16)"],
    ),
    "operand placed": (
        lambda: dual(library("dual").definition.tile(m=64, n=64).to(Block).set_memory("A", SH)),
        ["set_memory('A'): A is an operand", "legal   acc", "do      load('A', SH)"],
    ),
    "several layers at once": (
        lambda: perceptron(library("mlp").definition.tile(m=64).to(Block).split(l=2).step("product", PRODUCT)),
        ["mlp: its steps process one element of l", "got     '2'", "do      .split(l=1) first"],
    ),
    "no loop": (
        lambda: perceptron(library("mlp").definition.tile(m=64).to(Block).step("product", PRODUCT)),
        ["are separated by a loop over l", "do      .split(l=...) first"],
    ),
    "unknown dimension": (
        lambda: dual(library("dual").definition.tile(m=64, q=64).to(Block)),
        ["tile(q=64): q is not a dimension", "legal   m n k"],
    ),
    "rows of other lengths": (
        lambda: dual_definition(operands={"A": "m k", "B": "k n", "D": "m n", "o": "m"}, body={"mm": "D[m,n] = sum(k, A[o[m],k] * B[k,n])"}),
        ["step mm: ", "got     'D[m,n] = sum(k, A[o[m],k] * B[k,n])'"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_fused_gemm_refusals(name):
    make, message = REFUSALS[name]
    with pytest.raises(FireironError) as error:
        make()
    text = str(error.value)
    for part in message:
        assert part in text, text
