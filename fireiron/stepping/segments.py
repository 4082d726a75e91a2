"""The loop over the iterations of a segment: the part of a tile's loop along k that a block computes with Stream-K."""

from __future__ import annotations

from collections.abc import Sequence

from fireiron.ir import For, Stmt
from fireiron.language.dividing import Step, loop_over, moved
from fireiron.language.segments import Segment
from fireiron.language.tree import Draft
from fireiron.spec import Spec
from fireiron.values.expr import Expr, Var, constant, minimum
from fireiron.values.tensor import View


def segment_loop(
    spec: Spec, views: dict[str, View], digits: Sequence[Step], segment: Segment, unroll: bool, draft: Draft, inner: tuple[Stmt, ...]
) -> tuple[dict[str, View], tuple[Stmt, ...], list[Var]]:
    """Return the loop over the iterations of a segment, with the views and the variable of its body.

    A unit of the segment consists of equally many iterations; the last unit of a tile may have fewer.
    """
    if not digits:
        return loop_over(spec, views, list(digits), unroll, draft, inner)
    (digit,) = digits
    size = constant(digit.size)
    assert size is not None
    per_unit = -(-size // segment.units)
    label = spec.labels[spec.dims.index(digit.dim)]
    var = Var(draft.fresh(label), 0, size - 1)
    first, count = segment.first * per_unit, segment.number * per_unit
    if size != segment.units * per_unit:
        count = minimum(count, size - first)
    # The extent of the loop bounds the iteration, but the range analysis cannot derive this, so the minimum states it.
    index: Expr = minimum(first + var, size - 1)
    return moved(views, spec, digit, index, unit=False), (For(var, count, inner, unroll, draft.origin),), [var]


__all__ = ["segment_loop"]
