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
