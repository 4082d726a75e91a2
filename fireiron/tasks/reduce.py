"""Event IR without what is not needed: preconditions that others imply, and events of loops that nobody waits for."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from fireiron.tasks.events import (
    EVERY,
    Alloc,
    Block,
    Branch,
    Call,
    Compound,
    Copy,
    Event,
    EventProgram,
    Events,
    Every,
    For,
    Index,
    Pfor,
    Statement,
    Type,
    blocks_of,
    defined,
    processor_variables,
    types_of,
    walk,
    with_events,
    with_results,
)
from fireiron.values.expr import Expr, Var


def reduced(program: EventProgram) -> EventProgram:
    """The program without preconditions that others of the same statement imply, and without results that nobody needs."""
    implied = Implied(program)
    return pruned(attrs.evolve(program, body=with_events(program.body, implied.least)))


# ---------------------------------------------------------------------------------------------- what implies what


@attrs.define(eq=False)
class Implied:
    """Which events are done when one is: those that its statement waited for, and so on.

    Of loops and branches only what stands outside counts, as events inside are others in each turn.
    """

    program: EventProgram
    makers: dict[str, Statement] = attrs.field(factory=dict, init=False)
    carriers: dict[str, tuple[For, int]] = attrs.field(factory=dict, init=False)
    inner: dict[str, frozenset[str]] = attrs.field(factory=dict, init=False)
    types: dict[str, Type] = attrs.field(factory=dict, init=False)
    known: dict[Event, frozenset[Event]] = attrs.field(factory=dict, init=False)
    beside: dict[str, tuple[tuple[str, int], ...]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.types = types_of(self.program)
        for one in walk(self.program.body):
            self.makers |= dict.fromkeys(defined(one), one)
            if isinstance(one, For):
                self.carriers |= {carry.name: (one, number) for number, carry in enumerate(one.carries)}
            names = frozenset(_inner_names(one))
            self.inner |= dict.fromkeys(defined(one), names)
        loops = [one for one in walk(self.program.body) if isinstance(one, (For, Pfor)) and len(one.results) > 1]
        before: dict[str, tuple[tuple[str, int], ...]] | None = None
        while before != self.beside:
            before = self.beside
            for one in reversed(loops):
                self.beside = {**self.beside, **self._beside(one)}
                self.known.clear()

    def _beside(self, loop: For | Pfor) -> dict[str, tuple[tuple[str, int], ...]]:
        """For each event that a loop has or carries the others that are done as well, as they are at the beginning and in each turn.

        With how many dimensions have the same index; along the rest all are done.
        """
        carries = loop.carries if isinstance(loop, For) else ()
        initial = [carry.initial for carry in carries] + [()] * (len(loop.results) - len(carries))
        lead = len(loop.dims) if isinstance(loop, Pfor) else 0
        found: dict[str, tuple[tuple[str, int], ...]] = {}
        for number, result in enumerate(loop.results):
            others: list[tuple[int, int]] = []
            for other, each in enumerate(loop.results):
                if other == number:
                    continue
                pairs = ((loop.body.yields[number], loop.body.yields[other]), (initial[number], initial[other]))
                if each.over == result.over and all(self._give(own, wanted) for own, wanted in pairs):
                    others.append((other, lead + len(each.over)))
                elif all(self._give(own, self._along(wanted, each.over)) for own, wanted in pairs):
                    others.append((other, lead))
            found[result.name] = tuple((loop.results[other].name, kept) for other, kept in others)
            if number < len(carries):
                least = carries[number].distance
                nearer = ((other, kept) for other, kept in others if other < len(carries) and carries[other].distance >= least)
                found[carries[number].name] = tuple((carries[other].name, kept) for other, kept in nearer)
        return found

    def _along(self, events: Events, over: Type) -> Events | None:
        """All events of these along some dimensions; None where that is not known."""
        variables = processor_variables(over)
        found = [self._at((one,), variables, (EVERY,) * len(variables), over) for one in events]
        return tuple(one for each in found for one in each) if all(found) else None

    def _give(self, events: Events, wanted: Events | None) -> bool:
        """Whether all of some events are done when others are."""
        known = frozenset[Event]().union(*map(self.before, events))
        return wanted is not None and all(any(_gives(given, one) for given in known) for one in wanted)

    def least(self, events: Events) -> Events:
        """The events without those that others imply."""
        kept = list(dict.fromkeys(events))
        for one in tuple(kept):
            others = [other for other in kept if other is not one]
            if any(_gives(given, one) for other in others for given in self.before(other)):
                kept.remove(one)
        return tuple(kept)

    def before(self, event: Event) -> frozenset[Event]:
        """All that is done when an event is, with it; indices as far as they are known."""
        if event not in self.known:
            self.known[event] = frozenset([event])  # a circle would add nothing
            self.known[event] = frozenset([event]).union(*map(self.before, self._direct(event)))
        return self.known[event]

    def _direct(self, event: Event) -> Iterable[Event]:
        also = {self._other(event, name, kept) for name, kept in self.beside.get(event.name, ())}
        if event.name in self.carriers:
            loop, number = self.carriers[event.name]
            carry = loop.carries[number]
            return also | self._at(carry.initial, processor_variables(carry.over), event.index, carry.over)
        one = self.makers[event.name]
        if isinstance(one, (Copy, Call)):
            return self._at(one.after, processor_variables(one.over), event.index, one.over)
        assert not isinstance(one, Alloc)
        number = next(place for place, each in enumerate(one.results) if each.name == event.name)
        found = also
        if isinstance(one, For) and number < len(one.carries):
            carry = one.carries[number]
            found |= self._at(carry.initial, processor_variables(carry.over), event.index, carry.over)
        if isinstance(one, Branch):
            then, otherwise = (self._yielded(one, block, number, event) for block in blocks_of(one))
            return found | (then & otherwise)
        if all(size.low >= 1 for size in (one.extents if isinstance(one, Pfor) else (one.extent,))):
            found |= self._yielded(one, one.body, number, event)
        return found

    def _other(self, event: Event, name: str, kept: int) -> Event:
        """Another event, with the same indices of the first dimensions and all along the rest."""
        return Event(name, (*event.index[:kept], *(EVERY,) * (len(self.types[name]) - kept)))

    def _yielded(self, one: Compound, block: Block, number: int, event: Event) -> set[Event]:
        """What stands outside and is done when a block's yield is."""
        over = one.results[number].over
        dims = (*one.dims, *over) if isinstance(one, Pfor) else over
        variables = (*(one.variables if isinstance(one, Pfor) else ()), *processor_variables(over))
        moving = {one.variable} if isinstance(one, For) else set()
        found = set()
        for used in self._at(block.yields[number], variables, event.index, dims):
            found |= {
                each
                for each in self.before(used)
                if each.name not in self.inner[event.name] and not any(moving & _variables(place) for place in each.index)
            }
        return found

    def _at(self, events: Events, variables: tuple[Var, ...], index: tuple[Index, ...], dims: Type) -> set[Event]:
        """Events whose indices have values for variables; those are left out of which less is known."""
        values = dict(zip(variables, index, strict=True))
        sizes = {var: dim.size for var, dim in zip(variables, dims, strict=True)}
        found = set()
        for one in events:
            places = [self._index(place, values, sizes, dim.size) for place, dim in zip(one.index, self.types[one.name], strict=True)]
            if None not in places:
                found.add(attrs.evolve(one, index=tuple(places)))
        return found

    def _index(self, place: Index, values: dict[Var, Index], sizes: dict[Var, Expr], size: Expr) -> Any:
        if isinstance(place, Every):
            return place
        broadcast = [var for var in place.variables() if values.get(var) is EVERY]
        if not broadcast:
            return place.substitute({var: one for var, one in values.items() if not isinstance(one, Every)})
        return EVERY if place == broadcast[0] and sizes[broadcast[0]] == size else None


def _inner_names(one: Statement) -> Iterable[str]:
    if isinstance(one, For):
        yield from (carry.name for carry in one.carries)
    for block in blocks_of(one):
        for inner in walk(block):
            yield from defined(inner)
            if isinstance(inner, For):
                yield from (carry.name for carry in inner.carries)


def _variables(place: Index) -> frozenset[Var]:
    return frozenset() if isinstance(place, Every) else place.variables()


def _gives(given: Event, wanted: Event) -> bool:
    """Whether an event is another one, or all along some dimensions of it."""
    pairs = zip(given.index, wanted.index, strict=False)
    return given.name == wanted.name and all(one is EVERY or one == other for one, other in pairs)


# ---------------------------------------------------------------------------------------------- what nobody waits for


def pruned(program: EventProgram) -> EventProgram:
    """The program without results of loops and branches that nobody waits for; a pfor keeps one, which says on what processors it is."""
    while True:
        used = _used(program.body)
        less = attrs.evolve(program, body=_without(program.body, used))
        if less == program:
            return program
        program = less


def _used(block: Block) -> set[str]:
    found = {event.name for events in block.yields for event in events}
    for one in block.statements:
        if isinstance(one, (Copy, Call)):
            found |= {event.name for event in one.after}
        if isinstance(one, For):
            found |= {event.name for carry in one.carries for event in carry.initial}
        for inner in blocks_of(one):
            found |= _used(inner)
    return found


def _without(block: Block, used: set[str]) -> Block:
    return attrs.evolve(block, statements=tuple(_pruned(one, used) for one in block.statements))


def _pruned(one: Statement, used: set[str]) -> Statement:
    if isinstance(one, (Alloc, Copy, Call)):
        return one
    blocks = tuple(_without(block, used) for block in blocks_of(one))
    carries = one.carries if isinstance(one, For) else ()
    needed = [number for number, result in enumerate(one.results) if result.name in used]
    begins = {number for number, carry in enumerate(carries) if carry.name in used or (number in needed and carry.initial)}
    kept = [*sorted(begins), *(number for number in needed if number not in begins)]
    if not kept and isinstance(one, Pfor):
        kept = [0]
    if isinstance(one, For):
        one = attrs.evolve(one, carries=tuple(carries[number] for number in sorted(begins)))
    blocks = tuple(attrs.evolve(block, yields=tuple(block.yields[number] for number in kept)) for block in blocks)
    return with_results(one, tuple(one.results[number] for number in kept), blocks)


# ---------------------------------------------------------------------------------------------- names


def renumbered(program: EventProgram) -> EventProgram:
    """The program with events named `e1`, `e2`, ... in the order of the text, and `p1`, `p2`, ... what loops carry."""
    taken = {one.name for one in (*program.arguments, *walk(program.body)) if isinstance(one, Alloc)}
    made, carried = _numbered("e", taken), _numbered("p", taken)
    names: dict[str, str] = {}
    for one in walk(program.body):
        names |= {name: next(made) for name in defined(one)}
        if isinstance(one, For):
            names |= {carry.name: next(carried) for carry in one.carries}

    def renamed(events: Events) -> Events:
        return tuple(attrs.evolve(event, name=names[event.name]) for event in events)

    return attrs.evolve(program, body=_named(with_events(program.body, renamed), names))


def _numbered(letter: str, taken: set[str]) -> Iterator[str]:
    return (name for number in itertools.count(1) if (name := f"{letter}{number}") not in taken)


def _named(block: Block, names: dict[str, str]) -> Block:
    return attrs.evolve(block, statements=tuple(_renamed(one, names) for one in block.statements))


def _renamed(one: Statement, names: dict[str, str]) -> Statement:
    if isinstance(one, Alloc):
        return one
    if isinstance(one, (Copy, Call)):
        return attrs.evolve(one, event=names[one.event])
    results = tuple(attrs.evolve(result, name=names[result.name]) for result in one.results)
    if isinstance(one, For):
        one = attrs.evolve(one, carries=tuple(attrs.evolve(carry, name=names[carry.name]) for carry in one.carries))
    return with_results(one, results, tuple(_named(block, names) for block in blocks_of(one)))
