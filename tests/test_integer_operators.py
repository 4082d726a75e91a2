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
from fireiron.stepping.masked_tile_effects import Values

FILE = """
from fireiron import *

definition = Fused(name="drawn", dims="m n", operands={operands}, body={{"out": "Y[m,n] = {formula}"}}, types={types})
strategy = definition.tile(m=4, n=32).to(Block).tile(m=1, n=1).to(Thread).done()
"""

EXAMPLES = {
    "unpacked nibbles": ("((P[m,n] >> 4 * (n % 2) & 15) - 8) * S[m]", {"P": "m n", "S": "m"}, {"P": int32}),
    "hash": ("(c[m,n] ^ (c[m,n] >> 15)) * 0x2c1b3c6d & 0xffffffff", {"c": "m n"}, {"c": int32, "Y": int32}),
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
    "c[m,n] * c[m,n] * c[m,n] | 1.0": ("| is for integers, and 1.0 is a float", "whole constants"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refusals_name_what_to_do(text):
    operands = {name: "m n" for name in ("c", "X") if f"{name}[" in text}
    definition = Fused(name="drawn", dims="m n", operands={**operands, "Y": "m n"}, body={"out": f"Y[m,n] = {text}"})
    types = {name: {"c": int32, "X": float32}[name] for name in operands}
    with pytest.raises(ArgumentError) as caught:
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
}
FAULTY = (
    "(c[m,n] // 7) % 5 + (c[m,n] >> 3) ^ c[m,n] // 8 - (c[m,n] & 7) + (~c[m,n] << 2)"
    " + ((c[m,n] * 0x2c1b3c6d & 0xffffffff) >> 7) + (c[m,n] * m) % 9"
)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
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
