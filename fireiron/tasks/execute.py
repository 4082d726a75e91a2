"""Executes event IR on NumPy arrays, in any order that its events permit, and finds accesses that they do not order.

A program is unrolled for known sizes: each copy and call of each iteration and processor is a step, which waits for other steps. Steps run
in program order, or, with a seed, in a random order that their events permit. `hazards` finds results that may depend on the order: two
steps access the same element, one of them writes it, and neither waits for the other.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Iterator
from typing import Any, Final

import attrs
import numpy

from fireiron.errors import ArgumentError, call_site
from fireiron.frozen import frozen
from fireiron.tasks.events import (
    Alloc,
    Block,
    Branch,
    Call,
    Copy,
    Event,
    EventProgram,
    Events,
    Every,
    For,
    Leaf,
    Pfor,
    Ref,
    Result,
    Statement,
    Type,
    blocks_of,
    bytes_of,
    outside,
    parts_of,
    processor_variables,
    refs_of,
)
from fireiron.tasks.mapping import HOST, Mapping, TaskMapping
from fireiron.tasks.partition import Partition
from fireiron.tasks.program import Tasks, TaskTensor, with_runner
from fireiron.tasks.sequential import Elements, Sequential
from fireiron.values.expr import Expr, as_expr

NO_TASKS: Final = Mapping([TaskMapping("nothing", "nothing", HOST, [], entrypoint=True)])
"""A mapping without tasks, for evaluating pieces."""

Place = tuple[int, ...]
Done = dict[Place, int]
"""An event: for each index, the step, or the join of steps, after which it is done."""


@frozen
class Span:
    """The byte range of a tensor in the shared memory of a block: from `first` to before `end`."""

    block: tuple[Any, ...]
    first: int
    end: int

    def overlaps(self, other: Span) -> bool:
        """Whether two ranges overlap."""
        return self.block == other.block and self.first < other.end and other.first < self.end


@attrs.frozen(eq=False)
class Store:
    """A tensor of an unrolled program."""

    alloc: Alloc
    shape: Place
    number: int
    span: Span | None = None


@attrs.frozen(eq=False)
class Step:
    """A copy or a call of one processor in one iteration, or, if `leaf` is None, a join of steps.

    `after` has the numbers of the steps that it waits for.
    """

    leaf: Leaf | None
    after: frozenset[int]
    values: dict[str, int] = attrs.field(factory=dict)
    stores: tuple[Store, ...] = ()

    def __str__(self) -> str:
        assert self.leaf is not None
        refs = (self.leaf.source, self.leaf.target) if isinstance(self.leaf, Copy) else self.leaf.arguments
        names = ", ".join(ref.tensor for ref in refs)
        what = f"copy({names})" if isinstance(self.leaf, Copy) else f"call({self.leaf.task}, {names})"
        return f"{self.leaf.event}: {what}" + (f" at {', '.join(f'{k} = {v}' for k, v in self.values.items())}" if self.values else "")


@attrs.define(eq=False)
class Unrolled:
    """The steps of a program for known sizes. `end` is the join of the steps that the end of the program waits for."""

    program: EventProgram
    sizes: dict[str, int]
    steps: list[Step] = attrs.field(factory=list, init=False)
    stores: list[Store] = attrs.field(factory=list, init=False)
    arguments: tuple[Store, ...] = attrs.field(default=(), init=False)
    joins: dict[tuple[int, tuple[Any, ...]], tuple[Done, int]] = attrs.field(factory=dict, init=False)
    end: int = attrs.field(default=0, init=False)
    parts: dict[str, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.parts = parts_of(self.program.body)
        here = Here(self, dict(self.sizes))
        for argument in self.program.arguments:
            here.alloc(argument)
        self.arguments = tuple(self.stores)
        here.block(self.program.body)
        self.end = self.join(here.done(event, here.values) for used in self.program.body.yields for event in used)

    @property
    def shared(self) -> int:
        """The bytes of shared memory per block."""
        return max((store.span.end for store in self.stores if store.span), default=0)

    def add(self, step: Step) -> int:
        """The number of a new step."""
        self.steps.append(step)
        return len(self.steps) - 1

    def join(self, after: Iterable[int]) -> int:
        """Return a step that is done after all of these steps: the only one of them, or a new join."""
        joined = frozenset(after)
        return next(iter(joined)) if len(joined) == 1 else self.add(Step(None, joined))


@attrs.define(eq=False)
class Here:
    """A position in a program that is unrolled: the values of variables, and the events and tensors in scope."""

    whole: Unrolled
    values: dict[str, int]
    events: dict[str, Done] = attrs.field(factory=dict)
    tensors: dict[str, dict[Place, Store]] = attrs.field(factory=dict)
    space: tuple[Any, ...] = ()  # the block and its launch
    part: int = 0
    iteration: int = 0

    def inside(self, **values: int) -> Here:
        """An inner block, with additional values of variables."""
        return Here(
            self.whole, {**self.values, **values}, dict(self.events), dict(self.tensors), self.space, self.part, self.iteration
        )  # fmt: skip

    def number(self, value: Expr, values: dict[str, int] | None = None) -> int:
        """The value of an expression."""
        return int(value.evaluate(self.values if values is None else values))

    def each(self, over: Type) -> Iterator[tuple[Place, dict[str, int]]]:
        """The processors of some dimensions, and the values of all variables for each."""
        names = [var.name for var in processor_variables(over)]
        for place in itertools.product(*(range(self.number(dim.size)) for dim in over)):
            yield place, {**self.values, **dict(zip(names, place, strict=True))}

    def block(self, block: Block) -> None:
        """Unroll the statements of a block."""
        for stmt in block.statements:
            self.statement(stmt)

    def statement(self, stmt: Statement) -> None:
        """Unroll a statement."""
        if isinstance(stmt, Alloc):
            self.alloc(stmt)
        elif isinstance(stmt, (Copy, Call)):
            self.events[stmt.event] = {place: self.leaf(stmt, values) for place, values in self.each(stmt.over)}
        elif isinstance(stmt, Branch):
            inner = self.inside()
            block = blocks_of(stmt)[0 if self.number(stmt.condition) else 1]
            inner.block(block)
            self._results(stmt.results, [inner.yielded(used, result.over) for used, result in zip(block.yields, stmt.results, strict=True)])
        elif isinstance(stmt, For):
            self.loop(stmt)
        else:
            self.group(stmt)

    def alloc(self, alloc: Alloc) -> None:
        """Allocate a tensor for each processor."""
        shape = tuple(self.number(size) for size in alloc.shape)
        places, first = [place for place, _ in self.each(alloc.over)], len(self.whole.stores)
        stores = {place: Store(alloc, shape, first + n, self._span(alloc, n, len(places))) for n, place in enumerate(places)}
        self.whole.stores.extend(stores.values())
        self.tensors[alloc.name] = stores

    def _span(self, alloc: Alloc, number: int, processors: int) -> Span | None:
        """The byte range of a processor's tensor in this iteration."""
        if alloc.at is None:
            return None
        size, parts = bytes_of(alloc), self.whole.parts[alloc.name]
        first = alloc.at + ((self.iteration % alloc.copies * parts + self.part) * processors + number) * size
        return Span(self.space, first, first + size)

    def leaf(self, leaf: Leaf, values: dict[str, int]) -> int:
        """Add a step."""
        refs = (leaf.source, leaf.target) if isinstance(leaf, Copy) else leaf.arguments
        after = frozenset(self.done(event, values) for event in leaf.after)
        return self.whole.add(Step(leaf, after, values, tuple(self.store(ref, values) for ref in refs)))

    def store(self, ref: Ref, values: dict[str, int]) -> Store:
        """The tensor of a processor."""
        stores = self.tensors[ref.tensor]
        over = next(iter(stores.values())).alloc.over
        return stores[tuple(values[var.name] for var in processor_variables(over))]

    def done(self, event: Event, values: dict[str, int]) -> int:
        """The step after which an event is done."""
        steps = self.events[event.name]
        wanted = tuple(None if isinstance(index, Every) else self.number(index, values) for index in event.index)
        if None not in wanted:
            return steps[wanted]  # type: ignore[index]
        if (id(steps), wanted) not in self.whole.joins:
            matching = (
                step for place, step in steps.items() if all(index in (None, other) for index, other in zip(wanted, place, strict=True))
            )
            self.whole.joins[id(steps), wanted] = steps, self.whole.join(matching)
        return self.whole.joins[id(steps), wanted][1]

    def yielded(self, events: Events, over: Type) -> Done:
        """The yields of a block for a result, by index."""
        return {place: self.whole.join(self.done(event, values) for event in events) for place, values in self.each(over)}

    def loop(self, loop: For) -> None:
        """Unroll a loop: each iteration waits for the carried events of previous ones."""
        so_far = [self.yielded(carry.initial, carry.over) for carry in loop.carries]
        so_far += [self.yielded((), result.over) for result in loop.results[len(loop.carries) :]]
        past = [so_far]
        for iteration in range(self.number(loop.extent)):
            inner = self.inside(**{loop.variable.name: iteration})
            inner.iteration = iteration
            inner.events |= {carry.name: past[max(iteration + 1 - carry.distance, 0)][number] for number, carry in enumerate(loop.carries)}
            inner.block(loop.body)
            yields = [inner.yielded(used, result.over) for used, result in zip(loop.body.yields, loop.results, strict=True)]
            so_far = [self._both(old, new) for old, new in zip(so_far, yields, strict=True)]
            past.append(so_far)
        self._results(loop.results, so_far)

    def group(self, group: Pfor) -> None:
        """Unroll a parallel loop."""
        results: list[Done] = [{} for _ in group.results]
        for number, place in enumerate(itertools.product(*(range(self.number(size)) for size in group.extents))):
            inner = self.inside(**{var.name: value for var, value in zip(group.variables, place, strict=True)})
            if outside(group):
                inner.space, inner.part, inner.iteration = (*self.space, id(group), tuple(self.values.values()), place), 0, 0
            else:
                inner.part = self.part * math.prod(size.high for size in group.extents) + number
            inner.block(group.body)
            for done, used, result in zip(results, group.body.yields, group.results, strict=True):
                done |= {(*place, *rest): step for rest, step in inner.yielded(used, result.over).items()}
        self._results(group.results, results)

    def _both(self, old: Done, new: Done) -> Done:
        return {place: self.whole.join((old[place], step)) for place, step in new.items()}

    def _results(self, results: tuple[Result, ...], events: list[Done]) -> None:
        self.events |= {result.name: done for result, done in zip(results, events, strict=True)}


# ---------------------------------------------------------------------------------------------- execution


def sizes_of(program: EventProgram, shapes: Iterable[tuple[int, ...]]) -> dict[str, int]:
    """The run-time sizes, from the shapes of the program's arguments."""
    values: dict[str, int] = {}
    for argument, shape in zip(program.arguments, shapes, strict=True):
        for size, number in zip(argument.shape, shape, strict=True):
            name = str(size)
            value = values.setdefault(name, number) if size in program.symbols else int(size.low)
            if value != number:
                raise ArgumentError(f"{argument.name}: the size {number} does not match", legal=f"{name} = {value}", at=call_site())
    return values


def unrolled(program: EventProgram, **sizes: int) -> Unrolled:
    """The steps of a program; `sizes` are run-time sizes by name."""
    return Unrolled(program, sizes)


def run_events(events: EventProgram, program: Tasks, mapping: Mapping, *arrays: Any, seed: int | None = None) -> None:
    """Execute event IR on arrays, in the order of its arguments; outputs are changed in place.

    `program` and `mapping` define the tasks that it calls. With a `seed`, steps run in a random order that their events permit.
    """
    whole = Unrolled(events, sizes_of(events, (array.shape for array in arrays)))
    Machine(whole, program, mapping, arrays).run(order(whole, None if seed is None else random.Random(seed)))


def order(whole: Unrolled, shuffled: random.Random | None = None) -> list[int]:
    """An order of the steps: program order, or a random one that events permit."""
    if shuffled is None:
        return list(range(len(whole.steps)))
    left = [len(step.after) for step in whole.steps]
    users: list[list[int]] = [[] for _ in whole.steps]
    for number, step in enumerate(whole.steps):
        for before in step.after:
            users[before].append(number)
    ready, done = [number for number, count in enumerate(left) if not count], []
    while ready:
        place = shuffled.randrange(len(ready))
        ready[place], ready[-1] = ready[-1], ready[place]
        done.append(ready.pop())
        for user in users[done[-1]]:
            left[user] -= 1
            ready += [user] if not left[user] else []
    return done


@attrs.define(eq=False)
class Machine:
    """Executes steps on arrays."""

    whole: Unrolled
    program: Tasks
    mapping: Mapping
    given: tuple[Any, ...]
    arrays: dict[int, Any] = attrs.field(factory=dict, init=False)
    places: Places = attrs.field(init=False)
    runner: Sequential = attrs.field(init=False)
    memories: dict[Any, Any] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.arrays = {store.number: array for store, array in zip(self.whole.arguments, self.given, strict=True)}
        self.runner = Sequential(self.program, self.mapping)
        self.places = Places(self.runner)

    def run(self, numbers: Iterable[int]) -> None:
        """Execute steps in an order."""
        for number in numbers:
            step = self.whole.steps[number]
            if isinstance(step.leaf, Copy):
                source, target = (self._elements(ref, store, step) for ref, store in zip(_refs(step.leaf), step.stores, strict=True))
                target.write(source.read())
                if not step.leaf.target.path:
                    self.runner.copied(source, target)
            elif step.leaf is not None:
                self._call(step.leaf, step)

    def _call(self, leaf: Call, step: Step) -> None:
        instance = self.mapping[leaf.task]
        variant = self.program[instance.variant]
        tensors = tuple(
            TaskTensor(self._elements(ref, store, step), self.places.shape(ref, store, step.values), store.alloc.dtype)
            for ref, store in zip(leaf.arguments, step.stores, strict=True)
        )
        with_runner(self.runner, lambda: self.runner.call(instance, variant, tensors))

    def _array(self, store: Store) -> Any:
        """A tensor's array: a view of its block's shared memory, if it has an offset there."""
        fresh = self.runner.tensor(store.shape, store.alloc.dtype).array
        if store.span is None or fresh.nbytes > store.span.end - store.span.first:  # NumPy has no such element type
            return fresh
        memory = self.memories.setdefault(store.span.block, numpy.zeros(self.whole.shared, numpy.uint8))
        return memory[store.span.first : store.span.first + fresh.nbytes].view(fresh.dtype).reshape(store.shape)

    def _elements(self, ref: Ref, store: Store, step: Step) -> Elements:
        if store.number not in self.arrays:
            self.arrays[store.number] = self._array(store)
            self.runner.written.begin(self.arrays[store.number])  # copies are not tasks, but write it
        elements: Elements = self.places.of(ref, store, step.values).data
        return attrs.evolve(elements, array=self.arrays[store.number])


@attrs.define(eq=False)
class Places:
    """The elements of pieces, by their indices, cached for arrays of the same shape."""

    runner: Sequential
    pieces: dict[Any, TaskTensor] = attrs.field(factory=dict)
    masks: dict[Any, int] = attrs.field(factory=dict)

    def of(self, ref: Ref, store: Store, values: dict[str, int]) -> TaskTensor:
        """A piece of some array."""
        path = self._path(ref, values)
        key = (store.shape, store.alloc.dtype, path)
        if key not in self.pieces:
            piece = TaskTensor(self.runner.tensor(store.shape, store.alloc.dtype), store.shape, store.alloc.dtype)
            for by, place in path:
                shape = by.shape(piece.extents)
                piece = attrs.evolve(piece, data=self.runner.piece(piece, by, tuple(map(as_expr, place)), shape), extents=shape)
            self.pieces[key] = piece
        return self.pieces[key]

    def shape(self, ref: Ref, store: Store, values: dict[str, int]) -> Place:
        """The shape of a piece."""
        return self.of(ref, store, values).shape

    def mask(self, ref: Ref, store: Store, values: dict[str, int]) -> int:
        """The elements of a piece that are inside its tensor, as a bit mask."""
        key = (store.shape, self._path(ref, values))
        if key not in self.masks:
            inside = numpy.zeros(max(math.prod(store.shape), 1), bool)
            inside[self.of(ref, store, values).data.flat()] = True
            self.masks[key] = int.from_bytes(numpy.packbits(inside, bitorder="little").tobytes(), "little")
        return self.masks[key]

    def _path(self, ref: Ref, values: dict[str, int]) -> tuple[Any, ...]:
        return tuple((_known(by, values), tuple(int(index.evaluate(values)) for index in place)) for by, place in ref.path)


def _known(by: Partition, values: dict[str, int]) -> Partition:
    """A partition with numbers as sizes."""

    def number(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(number, value))
        return int(value.evaluate(values)) if isinstance(value, Expr) else value

    fields = {field.name: getattr(by, field.name) for field in attrs.fields(type(by))}
    known = {name: number(value) for name, value in fields.items()}
    return by if known == fields else attrs.evolve(by, **known)


def _refs(leaf: Leaf) -> tuple[Ref, ...]:
    return (leaf.source, leaf.target) if isinstance(leaf, Copy) else leaf.arguments


# ---------------------------------------------------------------------------------------------- hazards


@frozen
class Hazard:
    """Two steps that access an element, one of which writes it, and that no event orders."""

    first: str
    second: str
    tensor: str
    element: Place

    def __str__(self) -> str:
        return f"{self.tensor}{list(self.element)}: no event orders {self.first} and {self.second}"


def hazards(program: EventProgram, most: int = 10, **sizes: int) -> tuple[Hazard, ...]:
    """The pairs of conflicting accesses that events do not order.

    Args: most: the maximum number of hazards. sizes: run-time sizes by name.
    """
    return tuple(itertools.islice(_hazards(Unrolled(program, sizes)), most))


def ordered(whole: Unrolled) -> list[int]:
    """Return, for each step, a bit mask of the steps that precede it."""
    preceding: list[int] = []
    for step in whole.steps:
        bits = 0
        for number in step.after:
            bits |= preceding[number] | 1 << number
        preceding.append(bits)
    return preceding


def _hazards(whole: Unrolled) -> Iterator[Hazard]:
    before, places = ordered(whole), Places(Sequential(Tasks(), NO_TASKS))
    arguments, last = {argument.number for argument in whole.arguments}, before[whole.end] | 1 << whole.end
    touched: dict[int, list[tuple[int, int, bool]]] = {}
    by_block: dict[Any, dict[int, Store]] = {}
    for number, step in enumerate(whole.steps):
        if step.leaf is None:
            continue
        for (ref, reads, writes), store in zip(refs_of(whole.program, step.leaf), step.stores, strict=True):
            if not (reads or writes):
                continue
            mask, others = places.mask(ref, store, step.values), touched.setdefault(store.number, [])
            for other, elements, wrote in others:
                if (writes or wrote) and other != number and not before[number] >> other & 1 and elements & mask:
                    yield _hazard(elements & mask, store, str(whole.steps[other]), str(step))
            others.append((number, mask, writes))
            if store.span is not None:
                yield from _hazards_of_shared_bytes(whole, before, touched, by_block.setdefault(store.span.block, {}), store, number)
            if writes and mask and store.number in arguments and not last >> number & 1:
                yield _hazard(mask, store, str(step), "the end of the program")


def _hazards_of_shared_bytes(
    whole: Unrolled,
    before: list[int],
    touched: dict[int, list[tuple[int, int, bool]]],
    present: dict[int, Store],
    store: Store,
    number: int,
) -> Iterator[Hazard]:
    """Yield the conflicts of the last access to `store` with accesses to other tensors in the same bytes.

    `present` has the tensors of the thread block so far.
    """
    present[store.number] = store
    _, elements, writes = touched[store.number][-1]
    for other in present.values():
        if other is store or not (store.span and other.span and store.span.overlaps(other.span)):
            continue
        own_bytes = _bytes(elements, store)
        for step, mask, wrote in touched[other.number]:
            if (writes or wrote) and step != number and not before[number] >> step & 1 and (common := own_bytes & _bytes(mask, other)):
                lowest = (common & -common).bit_length() - 1
                names = f"{other.alloc.name} and {store.alloc.name}: shared byte "
                yield Hazard(str(whole.steps[step]), str(whole.steps[number]), names, (lowest,))


def _bytes(elements: int, store: Store) -> int:
    """The bytes of elements in shared memory, as a bit mask."""
    assert store.span is not None
    count = max(math.prod(store.shape), 1)
    bits = numpy.unpackbits(numpy.frombuffer(elements.to_bytes(count // 8 + 1, "little"), numpy.uint8), bitorder="little")[:count]
    each = (store.span.end - store.span.first) // count
    return int.from_bytes(numpy.packbits(bits.repeat(each), bitorder="little").tobytes(), "little") << store.span.first


def _hazard(elements: int, store: Store, first: str, second: str) -> Hazard:
    lowest = (elements & -elements).bit_length() - 1
    return Hazard(first, second, store.alloc.name, tuple(map(int, numpy.unravel_index(lowest, store.shape))))
