"""The specs that a Leaf variant calls: by kind, or by a name such as `"matmul"`."""

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
"""Names for kinds of specs: their operands in the order of the call, and the options that the call implies."""


DONE: Final = "done"
"""The option of a call that names a micro-kernel."""


def performer(function: Any, options: dict[str, Any]) -> MicroKernel | None:
    """The micro-kernel that performs the spec of a call; None if the compiler selects an instruction."""
    if isinstance(function, Starter) and isinstance(function.kind, OpaqueKind):
        return function.kind.kernel
    kernel = options.get(DONE)
    if kernel is not None and not isinstance(kernel, MicroKernel):
        raise ArgumentError("call_external: done must be a MicroKernel", got=kernel, legal='MicroKernel.of("dot.cu")', at=call_site())
    return kernel


def external(function: Any, level: Level, views: tuple[View, ...], options: dict[str, Any]) -> Spec:
    """The spec of a call, on views. Raises: ArgumentError for an unknown name, or a wrong number of tensors."""
    options = {name: value for name, value in options.items() if name != DONE}
    if isinstance(function, Starter):
        return function.on(level, *views, **options)
    if not isinstance(function, str) or function not in EXTERNALS:
        raise ArgumentError("call_external: the function is unknown", got=function, legal=(*EXTERNALS, "a kind of spec"), at=call_site())
    starter, names, more = EXTERNALS[function]
    if len(views) != len(names):
        raise ArgumentError(f'call_external("{function}"): {len(views)} tensors are given', legal=names, at=call_site())
    return starter.on(level, **dict(zip(names, views, strict=True)), **{**more, **options})


def in_order(function: Any, named: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Tensors by the names of a call's operands, in the order of the call. Raises: ArgumentError for an unknown name."""
    if not named:
        return ()
    if isinstance(function, Starter):
        names = tuple(function.kind.definition(function.kind.filled(dict(options))).uses)
    else:
        names = EXTERNALS[function][1] if function in EXTERNALS else ()
    unknown = [name for name in named if name not in names]
    if unknown:
        raise ArgumentError(f"call_external({function!r}) has no operand {unknown[0]}", legal=names or "none", at=call_site())
    return tuple(named[name] for name in names if name in named)


def order_of(function: Any, spec: Spec) -> tuple[str, ...]:
    """The operands of a call's spec in the order of its tensors."""
    return tuple(spec.operands) if isinstance(function, Starter) else EXTERNALS[function][1]


def performed(spec: Spec, values: Mapping[str, Any], joins: bool) -> dict[str, Any]:
    """Return the new values of a spec's outputs.

    The terms of a reduction are assigned to its partial results round-robin. Any assignment is correct, because all of these are combined
    later.
    """
    if not spec.in_parts:
        return spec.perform(values, joins)
    ((target, (*_, part)),) = ((name, spec.uses[name]) for name in spec.outputs)
    ((source, dims),) = ((name, spec.uses[name]) for name in spec.inputs)
    axis, count = next(number for number, dim in enumerate(dims) if dim not in spec.tile_dims), constant(spec.size(part)) or 1
    number = numpy.arange(values[source].shape[axis]).reshape([-1 if place == axis else 1 for place in range(len(dims))]) % count
    parts = [spec.perform({**values, source: numpy.where(number == part, values[source], 0)}, joins)[target] for part in range(count)]
    return {target: numpy.stack([result[..., place] for place, result in enumerate(parts)], -1)}


def require_privileges(
    name: str, reads: Collection[str], writes: Collection[str], spec: Spec, parameters: Mapping[str, str | None]
) -> None:
    """Refuse accesses that the privileges of the variant `name` do not permit; `parameters` are its tensors by operand."""
    joins = set(spec.outputs) if spec.accumulate == TRUE else set()
    for operand, parameter in parameters.items():
        for verb, privileges, does in (("reads", reads, {*spec.inputs, *joins}), ("writes", writes, {*spec.outputs})):
            if parameter is not None and operand in does and parameter not in privileges:
                raise DecompositionError(
                    f"{name}: {spec.title} {verb} {parameter}, which the variant's privileges do not permit",
                    legal=f'{verb}=[..., "{parameter}"]',
                    at=call_site(),
                )
