"""Products with quantized weights: the strategies of the library, their functions, epilogues, and what they are built from."""

import functools
import random

import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

import fireiron
from fireiron import *
from fireiron.check import check
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.performing.packed_integers import HALF_WORD, fields_of
from fireiron.sim import simulate
from fireiron.specs.formula import formula_of
from fireiron.strategies import w4a16, w8a8, w8a16
from fireiron.values.machine import int32 as words

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
MODULES, NAMES = (w4a16, w8a16, w8a8), ("w4a16", "w8a16", "w8a8")
M, N, K = 13, 72, 512
SMALL = {
    "few": {"bm": 16, "bn": 64, "bk": 128, "stages": 2, "num_splits": 2},
    "strategy": {"bm": 64, "bn": 64, "stages": 3, "num_blocks": 132},
    "ampere": {},
}


@functools.cache
def arrays(module):
    """Activations, weights, scales, and the product in float64."""
    random = np.random.default_rng(0)
    a = random.standard_normal((M, K)).astype(np.float16)
    if module is w4a16:
        integers, scales = random.integers(0, 16, (N, K)), (random.random((K // 128, N)) * 0.1).astype(np.float16)
        return (a, w4a16.pack(integers), scales), a.astype(float) @ ((integers - 8) * np.repeat(scales, 128, 0).T.astype(float)).T
    if module is w8a8:
        a, b = (random.integers(-128, 128, (rows, K)).astype(np.int8) for rows in (M, N))
        of_a, of_b = (random.random(rows).astype(np.float32) * 0.01 for rows in (M, N))
        return (a, of_a, b, of_b), (a.astype(float) @ b.T) * of_a[:, None] * of_b
    integers, scales = random.integers(-128, 128, (N, K)).astype(np.int8), random.random(N).astype(np.float16)
    return (a, integers, scales), a.astype(float) @ integers.T * scales


def bound(module, form):
    return getattr(module, form).with_(**SMALL[form])(module.spec(M, N, K))


def program_of(module, form):
    return bound(module, form).program("sm_80" if form == "ampere" else "sm_90a")


def is_near(got, right):
    return np.abs(got.astype(float) - right).max() < 2e-3 * np.abs(right).max()


def by_name(module):
    given, right = arrays(module)
    return dict(zip(module.spec(M, N, K).inputs, given, strict=True)), right


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", SMALL)
@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_product(module, form):
    given, right = by_name(module)
    program = program_of(module, form)
    assert is_near(simulate(program.ir, given, order=random.Random(0)).outputs["C"], right)
    assert [str(finding) for finding in check(program.lowered) if finding.severity == "error"] == []
    assert parse_kernel(graphene_text(program)).cuda == program.cuda


@needs_compiler
@pytest.mark.nightly
@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_printed_text_on_a_cpu(module, tmp_path):
    given, right = by_name(module)
    host = HostProgram([Printed.of(program_of(module, form)) for form in SMALL], tmp_path)
    for number in range(len(SMALL)):
        assert is_near(host.run(number, given)["C"], right)


def test_strategies_are_values():
    for module in MODULES:
        assert Strategy.from_json(module.few.to_json()) == module.few


def test_words_of_weights():
    integers = np.random.default_rng(0).integers(0, 16, (3, 64))
    packed, k = w4a16.pack(integers), np.arange(64)
    assert packed.dtype == np.int32 and packed.shape == (3, 8)
    assert np.array_equal(packed[:, k // 32 * 4 + k // 2 % 4] >> 16 * (k % 2) + 4 * (k // 8 % 4) & 15, integers)


def test_words_are_read_once_and_converted_in_pairs():
    text = program_of(w4a16, "few").cuda
    assert "// P to p_sh: Move(64,16)(GL,SH)(Block)" in text
    assert "int4_pair_to_half2_16_bits_apart(" in text and "is_last_block(" in text


@pytest.mark.sampled(3)
@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_function(module):
    given, right = arrays(module)
    name = module.__name__.rpartition(".")[2]
    product = fireiron.function(name)
    assert is_near(product(*given), right)
    assert f"{name}:few" in product.choice(*given, arch="sm_90a").why


@pytest.mark.parametrize("module", (w4a16, w8a16), ids=("w4a16", "w8a16"))
def test_tokens_that_are_not_finite_reach_no_other(module):
    """NaN and infinity in a token, and a scale that is not finite, which reaches the column that it scales, only."""
    (a, weights, scales), _ = arrays(module)
    product = fireiron.function(module.__name__.rpartition(".")[2])
    right, bad, scaled = product(a, weights, scales), a.copy(), scales.copy()
    bad[3, ::2], bad[3, 1::2], scaled[..., 5] = np.nan, np.inf, np.nan
    got, columns = product(bad, weights, scales), product(a, weights, scaled)
    assert np.array_equal(np.delete(got, 3, 0), np.delete(right, 3, 0)) and np.isnan(got[3]).all()
    assert np.array_equal(np.delete(columns, 5, 1), np.delete(right, 5, 1)) and np.isnan(columns[:, 5]).all()


def test_epilogue():
    given, right = arrays(w8a16)
    definition = w8a16.definition("relu(acc + bias[n]) + R[m,n]", {"bias": "n", "R": "m n"}, name="with_epilogue")
    bias, residual = np.linspace(-500, 500, N).astype(np.float16), np.ones((M, N), np.float16)
    got = fireiron.function(definition, w8a16.forms(definition))(*given, bias, residual)
    want = np.maximum(right + bias, 0) + 1
    assert is_near(got, want)


def test_results_in_int8():
    given, right = arrays(w8a8)
    definition = w8a8.definition("clamp(round(acc * inverse), -128, 127)", {"inverse": ""}, name="to_int8", C=int8)
    got = fireiron.function(definition, w8a8.forms(definition))(*given, 1.5)
    assert got.dtype == np.int8 and np.abs(got - np.clip(right * 1.5, -128, 127)).max() < 0.51


def test_fields_16_bits_apart():
    types = {"P": words, "index_k": words}
    fields = fields_of(formula_of("y[k] = ((P[k] >> 16 * (index_k[k] % 2) + 4 * (index_k[k] // 8 % 4)) & 15) - 8").value, types)
    assert fields.distance == HALF_WORD and fields.period == 32 and fields.shift_at(9) == 20
    for shift in ("8 * (index_k[k] % 4)", "index_k[k] * 4", "16 * (index_k[k] % 2) + index_k[k] // 2"):
        assert fields_of(formula_of(f"y[k] = (P[k] >> {shift}) & 15").value, types) is None


LOOP = {"loop": "k", "operands": {"A": "m k", "B": "k n", "C": "m n"}}
ADDING = {"init": {"zero": "acc[m,n] = 0"}, "body": {"mm": "acc[m,n] += sum(k, A[m,k] * B[k,n])"}, "final": {"out": "C[m,n] = acc[m,n]"}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"init": {"zero": "acc[m,n] = 1"}}, "another value than 0"),
        ({"body": {"mm": "p[m,n] = sum(k, A[m,k] * B[k,n])", "add": "acc[m,n] = acc[m,n] * 2 + p[m,n]"}}, "otherwise than by an addition"),
        (
            {"body": {**ADDING["body"], "top": "t[m,n] = acc[m,n]"}, "final": {"out": "C[m,n] = acc[m,n] + t[m,n]"}},
            "uses a part of the sum",
        ),
    ],
    ids=["start", "scaled", "read"],
)
def test_a_loop_that_is_no_sum_has_no_parts(changed, message):
    definition = Fused(name="looped", dims="m n k", **LOOP, **(ADDING | changed))
    tiles = definition.split_k(2, Block, 16).reduce_in_last_block().tile(m=16, n=16).to(Block).split(k=16).tile(m=1, n=1).to(Thread).done()
    with pytest.raises(FireironError, match=message):
        tiles(definition(m=16, n=16, k=64)).cuda("sm_80")


@needs_nvrtc
@pytest.mark.sampled(3)
@pytest.mark.parametrize("module", MODULES, ids=NAMES)
def test_compiles_without_spills(module):
    for form in ("few", "strategy"):
        program = getattr(module, form)(module.spec(sym("M"), 4096, 4096)).program("sm_90a")
        report = compile_cuda(program.cuda, "sm_90a").resources[program.name]
        assert report.spill_stores == report.stack_frame == 0
