"""Loops that are printed in parts (`separate_masked_tiles`): the bounds by enumeration, the text on a CPU, and what stays one loop."""

import itertools
import random

import attrs
import making
import numpy as np
import printed_text
import pytest

from fireiron import *
from fireiron.ir import Exec, statements
from fireiron.ir.plain_iterations import plain_iterations
from fireiron.values.expr import TRUE, AnyOf, Less, Var, any_of, as_expr, less, minimum

STATEMENT = next(
    statement
    for statement in statements(
        MatMul(4, 4, 4)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1).done().program("sm_80").walked.body
    )
    if isinstance(statement, Exec)
)


def masked_loop(var, extent, *conditions):
    """A loop with a statement under each condition, and one that always runs."""
    return making.loop(var, extent, tuple(attrs.evolve(STATEMENT, active=one) for one in (*conditions, TRUE)), separated=True)


def drawn_conditions(draw, var, block, thread):
    """Conditions that are linear in the loop variable, in either direction, some with a minimum or with terms of the thread."""
    for _ in range(draw.randint(1, 3)):
        number = minimum(draw.randint(0, 9), var + block) if draw.random() < 0.3 else var
        place = number * draw.randint(1, 5) + draw.randint(0, 20)
        limit = block * draw.randint(-4, 9) + thread * draw.randint(0, 3) + draw.randint(-20, 20)
        yield any_of(less(*pair) for pair in draw.choice((((place, limit),), ((limit, place),), ((place, limit), (limit + 9, place)))))


@pytest.mark.parametrize("seed", range(60))
def test_conditions_are_false_in_plain_iterations(seed):
    """For each block, thread and iteration; all other iterations are in the parts before and after."""
    draw = random.Random(seed)
    block, thread, var = Var("block", 0, 5), Var("thread", 0, 3), Var("n", 0, 9)
    extent = draw.choice((as_expr(draw.randint(1, 10)), block + 2, 10 - block))
    loop = masked_loop(var, extent, *drawn_conditions(draw, var, block, thread))
    first, end, separated = plain_iterations(loop, frozenset({thread}))
    assert separated <= {one for one in (stmt.active for stmt in loop.body) if isinstance(one, (AnyOf, Less))}
    for number in range(6):
        low, high, count = (one.evaluate({"block": number}) for one in (first, end, extent))
        assert 0 <= low <= count and 0 <= high <= count
        for condition, lane, n in itertools.product(separated, range(4), range(low, high)):
            assert not condition.evaluate({"block": number, "thread": lane, "n": n}), (condition, number, lane, n)


def test_bounds_are_tight():
    """A causal mask separates all iterations that it does not change; a window has masks at both ends; a minimum of the range is no obstacle."""
    block, warp, n = Var("block", 0, 31), Var("warp", 0, 1), Var("n", 0, 31)
    causal = masked_loop(n, block + 1, less(block * 128 + warp * 64, n * 128 + 127))
    assert plain_iterations(causal, frozenset({warp}))[:2] == (as_expr(0), block)
    window = masked_loop(n, as_expr(32), less(n * 128, block * 64), less(block * 128 + 512, n * 128 + 127))
    first, end, _ = plain_iterations(window, frozenset())
    assert [(first.evaluate({"block": one}), end.evaluate({"block": one})) for one in (0, 3, 8)] == [(0, 4), (2, 7), (4, 12)]
    queries = masked_loop(n, 64 - block * 2, less(minimum(63, n + block * 2) * 64, block * 128 + 127))
    assert plain_iterations(queries, frozenset())[:2] == (as_expr(2), 64 - block * 2)
    inside = masked_loop(n, as_expr(32), less(Var("row", 0, 9) * n, as_expr(4)))
    assert not plain_iterations(inside, frozenset())[2], "a product of the variable and a name is not linear"


MASKED = Fused(
    name="masked_sum", dims="m n", loop="n", operands={"X": "m n", "y": "m"}, init={"zero": "t[m] = 0"},
    body={
        "x": "x[m,n] = X[m,n]", "mask": "x[m,n] = where(n <= m and m < n + 70, x[m,n], 0)", "sums": "s[m] = sum(n, x[m,n])",
        "add": "t[m] = t[m] + s[m]",
    },
    final={"out": "y[m] = t[m]"},
)  # fmt: skip


def windowed(columns, separate=True):
    """A kernel that sums the last 70 elements up to the diagonal, 16 at a time."""
    row = Move.tile(1, 1).to(Lane).done()
    steps = MASKED.tile(m=8).to(Block).split(n=16).skip_masked_tiles()
    steps = steps.separate_masked_tiles() if separate else steps
    return steps.tile(m=1).to(Warp).load("X", RF, row).done()(MASKED(m=columns, n=columns)).program("sm_80")


def test_three_parts_on_a_cpu(tmp_path):
    """The text of a loop with masks at both ends, and of one whose last iterations are out of bounds, too."""
    if printed_text.COMPILER is None:
        pytest.skip("no C++ compiler")
    programs = [windowed(256), windowed(203)]
    assert programs[0].cuda.count("for (int n = ") == 3 and windowed(256, separate=False).cuda.count("for (int n = ") == 1
    host = printed_text.HostProgram([printed_text.Printed.of(one) for one in programs], tmp_path)
    for number, size in enumerate((256, 203)):
        x = np.random.default_rng(number).integers(-4, 5, (size, size)).astype(np.float16)
        m, n = np.mgrid[:size, :size]
        expected = np.where((n <= m) & (m < n + 70), x, 0).astype(float).sum(1)
        assert (host.run(number, {"X": x}, seed=number)["y"] == expected).all()
