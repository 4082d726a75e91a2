"""Check that the digits of each view form a number system. Otherwise a decomposition would skip elements or visit some twice."""

from __future__ import annotations

import functools

from fireiron.errors import DecompositionError
from fireiron.spec import Spec
from fireiron.values.expr import ONE, Expr, Var, constant
from fireiron.values.tensor import Dim, Fixed, Mode, Tensor

_SCALES = (1, 7, 40)
"""Run-time sizes at which a dimension is checked: the minimum plus these multiples of its divisor."""


def require_numerals(spec: Spec, child: Spec, what: str) -> None:
    """Refuse a view of a child's spec whose digits do not form a number system (`Dim`), if those of the step's own spec do."""
    for name, view in child.operands.items():
        tensor = view.tensor
        before = next((outer for outer in spec.views if _is_same(outer.tensor, tensor)), None)
        for axis, part in enumerate(view.numerals):
            kept = None if before is None else before.numerals[axis]
            if part is kept:
                continue
            extent = view.tensor.shape[axis]
            fault = numeral_fault(part, extent)
            if fault is not None and (kept is None or numeral_fault(kept, extent) is None):
                raise DecompositionError(
                    f"{what}: the view of {name} is not a tile of {view.tensor.name} along {_dimension(child, name, axis)}: {fault[0]}",
                    got=f"{part.size} coordinates",
                    legal=fault[1],
                    hint="make views by dividing.divide and moved, view.tile(...)[...], view.at(...)",
                )


def _is_same(tensor: Tensor, other: Tensor) -> bool:
    return tensor is other or (tensor.name == other.name and tensor == other)


def _dimension(spec: Spec, name: str, axis: int) -> str:
    """Return a dimension of an operand's tensor for messages: its name in the spec, or its position."""
    view = spec.operands[name]
    places = {view.axis(place): dim for place, dim in enumerate(spec.uses[name])}
    return spec.labels[spec.dims.index(places[axis])] if axis in places else f"its dimension {axis}"


@functools.lru_cache(maxsize=20_000)
def numeral_fault(part: Dim, extent: Expr) -> tuple[str, str] | None:
    """Return how a dimension of a tensor of this extent violates the rule of `Dim`, and the legal values; None if it does not."""
    both: tuple[Fixed | Mode, ...] = (*part.fixed, *part.modes)
    digits = [(digit.stride, digit.size, _is_loop(digit)) for digit in both if constant(digit.size) != 1]
    digits.sort(key=lambda digit: (constant(digit[0]) is None, constant(digit[0]) or 0))
    reached: Expr = ONE
    after_loop = False
    for stride, size, is_loop in digits:
        if stride != reached and not (after_loop and _at_least(reached, stride)):
            return f"a digit of stride {stride} follows digits that cover {reached}", f"stride {reached}"
        reached, after_loop = stride * size, is_loop
    if part.bound is None and reached != extent and not (after_loop and _at_least(reached, extent)):
        return f"its digits cover {reached} coordinates of {extent}", f"{extent}, or a bound if they cover more"
    if part.bound is not None and not _at_least(reached, extent):
        return f"its digits cover {reached} coordinates of {extent}", f"at least {extent}"
    for digit in part.fixed:
        count = constant(digit.size)
        if digit.index.low < 0 or (count is not None and digit.index.high >= count):
            return f"{digit.index}, {digit.index.low} to {digit.index.high}, is not a digit of {digit.size}", f"0 to {digit.size - 1}"
    return None


def _is_loop(digit: Fixed | Mode) -> bool:
    """Return whether a digit is that of a loop.

    A loop may have iterations past the end if a condition masks them; the check of bounds proves that a condition does.
    """
    return isinstance(digit, Fixed) and not digit.unit


def _at_least(reached: Expr, extent: Expr) -> bool:
    """Return whether `reached` is at least `extent` at the checked run-time sizes."""
    more = reached - extent
    for scale in _SCALES:
        here = {var: _at_scale(var, scale) for var in more.variables()}
        number = constant(more.substitute(here))
        if number is not None and number < 0:
            return False
    return True


def _at_scale(var: Var, scale: int) -> int:
    """Return a value of a symbol: `scale` multiples above its minimum, at most its maximum."""
    return min(var.low + -var.low % var.multiple_of + scale * var.multiple_of, var.high - var.high % var.multiple_of)
