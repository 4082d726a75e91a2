"""LayerNorm, RMSNorm and softmax with rows in the registers of a warp, of several warps, or of a block.

Covers overhanging and symbolic sizes, types and races. The reference is each definition in float64. The printed text runs on a CPU
and compiles if NVRTC is installed.
"""

import importlib
import random

import attrs
import numpy as np
import pytest
import test_fused_partial
import test_ragged
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import safety
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.ir import Barrier, execs, rewritten
from fireiron.sim import simulate

NAMES = ("layernorm", "rmsnorm", "softmax")
EPSILON = np.float32(1e-5)
TOLERANCE = {float16: 2e-3, bfloat16: 2e-2, float32: 2e-5}

FORMS = (
    (5, 1024, {"rows": 4, "iterations": 4, "vector": 8}),
    (5, 1024, {"rows": 2, "iterations": 2, "vector": 8}),
    (3, 1024, {"rows": 1, "iterations": 1, "vector": 8}),
    (3, 768, {"rows": 2, "iterations": 3, "vector": 8}),
    (3, 1000, {"rows": 1, "iterations": 1, "vector": 8}),
    (3, 1000, {"rows": 4, "iterations": 4, "vector": 8}),
    (2, 520, {"rows": 2, "iterations": 2, "vector": 8}),
    (3, 100, {"rows": 1, "iterations": 1, "vector": 4}),
    (2, 1023, {"rows": 1, "iterations": 8, "vector": 1}),
    (9, 17, {"rows": 8, "iterations": 1, "vector": 1}),
)
"""Rows, their size, and their distribution: whole and overhanging, with and without shared memory."""


def module_of(name):
    return importlib.import_module(f"fireiron.strategies.{name}")


def inputs(spec, M, N, seed=0):
    """Random inputs by operand; the weights are about 1, so each term affects the result."""
    generator = np.random.default_rng(seed)
    arrays = {}
    for name in spec.inputs:
        if name == "eps":
            arrays[name] = EPSILON
        elif not name.startswith("index_"):
            values = generator.standard_normal((M, N) if name == "X" else N) * (2 if name == "X" else 0.3) + (0 if name == "bias" else 1)
            arrays[name] = values.astype(spec.operands[name].dtype.to_numpy())
    return arrays


def close(got, want, dtype):
    scale = np.abs(np.asarray(want, np.float64)).max()
    np.testing.assert_allclose(np.asarray(got, np.float64), np.asarray(want, np.float64), rtol=0, atol=TOLERANCE[dtype] * scale)


def program_of(name, M, N, values=None, target="sm_80", **options):
    module = module_of(name)
    spec = module.spec(M, N, **options)
    return module.strategy.with_(**(module.values(spec) if values is None else values))(spec).program(target)


def simulated(program, M, N, order=None):
    """The result of the simulator, and of the definition."""
    spec = program.spec
    given = inputs(spec, M, N)
    got = simulate(program.ir, given, {"M": M} if program.ir.symbols else {}, order=order).outputs["Y"]
    return got, spec.reference(*given.values())


@pytest.mark.parametrize(("M", "N", "values"), FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_forms(name, M, N, values):
    program = program_of(name, M, N, values)
    close(*simulated(program, M, N, order=random.Random(N)), float16)
    assert safety(program.lowered) == ()


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_types(name, dtype):
    for M, N in ((3, 512), (3, 508), (2, 129)):
        close(*simulated(program_of(name, M, N, dtype=dtype), M, N), dtype)


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_run_time(name):
    program = program_of(name, sym("M"), 264)
    assert safety(program.lowered) == ()
    for M in (1, 6):
        close(*simulated(program, M, 264), float16)


def test_mixed_types():
    """float16 inputs, float32 output, and float32 weights."""
    program = program_of("layernorm", 3, 512, types={"weight": float32, "bias": float32, "Y": float32})
    close(*simulated(program, 3, 512), float32)


@pytest.mark.parametrize("name", NAMES)
def test_reads_and_stores_by_16_bytes(name):
    """X, weights and Y use vectors, also in overhanging rows; each row is read once."""
    for N in (1024, 1000, 8192):
        program = program_of(name, 7, N)
        moved = {}
        for statement, _ in execs(program.ir.body):
            for access, width in zip(statement.accesses, statement.vectors or (1,) * len(statement.accesses)):
                if program.ir.buffer(access.buffer).memory.of_grid and access.buffer != "eps":
                    moved.setdefault(access.buffer, []).append(width)
        assert moved == {operand: [8] for operand in ("X", "weight", "bias", "Y") if operand in program.spec.operands}


def test_no_shared_memory_for_a_row_of_one_warp():
    program = program_of("layernorm", 8, 512)
    assert program.ir.shared_bytes == 0
    assert all(repr(one.spec) for one in program.tree.nodes()), "also of steps that count coordinates"
    assert program_of("layernorm", 8, 8192).ir.shared_bytes > 0


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", NAMES)
def test_no_spills(name, target):
    if not any(chain.serves(target) for chain in toolchains()):
        pytest.skip(f"no installed NVRTC serves {target}")
    for N, options in ((768, {}), (1000, {}), (4097, {}), (8192, {}), (16384, {}), (1024, {"dtype": float32}), (129, {"dtype": bfloat16})):
        program = program_of(name, sym("M"), N, target=target, **options)
        report = compile_cuda(program.cuda, target).resources[program.name]
        assert report.spill_stores == 0 and report.stack_frame == 0, N


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_texts(tmp_path):
    jobs = [(name, *form) for name in NAMES for form in ((5, 256), (3, 1000), (3, 1032), (2, 129))]
    programs = [program_of(*job) for job in jobs]
    by_parts = test_fused_partial.by_warps(("total", 64), ("top", 8))(test_fused_partial.rows(**test_fused_partial.SHAPE)).program("sm_80")
    ragged = test_ragged.program_of(140)
    host = HostProgram(map(Printed.of, [*programs, by_parts, ragged]), tmp_path)
    for number, ((_, M, N), program) in enumerate(zip(jobs, programs)):
        given = inputs(program.spec, M, N)
        close(host.run(number, given, seed=number)["Y"], program.spec.reference(*given.values()), float16)
    given = test_fused_partial.inputs(by_parts.spec)
    for got, want in zip(host.run(len(jobs), given).values(), by_parts.spec.reference(*given.values())):
        close(got, want, float32)
    given, expected = test_ragged.arrays_of(test_ragged.OFFSETS["some empty"], 140)
    close(host.run(len(jobs) + 1, given)["D"], expected, float16)


@pytest.mark.parametrize(
    ("M", "N", "values"),
    [
        (3, 1024, {"rows": 1, "iterations": 1, "vector": 8}),
        (5, 1024, {"rows": 4, "iterations": 4, "vector": 8}),
        (3, 1000, {"rows": 2, "iterations": 2, "vector": 8}),
    ],
)
def test_both_sums_at_once(M, N, values):
    """In registers of one warp, and of several warps, which exchange each sum separately or both after their shuffles."""
    module = module_of("layernorm")
    warps = -(-N // (256 * values["iterations"]))
    for strategy in (module.at_once, *([module.in_parts(warps)] if warps > 1 else [])):
        program = strategy.with_(**values)(module.spec(sym("M"), N, form="at_once")).program("sm_80")
        assert safety(program.lowered) == ()
        got, want = simulated(program, M, N, order=random.Random(1))
        close(got, want, float16)
        given = inputs(program.spec, M, N)
        close(got, module.spec(M, N).reference(*given.values()), float16)
    if warps > 1:
        text = program.cuda
        assert text.rindex("warp_reduce_sum(") < text.index("__syncthreads"), "nobody waits between the two sums' shuffles"


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_barrier_is_found(name):
    """Partial sums are read before the other warps write theirs."""
    program = program_of(name, 3, 1024, {"rows": 1, "iterations": 1, "vector": 8})
    body = rewritten(program.ir.body, lambda one: () if isinstance(one, Barrier) else (one,))
    faulty = attrs.evolve(program.ir, body=body)
    assert body != program.ir.body and safety(faulty)
    with pytest.raises(SimulationError):
        for seed in range(5):
            simulate(faulty, inputs(program.spec, 3, 1024), order=random.Random(seed))


def test_rows_are_streamed():
    """Data that are read once bypass the caches, weights do not. Such copies are never selected by default."""
    text = program_of("layernorm", 7, 512).cuda
    assert text.count("__ldcs(reinterpret_cast<const uint4*>(&x_") == 1 and text.count("__stcs(") == 2 and "*>(&weight[" in text
    plain = Move.tile(8, 8).to(Block).tile(1, 8).to(Thread)
    assert "__ldcs" not in plain.load(SRC, RF).done()(Move(8, 8)(GL, GL)(Kernel)).cuda()
    with pytest.raises(FireironError, match="GL -> RF or RF -> GL"):
        plain.done(EVICT_FIRST)(Move(8, 8)(GL, GL)(Kernel)).cuda()


# ---------------------------------------------------------------------------------------------- rows in chunks


@pytest.mark.parametrize(
    ("sizes", "given"),
    [
        ((2, 4096), (2, 4096)),
        ((2, 1100), (2, 1100)),
        ((3, 1001), (3, 1001)),
        ((2, 1096), (sym("M"), sym("N", multiple_of=8))),
        ((2, 77), (sym("M"), sym("N"))),
    ],
)
def test_online_softmax(sizes, given):
    """Overhanging chunks, run-time sizes, and rows of very negative values, for which a zero past the end would be the maximum."""
    module = module_of("softmax_online")
    program = module.strategy.with_(warps=2, iterations=1)(module.spec(*given)).program("sm_80")
    assert safety(program.lowered) == ()
    spec = module.spec(*sizes)
    generator = np.random.default_rng(1)
    for shift in (0, -500):
        x = (generator.standard_normal(sizes) + shift).astype(np.float16)
        symbols = {one.name: size for one, size in zip(given, sizes) if one in program.ir.symbols}
        close(simulate(program.ir, {"X": x}, symbols, order=random.Random(2)).outputs["Y"], spec.reference(x), float16)


def test_online_definition_does_not_depend_on_chunks():
    module_of("softmax_online").softmax_online.check()


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_texts_of_chunks(tmp_path):
    module = module_of("softmax_online")
    specs = [module.spec(2, N) for N in (2048, 1100, 999)]
    host = HostProgram([Printed.of(module.strategy.with_(warps=2, iterations=1)(one).program("sm_80")) for one in specs], tmp_path)
    for number, spec in enumerate(specs):
        x = np.random.default_rng(number).standard_normal([int(str(size)) for size in spec.X.shape]).astype(np.float16)
        close(host.run(number, {"X": x}, seed=number)["Y"], spec.reference(x), float16)


def test_maximum_ignores_elements_past_the_end():
    """A copy has zeros past the end; they do not affect sums of values computed from them either."""
    definition = Fused(
        name="least",
        dims="m n",
        loop="n",
        operands={"X": "m n", "low": "m", "total": "m"},
        init={"start": "least[m] = inf", "zero": "sums[m] = 0"},
        body={
            "one": "here[m] = min(n, X[m,n])", "two": "least[m] = min(least[m], here[m])",
            "power": "e[m,n] = exp2(X[m,n])", "sum": "s[m] = sum(n, e[m,n])", "add": "sums[m] = sums[m] + s[m]",
        },
        final={"out": "low[m] = least[m]", "out2": "total[m] = sums[m]"},
    )  # fmt: skip
    definition.check()
    strategy = definition.tile(m=1).to(Block).split(n=64).load("X", RF, Move.tile(1, 64).to(Warp).tile(1, 1).to(Lane).done()).done()
    spec = definition(m=3, n=100, dtype=float32)
    x = np.random.default_rng(0).random((3, 100), np.float32) + 1
    for got, want in zip(simulate(strategy(spec).program().ir, {"X": x}).outputs.values(), spec.reference(x)):
        np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("n", [65, 127, 257])
def test_vectors_of_lanes_over_the_end(n):
    """In a later iteration, elements of a vector past the end of the row contribute nothing."""
    total = Fused(name="total", dims="m n", operands={"X": "m n", "y": "m"}, body={"s": "t[m] = sum(n, X[m,n])", "y": "y[m] = t[m]"})
    chain = total.tile(m=4).to(Block).tile(m=1).to(Warp).load("X", RF, Move.tile(1, 2).to(Lane).done())
    x = np.random.default_rng(0).standard_normal((3, n)).astype(np.float32)
    got = simulate(chain.done()(total(m=3, n=n, dtype=float32)).program("sm_80").ir, {"X": x}).outputs["y"]
    np.testing.assert_allclose(got, x.sum(1, dtype=np.float64), atol=1e-4)


def test_values_ask_for_a_known_row():
    module = module_of("softmax")
    with pytest.raises(ArgumentError, match="the row length must be a constant to keep rows in registers"):
        module.values(module.spec(4, sym("N")))


def test_temporary_names_avoid_operands():
    """`c` and `y` are operands, and a step has the name of its reduction: names have no numbers and are unique."""
    module = importlib.import_module("fireiron.strategies.layernorm")
    text = module.strategy(module.spec(*module.SIZES)).cuda("sm_80")
    assert "float c_rf[" in text and "float y_rf[" in text and "float sum_rf[" in text and "float squares_sum_rf[" in text
    assert "sum_sum" not in text and "c2" not in text
