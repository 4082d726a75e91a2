"""Nodes of the printer: ranges of quotients, wrapping of remainders, and the number of iterations per bit mask."""

import itertools
from types import SimpleNamespace

import pytest
from test_chosen import BEGIN, SEEN, UNUSED, N, loop

from fireiron.cuda.lines import lines_of
from fireiron.cuda.quotients import Quotient, Residue
from fireiron.cuda.rotations import Wrapped, shown
from fireiron.cuda.skipping_loops import as_skipping_loop
from fireiron.values.expr import Mod, Var, as_expr

RANGES = [(0, 0), (0, 3), (0, 100), (5, 7), (6, 100), (99, 100)]
DIVISORS = [(1, 1), (1, 7), (3, 3), (4, 7), (8, 200)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", RANGES, ids=str)
@pytest.mark.parametrize("divisor", DIVISORS, ids=str)
def test_bounds_of_quotients_and_remainders(number, divisor):
    left, right = Var("x", *number), Var("d", *divisor)
    pairs = [*itertools.product(range(number[0], number[1] + 1), range(divisor[0], divisor[1] + 1))]
    quotient = Quotient(left, right, "by_d", None)
    quotients = [x // d for x, d in pairs]
    assert (quotient.low, quotient.high) == (min(quotients), max(quotients))
    residue = Residue(left, quotient, right)
    assert (residue.low, residue.high) == (0, min(number[1], divisor[1] - 1)) and max(x % d for x, d in pairs) <= residue.high
    wrapped = Wrapped(left, right)
    assert (wrapped.low, wrapped.high) == (0, min(number[1], divisor[1] - 1))


def test_nodes_are_rebuilt_from_new_parts():
    x, y, d = Var("x", 0, 9), Var("y", 0, 99), Var("d", 1, 7)
    quotient = Quotient(x, d, "by_d", 7)
    assert quotient.rebuilt((y, d)) == Quotient(y, d, "by_d", 7) and quotient.children == (x, d)
    residue = Residue(x, quotient, d)
    assert residue.rebuilt((y, quotient, d)) == Residue(y, quotient, d) and residue.children == (x, quotient, d)
    assert Wrapped(x, d).rebuilt((y, d)) == Wrapped(y, d) and Wrapped(x, d).children == (x, d)


def test_steps_are_wrapped_if_proven_and_cheaper_than_a_division():
    """A remainder by a power of two is a mask already."""
    iteration = Var("turn", 0, 11)
    once, repeated = (SimpleNamespace(whole=lambda step, is_whole=constant: is_whole) for constant in (True, False))
    for stages in range(1, 18):
        step = Mod(iteration + Var("start", 0, 11), as_expr(stages))
        power = stages in (1, 2, 4, 8, 16)
        assert shown(step, once) == (step if power else Wrapped(step.left, step.right)), stages
        assert shown(step, repeated) == step
    unknown = Mod(iteration + Var("start", 0, 11), N)
    assert shown(unknown, once) == Wrapped(unknown.left, N) and shown(unknown, repeated) == unknown


ASKED = """\
unsigned g_mask = 0;  // iterations of g to execute, one bit each
#pragma unroll
for (int g = 0; g < {size}; ++g) {{
  asked;
  g_mask |= static_cast<unsigned>(seen) << g;
}}
for (; g_mask != 0; g_mask &= g_mask - 1) {{
  const int g = __ffs(g_mask) - 1;
  body;
}}"""
IN_PARTS = """\
for (int g_base = 0; g_base < {size}; g_base += 32) {{
  unsigned g_mask = 0;  // iterations of g to execute, one bit each
#pragma unroll
  for (int g_bit = 0; g_bit < 32; ++g_bit) {{
    const int g = {place};
    asked;
    g_mask |= {seen} << g_bit;
  }}
  for (; g_mask != 0; g_mask &= g_mask - 1) {{
    const int g = g_base + __ffs(g_mask) - 1;
    body;
  }}
}}"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", (2, 31, 32, 33, 63, 64, 65, 96, "N"))
def test_skip_flags_are_read_one_word_at_a_time(size):
    """If the number of iterations is not a multiple of the word's bits, the last word reads the last iteration again and ignores it."""
    skipping_loop = as_skipping_loop(loop(N if size == "N" else size, UNUSED, BEGIN, SEEN))
    items = skipping_loop.items(str(size), lambda name: name, ("asked;",), ("body;",))
    is_multiple = size in (64, 96)
    place = "g_base + g_bit" if is_multiple else f"min(g_base + g_bit, {size} - 1)"
    seen = "static_cast<unsigned>(seen)" if is_multiple else f"(g_base + g_bit < {size} ? static_cast<unsigned>(seen) : 0u)"
    expected = (ASKED if size in (2, 31, 32) else IN_PARTS).format(size=size, place=place, seen=seen)
    assert "\n".join(line.text for line in lines_of(items)) == expected
