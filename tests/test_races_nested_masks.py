"""Circular buffers of a nested loop whose length depends on the block: a valid kernel is proved, and injected faults are detected.

The kernel computes the gradients of attention with shared key heads under a causal mask: a loop over query heads around a loop over
queries, which starts at the first query that attends to a key of the block.
"""

import functools

import attrs
import pytest
from ringed import dropped, errors, is_load, later, of_kind, stage_moved, weaker, with_changed

from fireiron import ir
from fireiron.ir import StageState
from fireiron.strategies import attention_backward

RING = "q_sh_ring"
ACQUIRES = functools.partial(of_kind, ir.Acquire, ring=RING)
RELEASES = functools.partial(of_kind, ir.Release, ring=RING)


@pytest.fixture(scope="module")
def kernel():
    """The kernel for four blocks of keys: their loops over queries have 4, 3, 2 and 1 iterations."""
    strategy = next(iter(attention_backward.candidates(64, True, causal=True, shared=True).values()))
    problem = attention_backward.spec(512, 512, 64, heads=4, shared=4, fused=strategy.start)
    return strategy(problem).program("sm_90a").ir


def without_outer_fills(kernel, which):
    """The fill numbers of these statements count only the iterations of the inner loop."""

    def change(statement):
        if not which(statement):
            return (statement,)
        outer = {var: 0 for var in statement.fill_index.variables() if var.name == "r"}
        return (attrs.evolve(statement, fill_index=statement.fill_index.substitute(outer)),)

    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, change))


def with_trips(kernel, number, more):
    """The `number`-th loop over queries executes `more` iterations more."""
    loops = [one for one in ir.statements(kernel.body) if isinstance(one, ir.For) and one.var.name == "m"]
    longer = attrs.evolve(loops[number], extent=loops[number].extent + more)
    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, lambda one: (longer,) if one is loops[number] else (one,)))


def test_the_valid_kernel_is_proved(kernel):
    assert errors(kernel) == []
    loops = [one for one in ir.statements(kernel.body) if isinstance(one, ir.For) and one.var.name == "m"]
    assert len(loops) == 2 and all(loop.extent.variables() for loop in loops)


FAULTS = {
    "the producer does not wait": lambda one: with_changed(one, ACQUIRES(state=StageState.EMPTY), 0, dropped),
    "the consumers do not wait": lambda one: with_changed(one, ACQUIRES(state=StageState.FULL), 0, dropped),
    "a stage is never released": lambda one: with_changed(one, RELEASES(state=StageState.EMPTY), 0, dropped),
    "the consumers wait for the next fill": lambda one: with_changed(one, ACQUIRES(state=StageState.FULL), 0, later(1)),
    "a load fills another stage": lambda one: with_changed(one, lambda at: is_load(at) and at.ring == RING, 0, stage_moved(1, 2)),
    "the producer counts only inner iterations": lambda one: without_outer_fills(one, ACQUIRES(state=StageState.EMPTY)),
    "the consumers count only inner iterations": lambda one: without_outer_fills(one, ACQUIRES(state=StageState.FULL)),
    "both count only inner iterations": lambda one: without_outer_fills(one, of_kind(ir.Acquire, ring=RING)),
    "a wait leaves an MMA in flight": lambda one: with_changed(one, lambda at: isinstance(at, ir.Wait), 0, weaker),
    "the producer has an iteration less": lambda one: with_trips(one, 1, -1),
    "the consumers have an iteration less": lambda one: with_trips(one, 0, -1),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FAULTS)
def test_injected_faults_are_detected(kernel, name):
    assert errors(FAULTS[name](kernel)), name
