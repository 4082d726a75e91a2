"""Simplify event IR: remove preconditions that others imply, and results of loops that no statement waits for."""

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
    """Return the program without unused results, and without events that other events of the same precondition imply."""
    implied = Implied(program)
    return pruned(attrs.evolve(program, body=with_events(program.body, implied.least)))


# ---------------------------------------------------------------------------------------------- implication


@attrs.define(eq=False)
class Implied:
    """Computes the events that an event implies: those that its statement waits for, transitively.

    A loop or a branch implies only events from outside it, because inner events differ between iterations. `makers` has the statement that
    defines an event, `carriers` the loop and the number of a carried event, and `inner` the names of the events inside its statement.
    """

    program: EventProgram
    makers: dict[str, Statement] = attrs.field(factory=dict, init=False)
    carriers: dict[str, tuple[For, int]] = attrs.field(factory=dict, init=False)
    inner: dict[str, frozenset[str]] = attrs.field(factory=dict, init=False)
    types: dict[str, Type] = attrs.field(factory=dict, init=False)
    known: dict[Event, frozenset[Event]] = attrs.field(factory=dict, init=False)
    equivalent: dict[str, tuple[tuple[str, int], ...]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.types = types_of(self.program)
        for loop in walk(self.program.body):
            self.makers |= dict.fromkeys(defined(loop), loop)
            if isinstance(loop, For):
                self.carriers |= {carry.name: (loop, number) for number, carry in enumerate(loop.carries)}
            names = frozenset(_inner_names(loop))
            self.inner |= dict.fromkeys(defined(loop), names)
        loops = [stmt for stmt in walk(self.program.body) if isinstance(stmt, (For, Pfor)) and len(stmt.results) > 1]
        before: dict[str, tuple[tuple[str, int], ...]] | None = None
        while before != self.equivalent:
            before = self.equivalent
            for loop in reversed(loops):
                self.equivalent = {**self.equivalent, **self._equivalent(loop)}
                self.known.clear()

    def _equivalent(self, loop: For | Pfor) -> dict[str, tuple[tuple[str, int], ...]]:
        """Return, for each result or carried event of a loop, the others that it implies, initially and in each iteration.

        Each is a name with a number: the event is implied for the same index along this many leading dimensions, and for all indices along
        the rest.
        """
        carries = loop.carries if isinstance(loop, For) else ()
        initial = [carry.initial for carry in carries] + [()] * (len(loop.results) - len(carries))
        lead = len(loop.dims) if isinstance(loop, Pfor) else 0
        implied: dict[str, tuple[tuple[str, int], ...]] = {}
        for number, result in enumerate(loop.results):
            others: list[tuple[int, int]] = []
            for other, other_result in enumerate(loop.results):
                if other == number:
                    continue
                pairs = ((loop.body.yields[number], loop.body.yields[other]), (initial[number], initial[other]))
                if other_result.over == result.over and all(self._give(own, wanted) for own, wanted in pairs):
                    others.append((other, lead + len(other_result.over)))
                elif all(self._give(own, self._along(wanted, other_result.over)) for own, wanted in pairs):
                    others.append((other, lead))
            implied[result.name] = tuple((loop.results[other].name, kept) for other, kept in others)
            if number < len(carries):
                least = carries[number].distance
                nearer = ((other, kept) for other, kept in others if other < len(carries) and carries[other].distance >= least)
                implied[carries[number].name] = tuple((carries[other].name, kept) for other, kept in nearer)
        return implied

    def _along(self, events: Events, over: Type) -> Events | None:
        """Return the events for all indices along some dimensions; None if these are unknown."""
        variables = processor_variables(over)
        shifted = [self._at((event,), variables, (EVERY,) * len(variables), over) for event in events]
        return tuple(event for events_of_one in shifted for event in events_of_one) if all(shifted) else None

    def _give(self, events: Events, wanted: Events | None) -> bool:
        """Whether `events` imply `wanted`."""
        known = frozenset[Event]().union(*map(self.before, events))
        return wanted is not None and all(any(_gives(given, event) for given in known) for event in wanted)

    def least(self, events: Events) -> Events:
        """The events without those that others imply."""
        kept = list(dict.fromkeys(events))
        for event in tuple(kept):
            others = [other for other in kept if other is not event]
            if any(_gives(given, event) for other in others for given in self.before(other)):
                kept.remove(event)
        return tuple(kept)

    def before(self, event: Event) -> frozenset[Event]:
        """Return all events that an event implies, including itself. Events whose indices are unknown are omitted."""
        if event not in self.known:
            self.known[event] = frozenset([event])  # for cycles
            self.known[event] = frozenset([event]).union(*map(self.before, self._direct(event)))
        return self.known[event]

    def _direct(self, event: Event) -> Iterable[Event]:
        implied = {self._other(event, name, kept) for name, kept in self.equivalent.get(event.name, ())}
        if event.name in self.carriers:
            loop, number = self.carriers[event.name]
            carry = loop.carries[number]
            return implied | self._at(carry.initial, processor_variables(carry.over), event.index, carry.over)
        stmt = self.makers[event.name]
        if isinstance(stmt, (Copy, Call)):
            return self._at(stmt.after, processor_variables(stmt.over), event.index, stmt.over)
        assert not isinstance(stmt, Alloc)
        number = next(place for place, result in enumerate(stmt.results) if result.name == event.name)
        implied_events = implied
        if isinstance(stmt, For) and number < len(stmt.carries):
            carry = stmt.carries[number]
            implied_events |= self._at(carry.initial, processor_variables(carry.over), event.index, carry.over)
        if isinstance(stmt, Branch):
            then, otherwise = (self._yielded(stmt, block, number, event) for block in blocks_of(stmt))
            return implied_events | (then & otherwise)
        if all(size.low >= 1 for size in (stmt.extents if isinstance(stmt, Pfor) else (stmt.extent,))):
            implied_events |= self._yielded(stmt, stmt.body, number, event)
        return implied_events

    def _other(self, event: Event, name: str, kept: int) -> Event:
        """Return the event `name` with the leading indices of `event`, and all indices along the other dimensions."""
        return Event(name, (*event.index[:kept], *(EVERY,) * (len(self.types[name]) - kept)))

    def _yielded(self, stmt: Compound, block: Block, number: int, event: Event) -> set[Event]:
        """Return the events from outside a statement that a yield of its block implies."""
        over = stmt.results[number].over
        dims = (*stmt.dims, *over) if isinstance(stmt, Pfor) else over
        variables = (*(stmt.variables if isinstance(stmt, Pfor) else ()), *processor_variables(over))
        moving = {stmt.variable} if isinstance(stmt, For) else set()
        outer = set()
        for used in self._at(block.yields[number], variables, event.index, dims):
            outer |= {
                event_before
                for event_before in self.before(used)
                if event_before.name not in self.inner[event.name] and not any(moving & _variables(place) for place in event_before.index)
            }
        return outer

    def _at(self, events: Events, variables: tuple[Var, ...], index: tuple[Index, ...], dims: Type) -> set[Event]:
        """Return events with indices substituted for variables, without events whose indices are then unknown."""
        values = dict(zip(variables, index, strict=True))
        sizes = {var: dim.size for var, dim in zip(variables, dims, strict=True)}
        shifted = set()
        for event in events:
            places = [self._index(place, values, sizes, dim.size) for place, dim in zip(event.index, self.types[event.name], strict=True)]
            if None not in places:
                shifted.add(attrs.evolve(event, index=tuple(places)))
        return shifted

    def _index(self, place: Index, values: dict[Var, Index], sizes: dict[Var, Expr], size: Expr) -> Any:
        if isinstance(place, Every):
            return place
        broadcast = [var for var in place.variables() if values.get(var) is EVERY]
        if not broadcast:
            return place.substitute({var: index for var, index in values.items() if not isinstance(index, Every)})
        return EVERY if place == broadcast[0] and sizes[broadcast[0]] == size else None


def _inner_names(stmt: Statement) -> Iterable[str]:
    if isinstance(stmt, For):
        yield from (carry.name for carry in stmt.carries)
    for block in blocks_of(stmt):
        for inner in walk(block):
            yield from defined(inner)
            if isinstance(inner, For):
                yield from (carry.name for carry in inner.carries)


def _variables(place: Index) -> frozenset[Var]:
    return frozenset() if isinstance(place, Every) else place.variables()


def _gives(given: Event, wanted: Event) -> bool:
    """Whether an event is equal to another, or covers it by broadcast indices."""
    pairs = zip(given.index, wanted.index, strict=False)
    return given.name == wanted.name and all(given_index is EVERY or given_index == other for given_index, other in pairs)


# ---------------------------------------------------------------------------------------------- unused results


def pruned(program: EventProgram) -> EventProgram:
    """Return the program without unused results of loops and branches. A pfor keeps at least one result, whose type has its processors."""
    while True:
        used = _used(program.body)
        less = attrs.evolve(program, body=_without(program.body, used))
        if less == program:
            return program
        program = less


def _used(block: Block) -> set[str]:
    names = {event.name for events in block.yields for event in events}
    for stmt in block.statements:
        if isinstance(stmt, (Copy, Call)):
            names |= {event.name for event in stmt.after}
        if isinstance(stmt, For):
            names |= {event.name for carry in stmt.carries for event in carry.initial}
        for inner in blocks_of(stmt):
            names |= _used(inner)
    return names


def _without(block: Block, used: set[str]) -> Block:
    return attrs.evolve(block, statements=tuple(_pruned(stmt, used) for stmt in block.statements))


def _pruned(stmt: Statement, used: set[str]) -> Statement:
    if isinstance(stmt, (Alloc, Copy, Call)):
        return stmt
    blocks = tuple(_without(block, used) for block in blocks_of(stmt))
    carries = stmt.carries if isinstance(stmt, For) else ()
    needed = [number for number, result in enumerate(stmt.results) if result.name in used]
    carried = {number for number, carry in enumerate(carries) if carry.name in used or (number in needed and carry.initial)}
    kept = [*sorted(carried), *(number for number in needed if number not in carried)]
    if not kept and isinstance(stmt, Pfor):
        kept = [0]
    if isinstance(stmt, For):
        stmt = attrs.evolve(stmt, carries=tuple(carries[number] for number in sorted(carried)))
    blocks = tuple(attrs.evolve(block, yields=tuple(block.yields[number] for number in kept)) for block in blocks)
    return with_results(stmt, tuple(stmt.results[number] for number in kept), blocks)


# ---------------------------------------------------------------------------------------------- names


def renumbered(program: EventProgram) -> EventProgram:
    """The program with events renamed to `e1`, `e2`, ... in program order, and carried events to `p1`, `p2`, ..."""
    used_names = {alloc.name for alloc in (*program.arguments, *walk(program.body)) if isinstance(alloc, Alloc)}
    event_names, carry_names = _numbered("e", used_names), _numbered("p", used_names)
    names: dict[str, str] = {}
    for stmt in walk(program.body):
        names |= {name: next(event_names) for name in defined(stmt)}
        if isinstance(stmt, For):
            names |= {carry.name: next(carry_names) for carry in stmt.carries}

    def renamed(events: Events) -> Events:
        return tuple(attrs.evolve(event, name=names[event.name]) for event in events)

    return attrs.evolve(program, body=_named(with_events(program.body, renamed), names))


def _numbered(letter: str, used_names: set[str]) -> Iterator[str]:
    return (name for number in itertools.count(1) if (name := f"{letter}{number}") not in used_names)


def _named(block: Block, names: dict[str, str]) -> Block:
    return attrs.evolve(block, statements=tuple(_renamed(stmt, names) for stmt in block.statements))


def _renamed(stmt: Statement, names: dict[str, str]) -> Statement:
    if isinstance(stmt, Alloc):
        return stmt
    if isinstance(stmt, (Copy, Call)):
        return attrs.evolve(stmt, event=names[stmt.event])
    results = tuple(attrs.evolve(result, name=names[result.name]) for result in stmt.results)
    if isinstance(stmt, For):
        stmt = attrs.evolve(stmt, carries=tuple(attrs.evolve(carry, name=names[carry.name]) for carry in stmt.carries))
    return with_results(stmt, results, tuple(_named(block, names) for block in blocks_of(stmt)))
