"""A definition of several steps, and its reference in NumPy, which executes the steps in order."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from fireiron.frozen import frozen
from fireiron.specs.arithmetic import convert
from fireiron.specs.bits import Range
from fireiron.specs.compressed import dense_operands, evaluated_product
from fireiron.specs.formula import Element, Formula
from fireiron.specs.fused_structure import FusedStructure
from fireiron.specs.indirect import gathered, scattered_to
from fireiron.specs.meaning import combining_function, evaluated, multiplied, neutral
from fireiron.specs.steps import EXTENTS, FACTOR, INDICES, PARTS, Step
from fireiron.values.machine import DType, float64, tf32


@frozen
class FusedDefinition(FusedStructure):
    """The steps of a definition, or of a part of it, and what they compute. `FusedStructure` documents the fields."""

    def evaluate(self, arrays: Mapping[str, Any], sizes: Mapping[str, int], types: Mapping[str, DType], chunk: int = 0) -> dict[str, Any]:
        """Compute the outputs in float64 from the inputs. Loops take `chunk` elements per iteration; 0 means all.

        Integers are exact: temporaries of integers have the same values as in a kernel.
        """
        import numpy

        known = self.all_types(types)
        given = arrays
        arrays = {**arrays, **dense_operands(self.compressed, arrays)}
        arrays = {**arrays, **{one.operand: gathered(one, arrays, sizes) for one in self.indirect if one.operand in arrays}}
        values: dict[str, Any] = {name: numpy.asarray(array).astype(exact_in(known[name])) for name, array in arrays.items()}
        values |= factors(arrays, types)
        values |= {f"{INDICES}{dim}": numpy.arange(size) for dim, size in sizes.items()}
        values |= {f"{EXTENTS}{dim}": numpy.asarray(size) for dim, size in sizes.items()}
        for name in self.outputs:
            shape = [sizes[dim] for dim in self.uses[name]]
            values[name] = numpy.full(shape, self.before_steps(name, known[name]), exact_in(known[name]))
        with numpy.errstate(all="ignore"):
            self.run_iterations(values, sizes, chunk, known)
        results = {name: convert(values[name], types[name]) for name in self.outputs}
        for operand in self.scattered:
            shape = [sizes[dim] for dim in operand.of]
            name, added = operand.operand, operand.operand in self.added
            combiner = self.combiner_of(name) if added else ""
            scattered = scattered_to(operand, values[name] if added else results[name], given, shape, sizes, combiner, types[name])
            results[name] = convert(scattered, types[name]) if added else scattered
        return results

    def before_steps(self, output: str, dtype: DType) -> float:
        """The value of an output of a type before the steps: the neutral one if steps combine values in it, otherwise unspecified."""
        if output in self.added:
            return neutral(self.combiner_of(output), dtype)
        return float("nan") if dtype.kind == "float" else 0

    def combiner_of(self, output: str) -> str:
        """How steps combine values in an output: `sum`, `max` or `min`."""
        return next(step.formula.combiner for step in self.steps if step.formula.output == output)

    def all_types(self, operands: Mapping[str, DType]) -> dict[str, DType]:
        """Return the types of operands, float64 by default, and of temporaries."""
        every = {**dict.fromkeys(self.arrays, float64), **operands}
        key = tuple(every.items())
        temporaries = self._known_types.get(key)
        if temporaries is None:
            temporaries = self._known_types[key] = {name: self.dtype_of(name, every) for name in self.temporaries}
        return {**every, **temporaries}

    @functools.cached_property
    def _known_types(self) -> dict[tuple[tuple[str, DType], ...], dict[str, DType]]:
        """The types of temporaries by those of operands: each spec of a kernel asks for them."""
        return {}

    def run_iterations(self, values: dict[str, Any], sizes: Mapping[str, int], chunk: int, types: Mapping[str, DType]) -> None:
        """Execute all steps in all iterations of the loops, on values by name; `types` are those of the tensors."""
        for batch in self._slices(self.batch, sizes, 1):
            self._run_loop(self.steps, self.looped, values, batch, sizes, chunk, types)

    def _slices(self, dims: tuple[str, ...], sizes: Mapping[str, int], chunk: int) -> Iterator[dict[str, slice]]:
        """Yield the slices of each iteration, by dimension."""
        places: list[dict[str, slice]] = [{}]
        for dim in dims:
            step = 1 if dim in self.scan else chunk or sizes[dim]
            parts = [slice(start, min(start + step, sizes[dim])) for start in range(0, sizes[dim], step)]
            places = [{**previous, dim: part} for previous in places for part in parts]
        yield from places

    def _run_loop(
        self, steps: Sequence[Step], dims: tuple[str, ...], values: dict[str, Any], place: Mapping[str, slice], sizes: Mapping[str, int],
        chunk: int, types: Mapping[str, DType],
    ) -> None:  # fmt: skip
        """Execute the steps of `init`, all iterations of those of `body`, and the steps of `final`."""
        parts = {part: [step for step in steps if step.part == part] for part in PARTS}
        self._run(parts["init"], values, place, sizes, chunk, types)
        for iteration in self._slices(dims, sizes, chunk):
            self._run(parts["body"], values, {**place, **iteration}, sizes, chunk, types)
        self._run(parts["final"], values, place, sizes, chunk, types)

    def _run(
        self, steps: Sequence[Step], values: dict[str, Any], place: Mapping[str, slice], sizes: Mapping[str, int], chunk: int,
        types: Mapping[str, DType],
    ) -> None:  # fmt: skip
        """Execute steps in order, with the iterations of nested loops."""
        for loop, group in itertools.groupby(steps, lambda step: step.nest[:1]):
            if loop:
                inner = [attrs.evolve(step, part="body", nest=step.nest[1:]) for step in group]
                self._run_loop(inner, tuple(loop[0].split()), values, place, sizes, chunk, types)
                continue
            for step in group:
                self.perform(step, values, place, types)

    def perform(self, step: Step, values: dict[str, Any], place: Mapping[str, slice], types: Mapping[str, DType]) -> None:
        """Execute one step on the slices of one iteration."""
        import numpy

        formula = step.formula
        operands = {element: self.read(formula, values, element, place) for element in formula.elements}
        dropped = tuple(dim for dim in (*self.scan, *self.batch) if dim not in formula.target.dims)
        kept = self.storage_type(step, self.present_types(step, values, types), types[formula.output])
        ranges = _ranges_now(step, values, types)
        result = (
            evaluated_product(formula, operands, dropped, ranges)
            if formula.sparse is not None
            else evaluated(formula, operands, dropped, ranges, kept)
            if not step.parts
            else _in_partial_results(step, operands, dropped, len(values[f"{INDICES}{step.parts}"]), ranges)
        )
        shape = [_extent(dim, operands, values, place) for dim in formula.target.dims]
        result = numpy.broadcast_to(result, shape)
        if formula.accumulates and formula.output in values:
            old = _at(values, formula.target, self.uses, place)
            result = combining_function(formula.combiner)(old, result)
        whole = numpy.issubdtype(result.dtype, numpy.integer)
        if kept.kind == "int" or (whole and self.writes_operand(step)):  # one conversion, from int64 to the type of the output
            result = convert(result, kept)
        result = result.astype(exact_in(kept))
        if self.writes_operand(step):
            values[formula.output][tuple(place.get(dim, slice(None)) for dim in formula.target.dims)] = result
        else:
            values[formula.output] = result

    def present_types(self, step: Step, values: Mapping[str, Any], types: Mapping[str, DType]) -> dict[str, DType]:
        """Return the types of the tensors that a step accesses; float64 for integers that floats have overwritten."""
        names = [name for name in (*step.reads, step.formula.output) if not name.startswith((INDICES, EXTENTS))]
        return {name: float64 if types[name].kind == "int" and _is_float_array(values.get(name)) else types[name] for name in names}

    def writes_operand(self, step: Step) -> bool:
        """Whether a step writes a slice of an operand. The array of a temporary is always the slice of one iteration."""
        return step.formula.output in self.uses and not step.formula.output.startswith(INDICES)

    def slice_of(self, values: Mapping[str, Any], element: Element, place: Mapping[str, slice]) -> Any:
        """The slice of an operand in an iteration."""
        return _at(values, element, self.uses, place)

    def read(self, formula: Formula, values: Mapping[str, Any], element: Element, place: Mapping[str, slice]) -> Any:
        """Return the slice of an operand that a formula reads in an iteration; a sum of products reads it as matrix instructions do."""
        factor = f"{FACTOR}{element.tensor}"
        return self.slice_of(
            {**values, element.tensor: values[factor]} if formula.is_product_sum and factor in values else values, element, place
        )


def factors(arrays: Mapping[str, Any], types: Mapping[str, DType]) -> dict[str, Any]:
    """Return truncated copies of the tf32 inputs, under separate names, because matrix instructions truncate these inputs."""
    import numpy

    return {f"{FACTOR}{name}": multiplied(array, tf32).astype(numpy.float64) for name, array in arrays.items() if types.get(name) == tf32}


def _at(values: Mapping[str, Any], element: Element, uses: Mapping[str, tuple[str, ...]], place: Mapping[str, slice]) -> Any:
    """Return the slice of an operand in an iteration. The array of a temporary already is that slice."""
    array = values[element.tensor]
    if element.tensor not in uses and not element.tensor.startswith((INDICES, EXTENTS)):
        return array
    return array[tuple(place.get(dim, slice(None)) for dim in element.dims)]


def exact_in(dtype: DType) -> Any:
    """Return the NumPy type in which values of a type are evaluated: int64 for integers, float64 for floats."""
    import numpy

    return numpy.int64 if dtype.kind == "int" else numpy.float64


def _is_float_array(array: Any) -> bool:
    import numpy

    return array is not None and not numpy.issubdtype(array.dtype, numpy.integer)


def _ranges_now(step: Step, values: Mapping[str, Any], types: Mapping[str, DType]) -> dict[str, Range]:
    """The ranges of the integers that a step accesses."""
    ranges_by_name = {}
    for name in (*step.reads, step.formula.output):
        if name.startswith(EXTENTS):
            ranges_by_name[name] = (int(values[name]), int(values[name]))
        elif name.startswith(INDICES):
            ranges_by_name[name] = (0, int(values[f"{EXTENTS}{name[len(INDICES) :]}"]) - 1)
        elif types[name].kind == "int" and not _is_float_array(values.get(name)):
            ranges_by_name[name] = types[name].limits
    return ranges_by_name


def _in_partial_results(
    step: Step, operands: Mapping[Element, Any], dropped: tuple[str, ...], count: int, ranges: Mapping[str, Range]
) -> Any:
    """Compute partial results of a step, as the last dimension. Any partition of the terms is correct; this one is round-robin."""
    import numpy

    term_formula = attrs.evolve(step.formula, target=Element(step.formula.output, step.formula.target.index[:-1]))
    ((element, terms),) = operands.items()
    axis = element.dims.index(term_formula.over[0])
    number = numpy.arange(terms.shape[axis]).reshape([-1 if place == axis else 1 for place in range(terms.ndim)]) % count
    nothing = neutral(term_formula.combiner, float64)
    parts = ({element: numpy.where(number == part, terms, nothing)} for part in range(count))
    return numpy.stack([evaluated(term_formula, part, dropped, ranges) for part in parts], -1)


def _extent(dim: str, operands: Mapping[Element, Any], values: Mapping[str, Any], place: Mapping[str, slice]) -> int:
    """Return the number of elements of a dimension in one iteration."""
    for element, array in operands.items():
        if dim in element.dims:
            return int(array.shape[element.dims.index(dim)])
    return len(values[f"{INDICES}{dim}"][place.get(dim, slice(None))])
