"""Packed FP4 (E2M1) numbers with scales in E8M0 or E4M3: every value, against the types of `ml_dtypes`, which are another implementation.

All oracles must agree bit by bit: `reference()`, the simulator and the printed text on a CPU. Injected faults in the printed text are found.
"""

import random

import ml_dtypes
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import check, safety
from fireiron.errors import FireironError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.inspect.explain import explain
from fireiron.language.store import dumps, loads
from fireiron.performing.packed_integers import fields_of
from fireiron.performing.small_floats import scale_factors
from fireiron.sim import simulate
from fireiron.specs.formula import formula_of
from fireiron.specs.small_floats import e2m1, e8m0
from fireiron.specs.steps import with_coordinates, with_extents

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")

WORD = "P[n,k // 8] >> 4 * (k % 8)"
SCALES = {
    "mx": ("e8m0(S[n,k // 32])", uint8), "nv": ("S[n,k // 16]", float8_e4m3), "group": ("S[n,k // 64]", None),
    "words": ("e8m0(S[n,k // 128] >> 8 * (k // 32 % 4))", int32),
}  # fmt: skip
"""A factor of the numbers of a row, and the element type of its scales; None: that of the result."""


ALL = {"n": 32, "k": 256}
"""Sizes with 256 groups of 32."""


def some(cases, *usual):
    """Parameters, of which the others than `usual` run at night."""
    return [pytest.param(case, id=str(case), marks=() if case in usual else pytest.mark.nightly) for case in cases]


def unpacked(scale="mx", result=bfloat16, word=WORD, n=11, k=128, kind=int32):
    """A definition that unpacks and scales in pairs, with a partial tile if `n` is not a multiple of 8."""
    factor, own = SCALES.get(scale, ("", None))
    operands = {"P": "n q", **({"S": "n g"} if factor else {}), "Y": "n k"}
    types = {"P": kind, "w": result, "Y": result, **({"S": own or result} if factor else {})}
    definition = Fused(
        name="unpacked", dims="n k q g" if factor else "n k q", operands=operands, types=types,
        body={"w": f"w[n,k] = e2m1({word})" + (f" * {factor}" if factor else ""), "out": "Y[n,k] = w[n,k]"},
    )  # fmt: skip
    tile = definition.tile(n=8, k=64).to(Block).set_memory("w", SH).step("out", Move.coalesced_copy(8).done()).done()
    return tile(definition(n=n, k=k))


def shape_of(spec, name):
    return tuple(int(size.high) for size in spec.operands[name].tensor.array.shape)


def inputs(spec, seed=0):
    """Random words, and scales: all bytes if there are 256, otherwise random ones."""
    numbers, arrays = np.random.default_rng(seed), {}
    for name in spec.inputs:
        shape, kind = shape_of(spec, name), spec.operands[name].dtype
        if kind == uint8 and name == "S":
            every = np.arange(256) if np.prod(shape) == 256 else numbers.integers(0, 256, shape)
            arrays[name] = every.reshape(shape).astype(np.uint8)
        elif kind.kind == "int":
            info = np.iinfo(kind.numpy)
            arrays[name] = numbers.integers(info.min, info.max, shape, endpoint=True).astype(kind.numpy)
        else:
            arrays[name] = numbers.standard_normal(shape).astype(kind.to_numpy())
    return arrays


def right(arrays, scale, result, fields=8):
    """The values by `ml_dtypes`: exact products in float64, rounded once."""
    words = np.repeat(arrays["P"].astype(np.int64), fields, axis=1)
    k = np.arange(words.shape[1])
    values = (words >> 4 * (k % fields) & 15).astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float64)
    if scale in ("mx", "words"):
        bytes_of = arrays["S"].view(np.uint8) if scale == "words" else arrays["S"]
        scales = np.ascontiguousarray(bytes_of).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    else:
        scales = arrays["S"].astype(np.float64) if "S" in arrays else np.ones((1, 1))
    with np.errstate(all="ignore"):
        return (values * np.repeat(scales, len(k) // scales.shape[1], axis=1)).astype(np.float32).astype(result.to_numpy())


def equal(got, want):
    """Whether arrays of 16-bit floats are equal bit by bit, except for the bits of NaN."""
    got, want = np.asarray(got), np.asarray(want)
    return got.dtype == want.dtype and bool(np.all((got.view(np.uint16) == want.view(np.uint16)) | (np.isnan(got) & np.isnan(want))))


def test_values():
    bits = np.arange(-16, 32)
    right_values = (bits & 15).astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    assert np.array_equal(e2m1(bits).view(np.uint32), right_values.view(np.uint32)) and set(abs(right_values)) == {
        0,
        0.5,
        1,
        1.5,
        2,
        3,
        4,
        6,
    }
    scales = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    assert np.array_equal(e8m0(np.arange(256)).astype(np.float64), scales, equal_nan=True)


def test_products_in_float16_are_exact_for_all_numbers_and_scales():
    """The two factors of each scale, and the bits of each number, in half arithmetic."""
    numbers, scales = np.arange(16), np.arange(256)
    first, second = np.array([scale_factors(int(one)) for one in scales], np.uint16).view(np.float16).T
    bits = ((numbers & 8) << 12 | (numbers & 7) << 9).astype(np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        got = bits[:, None] * first * second
        want = (e2m1(numbers)[:, None] * e8m0(scales)).astype(np.float16)
    assert got.dtype == np.float16 and equal(got, want)


CASES = [
    *((scale, result) for scale in SCALES for result in (bfloat16, float16) if (scale, result) != ("words", float16)), ("", float16), ("", bfloat16)
]  # fmt: skip


def sizes_of(case):
    return ALL if case[0] == "mx" else {}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", some(CASES, ("mx", bfloat16), ("mx", float16), ("nv", float16)))
def test_pairs_are_exact(case):
    bound = unpacked(*case, **sizes_of(case))
    program = bound.program("sm_80")
    assert "e2m1_pair_to_" in program.cuda and safety(program.lowered) == ()
    arrays = inputs(bound.spec, len(str(case)))
    want = right(arrays, *case)
    assert equal(bound.spec.reference(*arrays.values()), want)
    assert equal(simulate(program.ir, arrays, order=random.Random(0)).outputs["Y"], want)
    assert parse_kernel(graphene_text(program)).cuda == program.cuda
    assert loads(dumps(bound)) == bound


OTHERS = {
    "bytes": {"scale": "mx", "word": "P[n,k // 2] >> 4 * (k % 2)", "kind": uint8},
    "masked": {"scale": "", "word": f"{WORD} & 15"},
    "signed bytes": {"scale": "", "word": "P[n,k // 2] >> 4 * (k % 2) & 15", "kind": int8, "result": float16},
}


@needs_compiler
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_texts_on_a_cpu(every, tmp_path):
    """Texts as one program of the host; for `mx`, each byte is a scale."""
    chosen = [(case, unpacked(*case, **sizes_of(case)), 8) for case in (CASES if every else CASES[:2])]
    others = OTHERS.values() if every else ()
    chosen += [((case["scale"], case.get("result", bfloat16)), unpacked(**case), 2 if "kind" in case else 8) for case in others]
    programs = [bound.program("sm_80") for _, bound, _ in chosen]
    assert all("e2m1_pair_to_" in program.cuda for program in programs)
    host = HostProgram([Printed.of(program) for program in programs], tmp_path)
    for number, (case, bound, fields) in enumerate(chosen):
        arrays = inputs(bound.spec, number)
        assert equal(host.run(number, arrays)["Y"], right(arrays, *case, fields)), case


@pytest.mark.parametrize("word", ["P[n,k // 8] >> (28 - 4 * (k % 8))", "P[n,k // 8] >> 4 * ((k + 1) % 8)"])
def test_other_orders_are_decoded_one_by_one(word):
    bound = unpacked("", float16, word)
    program = bound.program("sm_80")
    assert "e2m1_pair" not in program.cuda and "e2m1(" in program.cuda
    arrays = inputs(bound.spec)
    k = np.arange(128)
    shift = 28 - 4 * (k % 8) if "28" in word else 4 * ((k + 1) % 8)
    want = e2m1(arrays["P"].astype(np.int64)[:, k // 8] >> shift).astype(np.float16)
    assert equal(simulate(program.ir, arrays).outputs["Y"], want)


@pytest.mark.parametrize(
    ("value", "is_pattern"),
    [
        ("e2m1(P[k] >> 4 * (k % 8))", True), ("e2m1(P[k] >> 4 * (k % 8) & 15)", True), ("e2m1(P[k] >> (k % 8) * 4 & 7)", False),
        ("e2m1(P[k] >> 3 * (k % 8))", False), ("e2m1(P[k])", False), ("e2m1(P[k] >> 4 * (k % 8)) + 1", False), ("e2m1((P[k] >> 4 * (k % 8) & 15) - 8)", False),
    ],
)  # fmt: skip
def test_patterns(value, is_pattern):
    parsed = with_coordinates(formula_of(with_extents(f"y[k] = {value}")).value, ("k",))
    fields = fields_of(parsed, {"P": int32, "index_k": int32})
    assert (fields is not None and fields.is_e2m1) is is_pattern


REFUSED = {
    "e2m1(X[n,k])": ("e2m1 is for integers, and X[n,k] is a float", "int32(X[n,k])"),
    "e8m0(X[n,k] * 2)": ("e8m0 is for integers", "int32("),
    "e2m1(3, 4)": ("e2m1 takes 1 values, not 2", ""),
}


@pytest.mark.parametrize("value", REFUSED)
def test_refusals(value):
    with pytest.raises(FireironError) as refused:
        Fused(name="refused", dims="n k", operands={"X": "n k", "Y": "n k"}, body={"y": f"Y[n,k] = {value}"})(n=8, k=8)
    assert all(text in str(refused.value) for text in REFUSED[value])


# ---------------------------------------------------------------------------------------------- products


def product(result=bfloat16, scale="mx"):
    factor, own = SCALES[scale]
    return Fused(
        name="w4a16", dims="m n k q g", loop="k", operands={"A": "m k", "P": "n q", "S": "n g", "C": "m n"},
        types={"A": result, "P": int32, "S": own or result, "C": result}, init={"zero": "acc[m,n] = 0"},
        body={"weight": f"w[n,k] = e2m1({WORD}) * {factor}", "mm": "acc[m,n] += sum(k, A[m,k] * w[n,k])"}, final={"store": "C[m,n] = acc[m,n]"},
    )  # fmt: skip


def by_mma(definition, m=70, n=72, k=128):
    copies, fragment = Move.coalesced_copy(8).done(), Move.done()
    tiles = definition.tile(m=64, n=64).to(Block).split(k=64).pipeline(2).load("A", SH, copies).swizzle_storage()
    warps = MatMul.tile(32, 32).to(Warp).split(16).unroll().load(A, RF, fragment).load(B, RF, fragment).tile(16, 16).unroll().mma_tile()
    return tiles.set_memory("w", SH).swizzle_storage().step("mm", warps.done()).done()(definition(m=m, n=n, k=k))


def by_wgmma(definition, m=100, n=64, k=256):
    tiles = definition.tile(m=128, n=64).to(Block).split(k=64).pipeline(3).warp_specialize(128).mma_in_flight(1)
    tiles = tiles.load("A", SH, Move.done()).set_memory("w", SH).stages(2)
    return tiles.step("mm", MatMul.tile(64, 64).to(Warpgroup).split(16).unroll().done()).done()(definition(m=m, n=n, k=k))


def in_registers(definition, m=64, n=64, k=64):
    warp = MatMul.tile(32, 16).to(Warp).load(A, RF, Move.done()).tile(16, 16).unroll().mma_tile().done()
    chain = definition.tile(m=32, n=16).to(Block).split(k=16).load("A", SH, Move.coalesced_copy(8).done())
    return chain.step("mm", warp).done()(definition(m=m, n=n, k=k))


PRODUCTS = {
    "mma.sync": (by_mma(product()), "sm_80"),
    "mma.sync, float16": (by_mma(product(float16)), "sm_80"),
    "mma.sync, registers": (in_registers(product()), "sm_80"),
    "mma.sync, E4M3 scales": (by_mma(product(float16, "nv")), "sm_80"),
    "wgmma": (by_wgmma(product()), "sm_90a"),
    "wgmma, float16": (by_wgmma(product(float16)), "sm_90a"),
    "wgmma, E4M3 scales": (by_wgmma(product(bfloat16, "nv")), "sm_90a"),
}


def product_inputs(bound, seed=0):
    """Inputs of a product: integers for A, and scales from 1/4 to 4, so that all sums are exact in float32."""
    numbers, spec, arrays = np.random.default_rng(seed), bound.spec, {}
    for name in spec.inputs:
        shape, kind = shape_of(spec, name), spec.operands[name].dtype
        if name == "P":
            arrays[name] = numbers.integers(-(2**31), 2**31, shape).astype(np.int32)
        elif kind == uint8:
            arrays[name] = numbers.integers(125, 130, shape).astype(np.uint8)
        else:
            choices = numbers.integers(-3, 4, shape) if name == "A" else numbers.choice([0.5, 1, 1.5, 2, 3.5], shape)
            arrays[name] = choices.astype(kind.to_numpy())
    return arrays


def right_product(bound, arrays, scale):
    return arrays["A"].astype(np.float64) @ right(arrays, scale, float32).astype(np.float64).T


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", some(PRODUCTS, "wgmma", "mma.sync, registers"))
def test_products(name, tmp_path):
    bound, target = PRODUCTS[name]
    program = bound.program(target)
    assert "e2m1_pair_to_" in program.cuda and ("wgmma" in program.cuda) == ("wgmma" in name)
    assert [str(finding) for finding in check(program.lowered) if finding.severity == "error"] == []
    arrays = product_inputs(bound)
    scale = "nv" if "E4M3" in name else "mx"
    result = bound.spec.operands["C"].dtype.to_numpy()
    want = right_product(bound, arrays, scale).astype(np.float32).astype(result)
    assert np.array_equal(simulate(program.ir, arrays, order=random.Random(0)).outputs["C"], want)


@pytest.mark.nightly
@needs_compiler
def test_a_product_on_a_cpu(tmp_path):
    bound, target = PRODUCTS["mma.sync, registers"]
    arrays = product_inputs(bound)
    got = HostProgram([Printed.of(bound.program(target))], tmp_path).run(0, arrays)["C"]
    assert np.array_equal(got, right_product(bound, arrays, "mx").astype(np.float32).astype(ml_dtypes.bfloat16))


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", some(PRODUCTS, "wgmma, float16"))
def test_compiled(name):
    bound, target = PRODUCTS[name]
    program = bound.program(target)
    report = compile_cuda(program.cuda, target).resources[program.name]
    assert report.spill_stores == report.stack_frame == 0


# ---------------------------------------------------------------------------------------------- single threads


def by_threads(value, kind, result, columns, tile=8, scaled=False, n=11, k=136):
    """A definition from memory to memory, whose threads compute vectors of `tile` elements; `columns` of the array for `k` ones."""
    operands = {"P": f"n {'k' if columns == 1 else 'q'}", **({"S": "n g"} if scaled else {}), "Y": "n k"}
    definition = Fused(
        name="by_threads", dims="n k q g" if scaled else "n k q" if columns > 1 else "n k", operands=operands,
        types={"P": kind, "Y": result, **({"S": uint8} if scaled else {})}, body={"y": f"Y[n,k] = {value}"},
    )  # fmt: skip
    return definition.tile(n=8, k=64).to(Block).tile(n=1, k=tile).to(Thread).done()(definition(n=n, k=k))


def nibbles(arrays, fields=8):
    words = arrays["P"].astype(np.int64)
    k = np.arange(words.shape[1] * fields)
    return words[:, k // fields] >> 4 * (k % fields) & 15


BY_THREADS = {
    "integers": (by_threads(f"({WORD} & 15) - 8", int32, float16, 8), lambda arrays: nibbles(arrays) - 8),
    "integers in pairs": (by_threads(f"({WORD} & 15) - 8", int32, bfloat16, 8, tile=2), lambda arrays: nibbles(arrays) - 8),
    "integers past the end": (by_threads(f"{WORD} & 15", int32, float16, 8, k=132), lambda arrays: nibbles(arrays)[:, :132]),
    "bytes": (by_threads("P[n,k] * 2", int8, float16, 1), lambda arrays: arrays["P"].astype(float) * 2),
    "FP4": (by_threads(f"e2m1({WORD})", int32, float16, 8), lambda arrays: e2m1(nibbles(arrays))),
    "FP4 with scales": (
        by_threads(f"e2m1({WORD}) * e8m0(S[n,k // 32])", int32, bfloat16, 8, scaled=True, k=128),
        lambda arrays: right(arrays, "mx", bfloat16),
    ),
}
"""Kernels, and their results by NumPy."""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", some(BY_THREADS, "integers", "FP4 with scales"))
def test_single_threads_convert_pairs(name):
    bound, of_numpy = BY_THREADS[name]
    program = bound.program("sm_80")
    assert ("pair_to_" in program.cuda) and "*reinterpret_cast<u" in program.cuda
    assert [str(finding) for finding in check(program.lowered) if finding.severity == "error"] == []
    arrays = inputs(bound.spec, 2)
    assert np.array_equal(
        simulate(program.ir, arrays, order=random.Random(0)).outputs["Y"].astype(float), of_numpy(arrays).astype(float), equal_nan=True
    )
    assert parse_kernel(graphene_text(program)).cuda == program.cuda


@needs_compiler
@pytest.mark.nightly
def test_single_threads_on_a_cpu(tmp_path):
    host = HostProgram([Printed.of(bound.program("sm_80")) for bound, _ in BY_THREADS.values()], tmp_path)
    for number, (name, (bound, of_numpy)) in enumerate(BY_THREADS.items()):
        arrays = inputs(bound.spec, number)
        assert np.array_equal(host.run(number, arrays)["Y"].astype(float), of_numpy(arrays).astype(float), equal_nan=True), name


def test_other_work_of_single_threads_is_unchanged():
    """Without packed numbers or bytes, a thread computes element by element."""
    definition = Fused(name="scaled", dims="n k", operands={"X": "n k", "Y": "n k"}, body={"y": "Y[n,k] = X[n,k] * 2"})
    text = definition.tile(n=8, k=64).to(Block).tile(n=1, k=8).to(Thread).done()(definition(n=8, k=64)).cuda("sm_80")
    assert "++y_k" in text and "__half2 " not in text


def test_readers(tmp_path):
    """`explain`, `cost`, the flow of a definition, and an export know the functions."""
    from fireiron import draw, export, predict

    bound, target = PRODUCTS["mma.sync"]
    assert "e2m1" in str(explain(bound, target))
    assert predict(bound).us > 0 and "w4a16" in draw(bound, "tree", architecture=target).svg
    assert any("e2m1_pair_to_" in path.read_text() for path in export(bound.program(target), tmp_path, cubin=False).files)


FAULTS = {
    "another factor": (r"0x7e807e80u", "0x7e007e00u"),
    "another field": (r"of_word<2>", "of_word<0>"),
    "pairs in another order": (r"0x5410 : 0x7632", "0x7632 : 0x5410"),
    "no sign": (r"high & 0x80008000", "high & 0x00008000"),
    "another significand": (r">> 6 & 0x01c001c0", ">> 6 & 0x01800180"),
    "no subnormal scale": (r"exponent == 0 \? 0x40 :", "exponent == 0 ? 0x80 :"),
}


@needs_compiler
@pytest.mark.nightly
def test_faults_of_texts_are_found(tmp_path):
    bound = unpacked("mx", bfloat16, **ALL)
    program = bound.program("sm_80")
    host = HostProgram([Printed.of(program).changed(*fault) for fault in FAULTS.values()], tmp_path)
    arrays = inputs(bound.spec)
    for number, name in enumerate(FAULTS):
        assert not equal(host.run(number, arrays)["Y"], right(arrays, "mx", bfloat16)), name
