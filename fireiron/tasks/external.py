"""What a Leaf calls: kinds of specs, by name or as they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.spec import Spec, Starter
from fireiron.specs.init import Init
from fireiron.specs.matmul import MatMul
from fireiron.specs.move import Move
from fireiron.values.expr import TRUE
from fireiron.values.machine import Level
from fireiron.values.tensor import View

EXTERNALS: Final[dict[str, tuple[Starter, tuple[str, ...], dict[str, Any]]]] = {
    "matmul": (MatMul, ("C", "A", "B"), {"accumulate": TRUE}),
    "copy": (Move, ("dst", "src"), {}),
    "fill": (Init, ("dst",), {}),
}
"""Names for kinds of specs: their operands in the order of the call, and what the call says beside them."""


def external(function: Any, level: Level, views: tuple[View, ...], options: dict[str, Any]) -> Spec:
    """The spec that a call stands for, on views; an `ArgumentError` for an unknown name, or another number of tensors."""
    if isinstance(function, Starter):
        return function.on(level, *views, **options)
    if function not in EXTERNALS:
        raise ArgumentError("call_external: unknown", got=function, legal=(*EXTERNALS, "a kind of spec"), at=call_site())
    starter, names, more = EXTERNALS[function]
    if len(views) != len(names):
        raise ArgumentError(f'call_external("{function}"): {len(views)} tensors', legal=names, at=call_site())
    return starter.on(level, **dict(zip(names, views, strict=True)), **{**more, **options})


def order_of(function: Any, spec: Spec) -> tuple[str, ...]:
    """The operands of a call's spec in the order of its tensors."""
    return tuple(spec.operands) if isinstance(function, Starter) else EXTERNALS[function][1]


def require_privileges(
    name: str, reads: Collection[str], writes: Collection[str], spec: Spec, parameters: Mapping[str, str | None]
) -> None:
    """Refuse work on data that does more than the variant `name` says; `parameters` are its tensors by operand."""
    joins = set(spec.outputs) if spec.accumulate == TRUE else set()
    for operand, parameter in parameters.items():
        for verb, mine, does in (("reads", reads, {*spec.inputs, *joins}), ("writes", writes, {*spec.outputs})):
            if parameter is not None and operand in does and parameter not in mine:
                raise DecompositionError(
                    f"{name}: {spec.title} {verb} {parameter}, and the variant may not",
                    legal=f'{verb}=[..., "{parameter}"]',
                    at=call_site(),
                )
