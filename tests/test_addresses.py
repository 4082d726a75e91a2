"""Address arithmetic in the printer: a name defined before a loop has the remainders of its value."""

import random

import pytest

from fireiron import *
from fireiron.cuda.addresses import _plain, _reduced
from fireiron.values.expr import ONE, ZERO, Var, as_expr, compiled

M, N, ITERATION, THREAD = sym("M"), sym("N"), Var("turn", 0, 7), Var("thread", 0, 31)
VALUES = {"M": 99, "N": 57, "turn": 7, "thread": 31}


def drawn(choose):
    """A sum of products of sizes, loops, threads and quotients."""
    total = as_expr(choose.randrange(5))
    for _ in range(choose.randint(1, 3)):
        term = as_expr(choose.choice((1, 2, 3, 5, 7, -1, -3)))
        for _ in range(choose.randint(1, 2)):
            term = term * choose.choice((M, N, ITERATION, THREAD, (M + choose.randrange(9)) // choose.choice((2, 4, 8))))
        total = total + term
    return total


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(200))
def test_reduced_expressions_have_the_same_remainder(seed):
    choose = random.Random(seed)
    value, divisor = drawn(choose), choose.choice((2, 3, 4, 6, 8))
    reduced = _reduced(value, divisor)
    for _ in range(5):
        at = {name: choose.randint(name in "MN", most) for name, most in VALUES.items()}
        assert compiled(value)(at) % divisor == compiled(reduced)(at) % divisor


def test_factors_of_sizes_are_reduced_and_loops_stay():
    assert _reduced(M * N * ITERATION, 4) == (M % 4) * (N % 4) * ITERATION
    assert _reduced((M // 2) * ITERATION, 4) == (M // 2 % 4) * ITERATION


def test_expressions_without_a_name():
    """Short ones: nothing, a number, or a step of one variable."""
    assert all(map(_plain, (ZERO, ONE, ITERATION, ITERATION * 3)))
    assert not any(map(_plain, (ITERATION + 1, ITERATION + THREAD, ITERATION * THREAD, ITERATION // 2)))
