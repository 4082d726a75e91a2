"""Nodes of the printer alone: between which numbers they lie, when remainders are wrapped, and how many turns a word has bits for."""

import itertools
from types import SimpleNamespace

import pytest
from test_chosen import BEGIN, SEEN, UNUSED, N, loop

from fireiron.cuda.chosen import chosen_turns
from fireiron.cuda.lines import lines_of
from fireiron.cuda.quotients import Quotient, Residue
from fireiron.cuda.rotations import Wrapped, shown
from fireiron.values.expr import Mod, Var, as_expr

RANGES = [(0, 0), (0, 3), (0, 100), (5, 7), (6, 100), (99, 100)]
DIVISORS = [(1, 1), (1, 7), (3, 3), (4, 7), (8, 200)]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", RANGES, ids=str)
@pytest.mark.parametrize("divisor", DIVISORS, ids=str)
def test_quotients_and_remainders_lie_between(number, divisor):
    left, right = Var("x", *number), Var("d", *divisor)
    pairs = [*itertools.product(range(number[0], number[1] + 1), range(divisor[0], divisor[1] + 1))]
    quotient = Quotient(left, right, "by_d", None)
    found = [x // d for x, d in pairs]
    assert (quotient.low, quotient.high) == (min(found), max(found))
    residue = Residue(left, quotient, right)
    assert (residue.low, residue.high) == (0, min(number[1], divisor[1] - 1)) and max(x % d for x, d in pairs) <= residue.high
    wrapped = Wrapped(left, right)
    assert (wrapped.low, wrapped.high) == (0, min(number[1], divisor[1] - 1))


def test_they_are_made_anew_of_other_parts():
    x, y, d = Var("x", 0, 9), Var("y", 0, 99), Var("d", 1, 7)
    quotient = Quotient(x, d, "by_d", 7)
    assert quotient.rebuilt((y, d)) == Quotient(y, d, "by_d", 7) and quotient.children == (x, d)
    residue = Residue(x, quotient, d)
    assert residue.rebuilt((y, quotient, d)) == Residue(y, quotient, d) and residue.children == (x, quotient, d)
    assert Wrapped(x, d).rebuilt((y, d)) == Wrapped(y, d) and Wrapped(x, d).children == (x, d)


def test_steps_are_wrapped_where_that_is_proven_and_saves_a_division():
    """A remainder by a power of two is a mask already."""
    turn = Var("turn", 0, 11)
    once, several = (SimpleNamespace(whole=lambda step, said=said: said) for said in (True, False))
    for turns in range(1, 18):
        step = Mod(turn + Var("start", 0, 11), as_expr(turns))
        power = turns in (1, 2, 4, 8, 16)
        assert shown(step, once) == (step if power else Wrapped(step.left, step.right)), turns
        assert shown(step, several) == step
    unknown = Mod(turn + Var("start", 0, 11), N)
    assert shown(unknown, once) == Wrapped(unknown.left, N) and shown(unknown, several) == unknown


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
def test_turns_are_asked_for_a_word_at_a_time(size):
    """The last word of a number of turns that is no multiple of its bits asks for the last turn again, and takes nothing of it."""
    turns = chosen_turns(loop(N if size == "N" else size, UNUSED, BEGIN, SEEN))
    items = turns.items(str(size), lambda name: name, ("asked;",), ("body;",))
    whole = size in (64, 96)
    place = "g_base + g_bit" if whole else f"min(g_base + g_bit, {size} - 1)"
    seen = "static_cast<unsigned>(seen)" if whole else f"(g_base + g_bit < {size} ? static_cast<unsigned>(seen) : 0u)"
    expected = (ASKED if size in (2, 31, 32) else IN_PARTS).format(size=size, place=place, seen=seen)
    assert "\n".join(line.text for line in lines_of(items)) == expected
