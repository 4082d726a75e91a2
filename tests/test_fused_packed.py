"""Steps on 16-bit floats use packed arithmetic exactly where it equals float32 with one rounding."""

import random

import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import check
from fireiron.cost import predict
from fireiron.gpu import launch
from fireiron.gpu.toolchain import compile_cuda
from fireiron.inspect.explain import explain
from fireiron.ir import execs
from fireiron.performing.packed import opcodes, packs
from fireiron.sim import simulate
from fireiron.specs.formula import formula_of
from fireiron.strategies import hmma_ampere


def by_lanes(each, operands, types=None):
    """A definition on pieces of rows, with eight adjacent elements per lane."""
    definition = Fused(name="rows", dims="m n", operands=operands, body=each, types=types)
    lane = Move.tile(1, 256).to(Warp).tile(1, 8).to(Lane).done()
    return definition, definition.tile(m=1, n=512).to(Block).load("X", RF, lane).done()


THREE = {"X": "m n", "R": "m n", "Y": "m n"}
residual, by_residual = by_lanes({"y": "Y[m,n] = relu(X[m,n] + R[m,n])"}, THREE)
gain, by_gain = by_lanes({"y": "Y[m,n] = X[m,n] * g[n] + R[m,n]"}, {"X": "m n", "g": "n", "R": "m n", "Y": "m n"})
chain, by_chain = by_lanes(
    {
        "scaled": "t[m,n] = X[m,n] * g[n] - R[m,n]",
        "bounded": "u[m,n] = min(t[m,n], abs(X[m,n])) - X[m,n]",
        "dropped": "Y[m,n] = where(keep[m,n] != 0, relu(u[m,n] * scale), -0.125)",
    },
    {"X": "m n", "g": "n", "R": "m n", "keep": "m n", "scale": "", "Y": "m n"},
    {"t": float16, "u": float16},
)
OPERAND_TYPES = {"keep": int8, "scale": float16}
N = sym("N", multiple_of=8)


def instructions(program):
    return {one.instruction.name for one, _ in execs(program.ir.body)}


def arrays_of(spec, sizes, seed=0):
    generator = np.random.default_rng(seed)
    extents = {dim: sizes.get(str(spec.size(dim)), None) or int(str(spec.size(dim))) for dim in spec.dims}
    inputs_by_name = {}
    for name in spec.inputs:
        shape = [extents[dim] for dim in spec.uses[name]]
        drawn = generator.integers(0, 2, shape) if name == "keep" else generator.standard_normal(shape)
        inputs_by_name[name] = np.asarray(drawn).astype(spec.operands[name].dtype.to_numpy())
    return inputs_by_name


# ---------------------------------------------------------------------------------------------- the rule


@pytest.mark.parametrize(
    "value, names",
    [
        ("a[n] + b[n]", "HADD2"), ("-(a[n] * b[n])", "HMUL2"), ("a[n] * b[n] + c[n]", "HFMA2"), ("c[n] - a[n] * 2", "HFMA2"),
        ("relu(a[n] - 0.5)", "HADD2+HMNMX2"), ("max(a[n], b[n]) * min(a[n], 1)", "HMNMX2+HMUL2"), ("a[n] + max(b[n], -inf)", "HMNMX2+HADD2"),
        ("where(f[n] > 0.3, a[n] + b[n], abs(c[n]))", "HADD2+SEL"), ("max(a[n] + b[n], a[n] * c[n])", "HADD2+HMUL2+HMNMX2"),
    ],
)  # fmt: skip
def test_packed_expressions(value, names):
    formula = formula_of(f"y[n] = {value}")
    types = dict.fromkeys("yabc", float16) | {"f": float32}
    assert packs(formula, types) and opcodes(formula) == names
    assert packs(formula, types | dict.fromkeys("yabc", bfloat16))
    assert not packs(formula, types | {"y": float32}) and not packs(formula, types | {"a": bfloat16})


@pytest.mark.parametrize(
    "value",
    [
        "a[n] + b[n] + c[n]", "(a[n] + b[n]) * c[n]", "a[n] * b[n] + c[n] * a[n]", "relu(a[n] + b[n]) - c[n]", "a[n] * b[n] * c[n]",
        "a[n] * 0.1", "a[n] + f[n]", "a[n] / b[n]", "exp2(a[n])", "a[n] * b[n] + (a[n] + c[n])", "a[n] + 100000",
    ],
)  # fmt: skip
def test_double_rounding_is_not_packed(value):
    assert not packs(formula_of(f"y[n] = {value}"), dict.fromkeys("yabc", float16) | {"f": float32})


def test_float32_with_one_rounding_equals_float16_arithmetic():
    """For sums, differences and products of any two float16 values, subnormal and infinite ones included."""
    generator = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        left, right = (generator.integers(0, 1 << 16, 400_000).astype(np.uint16).view(np.float16) for _ in range(2))
        for operation in (np.add, np.subtract, np.multiply):
            exact = operation(left.astype(np.float64), right.astype(np.float64)).astype(np.float16)
            single = operation(left.astype(np.float32), right.astype(np.float32)).astype(np.float16)
            assert np.array_equal(exact, single, equal_nan=True)


# ---------------------------------------------------------------------------------------------- texts


def test_packed_residual():
    """One sum and one maximum per two elements of a vector load, without conversions."""
    spec = residual(m=4, n=512)
    program = by_residual(spec).program("sm_80")
    assert program.cuda.count("__hadd2(") == program.cuda.count("__hmax2(") == 4 and "__half2float" not in program.cuda
    assert "HADD2+HMNMX2" in instructions(program)
    used = [one.name for leaf in explain(by_residual(spec), "sm_80").leaves for one in leaf.used]
    assert used == ["HADD2+HMNMX2"]


def test_float16_temporaries_stay_packed():
    """Each step rounds to its temporary; register temporaries have as many adjacent elements as the stores."""
    text = by_chain(chain(m=3, n=512, types=OPERAND_TYPES)).cuda("sm_80")
    assert text.count("__hfma2(") == text.count("__habs2(") == text.count("__hmul2_rn(") == text.count(" chosen(") - 1 == 4
    assert "__half2float" not in text and text.count("uint4*>(&Y[") == 1


@pytest.mark.parametrize(
    "target, dtype, packed", [("sm_70", float16, False), ("sm_75", float16, False), ("sm_80", bfloat16, True), ("sm_90", bfloat16, True)]
)
def test_packed_arithmetic_by_target(target, dtype, packed):
    """Packed maxima require sm_80, as does bfloat16; packed float16 sums are older."""
    text = by_residual(residual(m=4, n=512, dtype=dtype)).cuda(target)
    assert ("__hmax2" in text) == packed and ("2float(" in text) != packed
    assert dtype == bfloat16 or "__hfma2(" in by_gain(gain(m=4, n=512)).cuda(target)


def test_packed_epilogues_of_the_library():
    """Accumulated in float32, rounded to float16 in pairs, then a bias and a residual in float16."""
    definition = MatMul.fuse_epilogue("h = acc; h = relu(h + bias[n]); h = h + R[m,n]; C = h", types={"h": float16})
    text = hmma_ampere.strategy(definition(m=70, n=72, k=64)).cuda("sm_80")
    assert "__floats2half2_rn(" in text and "__hmax2(" in text and text.count("__hadd2(") >= 2 and "__half2float" not in text


def test_mma_fragments_are_packed():
    """A float16 accumulator, and a bias with any even number of elements."""
    copy, fragments, mma = Move.coalesced_copy(8).done(), Move.done(), MatMul.tile(16, 16).unroll().mma_tile().done()
    loop = MatMul.split(32).load(A, SH, copy).load(B, SH, copy).tile(32, 32).to(Warp).split(16).unroll()
    loop = loop.load(A, RF, fragments).load(B, RF, fragments).then(mma)
    definition = Fused(
        name="bounded", dims="m n k", operands={"A": "m k", "B": "k n", "bias": "n", "C": "m n"},
        body={
            "product": "acc[m,n] = sum(k, A[m,k] * B[k,n])",
            "bounds": "acc[m,n] = min(relu(acc[m,n]), 6)",
            "bias": "C[m,n] = acc[m,n] * 2 + bias[n]",
        },
        types={"acc": float16},
    )  # fmt: skip
    spec = definition(m=70, n=66, k=32)
    program = definition.tile(m=64, n=64).to(Block).step("product", loop).done()(spec).program("sm_80")
    assert program.cuda.count("__hmin2(") == 1 and program.cuda.count("__hfma2(") == 2 and "2float" not in program.cuda
    arrays = {name: np.round(2 * one) for name, one in arrays_of(spec, {}).items()}  # integers, whose sums are exact in float16
    out = simulate(program.ir, arrays, order=random.Random(2)).outputs["C"]
    assert np.array_equal(out, spec.reference(*arrays.values()))


def test_non_adjacent_elements_are_not_packed():
    """Registers of a thread tile are adjacent along m, those of the residual along n."""
    by_threads = MatMul.tile(32, 32).to(Block).epilog(RF).split(8).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    definition = MatMul.fuse_epilogue("relu(acc + R[m,n])", types={"acc": float16})
    text = by_threads(definition(m=64, n=64, k=32)).cuda("sm_80")
    assert "2*>(" in text and "__hadd2" not in text
    transposed = by_threads(definition(m=64, n=64, k=32, R=ColMajor, C=ColMajor)).cuda("sm_80")
    assert "__hadd2(" in transposed and "__half2float" not in transposed


# ---------------------------------------------------------------------------------------------- values

CASES = {
    "residual": (by_residual, residual(m=3, n=512), {}),
    "four at once": (by_residual, residual(m=3, n=300), {}),
    "odd": (by_residual, residual(m=3, n=301), {}),
    "chain": (by_chain, chain(m=3, n=256, types=OPERAND_TYPES), {}),
    "symbolic": (by_chain, chain(m=3, n=N, types=OPERAND_TYPES), {"N": 200}),
    "odd, in registers": (by_chain, chain(m=3, n=301, types=OPERAND_TYPES), {}),
    "bfloat16": (by_gain, gain(m=3, n=512, dtype=bfloat16), {}),
}


def in_steps(spec, arrays):
    """The definition with each temporary rounded to its type, which packed arithmetic equals bit by bit."""
    definition, kind = spec.definition, arrays["X"].dtype
    values = {name: one.astype(np.float64) for name, one in arrays.items()}
    rounded = lambda value: value.astype(kind).astype(np.float64)
    if "t" in definition.temporaries:
        t = rounded(values["X"] * values["g"] - values["R"])
        u = rounded(np.minimum(t, np.abs(values["X"])) - values["X"])
        return np.where(arrays["keep"] != 0, rounded(np.maximum(u * values["scale"], 0)), -0.125)
    return rounded(values["X"] * values["g"] + values["R"] if "g" in values else np.maximum(values["X"] + values["R"], 0))


@pytest.mark.parametrize("name", CASES)
def test_packed_results(name):
    strategy, spec, sizes = CASES[name]
    program = strategy(spec).program("sm_80")
    arrays = arrays_of(spec, sizes)
    outputs = simulate(program.ir, arrays, sizes, order=random.Random(3)).outputs["Y"]
    assert np.array_equal(outputs.astype(np.float64), in_steps(spec, arrays))
    assert not [one for one in check(program.ir) if one.severity == "error"]
    assert any("2" in one for one in instructions(program)) != (name == "odd")


def test_fma_is_rounded_once():
    """Just below the midpoint of two float16 values: the float32 sum is the midpoint and rounds the other way."""
    spec, shape = gain(m=1, n=256), (1, 256)
    arrays = {"X": np.full(shape, 1025 / 1024), "g": np.full(256, 1023 / 2**21), "R": np.full(shape, 1 + 2**-10)}
    arrays = {name: one.astype(np.float16) for name, one in arrays.items()}
    results = {}
    for target in ("sm_80", "sm_52"):
        program = by_gain(spec).program(target)
        results[target] = simulate(program.ir, arrays).outputs["Y"].astype(np.float64)
    assert (results["sm_80"] == 1 + 2**-10).all() and (results["sm_52"] == 1 + 2**-9).all()


def test_packed_maximum_ignores_nan():
    """`relu` of NaN is 0, packed or not; infinities and signed zeros are unchanged."""
    spec = residual(m=1, n=256)
    ends = np.array([np.nan, np.inf, -np.inf, 65504, -0.0, 2**-24, -(2**-24), 1], np.float16)
    arrays = {"X": np.tile(ends, 32)[None], "R": np.repeat(ends, 32)[None]}
    pairs, single = (simulate(by_residual(spec).program(target).ir, arrays).outputs["Y"] for target in ("sm_80", "sm_75"))
    assert np.array_equal(pairs, single) and not np.isnan(pairs).any()


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_texts_on_a_cpu(tmp_path):
    names = ("symbolic", "four at once", "bfloat16")
    host = HostProgram([Printed.of(CASES[name][0](CASES[name][1]).program("sm_80")) for name in names], tmp_path)
    for number, name in enumerate(names):
        _, spec, sizes = CASES[name]
        arrays = arrays_of(spec, sizes, number)
        outputs = host.run(number, arrays, sizes, seed=number)["Y"]
        assert np.array_equal(outputs.astype(np.float64), in_steps(spec, arrays)), name


# ---------------------------------------------------------------------------------------------- approximations

gated, _ = by_lanes({"gate": "t[m,n] = tanh(X[m,n])", "y": "Y[m,n] = R[m,n] - t[m,n] * R[m,n]"}, THREE, {"t": float16})
eight = Move.tile(1, 256).to(Warp).tile(1, 8).to(Lane).done()
by_gated = gated.tile(m=1, n=512).to(Block).load("X", RF, eight).step("gate", Pointwise.done(APPROXIMATE_PAIRS)).done()


def test_packed_approximations_on_request(tmp_path):
    """One instruction computes `tanh` of two float16 values on request; otherwise `tanh` is computed in float32."""
    spec = gated(m=2, n=520)
    program = by_gated(spec).program("sm_80")
    assert program.cuda.count("tanh_pair(*") == 4 and "tanhf" not in program.cuda and "MUFU.TANH" in instructions(program)
    assert "tanhf" in gated.tile(m=1, n=512).to(Block).load("X", RF, eight).done()(spec).cuda("sm_80")
    assert "tanh.approx.f16x2" in compile_cuda(program.cuda, "sm_80").ptx
    assert Strategy.from_json(by_gated.to_json()) == by_gated

    arrays = arrays_of(spec, {})
    outputs = simulate(program.ir, arrays, {}, order=random.Random(1)).outputs["Y"]
    kept = np.tanh(arrays["X"].astype(np.float64)).astype(np.float16).astype(np.float64)
    right = ((1 - kept) * arrays["R"]).astype(np.float16)
    assert np.array_equal(outputs, right)
    if COMPILER is not None:
        run = HostProgram([Printed.of(program)], tmp_path).run(0, arrays, {}, seed=0)["Y"]
        assert np.abs(run.astype(np.float64) - right).max() <= 2**-8


@pytest.mark.parametrize(
    "value, dtype, target, wrong",
    [
        ("tanh(X[m,n])", float32, "sm_80", "formula"), ("X[m,n] + 1", float16, "sm_80", "formula"),
        ("exp2(X[m,n] - 1)", float16, "sm_80", "formula"), ("exp2(X[m,n])", float16, "sm_70", "sm_75 or newer"),
        ("tanh(X[m,n])", bfloat16, "sm_80", "sm_90 or newer"),
    ],
)  # fmt: skip
def test_approximation_refusals(value, dtype, target, wrong):
    definition = Fused(name="rows", dims="m n", operands={"X": "m n", "Y": "m n"}, body={"y": f"Y[m,n] = {value}"})
    strategy = definition.tile(m=1).to(Block).load("X", RF, eight).step("y", Pointwise.done(APPROXIMATE_PAIRS)).done()
    with pytest.raises(FireironError, match=wrong):
        strategy(definition(m=4, n=512, dtype=dtype)).cuda(target)


# ---------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')")
@pytest.mark.parametrize("name", CASES)
def test_packed_arithmetic_on_a_gpu(name):
    """Equal bit by bit to float16 arithmetic, step by step."""
    xp = pytest.importorskip("cupy")
    strategy, spec, sizes = CASES[name]
    if spec.operands["X"].dtype == bfloat16:
        pytest.skip("NumPy's arrays of bfloat16 are none of CuPy")
    arrays = arrays_of(spec, sizes)
    output = strategy(spec).compile()(*(xp.asarray(one) if one.shape else one[()] for one in arrays.values()))
    assert np.array_equal(output.get().astype(np.float64), in_steps(spec, arrays))


# ---------------------------------------------------------------------------------------------- compiled, and its cost


def test_ptx_uses_packed_instructions():
    program = by_chain(chain(m=3, n=512, types=OPERAND_TYPES)).program("sm_80")
    compiled = compile_cuda(program.cuda, "sm_80")
    assert compiled.ptx.count("fma.rn.f16x2") == compiled.ptx.count("min.f16x2") == compiled.ptx.count("mul.rn.f16x2") == 4
    assert "cvt.f32.f16" not in compiled.ptx and compiled.resources[program.name].spill_stores == 0


def test_packed_instructions_cost_half():
    packed, single = (predict(by_residual(residual(m=64, n=512)).program(target)).instructions["all"] for target in ("sm_80", "sm_75"))
    assert packed < single
