"""Loops that each block starts at a different iteration and that wrap around, for `stagger_blocks` on a split.

If a result does not depend on the order of iterations, a loop may start anywhere. Iteration i of block b executes step
(i + start) % iterations, with start = b * shift % iterations: a rotation, which executes each step once. Values that depend on the order,
such as the fill index of a ring and whether an iteration is the first, are computed from i.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

from fireiron.errors import DecompositionError
from fireiron.ir import For, Stmt
from fireiron.language.dividing import Step, moved
from fireiron.language.tree import Context, Draft
from fireiron.spec import Spec
from fireiron.specs.fused import fused
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.values.expr import Expr, Var, as_expr, constant, mod
from fireiron.values.tensor import View


def require_order_free(spec: Spec, digits: Sequence[Step], what: str, context: Context) -> None:
    """Refuse a loop whose iterations have an order, or in which no block reads memory; a `DecompositionError`."""
    definition = fused(spec)
    dims = {digit.dim for digit in digits}
    carried = None if definition is None else carried_in_order(definition, dims)
    if carried is not None or (definition is None and not (spec.contracts or spec.reduces)):
        raise DecompositionError(
            f"{what}: an iteration of {spec.title} may read values that the previous one wrote, so their order is fixed",
            got=carried, within=spec,
            legal="a split of a MatMul or a Reduction, or of a definition whose iterations only add to carried values",
        )  # fmt: skip
    if context.whole.grid is None:
        raise DecompositionError(
            f"{what}: blocks begin at different iterations, but no tiles are assigned to Block yet",
            within=spec,
            hint="add tile(...).to(Block) before the split",
        )
    if len(digits) > 1:
        raise DecompositionError(f"{what}: stagger_blocks requires iterations along one dimension", within=spec, legal="split(64)")
    along = [view for name, view in spec.operands.items() if dims & {*spec.uses[name]} and not view.memory.is_coordinate]
    if digits and not all(view.memory.of_grid for view in along):
        raise DecompositionError(
            f"{what}: the operands are in {', '.join(dict.fromkeys(map(str, spec.memories)))}, which is private to a block",
            within=spec,
            legal="a split before the loads",
        )


def carried_in_order(definition: FusedDefinition, dims: Set[str]) -> str | None:
    """Return a step by which the result of a loop over `dims` depends on the order of its iterations; None if there is none.

    Values that iterations share may only be accumulated, and read by no step. All other values are written before they are read.
    """
    if definition.has_inner_loop:
        return f"the loop over {' '.join(definition.looped or definition.nested)} inside of it"
    outputs = {step.formula.output for step in definition.steps}
    written: set[str] = set()
    for step in definition.steps:
        target = step.formula.target
        is_kept = not step.formula.accumulates and target.tensor in definition.uses and not dims & {*target.dims}
        if is_kept or any(name in outputs and name not in written for name in step.reads_others):
            return str(step)
        if not step.formula.accumulates:
            written.add(target.tensor)
    return None


def staggered_loop(
    spec: Spec, views: dict[str, View], digit: Step, shift: int, unroll: bool, draft: Draft, inner: tuple[Stmt, ...]
) -> tuple[dict[str, View], tuple[Stmt, ...], list[Var]]:
    """Return the loop over a digit that block b starts at `b * shift` modulo the trip count; blocks of a cluster start at the same step."""
    label = spec.labels[spec.dims.index(digit.dim)]
    var = Var(draft.fresh(label), 0, max(digit.size.high - 1, 0))
    start = draft.let(f"{label}_start", mod(_block_index(draft) * shift, digit.size))
    views = moved(views, spec, digit, mod(start + var, digit.size), unit=False)
    return views, (For(var, digit.size, inner, unroll, draft.origin),), [var]


def _block_index(draft: Draft) -> Expr:
    """Return the index of a block, or of its cluster, in the grid."""
    assert draft.whole.grid is not None
    blocks = constant(draft.whole.grid)
    block = draft.block if blocks is None else Var(draft.block.name, 0, blocks - 1)
    cluster = draft.whole.cluster
    return block if cluster is None else block // as_expr(cluster.blocks)
