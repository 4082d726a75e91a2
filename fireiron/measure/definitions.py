"""Choose random data for definitions of several steps: the scale of MMA operands, and the boundaries of groups."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from fireiron.gpu.arguments import evaluated
from fireiron.spec import Spec
from fireiron.specs.formula import Operation, Value
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.indirect import table_extents
from fireiron.specs.steps import INDICES
from fireiron.stepping.masks import AtLeast, linear_conjuncts
from fireiron.values.machine import int32


def spreads(spec: Spec, definition: FusedDefinition, sizes: Mapping[str, int]) -> dict[str, float]:
    """Return the standard deviation of each input: 1, but smaller for operands of products.

    Sums of K products are then as large as their terms. Thus a chain of products, such as the layers of a network, stays within the range
    of float16.
    """
    deviations = dict.fromkeys(spec.inputs, 1.0)
    for step in definition.steps:
        if not step.formula.contracts:
            continue
        operands = [element.tensor for element in step.formula.elements]
        known = [name for name in operands if name in deviations]
        terms = math.prod(evaluated(spec.size(dim), sizes) for dim in step.formula.over)
        for name in known:
            deviations[name] = min(deviations[name], terms ** (-0.5 / len(known)))
    return deviations


def borders(spec: Spec, definition: FusedDefinition, sizes: Mapping[str, int], generator: Any) -> dict[str, Any]:
    """Return random positions along a dimension for the integers that conditions compare with coordinates, by operand.

    `begin[g] <= m and m < end[g]` defines groups. They fill the dimension, one after the other, and one group is empty. If an operand
    occurs on one side only, its positions are any numbers from 0 to the size.
    """
    numbers = {name for name in spec.inputs if spec.operands[name].dtype == int32 and spec.operands[name].memory.of_grid}
    values: dict[str, Any] = {}
    for condition in (condition for step in definition.steps for condition in _conditions(step.formula.value)):
        sides = [
            side for bound in linear_conjuncts(condition, numbers) if bound is not None and (side := _side(bound, numbers)) is not None
        ]
        for name, dim, first in sides:
            shape = [evaluated(size, sizes) for size in spec.operands[name].shape]
            other = next(
                (operand for operand, along, lower in sides if along == dim and lower != first and spec.uses[operand] == spec.uses[name]),
                None,
            )
            if name not in values and first and other is not None:
                values[name], values[other] = _groups(shape, evaluated(spec.size(dim), sizes), generator)
            elif name not in values and other is None:
                values[name] = generator.integers(0, evaluated(spec.size(dim), sizes) + 1, shape)
    return {name: values.astype(int32.to_numpy()) for name, values in values.items()}


def numbers_of_tables(spec: Spec, definition: FusedDefinition, sizes: Mapping[str, int], generator: Any) -> dict[str, Any]:
    """Random indices for each array of integers whose elements are indices of operands, in its shape."""
    extents = {dim: evaluated(spec.size(dim), sizes) for dim in spec.dims}
    for operand in definition.indirect:
        of_array = spec.operands[operand.operand].tensor.array.shape
        extents |= {dim: evaluated(size, sizes) for dim, size in zip(operand.of, of_array, strict=True)}
    values = {}
    for name, count in table_extents(definition.indirect, extents).items():
        shape = tuple(evaluated(size, sizes) for size in spec.operands[name].tensor.array.shape)
        values[name] = generator.integers(0, count, shape).astype(int32.to_numpy())
        if name in definition.distinct:
            values[name] = _distinct_indices(shape, count, generator)
    return values


def _distinct_indices(shape: Sequence[int], count: int, generator: Any) -> Any:
    """Random indices from 0 to `count - 1`, each at most once; the other numbers, at least one of eight, are -1."""
    import numpy

    total = math.prod(shape)
    values = numpy.full(total, -1, int32.to_numpy())
    some = min(count, total)
    places = generator.permutation(total)[: some if some < total else total - total // 8]
    values[places] = generator.permutation(count)[: len(places)]
    return values.reshape(shape)


def _groups(shape: Sequence[int], size: int, generator: Any) -> tuple[Any, Any]:
    """Return the begins and ends of groups that fill a dimension. If there are several groups, one in the middle is empty."""
    import numpy

    count = math.prod(shape)
    inner = numpy.sort(generator.integers(0, size + 1, max(count - 1, 0)))
    if count > 1:
        inner[len(inner) // 2] = inner[len(inner) // 2 - 1] if len(inner) > 1 else 0
    places = numpy.concatenate([[0], inner, [size]])
    return places[:-1].reshape(shape), places[1:].reshape(shape)


def _side(bound: AtLeast, numbers: Collection[str]) -> tuple[str, str, bool] | None:
    """Return the operand and the dimension that a condition compares, and whether the operand is the lower end.

    Return None if the condition does not compare one operand with one coordinate.
    """
    operands = [(name, factor) for name, factor in bound.terms if name in numbers]
    coordinates = [name for name, _ in bound.terms if name.startswith(INDICES)]
    if len(bound.terms) != 2 or len(operands) != 1 or len(coordinates) != 1:
        return None
    return operands[0][0], coordinates[0][len(INDICES) :], operands[0][1] < 0


def _conditions(value: Value | None) -> Iterator[Value]:
    """Yield the conditions of all `where` operations in a value."""
    if isinstance(value, Operation):
        if value.name == "where":
            yield value.arguments[0]
        for argument in value.arguments:
            yield from _conditions(argument)
