"""The steps between neighbours that a micro-kernel's contract names (`a_stride_m`): where there is one number, and which."""

import itertools

import attrs
import pytest
from handmade import access, local

from fireiron import *
from fireiron.cuda.micro_kernel import _count_below, _rising, step_of
from fireiron.values.expr import Var, as_expr, compiled
from fireiron.values.tensor import Mode

BUFFER = local("r", (8, 4), SH)
"""Column by column: neighbours in a column are side by side, those in a row 8 apart."""


def modes(*several):
    """An access whose rows are these sizes and strides."""
    rows = tuple(Mode(as_expr(size), as_expr(stride)) for size, stride in several)
    return attrs.evolve(access("r", (0, 0)), modes=(rows, (Mode(as_expr(1), as_expr(1)),)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "several, step",
    [(((4, 1),), 1), (((4, 2),), 2), (((1, 1),), 1), (((1, 4), (2, 3)), 3), (((2, 3), (1, 4)), 3), (((2, 1), (2, 4)), None), ((), 1)],
    ids=str,
)
def test_steps_of_a_view(several, step):
    """Of its one mode with more than one element; with several there is no such number."""
    found = step_of(BUFFER, modes(*several), 0)
    assert found == (None if step is None else as_expr(step))


def test_a_single_element_has_the_step_of_its_tensor():
    assert step_of(BUFFER, access("r", (0, 0), (4, 1)), 1) == as_expr(8)


def test_swizzled_elements_have_none():
    swizzled = attrs.evolve(BUFFER, storage=attrs.evolve(BUFFER.storage, swizzle=Swizzle(1, 0, 2)))
    assert step_of(swizzled, access("r", (0, 0), (4, 1)), 0) is None


RISING = [((4, 1),), ((4, 3),), ((3, 1), (4, 3)), ((2, 1), (3, 8)), ((2, 2), (3, 5)), ((2, 1), (2, 4), (3, 16))]
"""Sizes and strides of modes whose offsets grow."""


def offsets_of(several):
    return sorted(sum(place) for place in itertools.product(*([step * stride for step in range(size)] for size, stride in several)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("several", RISING, ids=str)
def test_elements_below_a_bound_are_counted(several):
    """Each room from nothing to beyond the last, as the text computes it."""
    found = _rising([Mode(as_expr(size), as_expr(stride)) for size, stride in several])
    assert found == several
    room = Var("room", 0, 200)
    reach = several[-1][0] * several[-1][1]
    count = compiled(_count_below(found, room))
    for number in range(reach + 1):
        assert count({"room": number}) == sum(offset < number for offset in offsets_of(several)), number


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("several", "rising"),
    [
        (((1, 7), (4, 1)), ((4, 1),)),
        ((), ()),
        (((4, 1), (4, 3)), None),
        (((4, 1), (4, 4)), ((4, 1), (4, 4))),
        (((2, 4), (4, 1)), None),
        (((4, 0),), None),
    ],
    ids=str,
)
def test_modes_that_rise(several, rising):
    """From each index to the next; one element has no step."""
    assert _rising([Mode(as_expr(size), as_expr(stride)) for size, stride in several]) == rising
