"""The law of numerals, asked of every view that a step makes: a decomposition that breaks it would lose elements, or count some twice."""

from __future__ import annotations

import functools

from fireiron.errors import DecompositionError
from fireiron.spec import Spec
from fireiron.values.expr import ONE, Expr, Var, constant
from fireiron.values.tensor import Dim, Fixed, Mode

_SCALES = (1, 7, 40)
"""Sizes of run time at which a dimension of such a size is looked at: so often what divides them, above the least."""


def require_numerals(spec: Spec, made: Spec, what: str) -> None:
    """Refuse a view of a step's sub-spec whose digits form no number system (`Dim`), though those of the step's own spec do."""
    for name, view in made.operands.items():
        before = next((one for one in spec.views if one.tensor == view.tensor), None)
        for axis, part in enumerate(view.numerals):
            kept = None if before is None else before.numerals[axis]
            if part is kept:
                continue
            extent = view.tensor.shape[axis]
            fault = numeral_fault(part, extent)
            if fault is not None and (kept is None or numeral_fault(kept, extent) is None):
                raise DecompositionError(
                    f"{what}: the view of {name} has no part of {view.tensor.name} along {_dimension(made, name, axis)}: {fault[0]}",
                    got=f"{part.size} coordinates",
                    legal=fault[1],
                    hint="make views by dividing.divide and moved, view.tile(...)[...], view.at(...)",
                )


def _dimension(spec: Spec, name: str, axis: int) -> str:
    """A dimension of an operand's tensor: the name that the spec gives it, or its position."""
    view = spec.operands[name]
    places = {view.axis(place): dim for place, dim in enumerate(spec.uses[name])}
    return spec.labels[spec.dims.index(places[axis])] if axis in places else f"its dimension {axis}"


@functools.lru_cache(maxsize=20_000)
def numeral_fault(part: Dim, extent: Expr) -> tuple[str, str] | None:
    """What breaks the law of `Dim` in a dimension of a tensor of this extent, and what is legal there; None where nothing does."""
    both: tuple[Fixed | Mode, ...] = (*part.fixed, *part.modes)
    digits = [(digit.stride, digit.size, _counts_turns(digit)) for digit in both if constant(digit.size) != 1]
    digits.sort(key=lambda digit: (constant(digit[0]) is None, constant(digit[0]) or 0))
    reached: Expr = ONE
    turns = False
    for stride, size, loop in digits:
        if stride != reached and not (turns and _at_least(reached, stride)):
            return f"a digit of stride {stride} follows where those below reach {reached}", f"stride {reached}"
        reached, turns = stride * size, loop
    if part.bound is None and reached != extent and not (turns and _at_least(reached, extent)):
        return f"its digits count {reached} coordinates of {extent}", f"{extent}, or a bound where they count more"
    if part.bound is not None and not _at_least(reached, extent):
        return f"its digits count {reached} coordinates of {extent}", f"at least {extent}"
    for digit in part.fixed:
        count = constant(digit.size)
        if digit.index.low < 0 or (count is not None and digit.index.high >= count):
            return f"{digit.index}, {digit.index.low} to {digit.index.high}, is no digit of {digit.size}", f"0 to {digit.size - 1}"
    return None


def _counts_turns(digit: Fixed | Mode) -> bool:
    """Whether a digit is that of a loop: it may count turns beyond the end, where a condition keeps units out of those that there are not.

    That it does is for the check of bounds to prove.
    """
    return isinstance(digit, Fixed) and not digit.unit


def _at_least(reached: Expr, extent: Expr) -> bool:
    """Whether so many numbers are enough, at some sizes of run time."""
    more = reached - extent
    for scale in _SCALES:
        here = {var: _at_scale(var, scale) for var in more.variables()}
        number = constant(more.substitute(here))
        if number is not None and number < 0:
            return False
    return True


def _at_scale(var: Var, scale: int) -> int:
    """A value of a symbol: so many multiples above the least, or the largest."""
    return min(var.low + -var.low % var.multiple_of + scale * var.multiple_of, var.high - var.high % var.multiple_of)
