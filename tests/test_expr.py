"""Index expressions against brute force: every rule, range and printed form over whole domains.

A draw builds one expression three ways: through the smart constructors, as NumPy values over its domain, and as a Python
source text in which every operation is in parentheses. `FIREIRON_FUZZ=50 pytest tests/test_expr.py` multiplies the draws.
`check(expr, draw(expr, "20240229-17"))` replays number 17.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from counted import python_calls

import fireiron.values.expr as expr
from fireiron.errors import ArgumentError
from fireiron.values.expr import (
    FALSE,
    INT_MAX,
    TRUE,
    ZERO,
    BitXor,
    Const,
    Equal,
    FloorDiv,
    Less,
    Min,
    Mod,
    Sum,
    Var,
    all_of,
    any_of,
    as_expr,
    bit_and,
    bit_or,
    bit_xor,
    ceildiv,
    compiled,
    conjuncts,
    constant,
    equal,
    hilbert,
    less,
    minimum,
    possible_bits,
    source,
    sym,
)

SCALE = float(os.environ.get("FIREIRON_FUZZ", "1"))
SEED = 20240229
DRAWS = 1_000
POINTS, SAMPLE = 4096, 500
LARGEST = 2**50
"""Magnitude up to which NumPy's 64 bits hold every intermediate value, distributed or not."""


# ---------------------------------------------------------------------------------------------- the generator


@dataclass
class Case:
    """One expression: what the engine built, its values at all points, and its recipe."""

    expr: expr.Expr
    values: np.ndarray
    text: str
    bound: int
    """No intermediate value of any arrangement of the recipe exceeds it."""


@dataclass
class Draw:
    """A domain with its points, and the expressions built over it; the last is the one in question."""

    seed: str
    variables: list[expr.Var] = field(default_factory=list)
    points: dict[str, np.ndarray] = field(default_factory=dict)
    pool: list[Case] = field(default_factory=list)
    operations: list[str] = field(default_factory=list)

    @property
    def last(self) -> Case:
        return self.pool[-1]

    def point(self, index: int) -> dict[str, int]:
        return {name: int(values[index]) for name, values in self.points.items()}

    def __str__(self) -> str:
        lines = [f"draw {self.seed}", *(f"{v.name} = {v!r}" for v in self.variables), f"value = {self.last.text}"]
        return "\n".join([*lines, f"# the engine says: {self.last.expr}"])


SIZES = (1, 2, 2, 3, 4, 4, 5, 7, 8, 8, 9, 12, 16, 16, 31, 32, 32, 33)
CONSTANTS = (0, 1, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 12, 15, 16, 24, 31, 32, 48, 64, 96, 128)
DIVISORS = (1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 8, 12, 16, 16, 24, 32, 64)


def variable(fx, rng, name):
    kind = rng.choices(("index", "parameter", "negative", "large", "huge"), (55, 25, 12, 6, 2))[0]
    if kind == "index":
        low = rng.choice((0, 0, 0, 0, 1, 3))
        return fx.Var(name, low, low + rng.choice(SIZES) - 1)
    if kind == "parameter":
        multiple = rng.choice((1, 2, 3, 4, 8, 16))
        return fx.sym(name, multiple, high=multiple * rng.choice(SIZES), low=rng.choice((1, multiple)))
    if kind == "negative":
        multiple = rng.choice((1, 1, 2, 4))
        return fx.Var(name, -multiple * rng.choice((1, 3, 8)), multiple * rng.choice((0, 2, 7)), multiple)
    if kind == "large":
        return fx.sym(name, rng.choice((1, 8, 32)), high=rng.choice((1000, 2**20, INT_MAX)))
    return fx.Var(name, rng.choice((0, -(2**33))), 2**34, rng.choice((1, 4)))


def every_value(var):
    return range(var.low, var.high + 1, var.multiple_of)


def domain(rng, variables):
    """All points, or a sample with the corners."""
    values = [every_value(var) for var in variables]
    if math.prod(map(len, values)) <= POINTS:
        columns = np.meshgrid(*(np.arange(one.start, one.stop, one.step) for one in values), indexing="ij")
        return {var.name: column.ravel() for var, column in zip(variables, columns)}
    corners = np.array(list(itertools.product(*((one[0], one[-1]) for one in values))), dtype=np.int64)
    generator = np.random.default_rng(rng.getrandbits(64))
    inner = [one.start + one.step * generator.integers(0, len(one), SAMPLE - len(corners)) for one in values]
    return {var.name: np.concatenate([corners[:, column], inner[column]]) for column, var in enumerate(variables)}


def shown(operand):
    return operand.text if isinstance(operand, Case) else f"({operand})" if operand < 0 else str(operand)


class Grower:
    """Adds random operations to a draw."""

    def __init__(self, fx, rng, drawn):
        self.fx, self.rng, self.draw = fx, rng, drawn

    def operand(self):
        pool = self.draw.pool
        return pool[-1] if self.rng.random() < 0.45 else self.rng.choice(pool)

    def number(self):
        value = self.rng.choice(CONSTANTS)
        return -value if self.rng.random() < 0.25 else value

    def either(self):
        return self.operand() if self.rng.random() < 0.6 else self.number()

    def apply(self, symbol, left, right):
        """`left symbol right`, each a case or an integer, on all three sides."""
        a, b = ((one.expr, one.values, one.bound) if isinstance(one, Case) else (one, np.int64(one), abs(one)) for one in (left, right))
        operate = OPERATIONS[symbol]
        bound = {"*": a[2] * b[2], "<<": a[2] << int(b[1]) if symbol == "<<" else 0}.get(symbol, a[2] + b[2])
        if bound > LARGEST:
            raise ArgumentError("too large for the oracle")
        text = f"{symbol}({shown(left)}, {shown(right)})" if symbol.isidentifier() else f"({shown(left)} {symbol} {shown(right)})"
        built = getattr(self.fx, symbol)(a[0], b[0]) if symbol.isidentifier() else operate(a[0], b[0])
        values = np.broadcast_to(np.asarray(NUMPY.get(symbol, operate)(a[1], b[1])), self.shape).astype(np.int64)
        return Case(self.fx.as_expr(built), values, text, bound)

    @property
    def shape(self):
        return self.draw.pool[0].values.shape

    def step(self):
        name = self.rng.choices(tuple(STEPS), tuple(STEPS.values()))[0]
        case = getattr(self, name)()
        if np.all(case.values == case.values[0]) and self.rng.random() < 0.9:
            raise ArgumentError("a constant teaches little")
        if weight(case.expr) > 60:
            raise ArgumentError("too long to be an index")
        self.draw.pool.append(case)
        self.draw.operations.append(name)

    def arithmetic(self):
        return self.apply(self.rng.choice("++-*"), *self.rng.sample((self.operand(), self.either()), 2))

    def division(self):
        return self.apply(self.rng.choice(("//", "%")), self.operand(), self.rng.choice(DIVISORS))

    def symbolic_division(self):
        return self.apply(self.rng.choice(("//", "%", "ceildiv")), self.either(), self.operand())

    def rounding_up(self):
        return self.apply("ceildiv", self.operand(), self.rng.choice(DIVISORS))

    def shift(self):
        return self.apply(self.rng.choice(("<<", ">>", ">>")), self.operand(), self.rng.randrange(6))

    def bits(self):
        return self.apply(self.rng.choice("&|^"), *self.rng.sample((self.operand(), self.either()), 2))

    def minimal(self):
        return self.apply("minimum", self.operand(), self.either())

    def comparison(self):
        return self.apply(self.rng.choice(("less", "equal", "<", "<=", ">", ">=")), self.operand(), self.either())

    def counted(self):
        return self.apply("+", self.comparison(), self.comparison())

    def connective(self):
        parts = [self.comparison() for _ in range(self.rng.randint(1, 3))]
        if self.rng.random() < 0.3:
            parts.append(self.connective())
        name = self.rng.choice(("all_of", "any_of"))
        values = (np.minimum if name == "all_of" else np.maximum).reduce([part.values for part in parts])
        text = f"{name}(({', '.join(part.text for part in parts)},))"
        return Case(getattr(self.fx, name)([part.expr for part in parts]), values, text, max(part.bound for part in parts))

    def recombined(self):
        """`(x // c) * (c * k) + (x % c) * k` and its partial and scaled forms, by a constant or a symbol."""
        rng, apply = self.rng, self.apply
        x, c, k = self.operand(), rng.choice(DIVISORS) if rng.random() < 0.6 else self.operand(), rng.choice((1, 1, 2, 3, 8, -1, -4))
        k = self.operand() if rng.random() < 0.15 else k
        quotient, remainder = apply("//", x, c), apply("%", x, c)
        if rng.random() < 0.35:
            quotient = apply("%", quotient, rng.choice(DIVISORS) if rng.random() < 0.7 else self.operand())
        scale = c if rng.random() < 0.85 else self.either()
        left, right = apply("*", apply("*", quotient, scale), k), apply("*", remainder, k)
        both = apply("+", *rng.sample((left, right), 2))
        return both if rng.random() < 0.7 else apply("+", self.operand(), both)

    def digits(self):
        """`a * s + b`, then a digit of it."""
        rng, apply = self.rng, self.apply
        total = apply("+", apply("*", self.operand(), rng.choice((2, 4, 6, 8, 16, 32))), self.either())
        return apply(rng.choice(("//", "%")), total, rng.choice((2, 4, 8, 16, 24, 32, 64)))

    def swizzle(self):
        """`x ^ (((x >> source) & mask) << target)`, with an offset inside the vector."""
        rng, apply = self.rng, self.apply
        x = apply("+", apply("*", self.operand(), rng.choice((1, 2, 4, 8))), rng.choice((0, 0, 1, 3)))
        mixed = apply("<<", apply("&", apply(">>", x, rng.randint(1, 6)), rng.choice((1, 3, 7))), rng.randrange(5))
        return apply("^", *rng.sample((x, mixed), 2))


OPERATIONS = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "//": lambda a, b: a // b, "%": lambda a, b: a % b,
    "<<": lambda a, b: a << b, ">>": lambda a, b: a >> b, "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
    "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
    "ceildiv": lambda a, b: -(-a // b), "minimum": min, "less": lambda a, b: a < b, "equal": lambda a, b: a == b,
}  # fmt: skip
NUMPY = {"minimum": np.minimum}
PLAIN = {**OPERATIONS, "all_of": all, "any_of": any}
"""What the names in a recipe, and in `str` of an expression, mean for integers."""
STEPS = {
    "arithmetic": 26, "division": 16, "symbolic_division": 8, "rounding_up": 4, "shift": 7, "bits": 12, "minimal": 4,
    "comparison": 3, "connective": 3, "counted": 1, "recombined": 11, "digits": 8, "swizzle": 5,
}  # fmt: skip


def weight(value):
    """Operations in an expression."""
    return 1 + sum(map(weight, value.children))


def draw(fx, seed):
    """The random expression of a seed, built by a version of the engine."""
    rng = random.Random(seed)
    drawn = Draw(seed, [variable(fx, rng, name) for name in "xyzw"[: rng.randint(1, 4)]])
    drawn.points = domain(rng, drawn.variables)
    for var in drawn.variables:
        drawn.pool.append(Case(var, drawn.points[var.name], var.name, max(abs(var.low), abs(var.high))))
    grower = Grower(fx, rng, drawn)
    for _ in range(rng.randint(1, 7)):
        for _attempt in range(20):
            try:
                grower.step()
                break
            except ArgumentError:
                continue  # a dividing or masking operand that may be negative: the next attempt takes others
    return drawn


# ---------------------------------------------------------------------------------------------- the oracle


def check(fx, drawn):
    """Everything that the engine states about the last expression of a draw, compared with its values."""
    case, value = drawn.last, drawn.last.expr
    rng = random.Random(drawn.seed + "check")
    size = len(case.values)
    some = [drawn.point(index) for index in {0, size - 1, *(rng.randrange(size) for _ in range(2))}]
    wanted = [int(eval(case.text, PLAIN, point)) for point in some]
    check_values(fx, drawn, some, wanted)
    check_facts(fx, value, case.values)
    check_form(fx, value)
    check_substitution(fx, drawn, rng, some, wanted)
    check_decisions(fx, drawn, rng)


def check_values(fx, drawn, some, wanted):
    value, text = drawn.last.expr, str(drawn.last.expr)
    for function in (fx.compiled(value), fx.evaluation.of_source(value)):  # the second is what many evaluations compile
        got = np.broadcast_to(np.asarray(function(drawn.points)), drawn.last.values.shape)
        assert np.array_equal(got, drawn.last.values), "compiled, NumPy"
    assert [value.evaluate(point) for point in some] == wanted, "evaluate, integers"
    code = compile(text, "str", "eval")
    assert [eval(code, PLAIN, point) for point in some] == wanted, f"str: {text}"


def check_facts(fx, value, values):
    assert value.low <= values.min() and values.max() <= value.high, f"range {value.low}..{value.high}"
    assert not (values % value.factor if value.factor else values).any(), f"factor {value.factor}"
    if value.low >= 0:
        assert int(np.bitwise_or.reduce(values)) & ~fx.possible_bits(value) == 0, "possible_bits"


def nodes(value):
    yield value
    for child in value.children:
        yield from nodes(child)


def check_form(fx, value):
    for node in nodes(value):
        assert node.rebuilt(node.children) == node, f"not simplified to the end: {node!r} becomes {node.rebuilt(node.children)!r}"
    again = eval(repr(value), dict(vars(fx)))
    assert again == value and hash(again) == hash(value), f"repr: {value!r}"
    assert (again.low, again.high, again.factor) == (value.low, value.high, value.factor)


def replaced(value, var, other):
    """The expression with a variable replaced, or unchanged where that is refused.

    `(x - 1) * (x - 1)` distributes: its range, summed term by term, reaches below 0, and bits or a divisor refuse it.
    """
    try:
        return value.substitute({var: other})
    except ArgumentError as error:
        assert "negative" in str(error) or "divisor" in str(error)
        return value


def check_substitution(fx, drawn, rng, some, wanted):
    value, variables = drawn.last.expr, drawn.variables
    assert value.substitute({var: var for var in variables}) == value
    for point, number in zip(some, wanted):
        decided = value.substitute({var: point[var.name] for var in variables})
        assert decided == fx.Const(number), f"at {point}: {decided!r}, not {number}"
        chosen = rng.choice(variables)
        partly = replaced(value, chosen, point[chosen.name])
        assert partly is value or chosen not in partly.variables()
        assert partly.evaluate(point) == number, f"{chosen.name} = {point[chosen.name]}: {partly!r}"
    chosen = rng.choice(variables)
    step = fx.Var("step", 0, (chosen.high - chosen.low) // chosen.multiple_of)
    renamed = replaced(value, chosen, chosen.low + step * chosen.multiple_of)
    if renamed is value and chosen in value.variables():
        return
    for point, number in zip(some, wanted):
        inner = {**point, "step": (point[chosen.name] - chosen.low) // chosen.multiple_of}
        assert renamed.evaluate(inner) == number, f"{chosen.name} counted in steps: {renamed!r}"


def check_decisions(fx, drawn, rng):
    """A comparison that is decided is decided rightly, one with itself is, and equal means equal."""
    left, right = drawn.last, rng.choice(drawn.pool)
    smaller, same = left.values < right.values, left.values == right.values
    for decision, truth in ((fx.less(left.expr, right.expr), smaller), (fx.equal(left.expr, right.expr), same)):
        decided = fx.constant(decision)
        assert decided in (None, 0, 1) and (decided is None or np.all(truth == bool(decided))), f"{decision} against {right.text}"
    assert fx.equal(left.expr, left.expr) == fx.TRUE and fx.less(left.expr, left.expr) == fx.FALSE
    if left.expr == right.expr:
        assert same.all() and hash(left.expr) == hash(right.expr)


def test_random_expressions():
    started, operations, undecided = time.perf_counter(), Counter(), 0
    count = int(DRAWS * SCALE)
    print(f"seed {SEED}, {count} expressions")
    for number in range(count):
        drawn = None
        try:
            drawn = draw(expr, f"{SEED}-{number}")
            check(expr, drawn)
        except Exception as error:
            error.add_note(str(drawn) if drawn else f"while drawing {SEED}-{number}")
            raise
        operations.update(drawn.operations)
        undecided += constant(drawn.last.expr) is None
    print(f"{time.perf_counter() - started:.1f} s, {undecided} not constant, {sum(operations.values())} operations {dict(operations)}")
    assert set(operations) == set(STEPS) and undecided > count * 0.7


def test_operations_commute_and_regroup():
    rng, count = random.Random(SEED), int(1500 * SCALE)
    for number in range(count):
        drawn = draw(expr, f"{SEED}-regroup-{number}")
        a, b, c = (rng.choice(drawn.pool).expr for _ in range(3))
        assert a + b == b + a and equal(minimum(a, b), minimum(b, a)) == TRUE, (a, b)
        if weight(a) * weight(b) < 100:
            assert a * b == b * a, (a, b)
        if a.low >= 0 and b.low >= 0:
            assert (a & b, a | b, a ^ b) == (b & a, b | a, b ^ a), (a, b)
        assert a - a == ZERO and hash(a + c) == hash(c + a), (a, c)
        there_and_back = (a + b + c) - b - c  # not always the same form: y - y // 2 is y // 2 for even y
        points = drawn.points
        assert np.array_equal(*np.broadcast_arrays(there_and_back.evaluate(points) + 0 * points["x"], a.evaluate(points))), (a, b, c)


# ---------------------------------------------------------------------------------------------- the oracle finds faults

WRONG = {
    "the sum forgets a constant": ("_folded(total, left_constant + right_constant)", "_folded(total, left_constant)"),
    "a remainder beside any quotient": ("            if scaled == _scaled(coefficient, remainder.right, rest):", "            if True:"),
    "the pair of a digit without its modulus": ("mod(remainder.left, mul(remainder.right, atom.right))", "remainder.left"),
    "a lifted remainder merged without its offset": ("integer(-quotient.constant))", "integer(0))"),
    "a number not added to a sum": ("return Sum(value.terms, total)", "return Sum(value.terms, value.constant)"),
    "a remainder by bits of too many": ("lambda divisor: divisor - 1)", "lambda divisor: divisor)"),
    "a quotient by bits of too few": ("lambda divisor: divisor.bit_length() - 1)", "lambda divisor: divisor.bit_length() - 2)"),
    "a product only of the leading terms": ("(*right_terms, ((), right_constant))", "(*right_terms,)"),
    "an inexact quotient canceled": ("or quotient.left.factor % divisor:", "or coefficient % 2 > 1:"),
    "a quotient canceled under a foreign coefficient": ("divisor is None or coefficient % divisor or", "divisor is None or"),
    "the rest of a division dropped": ("remainder = polynomial(rest, number % divisor)", "remainder = polynomial(rest, 0)"),
    "the whole part of a number dropped": ("quotient = polynomial(whole, number // divisor)", "quotient = polynomial(whole, 0)"),
    "division toward zero": ("polynomial(whole, number // divisor)", "polynomial(whole, int(number / divisor))"),
    "a quotient of a quotient added up": ("integer(left.right.value * divisor)", "integer(left.right.value + divisor)"),
    "a quotient of any remainder": (
        "isinstance(left.right, Const) and left.right.value % divisor == 0:\n        return mod(floor",
        "isinstance(left.right, Const) and left.right.value > divisor:\n        return mod(floor",
    ),
    "a remainder of any remainder": ("reduced.right.value % divisor == 0:", "reduced.right.value >= divisor:"),
    "a low part as large as the scale": ("low_part.high < scale:", "low_part.high <= scale:"),
    "a low part below zero": ("low_part.low >= 0 and low_part.high", "low_part.high"),
    "any multiple taken for exact": ("[2] % divisor == 0}\n    if not exact", "[2] % 2 == 0}\n    if not exact"),
    "a remainder within, or equal to, the divisor": (
        "left.low >= 0 and left.high < right.low:\n        return left",
        "left.low >= 0 and left.high <= right.low:\n        return left",
    ),
    "a remainder of a small negative value": (
        "left.low >= -right.low:\n        return add",
        "left.low >= -right.low - 1:\n        return add",
    ),
    "terms dropped that the divisor does not divide": ("if right not in atoms}", "if len(atoms) < 2}"),
    "a remainder not scaled back": (
        "integer(divisor // scale)), integer(scale)), low_part)",
        "integer(divisor // scale)), integer(1)), low_part)",
    ),
    "lifted by one too few": ("-(value.low // divisor) * divisor", "-(value.low // divisor) * (divisor - 1)"),
    "rounded up one too far": ("add(divisor, integer(-1))", "add(divisor, integer(0))"),
    "overlapping bits taken for disjoint": (
        "            if seen & part:\n                return bits",
        "            if seen < 0:\n                return bits",
    ),
    "bits above the highest value": ("return ((1 << high.bit_length()) - 1) & ~", "return high & ~"),
    "a mask run one too long": (".bit_length() - 1\n        field", ".bit_length()\n        field"),
    "or as a sum": (
        "    if possible_bits(left) & possible_bits(right) == 0:\n        return add(left, right)\n"
        "    if isinstance(left, Const) and isinstance(right, Const):\n        return Const(left.value | right.value)",
        "    if not isinstance(left, Const):\n        return add(left, right)",
    ),
    "xor splits at the highest bit": (
        "step = integer(possible_bits(other) & -possible_bits(other))",
        "step = integer(1 << possible_bits(other).bit_length())",
    ),
    "xor loses what it split": ("step), other), below)", "step), other), ZERO)"),
    "the larger of two": ("if first.high <= second.low:\n        return first", "if first.high <= second.low:\n        return second"),
    "less at equality": ("if gap.low > 0:", "if gap.low >= 0:"),
    "not less too early": ("if gap.high <= 0:", "if gap.high <= 1:"),
    "equal where the ranges touch": ("if gap.low > 0 or gap.high < 0:", "if gap.low >= 0 or gap.high < 0:"),
    "a conjunction keeps its last part": ("parts[0] if len(parts) == 1 else All(parts)", "parts[0] if len(parts) <= 2 else All(parts)"),
    "a false part ends a disjunction": ("if part == TRUE:\n            return TRUE", "if part == FALSE:\n            return TRUE"),
    "the range of a product by two ends": (
        "(low * atom.low, low * atom.high, high * atom.low, high * atom.high)",
        "(low * atom.low, high * atom.high)",
    ),
    "the range of a quotient by one divisor": ("for divisor in (self.right.low, self.right.high)]", "for divisor in (self.right.high,)]"),
    "the range of a remainder by its dividend": ("if self.left.low >= 0 else top", "if self.left.high >= 0 else top"),
    "the factor of a quotient kept": ("self.left.factor // self.right.low if exact else 1", "self.left.factor if exact else 1"),
    "the factor of a remainder kept": (
        "math.gcd(self.left.factor, self.right.low) if divides else 1",
        "self.left.factor if divides else 1",
    ),
    "the factor of a minimum from one side": ("math.gcd(self.left.factor, self.right.factor))", "self.left.factor)"),
    "a sign printed into a quotient": ("first = 5 if parts or coefficient > 0 else 6", "first = 5"),
    "parentheses of a divisor dropped": ('{show(left, 5)} // {show(right, 6)}", 5', '{show(left, 5)} // {show(right, 5)}", 5'),
    "parentheses of a mask dropped": ('{show(left, 3)} & {show(right, 4)}", 3', '{show(left, 1)} & {show(right, 4)}", 3'),
    "truth values added by NumPy": (
        "if isinstance(value, (Less, Equal, All, AnyOf)) else source(value)",
        "if value is None else source(value)",
    ),
    "truth values of parts added by NumPy": (
        "if isinstance(value, (Less, Equal, All, AnyOf)) else function",
        "if value is None else function",
    ),
}
"""Wrong engines: a text of `values/expr`, found once in all of its files, and its replacement."""


@functools.cache
def engine_sources():
    """The files of the engine by name."""
    return {path.name: path.read_text() for path in sorted(Path(expr.__file__).parent.glob("*.py"))}


def mutant(name, before, after):
    """A copy of the engine, under another name, with one text replaced."""
    count = sum(text.count(before) for text in engine_sources().values())
    assert count == 1, f"{name}: `{before}` stands {count} times in values/expr; adapt this entry"
    package = f"wrong_{abs(hash(name))}"
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, package).mkdir()
        for file, text in engine_sources().items():
            Path(folder, package, file).write_text(text.replace(before, after).replace(expr.__name__, package))
        sys.path.insert(0, folder)
        try:
            importlib.invalidate_caches()
            return importlib.import_module(package)
        finally:
            sys.path.remove(folder)
            for module in [one for one in sys.modules if one.partition(".")[0] == package]:
                del sys.modules[module]


def first_objection(fx, limit):
    """The number of the first draw that the oracle rejects, and its message."""
    for number in range(limit):
        try:
            check(fx, draw(fx, f"{SEED}-wrong-{number}"))
        except ArgumentError:
            continue
        except Exception as error:
            return number, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return None


RARE = pytest.mark.nightly
"""For a fault that only thousands of draws show."""


def test_the_right_engine_passes_as_a_copy():
    assert first_objection(mutant("none", '"""An integer."""', '"""An integer!"""'), 300) is None


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", [pytest.param(name, marks=RARE if name == "parentheses of a mask dropped" else ()) for name in WRONG])
def test_wrong_simplifications_are_found(name):
    hit = first_objection(mutant(name, *WRONG[name]), 4000)
    assert hit is not None, f"not found in 4000 draws: {name}"
    print(f"draw {hit[0]}: {hit[1]}")


# ---------------------------------------------------------------------------------------------- named cases

lane = Var("lane", 0, 31)
M, N, K = sym("M"), sym("N", multiple_of=8), sym("K", multiple_of=32)
x, y, z = Var("x", 0, 999), Var("y", -500, 499), Var("z", 0, 7)


@pytest.mark.parametrize("value", [lane, x, y, M, N, x + y * 3, M * 8 + z], ids=str)
@pytest.mark.parametrize("c", [2, 7, 8, 1024])
@pytest.mark.parametrize("k", [1, 3, -1, 16])
def test_a_split_put_together_again(value, c, k):
    assert (value // c) * c * k + (value % c) * k == value * k


@pytest.mark.parametrize("value", [x, M, x * 3 + z], ids=str)
@pytest.mark.parametrize("c", [K, N, K * N], ids=str)
def test_a_split_by_a_symbol_put_together_again(value, c):
    assert (value // c) * c + value % c == value
    assert (value // c) * c * 5 + (value % c) * 5 == value * 5
    assert (value // c) * c * M + (value % c) * M == value * M
    assert ((value // c) % 7) * c + value % c == value % (c * 7)


def test_division_by_a_symbol():
    assert (M * N + z) // K == FloorDiv(M * N + z, K)
    assert ((M * K + z) // K, (M * K + z) % K) == (M, z)
    assert ((M * K + x % K) // K, (M * K + x % K) % K) == (M, x % K)
    assert ((M * K - 1) // K, (M * K - 1) % K) == (M - 1, K - 1)
    assert (K // K, K % K, (x % K) // K, x % K % K) == (Const(1), ZERO, ZERO, x % K)
    assert ((M * K + 5 * K) // K, (M * K + 5 * K) % K) == (M + 5, ZERO)


def test_listing_4_swizzle():
    uid = lane
    swizzled = ((uid >> 1) & 7) | (uid & 0x30) | ((uid & 1) << 3)
    assert swizzled % 8 == uid // 2 % 8
    assert swizzled // 8 == uid // 16 * 2 + uid % 2
    assert str(swizzled) == "uid // 16 * 16 + uid % 2 * 8 + uid // 2 % 8".replace("uid", "lane")
    assert sorted(swizzled.evaluate({"lane": np.arange(32)})) == list(range(32))


def test_ceildiv_with_facts():
    assert ceildiv(N, 8) == N // 8 and ceildiv(N, 2) == N // 2 and ceildiv(K, 8) == K // 8
    assert ceildiv(N, 16) == (N + 15) // 16 and ceildiv(N * 16, 128) == N // 8
    assert ceildiv(M, 128) == (M + 127) // 128
    assert ceildiv(K + 5, 32) == K // 32 + 1 and ceildiv(M * K, K) == M and ceildiv(K, K) == Const(1)
    assert (ceildiv(K, 32) * 32, ceildiv(N, 8) * 8, ceildiv(7, 2)) == (K, N, Const(4))


@pytest.mark.parametrize("high", [1, 200, 254, 255, 256, 257, 1000])
def test_a_remainder_vanishes_exactly_below_its_divisor(high):
    size = sym("M", high=high)
    assert (size % 256 == size) == (high < 256)
    assert ((size // 256) == ZERO) == (high < 256)


def test_values_in_one_block():
    near = Var("i", 8, 15)
    assert (near // 8, near % 8, near // 16, near % 16) == (Const(1), near - 8, ZERO, near)
    below = Var("i", -8, -1)
    assert (below // 8, below % 8, below // 16) == (Const(-1), below + 8, Const(-1))


def swizzle(address, mask=7, by=6, to=3):
    return address ^ (((address >> by) & mask) << to)


BASES = {
    "row and column": Var("row", 0, 63) * 64 + Var("c", 0, 7) * 8,
    "symbol of rows": M * 64 + Var("c", 0, 7) * 8,
    "thread": Var("thread", 0, 255) * 8,
    "loop": Var("k", 0, 31) * 512 + Var("thread", 0, 63) * 8,
    "quads": Var("thread", 0, 255) * 4,
    "odd rows": Var("row", 0, 62) * 72 + Var("c", 0, 8) * 8,
}


@pytest.mark.parametrize("name", BASES)
def test_a_vector_is_contiguous_under_a_swizzle(name):
    base = BASES[name]
    width = min(base.factor, 8)
    assert [swizzle(base + step) - swizzle(base) for step in range(width)] == [Const(step) for step in range(width)]
    assert swizzle(base).factor % width == 0 and swizzle(base) % width == ZERO
    if name != "symbol of rows":
        addresses = [swizzle(base + step).evaluate({v.name: g.ravel() for v, g in grids(base)}) for step in range(width)]
        assert all(np.array_equal(addresses[0] + step, addresses[step]) for step in range(width))


def grids(value):
    variables = sorted(value.variables(), key=str)
    return zip(variables, np.meshgrid(*(np.array(every_value(var)) for var in variables), indexing="ij"))


def test_a_vector_broken_by_a_swizzle_is_not_proved_whole():
    base = Var("thread", 0, 255) * 8
    assert constant(swizzle(base + 8) - swizzle(base)) is None
    assert constant(swizzle(base + 1, to=0) - swizzle(base, to=0)) is None


@pytest.mark.parametrize("seed", range(int(300 * SCALE)))
def test_exclusive_or_splits_end_and_are_exact(seed):
    rng = random.Random(f"{SEED}-xor-{seed}")
    parts = [Var(name, 0, rng.choice((1, 3, 6, 7, 12))) for name in "abcd"]

    def address():
        return sum((rng.choice(parts) * 2 ** rng.randrange(7) for _ in range(rng.randint(1, 4))), Const(rng.choice((0, 0, 1, 3, 8, 21))))

    left, right = address(), address()
    value = left ^ right
    environment = {name: g.ravel() for name, g in zip("abcd", np.meshgrid(*(np.arange(var.high + 1) for var in parts)))}
    wanted = left.evaluate(environment) ^ right.evaluate(environment)
    assert np.array_equal(np.broadcast_to(value.evaluate(environment), wanted.shape), wanted)
    assert value == right ^ left and (value ^ ZERO) == value and left ^ left == ZERO
    for node in nodes(value):
        if isinstance(node, BitXor):
            for left_side, right_side in ((node.left, node.right), (node.right, node.left)):
                assert left_side % (possible_bits(right_side) & -possible_bits(right_side)) == ZERO, (
                    "neither side is below all bits of the other"
                )


@pytest.mark.parametrize("sides", [(4, 4), (8, 8), (3, 5), (1, 7), (20, 3), (13, 13), (5, 64)])
def test_hilbert_is_a_permutation(sides):
    lines, columns = sides
    number = Var("number", 0, lines * columns - 1)
    place = hilbert(number, lines, columns)
    assert (place.low, place.high) == (0, lines * columns - 1) and constant(place // (lines * columns)) == 0
    places = place.evaluate({"number": np.arange(lines * columns)})
    assert sorted(places.tolist()) == list(range(lines * columns))
    assert [constant(hilbert(one, lines, columns)) for one in range(lines * columns)] == places.tolist()
    by_name = hilbert(number, M, K)
    assert np.array_equal(by_name.evaluate({"number": np.arange(lines * columns), "M": lines, "K": columns}), places)
    assert by_name.substitute({M: lines, K: columns}) == place
    results = by_name.evaluate({"number": np.arange(4), "M": np.array([lines, 2, lines, 3]), "K": np.array([columns, 2, columns, 7])})
    assert results.tolist() == [int(hilbert(one, *of).value) for one, of in enumerate([sides, (2, 2), sides, (3, 7)])]


def test_hilbert_steps_to_adjacent_tiles():
    """In squares whose side is a power of two; and within each aligned square of 4 x 4, tiles are 16 numbers in a row."""
    for side in (2, 4, 8, 32):
        places = hilbert(Var("n", 0, side * side - 1), side, side).evaluate({"n": np.arange(side * side)})
        assert np.all(np.abs(np.diff(places // side)) + np.abs(np.diff(places % side)) == 1)
        squares = places // side // 4 * side + places % side // 4
        assert side < 4 or np.all(squares.reshape(-1, 16) == squares[::16, None])


def test_hilbert_is_text_and_back():
    value = hilbert(x, M, 5) // 5 + 1
    assert str(value) == "hilbert(x, M, 5) // 5 + 1" and eval(repr(value), vars(expr)) == value
    assert hilbert(x, 1, 9) == hilbert(x, 9, 1) == x and value.variables() == {x, M}


def test_leading_signs_and_precedence_are_printed():
    assert str(-(x // 3)) == "-(x // 3)" and str(-(x % 5) * 4) == "-(x % 5) * 4"
    assert str(5 * (x % 2)) == "x % 2 * 5" and str(-x * 3) == "-x * 3" and str(4 - x // 3) == "-(x // 3) + 4"
    assert str((x & z) + 1) == "(x & z) + 1" and str(x // (K * 2)) == "x // (K * 2)"
    assert str(all_of([less(x, K), any_of([less(z, M), equal(x, z)])])) == "all_of((x < K, any_of((z < M, equal(x, z),)),))"


def test_conditions():
    both = all_of([less(x, K), less(z, M), less(x, K)])
    assert conjuncts(both) == (less(x, K), less(z, M)) and conjuncts(TRUE) == () and conjuncts(less(x, K)) == (less(x, K),)
    assert all_of([]) == TRUE and any_of([]) == FALSE and all_of([both, FALSE]) == FALSE and any_of([less(x, K), TRUE]) == TRUE
    assert isinstance(less(3, x), Less) and isinstance(equal(3, x), Equal) and less(3, 4) == TRUE and less(x, 1000) == TRUE
    assert isinstance(minimum(3, x), Min) and isinstance(x + z, Sum) and isinstance(x % 3, Mod)
    assert (less(x, 3) + less(z, 4)).evaluate({"x": np.array([1, 9]), "z": np.array([1, 2])}).tolist() == [2, 1]
    assert (minimum(less(x, 3), less(z, 4)) * 5).evaluate({"x": 1, "z": 1}) == 5
    assert source(less(x, 3)) == "(e['x']<3)" and compiled(less(x, 3))({"x": np.arange(5)}).dtype == bool


# ---------------------------------------------------------------------------------------------- bad inputs

NO_INTEGERS = (
    None,
    True,
    False,
    1.0,
    math.nan,
    "x",
    b"1",
    (),
    [1],
    {},
    object(),
    int,
    lambda: 1,
    1j,
    np.bool_(True),
    np.float32(1),
    np.array([1, 2]),
)
BAD_CALLS = {
    **{f"as_expr {bad!r:.18}": functools.partial(as_expr, bad) for bad in NO_INTEGERS},
    **{
        f"{name} {bad!r:.18}": functools.partial(operation, x, bad)
        for name, operation in OPERATIONS.items()
        if name not in PLAIN.keys() & {"ceildiv", "minimum", "less", "equal"}
        for bad in NO_INTEGERS
    },
    **{
        f"{operation.__name__} {bad!r:.18}": functools.partial(operation, bad, x + 1)
        for operation in (ceildiv, minimum, less, equal)
        for bad in NO_INTEGERS
    },
    **{
        f"shift {symbol} {bad}": functools.partial(OPERATIONS[symbol], left, bad)
        for symbol in ("<<", ">>")
        for left in (x, 1)
        for bad in (-1, 63, 10**9, x, z + 1)
        if isinstance(left, expr.Expr) or isinstance(bad, expr.Expr)
    },
    **{
        f"{left} {symbol} {bad}": functools.partial(OPERATIONS[symbol], left, bad)
        for symbol in ("//", "%")
        for left in (x, y, M)
        for bad in (0, -1, -8, x, y, x - 1, Const(0), M - 1, -M)
    },
    **{
        f"{left} {symbol} {bad}": functools.partial(OPERATIONS[symbol], left, bad)
        for symbol in ("//", "%")
        for left in (0, 5, -5)
        for bad in (x, y, z - 1)
    },
    **{f"ceildiv {bad}": functools.partial(ceildiv, M, bad) for bad in (0, -1, x, y)},
    **{
        f"{operation.__name__} {left} {right}": functools.partial(operation, as_expr(left), as_expr(right))
        for operation in (bit_and, bit_or, bit_xor)
        for left, right in ((y, x), (x, y), (x, -1), (-1, x), (-1, -1), (-1, 2), (2, -1), (0, -1), (x - 1, 1), (0, y))
    },
    **{f"possible_bits {bad}": functools.partial(possible_bits, bad) for bad in (y, x - 1, Const(-1), -M)},
    **{
        f"sym name {bad!r:.18}": functools.partial(sym, bad)
        for bad in (
            "",
            " ",
            "1a",
            "a b",
            "a-b",
            "a.b",
            "é",
            "µ",
            "for",
            "None",
            "int",
            "float",
            "template",
            "const",
            None,
            1,
            True,
            b"M",
            ("M",),
            M,
        )
    },
    **{
        f"sym {label}={bad!r:.18}": functools.partial(sym, "M", **{label: bad})
        for label in ("multiple_of", "low", "high")
        for bad in (*NO_INTEGERS, 0, -1, 2**31, M)
        if label == "high" or not (isinstance(bad, int) and bad > 1)
    },
    "sym without a value": functools.partial(sym, "M", 8, low=9, high=15),
    "sym upside down": functools.partial(sym, "M", low=5, high=4),
    "variable without a value": functools.partial(Var, "i", 0, -1),
    "variable between multiples": functools.partial(Var, "i", 1, 3, 4),
    "variable of multiples of 0": functools.partial(Var, "i", 0, 3, 0),
    "variable of multiples of -2": functools.partial(Var, "i", 0, 3, -2),
    **{
        f"{operation.__name__} {bad!r:.18}": functools.partial(operation, [bad])
        for operation in (all_of, any_of)
        for bad in (*NO_INTEGERS, 0, 1, 2, x, M, Const(2), -less(x, 5))
    },
    "truth of an expression": functools.partial(bool, x),
    "truth of a comparison": functools.partial(bool, x < 5),
    "substitute by name": functools.partial(x.substitute, {"x": 1}),
    "substitute a fraction": functools.partial(x.substitute, {x: 1.5}),
    "substitute a divisor away": functools.partial((4 // (x + 1)).substitute, {x: -1}),
    "substitute below the bits": functools.partial((x & z).substitute, {x: -1}),
    "evaluate nothing": functools.partial(x.evaluate, {}),
    "evaluate another": functools.partial((x + z).evaluate, {"x": 1}),
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_bad_inputs_are_refused(call):
    with pytest.raises(ArgumentError) as caught:
        print(repr(BAD_CALLS[call]()))
    assert str(caught.value).strip()


def test_reflected_and_integer_like_operands():
    assert (1 << Const(3), 16 >> Const(3), 7 - x, 7 // Const(2), 7 % Const(4)) == (Const(8), Const(2), -x + 7, Const(3), Const(3))
    assert as_expr(np.int64(5)) == Const(5) and type(as_expr(np.int64(5)).value) is int and as_expr(np.array(3)) == Const(3)
    assert constant(7) == 7 and constant(Const(7)) == 7 and constant(x) is None


def test_building_is_little_work():
    def build():
        block, thread, k = Var("block", 0, 63), Var("thread", 0, 255), Var("k", 0, 127)
        return k * 8192 + (thread % 8) * 1024 + (block // 8) * 128 + thread // 8

    for function in vars(expr).values():
        getattr(function, "cache_clear", int)()
    cold, warm = python_calls(build), python_calls(build)
    assert warm < 100 and cold < 550, (warm, cold)


def test_quotients_of_nonpositive_values():
    """Rounded up as people write it, and as it can be printed: C++ rounds toward zero."""
    n = Var("n", 1, 5000)
    assert -(-n // 512) == ceildiv(n, 512) and (-n) // 512 == -ceildiv(n, 512)
    for value, by in ((-n, 512), (-n, 1), (3 - n * 4, 6), (-n * 6, 4), (-(n // 3), 5), (-n - 7, 10)):
        quotient = as_expr(value) // by
        assert all(
            quotient.evaluate({"n": number}) == as_expr(value).evaluate({"n": number}) // by
            for number in (*range(1, 40), 511, 512, 513, 5000)
        )
