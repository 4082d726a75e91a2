"""Execute a program in NumPy, task by task, in program order: this defines its meaning (Cypress, section 3).

The launches of a `prange` may be shuffled, which does not change the result. If two launches access the same element and one of them writes
it, the program is refused.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import attrs
import numpy

from fireiron.errors import ArgumentError, DecompositionError, FireironError, call_site
from fireiron.spec import Spec, Starter
from fireiron.specs.verbs import checked_arguments
from fireiron.tasks.external import external, order_of, performed, require_privileges
from fireiron.tasks.mapping import Mapping, TaskMapping
from fireiron.tasks.partition import Partition
from fireiron.tasks.program import Runner, Tasks, TaskTensor, Variant, plain, require_program
from fireiron.tasks.written import NEVER, Written
from fireiron.values.expr import Expr, as_expr, constant
from fireiron.values.machine import RF, VAL, DType, Thread, as_dtype
from fireiron.values.tensor import ColMajor, Tensor, whole_view


@attrs.frozen(eq=False)
class Elements:
    """Elements of an array, by their coordinates along each dimension. Elements out of bounds read as zero and are not written.

    `axes` are the dimensions of the array that the elements have, in order. Along all other dimensions, there is a single coordinate.
    """

    array: Any
    coordinates: tuple[Any, ...]
    axes: tuple[int, ...]

    def read(self) -> Any:
        """A copy of the elements."""
        inside, clipped = self._inside()
        values = numpy.where(inside, self.array[numpy.ix_(*clipped)], 0)
        return values.transpose(*self.axes, *self._others()).reshape([values.shape[axis] for axis in self.axes])

    def write(self, values: Any) -> None:
        """Write the elements that are in bounds."""
        order = (*self.axes, *self._others())
        shape = [len(self.coordinates[axis]) for axis in order]
        values = numpy.asarray(values).reshape(shape).transpose(*(order.index(axis) for axis in range(len(order))))
        kept = [where < size for where, size in zip(self.coordinates, self.array.shape, strict=True)]
        parts = [where[mask] for where, mask in zip(self.coordinates, kept, strict=True)]
        self.array[numpy.ix_(*parts)] = values[numpy.ix_(*[numpy.flatnonzero(mask) for mask in kept])].astype(self.array.dtype)

    def flat(self) -> Any:
        """The flat indices of the elements that are in bounds."""
        return numpy.ravel_multi_index(self.places(), self.array.shape).ravel()

    def places(self) -> tuple[Any, ...]:
        """The coordinates of the elements that are in bounds, as an index of the array."""
        return numpy.ix_(*(where[where < size] for where, size in zip(self.coordinates, self.array.shape, strict=True)))

    def _others(self) -> list[int]:
        return [axis for axis in range(self.array.ndim) if axis not in self.axes]

    def _inside(self) -> tuple[Any, list[Any]]:
        inside = numpy.ones((), bool)
        for where, size in zip(self.coordinates, self.array.shape, strict=True):
            inside = inside[..., None] & (where < size)
        clipped = [numpy.minimum(where, size - 1) for where, size in zip(self.coordinates, self.array.shape, strict=True)]
        return inside, clipped


MANY = -2
"""Marks an element that several launches of a loop read."""


@attrs.define(eq=False)
class Group:
    """The launches of a running `prange`: the launch that wrote and read each element, by array."""

    number: int = 0
    written: dict[int, Any] = attrs.field(factory=dict)
    read: dict[int, Any] = attrs.field(factory=dict)
    arrays: list[Any] = attrs.field(factory=list)

    def marks(self, array: Any) -> tuple[Any, Any]:
        """The numbers of the launches that wrote and read the elements of an array; -1 for none."""
        if id(array) not in self.written:
            self.arrays.append(array)
            self.written[id(array)] = numpy.full(array.size, -1)
            self.read[id(array)] = numpy.full(array.size, -1)
        return self.written[id(array)], self.read[id(array)]


@attrs.define(eq=False)
class Sequential(Runner):
    """Runs a program in order; with `shuffled`, the launches of a `prange` in random order."""

    shuffled: random.Random | None = None
    groups: list[Group] = attrs.field(factory=list, init=False)
    specs: dict[Any, Spec] = attrs.field(factory=dict, init=False)
    origins: dict[int, list[tuple[Any, int]]] = attrs.field(factory=dict, init=False)
    written: Written = attrs.field(factory=Written, init=False)

    def piece(self, tensor: TaskTensor, by: Partition, place: tuple[Expr, ...], shape: tuple[Any, ...]) -> Elements:
        numbers = tuple(constant(index) for index in place)
        counts = by.counts(tensor.extents)
        if self.dry:
            numbers, counts = (0,) * len(counts), (1,) * len(counts)
        for number, count in zip(numbers, counts, strict=True):
            if number is None or not 0 <= number < count:
                raise DecompositionError(f"{by} has no piece {numbers}", legal=f"{' x '.join(map(str, counts))} pieces", at=call_site())
        inner = by.coordinates(tensor.extents, tuple(int(index) for index in numbers if index is not None))
        parts, own_axes = list(tensor.data.coordinates), tensor.data.axes
        for axis, own in zip(own_axes, inner, strict=True):
            index, where = numpy.asarray(own), parts[axis]
            past_end = numpy.full(len(index), numpy.iinfo(numpy.int64).max)  # past the end of the outer piece
            parts[axis] = numpy.where(index < len(where), where[numpy.minimum(index, len(where) - 1)], past_end)
        return Elements(tensor.data.array, tuple(parts), tuple(own_axes[dim] for dim in by.axes(tensor.rank)))

    def loop(self, extents: tuple[Any, ...], parallel: bool) -> Iterator[Any]:
        places = list(numpy.ndindex(*((1,) * len(extents) if self.dry else tuple(int(plain(size)) for size in extents))))
        if parallel and self.shuffled is not None:
            self.shuffled.shuffle(places)
        group = Group()
        if parallel:
            self.groups.append(group)
        for number, place in enumerate(places):
            group.number = number
            yield place if len(place) > 1 else place[0]
        if parallel:
            self.groups.pop()

    def apart(self, first: TaskTensor, second: TaskTensor) -> bool:
        pairs = zip(first.data.coordinates, second.data.coordinates, first.data.array.shape, strict=False)
        return first.data.array is not second.data.array or any(not _common(first, second, size) for first, second, size in pairs)

    def tensor(self, shape: tuple[Any, ...], dtype: DType) -> Elements:
        array = numpy.full(shape, 0 if dtype.kind == "int" else numpy.nan, dtype.to_numpy())
        self.written.begin(array, NEVER)
        return _whole(array)

    def coordinates(self, tensor: TaskTensor, dim: int) -> Elements:
        coordinates, _ = self.origin(tensor.data, dim)
        return _whole(numpy.minimum(coordinates, numpy.iinfo(numpy.int32).max).astype(numpy.int32))

    def extent(self, tensor: TaskTensor, dim: int) -> Elements:
        return _whole(numpy.asarray(self.origin(tensor.data, dim)[1], numpy.int32))

    def origin(self, elements: Elements, dim: int) -> tuple[Any, int]:
        """Return the coordinates of elements in the entry point's tensor that they are a piece or a copy of, and its extent."""
        axis = elements.axes[dim]
        where, size = elements.coordinates[axis], elements.array.shape[axis]
        if id(elements.array) not in self.origins:
            return where, size
        outer, extent = self.origins[id(elements.array)][axis]
        return numpy.where(where < size, outer[numpy.minimum(where, size - 1)], where), extent

    def copied(self, source: Elements, target: Elements) -> None:
        """Record that an array is a copy of elements."""
        self.origins[id(target.array)] = [self.origin(source, dim) for dim in range(len(source.axes))]

    def enter(self, instance: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        since = self.written.clock
        self.call(instance, variant, tensors)
        for name, tensor in zip(variant.tensors, tensors, strict=True):
            if name in variant.writes - variant.reads:
                what = f"instance {instance.instance}: {variant.name} writes {name}"
                self.written.require_all(tensor.data.array, tensor.data.places(), since, what, variant.origin)

    def external(self, function: Any, tensors: tuple[TaskTensor, ...], options: dict[str, Any]) -> None:
        spec = self._spec(function, tensors, options)
        by_name = dict(zip(order_of(function, spec), tensors, strict=True))
        variant = self.here.variant
        require_privileges(
            variant.name, variant.reads, variant.writes, spec, {operand: tensor.parameter for operand, tensor in by_name.items()}
        )
        try:
            spec.kind.check_meaning(spec.definition)
        except FireironError as error:
            raise error.located(at=call_site()) from None
        joins = constant(spec.accumulate) == 1
        for name, tensor in by_name.items():
            if name in spec.inputs or joins:
                self._record_access(tensor, False)
                self.written.require_read(tensor.data.array, tensor.data.places(), variant.name)
        for name, value in performed(spec, {name: tensor.data.read() for name, tensor in by_name.items()}, joins).items():
            self._record_access(by_name[name], True)
            by_name[name].data.write(numpy.asarray(value))
            self.written.write(by_name[name].data.array, by_name[name].data.places())

    def _spec(self, function: Any, tensors: tuple[TaskTensor, ...], options: dict[str, Any]) -> Spec:
        """The spec of a call, cached for all calls on tensors of the same shapes."""
        if not isinstance(function, (str, Starter)):
            return external(function, Thread, (), options)  # raises the error
        key = (function, tuple((tensor.extents, tensor.dtype) for tensor in tensors), tuple(options.items()))
        if key not in self.specs:
            parts = [
                Tensor(f"t{i}", tuple(map(as_expr, tensor.extents)), tensor.dtype, RF if tensor.extents else VAL, ColMajor)
                for i, tensor in enumerate(tensors)
            ]
            self.specs[key] = external(function, Thread, tuple(map(whole_view, parts)), options)
        return self.specs[key]

    def _record_access(self, tensor: TaskTensor, write: bool) -> None:
        """Record an access in each running loop of launches; refuse conflicting accesses of two launches of one loop."""
        array, places = tensor.data.array, None
        for group in self.groups:
            places = tensor.data.flat() if places is None else places
            written, read = group.marks(array)
            others = (written[places] != -1) & (written[places] != group.number)
            if write:
                others |= (read[places] != -1) & (read[places] != group.number)
            if others.any():
                element = numpy.unravel_index(places[others][0], array.shape)
                raise DecompositionError(
                    f"{self.here.variant.name}: two launches of a prange access element {tuple(map(int, element))}, and one writes it",
                    got=f"launch {group.number}, and another", legal="pieces that do not overlap, or srange", at=call_site(),
                )  # fmt: skip
            if write:
                written[places] = group.number
            else:
                read[places] = numpy.where((read[places] == -1) | (read[places] == group.number), group.number, MANY)


def _common(first: Any, second: Any, size: int) -> bool:
    """Whether two lists of coordinates along a dimension of `size` elements have a common coordinate in bounds."""
    both = numpy.intersect1d(first, second)
    return bool(both.size and both[0] < size)


def _whole(array: Any) -> Elements:
    return Elements(array, tuple(numpy.arange(size) for size in array.shape), tuple(range(array.ndim)))


@checked_arguments
def run(program: Tasks, mapping: Mapping, *arrays: Any, seed: int | None = None) -> None:
    """Run a program on arrays, in the order of the entry point's tensors; outputs are changed in place.

    The mapping selects the variants and tunables. With a `seed`, the launches of each `prange` are shuffled.
    Raises: DecompositionError if two launches of a `prange` access an element that one writes, and as the compiler does.
    """
    require_program(program)
    program.check(mapping)
    variant = program[mapping.root.variant]
    if len(arrays) != len(variant.tensors):
        raise ArgumentError(f"{variant.name}: {len(arrays)} arrays are given", legal=variant.tensors, at=call_site())
    for name, array in zip(variant.tensors, arrays, strict=True):
        if not isinstance(array, numpy.ndarray):
            raise ArgumentError(f"{variant.name}: {name} is not an array", got=type(array).__name__, legal="NumPy arrays", at=call_site())
        if name in variant.writes and not array.flags.writeable:
            raise ArgumentError(f"{variant.name} writes {name}, but the array is read-only", legal="array.copy()", at=call_site())
    runner = Sequential(program, mapping, None if seed is None else random.Random(seed))
    for (name, array), (other, second) in itertools.combinations(zip(variant.tensors, arrays, strict=True), 2):
        if {name, other} & variant.writes and numpy.shares_memory(array, second):
            raise ArgumentError(f"{variant.name}: the arrays {name} and {other} overlap", legal="array.copy()", at=call_site())
    for array in arrays:
        runner.written.begin(array)
    given = zip(variant.tensors, arrays, strict=True)
    runner.start(tuple(TaskTensor(_whole(array), array.shape, _element_type(name, array)) for name, array in given))


def _element_type(name: str, array: Any) -> DType:
    try:
        return as_dtype(str(array.dtype))
    except ArgumentError as error:
        raise ArgumentError(f"{name}: {error.asked}", got=str(array.dtype), legal=error.legal, at=call_site()) from None
