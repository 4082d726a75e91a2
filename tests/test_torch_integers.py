"""Integers of a graph of PyTorch: which of them formulas compute exactly. The nodes are stubs, so the tests need no PyTorch."""

from types import SimpleNamespace

import pytest

from fireiron.torch_backend.dims import CannotStateError
from fireiron.torch_backend.integers import EXACT, check_type, range_of


def node(name, *args, kind="int64", **kwargs):
    """A node of an operation of ATen, with an element type."""
    target = SimpleNamespace(overloadpacket=f"aten.{name}")
    return SimpleNamespace(
        op="call_function", target=target, args=args, kwargs=kwargs, meta={"val": SimpleNamespace(dtype=f"torch.{kind}")}
    )


COORDINATES = node("iota", 64, start=0, step=1)
CONDITION = node("gt", kind="bool")
REAL = node("exp", kind="float32")


@pytest.mark.parametrize(
    "integers, expected",
    [
        (COORDINATES, (0, 63)),
        (node("iota", 4, start=5, step=-2), (-1, 5)),
        (node("sub", COORDINATES, node("mul", COORDINATES, 3)), (-189, 63)),
        (node("maximum", node("neg", COORDINATES), -7), (-7, 0)),
        (node("where", CONDITION, COORDINATES, -1), (-1, 63)),
        (node("convert_element_type", CONDITION, kind="uint8"), (0, 1)),
        (node("unsqueeze", node("full", (2,), 9), 0), (9, 9)),
        (node("scalar_tensor", True), (1, 1)),
    ],
)
def test_ranges_of_integers(integers, expected):
    assert range_of(integers) == expected
    check_type(integers)


@pytest.mark.parametrize(
    "integers, reason",
    [
        (node("mul", node("mul", COORDINATES, 1000), 1000), "63000000"),
        (node("iota", EXACT + 2, start=0, step=1), str(EXACT + 1)),
        (node("convert_element_type", node("mul", COORDINATES, 9), kind="int8"), "567"),
        (node("neg", COORDINATES, kind="uint8"), "63"),
        (node("convert_element_type", REAL), "not round"),
        (node("placeholder"), "integers of placeholder"),
        (node("add", COORDINATES, COORDINATES, alpha=1 << 20), "integers of add"),
        (node("exp", REAL, kind="float64"), "float64"),
        (node("exp", REAL, kind="complex64"), "complex64"),
    ],
)
def test_integers_and_types_that_formulas_would_change_are_left(integers, reason):
    with pytest.raises(CannotStateError, match=reason):
        check_type(integers)


def test_floats_and_conditions_are_stated():
    check_type(REAL)
    check_type(CONDITION)
