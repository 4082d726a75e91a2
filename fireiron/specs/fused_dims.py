"""Roles of dimensions that the steps determine: reduced dimensions, dimensions of arrays only, and temporaries without replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fireiron.specs.formula import Element
from fireiron.specs.indirect import Stored
from fireiron.specs.steps import EXTENTS, Step


def reduces_to_operand(step: Step, steps: Iterable[Step], uses: Mapping[str, Any]) -> bool:
    """Whether a step reduces one tensor into an operand that no step reads, or adds a sum to an operand, also by another step.

    For a sum, threads may then add their terms to the operand separately. For another reduction, one tile must contain all terms.
    """
    formula = step.formula
    if formula.output not in uses and any(step in summands_of(other, steps) for other in steps if other.formula.output in uses):
        return True
    if formula.accumulates:
        return (formula.reduces or formula.contracts) and formula.output in uses
    return formula.reduces and formula.output in uses and not any(formula.output in other.reads for other in steps)


def summands_of(step: Step, steps: Iterable[Step]) -> tuple[Step, ...]:
    """Return the sum that a step only adds to an operand: the step `t[m] = sum(n, ...)` for `y[m] += t[m]`, if no other step has `t`.

    Both are in the same loops. Tiles may divide the dimensions of the sum: each adds its part.
    """
    formula = step.formula
    value = formula.value
    if formula.sign != "+=" or not isinstance(value, Element) or not {*value.dims} <= {*formula.target.dims} or formula.over:
        return ()
    accessing = [other for other in steps if value.tensor in (*other.reads, other.formula.output) and other is not step]
    if len(accessing) != 1:
        return ()
    (source,) = accessing
    is_sum = source.formula.sign == "=" and (source.formula.contracts or source.formula.reduction == "sum")
    here = (source.part, source.nest) == (step.part, step.nest) and source.formula.output == value.tensor
    return (source,) if is_sum and here and source.formula.target.dims == value.dims else ()


def _other_names(elements: Sequence[Element]) -> list[tuple[Element, Element]]:
    """Return pairs of elements of one tensor whose dimensions have different names: `h[m,n]` and `h[m,k]`."""
    by_tensor: dict[str, list[tuple[Element, tuple[str, ...]]]] = {}
    for element in elements:
        by_tensor.setdefault(element.tensor, []).append((element, element.dims))
    apart = {tensor: same for tensor, same in by_tensor.items() if any(dims != same[0][1] for _, dims in same)}
    return [(element, other) for element in elements for other, dims in apart.get(element.tensor, ()) if element.dims != dims]


def reduced_dims(steps: Iterable[Step], uses: Mapping[str, Any]) -> set[str]:
    """Return the dimensions that a step reduces, under all their names: if `h[m,k]` is reduced along k, and `h[m,n]` written, k and n."""
    dims = {dim for step in steps for dim in (*step.formula.over, *step.formula.along)}
    elements = [element for step in steps for element in (*step.formula.elements, step.formula.target) if element.tensor not in uses]
    pairs = _other_names(elements)
    for _ in pairs:
        dims |= {other.dims[place] for element, other in pairs for place, dim in enumerate(element.dims[: len(other.dims)]) if dim in dims}
    return dims


def only_stored(steps: Sequence[Step], uses: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the temporaries that are read only to compute operands, or temporaries of this kind, without further dimensions."""
    candidates = {step.formula.output: set(step.formula.target.dims) for step in steps if step.formula.output not in uses}
    readers: dict[str, list[Step]] = {}
    for step in steps:
        for name in step.reads:
            readers.setdefault(name, []).append(step)
    while True:
        kept = {
            name: dims
            for name, dims in candidates.items()
            if all(
                set(reader.formula.target.dims) <= dims and (reader.formula.output in uses or reader.formula.output in candidates)
                for reader in readers.get(name, ())
            )
        }
        if len(kept) == len(candidates):
            return tuple(kept)
        candidates = kept


def dims_of_arrays(
    order: Sequence[str], steps: Iterable[Step], indirect: Iterable[Stored], roles: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """The dimensions that only arrays of indirect operands have: no formula has them."""
    counted = {dim for step in steps for element in (*step.formula.elements, step.formula.target) for dim in element.dims}
    counted |= {dim for step in steps for dim in step.formula.over} | {dim for dims in roles.values() for dim in dims}
    counted |= {element.tensor[len(EXTENTS) :] for step in steps for element in step.formula.elements if element.tensor.startswith(EXTENTS)}
    arrays = {dim for operand in indirect for dim in operand.of}
    return tuple(dim for dim in order if dim in arrays and dim not in counted)
