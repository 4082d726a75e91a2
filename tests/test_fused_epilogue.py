"""Epilogues on every GEMM strategy: simulated in random order, checked, and printed (oracle: the definition in float64)."""

import random
import re

import making
import numpy as np
import pytest
from near import Near
from printed_text import COMPILER, HostProgram, Printed
from problems import NAMES, library, sizes_of_run_time

from fireiron import *
from fireiron import matmul_problem
from fireiron.check import check
from fireiron.errors import FireironError
from fireiron.language.library import bind, find
from fireiron.lower import walk as lower
from fireiron.measure.inputs import shape_of
from fireiron.sim import simulate
from fireiron.specs import philox
from fireiron.specs.epilogue import epilogue, folds_rows, transposed, without_batch
from fireiron.values.expr import constant

TARGETS = {"hmma_volta": "sm_70", "hmma_turing": "sm_75", "wmma_simple": "sm_70", "wmma_optimized": "sm_75"}

TEXTS = {
    "bias": "relu(acc + bias[n])",
    "residual": "alpha * acc + beta * R[m,n]",
    "scaled": "r[m] * acc * c[n]",
    "two": "acc = acc + bias[n]; Z = acc; C = gelu(acc)",
    "masked": "where(D[m,n] > 0, silu(acc) * 2, 0)",
}
STACKED = {name: text.replace("[m,n]", "[b,m,n]").replace("r[m]", "r[b,m]") for name, text in TEXTS.items()}

SUMS = "acc = relu(acc + bias[n]); C = acc; y[m] += sum(n, acc); z[n] += sum(m, acc)"

ALL = [name for name in NAMES if name != "split_k_blocks"]
"""GEMM strategies, except the one whose blocks compute parts of the sum over k."""

ALIKE = ("gemm_nn", "gemm_tn", "gemm_tt", "hmma_turing", "hopper_skinny", "listing_1", "wmma_simple")
"""Strategies that differ from another one only in ways irrelevant to epilogues: each is tested with one kind, except in the long tier."""

NUMBERS = {"alpha": 0.5, "beta": -2.0}


def of(name, text, sizes=(72, 56, 40), types=None, **options):
    """The library's strategy on a GEMM with an epilogue, at misaligned sizes with as few overhanging tiles as possible."""
    entry = find(name)
    given = dict(zip("MNK", sizes))
    return bind(entry, given | ({"batch": 2} if entry.batched else {}), options).fuse_epilogue(text, types)


def arrays_of(spec, sizes=None, seed=0):
    """Small random numbers, so that float16 rounding errors are small; scalars are fixed."""
    generator = np.random.default_rng(seed)
    extents = {dim: (sizes or {}).get(str(spec.size(dim)), constant(spec.size(dim))) for dim in spec.dims}
    arrays = {}
    for name in spec.inputs:
        drawn = generator.standard_normal([extents[dim] for dim in spec.uses[name]]) / 2
        arrays[name] = drawn.astype(spec.operands[name].dtype.to_numpy()) if spec.uses[name] else np.float32(NUMBERS[name])
    return arrays


def wanted(spec, arrays):
    results = spec.reference(*arrays.values())
    return dict(zip(spec.outputs, results if isinstance(results, tuple) else (results,)))


def close(spec, outputs, arrays):
    """Whether outputs equal the definition within the rounding errors of the accumulator's type."""
    half = any(kind == float16 for _, kind in spec.definition.types)
    for name, right in wanted(spec, arrays).items():
        loose = 2e-2 if half else {2: 4e-3, 4: 1e-4, 8: 1e-12}[spec.operands[name].dtype.bytes]
        loose = 2e-2 if spec.operands[name].dtype == bfloat16 else loose
        scale = max(1.0, float(np.abs(right.astype(np.float64)).max()))
        difference = np.abs(outputs[name].astype(np.float64) - right.astype(np.float64))
        assert difference.max() <= loose * scale, (name, float(difference.max()), scale)


def agrees(strategy, target=None, sizes=None, seed=1):
    """Check the program, and that its simulated outputs equal the definition."""
    program = strategy.program(target or strategy.target)
    assert not [one for one in check(program.ir) if one.severity == "error"]
    arrays = arrays_of(program.spec, sizes)
    for copy in program.preceding:
        arrays_in = {"src": arrays[copy.name]}
        arrays[copy.name] = simulate(copy.program.ir, arrays_in, sizes or {}).outputs["dst"]
    outputs = simulate(program.ir, arrays, sizes or {}, order=random.Random(seed)).outputs
    close(program.spec, outputs, arrays)
    return program


# ---------------------------------------------------------------------------------------------- all strategies


def in_short(name, kind):
    """Whether a strategy with a kind of epilogue is tested outside the long tier."""
    return name not in ALIKE or ALIKE.index(name) % len(TEXTS) == list(TEXTS).index(kind)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(
    ("name", "kind"),
    [pytest.param(name, kind, marks=() if in_short(name, kind) else pytest.mark.nightly) for name in ALL for kind in TEXTS],
)
def test_epilogue_on_each_strategy(name, kind):
    text = (STACKED if find(name).batched else TEXTS)[kind]
    agrees(of(name, text), TARGETS.get(name))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ["hopper", "hopper_small", "hmma_ampere", "gemm_tt"])
@pytest.mark.parametrize("order", [RowMajor, ColMajor], ids=["NN", "NT"])
def test_epilogue_storage_orders(name, order):
    """The other order of B, and a column-major residual, at sizes whose rows are not multiples of 16 bytes."""
    sizes = (70, 46, 36)
    base = bind(find(name), dict(zip("MNK", sizes)), {"B": order})
    agrees(base.fuse_epilogue("acc + beta * R[m,n]", R=ColMajor))
    agrees(base.fuse_epilogue("acc * r[m] + S[n,m]", types={"r": float32, "S": float32}))


@pytest.mark.parametrize("result", [float32, bfloat16], ids=str)
@pytest.mark.parametrize("name", ["hopper", "hmma_ampere"])
def test_epilogue_result_types(name, result):
    kinds = {"dtype": bfloat16, "c_dtype": result}
    agrees(of(name, "acc = acc + bias[n]; Z = acc; C = gelu(acc)", types={"bias": float32, "Z": float32}, **kinds))


@pytest.mark.parametrize("name", ["gemm_tt", "hmma_ampere", "small", "wmma_simple"])
def test_epilogue_at_run_time_sizes(name):
    sizes = sizes_of_run_time(name)
    base = bind(find(name), dict(zip("MNK", sizes)))
    known = {str(size): number for size, number in zip(sizes, (64, 48, 32)) if not isinstance(size, int)}
    agrees(base.fuse_epilogue("relu(acc + bias[n]) + R[m,n]"), TARGETS.get(name), known)


def test_accumulator_type_is_that_of_the_plain_gemm():
    assert dict(of("hgemm_nt", "relu(acc)").spec.definition.types) == {"acc": float16}
    assert dict(of("hmma_ampere", "relu(acc)").spec.definition.types) == {}


# ---------------------------------------------------------------------------------------------- row and column reductions


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    "name",
    [
        *("gemm_tt", "hmma_ampere", "hmma_volta", "hopper", "hopper_skinny", "maxwell", "naive", "sgemm", "small", "split_k"),
        pytest.param("wmma_optimized", marks=pytest.mark.nightly),
    ],
)
def test_row_and_column_reductions(name):
    program = agrees(of(name, SUMS, (200, 136, 40)), TARGETS.get(name))
    added = re.findall(r"^ +(?:atomicAdd|add_[24]_floats_in_memory)\(\s*&(\w)(?:_target)?\[", program.cuda, re.MULTILINE)
    assert list(dict.fromkeys(added)) == ["y", "z"] and making.effect_of(program.ir, "zeroed") == ("y", "z")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["hmma_ampere", "small", "wmma_simple"])
@pytest.mark.parametrize(
    "text",
    [
        "z[n] += sum(m, where(acc > 0, 1, 0)); C = acc",
        "C = acc / size(n); y[m] += sum(n, exp(acc * 0.1 + bias[n]))",
        "where(n <= m and m < size(m) - 2, acc, 0)",
    ],
)
def test_reductions_of_expressions_at_edges(name, text):
    """Elements past the end contribute nothing, whatever value the expression has for them."""
    agrees(of(name, text, (33, 40, 24)), TARGETS.get(name))


def test_assignment_is_no_reduction():
    with pytest.raises(FireironError, match=r"is not a name first: max\(acc\[m,n\], alpha\)"):
        MatMul.fuse_epilogue("max(alpha, acc)")


def test_reduction_within_a_block_uses_no_atomics():
    rows = MatMul.tile(16, 32).to(Block).epilog(RF).split(8).tile(16, 16).to(Warp).tile(4, 2).to(Lane).split(1).tile(1, 1).done()
    program = agrees(rows(MatMul(48, 32, 24, C=RowMajor)(GL, GL, GL)(Kernel)).fuse_epilogue("C = acc; y[m] = sum(n, acc)"))
    assert "atomicAdd" not in program.cuda and not making.effect_of(program.ir, "zeroed")


def test_illegal_reductions_are_refused():
    with pytest.raises(FireironError, match="each block adds its part of y, but in float16 each addition would round"):
        _ = of("hmma_ampere", SUMS, (72, 264, 40), types={"y": float16}).program("sm_80").ir
    with pytest.raises(FireironError, match="store_y: each tile computes a part of y, but = combines only sums in memory") as error:
        _ = of("hmma_ampere", "C = acc; y[m] = max(n, acc)", (72, 264, 40)).program("sm_80").ir
    assert error.value.legal == "a tile with all of n"
    for text, message in (("y[m] max= acc", "neither in the result nor reduced"), ("y[m] max= sum(n, acc)", "sum needs the sign =")):
        with pytest.raises(FireironError, match=message):
            MatMul.fuse_epilogue(f"C = acc; {text}")


EXTREMA = "C = acc; y[m] max= max(n, acc); w[m] = min(n, abs(acc + bias[n])); z[n] += sum(m, acc); q[m] = prod(n, 1 + acc * 0.01)"


@pytest.mark.parametrize("name, options", [("hmma_ampere", {}), ("small", {})])
def test_row_maxima_within_a_block(name, options):
    """Also of rows that end inside a tile. No row spans two blocks, so only column sums use atomics."""
    strategy = of(name, EXTREMA, (200, 24, 40), **options)
    program = agrees(strategy, TARGETS.get(name))
    additions = re.findall(r"^ +(?:atomicAdd|add_2_floats_in_memory)\(", program.cuda, re.MULTILINE)
    assert len(additions) == 1 and making.effect_of(program.ir, "zeroed") == ("z",)


# ---------------------------------------------------------------------------------------------- texts


def test_epilogue_text_of_other_gemms():
    assert transposed("acc * r[m] + where(n <= m, R[m,n], 0)") == "acc * r[n] + where(m <= n, R[n,m], 0)"
    assert without_batch("acc + R[b,m,n] * r[b, m]") == "acc + R[m,n] * r[m]"
    assert [folds_rows(text) for text in ("acc + R[b,m,n]", "where(m < 3, acc, 0)", "acc * s[b]")] == [True, False, False]
    assert epilogue("acc * s[b]", signature="bmk,bkn->bmn").fused_definition.uses["s"] == ("b",)


def test_epilogue_of_an_unbound_strategy():
    strategy = MatMul.tile(16, 16).to(Block).epilog(RF).split(8).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    finished = strategy.fuse_epilogue("relu(acc + bias[n])")
    assert finished.start == MatMul.fuse_epilogue("relu(acc + bias[n])") and finished.steps == strategy.steps
    agrees(finished(finished.start(m=40, n=24, k=16, dtype=float32)))


def test_epilogue_refusals():
    base = bind(find("hmma_ampere"), {"M": 64, "N": 64, "K": 32})
    for arguments, message in (
        (lambda: base.fuse_epilogue(""), "a text such as"),
        (lambda: base.fuse_epilogue("Z = acc"), "no statement assigns to C"),
        (lambda: base.fuse_epilogue("acc + bias[n]", bais=ColMajor), "bais is not an operand of the epilogue"),
        (lambda: base.fuse_epilogue("acc", types={"A": float32}), "A is not an operand of the epilogue"),
        (lambda: find("hmma_ampere").strategy.fuse_epilogue("acc + bias[n]", {"bias": float32}), "not bound"),
        (lambda: Move.tile(4, 4).to(Block).done().fuse_epilogue("acc"), "starts from Move"),
        (lambda: epilogue("acc", signature="mk,nk->k"), "the signature is not that of a matmul"),
        (lambda: of("split_k_blocks", "relu(acc)").program("sm_80"), "no block has a complete sum"),
    ):
        with pytest.raises(FireironError, match=message):
            arguments()


# ---------------------------------------------------------------------------------------------- printed text


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_epilogues_on_a_cpu(tmp_path):
    """Executed on the CPU: overhanging tiles, fragments, several outputs, atomics, a persistent kernel with TMA."""
    cases = [
        of("hmma_ampere", SUMS, (72, 56, 40)).program("sm_80"),
        of("wmma_optimized", TEXTS["two"], (72, 56, 40)).program("sm_75"),
        of("hopper", TEXTS["two"], (136, 264, 72)).program("sm_90a"),
        of("hopper_batched", STACKED["residual"], (72, 136, 72)).program("sm_90a"),
        of("gemm_tt", TEXTS["masked"]).program("sm_80"),
    ]
    host = HostProgram(map(Printed.of, cases), tmp_path)
    for number, program in enumerate(cases):
        arrays = arrays_of(program.spec)
        close(program.spec, host.run(number, arrays), arrays)


@pytest.mark.parametrize(
    "name, values, text, wanted",
    [
        (
            "hopper",
            {"bm": 128, "bn": 256, "wn": 256},
            "relu(acc + bias[n])",
            "const __half2 bias_pair = *reinterpret_cast<const __half2*>(",
        ),
        ("hmma_ampere", {}, "acc + R[m,n]", "const __half2 r_pair = *reinterpret_cast<const __half2*>("),
        ("gemm_tt", {}, "acc + bias[n]", "const float4 bias_four = *reinterpret_cast<const float4*>("),
    ],
)
def test_epilogue_operands_are_loaded_as_vectors(name, values, text, wanted):
    base = bind(find(name), dict.fromkeys("MNK", 512), values=values)
    assert wanted in base.fuse_epilogue(text).cuda(TARGETS.get(name))
    odd = bind(find(name), {"M": 512, "N": 509, "K": 512}, values=values) if name != "hopper" else base
    assert name == "hopper" or wanted not in odd.fuse_epilogue(text).cuda(TARGETS.get(name))


TILES = (
    ("hopper", {"bm": 128, "bn": 256, "bk": 64, "wm": 64, "wn": 256, "epi_m": 64, "epi_n": 256, "stages": 3, "group_m": 4}),
    ("hopper", {"bm": 192, "bn": 192, "bk": 64, "wm": 64, "wn": 192, "epi_m": 64, "epi_n": 192, "stages": 3, "group_m": 4}),
    ("hmma_ampere", {}),
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name, values", TILES, ids=["128x256", "192x192", "hmma_ampere"])
def test_epilogue_adds_few_registers(name, values):
    """An epilogue uses the accumulator's registers: no spills, and few more registers than the plain kernel."""
    base = bind(find(name), dict.fromkeys("MNK", 4096), values=values)
    target = "sm_90a" if name == "hopper" else "sm_80"
    plain, finished = (one.compile(target) for one in (base, base.fuse_epilogue("relu(acc + bias[n])")))
    if plain.compiler is None:
        pytest.skip("no NVRTC for the target")
    assert finished.resources.spill_stores == 0
    assert finished.resources.registers <= plain.resources.registers + 16


# ---------------------------------------------------------------------------------------------- fireiron.matmul


def float16_array(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def near(a, b, expected, out=None, **options):
    """Compare the outputs of a GEMM with an epilogue, each element within its own error bound; arrays have the kernel's shapes."""
    spec = matmul.kernel(a, b, out, **options).program.spec
    given = {"A": a, "B": b, **{name: one for name, one in options.items() if name in spec.operands}}
    arrays = {name: np.float32(one) if np.isscalar(one) else one.reshape(shape_of(spec.operands[name], {})) for name, one in given.items()}
    return Near(spec, arrays, expected)


def test_matmul_with_an_epilogue():
    a, b, bias = float16_array(50, 40), float16_array(40, 24), float16_array(24).astype(np.float32)
    product = a.astype(np.float64) @ b + bias
    relu, scaled = {"epilogue": "relu(acc + bias[n])", "bias": bias}, {"epilogue": "alpha * (acc + bias[n])", "bias": bias, "alpha": 2}
    near(a, b, {"C": np.maximum(product, 0)}, **relu).require({"C": matmul(a, b, **relu)})
    out = np.empty((50, 24), np.float32)
    assert matmul(a, b, out, **scaled) is out
    near(a, b, {"C": 2 * product}, out, **scaled).require({"C": out})
    two = {"epilogue": "acc = acc + bias[n]; Z = acc; C = relu(acc)", "bias": bias}
    judge = near(a, b, {"Z": product, "C": np.maximum(product, 0)}, types={"Z": "float32"}, **two)
    pre, act = matmul(a, b, types={"Z": "float32"}, **two)
    assert (pre.dtype, act.dtype) == (np.float32, np.float16)
    judge.require({"Z": pre, "C": act})
    both = {"C": np.empty((50, 24), np.float16), "Z": np.empty((50, 24), np.float32)}
    pre, act = matmul(a, b, both, **two)
    assert pre is both["Z"] and act is both["C"]
    judge.require(both)
    sums = {"epilogue": "acc = acc + bias[n]; C = acc; y[m] += sum(n, acc)", "bias": bias}
    c, y = matmul(a, b, **sums)
    assert y.dtype == np.float32
    near(a, b, {"C": product, "y": product.sum(1)}, **sums).require({"C": c, "y": y})


@pytest.mark.parametrize(
    "text, folded",
    [("relu(acc + bias[n])", True), ("acc + bias[n] + R[b,m,n]", True), ("acc * r[m] + bias[n]", False), ("acc * s[b] + bias[n]", False)],
)
def test_batched_matmul_with_an_epilogue(text, folded):
    a, b = float16_array(3, 20, 40), float16_array(40, 24)
    arrays = {"bias": float16_array(24), "R": float16_array(3, 20, 24), "r": float16_array(20), "s": float16_array(3)}
    given = {name: array for name, array in arrays.items() if re.search(rf"\b{name}\[", text)}
    product = np.matmul(a.astype(np.float64), b)
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    right = {
        "r": np.maximum(product + wide["bias"], 0),
        "R": product + wide["bias"] + wide["R"],
        "m": product * wide["r"][:, None] + wide["bias"],
        "b": product * wide["s"][:, None, None] + wide["bias"],
    }["r" if text[0] == "r" else "R" if "R" in text else "m" if "r[m]" in text else "b"]
    near(a, b, {"C": right}, epilogue=text, **given).require({"C": matmul(a, b, epilogue=text, **given)})
    spec = matmul.kernel(a, b, epilogue=text, **given).program.spec
    assert ("b" not in spec.dims) == folded
    first_only = {name: array[:1] if name in "Rs" else array for name, array in given.items()}
    if "s[b" not in text:
        near(a[:1], b[None], {"C": right[:1]}, epilogue=text, **first_only).require(
            {"C": matmul(a[:1], b[None], epilogue=text, **first_only)}
        )


def test_batched_matmul_with_row_operands():
    """An array for each row of each matrix, and reductions of such rows, with one matrix B for the whole batch."""
    a, b, r = float16_array(3, 20, 40), float16_array(40, 24), float16_array(3, 20)
    product = np.matmul(a.astype(np.float64), b) * r[..., None]
    options = {"epilogue": "acc = acc * r[b,m]; C = acc; y[b,m] += sum(n, acc)", "r": r}
    result, sums = matmul(a, b, **options)
    near(a, b, {"C": product, "y": product.sum(2)}, **options).require({"C": result, "y": sums})


def test_matmul_plans_are_cached(monkeypatch):
    from fireiron import matmul as product

    a, b, bias = float16_array(32, 16), float16_array(16, 24), float16_array(24)
    kernel = product.kernel(a, b, epilogue="acc + bias[n]", bias=bias)
    assert product.kernel(a.copy(), b.copy(), epilogue="acc + bias[n]", bias=bias.copy()) is kernel
    assert product.kernel(a, b, epilogue="acc + bias[n]", bias=bias.astype(np.float32)) is not kernel
    assert product.kernel(a, b, epilogue="acc - bias[n]", bias=bias) is not kernel


def test_matmul_epilogue_refusals():
    a, b, bias = float16_array(32, 16), float16_array(16, 24), float16_array(24)
    text = "relu(acc + bias[n])"
    for arguments, message in (
        ({"epilogue": text}, "reads bias, which is missing"),
        ({"epilogue": "acc + bais[n]", "bias": bias}, "(?s)reads bais, which is missing.*did you mean bias"),
        ({"epilogue": text, "bias": bias, "scale": 2}, "does not read scale"),
        ({"epilogue": text, "bias": bias[:3]}, "bias has the shape"),
        ({"epilogue": text, "bias": 2.0}, "bias is a number, but the epilogue reads bias"),
        ({"epilogue": "acc * bias", "bias": bias}, "bias is a number, but an array of shape .24,. is given"),
        ({"bias": bias}, "bias is given, but no epilogue reads it"),
        ({"epilogue": text, "bias": bias, "types": {"Z": "float32"}}, "types has Z, which is not a further output"),
        ({"epilogue": "Z = acc; C = relu(acc)", "out": np.empty((32, 24), np.float16)}, "1 arrays for 2 outputs of the epilogue"),
    ):
        with pytest.raises(FireironError, match=message):
            matmul(a, b, **arguments)


def test_transposed_matmul_with_an_epilogue(monkeypatch):
    """GPU arrays may use the transposed GEMM: m and n are exchanged in the text, and the results are transposed back."""
    generator = np.random.default_rng(0)
    a, b, bias, r, residual = (generator.standard_normal(shape).astype(np.float32) for shape in ((40, 24), (24, 56), 56, 40, (40, 56)))
    text = "acc = acc * r[m] + bias[n] + R[m,n]; Z = acc; C = where(n <= m, acc, 0); y[m] += sum(n, acc)"
    given = {"bias": bias, "r": r, "R": residual}
    product = (a.astype(np.float64) @ b) * r[:, None] + bias + residual
    judge = near(a, b, {"Z": product, "C": np.tril(product), "y": product.sum(1)}, epilogue=text, **given)
    monkeypatch.setattr(matmul_problem, "have_views", lambda arrays: True)
    matmul.clear()
    z, c, y = matmul(a, b, epilogue=text, **given)
    kernel = matmul.kernel(a, b, epilogue=text, **given)
    matmul.clear()
    assert constant(kernel.program.spec.size("m")) == 56 and (z.shape, c.shape, y.shape) == ((40, 56), (40, 56), (40,))
    judge.require({"Z": z, "C": c, "y": y})


def test_fused_epilogue_requires_the_accumulator():
    """The registers of another temporary have no owner: the text of the store would read uninitialized values."""
    maxwell = library("maxwell").strategy
    spec = library("maxwell").spec(64, 64, 16)
    assert maxwell(spec).fuse_epilogue("C = sigmoid(acc)").program("sm_80").cuda
    with pytest.raises(DecompositionError, match="a micro-kernel can store only the registers of the accumulator"):
        _ = maxwell(spec).fuse_epilogue("C = sigmoid(acc); Z = acc").program("sm_80").cuda


# ---------------------------------------------------------------------------------------------- integer sums

REAL = {
    "acc * s[n]": lambda acc, s: (acc * s,),
    "relu(acc - 63.5)": lambda acc, s: (np.maximum(acc - 63.5, 0),),
    "acc = acc * 0.5; Z = acc + 0.25; C = relu(acc) + s[n]": lambda acc, s: (acc * 0.5 + 0.25, np.maximum(acc * 0.5, 0) + s),
    "acc = acc - 7; acc = acc * s[n]; C = acc + 1": lambda acc, s: ((acc - 7) * s + 1,),
}
"""Epilogues that convert an integer sum to float, and their values."""

BY_THREADS = MatMul.tile(16, 16).to(Block).epilog(RF, int32).split(8).tile(2, 2).to(Thread).split(1).tile(1, 1).done()
BY_FRAGMENTS = (
    MatMul.tile(32, 32).to(Block).epilog(RF, int32).split(32).load(A, SH).load(B, SH)
    .tile(16, 16).to(Warp).split(32).load(A, RF).load(B, RF).mma_tile().done()
)  # fmt: skip


def of_integers(text, sizes, values):
    """The definition of an int8 GEMM with an epilogue on float operands, its arrays and the expected outputs."""
    kind = MatMul.fuse_epilogue(text)
    further = {name: float32 for name in ("s", "C", "Z") if name in kind.fused_definition.uses}
    spec = kind(**sizes, dtype=int8, types=further, B=ColMajor)
    random = np.random.default_rng(0)
    a = random.integers(-9, 10, (sizes["m"], sizes["k"]), dtype=np.int8)
    b = np.asfortranarray(random.integers(-9, 10, (sizes["k"], sizes["n"]), dtype=np.int8))
    given = {"A": a, "B": b, **({"s": values} if "s" in further else {})}
    right = dict(zip(sorted(spec.outputs, reverse=True), REAL[text](a.astype(int) @ b.astype(int), values), strict=True))
    return spec, given, right


def are_right(got, right):
    got = got if isinstance(got, dict) else dict(zip(right, got if isinstance(got, tuple) else (got,), strict=True))
    return all(np.allclose(got[name], one, rtol=1e-6, atol=1e-5) for name, one in right.items())


@pytest.mark.parametrize("text", REAL)
def test_floats_from_an_integer_sum_stay_floats(text, tmp_path):
    """In a user's definition, by threads and by tensor cores, in each oracle: no conversion to integers before C."""
    scale = np.linspace(0.1, 3.3, 32, dtype=np.float32)
    spec, given, right = of_integers(text, {"m": 32, "n": 32, "k": 32}, scale)
    outputs = {name: right[name] for name in spec.outputs}
    assert are_right(spec.reference(*given.values()), outputs)
    for strategy in (BY_THREADS, BY_FRAGMENTS):
        assert are_right(simulate(strategy(spec).program("sm_80").ir, given).outputs, outputs), strategy
    if COMPILER is not None:
        host = HostProgram([Printed.of(one(spec).program("sm_80")) for one in (BY_THREADS, BY_FRAGMENTS)], tmp_path)
        assert all(are_right(host.run(number, given), outputs) for number in range(2))


def test_a_final_step_keeps_floats():
    """A step after a loop that overwrites the int32 sum of the loop: the result is a float, as in a definition without a loop."""
    definition = Fused(
        name="scaled", dims="m n k", loop="k", operands={"A": "m k", "B": "k n", "s": "n", "C": "m n"}, init={"zero": "acc[m,n] = 0"},
        body={"product": "acc[m,n] += sum(k, A[m,k] * B[k,n])"},
        final={"scale": "acc[m,n] = acc[m,n] * s[n]", "shift": "acc[m,n] = acc[m,n] + s[n]", "store": "C[m,n] = acc[m,n]"},
        types={"A": int8, "B": int8, "s": float32, "C": float32},
    )  # fmt: skip
    strategy = definition.tile(m=8, n=8).to(Block).split(k=8).step("product", MatMul.tile(1, 1).to(Thread).split(1).done()).done()
    generator = np.random.default_rng(0)
    a, b = generator.integers(-5, 6, (8, 16)).astype(np.int8), generator.integers(-5, 6, (16, 8)).astype(np.int8)
    s = generator.random(8, np.float32)
    result = strategy(definition(m=8, n=8, k=16)).compile("sm_80")(a, b, s)
    assert np.allclose(result, (a.astype(int) @ b.astype(int)) * s + s, rtol=1e-6)


@pytest.mark.parametrize("text", ["acc * s[n]", "relu(acc - 63.5)"])
def test_floats_from_an_integer_sum_by_strategy_and_matmul(text):
    """By a strategy with an epilogue, and by `matmul`."""
    scale = np.linspace(0.1, 3.3, 64, dtype=np.float32)
    _, given, right = of_integers(text, {"m": 64, "n": 64, "k": 32}, scale)
    plain = MatMul(64, 64, 32, dtype=int8, c_dtype=float32, A=RowMajor, B=ColMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    assert are_right(BY_THREADS(plain).fuse_epilogue(text).compile("sm_80")(*given.values()), right)
    further = {"s": scale} if "s" in given else {}
    assert are_right(matmul(given["A"], given["B"], c_dtype="float32", epilogue=text, **further), right)


def test_loop_carried_floats_of_an_integer_sum_are_refused():
    with pytest.raises(FireironError, match="step scale overwrites acc, which is int32, with floats"):
        Fused(
            name="turns", dims="m n k", loop="k", operands={"A": "m k", "B": "k n", "s": "n", "C": "m n"},
            init={"zero": "acc[m,n] = 0"},
            body={"product": "acc[m,n] += sum(k, A[m,k] * B[k,n])", "scale": "acc[m,n] = acc[m,n] * s[n]"},
            final={"store": "C[m,n] = acc[m,n]"},
        )(m=32, n=32, k=32, dtype=int8, types={"s": float32, "C": float32})  # fmt: skip


@pytest.mark.parametrize(("factor", "outermost"), [("uniform(int32(seed), m, n // 2, 0, 0, n % 2)", "n"), ("X[m,n]", "m")])
def test_elements_of_one_random_number_follow_each_other(factor, outermost):
    """Otherwise the shared parts of the random numbers of a whole row are in registers at the same time, and spill."""
    text = of("hopper", f"acc * {factor}", (128, 256, 64)).cuda()
    loops = [line.split()[2] for line in text.splitlines() if "for (int epilogue_" in line]
    assert loops[0] == f"epilogue_{outermost}"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("factor", "is_smaller"), [("uniform(int32(s), m, n // 2, 0, 0, n % 2)", True), ("s", False)])
def test_tiles_have_fewer_elements_per_thread_for_random_numbers(factor, is_smaller):
    a, b = (np.zeros(shape, np.float16) for shape in ((4096, 512), (512, 4096)))
    choice = matmul.choice(a, b, epilogue=f"acc * {factor}", s=1, arch="sm_90a")
    assert ("fewer elements per thread" in choice.why) == is_smaller


def test_only_the_matmul_with_its_epilogue_is_lowered(monkeypatch):
    a, b, bias = (np.zeros(shape, np.float16) for shape in ((512, 256), (256, 512), 512))
    walked, walk = [], lower.walk
    monkeypatch.setattr(lower, "walk", lambda tree, spec, name: walked.append(spec) or walk(tree, spec, name))
    choice = matmul.choice(a, b, epilogue="relu(acc - 3 * bias[n])", bias=bias, arch="sm_90a")
    assert walked == [choice.program.spec] and choice.record is not None


def test_random_numbers_of_an_epilogue():
    a, b = (np.random.default_rng(seed).standard_normal(shape).astype(np.float16) for seed, shape in enumerate(((72, 40), (40, 56))))
    got = matmul(a, b, epilogue="where(uniform(int32(seed), m, n // 2, 0, 0, n % 2) < keep, acc, 0)", seed=5, keep=0.75, arch="sm_90a")
    m, n = np.indices((72, 56))
    kept = philox.uniform(5, m, n // 2, 0, 0, word=n % 2) < 0.75
    assert np.allclose(got, np.where(kept, a.astype(float) @ b, 0), atol=0.02) and (got[~kept] == 0).all() and 0.6 < kept.mean() < 0.9
