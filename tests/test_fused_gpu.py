"""On a GPU: fused kernels at edges, run-time sizes and arbitrary strides, each element within its error bound (oracle O11: float64).

Outputs are initialized to NaN. Guard zones around each array and between rows detect out-of-bounds accesses.
On small integers results are bit-equal to those of the simulator and of the definition.
"""

import functools

import numpy as np
import pytest
from problems import library
from test_fused_epilogue import NUMBERS, STACKED, SUMS, TEXTS, of
from test_graphene_text import BY_HAND
from zones import known, placed, written_outside

from fireiron import *
from fireiron.gpu import launch
from fireiron.gpu.kernel import CompiledKernel
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.language.library import bind, find
from fireiron.measure.data import accumulator_of, random_inputs
from fireiron.measure.rounding import differing
from fireiron.strategies import attention
from fireiron.values.machine import WARPGROUP_ARCHITECTURE

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]

FIXED = {"scale": 1.5, "eps": 1e-5, **NUMBERS}
"""Scalars that are passed by value."""


@functools.cache
def device():
    """CuPy."""
    return pytest.importorskip("cupy")


def on_host(array):
    return array.get() if hasattr(array, "get") else np.asarray(array)


def inputs(spec, sizes, seed, whole=False):
    """Random host inputs by operand; with `whole` small integers, most of them 0, so that float16 sums are exact."""
    generator = np.random.default_rng(seed)
    arrays = {name: array for name, array in random_inputs(spec, sizes, generator).items() if not spec.operands[name].memory.is_coordinate}
    for name, array in arrays.items():
        if spec.operands[name].memory.by_value and name in FIXED:
            arrays[name] = np.float32(FIXED[name])
        elif name == "rows":
            arrays[name] = generator.integers(0, int(spec.operands["A"].shape[1].high) + 1, array.shape).astype(array.dtype)
        elif whole:
            arrays[name] = (generator.integers(-1, 2, array.shape) * (generator.random(array.shape) < 0.5)).astype(array.dtype)
    return arrays


def ran(kernel, spec, arrays, sizes):
    """The outputs of a launch, after a check that no other memory and no input changed."""
    xp = device()
    names = [name for name in spec.inputs if not spec.operands[name].memory.is_coordinate]
    by_value = {name for name in names if spec.operands[name].memory.by_value}
    given = {name: arrays[name] if name in by_value else placed(xp, spec.operands[name], sizes, arrays[name])[1] for name in names}
    zones = {name: placed(xp, spec.operands[name], sizes) for name in spec.outputs}
    outs = tuple(array for _, array in zones.values())
    kernel(*given.values(), out=outs[0] if len(outs) == 1 else outs, **{one: sizes[one] for one in sizes if one in kernel.ir.symbols})
    for name, (whole, array) in zones.items():
        assert not written_outside(on_host(whole), array), f"{name}: written outside"
    for name in set(names) - by_value:
        np.testing.assert_array_equal(on_host(given[name]), arrays[name], err_msg=f"{name}, an input, was written")
    return {name: on_host(array) for name, (_, array) in zones.items()}


def meant(spec, arrays):
    """The reference by output."""
    right = spec.reference(*arrays.values())
    return dict(zip(spec.outputs, right if isinstance(right, tuple) else (right,), strict=True))


def near(strategy, spec, *sizes, seed=3):
    """Check the kernel against its definition, with several run-time `sizes` at each of them."""
    kernel = strategy(spec).compile()
    spec = kernel.program.spec
    for given in sizes or ({},):
        symbols = known(spec, given)
        arrays = inputs(spec, symbols, seed)
        differences = differing(spec, symbols, ran(kernel, spec, arrays, symbols), arrays, meant(spec, arrays), accumulator_of(kernel))
        assert not differences, (given, differences)
    return kernel


def exact(strategy, spec, **sizes):
    """On small integers: bit-equal to the simulator and to the definition."""
    kernel = strategy(spec).compile()
    spec = kernel.program.spec
    symbols = known(spec, sizes)
    arrays = inputs(spec, symbols, 5, whole=True)
    got = ran(kernel, spec, arrays, symbols)
    views = spec.operands
    hosts = [one if views[name].memory.by_value else placed(np, views[name], symbols, one)[1] for name, one in arrays.items()]
    simulated = kernel(*hosts, **sizes)
    simulated = simulated if isinstance(simulated, tuple) else (simulated,)
    for name, simulated_output in zip(spec.outputs, simulated, strict=True):
        np.testing.assert_array_equal(got[name], simulated_output)
        np.testing.assert_array_equal(got[name], meant(spec, arrays)[name])


# ---------------------------------------------------------------------------------------------- attention


@pytest.mark.parametrize("q_in_registers", (False, True), ids=["loaded again", "in registers"])
@pytest.mark.parametrize("d", (32, 64, 96, 128))
def test_attention_at_edges(d, q_in_registers):
    """Sequences that overhang tiles, a single key, a single query; with and without a mask."""
    values = {"bm": 64, "wm": 16} if q_in_registers else {}
    for options in ({}, {"causal": True}):
        definition = attention.definition(**options)
        spec = attention.spec(sym("m"), sym("n"), d, heads=2, batch=2, fused=definition)
        near(
            attention.by_rows(definition, q_in_registers).with_(**values),
            spec,
            *({"m": m, "n": n} for m, n in ((100, 77), (1, 130), (129, 1), (256, 256))),
        )


@pytest.mark.parametrize(
    "options", ({"window": 20, "lse": True}, {"causal": True, "lse": True}, {"window": 65}, {"lse": True}), ids=lambda one: "-".join(one)
)
@pytest.mark.parametrize("shared", (1, 3))
def test_attention_masks_and_log_sum_exp(options, shared):
    """Some rows are fully masked; heads share keys."""
    definition = attention.definition(**options)
    near(attention.by_rows(definition), attention.spec(300, 290, 64, heads=6, batch=2, shared=shared, fused=definition))
    near(attention.by_rows(definition, True).with_(bn=32), attention.spec(70, 200, 64, heads=3, shared=shared, fused=definition))


@pytest.mark.parametrize("values", ({"bm": 64, "bn": 128}, {"bn": 32, "wm": 16, "stages": 3}, {"stages": 1}), ids=str)
def test_attention_tile_sizes(values):
    definition = attention.definition(causal=True)
    near(attention.by_rows(definition).with_(**values), attention.spec(333, 222, 64, heads=2, fused=definition))


def test_attention_strides():
    """PyTorch arrays (b, h, m, d), outputs in (b, m, h, d) order, queries with gaps, bfloat16."""
    definition, m, n, d, heads = attention.definition(), 130, 75, 64, 3
    first = {"b": heads * m * d, "g": m * d, "r": m * d, "m": d, "d": 1}
    keys = Strides(b=heads * n * d, g=n * d, n=d, d=1)
    spec = attention.spec(m, n, d, heads=heads, batch=2, fused=definition, Q=Strides(**first), K=keys, V=keys)
    near(attention.strategy, spec)
    gaps = Strides(b=m * 512, m=512, g=72, r=72, d=1)
    near(attention.strategy, attention.spec(m, n, d, heads=heads, batch=2, fused=definition, Q=gaps, O=gaps))


def test_attention_types():
    pytest.importorskip("ml_dtypes")
    near(attention.causal, attention.spec(200, 200, 64, heads=2, fused=attention.definition(causal=True), dtype=bfloat16))


# ---------------------------------------------------------------------------------------------- rows

ROWS = ((5, 1024), (3, 1000), (7, 100), (2, 1023), (9, 17), (1, 2), (3, 8192), (2, 12290))


@pytest.mark.parametrize("sizes", ROWS, ids=str)
@pytest.mark.parametrize("name", ("layernorm", "rmsnorm", "softmax"))
def test_row_kernels(name, sizes):
    module = library(name)
    spec = module.spec(*sizes)
    near(module.strategy.with_(**module.values(spec)), spec)


@pytest.mark.parametrize("name", ("layernorm", "rmsnorm", "softmax"))
def test_row_kernels_at_run_time_sizes(name):
    module = library(name)
    spec = module.spec(sym("M"), 1032, X=RowMajor(ld=1048), Y=RowMajor(ld=1040))
    near(module.strategy.with_(**module.values(spec)), spec, {"M": 1}, {"M": 67})
    spec = module.spec(33, 515, dtype=float32)
    near(module.strategy.with_(**module.values(spec)), spec)


def test_chunked_row_kernels():
    module = library("softmax_online")
    near(module.strategy, module.spec(3, 40000))
    near(
        module.strategy.with_(warps=2, iterations=1),
        module.spec(sym("M"), sym("N")),
        {"M": 2, "N": 77},
        {"M": 5, "N": 3001},
        {"M": 1, "N": 1},
    )


# ---------------------------------------------------------------------------------------------- GEMM-based definitions

PRODUCTS = ("dual", "gated", "lstm", "lstm:tanh", "lstm:two_loops", "gemm_row_sum")
SIZES = ({"M": 128, "N": 128, "K": 64}, {"M": 104, "N": 72, "K": 40}, {"M": 8, "N": 264, "K": 200}, {"M": 1, "N": 8, "K": 8})
UNKNOWN = (sym("M"), sym("N", multiple_of=8), sym("K", multiple_of=8))


def product(name):
    """A strategy of the library, its module, and options of its problem."""
    file, _, form = name.partition(":")
    module = library(file)
    options = {"form": form} if file == "lstm" and form else {}
    return getattr(module, form or "strategy"), module, options


@pytest.mark.parametrize("name", PRODUCTS)
def test_fused_gemms(name):
    strategy, module, options = product(name)
    near(strategy, module.spec(*UNKNOWN, **options), *SIZES)
    near(strategy.with_(bm=64, bn=64, wm=32, wn=32, stages=3), module.spec(65, 131, 33, **options))


@pytest.mark.parametrize("name", ("mlp", "mlp:registers"))
def test_fused_layers(name):
    strategy, module, _ = product(name)
    spec = module.spec(sym("M"), 128, sym("L", high=100))
    near(strategy.with_(bm=64, wm=32, wn=32), spec, *({"M": M, "L": layers} for M, layers in ((1, 1), (100, 3), (320, 20))))
    near(strategy.with_(bm=64, wm=32, wn=32), module.spec(33, 64, 2))


def test_layernorm_after_a_gemm():
    strategy, module, _ = product("gemm_layernorm")
    near(strategy, module.spec(sym("M"), 256, sym("K", multiple_of=8)), {"M": 70, "K": 40}, {"M": 1, "K": 512})
    near(strategy.with_(wm=32, wn=32), module.spec(70, 96, 40))


def test_grouped_gemm():
    _, module, _ = product("grouped")
    for sizes in ((128, 128, 64), (100, 72, 40)):
        exact(module.strategy, module.spec(*sizes, groups=5))


@pytest.mark.parametrize("name", ("dual", "lstm", "lstm:two_loops", "gemm_row_sum", "mlp"))
def test_fused_gemms_are_bit_equal(name):
    strategy, module, options = product(name)
    if name == "mlp":
        exact(strategy.with_(bm=64, wm=32, wn=32), module.spec(70, 32, 2))
    else:
        exact(strategy.with_(bm=64, bn=64, wm=32, wn=32, stages=3), module.spec(100, 72, 40, **options))


# ---------------------------------------------------------------------------------------------- epilogues

STRATEGIES = (
    "hopper",
    "hopper_small",
    "hopper_skinny",
    "hopper_batched",
    "hmma_ampere",
    "sgemm",
    "wmma_simple",
    "wmma_optimized",
    "small",
    "split_k",
    "gemm_tt",
)
ALL = "acc = acc * alpha + bias[n] + R[m,n]; Z = acc; C = relu(acc); y[m] += sum(n, acc); z[n] += sum(m, acc)"


def made_here(name):
    """Whether the GPU supports the instructions of a strategy."""
    return library(name).strategy.target != WARPGROUP_ARCHITECTURE or launch.visible_arch() == "sm_90"


def finished(name, text, sizes, types=None):
    """The library's strategy with an epilogue, and its spec; batched if the strategy is."""
    if not made_here(name):
        pytest.skip("needs a GPU of compute capability 9.0")
    strategy = of(name, text.replace("R[m,n]", "R[b,m,n]") if find(name).batched else text, sizes, types)
    return (lambda spec: strategy), strategy.spec


@pytest.mark.parametrize("kind", ("residual", "two", "masked", "scaled"))
@pytest.mark.parametrize("name", STRATEGIES)
def test_epilogues_on_a_gpu(name, kind):
    text = (STACKED if find(name).batched else TEXTS)[kind]
    near(*finished(name, text, (200, 136, 72)))


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name not in ("hopper_batched", "sgemm")])
def test_epilogues_with_all_features(name):
    """A residual, a second output, row and column sums by atomics; also at sizes whose rows are not multiples of 16 bytes."""
    near(*finished(name, ALL, (264, 328, 104), {"Z": float32}))
    near(*finished(name, SUMS, (67, 45, 39)))
    exact(*finished(name, SUMS, (72, 56, 40)))


def test_epilogue_at_run_time_sizes():
    for name in ("hmma_ampere", "gemm_tt"):
        base = bind(find(name), dict(zip("MNK", (sym("M"), sym("N"), sym("K"))))).fuse_epilogue("relu(acc + bias[n]) + R[m,n]")
        near(lambda spec, base=base: base, base.spec, *({"M": M, "N": N, "K": K} for M, N, K in ((130, 70, 33), (1, 1, 1), (256, 128, 64))))


# ---------------------------------------------------------------------------------------------- fireiron.matmul


def array_on_gpu(kind, array):
    """An array on the GPU, of CuPy or PyTorch."""
    if kind == "cupy":
        return device().asarray(array)
    return pytest.importorskip("torch").from_numpy(array).cuda()


def back(array):
    return array.get() if hasattr(array, "get") else array.cpu().numpy()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("kind", ["cupy", "torch"])
def test_matmul_on_a_gpu(kind, dtype):
    """Integers, so that results are exact: sizes, column-major storage, given and allocated outputs, batches."""
    generator = np.random.default_rng(0)
    whole = lambda *shape: generator.integers(-2, 3, shape).astype(dtype)
    for M, N, K in ((48, 40, 32), (1000, 1024, 96), (33, 65, 17)):
        a, b, bias, residual = whole(M, K), whole(K, N), whole(N), whole(M, N)
        right = a.astype(float) @ b + bias
        left, other = array_on_gpu(kind, a), array_on_gpu(kind, np.ascontiguousarray(b.T)).T
        got = matmul(left, other, epilogue="relu(acc + bias[n]) + R[m,n]", bias=array_on_gpu(kind, bias), R=array_on_gpu(kind, residual))
        assert type(got) is type(left)
        np.testing.assert_array_equal(back(got), np.maximum(right, 0) + residual)
        text = "acc = acc + bias[n]; Z = acc; C = relu(acc); y[m] += sum(n, acc)"
        before, after, sums = matmul(left, other, epilogue=text, bias=array_on_gpu(kind, bias), types={"Z": "float32"})
        for array, wanted in ((before, right), (after, np.maximum(right, 0)), (sums, right.sum(1))):
            np.testing.assert_array_equal(back(array), wanted)
        out = array_on_gpu(kind, np.full((M, N), np.nan, dtype))
        assert matmul(left, other, out, epilogue="where(n <= m, acc, 0) * alpha", alpha=2.0) is out
        np.testing.assert_array_equal(back(out), np.tril(a.astype(float) @ b) * 2)
    stack, b = whole(3, 40, 24), whole(24, 56)
    got = matmul(array_on_gpu(kind, stack), array_on_gpu(kind, b), epilogue="acc * r[b,m]", r=array_on_gpu(kind, whole(3, 40) * 0 + 2))
    np.testing.assert_array_equal(back(got), stack.astype(float) @ b * 2)


# ---------------------------------------------------------------------------------------------- generated definitions and texts


@pytest.mark.parametrize("chunk", range(10))
def test_random_definitions(chunk):
    from fused_generator import draw
    from test_fused_random import program_to_paste

    for seed in range(chunk * 4, chunk * 4 + 4):
        generated, _ = draw(seed)
        symbols = known(generated.bound, generated.symbols)
        kernel = generated.strategy(generated.bound).compile()
        arrays = inputs(generated.bound, symbols, seed)
        differences = differing(
            generated.bound, symbols, ran(kernel, generated.bound, arrays, symbols), arrays, meant(generated.bound, arrays)
        )
        assert not differences, (differences, program_to_paste(generated))


@pytest.mark.parametrize("name", BY_HAND)
def test_handwritten_texts(name):
    text, sizes = BY_HAND[name]
    kernel = CompiledKernel(parse_kernel(text, launch.device_arch()))
    spec = kernel.program.spec
    symbols = known(spec, sizes)
    arrays = inputs(spec, symbols, 2, whole=True)
    got = ran(kernel, spec, arrays, symbols)
    for output, right in meant(spec, arrays).items():
        np.testing.assert_array_equal(got[output], right)


@pytest.mark.parametrize("name", ("attention", "layernorm", "lstm"))
def test_printed_texts_parse_back(name):
    module = library(name)
    spec = {
        "attention": lambda: module.spec(100, 77, 64, heads=2),
        "layernorm": lambda: module.spec(5, 1000),
        "lstm": lambda: module.spec(72, 136, 40),
    }[name]()
    values = module.values(spec) if name == "layernorm" else {}
    again = parse_kernel(graphene_text(module.strategy.with_(**values)(spec).program(launch.device_arch())))
    kernel = CompiledKernel(again)
    arrays = inputs(spec, {}, 4)
    assert not differing(spec, {}, ran(kernel, kernel.program.spec, arrays, known(spec, {})), arrays, meant(spec, arrays))
