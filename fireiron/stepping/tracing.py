"""The formula by which a kernel prints elements of a step's result: `acc_traced[m,n] = where(m == 3 and n == 5, acc[m,n], 0)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fireiron.errors import DecompositionError
from fireiron.language.substrategy import written
from fireiron.language.tree import Decomposition, Draft
from fireiron.spec import AnySpec, Spec
from fireiron.specs.formula import Element, Formula, Index, Number, Operation, Value, elements_of
from fireiron.specs.steps import EXTENTS, INDICES, Step, shown
from fireiron.specs.tracing import FIRST, SUFFIX, Traced, at_least_zero, conjunction, first_of, replaced
from fireiron.values.expr import ZERO
from fireiron.values.tensor import View
from fireiron.values.units import thread_of


def traced_formula(
    traced: Traced,
    target: Element,
    value: Value,
    first: Sequence[str],
    past_end: Sequence[str],
    known: Mapping[str, View],
    spec: Spec,
) -> Formula:
    """Return the formula that selects the elements to print.

    Args:
        target: an element of the printed tensor, whose dimensions are the printed coordinates.
        value: what is printed: the element, or a value that threads read.
        first: the dimensions whose first coordinate a line contains.
        past_end: the dimensions of the element along which a tile may extend past the end; elements there are not printed.
        known: the tensors of this part of the definition.
    """
    conditions: list[Value] = []
    if traced.condition is not None:
        _require_known(traced, known, spec)
        conditions.append(replaced(traced.condition, target, value))
    conditions += [Operation("<", (_coordinate(dim), Element(f"{EXTENTS}{dim}", ()))) for dim in past_end]
    conditions += [at_least_zero(_coordinate(dim)) for dim in target.dims]
    conditions += [at_least_zero(first_of(dim)) for dim in first]
    result = Element(f"{traced.tensor}{SUFFIX}", target.index)
    return Formula(result, "=", Operation("where", (conjunction(conditions or [at_least_zero(Number(0))]), value, Number(0))))


def is_readable(view: View) -> bool:
    """Whether threads read the elements of a step's result: in registers, or in shared memory."""
    return (view.memory.private and view.memory.fragment is None) or view.memory.in_shared


def require_formula(traced: Traced, step: Step, view: View, spec: Spec, draft: Draft) -> None:
    """Refuse to print a result that threads do not read, and which is not a formula of elements that they read."""
    formula = step.formula
    reads_itself = any(element.tensor == formula.output for element in formula.elements)
    if is_readable(view) or (view.memory.fragment is None and formula.reduction is None and not formula.accumulates and not reads_itself):
        return
    name = f"{traced.tensor}_value"
    raise DecompositionError(
        f"print_values({traced.tensor!r}): step {step.name} leaves {traced.tensor} in {view.memory.name}",
        got=shown(formula), legal="a tensor in RF or SH, or one that a formula without sum, max, min, prod and += computes", within=spec,
        at=draft.origin, hint=f"compute a temporary {name} first, copy it to {traced.tensor}, and use print_values({name!r})",
    )  # fmt: skip


def require_input(traced: Traced, view: View, spec: Spec, draft: Draft) -> None:
    """Refuse to print an input in fragments, whose elements no thread reads."""
    if view.memory.fragment is not None:
        raise DecompositionError(
            f"print_values({traced.tensor!r}): {traced.tensor} is in {view.memory.name}, and lanes own unspecified elements", within=spec,
            legal="an input in GL, SH or RF", at=draft.origin, hint=f"put .print_values(...) before .load({traced.tensor!r}, FR)",
        )  # fmt: skip


def distributed(spec: Spec) -> tuple[Decomposition, ...]:
    """Return the steps that distribute elements over the threads of a level if no thread has them in registers; empty otherwise."""
    private = any(view.memory.private for name, view in spec.operands.items() if name in spec.inputs)
    if private or spec.level.threads == 1:
        return ()
    return written(AnySpec.tile(*(1 for _ in spec.dims)).to(thread_of(spec.level)).unroll())


def first_coordinates(views: Mapping[str, View], dims: Sequence[str]) -> dict[str, View]:
    """Return views of the first coordinate of each dimension that has coordinates."""
    known = {dim: views[f"{INDICES}{dim}"] for dim in dims if f"{INDICES}{dim}" in views}
    return {f"{FIRST}{dim}": view.at(0, ZERO, False) if len(view.dims[0].modes) == 1 else view.only(()) for dim, view in known.items()}


def text(traced: Traced, target: Element) -> str:
    """Return the comment above the printed text of an element."""
    if traced.condition is None:
        return f"print {target}"
    condition = shown(traced.condition).replace(FIRST, "")
    return f"print {target} where {condition}"


def _coordinate(dim: str) -> Element:
    return Element(f"{INDICES}{dim}", (Index(dim),))


def _require_known(traced: Traced, known: Mapping[str, View], spec: Spec) -> None:
    """Refuse a condition on the coordinate of a dimension that this part of a definition does not have."""
    for element in elements_of(traced.condition):
        dim = element.tensor.removeprefix(FIRST)
        if element.tensor.startswith(FIRST) and element.tensor not in known:
            raise DecompositionError(
                f"print_values({traced.tensor!r}): the condition reads {dim}, which the steps here do not have", within=spec,
                legal=[name.removeprefix(FIRST) for name in known if name.startswith(FIRST)],
                hint=f"put .print_values(...) before .split({dim}=...)",
            )  # fmt: skip


__all__ = ["distributed", "first_coordinates", "is_readable", "require_formula", "require_input", "text", "traced_formula"]
