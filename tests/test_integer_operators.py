"""Operators and functions of integers in definitions: accepted by every command, refused with what to do, and injected faults are detected."""

import json

import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.cli import main
from fireiron.errors import ArgumentError
from fireiron.specs import meaning
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
    "philox(c[m,n] * c[m,n] * c[m,n], m)": ("may need more than 64 bits", "a float among its factors"),
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
    for name, function in (("sin", np.sin), ("cos", np.cos)):
        for number, got in enumerate(everywhere(f"{name}(X[m,n])", {"X": x}, {"X": float32, "Y": float32}, tmp_path)):
            np.testing.assert_allclose(got, function(x.astype(float)), rtol=1e-6, atol=1e-7, err_msg=f"{name} {number}")


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
