"""What a product's epilogue reads and the reduction has nothing to do with, copied to shared memory in front of the product."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from fireiron.decomp.done import Done
from fireiron.decomp.load import Load, LoadPlan
from fireiron.ir import Hole, filled
from fireiron.language.tree import Context, Expansion
from fireiron.spec import Spec
from fireiron.specs.fused import INDICES, FusedDefinition, fused
from fireiron.values.expr import constant
from fireiron.values.machine import SH, Block

STAGE = 128
"""Bytes of which a copy is made a multiple: engines write to multiples of it."""


def first_vector(spec: Spec) -> str | None:
    """The first operand that lies in global memory, is read behind the product, and has one of the result's dimensions; None without."""
    made = fused(spec)
    if made is None or made.product is None or spec.level != Block:
        return None
    return next((name for name in _vectors(spec, made)), None)


def _vectors(spec: Spec, made: FusedDefinition) -> Iterator[str]:
    assert made.product is not None
    kept = made.product.formula.target.dims
    single = (*made.batch, *made.scan)
    for name, dims in made.uses.items():
        if name.startswith(INDICES) or name in made.outputs or any(one.tensor == name for one in made.product.formula.elements):
            continue
        view = spec.operands[name]
        wide = [number for number, dim in enumerate(dims) if dim not in single]
        if not view.memory.of_grid or len(wide) != 1 or dims[wide[0]] not in kept:
            continue
        if constant(view.shape[wide[0]]) is not None:
            yield name


def fetched(operand: str, spec: Spec, context: Context) -> Expansion:
    """The copy of an operand to shared memory, and the spec that reads it there: the child `body`."""
    view = spec.operands[operand]
    load = Load(operand, SH, (Done(origin=context.origin),), origin=context.origin)
    elements = next(size for dim in view.shape if (size := constant(dim)) is not None and size != 1)
    pad = -elements % (STAGE // view.dtype.bytes)
    made = load.copied(spec, LoadPlan(pad=pad), context)
    name = f"{operand}_ahead"
    children = tuple(attrs.evolve(one, name=name) if one.name == "move" else one for one in made.children)
    program = filled(made.program, {"move": (Hole(name),), "body": (Hole("body"),)})
    return attrs.evolve(made, children=children, program=program)
