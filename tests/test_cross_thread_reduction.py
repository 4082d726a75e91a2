"""Reductions over registers: whether lanes may exchange what they hold."""

import attrs
import pytest
from performed import context_of

from fireiron import *
from fireiron.stepping.cross_thread_reduction import _warps_whole
from fireiron.values.expr import TRUE, Var, all_of, less

T = Var("thread", 0, 127)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("active", "whole"),
    [
        (TRUE, True),
        (less(T, 20), False),
        (less(T // 32, 3), True),
        (less(T % 32, 16), False),
        (less(Var("block", 0, 7) * 128 + T // 32 * 32, 1000), True),
        (less(Var("block", 0, 7) * 128 + T, 1000), False),
        (all_of((less(T, 64), less(T, 50))), False),
    ],
    ids=str,
)
def test_all_lanes_of_a_warp_take_part_or_none(active, whole):
    """An exchange among lanes of which some are not there is none."""
    context = attrs.evolve(context_of(MatMul(8, 8, 8)(GL, GL, GL)(Kernel)), workers=128, thread=T, active=active)
    assert _warps_whole(context) is whole
