"""Statements in the simulator: products of an engine, and the registers that they want fenced and waited for (`fireiron.sim.execute`)."""

import functools
import re

import attrs
import pytest
from campaign.faults.detectors import outputs, shadow_of
from campaign.faults.kernels import case
from campaign.faults.kind import spots
from ringed import TARGET, halves, inputs_of, is_product, outcome, product, with_changed
from test_wgmma_registers import RINGS

from fireiron import *
from fireiron import ir

FENCED = "a fence in front of the first product"
ORDERS = (None, 1)


@functools.cache
def one_product():
    """A tile by one warpgroup in two steps, of which the first begins anew: no ordinary statement touches its registers before."""
    program = product((64, 64, 64), (64, 64), 2)(halves(64, 64, 128)).program(TARGET)
    return program.ir, *inputs_of(program.spec)


def is_fence(statement):
    return isinstance(statement, ir.Fence) and statement.reach is ir.Reach.REGISTERS


def said(change, which=is_fence, number=0):
    """What the simulator says of a change of one statement, in step and by warps."""
    kernel, arrays, expected = one_product()
    found = {outcome(with_changed(kernel, which, number, change), arrays, expected, order) for order in ORDERS}
    assert len({text.partition(",")[0] for text in found}) == 1, found
    return found.pop()


def test_it_is_right():
    kernel, arrays, expected = one_product()
    assert [outcome(kernel, arrays, expected, order) for order in ORDERS] == ["right", "right"]


def test_the_first_product_wants_a_fence_whoever_touched_its_registers():
    message = said(lambda one: ())
    assert "with no fence of registers before it" in message and FENCED in message


def test_the_first_fence_behind_its_product():
    kernel, arrays, expected = one_product()
    (spot, *_) = spots(kernel, ir.Fence, is_fence)
    (behind, *rest) = spot.behind
    assert any(map(is_product, ir.statements((behind,))))
    late = spot.with_list((*spot.before, behind, spot.one, *rest))
    assert all(FENCED in outcome(late, arrays, expected, order) for order in ORDERS)


def test_a_fence_of_the_proxy_is_none_of_registers():
    assert FENCED in said(lambda one: (attrs.evolve(one, reach=ir.Reach.PROXY),))


@pytest.mark.parametrize("form, seed", [("ring", 1), ("cluster", 0), ("turns", 0), ("dynamic", 1), ("attention", 0), ("hopper-tasks", 0)])
def test_the_first_fence_of_each_role(form, seed):
    """Of a kernel in which all products are fenced no role does without its first one."""
    drawn = case(form, seed)
    clean = outputs(drawn, drawn.kernel, None)
    assert [*spots(drawn.kernel, ir.Fence, is_fence)]
    without = ir.rewritten(drawn.kernel.body, lambda one: () if is_fence(one) else (one,))
    message, _ = shadow_of(drawn, attrs.evolve(drawn.kernel, body=without), clean, [None])
    assert "fence" in message
    parts = [role.body for one in ir.statements(drawn.kernel.body) if isinstance(one, ir.Roles) for role in one.roles]
    for part in parts or [drawn.kernel.body]:
        fences = [one for one in ir.statements(part) if is_fence(one)]
        if fences:
            body = ir.rewritten(drawn.kernel.body, lambda one, first=fences[0]: () if one is first else (one,))
            message, _ = shadow_of(drawn, attrs.evolve(drawn.kernel, body=body), clean, [None])
            assert "fence of registers" in message, message


@pytest.mark.parametrize("name", ["a turn in flight", "B, swapped"])
def test_a_factor_in_registers(name):
    """It is written by ordinary statements in front of each product, which wants a fence behind them."""
    strategy, spec = RINGS[name]
    kernel = strategy(spec).program(TARGET).ir
    arrays, expected = inputs_of(spec)
    fences = [*spots(kernel, ir.Fence, is_fence)]
    assert fences and outcome(kernel, arrays, expected) == "right"
    for spot in fences:
        assert re.search("fence of registers|no fence", outcome(spot.with_one(), arrays, expected)), str(spot)
