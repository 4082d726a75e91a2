"""The steps between neighbours that a micro-kernel's contract names (`a_stride_m`): where there is one number, and which."""

import attrs
import pytest
from handmade import access, local

from fireiron import *
from fireiron.cuda.micro_kernel import step_of
from fireiron.values.expr import as_expr
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
