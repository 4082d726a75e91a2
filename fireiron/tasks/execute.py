"""Runs event IR on NumPy arrays, in any order that its events allow, and finds what they leave to chance.

A program is unrolled for sizes that are numbers: each copy and call of each turn and processor is a step, which waits for others. Steps run
in the order of the text, or, with a seed, in any order in which each follows those that it waits for. `hazards` finds what may differ from
one order to the next: two steps that touch an element, one of which writes it, and neither of which waits for the other.
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

NOTHING: Final = Mapping([TaskMapping("nothing", "nothing", HOST, [], entrypoint=True)])
"""A mapping for finding pieces, where nothing runs."""

Place = tuple[int, ...]
Done = dict[Place, int]
"""An event: by the indices of its dimensions the step, or the meeting of steps, that it is."""


@attrs.frozen
class Span:
    """Where a tensor lies in the shared memory of a block: from which byte to which."""

    block: tuple[Any, ...]
    first: int
    behind: int

    def meets(self, other: Span) -> bool:
        """Whether two have a byte in common."""
        return self.block == other.block and self.first < other.behind and other.first < self.behind


@attrs.frozen(eq=False)
class Store:
    """A tensor of an unrolled program."""

    alloc: Alloc
    shape: Place
    number: int
    span: Span | None = None


@attrs.frozen(eq=False)
class Step:
    """A copy or a call for one processor in one turn, or a meeting of steps (`leaf` None); `after` are the numbers of earlier ones."""

    leaf: Leaf | None
    after: frozenset[int]
    values: dict[str, int] = attrs.field(factory=dict)
    stores: tuple[Store, ...] = ()

    def __str__(self) -> str:
        assert self.leaf is not None
        refs = (self.leaf.source, self.leaf.target) if isinstance(self.leaf, Copy) else self.leaf.arguments
        names = ", ".join(one.tensor for one in refs)
        what = f"copy({names})" if isinstance(self.leaf, Copy) else f"call({self.leaf.task}, {names})"
        return f"{self.leaf.event}: {what}" + (f" at {', '.join(f'{k} = {v}' for k, v in self.values.items())}" if self.values else "")


@attrs.define(eq=False)
class Unrolled:
    """The steps of a program for sizes that are numbers; `end` is the meeting of those that it waits for at its end."""

    program: EventProgram
    sizes: dict[str, int]
    steps: list[Step] = attrs.field(factory=list, init=False)
    stores: list[Store] = attrs.field(factory=list, init=False)
    arguments: tuple[Store, ...] = attrs.field(default=(), init=False)
    met: dict[tuple[int, tuple[Any, ...]], tuple[Done, int]] = attrs.field(factory=dict, init=False)
    end: int = attrs.field(default=0, init=False)
    parts: dict[str, int] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.parts = parts_of(self.program.body)
        here = Here(self, dict(self.sizes))
        for one in self.program.arguments:
            here.alloc(one)
        self.arguments = tuple(self.stores)
        here.block(self.program.body)
        self.end = self.meeting(here.done(one, here.values) for used in self.program.body.yields for one in used)

    @property
    def shared(self) -> int:
        """How many bytes of shared memory a block has tensors in."""
        return max((one.span.behind for one in self.stores if one.span), default=0)

    def add(self, step: Step) -> int:
        """The number of a new step."""
        self.steps.append(step)
        return len(self.steps) - 1

    def meeting(self, after: Iterable[int]) -> int:
        """What is done when all of these are: one of them, if there is no other."""
        found = frozenset(after)
        return next(iter(found)) if len(found) == 1 else self.add(Step(None, found))


@attrs.define(eq=False)
class Here:
    """A place of a program that is unrolled: the values of variables, the events and tensors that are there."""

    whole: Unrolled
    values: dict[str, int]
    events: dict[str, Done] = attrs.field(factory=dict)
    tensors: dict[str, dict[Place, Store]] = attrs.field(factory=dict)
    space: tuple[Any, ...] = ()  # which block of which launch
    part: int = 0
    turn: int = 0

    def inside(self, **values: int) -> Here:
        """A block, in which more variables have values."""
        return Here(
            self.whole, {**self.values, **values}, dict(self.events), dict(self.tensors), self.space, self.part, self.turn
        )  # fmt: skip

    def number(self, value: Expr, values: dict[str, int] | None = None) -> int:
        """The value of an expression."""
        return int(value.evaluate(self.values if values is None else values))

    def each(self, over: Type) -> Iterator[tuple[Place, dict[str, int]]]:
        """The processors of some dimensions, and the values of all variables there."""
        names = [one.name for one in processor_variables(over)]
        for place in itertools.product(*(range(self.number(dim.size)) for dim in over)):
            yield place, {**self.values, **dict(zip(names, place, strict=True))}

    def block(self, block: Block) -> None:
        """Unroll the statements of a block."""
        for one in block.statements:
            self.statement(one)

    def statement(self, one: Statement) -> None:
        """Unroll a statement."""
        if isinstance(one, Alloc):
            self.alloc(one)
        elif isinstance(one, (Copy, Call)):
            self.events[one.event] = {place: self.leaf(one, values) for place, values in self.each(one.over)}
        elif isinstance(one, Branch):
            inner = self.inside()
            block = blocks_of(one)[0 if self.number(one.condition) else 1]
            inner.block(block)
            self._results(one.results, [inner.yielded(used, each.over) for used, each in zip(block.yields, one.results, strict=True)])
        elif isinstance(one, For):
            self.turns(one)
        else:
            self.group(one)

    def alloc(self, one: Alloc) -> None:
        """A tensor for each processor."""
        shape = tuple(self.number(size) for size in one.shape)
        places, first = [place for place, _ in self.each(one.over)], len(self.whole.stores)
        made = {place: Store(one, shape, first + n, self._span(one, n, len(places))) for n, place in enumerate(places)}
        self.whole.stores.extend(made.values())
        self.tensors[one.name] = made

    def _span(self, one: Alloc, number: int, processors: int) -> Span | None:
        """Where the tensor of a processor lies in this turn."""
        if one.at is None:
            return None
        size, parts = bytes_of(one), self.whole.parts[one.name]
        first = one.at + ((self.turn % one.copies * parts + self.part) * processors + number) * size
        return Span(self.space, first, first + size)

    def leaf(self, one: Leaf, values: dict[str, int]) -> int:
        """A step."""
        refs = (one.source, one.target) if isinstance(one, Copy) else one.arguments
        after = frozenset(self.done(event, values) for event in one.after)
        return self.whole.add(Step(one, after, values, tuple(self.store(ref, values) for ref in refs)))

    def store(self, ref: Ref, values: dict[str, int]) -> Store:
        """The tensor of a processor."""
        made = self.tensors[ref.tensor]
        over = next(iter(made.values())).alloc.over
        return made[tuple(values[one.name] for one in processor_variables(over))]

    def done(self, event: Event, values: dict[str, int]) -> int:
        """The step that an event is."""
        made = self.events[event.name]
        wanted = tuple(None if isinstance(one, Every) else self.number(one, values) for one in event.index)
        if None not in wanted:
            return made[wanted]  # type: ignore[index]
        if (id(made), wanted) not in self.whole.met:
            matching = (step for place, step in made.items() if all(one in (None, two) for one, two in zip(wanted, place, strict=True)))
            self.whole.met[id(made), wanted] = made, self.whole.meeting(matching)
        return self.whole.met[id(made), wanted][1]

    def yielded(self, events: Events, over: Type) -> Done:
        """What a block yields, by the dimensions of a result."""
        return {place: self.whole.meeting(self.done(one, values) for one in events) for place, values in self.each(over)}

    def turns(self, one: For) -> None:
        """The turns of a loop: each waits for what it says of those before."""
        so_far = [self.yielded(carry.initial, carry.over) for carry in one.carries]
        so_far += [self.yielded((), result.over) for result in one.results[len(one.carries) :]]
        past = [so_far]
        for turn in range(self.number(one.extent)):
            inner = self.inside(**{one.variable.name: turn})
            inner.turn = turn
            inner.events |= {carry.name: past[max(turn + 1 - carry.distance, 0)][number] for number, carry in enumerate(one.carries)}
            inner.block(one.body)
            yields = [inner.yielded(used, result.over) for used, result in zip(one.body.yields, one.results, strict=True)]
            so_far = [self._both(old, new) for old, new in zip(so_far, yields, strict=True)]
            past.append(so_far)
        self._results(one.results, so_far)

    def group(self, one: Pfor) -> None:
        """The turns of a parallel loop."""
        found: list[Done] = [{} for _ in one.results]
        for number, place in enumerate(itertools.product(*(range(self.number(size)) for size in one.extents))):
            inner = self.inside(**{var.name: value for var, value in zip(one.variables, place, strict=True)})
            if outside(one):
                inner.space, inner.part, inner.turn = (*self.space, id(one), tuple(self.values.values()), place), 0, 0
            else:
                inner.part = self.part * math.prod(size.high for size in one.extents) + number
            inner.block(one.body)
            for done, used, result in zip(found, one.body.yields, one.results, strict=True):
                done |= {(*place, *more): step for more, step in inner.yielded(used, result.over).items()}
        self._results(one.results, found)

    def _both(self, old: Done, new: Done) -> Done:
        return {place: self.whole.meeting((old[place], step)) for place, step in new.items()}

    def _results(self, results: tuple[Result, ...], found: list[Done]) -> None:
        self.events |= {result.name: done for result, done in zip(results, found, strict=True)}


# ---------------------------------------------------------------------------------------------- running


def sizes_of(program: EventProgram, shapes: Iterable[tuple[int, ...]]) -> dict[str, int]:
    """The sizes known at run time, by the shapes of the program's tensors."""
    found: dict[str, int] = {}
    for one, shape in zip(program.arguments, shapes, strict=True):
        for size, number in zip(one.shape, shape, strict=True):
            name = str(size)
            value = found.setdefault(name, number) if size in program.symbols else int(size.low)
            if value != number:
                raise ArgumentError(f"{one.name}: a size of {number}", legal=f"{name} = {value}", at=call_site())
    return found


def unrolled(program: EventProgram, **sizes: int) -> Unrolled:
    """The steps of a program; `sizes` are those known at run time, by name."""
    return Unrolled(program, sizes)


def run_events(events: EventProgram, program: Tasks, mapping: Mapping, *arrays: Any, seed: int | None = None) -> None:
    """Run event IR on arrays, in the order of its arguments; those that it writes are changed.

    `program` and `mapping` say what the tasks that it calls do. With a `seed` steps run in any order that their events allow, as soon as
    what they wait for is done, or much later.
    """
    whole = Unrolled(events, sizes_of(events, (one.shape for one in arrays)))
    Machine(whole, program, mapping, arrays).run(order(whole, None if seed is None else random.Random(seed)))


def order(whole: Unrolled, shuffled: random.Random | None = None) -> list[int]:
    """An order of the steps: of the text, or any that events allow."""
    if shuffled is None:
        return list(range(len(whole.steps)))
    left = [len(one.after) for one in whole.steps]
    users: list[list[int]] = [[] for _ in whole.steps]
    for number, one in enumerate(whole.steps):
        for before in one.after:
            users[before].append(number)
    ready, found = [number for number, count in enumerate(left) if not count], []
    while ready:
        place = shuffled.randrange(len(ready))
        ready[place], ready[-1] = ready[-1], ready[place]
        found.append(ready.pop())
        for user in users[found[-1]]:
            left[user] -= 1
            ready += [user] if not left[user] else []
    return found


@attrs.define(eq=False)
class Machine:
    """Runs steps on arrays."""

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
        """Run steps in an order."""
        for number in numbers:
            one = self.whole.steps[number]
            if isinstance(one.leaf, Copy):
                source, target = (self._elements(ref, store, one) for ref, store in zip(_refs(one.leaf), one.stores, strict=True))
                target.write(source.read())
                if not one.leaf.target.path:
                    self.runner.copied(source, target)
            elif one.leaf is not None:
                self._call(one.leaf, one)

    def _call(self, leaf: Call, one: Step) -> None:
        instance = self.mapping[leaf.task]
        variant = self.program[instance.variant]
        tensors = tuple(
            TaskTensor(self._elements(ref, store, one), self.places.shape(ref, store, one.values), store.alloc.dtype)
            for ref, store in zip(leaf.arguments, one.stores, strict=True)
        )
        with_runner(self.runner, lambda: self.runner.call(instance, variant, tensors))

    def _array(self, store: Store) -> Any:
        """A tensor's array: of its block's shared memory, where it has a place there."""
        fresh = self.runner.tensor(store.shape, store.alloc.dtype).array
        if store.span is None or fresh.nbytes > store.span.behind - store.span.first:  # NumPy has no such element type
            return fresh
        memory = self.memories.setdefault(store.span.block, numpy.zeros(self.whole.shared, numpy.uint8))
        return memory[store.span.first : store.span.first + fresh.nbytes].view(fresh.dtype).reshape(store.shape)

    def _elements(self, ref: Ref, store: Store, one: Step) -> Elements:
        if store.number not in self.arrays:
            self.arrays[store.number] = self._array(store)
            self.runner.written.begin(self.arrays[store.number])  # copies, which are no tasks, write it
        found: Elements = self.places.of(ref, store, one.values).data
        return attrs.evolve(found, array=self.arrays[store.number])


@attrs.define(eq=False)
class Places:
    """Which elements pieces have, by their indices, whatever array they are of."""

    runner: Sequential
    found: dict[Any, TaskTensor] = attrs.field(factory=dict)
    masks: dict[Any, int] = attrs.field(factory=dict)

    def of(self, ref: Ref, store: Store, values: dict[str, int]) -> TaskTensor:
        """A piece of some array."""
        path = self._path(ref, values)
        key = (store.shape, store.alloc.dtype, path)
        if key not in self.found:
            piece = TaskTensor(self.runner.tensor(store.shape, store.alloc.dtype), store.shape, store.alloc.dtype)
            for by, place in path:
                shape = by.shape(piece.extents)
                piece = attrs.evolve(piece, data=self.runner.piece(piece, by, tuple(map(as_expr, place)), shape), extents=shape)
            self.found[key] = piece
        return self.found[key]

    def shape(self, ref: Ref, store: Store, values: dict[str, int]) -> Place:
        """The shape of a piece."""
        return self.of(ref, store, values).shape

    def mask(self, ref: Ref, store: Store, values: dict[str, int]) -> int:
        """The elements of a piece that lie inside its tensor, as the bits of a number."""
        key = (store.shape, self._path(ref, values))
        if key not in self.masks:
            inside = numpy.zeros(max(math.prod(store.shape), 1), bool)
            inside[self.of(ref, store, values).data.flat()] = True
            self.masks[key] = int.from_bytes(numpy.packbits(inside, bitorder="little").tobytes(), "little")
        return self.masks[key]

    def _path(self, ref: Ref, values: dict[str, int]) -> tuple[Any, ...]:
        return tuple((_known(by, values), tuple(int(one.evaluate(values)) for one in place)) for by, place in ref.path)


def _known(by: Partition, values: dict[str, int]) -> Partition:
    """A partition whose sizes are numbers."""

    def number(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(number, value))
        return int(value.evaluate(values)) if isinstance(value, Expr) else value

    fields = {one.name: getattr(by, one.name) for one in attrs.fields(type(by))}
    known = {name: number(value) for name, value in fields.items()}
    return by if known == fields else attrs.evolve(by, **known)


def _refs(leaf: Leaf) -> tuple[Ref, ...]:
    return (leaf.source, leaf.target) if isinstance(leaf, Copy) else leaf.arguments


# ---------------------------------------------------------------------------------------------- what is left to chance


@attrs.frozen
class Hazard:
    """Two steps that touch an element, which one writes, with nothing that says which of them is first."""

    first: str
    second: str
    tensor: str
    element: Place

    def __str__(self) -> str:
        return f"{self.tensor}{list(self.element)}: nothing orders {self.first} and {self.second}"


def hazards(program: EventProgram, most: int = 10, **sizes: int) -> tuple[Hazard, ...]:
    """What the results of event IR may depend on, beside its events.

    Args: most: how many are looked for. sizes: those known at run time, by name.
    """
    return tuple(itertools.islice(_hazards(Unrolled(program, sizes)), most))


def ordered(whole: Unrolled) -> list[int]:
    """For each step those that are done before it, as the bits of a number."""
    found: list[int] = []
    for one in whole.steps:
        bits = 0
        for number in one.after:
            bits |= found[number] | 1 << number
        found.append(bits)
    return found


def _hazards(whole: Unrolled) -> Iterator[Hazard]:
    before, places = ordered(whole), Places(Sequential(Tasks(), NOTHING))
    arguments, last = {one.number for one in whole.arguments}, before[whole.end] | 1 << whole.end
    touched: dict[int, list[tuple[int, int, bool]]] = {}
    beside: dict[Any, dict[int, Store]] = {}
    for number, one in enumerate(whole.steps):
        if one.leaf is None:
            continue
        for (ref, reads, writes), store in zip(refs_of(whole.program, one.leaf), one.stores, strict=True):
            if not (reads or writes):
                continue
            mask, others = places.mask(ref, store, one.values), touched.setdefault(store.number, [])
            for other, elements, wrote in others:
                if (writes or wrote) and other != number and not before[number] >> other & 1 and elements & mask:
                    yield _hazard(elements & mask, store, str(whole.steps[other]), str(one))
            others.append((number, mask, writes))
            if store.span is not None:
                yield from _meetings(whole, before, touched, beside.setdefault(store.span.block, {}), store, number)
            if writes and mask and store.number in arguments and not last >> number & 1:
                yield _hazard(mask, store, str(one), "the end of the program")


def _meetings(
    whole: Unrolled, before: list[int], touched: dict[int, list[tuple[int, int, bool]]], there: dict[int, Store], store: Store, number: int
) -> Iterator[Hazard]:
    """Whether the last access to a tensor meets one to another that lies in the same bytes; those `there` are met so far."""
    there[store.number] = store
    _, elements, writes = touched[store.number][-1]
    for other in there.values():
        if other is store or not (store.span and other.span and store.span.meets(other.span)):
            continue
        mine = _bytes(elements, store)
        for step, mask, wrote in touched[other.number]:
            if (writes or wrote) and step != number and not before[number] >> step & 1 and (common := mine & _bytes(mask, other)):
                lowest = (common & -common).bit_length() - 1
                names = f"{other.alloc.name} and {store.alloc.name}: shared byte "
                yield Hazard(str(whole.steps[step]), str(whole.steps[number]), names, (lowest,))


def _bytes(elements: int, store: Store) -> int:
    """The bytes of elements in shared memory, as the bits of a number."""
    assert store.span is not None
    count = max(math.prod(store.shape), 1)
    bits = numpy.unpackbits(numpy.frombuffer(elements.to_bytes(count // 8 + 1, "little"), numpy.uint8), bitorder="little")[:count]
    each = (store.span.behind - store.span.first) // count
    return int.from_bytes(numpy.packbits(bits.repeat(each), bitorder="little").tobytes(), "little") << store.span.first


def _hazard(elements: int, store: Store, first: str, second: str) -> Hazard:
    lowest = (elements & -elements).bit_length() - 1
    return Hazard(first, second, store.alloc.name, tuple(map(int, numpy.unravel_index(lowest, store.shape))))
