"""Index expressions against brute force: every rule, range and printed form over whole domains.

A draw builds one expression three ways: through the smart constructors, as NumPy values over its domain, and as a Python
source text in which every operation stands in parentheses. `FIREIRON_FUZZ=50 pytest tests/test_expr.py` multiplies the draws.
`check(expr, draw(expr, "20240229-17"))` replays number 17.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import os
import random
import sys
import time
import types
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import pytest

import fireiron.expr as expr
from fireiron.errors import ArgumentError
from fireiron.expr import (
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
    less,
    minimum,
    possible_bits,
    source,
    sym,
)

SCALE = float(os.environ.get("FIREIRON_FUZZ", "1"))
SEED = 20240229
DRAWS = 10_000
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
        rows = list(itertools.product(*values))
    else:
        corners = list(itertools.product(*((one[0], one[-1]) for one in values)))
        rows = corners + [tuple(rng.choice(one) for one in values) for _ in range(SAMPLE - len(corners))]
    table = np.array(rows, dtype=np.int64)
    return {var.name: table[:, column] for column, var in enumerate(variables)}


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
        made = getattr(self, name)()
        if weight(made.expr) > 60:
            raise ArgumentError("too long to be an index")
        self.draw.pool.append(made)
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
    "comparison": 3, "connective": 3, "recombined": 11, "digits": 8, "swizzle": 5,
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
    """Everything that the engine says about the last expression of a draw, against its values."""
    case, value = drawn.last, drawn.last.expr
    rng = random.Random(drawn.seed + "check")
    size = len(case.values)
    some = [drawn.point(index) for index in {0, size - 1, *(rng.randrange(size) for _ in range(3))}]
    wanted = [int(eval(case.text, PLAIN, point)) for point in some]
    check_values(fx, drawn, some, wanted)
    check_facts(fx, value, case.values)
    check_form(fx, value)
    check_substitution(fx, drawn, rng, some, wanted)
    check_decisions(fx, drawn, rng)


def check_values(fx, drawn, some, wanted):
    value, text = drawn.last.expr, str(drawn.last.expr)
    got = np.broadcast_to(np.asarray(fx.compiled(value)(drawn.points)), drawn.last.values.shape)
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


def check_substitution(fx, drawn, rng, some, wanted):
    value, variables = drawn.last.expr, drawn.variables
    assert value.substitute({var: var for var in variables}) == value
    for point, number in zip(some, wanted):
        settled = value.substitute({var: point[var.name] for var in variables})
        assert settled == fx.Const(number), f"at {point}: {settled!r}, not {number}"
        chosen = rng.choice(variables)
        partly = value.substitute({chosen: point[chosen.name]})
        assert chosen not in partly.variables() and partly.evaluate(point) == number, f"{chosen.name} = {point[chosen.name]}: {partly!r}"
    chosen = rng.choice(variables)
    step = fx.Var("step", 0, (chosen.high - chosen.low) // chosen.multiple_of)
    renamed = value.substitute({chosen: chosen.low + step * chosen.multiple_of})
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
