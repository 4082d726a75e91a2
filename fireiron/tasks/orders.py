"""The order that events ask for: of each copy and call of a program which others are done before, of which turns and processors.

An event that is waited for may be that of a loop, or one that a loop carries; here it is followed to the copies and calls that it is made
of. Of each loop around such a one it is said which turn is meant: one at an index, one so many turns before, or all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs

from fireiron.tasks.events import (
    EVERY,
    Block,
    Branch,
    Call,
    Copy,
    Event,
    EventProgram,
    Events,
    Every,
    For,
    Index,
    Leaf,
    Pfor,
    Type,
    blocks_of,
    processor_variables,
)
from fireiron.values.expr import Expr, Var, as_expr
from fireiron.values.machine import Block as BlockLevel

Loop: TypeAlias = "tuple[Var, Expr]"
"""The variable of a loop inside a block, and how many turns it has."""


@attrs.frozen
class Turn:
    """Which turn of a loop: that at an index, less some turns; or all of them."""

    index: Index
    before: int = 0

    def earlier(self, turns: int) -> Turn:
        """So many turns before."""
        return attrs.evolve(self, before=self.before + turns)


@attrs.frozen
class Placed:
    """A copy or a call, and the loops inside a block around it, from the outermost in."""

    leaf: Leaf
    loops: tuple[Loop, ...]


@attrs.frozen
class Need:
    """`second` waits for `first`, by an event of its precondition: at an index for each of the first's dimensions, in a turn of each loop.

    `through` is a copy or a call between them that is not known, if there is one.
    """

    first: str
    second: str
    by: Event
    index: tuple[Index, ...]
    turns: tuple[Turn, ...]
    through: str | None = None

    def __str__(self) -> str:
        before = max((one.before for one in self.turns), default=0)
        return f"{self.first} before {self.second}" + (f", {before} turn{'s' if before > 1 else ''} before" if before else "")


def placed(program: EventProgram, grids: int = 1) -> dict[str, Placed]:
    """All copies and calls by their events, in the order of the text.

    As many loops over blocks as there are `grids`, from the outermost in, are dealt to blocks; all others are turns of each block.
    """
    return {one.leaf.event: one for one in _placed(program.body, (), grids)}


def _placed(block: Block, loops: tuple[Loop, ...], grids: int) -> Iterator[Placed]:
    for one in block.statements:
        if isinstance(one, (Copy, Call)):
            yield Placed(one, loops)
        mine, left = loops, grids
        if isinstance(one, For):
            mine = (*loops, (one.variable, one.extent))
        elif isinstance(one, Pfor) and grids and one.processor.level == BlockLevel:
            left = grids - 1
        elif isinstance(one, Pfor):
            mine = (*loops, *zip(one.variables, one.extents, strict=True))
        for inner in blocks_of(one):
            yield from _placed(inner, mine, left)


def needs(program: EventProgram, is_known: Callable[[str], bool] = lambda event: True, grids: int = 1) -> tuple[Need, ...]:
    """All pairs of copies and calls that events order, directly; through those that are not known, by what these wait for."""
    return Orders(program, is_known, placed(program, grids)).all()


Turns: TypeAlias = "Mapping[Var, Turn]"


@attrs.frozen
class Waiting:
    """Who waits, by which event, and through which copy or call that is not known."""

    second: str
    by: Event
    through: str | None = None


@attrs.define(eq=False)
class Orders:
    """Follows events to copies and calls."""

    program: EventProgram
    is_known: Callable[[str], bool]
    leaves: dict[str, Placed]
    loops: dict[str, tuple[For | Pfor | Branch, int]] = attrs.field(factory=dict, init=False)
    carries: dict[str, tuple[For, int]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._note(self.program.body)

    def _note(self, block: Block) -> None:
        for one in block.statements:
            if isinstance(one, (For, Pfor, Branch)):
                self.loops |= {result.name: (one, number) for number, result in enumerate(one.results)}
            if isinstance(one, For):
                self.carries |= {carry.name: (one, number) for number, carry in enumerate(one.carries)}
            for inner in blocks_of(one):
                self._note(inner)

    def all(self) -> tuple[Need, ...]:
        """All pairs, each once."""
        found = (
            need
            for event, one in self.leaves.items()
            if self.is_known(event)
            for waited in one.leaf.after
            for need in self._of((waited,), {}, Waiting(event, waited), frozenset())
        )
        return tuple(dict.fromkeys(found))

    def _of(self, events: Iterable[Event], turns: Turns, waiting: Waiting, seen: frozenset[str]) -> Iterator[Need]:
        for one in events:
            if one.name in self.leaves:
                yield from self._leaf(one, turns, waiting, seen)
            elif one.name in self.loops:
                loop, number = self.loops[one.name]
                yield from self._result(one, loop, number, turns, waiting, seen)
            elif one.name not in seen:
                yield from self._carried(one, turns, waiting, seen | {one.name})

    def _leaf(self, event: Event, turns: Turns, waiting: Waiting, seen: frozenset[str]) -> Iterator[Need]:
        one = self.leaves[event.name]
        if self.is_known(event.name):
            meant = tuple(turns.get(var, Turn(var)) for var, _ in one.loops)
            yield Need(event.name, waiting.second, waiting.by, event.index, meant, waiting.through)
            return
        values = {var: turn.index for var, turn in turns.items()} | _values(one.leaf.over, event.index)
        yield from self._of(_at(one.leaf.after, values), turns, attrs.evolve(waiting, through=event.name), seen)

    def _result(
        self, event: Event, loop: For | Pfor | Branch, number: int, turns: Turns, waiting: Waiting, seen: frozenset[str]
    ) -> Iterator[Need]:
        """What the event of a loop is made of: in all of its turns, or in those at the event's indices."""
        over, index, inner = loop.results[number].over, event.index, dict(turns)
        values: dict[Var, Index] = {}
        if isinstance(loop, Pfor):
            values = dict(zip(loop.variables, index, strict=False))
            index = index[len(loop.variables) :]
        elif isinstance(loop, For):
            values = {loop.variable: EVERY}
            if number < len(loop.carries):
                yield from self._of(_at(loop.carries[number].initial, _values(over, index)), turns, waiting, seen)
        inner |= {var: Turn(one) for var, one in values.items()}
        for block in blocks_of(loop):
            yield from self._of(_at(block.yields[number], values | _values(over, index)), inner, waiting, seen)

    def _carried(self, event: Event, turns: Turns, waiting: Waiting, seen: frozenset[str]) -> Iterator[Need]:
        """What is done before a loop, and in turns before."""
        loop, number = self.carries[event.name]
        carry = loop.carries[number]
        values = _values(carry.over, event.index)
        yield from self._of(_at(carry.initial, values), turns, waiting, seen)
        earlier = {**turns, loop.variable: turns.get(loop.variable, Turn(loop.variable)).earlier(carry.distance)}
        yield from self._of(_at(loop.body.yields[number], values), earlier, waiting, seen)


def _values(over: Type, index: tuple[Index, ...]) -> dict[Var, Index]:
    return dict(zip(processor_variables(over), index, strict=True))


def _at(events: Events, values: Mapping[Var, Index]) -> Events:
    """Events with indices for variables."""
    return tuple(attrs.evolve(one, index=tuple(_index(place, values) for place in one.index)) for one in events)


def _index(place: Index, values: Mapping[Var, Index]) -> Index:
    if isinstance(place, Every) or any(isinstance(values.get(var), Every) for var in place.variables()):
        return EVERY
    return as_expr(place).substitute({var: one for var, one in values.items() if not isinstance(one, Every)})
