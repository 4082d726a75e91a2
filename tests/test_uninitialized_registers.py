"""The check of registers that are read before anything was put into them."""

import attrs
import making
import numpy as np
import pytest
from problems import library
from touching import buffer, on_registers
from touching import kernel as by_hand

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check, check_uninitialized_registers
from fireiron.errors import SimulationError, VerificationError
from fireiron.sim import simulate
from fireiron.values.expr import Var, all_of


@pytest.fixture(scope="module")
def product():
    """Fragments a step ahead of their product, in a loop whose stages are filled ahead."""
    module = library("dual")
    return module.strategy.with_(bm=64, bn=64, wm=32, wn=32)(module.spec(64, 64, 96)).program("sm_80").ir


@pytest.fixture(scope="module")
def rows():
    module = library("layernorm")
    return module.strategy.with_(rows=2, iterations=1, vector=4)(module.spec(5, 250)).program("sm_80").ir


def found(kernel):
    return {one.buffer for one in check_uninitialized_registers(AccessTrace(kernel))}


def private(kernel):
    return {buffer.name for buffer in kernel.buffers if buffer.memory.private}


def writes(kernel, statement):
    return isinstance(statement, ir.Exec) and {one.buffer for one in statement.accesses if one.write} & private(kernel)


def changed(kernel, change):
    """The kernel with the first statement that writes each buffer of registers changed, one at a time: `(buffer, kernel)`."""
    for name in sorted(private(kernel)):
        state = []

        def edit(one, name=name, state=state):
            first = not state and name in (writes(kernel, one) or ())
            state.extend([one] * first)
            return change(one) if first else (one,)

        body = ir.rewritten(kernel.body, edit)
        if state:
            yield name, attrs.evolve(kernel, body=body)


def test_nothing_is_found_where_everything_was_put(product, rows):
    assert not found(product) and not found(rows)
    assert not [one for one in check(rows) if one.kind == "registers"]


def test_a_statement_left_out_is_found(product, rows):
    """Of fragments that are loaded ahead the first load; a later one would leave what was there before."""
    for kernel in (product, rows):
        faulty = list(changed(kernel, lambda one: ()))
        assert len(faulty) >= 4
        for name, one in faulty:
            assert name in found(one), name


def test_threads_left_out_are_found(rows):
    """A write for half of the threads is none for the others."""
    half = rows.thread < rows.workers // 2
    for name, one in changed(rows, lambda one: (attrs.evolve(one, active=all_of((one.active, half))),)):
        (first, *_) = [finding for finding in check_uninitialized_registers(AccessTrace(one)) if finding.buffer == name]
        assert f"in thread {rows.workers // 2} and" in first.message and first.severity == "error"


def test_a_loop_that_may_have_no_turn_is_found(rows):
    """What only such a loop writes is there on one way and not on the other."""
    loop = next(one for one in rows.body if writes(rows, one))
    turns = making.loop(Var("t", 0, 7), sym("T") - 1, (loop,))
    body = tuple(turns if one is loop else one for one in rows.body)
    assert found(attrs.evolve(rows, body=body)) >= writes(rows, loop)
    always = attrs.evolve(turns, extent=sym("T"))
    assert not found(attrs.evolve(rows, body=tuple(always if one is loop else one for one in rows.body)))


def test_what_a_warp_may_leave_out_counts_for_nothing_behind_it(rows):
    target = next(one for one in rows.body if writes(rows, one))
    needed = min(private(rows))
    body = tuple(making.if_any_lane(needed, (target,)) if one is target else one for one in rows.body)
    assert writes(rows, target) <= found(attrs.evolve(rows, body=body))


def test_the_simulator_agrees(rows):
    name, faulty = next((name, one) for name, one in changed(rows, lambda one: ()) if name.startswith("x_rf"))
    with pytest.raises(SimulationError, match=name):
        simulate(
            faulty, {"X": np.ones((5, 250), np.float16), "weight": np.ones(250, np.float16), "bias": np.ones(250, np.float16), "eps": 1.0}
        )


def test_a_statement_of_a_new_kind_fails_loudly():
    """It may put something into registers, and nobody would know."""

    class Other(ir.Stmt):
        """A kind of statement that the check does not know."""

    whole = by_hand(on_registers(), Other(), buffers=(buffer("r", 4, memory=RF),))
    with pytest.raises(VerificationError, match="the check of registers does not handle the statement Other"):
        check_uninitialized_registers(AccessTrace(whole))
