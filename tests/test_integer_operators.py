"""Operators and functions of integers in definitions: accepted by every command, refused with what to do, and injected faults are detected."""

import json

import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.cli import main
from fireiron.errors import ArgumentError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.specs import meaning
from fireiron.specs.arithmetic import convert
from fireiron.specs.formula import formula
from fireiron.specs.philox import philox, uniform
from fireiron.stepping.masked_tile_effects import Values

FILE = """
from fireiron import *

definition = Fused(name="drawn", dims="m n", operands={operands}, body={{"out": "Y[m,n] = {formula}"}}, types={types})
strategy = definition.tile(m=4, n=32).to(Block).tile(m=1, n=1).to(Thread).done()
"""

EXAMPLES = {
    "unpacked nibbles": ("((P[m,n] >> 4 * (n % 2) & 15) - 8) * S[m]", {"P": "m n", "S": "m"}, {"P": int32}),
    "hash": ("(c[m,n] ^ (c[m,n] >> 15)) * 0x2c1b3c6d & 0xffffffff", {"c": "m n"}, {"c": int32, "Y": int32}),
    "dropout": (
        "where(uniform(seed, m * size(n) + n, (m * size(n) + n) >> 32) < 0.9, X[m,n] / 0.9, 0)",
        {"X": "m n", "seed": ""},
        {"seed": int32},
    ),
    "functions": (
        "sin(X[m,n]) + cos(X[m,n]) * clamp(floor(X[m,n]), 0, 3) + from_bits(bits(X[m,n]) & 0x7fffffff) + mulhi(int32(round(X[m,n])), m)",
        {"X": "m n"},
        {},
    ),
    "labels": ("where(L[m] == n and L[m] != -100, X[m,n], 0)", {"X": "m n", "L": "m"}, {"L": int64}),
    "8-bit floats": (
        "K[m,n] * scale[m] + V[m,n]",
        {"K": "m n", "scale": "m", "V": "m n"},
        {"K": float8_e4m3, "V": float8_e5m2, "Y": float8_e4m3},
    ),
    "blocks": ("where(m // 2 == n // 16, X[m,n], 0)", {"X": "m n"}, {}),
}


def text_of(example):
    formula, operands, types = EXAMPLES[example]
    return FILE.format(formula=formula, operands={**operands, "Y": "m n"}, types={name: str(dtype) for name, dtype in types.items()})


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("command", ["show", "check", "explain", "draw", "cost", "run", "emit", "export"])
def test_each_command_accepts_it(example, command, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "drawn.py"
    path.write_text(text_of(example))
    options = {"export": ["-o", str(tmp_path / "out"), "--no-cubin"], "emit": ["--arch", "sm_80"]}
    status = main([command, str(path), "-s", "m=8", "-s", "n=48", *options.get(command, [])])
    assert status == 0, capsys.readouterr()


@pytest.mark.parametrize("example", EXAMPLES)
def test_it_is_stored_and_written_in_the_notation(example):
    formula, operands, types = EXAMPLES[example]
    definition = Fused(name="drawn", dims="m n", operands={**operands, "Y": "m n"}, body={"out": f"Y[m,n] = {formula}"}, types=types)
    strategy = definition.tile(m=4, n=32).to(Block).tile(m=1, n=1).to(Thread).done()
    assert eval(repr(definition)) == definition
    assert Strategy.from_json(strategy.to_json()) == strategy and json.loads(strategy.to_json())
    assert "drawn(8,48)" in definition(m=8, n=48).notation


# ---------------------------------------------------------------------------------------------- refusals

REFUSED = {
    "X[m,n] % 2": ("% is for integers, and X[m,n] is a float", "types={...}"),
    "1.5 << 2": ("<< is for integers, and 1.5 is a float", "whole constants"),
    "c[m,n] // c[m,n]": ("the right operand of // may be -2147483648", "max(c[m,n], 1)"),
    "c[m,n] % (m - n)": ("the right operand of % may be", "max(m - n, 1)"),
    "m // 0": ("the right operand of // may be 0", "a positive divisor"),
    "c[m,n] << c[m,n]": ("the right operand of << may be -2147483648", "c[m,n] & 31"),
    "c[m,n] >> 64": ("the right operand of >> may be 64", "0 to 63 bits"),
    "(c[m,n] * c[m,n] * c[m,n]) >> 3": ("may need more than 64 bits", "x & 0xffffffff"),
    "philox(X[m,n], m)": ("philox is for integers, and X[m,n] is a float", "int32(X[m,n])"),
    "philox(m)": ("philox takes 2 to 6 values, not 1", ""),
    "from_bits(X[m,n])": ("from_bits is for integers, and X[m,n] is a float", "int32(X[m,n])"),
    "bits(c[m,n])": ("bits is for floats, and c[m,n] is an integer", "c[m,n] & 0xffffffff"),
    "mulhi(c[m,n] * 2, 3)": ("the argument of mulhi may be -4294967296", "c[m,n] * 2 & 0xffffffff"),
    "mulhi(c[m,n], c[m,n] & 0xffffffff)": ("one that may be above 2^31 - 1", "mulhi(x & 0xffffffff, y)"),
    "philox(c[m,n] * c[m,n] * c[m,n], m)": ("may need more than 64 bits", "multiply by a float: 1.0 * "),
    "c[m,n] * c[m,n] * c[m,n] | 1.0": ("| is for integers, and 1.0 is a float", "whole constants"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals_name_what_to_do(text):
    operands = {name: "m n" for name in ("c", "X") if f"{name}[" in text}
    types = {name: {"c": int32, "X": float32}[name] for name in operands}
    with pytest.raises(ArgumentError) as caught:
        definition = Fused(name="drawn", dims="m n", operands={**operands, "Y": "m n"}, body={"out": f"Y[m,n] = {text}"})
        definition(m=8, n=32, types={**types, "Y": int32})
    message, do = REFUSED[text]
    assert message in str(caught.value) and do in str(caught.value), str(caught.value)


def test_an_operator_under_a_reduction_of_a_kind_is_refused():
    kind = Kind("Masked", "C[m,n] += sum(k, (A[m,k] & 15) * B[k,n])").starter
    with pytest.raises(ArgumentError, match="& under a sum"):
        kind(8, 8, 8, dtype=int32)(GL, GL, GL)(Kernel)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1 | 6 ^ 3 & 5 << 1", 1 | 6 ^ 3 & 5 << 1), ("-7 // 2", -7 // 2), ("-(7 % 4) * 2 >> 1", -(7 % 4) * 2 >> 1), ("~5 + 2", ~5 + 2),
        ("0xff - 0X10", 0xFF - 0x10), ("1 << 2 + 3", 1 << 2 + 3), ("7 - 5 // 2 * 2 % 3", 7 - 5 // 2 * 2 % 3), ("~-3", ~-3),
    ],
)  # fmt: skip
def test_operators_bind_as_in_python(text, wanted):
    parsed = formula(f"y[m] = {text}")
    assert meaning.number_of(parsed.value) == wanted
    assert formula(str(parsed)) == parsed


def test_known_values_of_a_masked_iteration():
    """A step whose operands are numbers is a number; an operator of integers on a fraction is not one."""
    definition = Fused(name="drawn", dims="m", operands={"X": "m", "y": "m"}, body={"a": "y[m] = X[m]"}).fused_definition
    values = Values(definition)
    assert values._simple(formula("y[m] = (7 // 2 | 8) % 4").value).value == 3
    assert np.isnan(values._simple(formula("y[m] = 7.5 // 2").value).value)


# ---------------------------------------------------------------------------------------------- functions

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")


def everywhere(formula, arrays, types, tmp_path, outputs="m n"):
    """The results of `reference()`, the simulator and the printed text, executed on the CPU."""
    operands = {name: "m n" if np.ndim(array) else "" for name, array in arrays.items()}
    definition = Fused(name="drawn", dims="m n", operands={**operands, "Y": outputs}, body={"out": f"Y[m,n] = {formula}"}, types=types)
    (shape,) = {np.shape(array) for array in arrays.values() if np.ndim(array)}
    spec = definition(m=shape[0], n=shape[1])
    strategy = definition.tile(m=4, n=32).to(Block).tile(m=1, n=1).to(Thread).done()(spec)
    host = HostProgram([Printed.of(strategy.program("sm_80"))], tmp_path)
    yield spec.reference(*arrays.values())
    yield strategy.compile("sm_80")(*arrays.values())
    yield host.run(0, arrays)["Y"]


PUBLISHED = (
    ((0, 0), (0, 0, 0, 0), "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF,) * 4, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ((0xA4093822, 0x299F31D0), (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), "d16cfe09 94fdcceb 5001e420 24126ea1"),
)
"""Keys, counters and results of Philox4x32-10 in `kat_vectors` of Random123, the library of its authors."""


@needs_compiler
@pytest.mark.parametrize(("key", "counter", "words"), PUBLISHED)
def test_philox_equals_the_published_vectors(key, counter, words, tmp_path):
    seed = key[0] + (key[1] << 32)
    text = f"philox({seed - (seed >> 63 << 64)}, {', '.join(map(str, counter))}, n)"
    shown = [int(word, 16) for word in words.split()]
    for got in everywhere(f"{text} + c[m,n]", {"c": np.zeros((4, 32), np.int32)}, {"c": int32, "Y": int32}, tmp_path):
        assert [int(word) % 2**32 for word in got[0, :4]] == shown
        assert np.array_equal(got[:, :4], got[:, 4:8])  # the number of a word counts modulo 4


@needs_compiler
def test_a_negative_seed_has_an_upper_half(tmp_path):
    """A seed of int32 is extended with its sign to 64 bits."""
    arrays = {"c": np.arange(128, dtype=np.int32).reshape(4, 32), "seed": np.int32(-2)}
    right = philox(-2, arrays["c"]).astype(np.int32)
    assert not np.array_equal(right, philox(2**32 - 2, arrays["c"]).astype(np.int32))
    for got in everywhere("philox(seed, c[m,n])", arrays, {"c": int32, "seed": int32, "Y": int32}, tmp_path):
        np.testing.assert_array_equal(got, right)


@needs_compiler
def test_uniform_numbers(tmp_path):
    """Multiples of 2^-24 in [0, 1), with the mean and variance of the uniform distribution."""
    counter = np.arange(64 * 128, dtype=np.int32).reshape(64, 128)
    for got in everywhere("uniform(7, c[m,n])", {"c": counter}, {"c": int32, "Y": float32}, tmp_path):
        np.testing.assert_array_equal(got, uniform(7, counter))
    assert (got * 2**24 % 1 == 0).all() and got.min() >= 0 and got.max() < 1
    assert abs(got.mean() - 0.5) < 0.02 and abs(got.var() - 1 / 12) < 0.005


SPECIAL = np.array(
    [0.0, -0.0, np.nan, np.inf, -np.inf, 0.5, 1.5, 2.5, -0.5, -1.5, 1e10, -1e10, 2.0**31, -(2.0**31), 2.0**31 - 128, 127.5, -128.5, 0.49999997]
    + [1e-40, -1e-40, 3.9999998, 254.9, 255.5, 256.0] + [float(number) for number in range(-4, 4)], np.float32
).reshape(1, 32)  # fmt: skip
FUNCTIONS_OF_FLOATS = {
    "floor(X[m,n])": (np.floor, float32),
    "round(X[m,n])": (np.round, float32),
    "clamp(X[m,n], -2.5, 100)": (lambda x: np.fmin(np.fmax(x, np.float32(-2.5)), np.float32(100)), float32),
    "bits(X[m,n])": (lambda x: x.view(np.uint32).astype(np.int32), int32),
    "from_bits(bits(X[m,n]) ^ 0x80000000)": (lambda x: -x, float32),
    "int32(X[m,n])": (lambda x: np.clip(np.nan_to_num(x.astype(float)), -(2**31), 2**31 - 1).astype(np.int64).astype(np.int32), int32),
    "int32(floor(X[m,n])) & 3": (
        lambda x: np.clip(np.nan_to_num(np.floor(x.astype(float))), -(2**31), 2**31 - 1).astype(np.int64) & 3,
        int32,
    ),
}


@needs_compiler
@pytest.mark.parametrize("formula", FUNCTIONS_OF_FLOATS)
def test_functions_of_special_floats(formula, tmp_path):
    function, result = FUNCTIONS_OF_FLOATS[formula]
    with np.errstate(all="ignore"):
        right = function(SPECIAL).astype(result.to_numpy())
    for number, got in enumerate(everywhere(formula, {"X": SPECIAL}, {"X": float32, "Y": result}, tmp_path)):
        same = (got == right) & (np.signbit(got) == np.signbit(right)) | (np.isnan(got) & np.isnan(right))
        assert same.all(), (number, SPECIAL[~same], got[~same], right[~same])


@needs_compiler
def test_sines(tmp_path):
    x = np.random.default_rng(0).uniform(-100, 100, (4, 32)).astype(np.float32)
    x[3, :8] = 105614.9, 105615, -105615, 105615.1, 3e38, -1e20, 0, -0.0
    for name, function in (("sin", np.sin), ("cos", np.cos)):
        for number, got in enumerate(everywhere(f"{name}(X[m,n])", {"X": x}, {"X": float32, "Y": float32}, tmp_path)):
            np.testing.assert_allclose(got, function(x.astype(float)), rtol=1e-6, atol=1e-7, err_msg=f"{name} {number}")


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
def test_the_long_path_of_sines_is_compiled_once():
    """`sinf` has a path for large arguments with 64-bit products. Inlined in each of 64 calls, it takes seconds."""
    body = {"rotate": "t[m,n] = X[m,n] * cos(n * f[n]) + X[m,n] * sin(n * f[n])", "y": "Y[m,n] = t[m,n]"}
    definition = Fused(name="rotated", dims="m n", operands={"X": "m n", "f": "n", "Y": "m n"}, body=body, types={"f": float32})
    strategy = (
        definition.tile(m=2, n=128)
        .to(Block)
        .load("X", RF, Move.tile(2, 128).to(Warp).tile(2, 4).to(Lane).tile(1, 4).unroll().done())
        .done()
    )
    program = strategy(definition(m=2, n=128)).program("sm_80")
    assert program.cuda.count("sinf(") == 2 and "__device__ __noinline__ float sine_of_large(float x)" in program.cuda
    inlined = program.cuda.replace("__noinline__", "__forceinline__")
    called, long = (len(compile_cuda(text, "sm_80").ptx.splitlines()) for text in (program.cuda, inlined))
    assert 2 * called < long, (called, long)


# ---------------------------------------------------------------------------------------------- element types

WIDE = np.array([0, -1, 2**63 - 1, -(2**63), 2**31, -(2**31) - 1, 3, 100] * 16, np.int64).reshape(4, 32)


@needs_compiler
@pytest.mark.parametrize(
    ("formula", "function", "result"),
    [
        ("L[m,n]", lambda a: a, int64), ("L[m,n] >> 1 ^ n", lambda a: a >> 1 ^ np.arange(32), int64),
        ("max(L[m,n] // 3, -5) % 7", lambda a: np.maximum(a // 3, -5) % 7, int64), ("~L[m,n]", lambda a: ~a, int64),
        ("where(L[m,n] == 2147483648, 1, 0)", lambda a: (a == 2**31) * 1, int64), ("L[m,n]", lambda a: a.astype(np.int32), int32),
        ("L[m,n] * 5 + L[m,n]", lambda a: (a * 6).astype(np.int32), int32), ("int32(L[m,n])", lambda a: a.astype(np.int32), int64),
        ("L[m,n]", lambda a: a.astype(np.float32), float32), ("philox(L[m,n], L[m,n], L[m,n] >> 32)", lambda a: philox(a, a, a >> 32), int64),
    ],
)  # fmt: skip
def test_int64(formula, function, result, tmp_path):
    with np.errstate(over="ignore"):
        right = function(WIDE).astype(result.to_numpy())
    for number, got in enumerate(everywhere(formula, {"L": WIDE}, {"L": int64, "Y": result}, tmp_path)):
        np.testing.assert_array_equal(got, right, err_msg=str(number))


@needs_compiler
def test_floats_that_become_int64_saturate(tmp_path):
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**63, -(2.0**63), 3.9, -3.9, 1e12] + [0.0] * 22).reshape(1, 32)
    right = [0, 2**63 - 1, -(2**63), 2**63 - 1, -(2**63), 2**63 - 1, -(2**63), 3, -3, 10**12]
    for dtype in (float32, float64):
        right[-1] = int(dtype.to_numpy().type(1e12))
        for got in everywhere("X[m,n] + 0.0", {"X": x.astype(dtype.to_numpy())}, {"X": dtype, "Y": int64}, tmp_path):
            assert got[0, :10].tolist() == right


@needs_compiler
def test_int64_is_passed_by_value(tmp_path):
    arrays = {"c": np.arange(128, dtype=np.int32).reshape(4, 32), "seed": np.int64(2**40 + 5)}
    for got in everywhere("seed ^ c[m,n]", arrays, {"c": int32, "seed": int64, "Y": int64}, tmp_path):
        np.testing.assert_array_equal(got, arrays["c"] ^ np.int64(2**40 + 5))


def test_int64_beyond_its_range_and_its_reductions_are_refused():
    definition = Fused(name="drawn", dims="m n", operands={"L": "m n", "Y": "m n"}, body={"out": "Y[m,n] = L[m,n] * 2"}, types={"L": int64})
    with pytest.raises(ArgumentError, match="may need more than 64 bits"):
        definition(m=4, n=4, types={"Y": int64})
    assert definition(m=4, n=4, types={"Y": int32})
    total = Fused(name="total", dims="m n", operands={"L": "m n", "y": "m"}, body={"out": "y[m] = sum(n, L[m,n])"}, types={"L": int64})
    with pytest.raises(ArgumentError, match=r"a sum with L\[m,n\], which is int64[\s\S]*t\[m,n\] = int32\(L\[m,n\]\)"):
        total(m=4, n=4)


@needs_compiler
@pytest.mark.parametrize("dtype", [float8_e4m3, float8_e5m2], ids=str)
def test_formulas_of_8_bit_floats(dtype, tmp_path):
    """They are converted to float32 when they are read, and a result is rounded once and saturates."""
    kind = dtype.to_numpy()
    x = np.arange(256, dtype=np.uint8).view(kind).reshape(8, 32)
    wide = x.astype(np.float32)
    with np.errstate(all="ignore"):
        for formula, right, result in (
            ("X[m,n] * 3 - 1", wide * 3 - 1, float32), ("X[m,n] * 100", convert(wide * 100, dtype), dtype),
            ("where(X[m,n] > 1, floor(X[m,n]), 1)", np.where(wide > 1, np.floor(wide), 1), float32),
            ("int32(X[m,n]) & 7", np.clip(np.nan_to_num(wide.astype(float)), -(2**31), 2**31 - 1).astype(np.int64) & 7, int32),
        ):  # fmt: skip
            for number, got in enumerate(everywhere(formula, {"X": x}, {"X": dtype, "Y": result}, tmp_path)):
                same = np.asarray(got).astype(np.float64), np.asarray(right).astype(np.float64)
                np.testing.assert_array_equal(*same, err_msg=f"{formula} {number}")


@needs_compiler
def test_rows_of_8_bit_floats_are_reduced_in_float32(tmp_path):
    definition = Fused(
        name="rows", dims="m n", operands={"X": "m n", "y": "m", "top": "m"},
        body={"sum": "y[m] = sum(n, X[m,n])", "top": "top[m] = max(n, X[m,n])"},
        types={"X": float8_e4m3, "y": float32, "top": float8_e4m3},
    )  # fmt: skip
    spec = definition(m=8, n=64)
    strategy = definition.tile(m=8).to(Block).tile(m=1).to(Thread).done()(spec)
    x = np.random.default_rng(0).integers(-8, 9, (8, 64)).astype(float8_e4m3.to_numpy())
    wide, host = x.astype(np.float32), HostProgram([Printed.of(strategy.program("sm_80"))], tmp_path)
    for y, top in (spec.reference(x), strategy.compile("sm_80")(x), host.run(0, {"X": x}).values()):
        np.testing.assert_array_equal(y, wide.sum(1))
        np.testing.assert_array_equal(top.astype(np.float32), wide.max(1))


# ---------------------------------------------------------------------------------------------- injected faults

FAULTS = {
    "a quotient toward zero": (r" - \(x % divisor < 0\)", ""),
    "a remainder with the sign of the dividend": (r"rest < 0 \? rest \+ divisor : rest", "rest"),
    "a shift as a division": (r" >> 3\)", " / 8)"),
    "an exclusive or as an inclusive one": (r"\^", "|"),
    "a complement as a negative": (r"~", "-"),
    "a logical shift": (r"\(c\[(.*?)\] >> 3\)", r"(int(unsigned(c[\1]) >> 3))"),
    "a mask that is one bit short": (r"0xffffffffu", "0x7fffffffu"),
    "one bit too many": (r"<< 2\b", "<< 3"),
    "nine rounds": (r"round < 10", "round < 9"),
    "another key": (r"0xbb67ae85u", "0xbb67ae84u"),
    "exchanged words": (r"c3 : c2", "c2 : c3"),
    "an upper half without a sign": (r"static_cast<unsigned long long>\(", "static_cast<unsigned>("),
    "a signed product": (r"__umulhi\((?!0x)", "__mulhi("),
}
FAULTY = (
    "(c[m,n] // 7) % 5 + (c[m,n] >> 3) ^ c[m,n] // 8 - (c[m,n] & 7) + (~c[m,n] << 2)"
    " + ((c[m,n] * 0x2c1b3c6d & 0xffffffff) >> 7) + (c[m,n] * m) % 9"
    " + (philox(int32(c[m,n]), m, n, 3, 4, n) & 255) + mulhi(c[m,n] & 0xffffffff, c[m,n] * 5 & 0xffffffff)"
)


@needs_compiler
def test_injected_faults_are_detected(tmp_path):
    definition = Fused(name="drawn", dims="m n", operands={"c": "m n", "Y": "m n"}, body={"out": f"Y[m,n] = {FAULTY}"})
    spec = definition(m=8, n=32, types={"c": int32, "Y": int32})
    strategy = definition.tile(m=8, n=32).to(Block).tile(m=1, n=1).to(Thread).done()(spec)
    good = Printed.of(strategy.program("sm_80"))
    host = HostProgram([good, *(good.changed(*fault, 0) for fault in FAULTS.values())], tmp_path)
    given = {"c": np.random.default_rng(0).integers(-(2**31), 2**31, (8, 32)).astype(np.int32)}
    right = spec.reference(given["c"])
    assert np.array_equal(host.run(0, given)["Y"], right) and np.array_equal(strategy.compile("sm_80")(given["c"]), right)
    missed = [name for number, name in enumerate(FAULTS, start=1) if np.array_equal(host.run(number, given)["Y"], right)]
    assert not missed
