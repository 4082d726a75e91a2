"""Distribute an elementwise step that lacks the dimension of a tile over the units of that tile.

Below `tile(m=16).to(Warp)`, the elements of a step without m are the same for all warps. If its result is in shared memory, one warp could
compute all of it while the others wait. Instead, each warp computes a part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from fireiron.frozen import frozen
from fireiron.ir import Comment
from fireiron.language.dividing import divide, moved
from fireiron.language.substrategy import fits
from fireiron.language.tree import Draft
from fireiron.performing.layout_propagation import elementwise
from fireiron.spec import Spec
from fireiron.stepping.vectors import VECTOR
from fireiron.values.expr import ONE, TRUE, ZERO, Expr, all_of, as_expr, constant, less, mod
from fireiron.values.tensor import Fixed

BY_FIRST_UNIT: Final = "only the first of "
"""Start of the comment on a step that one of several units executes. `explain` repeats the comment."""


@frozen
class Share:
    """The part of a step that a unit computes: its spec, the condition under which the unit has a part, and the number of parts."""

    spec: Spec
    active: Expr
    parts: int


def can_be_shared(spec: Spec) -> bool:
    """Return whether units may compute parts of a spec: each element in shared memory is computed from memory at its coordinates."""
    views = [spec.operands[name] for name in spec.outputs]
    in_shared = len(views) == 1 and views[0].memory.of_block and not spec.level.is_launch
    return in_shared and elementwise(spec) and not spec.atomic and not any(view.memory.private for view in spec.operands.values())


def share_of_unit(spec: Spec, units: Sequence[Fixed], draft: Draft) -> Share | None:
    """Return the part of a spec that the executing unit computes; `units` are the digits in which units with equal work differ.

    Parts have whole vectors of 16 bytes, and the slowest dimension of the result is divided first. None if no dimension can be divided.
    """
    unit, count = _number(units)
    total = constant(count)
    if total is None or total == 1:
        return None
    extents = _extents(spec, total)
    if not extents:
        return None
    views, digits = divide(spec, extents, "a part of each unit")
    parts = math.prod(constant(digit.size) or 1 for digit in digits)
    left = unit
    for digit in reversed(digits):
        is_last = digit is digits[0]
        label, size = spec.labels[spec.dims.index(digit.dim)], constant(digit.size) or 1
        index = draft.let(f"{draft.prefix}part_{label}", left if is_last else mod(left, digit.size), high=size - 1 if is_last else None)
        views = moved(views, spec, digit, index, unit=True)
        left = left // digit.size
    return Share(spec.with_operands(**views), TRUE if parts == total else less(unit, as_expr(parts)), parts)


def by_first_unit(units: Sequence[Fixed], output: str) -> tuple[Comment, ...]:
    """Return the comment on a step that only the first of several units executes, with what to do; empty if there is one unit."""
    total = constant(_number(units)[1])
    if total is None or total == 1:
        return ()
    advice = "tile in the strategies of steps, as in .step('s', MatMul.tile(...).to(Warp)...), instead of around them"
    return (Comment(f"{BY_FIRST_UNIT}{total} units computes {output}. For all: {advice}"),)


def first_of(units: Sequence[Fixed]) -> Expr:
    """Return the condition that holds for the first of units with equal work."""
    return all_of([less(digit.index, ONE) for digit in units])


def _number(digits: Sequence[Fixed]) -> tuple[Expr, Expr]:
    """Return the number of a unit among those with equal work, and how many there are."""
    number: Expr = ZERO
    count: Expr = ONE
    for digit in digits:
        number, count = number + digit.index * count, count * digit.size
    return number, count


def _extents(spec: Spec, units: int) -> dict[str, int]:
    """Return the sizes of the parts, by dimension: at most as many parts as there are units."""
    (name,) = spec.outputs
    view = spec.operands[name]
    order = [spec.uses[name][place] for place in reversed(view.storage_order)] if view.dims else []
    extents: dict[str, int] = {}
    for dim in order:
        total = constant(spec.size(dim))
        width = max(VECTOR // view.dtype.bytes, 1) if dim == order[-1] else 1
        if total is None or total % width:
            continue
        most = min(total // width, units)
        parts = next(count for count in range(most, 0, -1) if count == 1 or _divides(spec, dim, total, total // width, count))
        if parts > 1:
            extents[dim] = total // parts
            units //= parts
    return extents


def _divides(spec: Spec, dim: str, total: int, vectors: int, parts: int) -> bool:
    """Return whether a dimension can be divided into a number of parts, each with whole vectors."""
    return vectors % parts == 0 and fits(spec, dim, total // parts)
