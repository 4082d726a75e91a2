"""Exchange elements through shared memory if operands in registers have different distributions over threads.

The distribution of the output, or of the first operand that has all of its dimensions, decides which thread processes which elements. The
owners of an input that is distributed differently write it to shared memory, and the threads that need it read it; `synchronize` inserts
the barrier between.
"""

from __future__ import annotations

from fireiron.ir import Comment, Hole
from fireiron.language.substrategy import temporary
from fireiron.language.tree import Child, Context, Decomposition, Expansion
from fireiron.performing.layout_propagation import Following, same_elements, steps_of
from fireiron.specs.move import Move
from fireiron.values.machine import SH
from fireiron.values.tensor import ColMajor, MatrixLayout


def distributed_differently(following: Following, context: Context) -> tuple[str, ...]:
    """Return the inputs in registers for which a thread does not own the elements that it processes."""
    spec = following.spec
    if spec.level.threads == 1 or spec.reduces or following.mismatches(context):
        return ()
    return tuple(name for name in spec.inputs if name != following.name and _differs(following, name, context))


def _differs(following: Following, name: str, context: Context) -> bool:
    spec = following.spec
    ownership = context.owners.get(spec.operands[name].tensor.name)
    if ownership is None or following.ownership == ownership:
        return False
    other = Following(spec, name, ownership, steps_of(spec, name, ownership))
    other.require_distributed_once(context)
    own = [digit for digit in following.steps or () if spec.dims[digit.dim] in spec.uses[name]]
    return other.steps is None or not same_elements(own, other.steps, context)


def exchange(following: Following, name: str, step: Decomposition, context: Context) -> Expansion:
    """Expand a spec whose input `name` is copied through shared memory; `step` ends the chains of both parts."""
    spec = following.spec
    view = spec.operands[name]
    draft = context.draft()
    layout = view.tensor.layout if isinstance(view.tensor.layout, MatrixLayout) else ColMajor
    label = SH.label if draft.prefix else f"{view.tensor.name.split('_')[0].lower()}_{SH.label}"
    shared, allocation = temporary(spec, draft, label, view.shape, view.dtype, SH, layout)
    producer = Child("given", Move.on(spec.level, view, shared), (step,))
    consumer = Child("taken", spec.with_operands(**{name: shared}), (step,))
    children = (allocation, producer, consumer)
    note = Comment(f"{view.tensor.name} to the threads that need it, through {shared.tensor.name}: {spec}")
    return draft.expansion(children, (note, *(Hole(child.name) for child in children)))
