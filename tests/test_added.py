"""Outputs to which blocks, iterations and elements of a batch add: simulated, checked, stored, printed (oracle: float64)."""

import random

import attrs
import making
import numpy as np
import pytest
from fused_generator import draw as drawn_definition
from near import Near
from test_fused_random import inputs, program_to_paste, wrong

from fireiron import *
from fireiron import ir
from fireiron.check import safety
from fireiron.check.access_trace import AccessTrace
from fireiron.check.races import check_races
from fireiron.errors import ArgumentError, DecompositionError, SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate

needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")

copy, fragments = Move.coalesced_copy(8).done(), Move.done()
mma = MatMul.tile(16, 16).unroll().mma_tile().done()


def product_of(rows, columns):
    """The strategy of a matmul: tiles of warps, operands in fragments."""
    return MatMul.tile(rows, columns).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(mma)


COLUMNS = Fused(
    name="gemm_columns", dims="m n k", operands={"A": "m k", "B": "k n", "C": "m n", "total": "n"}, types={"total": float32},
    body={"mm": "acc[m,n] = sum(k, A[m,k] * B[k,n])", "store": "C[m,n] = acc[m,n]", "columns": "total[n] += sum(m, acc[m,n])"},
)  # fmt: skip

PRODUCT = Fused(
    name="parts", dims="m n d", operands={"S": "m n", "K": "n d", "dQ": "m d"}, types={"dQ": float32},
    body={"mm": "dQ[m,d] += sum(n, S[m,n] * K[n,d])"},
)  # fmt: skip

BATCH = Fused(
    name="heads", dims="b h m d", batch="b h", operands={"X": "b h m d", "Y": "b m d"}, types={"Y": float32},
    body={"t": "t[m,d] = X[b,h,m,d] * 2", "add": "Y[b,m,d] += t[m,d]"},
)  # fmt: skip

ITERATIONS = Fused(
    name="rows", dims="m n", loop="n", operands={"X": "m n", "Y": "m n", "y": "m"}, types={"y": float32},
    body={"t": "t[m,n] = X[m,n] * 2", "store": "Y[m,n] = t[m,n]", "first": "y[m] += sum(n, t[m,n])", "second": "y[m] += sum(n, X[m,n])"},
)  # fmt: skip

GRADIENTS = Fused(
    name="gradients", dims="m n d", loop="m", mask={"causal": "n <= m"}, types={"L": float32, "D": float32, "dQ": float32},
    operands={"Q": "m d", "K": "n d", "V": "n d", "dO": "m d", "L": "m", "D": "m", "dQ": "m d", "dK": "n d", "dV": "n d"},
    init={"zero_k": "dk[n,d] = 0", "zero_v": "dv[n,d] = 0"},
    body={
        "s": "s[m,n] = sum(d, Q[m,d] * K[n,d])",
        "p": "p[m,n] = where(causal, exp(s[m,n] - L[m]), 0)",
        "dv": "dv[n,d] += sum(m, p[m,n] * dO[m,d])",
        "dp": "dp[m,n] = sum(d, dO[m,d] * V[n,d])",
        "ds": "ds[m,n] = where(causal, p[m,n] * (dp[m,n] - D[m]), 0)",
        "dk": "dk[n,d] += sum(m, ds[m,n] * Q[m,d])",
        "dq": "dQ[m,d] += sum(n, ds[m,n] * K[n,d])",
    },
    final={"dK": "dK[n,d] = dk[n,d]", "dV": "dV[n,d] = dv[n,d]"},
)  # fmt: skip


def columns():
    loop = MatMul.split(32).load(A, SH, copy).load(B, SH, copy).then(product_of(32, 32))
    return COLUMNS.tile(m=64, n=64).to(Block).step("mm", loop).done()(COLUMNS(m=100, n=72, k=64))


def product():
    tiles = PRODUCT.tile(m=64, n=32, d=32).to(Block).load("S", SH, copy).load("K", SH, copy)
    return tiles.step("mm", product_of(32, 32)).done()(PRODUCT(m=100, n=72, d=40))


def batch():
    return BATCH.tile(b=1, h=1, m=8, d=32).to(Block).tile(m=1, d=1).to(Thread).done()(BATCH(b=2, h=3, m=20, d=40))


def iterations():
    rows = ITERATIONS.tile(m=4).to(Block).tile(m=1).to(Warp).split(n=32).load("X", RF, Move.tile(1, 1).to(Lane).done())
    return rows.done()(ITERATIONS(m=10, n=100, dtype=float32))


CASES = {"columns": columns, "product": product, "batch": batch, "iterations": iterations}
DEFINITIONS = {"columns": COLUMNS, "product": PRODUCT, "batch": BATCH, "iterations": ITERATIONS}
ADDED = {"columns": "total", "product": "dQ", "batch": "Y", "iterations": "y"}


def expected_of(name, arrays):
    """The outputs in float64, computed without the definition."""
    a, *more = (array.astype(float) for array in arrays.values())
    if name == "columns":
        return {"C": a @ more[0], "total": (a @ more[0]).sum(0)}
    if name == "product":
        return {"dQ": a @ more[0]}
    return {"Y": 2 * a.sum(1)} if name == "batch" else {"Y": 2 * a, "y": 3 * a.sum(1)}


def arrays_of(spec, seed=0):
    generator = np.random.default_rng(seed)
    sizes = {name: [int(str(size)) for size in spec.operands[name].shape] for name in spec.inputs if not name.startswith("index_")}
    return {name: generator.standard_normal(shape).astype(spec.operands[name].dtype.to_numpy()) for name, shape in sizes.items()}


@pytest.mark.parametrize("name", CASES)
def test_every_addition_counts_once(name):
    bound = CASES[name]()
    kernel, arrays = bound.program("sm_80").ir, arrays_of(bound.spec)
    near = Near(bound.spec, arrays, expected_of(name, arrays))
    assert making.effect_of(kernel, "zeroed") == (ADDED[name],)
    assert not [finding for finding in safety(kernel) if finding.severity == "error"]
    for order in (None, random.Random(1), random.Random(2)):
        near.require(simulate(kernel, arrays, order=order).outputs)
    reference = bound.spec.reference(*arrays.values())
    for output, right in expected_of(name, arrays).items():
        where = bound.spec.outputs.index(output)
        np.testing.assert_allclose((reference if isinstance(reference, tuple) else (reference,))[where], right, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("m", "n"), [(5, 7), (8, 7), (5, 16)])
def test_a_sum_over_dimensions_whose_tiles_all_extend_past_the_end(m, n):
    total = Fused(
        name="total", dims="u m n", operands={"X": "m n", "y": "u"}, types={"y": float32},
        body={"square": "s[m,n] = X[m,n] * X[m,n] + 1", "add": "y[u] += sum(m, n, s[m,n])"},
    )  # fmt: skip
    strategy = total.tile(u=1, m=4, n=8).to(Block).tile(u=1, m=1, n=1).to(Thread).done()
    x = np.random.default_rng(0).standard_normal((m, n)).astype(np.float32)
    y = strategy(total(u=1, m=m, n=n, dtype=float32)).compile("sm_80")(x)
    assert np.allclose(y, (x.astype(float) ** 2 + 1).sum(), rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_an_array_that_is_given_is_zeroed(name):
    bound = CASES[name]()
    arrays = arrays_of(bound.spec)
    out = tuple(
        np.full([int(str(s)) for s in view.shape], 7, view.dtype.to_numpy()) for view in map(bound.spec.operands.get, bound.spec.outputs)
    )
    results = bound.compile("sm_80")(*arrays.values(), out=out if len(out) > 1 else out[0])
    results = results if isinstance(results, tuple) else (results,)
    Near(bound.spec, arrays, expected_of(name, arrays)).require(dict(zip(bound.spec.outputs, results, strict=True)))


@pytest.mark.parametrize("name", CASES)
def test_definitions_and_programs_are_values(name):
    bound = CASES[name]()
    definition = DEFINITIONS[name]
    definition.check()
    assert eval(repr(definition)) == definition and loads(dumps(bound)) == bound
    program = bound.program("sm_80")
    assert loads(dumps(bound)).program("sm_80").cuda == program.cuda
    assert "zero before the launch" in program.cuda and "atomicAdd(" in program.cuda


def gradients():
    chain = GRADIENTS.tile(n=32).to(Block).split(m=32).skip_masked_tiles().set_memory("p", SH).set_memory("ds", SH)
    for step in ("s", "dp", "dv", "dk", "dq"):
        chain = chain.step(step, product_of(16, 32))
    return chain.done()(GRADIENTS(m=64, n=64, d=32))


def test_the_gradients_of_causal_attention_in_one_kernel():
    """Blocks own keys; each iteration adds to the gradient of its queries. Masked iterations add zero, so they are skipped."""
    GRADIENTS.check()
    bound = gradients()
    generator = np.random.default_rng(0)
    q, k, v, do = ((generator.standard_normal((64, 32)) / 2).astype(np.float16) for _ in range(4))
    scores = np.where(np.tri(64, dtype=bool), q.astype(float) @ k.T.astype(float), -np.inf)
    logs = np.log(np.exp(scores).sum(1))
    weights = np.exp(scores - logs[:, None])
    delta = (weights @ v * do).sum(1)
    ds = weights * (do.astype(float) @ v.T.astype(float) - delta[:, None])
    results = bound.compile("sm_80")(q, k, v, do, logs.astype(np.float32), delta.astype(np.float32))
    for got, right in zip(results, (ds @ k, ds.T @ q, weights.T @ do), strict=True):
        np.testing.assert_allclose(got, right, atol=5e-3)
    assert "m_hidden" in bound.cuda("sm_80") and "&dq_target[" in bound.cuda("sm_80") and "atomicAdd(" in bound.cuda("sm_80")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("chunk", range(3))
def test_generated_definitions_equal_float64(chunk):
    for seed in range(87_000 + 8 * chunk, 87_008 + 8 * chunk):
        case, _ = drawn_definition(seed, "added")
        arrays = inputs(case, seed)
        assert not [finding for finding in safety(case.program.ir) if finding.severity == "error"], program_to_paste(case)
        got = simulate(case.program.ir, arrays, case.symbols, order=random.Random(seed)).outputs
        assert not wrong(case, got, arrays), (wrong(case, got, arrays), program_to_paste(case))


# ---------------------------------------------------------------------------------------------- injected faults


def rewritten(kernel, change):
    """The kernel with its atomic additions replaced."""

    def each(body):
        for stmt in body:
            if isinstance(stmt, ir.Exec) and stmt.atomic:
                yield from change(stmt)
            elif hasattr(stmt, "body"):
                yield attrs.evolve(stmt, body=tuple(each(stmt.body)))
            else:
                yield stmt

    return attrs.evolve(kernel, body=tuple(each(kernel.body)))


def stored(statement):
    """A plain store in place of an addition."""
    return attrs.evolve(statement, spec=Move.on(Thread, statement.spec.src, statement.spec.dst), instruction=ThreadMove("Move"))


@pytest.mark.parametrize("name", ["columns", "product", "batch"])
@pytest.mark.parametrize("beside", [False, True])
def test_a_store_in_place_of_or_beside_an_addition_is_found(name, beside):
    bound = CASES[name]()
    planted = rewritten(bound.program("sm_80").ir, lambda add: (add, stored(add)) if beside else (stored(add),))
    assert any(finding.severity == "error" and finding.buffer == ADDED[name] for finding in check_races(AccessTrace(planted)))
    for order in (None, random.Random(1)):
        with pytest.raises(SimulationError, match=f"race on {ADDED[name]}"):
            simulate(planted, arrays_of(bound.spec), order=order)


@pytest.mark.parametrize("name", CASES)
def test_a_missing_zeroing_is_found(name):
    """Unwritten elements are NaN, or tracked if the kernel might hide a NaN."""
    bound = CASES[name]()
    planted = making.evolved(bound.program("sm_80").ir, zeroed=())
    try:
        assert np.isnan(simulate(planted, arrays_of(bound.spec)).outputs[ADDED[name]]).all()
    except SimulationError as error:
        assert "read before any write" in str(error)


@pytest.mark.parametrize("name", CASES)
def test_a_missing_addition_is_found(name):
    bound = CASES[name]()
    arrays = arrays_of(bound.spec)
    planted = rewritten(bound.program("sm_80").ir, lambda add: ())
    assert Near(bound.spec, arrays, expected_of(name, arrays)).wrong(simulate(planted, arrays).outputs)


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(("body", "words"), [
    ({"s": "y[m] = sum(n, X[m,n])", "t": "y[m] += sum(n, X[m,n])"}, "step s stores it: blocks are not ordered"),
    ({"t": "y[m] *= prod(n, X[m,n])"}, "only sums, maxima and minima are combined in memory"),
    ({"t": "y[m] += sum(n, X[m,n])", "z": "z[m] = y[m] + 1"}, "step z reads it before all blocks have added"),
])  # fmt: skip
def test_what_blocks_cannot_add_is_refused(body, words):
    operands = {"X": "m n", "y": "m"} | ({"z": "m"} if "z" in body else {})
    with pytest.raises(ArgumentError, match=words) as refused:
        Fused(name="sums", dims="m n", operands=operands, body=body)
    assert refused.value.hint


@pytest.mark.parametrize("sign", ["+=", "="])
def test_floats_are_not_added_to_integers(sign):
    """Truncated terms have another sum than the truncated sum, so blocks would determine the result."""
    sums = Fused(
        name="sums", dims="m n", operands={"X": "m n", "y": "m"}, types={"y": int32},
        body={"t": "t[m,n] = X[m,n] * 2", "add": f"y[m] {sign} sum(n, t[m,n])"},
    )  # fmt: skip
    strategy = sums.tile(m=8, n=8).to(Block).tile(m=1, n=1).to(Thread).done()
    with pytest.raises(DecompositionError, match="y is int32, and each addition would truncate a float") as refused:
        strategy(sums(m=16, n=16)).cuda("sm_80")
    assert refused.value.hint == "types={'t': int32}"


@pytest.mark.parametrize(("dtype", "source"), [(int32, int8), (int32, int32), (float64, float32), (float64, float64)], ids=str)
def test_other_types(dtype, source):
    """Integers are added exactly, in any order."""
    sums = Fused(
        name="sums", dims="b m n", batch="b", operands={"X": "b m n", "y": "n", "z": "m n"}, types={"y": dtype, "z": dtype, "t": dtype},
        body={"t": "t[m,n] = X[b,m,n] * 3", "columns": "y[n] += sum(m, t[m,n])", "batch": "z[m,n] += X[b,m,n] - 1"},
    )  # fmt: skip
    strategy = sums.tile(b=1, m=8, n=32).to(Block).tile(m=1, n=1).to(Thread).done()
    bound = strategy(sums(b=3, m=20, n=40, types={"X": source}))
    x = np.random.default_rng(0).integers(-9, 9, (3, 20, 40)).astype(source.to_numpy())
    wide = x.astype(int)
    for results in (bound.compile("sm_80")(x), bound.spec.reference(x)):
        for got, right in zip(results, (3 * wide.sum((0, 1)), (wide - 1).sum(0)), strict=True):
            assert got.dtype == dtype.to_numpy() and np.array_equal(got, right)


def test_a_type_without_additions_is_refused():
    """Without `+=`, a sum states one rounding, so 16 bits are refused, too."""
    for kind, sign, why in ((int8, "+", "int8 has no atomic addition"), (float16, "", "in float16 each addition would round")):
        sums = Fused(
            name="sums",
            dims="m n",
            operands={"X": "m n", "y": "m"},
            body={"t": f"y[m] {sign}= sum(n, X[m,n])"},
            types={"X": kind, "y": kind},
        )
        strategy = sums.tile(m=8, n=8).to(Block).tile(m=1, n=1).to(Thread).done()
        with pytest.raises(DecompositionError, match=why) as refused:
            strategy(sums(m=16, n=16)).cuda("sm_80")
        assert refused.value.hint == 'types={"y": float32} in the call of the definition (in a file: in spec)'


def test_a_batch_that_overwrites_an_output_names_the_addition():
    with pytest.raises(ArgumentError, match="y lacks the batch dimension b") as refused:
        Fused(name="sums", dims="b m", batch="b", operands={"X": "b m", "y": "m"}, body={"t": "y[m] = X[b,m]"})
    assert refused.value.hint == "y[m] += ... for a sum over b"


# ---------------------------------------------------------------------------------------------- notation and compilers


@pytest.mark.parametrize("name", CASES)
def test_notation(name):
    program = CASES[name]().program("sm_80")
    text = graphene_text(program)
    assert f"Zeroed {ADDED[name]}" in text and parse_kernel(text).text == program.text


@needs_nvrtc
@pytest.mark.parametrize("name", CASES)
def test_compiles_to_reductions(name):
    ptx = compile_cuda(CASES[name]().cuda("sm_80"), "sm_80").ptx
    assert "red.global.add.f32" in ptx or "atom.global.add.f32" in ptx
