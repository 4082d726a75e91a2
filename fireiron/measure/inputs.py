"""Generate random inputs of a spec on the host: standard normal numbers, or small integers.

If a definition has several steps, the operands of its products are scaled down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fireiron.errors import ArgumentError
from fireiron.gpu.arguments import as_stored, evaluated, solve_symbols
from fireiron.measure.definitions import borders, numbers_of_tables, spreads
from fireiron.spec import Spec, sizes_of
from fireiron.specs.fused import fused
from fireiron.values.machine import DType
from fireiron.values.tensor import View


def all_sizes(spec: Spec, sizes: Mapping[str, int] | None) -> dict[str, int]:
    """Return the values of a spec's symbols. Strides that are not given leave no gaps.

    Raises: `ArgumentError` if a size is missing or violates its facts.
    """
    sizes = sizes or {}
    missing = [var.name for var in sizes_of(spec) if var.name not in sizes]
    if missing:
        raise ArgumentError(f"{spec}: no value for {', '.join(missing)}", hint=f'sizes={{"{missing[0]}": 1024}}')
    return solve_symbols(spec, {}, sizes)


def shape_of(view: View, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of an operand's array, in elements."""
    return tuple(evaluated(size, sizes) for size in (view.shape if view.tensor.through is None else view.tensor.array.shape))


def select_at(array: Any, dims: Sequence[str], places: Mapping[str, Any]) -> Any:
    """Return the part of an operand at the given positions of its dimensions. Array and positions are both of NumPy or both of CuPy."""
    for axis, dim in enumerate(dims):
        if dim in places:
            array = array.take(places[dim], axis)
    return array


def random_inputs(spec: Spec, sizes: Mapping[str, int], generator: Any) -> dict[str, Any]:
    """Return random inputs on the host by name, in logical shape. Operands of products are scaled so that sums stay small.

    Numbers that are passed by value are positive, because they may be scales or operands of a root.
    """
    shapes = {name: shape_of(view, sizes) for name, view in spec.operands.items()}
    values = values_of(spec, sizes, shapes, generator)
    return {name: as_stored(spec.operands[name].tensor, array, sizes) for name, array in values.items()}


def random_inputs_at(spec: Spec, sizes: Mapping[str, int], places: Mapping[str, Any], generator: Any) -> dict[str, Any]:
    """Return random inputs at some positions of some dimensions only. The generator generates only these elements."""
    shapes = {
        name: tuple(len(places[dim]) if dim in places else size for dim, size in zip(spec.uses[name], shape_of(view, sizes), strict=True))
        for name, view in spec.operands.items()
    }
    values = values_of(spec, sizes, shapes, generator)
    return {name: array if array.shape == shapes[name] else select_at(array, spec.uses[name], places) for name, array in values.items()}


def values_of(spec: Spec, sizes: Mapping[str, int], shapes: Mapping[str, Sequence[int]], generator: Any) -> dict[str, Any]:
    """Return random values of each input, in these shapes. Integers that conditions compare with coordinates cover the whole dimensions."""
    definition = fused(spec)
    scales = {} if definition is None else spreads(spec, definition, sizes)
    values = {} if definition is None else borders(spec, definition, sizes, generator)
    values |= {} if definition is None else numbers_of_tables(spec, definition, sizes, generator)
    for name in spec.inputs:
        if name not in values:
            values[name] = spec.kind.random_input(name, shapes[name], generator)
        if values[name] is None:
            values[name] = _values(generator, spec.operands[name].dtype, shapes[name], scales.get(name, 1.0))
    return {name: abs(values[name]) if spec.operands[name].memory.by_value else values[name] for name in spec.inputs}


def _values(generator: Any, dtype: DType, shape: Sequence[int], scale: float = 1.0) -> Any:
    import numpy

    if dtype.kind == "int":
        return numpy.asarray(generator.integers(max(-3, dtype.limits[0]), 4, shape)).astype(dtype.to_numpy())
    normal = numpy.asarray(generator.standard_normal(shape, dtype=numpy.float32))
    return numpy.asarray((normal if scale == 1 else normal * numpy.float32(scale)).astype(dtype.to_numpy()))


def initial_output(spec: Spec, name: str, sizes: Mapping[str, int], generator: Any) -> Any:
    """Return random contents of an output into which a kernel accumulates."""
    view = spec.operands[name]
    return as_stored(view.tensor, _values(generator, view.dtype, shape_of(view, sizes)), sizes)
