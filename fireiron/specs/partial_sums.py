"""Specs of which a block can compute a part of the sum: one matmul, whose complete sum all later steps read."""

from __future__ import annotations

from fireiron.errors import DecompositionError
from fireiron.spec import Spec
from fireiron.specs.formula import Element
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


def _elements(step: Step) -> tuple[Element, ...]:
    return (*step.formula.elements, step.formula.target)


def reduced_dim(spec: Spec) -> str:
    """Return the dimension that is distributed: the first reduction dimension with several elements."""
    definition = fused(spec)
    product = None if definition is None else definition.product
    dims = [dim for dim in spec.dims if dim not in spec.tile_dims] if product is None else list(product.formula.over)
    return next((dim for dim in dims if spec.size(dim) != ONE), dims[0])


__all__ = ["reduced_dim", "with_complete_sums"]
