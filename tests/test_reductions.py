"""Shuffles and operations between the lanes of a warp become a call only if all of them belong to one reduction."""

import attrs
import pytest

from fireiron.cuda.reductions import LaneReduction, with_reductions
from fireiron.cuda.statements import straightened
from fireiron.cuda.versions import branched
from fireiron.ir import Exec, rewritten, statements
from fireiron.language import library
from fireiron.values.expr import TRUE

STEPS = 5
"""Lanes of a warp exchange their values in this number of steps: with lane ^ 16, ^ 8, ^ 4, ^ 2, ^ 1."""


@pytest.fixture(scope="module")
def kernel():
    """A kernel with a maximum and a sum of 32 lanes, each in registers of one element."""
    return branched(straightened(library.bind(library.find("softmax"), {}).program("sm_90a").ir))


def reductions(kernel):
    return [stmt for stmt in statements(with_reductions(kernel).body) if isinstance(stmt, LaneReduction)]


def with_bodies(kernel):
    """The statements of a kernel with the statements of each reduction instead of its call."""
    return rewritten(kernel.body, lambda stmt: stmt.body if isinstance(stmt, LaneReduction) else (stmt,))


def edited(kernel, old, *new):
    return attrs.evolve(kernel, body=rewritten(kernel.body, lambda stmt: new if stmt is old else (stmt,)))


def test_reductions_of_a_warp(kernel):
    first, second = reductions(kernel)
    assert (first.values, first.received, first.operation, first.lanes) == ("top_max_rf", "top_max_other", "max", 32)
    assert (second.values, second.received, second.operation, second.lanes) == ("sum_rf", "sum_other", "+", 32)
    assert with_bodies(with_reductions(kernel)) == kernel.body
    assert [type(stmt) for stmt in first.body] == [Exec] * 2 * STEPS


@pytest.mark.parametrize("step", [0, 2, 4])
def test_steps_of_fewer_lanes_are_a_reduction_of_these(kernel, step):
    """Without the first steps, 2, 4, 8 or 16 adjacent lanes are combined; without the last ones, lanes that are not adjacent."""
    first, _ = reductions(kernel)
    without = kernel
    for stmt in first.body[: 2 * step]:
        without = edited(without, stmt)
    assert [(one.operation, one.lanes) for one in reductions(without)] == [("max", 32 >> step), ("+", 32)]
    without = kernel
    for stmt in first.body[2 * step :]:
        without = edited(without, stmt)
    assert [(one.operation, one.lanes) for one in reductions(without)] == [("+", 32)]


@pytest.mark.parametrize("step", [0, 2, 4])
@pytest.mark.parametrize("half", [0, 1], ids=["shuffle", "operation"])
@pytest.mark.parametrize("change", ["adds to its output", "of another reduction", "left out", "before another statement"])
def test_a_changed_step_is_in_no_reduction(kernel, step, half, change):
    """The others are none either: the changed step needs the registers that receive values."""
    first, second = reductions(kernel)
    place = 2 * step + half
    stmt = first.body[place]
    new = {
        "adds to its output": (attrs.evolve(stmt, accumulate=TRUE),),
        "of another reduction": (second.body[place],),
        "left out": (),
        "before another statement": (stmt, second.body[place]),
    }[change]
    other = edited(kernel, stmt, *new)
    after_the_last_one = change == "before another statement" and place == 2 * STEPS - 1
    assert after_the_last_one or not [one for one in reductions(other) if one.operation == "max"]
    assert with_bodies(with_reductions(other)) == other.body


@pytest.mark.parametrize("step", [0, 2, 4])
def test_a_whole_step_of_another_reduction_is_in_none(kernel, step):
    first, second = reductions(kernel)
    other = kernel
    for place in (2 * step, 2 * step + 1):
        other = edited(other, first.body[place], second.body[place])
    assert [(one.operation, one.lanes) for one in reductions(other) if one.operation == "max"] == [("max", 16)] * (step == 0)
