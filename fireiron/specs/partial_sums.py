"""Specs of which a block can compute a part of the sum: one matmul, or a loop that adds to one temporary, whose complete sum all later
steps read.
"""

from __future__ import annotations

from fireiron.errors import DecompositionError
from fireiron.spec import Spec
from fireiron.specs.formula import Element, Number, Operation, elements_of
from fireiron.specs.fused import fused
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.steps import Step
from fireiron.values.expr import ONE


def with_complete_sums(spec: Spec, definition: FusedDefinition, product: Step, verb: str = "reduce_in_last_block") -> Spec:
    """Return the spec of a definition around a MatMul; refuse it if blocks that compute a part of the MatMul have other results."""
    others = [step for step in definition.steps if step is not product]
    wrong = next((step for step in others if any(set(product.formula.over) & set(element.dims) for element in _elements(step))), None)
    early = next((step for step in definition.steps[: definition.steps.index(product)] if step.formula.output in definition.uses), None)
    if product.formula.accumulates:
        what, hint = (
            f"step {product.name} adds to {product.formula.output}, which each block would add",
            "add it in a step after the matmul",
        )
    elif product.formula.output in definition.uses:
        what, hint = f"step {product.name} stores its sum in the output {product.formula.output}", "sum to a temporary, and store that"
    elif wrong is not None:
        what, hint = (
            f"step {wrong.name} reads {', '.join(product.formula.over)}, of which each block has a part",
            "compute it in another kernel",
        )
    elif early is not None:
        what, hint = f"step {early.name} stores {early.formula.output} before the matmul, in each block", "store it after the matmul"
    else:
        return spec
    raise DecompositionError(
        f"{verb}: {what}", got=str(wrong or early or product),
        legal="one matmul to a temporary, and then steps on complete sums", within=spec, hint=hint,
    )  # fmt: skip


def looped_sum(spec: Spec, definition: FusedDefinition, verb: str = "reduce_in_last_block") -> str:
    """Return the temporary to which a loop adds, so that blocks can compute parts of the loop; refuse other definitions.

    Its parts are complete if it starts at zero and each iteration only adds to it.
    """
    what, got, hint = _looped_fault(definition)
    if what:
        raise DecompositionError(
            f"{verb}: {what}", got=got or str(spec.title), within=spec, hint=hint,
            legal="one loop, whose iterations add to one temporary that starts at 0, and then steps on its sum",
        )  # fmt: skip
    return _carried(definition)[0]


def _carried(definition: FusedDefinition) -> list[str]:
    """Return the temporaries that steps before the loop set and that the loop changes."""
    before, inside = ([step.formula.output for step in definition.steps if step.part == part] for part in ("init", "body"))
    return [name for name in dict.fromkeys(before) if name in inside]


def _looped_fault(definition: FusedDefinition) -> tuple[str, str | None, str | None]:
    """Return why parts of a loop are no parts of one sum, the step, and what to do; an empty text if they are."""
    carried, loops = _carried(definition), definition.loops
    if len(loops) != 1 or definition.nested:
        return f"the definition has {len(loops)} loops" if len(loops) != 1 else "a loop contains a loop", None, None
    if len(carried) != 1:
        return f"the iterations carry {', '.join(carried) or 'no temporary'}", None, "one temporary for all sums"
    (total,) = carried
    for step in definition.steps:
        formula, reads = step.formula, [element.tensor for element in step.formula.elements]
        if step.part == "init" and formula.output == total and not _is_zero(step):
            return f"step {step.name} starts {total} with another value than 0, which each block would add", str(step), f"{total} = 0"
        if step.part == "init" and formula.output in definition.uses:
            return f"step {step.name} stores {formula.output} before the loop, in each block", str(step), "store it after the loop"
        if step.part == "body" and formula.output == total and not _adds(step, total):
            return f"step {step.name} changes {total} otherwise than by an addition", str(step), f"{total}[...] += ..."
        if step.part == "body" and (formula.output in definition.uses or (formula.output != total and total in reads)):
            return f"step {step.name} uses a part of the sum {total}", str(step), "use the sum after the loop"
        inner = {other.formula.output for other in definition.steps if other.part == "body"} - {total}
        if step.part == "final" and (inner & set(reads) or any(loops[0] in element.dims for element in _elements(step))):
            return f"step {step.name} reads what iterations of one block compute", str(step), "compute it in another kernel"
    return "", None, None


def _is_zero(step: Step) -> bool:
    value = step.formula.value
    return step.formula.fills and isinstance(value, Number) and value.value == 0


def _adds(step: Step, total: str) -> bool:
    """Whether a step only adds to a temporary: `total += e`, or `total = total + e` with no `total` in e."""
    formula = step.formula
    if formula.accumulates:
        return formula.combiner == "sum" and all(element.tensor != total for element in formula.elements)
    match formula.value:
        case Operation("+", (Element() as old, other)) | Operation("+", (other, Element() as old)):
            own = old == formula.target and formula.reduction is None and formula.scan is None
            return own and all(element.tensor != total for element in elements_of(other))
    return False


def _elements(step: Step) -> tuple[Element, ...]:
    return (*step.formula.elements, step.formula.target)


def reduced_dim(spec: Spec) -> str:
    """Return the dimension that is distributed: the first reduction dimension with several elements."""
    definition = fused(spec)
    if definition is not None and definition.loops:
        return definition.loops[0]
    product = None if definition is None else definition.product
    dims = [dim for dim in spec.dims if dim not in spec.tile_dims] if product is None else list(product.formula.over)
    return next((dim for dim in dims if spec.size(dim) != ONE), dims[0])
