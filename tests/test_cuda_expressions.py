"""Printed index expressions, evaluated by a C compiler, compared with the values of the engine.

The draws are those of `test_expr.py`. One C file contains them all; if the compiler has the undefined-behavior sanitizer, an intermediate
32-bit overflow is detected, too. `FIREIRON_FUZZ=50` multiplies the draws.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import random
import shutil
import subprocess
import sys
import types
from dataclasses import dataclass

import pytest
from test_expr import LARGEST, draw

import fireiron.values.expr as expr
from fireiron.cuda import expressions as cuda
from fireiron.cuda.quotients import Quotient, Residue
from fireiron.cuda.rotations import Wrapped
from fireiron.cuda.types import applied, repeated
from fireiron.errors import ArgumentError, VerificationError
from fireiron.values.expr import INT_MAX, Var, all_of, any_of, as_expr, equal, less, minimum, sym
from fireiron.values.machine import float16, float32, int8, int32, int64

SCALE = float(os.environ.get("FIREIRON_FUZZ", "1"))
SEED = 20240307
DRAWS, POINTS = 300, 24
COMPILER = next(filter(None, map(shutil.which, ("gcc", "cc", "clang"))), None)

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler (gcc, cc or clang) on the path")


@dataclass
class Printed:
    """An expression, its C text, and points with the expected value at each."""

    value: expr.Expr
    text: str
    points: list[dict[str, int]]
    note: str = ""

    @functools.cached_property
    def variables(self):
        return sorted(self.value.variables(), key=lambda var: var.name)

    @functools.cached_property
    def wanted(self):
        return [int(self.value.evaluate(point)) for point in self.points]


def kind(var):
    """The C type in which the printer declares a variable."""
    return "long long" if max(-var.low, var.high) > INT_MAX else "int"


def function(number, expression):
    names = [f"const {kind(var)} {var.name} = ({kind(var)})v[{place}];" for place, var in enumerate(expression.variables)]
    return f"static long long f{number}(const long long* v) {{ (void)v; {' '.join(names)} return {expression.text}; }}"


def program(printed):
    """A C program that prints `expression point value` for every unexpected value."""
    lines = ["#include <stdio.h>", "#define min(a, b) ((a) < (b) ? (a) : (b))"]
    lines += [function(number, one) for number, one in enumerate(printed)]
    lines += ["int main(void) {", "  long long got;"]
    for number, expression in enumerate(printed):
        rows = ", ".join(
            "{" + ", ".join([f"{point[var.name]}LL" for var in expression.variables] + [f"{want}LL"]) + "}"
            for point, want in zip(expression.points, expression.wanted)
        )
        width = len(expression.variables)
        lines.append(
            f"  {{ static const long long t[{len(expression.points)}][{width + 1}] = {{{rows}}};"
            f" for (int i = 0; i < {len(expression.points)}; ++i) if ((got = f{number}(t[i])) != t[i][{width}])"
            f' printf("{number} %d %lld\\n", i, got); }}'
        )
    return "\n".join([*lines, "  return 0;", "}", ""])


WARNINGS = ("-std=gnu11", "-O0", "-w")
SANITIZE = ("-fsanitize=undefined",)


@functools.cache
def sanitizer(folder):
    """The flags of the sanitizer, if the compiler has it and its library."""
    probe = folder / "probe.c"
    probe.write_text("int main(void) { return 0; }\n")
    run = subprocess.run([COMPILER, *SANITIZE, probe, "-o", folder / "probe"], capture_output=True)
    return SANITIZE if run.returncode == 0 else ()


def disagreements(printed, folder):
    """The errors of the compiled expressions: values, and intermediate overflows."""
    source, binary = folder / "expressions.c", folder / "expressions"
    source.write_text(program(printed))
    built = subprocess.run([COMPILER, *WARNINGS, *sanitizer(folder), source, "-o", binary], capture_output=True, text=True)
    assert built.returncode == 0, f"the C compiler refuses the text:\n{built.stderr[:2000]}"
    run = subprocess.run([binary], capture_output=True, text=True, timeout=300)
    wrong = []
    for line in run.stdout.splitlines():
        number, point, got = map(int, line.split())
        expression = printed[number]
        wrong.append(
            f"{expression.text}\n  at {expression.points[point]}: C has {got}, the engine {expression.wanted[point]}\n  {expression.note}"
        )
    for line in run.stderr.splitlines():
        if "runtime error" in line:
            number = int(line.split(":")[1]) - 3
            wrong.append(f"{printed[number].text}\n  {line.split('runtime error: ')[1]}\n  {printed[number].note}")
    return wrong


def printable(value, printer=cuda):
    """The C text, or None if a dividend may be negative, which the printer refuses."""
    try:
        return printer.expression(value)
    except (VerificationError, ArgumentError):
        return None


def drawn_expressions(count, printer=cuda, seed=SEED):
    printed, number = [], 0
    while len(printed) < count:
        drawn = draw(expr, f"{seed}-{number}")
        number += 1
        value = drawn.last.expr
        text = printable(value, printer)
        if text is None or not value.variables() or max(-value.low, value.high) > LARGEST:
            continue
        size = len(drawn.last.values)
        rng = random.Random(drawn.seed)
        chosen = sorted({0, size - 1, *(rng.randrange(size) for _ in range(POINTS))})
        printed.append(Printed(value, text, [drawn.point(index) for index in chosen], f"draw {drawn.seed}: {drawn.last.text}"))
    return printed


def test_random_expressions_in_c(tmp_path):
    count = int(DRAWS * SCALE)
    printed = drawn_expressions(count)
    wide = sum("long long" in one.text for one in printed)
    print(f"seed {SEED}, {count} expressions, {wide} with 64-bit parts, sanitizer {'on' if sanitizer(tmp_path) else 'off'}")
    assert wide > count // 50
    for start in range(0, count, 2000):
        wrong = disagreements(printed[start : start + 2000], tmp_path)
        assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong[:5])


# ---------------------------------------------------------------------------------------------- named cases

i, j, k = Var("i", 0, 99), Var("j", 0, 31), Var("k", 0, INT_MAX)
far, back = Var("far", 0, 2**40), Var("back", -50, 50)
half, nothing = Var("half", 0, 2**30 - 1), Var("nothing", 0, 0)
M, N, P = sym("M", high=INT_MAX), sym("N", multiple_of=8), sym("P", high=7)

NAMED = {
    "Exo's 5 * i % 2": 5 * (i % 2),
    "a quotient times its divisor": 3 * (i // 7) + (i * 3) // 7,
    "a product in a quotient": (M * 3 + j) // (P * 2),
    "a product in a remainder": (M * 3 + j) % (P * 2),
    "a quotient of a quotient by a symbol": (i // P) // (j + 1),
    "a remainder of a remainder": (i % P) % (j + 1),
    "a remainder in a divisor": i // (j % 5 + 1),
    "a difference of differences": i - (j - back) - (M - N),
    "a negative quotient first": -(i // 7) - j % 5,
    "a negative remainder times a quotient": -(i % 7) * (j // 3),
    "a row of a large matrix": M * N + i,
    "a product of three": M * N * sym("Q", high=2) + 5,
    "a wide product in a quotient": (M * N + j) // 128,
    "a wide sum of narrow terms": M + N + k,
    "a wide sum that comes back": M + N - k,
    "the largest value": k + i,
    "the smallest value": -k - 2 + i * 0 - j,
    "a wide constant": i + 3_000_000_000,
    "a wide coefficient": j * 5_000_000_000 + i,
    "a 64-bit variable": far * 8 + i,
    "a 64-bit variable halved": far // 2 % 1000,
    "ceildiv near the end": (M + 127) // 128,
    "masks in masks": ((i & j) | (k & M)) ^ (N | j),
    "exclusive or in a sum": (i ^ (j * 4)) + (i ^ j) * 2,
    "a mask of alternatives": ((i | M) & (j ^ k)) + ((i ^ N) | (j & M)),
    "a partial sum too large": k + i - Var("off", 100, 200),
    "bits of a sum": (i + j) & (M + 1),
    "a mask compared": equal(i & j, 3),
    "the smaller of sums": minimum(i * 3 - 7, j + back) * 2,
    "the smaller of masks": minimum(i | j, M) - 1,
    "a comparison as a number": less(i, j) * 3 + less(j, 9),
    "zero or not": less(i, 1) + less(back, 1) * 2 + less(M * i, 1) * 4,
    "compared comparisons": equal(less(i, j), less(j, M)),
    "and in or": any_of([all_of([less(i, j), less(j, M)]), equal(i % 3, 1), all_of([less(back, j), equal(j, P)])]),
    "or in and": all_of([any_of([less(i, j), less(M, 50)]), any_of([equal(i % 3, 1), less(back, 0)])]),
    "Listing 4": ((j >> 1) & 7) | (j & 0x30) | ((j & 1) << 3),
}


def corners(value):
    """Ends and middles of every variable, combined."""
    variables = sorted(value.variables(), key=lambda var: var.name)
    ends = []
    for var in variables:
        steps = (var.high - var.low) // var.multiple_of
        ends.append(
            sorted({var.low + var.multiple_of * (steps * part // 6) for part in range(7)} | {var.low + var.multiple_of * min(3, steps)})
        )
    return [dict(zip((var.name for var in variables), point)) for point in itertools.product(*ends)]


def test_named_expressions_in_c(tmp_path):
    printed = [Printed(as_expr(value), cuda.expression(value), corners(value), name) for name, value in NAMED.items()]
    wrong = disagreements(printed, tmp_path)
    assert not wrong, "\n".join(wrong[:5])


def test_a_text_with_line_breaks_is_the_same_text():
    """On one line, the text of an expression or a comparison is that without line breaks."""
    for printed, bound in itertools.product(drawn_expressions(150), (as_expr(1), as_expr(7), sym("M"))):
        value = printed.value
        for whole in (value, less(value, bound), less(bound, value), all_of((less(value, bound), less(bound, value)))):
            assert str(cuda.document(whole)) == cuda.expression(whole)


def test_a_dividend_that_may_be_negative_is_not_printed():
    with pytest.raises((VerificationError, ArgumentError), match="negative"):
        cuda.expression(back // 3)
    assert cuda.expression(back % 3) == "(back + 51) % 3", "a remainder is lifted into the positive first"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "value, wide",
    [
        (M, False),
        (M + 1, True),
        (M * N, True),
        (i * j, False),
        (k // 2 + i, False),
        ((k + 1) // 2, True),
        (far // 2**20, True),
        (i + 2**31, True),
        (half * 2 + 1, False),
        (half * 2 + 2, True),
        (-2 * half - 1, False),
        (-2 * half - 2, True),
        (half + j * 3 - half * j, True),
        (M * N * nothing, True),
        (Var("below", -INT_MAX, 0) * Var("two", 1, 2) * nothing, True),
    ],
    ids=str,
)
def test_width(value, wide):
    """Up to the last number of 32 bits; a product is computed from left to right, for any result."""
    assert cuda.is_wide(value) == wide == ("long long" in cuda.expression(value) or value.variables() == {far})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("low, high, wide", [(0, INT_MAX, False), (0, 2**31, True), (-INT_MAX, 0, False), (-(2**31), 0, True)])
def test_a_variable_is_as_wide_as_its_ends(low, high, wide):
    assert cuda.is_wide(Var("x", low, high)) == wide


@pytest.mark.parametrize(
    "number, divisor", [(i, k // 2**29 + 1), (Var("n", 5, 700), Var("d", 3, 9)), (Var("n", 0, 2), Var("d", 3, 9))], ids=str
)
def test_printer_nodes_have_a_range(number, divisor):
    """The range of the represented value: it decides whether they may be divided, and in how many bits they are computed."""
    quotient, rest = number // divisor, number % divisor
    product = Quotient(number, divisor, "per_d", None)
    assert (product.low, product.high) == (quotient.low, quotient.high)
    residue = Residue(number, product, divisor)
    assert residue.low == rest.low == 0 and residue.high == min(number.high, divisor.high - 1)
    wrapped = Wrapped(number, divisor)
    assert wrapped.low == 0 and wrapped.high == min(number.high, divisor.high - 1)
    for node in (product, residue, wrapped):
        assert node.rebuilt(node.children) == node


def test_values_beyond_64_bits_are_refused():
    """Up to the last number of 64 bits, including intermediate values."""
    bit = Var("bit", 0, 1)
    for value in (bit * 2**62 + (2**62 - 1), -(2**62) * bit - (2**62 - 1)):
        assert cuda.is_wide(value)
    for value in (bit * 2**62 + 2**62, -(2**62) * bit - 2**62, far * far * nothing):
        with pytest.raises(VerificationError, match="does not fit 64 bits"):
            cuda.is_wide(value)


# ---------------------------------------------------------------------------------------------- the oracle detects faults

WRONG = {
    "32 bits for all": ("    wide = is_wide(value)\n", "    wide = False\n"),
    "a remainder printed as a quotient": ("{_dividend(left)} % {operand(", "{_dividend(left)} / {operand("),
    "parentheses of a divisor dropped": (
        "{_dividend(left)} / {operand(right, Precedence.FACTOR)}",
        "{_dividend(left)} / {operand(right, Precedence.PRODUCT)}",
    ),
    "parentheses of a dividend dropped": ("    return operand(left, Precedence.PRODUCT)\n", "    return operand(left, Precedence.SUM)\n"),
    "parentheses of factors dropped": ("Precedence.PRODUCT if position == 0 else Precedence.FACTOR", "Precedence.PRODUCT"),
    "parentheses of the first factor dropped": ("Precedence.PRODUCT if position == 0 else", "Precedence.LOWEST if position == 0 else"),
    "parentheses of bit operations dropped": ('return text if precedence >= Precedence.FACTOR else f"({text})"', "return text"),
    "parentheses of exclusive or in a sum dropped": (
        'return Joined(("(", Chain((left, Joined(("^ ", right)))), ")"))',
        'return Chain((left, Joined(("^ ", right))))',
    ),
    "parentheses of conditions dropped": (
        '" && ".join(operand(condition, Precedence.COMPARISON)',
        '" && ".join(operand(condition, Precedence.LOWEST)',
    ),
    "parentheses of a comparison dropped": (
        "{operand(left, Precedence.SUM)} == {operand(right, Precedence.SUM)}",
        "{operand(left, Precedence.LOWEST)} == {operand(right, Precedence.LOWEST)}",
    ),
    "a negative constant added": ("negative = constant < 0", "negative = False"),
    "a negative term added": ('parts.append((coefficient < 0, " * ".join(factors)))', 'parts.append((False, " * ".join(factors)))'),
    "a coefficient dropped": ("    if number == 1:\n", "    if number <= 2:\n"),
    "negative dividends printed": ("if left.low < 0:", "if left.low < -(2**70):"),
    "only the total examined, no partial sum": ("        if extreme > INT_MAX:", "        if max(-value.low, value.high) > INT_MAX:"),
}
"""Wrong printers: a text of `cuda/expressions.py` that occurs once, and its replacement."""


def mutant(name, before, after):
    text = inspect.getsource(cuda)
    assert text.count(before) == 1, f"{name}: `{before}` stands {text.count(before)} times in expressions.py; adapt this entry"
    module = types.ModuleType(f"wrong_printer_{abs(hash(name))}")
    sys.modules[module.__name__] = module
    try:
        exec(compile(text.replace(before, after), module.__name__, "exec"), vars(module))
    finally:
        del sys.modules[module.__name__]
    return module


@pytest.mark.sampled(54)
@pytest.mark.parametrize("name", WRONG)
def test_wrong_printers_are_found(name, tmp_path):
    printer = mutant(name, *WRONG[name])
    changed = [
        Printed(as_expr(value), text, corners(value), note)
        for note, value in [*NAMED.items(), ("a negative quotient", back // 3), ("in and out of range", k + i - M - N)]
        if (text := printable(value, printer)) is not None and text != printable(value)
    ]
    assert changed, "the fault changes no named expression"
    assert disagreements(changed, tmp_path), f"not found: {name}: {[one.text for one in changed]}"


def test_functions_of_64_bit_integers():
    assert applied("abs", int64, "x").flat == "llabs(x)" and applied("abs", int32, "x").flat == "abs(x)"
    assert applied("max", int64, "x", "y").flat == "max(x, y)"


def test_numbers_in_each_element_of_a_vector():
    assert repeated(1, float16, 2) == "0x3c003c00" and repeated(1, int8, 2) == "0x101"
    assert repeated(1, float16, 4) == "make_uint2(0x3c003c00u, 0x3c003c00u)" and repeated(1, float32, 2) == "make_float2(1.0f, 1.0f)"
