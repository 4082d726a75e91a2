"""Refuse a definition whose result depends on the number of elements per iteration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fireiron.errors import ArgumentError
from fireiron.specs.compression import random_metadata
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.fused_sizes import check_equal_sizes
from fireiron.specs.indirect import derived_extents, table_extents
from fireiron.values.expr import as_expr, constant
from fireiron.values.machine import float64


def check_iterations(title: str, definition: FusedDefinition, sizes: Mapping[str, int], seed: int) -> None:
    """Refuse a definition whose outputs differ between all elements of `loop` per iteration, 7 and 1, on random inputs.

    `sizes` are those of dimensions; the default of the others is small.
    """
    import numpy

    chosen = _chosen_sizes(title, definition, sizes)
    for positive in (False, True):
        arrays = _random_inputs(definition, chosen, seed, positive)
        arrays |= {name: numpy.abs(arrays[name]) + 0.1 for name in definition.positive}
        exact = definition.of(types=())
        whole = exact.evaluate(arrays, chosen, dict.fromkeys(definition.arrays, float64))
        for chunk in (7, 1) if definition.over else ():
            parts = exact.evaluate(arrays, chosen, dict.fromkeys(definition.arrays, float64), chunk)
            for name in definition.outputs:
                _check_output(title, definition, name, chunk, parts[name], whole[name])


def check_temporaries_are_read(title: str, definition: FusedDefinition) -> None:
    """Refuse a temporary that no step reads."""
    idle = [tensor for tensor in definition.temporaries if all(tensor not in step.reads_others for step in definition.steps)]
    if idle:
        raise ArgumentError(f"{title}: no step reads {idle[0]}", hint="remove its steps, or make it an operand")


def _chosen_sizes(title: str, definition: FusedDefinition, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return a size for each dimension: the given ones, those that indices determine, and different small ones for the others."""
    dims = (*definition.order, *definition.array_dims)
    unknown = [dim for dim in sizes if dim not in dims]
    if unknown:
        raise ArgumentError(f"{title}.check: no dimension {unknown[0]}", legal=dims)
    chosen = {dim: 9 + place for place, dim in enumerate(dims)}
    for dim, other, _ in definition.equal_sizes:
        chosen[other] = chosen[dim]
    chosen |= dict(sizes)
    chosen |= {dim: chosen[dim] // 8 * 8 + 8 for operand in definition.compressed for dim in operand.dims if dim not in sizes}
    derived = derived_extents(definition.indexed, {dim: as_expr(size) for dim, size in chosen.items()})
    chosen |= {dim: constant(size) or 1 for dim, (size, _) in derived.items() if dim not in sizes}
    check_equal_sizes(title, definition, chosen)
    return chosen


def _check_output(title: str, definition: FusedDefinition, name: str, chunk: int, parts: Any, whole: Any) -> None:
    """Refuse an output that depends on the number of elements per iteration."""
    import numpy

    with numpy.errstate(invalid="ignore"):
        wrong = ~numpy.isclose(parts, whole, rtol=1e-9, atol=1e-9, equal_nan=True)
    if not wrong.any():
        return
    place = tuple(map(int, numpy.argwhere(wrong)[0]))
    at = f"{name}[{','.join(map(str, place))}]"
    raise ArgumentError(
        f"{title}: {name} depends on the number of elements of {' '.join(definition.over)} per iteration",
        got=f"{chunk} per iteration: {at} = {parts[place]:.6g}, all at once: {at} = {whole[place]:.6g}",
        legal="equal outputs for any number",
        hint=_carried_hint(definition),
    )


def _carried_hint(definition: FusedDefinition) -> str:
    """What to do if an output depends on the iterations: the temporary that has no first value, if there is one."""
    lost = [
        tensor
        for tensor in definition.carried
        if not any(step.part == "init" and step.formula.output == tensor for step in definition.steps)
    ]
    step = next((body_step for body_step in definition.steps if body_step.formula.output in lost and body_step.part == "body"), None)
    if step is None:
        return "carry state between iterations in a temporary, and rescale it if a new iteration changes its scale"
    target = step.formula.target
    return f"{step.formula.output} is carried: set its first value in init, and accumulate to it in body: {target} = {target} + ..., or +="


def _random_inputs(definition: FusedDefinition, sizes: Mapping[str, int], seed: int, positive: bool) -> dict[str, Any]:
    """Return standard normal numbers for each input. With `positive`, return their absolute values plus 0.1, for roots and logarithms."""
    import numpy

    random = numpy.random.default_rng(seed)
    inputs = [name for name in definition.arrays if name not in definition.outputs]
    drawn = {name: random.standard_normal([sizes[dim] for dim in definition.dims_of_array(name)]) for name in inputs}
    if positive:
        drawn = {name: numpy.abs(values) + 0.1 for name, values in drawn.items()}
    drawn |= {name: random_metadata(drawn[name].shape, random) for name in definition.metadata}
    return drawn | {
        table: random.integers(0, least, drawn[table].shape) for table, least in table_extents(definition.indirect, sizes).items()
    }
