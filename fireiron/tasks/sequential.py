"""The meaning of a program: run in NumPy, task by task, in the order of its text (Cypress, section 3).

Launches of a `prange` may be shuffled, which changes nothing; two of them that touch one element, which one of them writes, are refused
with that element.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import attrs
import numpy

from fireiron.errors import DecompositionError, call_site
from fireiron.spec import Spec
from fireiron.tasks.external import external, order_of, require_privileges
from fireiron.tasks.mapping import Mapping, TaskMapping
from fireiron.tasks.partition import Partition
from fireiron.tasks.program import Runner, Tasks, TaskTensor, Variant, plain
from fireiron.values.expr import Expr, as_expr, constant
from fireiron.values.machine import RF, DType, Thread, as_dtype
from fireiron.values.tensor import ColMajor, Tensor, whole_view


@attrs.frozen(eq=False)
class Elements:
    """Elements of an array, by their coordinates along each dimension; those outside read as zeros, and are not written."""

    array: Any
    coordinates: tuple[Any, ...]

    def read(self) -> Any:
        """A copy of the elements."""
        inside, clipped = self._inside()
        return numpy.where(inside, self.array[numpy.ix_(*clipped)], 0)

    def write(self, values: Any) -> None:
        """New values for those elements that lie inside."""
        kept = [where < size for where, size in zip(self.coordinates, self.array.shape, strict=True)]
        parts = [where[one] for where, one in zip(self.coordinates, kept, strict=True)]
        self.array[numpy.ix_(*parts)] = values[numpy.ix_(*[numpy.flatnonzero(one) for one in kept])].astype(self.array.dtype)

    def flat(self) -> Any:
        """The numbers of the elements that lie inside."""
        parts = [where[where < size] for where, size in zip(self.coordinates, self.array.shape, strict=True)]
        return numpy.arange(self.array.size).reshape(self.array.shape)[numpy.ix_(*parts)].ravel()

    def _inside(self) -> tuple[Any, list[Any]]:
        inside = numpy.ones((), bool)
        for where, size in zip(self.coordinates, self.array.shape, strict=True):
            inside = inside[..., None] & (where < size)
        clipped = [numpy.minimum(where, size - 1) for where, size in zip(self.coordinates, self.array.shape, strict=True)]
        return inside, clipped


MANY = -2
"""The mark of an element that several launches of a group read."""


@attrs.define(eq=False)
class Group:
    """The launches of a `prange` that runs: which of them wrote and which read each element, by array."""

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
    """Runs a program in order; where `shuffled`, launches of a `prange` in any order, by the seed."""

    shuffled: random.Random | None = None
    groups: list[Group] = attrs.field(factory=list, init=False)
    specs: dict[Any, Spec] = attrs.field(factory=dict, init=False)

    def piece(self, tensor: TaskTensor, by: Partition, place: tuple[Expr, ...], shape: tuple[Any, ...]) -> Elements:
        numbers = tuple(constant(one) for one in place)
        counts = by.counts(tensor.shape)
        for number, count in zip(numbers, counts, strict=True):
            if number is None or not 0 <= number < count:
                raise DecompositionError(f"{by}: no piece {numbers}", legal=f"{' x '.join(map(str, counts))} pieces", at=call_site())
        inner = by.coordinates(tensor.shape, tuple(int(one) for one in numbers if one is not None))
        parts = []
        for where, own in zip(tensor.data.coordinates, inner, strict=True):
            index = numpy.asarray(own)
            beyond = numpy.full(len(index), numpy.iinfo(numpy.int64).max)  # behind the end of the piece around it
            parts.append(numpy.where(index < len(where), where[numpy.minimum(index, len(where) - 1)], beyond))
        return Elements(tensor.data.array, tuple(parts))

    def loop(self, extents: tuple[Any, ...], parallel: bool) -> Iterator[Any]:
        places = list(numpy.ndindex(*(int(plain(one)) for one in extents)))
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

    def tensor(self, shape: tuple[Any, ...], dtype: DType) -> Elements:
        made = numpy.full(shape, 0 if dtype.kind == "int" else numpy.nan, dtype.to_numpy())
        return _whole(made)

    def enter(self, one: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        self.call(one, variant, tensors)

    def external(self, function: Any, tensors: tuple[TaskTensor, ...], options: dict[str, Any]) -> None:
        spec = self._spec(function, tensors, options)
        by_name = dict(zip(order_of(function, spec), tensors, strict=True))
        mine = self.here.variant
        require_privileges(mine.name, mine.reads, mine.writes, spec, {operand: one.parameter for operand, one in by_name.items()})
        joins = constant(spec.accumulate) == 1
        for name, one in by_name.items():
            if name in spec.inputs or joins:
                self._touch(one, False)
        for name, value in spec.perform({name: one.data.read() for name, one in by_name.items()}, joins).items():
            self._touch(by_name[name], True)
            by_name[name].data.write(numpy.asarray(value))

    def _spec(self, function: Any, tensors: tuple[TaskTensor, ...], options: dict[str, Any]) -> Spec:
        """What a call computes, made once for all calls on tensors of these shapes."""
        key = (function, tuple((one.shape, one.dtype) for one in tensors), tuple(options.items()))
        if key not in self.specs:
            parts = [Tensor(f"t{i}", tuple(map(as_expr, one.shape)), one.dtype, RF, ColMajor) for i, one in enumerate(tensors)]
            self.specs[key] = external(function, Thread, tuple(map(whole_view, parts)), options)
        return self.specs[key]

    def _touch(self, tensor: TaskTensor, write: bool) -> None:
        """Note who touches elements, in each group of launches that runs; refused where two of one group may not."""
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
                    f"{self.here.variant.name}: two launches of a prange touch element {tuple(map(int, element))}, and one writes it",
                    got=f"launch {group.number}, and another", legal="pieces that do not overlap, or srange", at=call_site(),
                )  # fmt: skip
            if write:
                written[places] = group.number
            else:
                read[places] = numpy.where((read[places] == -1) | (read[places] == group.number), group.number, MANY)


def _whole(array: Any) -> Elements:
    return Elements(array, tuple(numpy.arange(size) for size in array.shape))


def run(program: Tasks, mapping: Mapping, *arrays: Any, seed: int | None = None) -> None:
    """Run a program on arrays, in the order of the entry point's tensors; those that it writes are changed.

    The mapping says which variants run with which tunables. With a `seed` launches of each `prange` are shuffled.
    Raises: DecompositionError where two launches of a `prange` touch an element that one writes, and as the compiler does.
    """
    program.check(mapping)
    runner = Sequential(program, mapping, None if seed is None else random.Random(seed))
    runner.start(tuple(TaskTensor(_whole(one), one.shape, as_dtype(str(one.dtype))) for one in arrays))
