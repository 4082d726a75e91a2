"""What a Leaf calls: kinds of specs, by name or as they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.spec import Spec, Starter
from fireiron.specs.init import Init
from fireiron.specs.matmul import MatMul
from fireiron.specs.move import Move
from fireiron.tasks.opaque import OpaqueKind
from fireiron.values.expr import TRUE, constant
from fireiron.values.machine import Level
from fireiron.values.tensor import View

EXTERNALS: Final[dict[str, tuple[Starter, tuple[str, ...], dict[str, Any]]]] = {
    "matmul": (MatMul, ("C", "A", "B"), {"accumulate": TRUE}),
    "copy": (Move, ("dst", "src"), {}),
    "fill": (Init, ("dst",), {}),
}
"""Names for kinds of specs: their operands in the order of the call, and what the call says beside them."""


DONE: Final = "done"
"""The option of a call that says what performs its spec."""


def performer(function: Any, options: dict[str, Any]) -> MicroKernel | None:
    """The micro-kernel that performs the spec of a call; None where an instruction is to be found."""
    if isinstance(function, Starter) and isinstance(function.kind, OpaqueKind):
        return function.kind.kernel
    found = options.get(DONE)
    if found is not None and not isinstance(found, MicroKernel):
        raise ArgumentError("call_external: done is a micro-kernel", got=found, legal='MicroKernel.of("dot.cu")', at=call_site())
    return found


def external(function: Any, level: Level, views: tuple[View, ...], options: dict[str, Any]) -> Spec:
    """The spec that a call stands for, on views; an `ArgumentError` for an unknown name, or another number of tensors."""
    options = {name: value for name, value in options.items() if name != DONE}
    if isinstance(function, Starter):
        return function.on(level, *views, **options)
    if not isinstance(function, str) or function not in EXTERNALS:
        raise ArgumentError("call_external: unknown", got=function, legal=(*EXTERNALS, "a kind of spec"), at=call_site())
    starter, names, more = EXTERNALS[function]
    if len(views) != len(names):
        raise ArgumentError(f'call_external("{function}"): {len(views)} tensors', legal=names, at=call_site())
    return starter.on(level, **dict(zip(names, views, strict=True)), **{**more, **options})


def in_order(function: Any, named: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Tensors by the names of a call's operands, in the order of the call; an `ArgumentError` for another name."""
    if not named:
        return ()
    if isinstance(function, Starter):
        names = tuple(function.kind.definition(function.kind.filled(dict(options))).uses)
    else:
        names = EXTERNALS[function][1] if function in EXTERNALS else ()
    unknown = [name for name in named if name not in names]
    if unknown:
        raise ArgumentError(f"call_external({function!r}): no operand {unknown[0]}", legal=names or "none", at=call_site())
    return tuple(named[name] for name in names if name in named)


def order_of(function: Any, spec: Spec) -> tuple[str, ...]:
    """The operands of a call's spec in the order of its tensors."""
    return tuple(spec.operands) if isinstance(function, Starter) else EXTERNALS[function][1]


def performed(spec: Spec, values: Mapping[str, Any], joins: bool) -> dict[str, Any]:
    """New values of a spec's outputs; of a sum in parts every so many-th term is of one part: any division of the terms means the same."""
    if not spec.in_parts:
        return spec.perform(values, joins)
    ((target, (*_, part)),) = ((name, spec.uses[name]) for name in spec.outputs)
    ((source, dims),) = ((name, spec.uses[name]) for name in spec.inputs)
    axis, count = next(number for number, dim in enumerate(dims) if dim not in spec.tile_dims), constant(spec.size(part)) or 1
    number = numpy.arange(values[source].shape[axis]).reshape([-1 if place == axis else 1 for place in range(len(dims))]) % count
    found = [spec.perform({**values, source: numpy.where(number == one, values[source], 0)}, joins)[target] for one in range(count)]
    return {target: numpy.stack([one[..., place] for place, one in enumerate(found)], -1)}


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
