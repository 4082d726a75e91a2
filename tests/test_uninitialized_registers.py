"""The check of registers that are read before they are written."""

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
def fragment_kernel():
    """A GEMM that loads fragments one step ahead, in a loop whose stages are filled ahead."""
    module = library("dual")
    return module.strategy.with_(bm=64, bn=64, wm=32, wn=32)(module.spec(64, 64, 96)).program("sm_80").ir


@pytest.fixture(scope="module")
def rows():
    module = library("layernorm")
    return module.strategy.with_(rows=2, iterations=1, vector=4)(module.spec(5, 250)).program("sm_80").ir


def reported_buffers(kernel):
    return {one.buffer for one in check_uninitialized_registers(AccessTrace(kernel))}


def private(kernel):
    return {buffer.name for buffer in kernel.buffers if buffer.memory.private}


def writes(kernel, statement):
    return isinstance(statement, ir.Exec) and {one.buffer for one in statement.accesses if one.write} & private(kernel)


def changed(kernel, change):
    """For each buffer of registers `(buffer, kernel)`, with the first statement that writes it changed."""
    for name in sorted(private(kernel)):
        state = []

        def edit(stmt, name=name, state=state):
            first = not state and name in (writes(kernel, stmt) or ())
            state.extend([stmt] * first)
            return change(stmt) if first else (stmt,)

        body = ir.rewritten(kernel.body, edit)
        if state:
            yield name, attrs.evolve(kernel, body=body)


def test_initialized_registers_have_no_findings(fragment_kernel, rows):
    assert not reported_buffers(fragment_kernel) and not reported_buffers(rows)
    assert not [one for one in check(rows) if one.kind == "registers"]


def test_a_missing_write_is_found(fragment_kernel, rows):
    """For fragments that are loaded ahead, the first load: after it, the registers have old values."""
    for kernel in (fragment_kernel, rows):
        faulty = list(changed(kernel, lambda one: ()))
        assert len(faulty) >= 4
        for name, faulty_kernel in faulty:
            assert name in reported_buffers(faulty_kernel), name


def test_a_write_by_half_of_the_threads_is_found(rows):
    """The other half reads uninitialized registers."""
    half = rows.thread < rows.workers // 2
    for name, faulty in changed(rows, lambda faulty: (attrs.evolve(faulty, active=all_of((faulty.active, half))),)):
        (first, *_) = [finding for finding in check_uninitialized_registers(AccessTrace(faulty)) if finding.buffer == name]
        assert f"in thread {rows.workers // 2} and" in first.message and first.severity == "error"


def test_a_write_in_a_loop_that_may_not_run_is_found(rows):
    """Registers that only such a loop writes are initialized on one path only."""
    loop = next(one for one in rows.body if writes(rows, one))
    maybe_empty = making.loop(Var("t", 0, 7), sym("T") - 1, (loop,))
    body = tuple(maybe_empty if one is loop else one for one in rows.body)
    assert reported_buffers(attrs.evolve(rows, body=body)) >= writes(rows, loop)
    always = attrs.evolve(maybe_empty, extent=sym("T"))
    assert not reported_buffers(attrs.evolve(rows, body=tuple(always if one is loop else one for one in rows.body)))


def test_a_write_that_a_warp_may_skip_does_not_initialize(rows):
    target = next(one for one in rows.body if writes(rows, one))
    needed = min(private(rows))
    body = tuple(making.if_any_lane(needed, (target,)) if one is target else one for one in rows.body)
    assert writes(rows, target) <= reported_buffers(attrs.evolve(rows, body=body))


def test_the_simulator_agrees(rows):
    name, faulty = next((name, one) for name, one in changed(rows, lambda one: ()) if name.startswith("x_rf"))
    with pytest.raises(SimulationError, match=name):
        simulate(
            faulty, {"X": np.ones((5, 250), np.float16), "weight": np.ones(250, np.float16), "bias": np.ones(250, np.float16), "eps": 1.0}
        )


def test_a_statement_of_a_new_kind_fails_loudly():
    """The check cannot know whether it writes registers."""

    class Other(ir.Stmt):
        """A kind of statement that the check does not know."""

    whole = by_hand(on_registers(), Other(), buffers=(buffer("r", 4, memory=RF),))
    with pytest.raises(VerificationError, match="the check of registers does not handle the statement Other"):
        check_uninitialized_registers(AccessTrace(whole))
