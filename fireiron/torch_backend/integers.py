"""Integers of a graph that a formula computes from coordinates, constants, conditions and bytes, in 32 bits or exact in float32."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any, Final

from fireiron.torch_backend.dims import CannotStateError
from fireiron.torch_backend.operations import COPIES, FLOATS, VIEWS, is_inlined, name_of, type_of

Range = tuple[int, int]
"""The least and the greatest value that an integer may have."""

EXACT: Final = 1 << 24
"""Integers up to this number are exact in float32."""

CONDITION: Final = "torch.bool"

LEAST: Final[Mapping[str, int]] = {"torch.uint8": 0, "torch.int8": -(1 << 7), "torch.int16": -(1 << 15)}
"""The least value of a short type, in which larger integers wrap."""

GREATEST: Final[Mapping[str, int]] = {"torch.uint8": (1 << 8) - 1, "torch.int8": (1 << 7) - 1, "torch.int16": (1 << 15) - 1}
"""The greatest value of a short type."""


BYTES: Final = ("torch.uint8", "torch.int8")
"""Integers of arrays that a formula reads: all values are exact in float32."""

WORDS: Final = ("torch.int32", "torch.int64")
"""Integers of arrays that a formula compares, or converts to float32: the range of others is unknown."""


def is_integer(node: Any) -> bool:
    """Whether the elements of a node are integers."""
    return type_of(node).removeprefix("torch.").startswith(("int", "uint"))


def check_type(node: Any) -> None:
    """Raise `CannotStateError` if a formula would compute other elements than PyTorch: of float64, or of integers that are not exact."""
    kind = type_of(node)
    if is_integer(node):
        range_of(node)
    elif kind not in (*FLOATS, CONDITION):
        raise CannotStateError(f"elements of {kind.removeprefix('torch.')}, which formulas compute in float32")


def range_of(node: Any) -> Range:
    """Return the range of an integer. Raises: `CannotStateError` if it is unknown, or not exact in float32."""
    if isinstance(node, int):
        return int(node), int(node)
    if type_of(node) == CONDITION:
        return 0, 1
    if not is_integer(node):
        raise CannotStateError("a conversion of other numbers to integers, which a formula would not round")
    least, greatest = _range(node)
    if not LEAST.get(type_of(node), -EXACT) <= least <= greatest <= GREATEST.get(type_of(node), EXACT):
        raise CannotStateError(f"integers up to {max(-least, greatest)}, which wrap, or are not exact in float32")
    return least, greatest


def _range(node: Any) -> Range:
    name, arguments = name_of(node), node.args
    if name == "iota":
        start, step = node.kwargs.get("start", 0), node.kwargs.get("step", 1)
        ends = start, start + step * (arguments[0] - 1)
        return min(ends), max(ends)
    if name in ("full", "scalar_tensor"):
        return range_of(arguments[-1] if name == "full" else arguments[0])
    if name in COPIES or (name in VIEWS and is_inlined(node)):
        return range_of(arguments[0])
    if name == "where":
        ranges = [range_of(one) for one in arguments[1:]]
        return min(least for least, _ in ranges), max(greatest for _, greatest in ranges)
    if type_of(node) in BYTES and not is_inlined(node):
        return LEAST[type_of(node)], GREATEST[type_of(node)]
    if name in CORNERS and not node.kwargs:
        values = [CORNERS[name](*corner) for corner in itertools.product(*map(range_of, arguments))]
        return min(values), max(values)
    raise CannotStateError(f"integers of {name or 'an array'}")


CORNERS: Final[Mapping[str, Callable[..., int]]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "neg": lambda x: -x,
    "maximum": max,
    "minimum": min,
}
"""Functions whose extremes over ranges are among those of the ends of the ranges."""

__all__ = ["BYTES", "CONDITION", "EXACT", "WORDS", "check_type", "is_integer", "range_of"]
