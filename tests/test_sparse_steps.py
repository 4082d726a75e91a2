"""2:4 sparse products as steps of definitions: against NumPy on the dense matrix, in the simulator, on the CPU, and compiled.

Injected faults are found by a check or by the simulator.
"""

import random

import attrs
import numpy as np
import pytest
from own_file import drawn_and_exported, output_of
from printed_text import COMPILER, HostProgram, Printed, Refused
from sparse_cases import exact_inputs, sparse_chain, sparse_product, sparse_spec
from sparse_steps import CASES, STRATEGIES, dense_of, of_gelu, sparse_gelu, staged

from fireiron import *
from fireiron.check import safety
from fireiron.check.access_trace import AccessTrace
from fireiron.check.tma_boxes import check_tma_boxes
from fireiron.cost.work import Work, useful_operations
from fireiron.errors import ArgumentError, DecompositionError, MatchError, SimulationError
from fireiron.executable.mma_sp import INSTRUCTIONS as FORMS
from fireiron.executable.wgmma_sp import WGMMA_SP
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import Barrier, Exec, rewritten
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate
from fireiron.specs.fused import as_direct
from fireiron.tune.record import describe, spec_of

PRODUCT = "acc[m,n] = sum(k, decompressed(W[m,k // 2], E[m,k // 8]) * X[k,n])"


def program_of(name, target):
    return CASES[name].strategies[target](CASES[name].spec).program(target)


def definition_of(product=PRODUCT, **changes):
    given = {
        "name": "d", "dims": "m n k h b", "operands": {"W": "m h", "E": "m b", "X": "k n", "Y": "m n"},
        "body": {"product": product, "store": "Y[m,n] = acc[m,n]"},
    }  # fmt: skip
    return Fused(**{**given, **changes})


# ---------------------------------------------------------------------------------------------- definitions


def test_written_and_read():
    assert eval(repr(sparse_gelu)) == sparse_gelu and "decompressed(W[m,k // 2], E[m,k // 8])" in str(sparse_gelu)
    for case in CASES.values():
        case.definition.check()
        assert eval(repr(case.spec)) == case.spec and spec_of(describe(case.spec)) == case.spec
        for target, strategy in case.strategies.items():
            bound = strategy(case.spec)
            assert loads(dumps(bound)) == bound, target
    program = program_of("bias, GELU", "sm_80")
    assert parse_kernel(graphene_text(program)).cuda == program.cuda


def test_shapes():
    spec = sparse_gelu(m=100, n=72, k=192)
    shapes = {name: (*map(str, view.shape), view.dtype.name) for name, view in spec.operands.items() if not view.memory.is_coordinate}
    assert shapes["W"] == ("100", "96", "float16") and shapes["E"] == ("100", "24", "uint8") and shapes["X"] == ("192", "72", "float16")
    assert sparse_gelu(m=100, n=72, k=192, h=96, b=24) == spec
    with pytest.raises(ArgumentError, match=r"the size of h must be that of the index k // 2 of W\[m,k // 2\]"):
        sparse_gelu(m=100, n=72, k=192, h=95)


@pytest.mark.parametrize("name", CASES)
def test_meaning(name):
    """`reference`, and the definition of the dense matrix."""
    case = CASES[name]
    arrays, outputs = case.arrays(), case.spec.outputs
    results = case.spec.reference(*arrays.values())
    results = results if len(outputs) > 1 else (results,)
    case.require_right(dict(zip(outputs, results, strict=True)), arrays)
    direct, dense = as_direct(case.spec, arrays, case.symbols)
    assert "E" not in dense and "decompressed" not in str(direct.definition)
    dense_results = direct.reference(*(dense[one] for one in direct.inputs))
    case.require_right(dict(zip(outputs, dense_results if len(outputs) > 1 else (dense_results,), strict=True)), arrays)


def test_special_values():
    """Infinity at places that are not kept has no effect."""
    spec = definition_of()(m=5, n=3, k=16)
    arrays = CASES["bias, GELU"].arrays()
    values, metadata, x = arrays["W"][:5, :8], arrays["E"][:5, :2], arrays["X"][:16, :3].copy()
    x[4] = np.inf
    kept = dense_of(np.ones_like(values), metadata)[:, 4] != 0
    assert np.isfinite(spec.reference(values, metadata, x)).all(axis=1).tolist() == (~kept).tolist()


def test_epilogues():
    """`SparseMatMul.fuse_epilogue`: strategies for the product, and bound strategies."""
    definition = SparseMatMul.fuse_epilogue("gelu(acc + bias[m])")
    spec = definition(m=70, n=72, k=256)
    chain = sparse_chain(32, float32)
    bound = chain(spec)
    arrays = CASES["bias, GELU"].arrays()
    got = bound.compile("sm_80")(*arrays.values())
    right = of_gelu(*(array.astype(np.float64) if array.dtype != np.uint8 else array for array in arrays.values()))
    np.testing.assert_allclose(got, right, rtol=2e-3, atol=1e-3)
    fused_later = chain(sparse_spec(FORMS[0], (70, 72, 136))).fuse_epilogue("acc * alpha + R[m,n]")
    assert fused_later.spec.inputs == ("A", "E", "B", "alpha", "R")
    assert loads(dumps(fused_later)) == fused_later
    assert chain.fuse_epilogue("relu(acc)").start == SparseMatMul.fuse_epilogue("relu(acc)", name="gemm")


@pytest.mark.parametrize(
    ("product", "message"),
    [
        ("acc[m,n] = sum(k, decompressed(W[m,k], E[m,k // 8]) * X[k,n])", r"decompressed of W\[m,k\][\s\S]*W\[m,k // 2\], E\[m,k // 8\]"),
        ("acc[m,n] = sum(k, decompressed(W[m,k // 2], E[n,k // 8]) * X[k,n])", r"legal   decompressed\(W\[m,k // 2\], E\[m,k // 8\]\)"),
        ("acc[m,n] = sum(k, decompressed(W[k // 2,m], E[k // 8,m]) * X[k,n])", "along their last dimension"),
        ("acc[m,n] = decompressed(W[m,n // 2], E[m,n // 8])", "is not a factor of a sum of products along n"),
        ("acc[m,n] = sum(k, decompressed(W[m,k // 2], E[m,k // 8]) * X[k,n] * 2)", "functions and scales belong to other steps"),
        ("acc[m,n] = sum(k, decompressed(W[m,k // 2], E[m,k // 8]))", "is not a factor"),
        ("acc[m,n] = max(k, decompressed(W[m,k // 2], E[m,k // 8]) * X[k,n])", "is not a factor"),
        ("acc[m,n] = sum(k, decompressed(W[m,k // 2], E[m,k // 8]) * decompressed(X[n,k // 2], F[n,k // 8]))", "one factor is sparse"),
        ("acc[m,n] = sum(k, decompressed(T[m,k // 2], E[m,k // 8]) * X[k,n])", "T of .* is not an operand"),
        ("acc[m,n] = sum(k, decompressed(W[k // 2], E[k // 8]) * X[k,n])", "other dimensions than the operand"),
        ("acc[m,n] = sum(k, decompressed(W[m,k // 2], W[m,k // 8]) * X[k,n])", "two index lists|read otherwise|other"),
    ],
)
def test_refused_formulas(product, message):
    with pytest.raises(ArgumentError, match=message):
        definition_of(product)


def test_refused_definitions():
    with pytest.raises(ArgumentError, match=r"E has one element per 8 coordinates of k[\s\S]*K=12[\s\S]*multiples of 8"):
        sparse_gelu(m=16, n=8, k=12)
    with pytest.raises(ArgumentError, match="multiples of 8, such as sym"):
        sparse_gelu(m=16, n=8, k=sym("K"))
    with pytest.raises(ArgumentError, match=r"E is the metadata of decompressed[\s\S]*uint8[\s\S]*compress_2_4"):
        sparse_gelu(m=16, n=8, k=16, types={"E": int8})
    with pytest.raises(ArgumentError, match=r"step twice: W is an array of a compressed operand[\s\S]*in decompressed\(...\) only"):
        definition_of(body={"product": PRODUCT, "twice": "Y[m,n] = acc[m,n] * W[m,n // 2]"})
    with pytest.raises(ArgumentError, match="reads one of the two arrays otherwise"):
        other = "u[m,n] = sum(k, decompressed(V[m,k // 2], E[m,k // 8]) * X[k,n])"
        operands = {"W": "m h", "V": "m h", "E": "m b", "X": "k n", "Y": "m n"}
        definition_of(operands=operands, body={"product": PRODUCT, "other": other, "store": "Y[m,n] = acc[m,n] + u[m,n]"})


def test_refused_strategies():
    spec = sparse_gelu(m=64, n=64, k=128)
    with pytest.raises(DecompositionError, match=r"split\(4\): E has one element per 8 coordinates of k[\s\S]*legal   8 16 32 64 128"):
        _ = sparse_gelu.tile(m=64, n=64).to(Block).step("product", SparseMatMul.split(4).done()).done()(spec).cuda("sm_80")
    with pytest.raises(MatchError, match="HMMA_SP_16832_F32"):
        _ = sparse_gelu.tile(m=64, n=64).to(Block).step("product", staged(kk=16)).done()(spec).cuda("sm_80")
    with pytest.raises(DecompositionError, match="has two dimensions"):
        whole = definition_of(
            dims="m n k h b g", operands={"W": "g m h", "E": "g m b", "X": "g k n", "Y": "g m n"},
            body={"product": "acc[g,m,n] = sum(k, decompressed(W[g,m,k // 2], E[g,m,k // 8]) * X[g,k,n])", "store": "Y[g,m,n] = acc[g,m,n]"},
        )  # fmt: skip
        _ = whole.tile(g=1, m=64, n=64).to(Block).step("product", staged()).done()(whole(g=2, m=64, n=64, k=64)).cuda("sm_80")


# ---------------------------------------------------------------------------------------------- kernels


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "target"), STRATEGIES)
def test_right(name, target):
    case, program = CASES[name], program_of(name, target)
    assert safety(program.lowered) == ()
    assert "mma.sp" in program.cuda or "wgmma.mma_async.sp" in program.cuda
    arrays = case.arrays()
    case.require_right(simulate(program.ir, arrays, order=random.Random(1), symbols=case.symbols).outputs, arrays)


def test_copies():
    """TMA for wgmma.sp where rows have 16 bytes, cp.async for mma.sp; the right factor is read in its own order."""
    by_tma = {name: program_of(name, "sm_90a").cuda.count(" tma_load(") >= 3 for name in ("bias, GELU", "sparse right factor, two outputs")}
    assert set(by_tma.values()) == {True}
    assert "tma_load" not in program_of("k that tiles do not divide", "sm_90a").cuda
    assert "cp_async_16" in program_of("bias, GELU", "sm_80").cuda


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", (*FORMS, *WGMMA_SP), ids=lambda form: form.name)
def test_forms(form):
    """The strategies of all instructions, for products with an epilogue."""
    bound = sparse_product(form).fuse_epilogue("acc + R[m,n]", types={"R": form.result})
    target = "sm_90a" if form in WGMMA_SP else f"sm_{form.capability}"
    arrays = exact_inputs(bound.spec)
    right = dense_of(arrays["A"], arrays["E"]) @ arrays["B"].astype(np.float64) + arrays["R"].astype(np.float64)
    got = simulate(bound.program(target).ir, arrays).outputs["C"].astype(np.float64)
    np.testing.assert_allclose(got, right, rtol=1e-3 if form.result == float16 else 1e-6)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_printed_text(target, tmp_path):
    """The text on the CPU, which has a separate table of fragments; and metadata of zeros that is not made legal."""
    names = [name for name, case in CASES.items() if target in case.strategies]
    pattern = r"legal_metadata\(\w+\);" if target == "sm_90a" else r" \| \(~places & 0x11111111u\) << 2"
    texts = [Printed.of(program_of(name, target)) for name in names]
    fault = Printed.of(program_of("bias, GELU", target)).changed(pattern, "")
    host = HostProgram([*texts, fault], tmp_path)
    for number, name in enumerate(names):
        case, arrays = CASES[name], CASES[name].arrays(seed=number)
        case.require_right(host.run(number, arrays, case.symbols or None), arrays)
    with pytest.raises(Refused, match="the places of row"):
        host.run(len(names), CASES["bias, GELU"].arrays())


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "target"), STRATEGIES)
def test_compiled(name, target):
    program = program_of(name, target)
    compiled = compile_cuda(program.cuda, target)
    assert compiled.resources[program.name].spill_stores == 0 and "C75" not in compiled.log


# ---------------------------------------------------------------------------------------------- faults


def test_equal_places_are_found():
    case, program = CASES["bias, GELU"], program_of("bias, GELU", "sm_80")
    arrays = case.arrays()
    arrays["E"][5, 3] = 0x45  # both places 1
    with pytest.raises((ArgumentError, SimulationError), match=r"2:4 metadata[\s\S]*ascending order"):
        simulate(program.ir, arrays)


def test_a_missing_barrier_is_found():
    case, program = CASES["loop of the definition"], program_of("loop of the definition", "sm_80")
    body = rewritten(program.ir.body, lambda stmt: () if isinstance(stmt, Barrier) else (stmt,))
    with pytest.raises(SimulationError, match="race|read"):
        simulate(attrs.evolve(program.ir, body=body), case.arrays(), order=random.Random(2))


def test_boxes_of_another_order_are_found():
    """A tensor map with the wrong span, for a tile that is read with its dimensions exchanged."""
    program = program_of("sparse right factor, two outputs", "sm_90a")

    def change(stmt):
        if isinstance(stmt, Exec) and stmt.tensor_map is not None and stmt.tensor_map.buffer == "X":
            return attrs.evolve(stmt, tensor_map=attrs.evolve(stmt.tensor_map, span=64))
        return stmt

    wrong = attrs.evolve(program.ir, body=rewritten(program.ir.body, lambda stmt: (change(stmt),)))
    assert check_tma_boxes(AccessTrace(program.ir)) == ()
    assert any("TMA places element" in finding.message or "boxes" in finding.message for finding in check_tma_boxes(AccessTrace(wrong)))


# ---------------------------------------------------------------------------------------------- views

SOURCE = """
from sparse_steps import gelu_warps, sparse_gelu
strategy = gelu_warps(sparse_gelu(m=70, n=72, k=136))
"""


def test_views(tmp_path, capsys):
    for command in ("show", "check", "explain", "cost", "run", "emit"):
        output_of(command, SOURCE, ["--arch", "sm_80"] if command != "run" else [], tmp_path, capsys)
    assert "unsigned char" in drawn_and_exported(SOURCE, tmp_path, capsys)


def test_cost():
    """The operations are those of the dense product; the tensor cores execute half of them."""
    spec = CASES["bias, GELU"].definition(m=64, n=64, k=128)
    assert 2 * 64 * 64 * 128 <= useful_operations(spec, {}) < 2.1 * 64 * 64 * 128
    (executed,) = Work(CASES["bias, GELU"].strategies["sm_80"](spec).program("sm_80").ir).amounts.tensor.values()
    assert executed == 64 * 64 * 128
