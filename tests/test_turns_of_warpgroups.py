"""Warpgroups that issue products in turns, by `turns("s", "pv")` on the split of a definition: attention against a plain softmax, its text on a
CPU and by NVRTC, faults in their order that both detectors must find, and what is refused.
"""

import random

import attrs
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed
from ringed import dropped, errors, later, of_kind, with_changed, with_rings
from test_fused_attention import inputs, softmax

from fireiron import *
from fireiron import ir
from fireiron.errors import SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.inspect.synchronization import synchronization, text
from fireiron.sim import simulate
from fireiron.strategies import attention, hopper_attention

TARGET = "sm_90a"


def program(m, n, d, values=None, options=None, blocks=3, problem=None, **forms):
    """The kernel for a problem, of a definition with options, whose warpgroups take turns."""
    made = attention.definition(**{"slack": 8, **(options or {})})
    strategy = hopper_attention.by_rows(made, blocks=blocks, turns=True, **forms).with_(**{"bm": 128, "bn": 16, "chunk": 16, **(values or {})})
    return strategy(attention.spec(m, n, d, made=made, **(problem or {}))).program(TARGET)


def outcome(kernel, arrays, expected, order=None):
    """`right`, `wrong`, or what the simulator meets."""
    try:
        got = simulate(kernel, arrays, order=None if order is None else random.Random(order)).outputs["O"]
    except SimulationError as error:
        return str(error)
    return "right" if np.allclose(got.astype(np.float32), expected, atol=3e-3) else "wrong"


CASES = {
    "two warpgroups, four tiles for three blocks": ((128, 48, 16), {}, {}, {"problem": {"heads": 4}}),
    "three, an odd number of turns": ((192, 40, 16), {"bm": 192}, {}, {"blocks": 1, "problem": {"heads": 2}}),
    "under a mask": ((200, 200, 16), {"bn": 64}, {"causal": True}, {}),
    "under a mask, blocks that stay": ((256, 256, 16), {"bn": 64, "bm": 128}, {"causal": True}, {"stays": True, "blocks": 1}),
    "products of one turn": ((128, 48, 16), {}, {}, {"delayed": False}),
}


@pytest.mark.parametrize("name", CASES)
def test_kernels_are_right(name):
    sizes, values, options, forms = CASES[name]
    kernel = program(*sizes, values, options, **forms).ir
    assert errors(kernel) == []
    (order,) = (ring for ring in kernel.rings if not ring.buffers)
    assert (order.stages, order.each, order.consumers) == (kernel.workers // 128, 128, 4)
    arrays = inputs(kernel.spec)
    expected, _ = softmax(*arrays.values(), **{name: value for name, value in options.items() if name == "causal"})
    assert {outcome(kernel, arrays, expected, one) for one in (None, 1)} == {"right"}


# ---------------------------------------------------------------------------------------------- planted faults

IN_ORDER = of_kind(ir.Acquire, ring="n_order"), of_kind(ir.Release, ring="n_order")


def with_order(kernel, **changes):
    """The kernel with its order changed."""
    return with_rings(kernel, lambda one: one if one.buffers else attrs.evolve(one, **changes))


def in_other_order(kernel):
    """Each warpgroup has the turns of the one behind it."""
    unit = next(one.var for one in kernel.body if isinstance(one, ir.Let) and one.value == kernel.thread // 128)
    groups = kernel.workers // 128

    def change(one):
        mine = isinstance(one, (ir.Acquire, ir.Release)) and one.ring == "n_order"
        return (attrs.evolve(one, number=one.number.substitute({unit: (unit + 1) % groups})),) if mine else (one,)

    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, change))


FAULTS = {
    **{f"no wait {number}": lambda kernel, number=number: with_changed(kernel, IN_ORDER[0], number, dropped) for number in (0, 1)},
    **{f"not given on {number}": lambda kernel, number=number: with_changed(kernel, IN_ORDER[1], number, dropped) for number in (0, 1)},
    **{f"a wait for the own turn {number}": lambda kernel, number=number: with_changed(kernel, IN_ORDER[0], number, later(1)) for number in (0, 1)},
    "a wait too early": lambda kernel: with_changed(kernel, IN_ORDER[0], 1, later(-1)),
    "given on to another": lambda kernel: with_changed(kernel, IN_ORDER[1], 1, later(1)),
    "the first turn is another's": lambda kernel: with_changed(kernel, IN_ORDER[1], 0, later(1)),
    "a warp too few": lambda kernel: with_order(kernel, consumers=3),
    "a warp too many": lambda kernel: with_order(kernel, consumers=5),
    "no wait at all": lambda kernel: with_changed(with_changed(kernel, IN_ORDER[0], 1, dropped), IN_ORDER[0], 0, dropped),
}


@pytest.fixture(scope="module")
def three():
    """Three warpgroups with four turns, two tiles of one block."""
    kernel = program(192, 48, 16, {"bm": 192}, blocks=1, problem={"heads": 2}).ir
    arrays = inputs(kernel.spec)
    return kernel, arrays, softmax(*arrays.values())[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found_by_both(fault, three):
    kernel, arrays, expected = three
    faulty = FAULTS[fault](kernel)
    assert errors(faulty), "the race check misses it"
    assert {outcome(faulty, arrays, expected, order) for order in range(3)} != {"right"}, "the simulator misses it"


def test_another_order_is_no_fault(three):
    """Who begins is a matter of speed alone; that each turn has one warpgroup is not."""
    kernel, arrays, expected = three
    assert errors(in_other_order(kernel)) == [] and outcome(in_other_order(kernel), arrays, expected, 1) == "right"
