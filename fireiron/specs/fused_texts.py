"""Texts of a definition: its arguments, a listing of its steps, and the call that creates a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from fireiron.errors import ArgumentError
from fireiron.spec import Spec
from fireiron.specs.formula import Formula, Value
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.fused_sizes import usual_type
from fireiron.specs.named_masks import with_names
from fireiron.specs.nested import Nest, nested_mapping
from fireiron.specs.steps import FIELD_NAMES, INDICES, PARTS, ROLES, shown
from fireiron.values.expr import constant
from fireiron.values.machine import Kernel, float16
from fireiron.values.orders import Distributed
from fireiron.values.strides import MOST_ALIGNED, Strides, strides_of
from fireiron.values.tensor import MatrixLayout, RowMajor

if TYPE_CHECKING:
    from fireiron.specs.fused import Fused, FusedKind

PAIRED: Final = ("operands", *PARTS, "types", "mask", "ranges", "outside")
"""The arguments of `Fused` that are mappings."""

NAMES: Final = (*ROLES, "positive", "distinct")
"""The arguments of `Fused` that are names, separated by blanks."""

_ALIGNMENTS: Final = tuple(1 << power for power in range(MOST_ALIGNED.bit_length()))
"""The alignments that an operand may be declared with, in bytes."""


def arguments_of(kind: FusedKind) -> dict[str, Any]:
    """Return the arguments of `Fused` that create a definition, without empty ones."""
    definition = kind.fused_definition
    words: dict[str, Any] = {"name": kind.title, "dims": " ".join((*definition.order, *definition.array_dims))}
    words["operands"] = {tensor: " ".join(definition.dims_of_array(tensor)) for tensor in definition.uses if not tensor.startswith(INDICES)}
    words |= {
        part: nested_mapping(
            (step.name, _with_masks(step.formula, definition), step.nest) for step in definition.steps if step.part == part
        )
        for part in PARTS
    }
    words |= {word: " ".join(getattr(definition, FIELD_NAMES.get(word, word))) for word in NAMES}
    words["types"] = dict(definition.types)
    words["mask"] = mask_texts(definition)
    words["ranges"] = dict(definition.ranges)
    words["outside"] = {one.operand: str(one.outside) for one in definition.indirect if one.outside is not None}
    return {word: value for word, value in words.items() if value or word in ("operands", "body")}


def mask_texts(definition: FusedDefinition) -> dict[str, str]:
    """Return the condition of each mask, with the names of the masks before it."""
    texts: dict[str, str] = {}
    for number, (name, value) in enumerate(definition.masks):
        texts[name] = shown(cast(Value, with_names(value, definition.masks[:number])))
    return texts


def _with_masks(formula: Formula, definition: FusedDefinition) -> str:
    """Return the text of a step's formula, with the names of masks."""
    return shown(attrs.evolve(formula, value=with_names(formula.value, definition.masks)))


def text_of(definition: FusedDefinition, title: str) -> str:
    """Format a definition: its dimensions with their roles, its operands, and one step per line."""
    roles = [f"{role} {' '.join(names)}" for role in ROLES if (names := getattr(definition, FIELD_NAMES.get(role, role)))]
    roles += [f"arrays {' '.join(definition.array_dims)}"] if definition.array_dims else []
    signs = dict.fromkeys(definition.positive, " > 0")
    arrays = {tensor: definition.dims_of_array(tensor) for tensor in definition.uses if not tensor.startswith(INDICES)}
    signs |= {table: f" in {text}" for table, text in definition.ranges}
    signs |= {table: f"{signs.get(table, '')} distinct" for table in definition.distinct}
    signs |= {one.operand: f" outside {one.outside}" for one in definition.indirect if one.outside is not None}
    tensors = [
        f"{tensor}[{','.join(dims)}]{signs.get(tensor, '')}" if dims else f"{tensor}{signs.get(tensor, '')}"
        for tensor, dims in arrays.items()
    ]
    width = max(len(step.name) for step in definition.steps)
    lines = [f"{title}({', '.join(definition.order)})  {'  '.join(roles)}".rstrip(), f"  of {', '.join(tensors)}"]
    lines += [f"  mask {name}: {text}" for name, text in mask_texts(definition).items()]
    for part in PARTS:
        steps = [step for step in definition.steps if step.part == part]
        lines += [f"  {part}"] if steps and (definition.loops or part != "body") else []
        nest: Nest = ()
        for step in steps:
            lines += [
                f"    {'  ' * depth}for {loop}" for depth, loop in enumerate(step.nest) if step.nest[: depth + 1] != nest[: depth + 1]
            ]
            indent, nest = "  " * len(step.nest), step.nest
            lines.append(f"    {indent}{step.name:<{width}}  {_with_masks(step.formula, definition)}")
    return "\n".join(lines)


def content_of(definition: FusedDefinition) -> str:
    """The whole definition as text, for equality and hashes."""
    given = ", ".join(f"{name}[{','.join(dims)}]" for name, dims in definition.given)
    steps = "\n".join(" ".join((step.part, *(f"for {loop}:" for loop in step.nest), str(step))) for step in definition.steps)
    arrays = "".join(f" {one.operand} of {one.of}" for one in definition.indexed) + "".join(f" {text}" for _, text in definition.ranges)
    arrays += f" distinct {definition.distinct}" if definition.distinct else ""
    arrays += "".join(f" {one.operand} outside {one.outside}" for one in definition.indirect if one.outside is not None)
    return f"{given}{arrays} over {definition.over} scan {definition.scan} batch {definition.batch}\n{steps}".replace("{", "(").replace(
        "}", ")"
    )


def call_text(spec: Spec, start: Fused) -> str | None:
    """Return the call of a definition that creates a spec; None if no call does."""
    definition = start.fused_definition
    sizes = {dim: spec.size(dim) for dim in definition.order} | definition.extents_of_arrays(spec)
    views = {name: view for name, view in spec.operands.items() if not view.memory.is_coordinate}
    stated = dict(definition.types)
    usual = {view.dtype for name, view in views.items() if view.tensor.shape and name not in (*definition.tables, *definition.metadata)}
    dtype = usual.pop() if len(usual) == 1 else float16
    usual_types = {name: usual_type(definition, name, dtype) for name in views}
    types = {name: view.dtype for name, view in views.items() if name in stated or view.dtype != usual_types[name]}
    types = {name: kind for name, kind in types.items() if kind != stated.get(name)}
    orders: dict[str, Any] = {}
    for name, view in views.items():
        layout = view.tensor.array.layout
        order = layout if isinstance(layout, (MatrixLayout, Distributed)) else strides_of(name, definition.dims_of_array(name), layout)
        if order is None or (isinstance(order, Strides) and view.tensor.align not in _ALIGNMENTS):
            return None
        if order != RowMajor:
            orders[name] = order.aligned(view.tensor.align) if isinstance(order, Strides) else order
    try:
        same = start(dtype=dtype, types=types, level=spec.level, **sizes, **orders) == spec
    except ArgumentError:
        return None
    words = [f"{dim}={size if constant(size) is not None else repr(size)}" for dim, size in sizes.items()]
    words += [f"dtype={dtype!r}"] if dtype != float16 else []
    words += [f"types={types!r}"] if types else []
    words += [f"level={spec.level!r}"] if spec.level != Kernel else []
    words += [f"{name}={order!r}" for name, order in orders.items()]
    return f"{start!r}({', '.join(words)})" if same else None
