"""The strides named by a micro-kernel's contract (`a_stride_m`): whether there is a single number, and which."""

import itertools

import attrs
import pytest
from handmade import access, local

from fireiron import *
from fireiron.cuda.micro_kernel import _count_below, _rising, step_of
from fireiron.values.expr import Var, as_expr, compiled
from fireiron.values.tensor import Mode

BUFFER = local("r", (8, 4), SH)
"""Column-major: elements of a column are adjacent, those of a row 8 apart."""


def modes(*sizes_and_strides):
    """An access whose rows have these sizes and strides."""
    rows = tuple(Mode(as_expr(size), as_expr(stride)) for size, stride in sizes_and_strides)
    return attrs.evolve(access("r", (0, 0)), modes=(rows, (Mode(as_expr(1), as_expr(1)),)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "sizes_and_strides, step",
    [(((4, 1),), 1), (((4, 2),), 2), (((1, 1),), 1), (((1, 4), (2, 3)), 3), (((2, 3), (1, 4)), 3), (((2, 1), (2, 4)), None), ((), 1)],
    ids=str,
)
def test_steps_of_a_view(sizes_and_strides, step):
    """That of its only mode with more than one element; with several such modes there is no single number."""
    stride = step_of(BUFFER, modes(*sizes_and_strides), 0)
    assert stride == (None if step is None else as_expr(step))


def test_a_single_element_has_the_step_of_its_tensor():
    assert step_of(BUFFER, access("r", (0, 0), (4, 1)), 1) == as_expr(8)


def test_swizzled_elements_have_none():
    swizzled = attrs.evolve(BUFFER, storage=attrs.evolve(BUFFER.storage, swizzle=Swizzle(1, 0, 2)))
    assert step_of(swizzled, access("r", (0, 0), (4, 1)), 0) is None


RISING = [((4, 1),), ((4, 3),), ((3, 1), (4, 3)), ((2, 1), (3, 8)), ((2, 2), (3, 5)), ((2, 1), (2, 4), (3, 16))]
"""Sizes and strides of modes whose offsets grow."""


def offsets_of(sizes_and_strides):
    return sorted(
        sum(place) for place in itertools.product(*([step * stride for step in range(size)] for size, stride in sizes_and_strides))
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes_and_strides", RISING, ids=str)
def test_elements_below_a_bound_are_counted(sizes_and_strides):
    """Each limit from nothing to past the last element, as the text computes it."""
    rising_modes = _rising([Mode(as_expr(size), as_expr(stride)) for size, stride in sizes_and_strides])
    assert rising_modes == sizes_and_strides
    room = Var("room", 0, 200)
    reach = sizes_and_strides[-1][0] * sizes_and_strides[-1][1]
    count = compiled(_count_below(rising_modes, room))
    for number in range(reach + 1):
        assert count({"room": number}) == sum(offset < number for offset in offsets_of(sizes_and_strides)), number


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("sizes_and_strides", "rising"),
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
def test_modes_that_rise(sizes_and_strides, rising):
    """From each index to the next; a single element has no stride."""
    assert _rising([Mode(as_expr(size), as_expr(stride)) for size, stride in sizes_and_strides]) == rising
