"""The order that events require: for each copy and call, the copies and calls that must precede it.

A statement may wait for the event of a loop, or for a loop-carried event. This module resolves such an event to the copies and calls that
it consists of. For each loop around such a copy or call, the result specifies the iteration: that at an index, that a number of iterations
before, or all iterations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import attrs

from fireiron.frozen import frozen
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
"""The variable of a loop within a thread block, and its trip count."""


@frozen
class Iteration:
    """An iteration of a loop: `before` iterations before the one at `index`; or all iterations, if `index` is EVERY."""

    index: Index
    before: int = 0

    def earlier(self, count: int) -> Iteration:
        """The iteration a number of iterations before."""
        return attrs.evolve(self, before=self.before + count)


@frozen
class Placed:
    """A copy or a call, and the loops around it within a thread block, the outermost first."""

    leaf: Leaf
    loops: tuple[Loop, ...]


@frozen
class Need:
    """The copy or call `second` waits for `first`, because of the event `by` of its precondition.

    `index` selects processors: one index per dimension of `first`. `iterations` has one entry per loop around `first`. `through` is an
    unknown copy or call between them, if there is one.
    """

    first: str
    second: str
    by: Event
    index: tuple[Index, ...]
    iterations: tuple[Iteration, ...]
    through: str | None = None

    def __str__(self) -> str:
        before = max((iteration.before for iteration in self.iterations), default=0)
        return f"{self.first} before {self.second}" + (f", {before} iteration{'s' if before > 1 else ''} before" if before else "")


def placed(program: EventProgram, grids: int = 1) -> dict[str, Placed]:
    """All copies and calls by their events, in program order.

    The outermost `grids` loops over blocks are distributed over blocks; all others are iterations of each block.
    """
    return {placed_leaf.leaf.event: placed_leaf for placed_leaf in _placed(program.body, (), grids)}


def _placed(block: Block, loops: tuple[Loop, ...], grids: int) -> Iterator[Placed]:
    for stmt in block.statements:
        if isinstance(stmt, (Copy, Call)):
            yield Placed(stmt, loops)
        inner_loops, left = loops, grids
        if isinstance(stmt, For):
            inner_loops = (*loops, (stmt.variable, stmt.extent))
        elif isinstance(stmt, Pfor) and grids and stmt.processor.level == BlockLevel:
            left = grids - 1
        elif isinstance(stmt, Pfor):
            inner_loops = (*loops, *zip(stmt.variables, stmt.extents, strict=True))
        for inner in blocks_of(stmt):
            yield from _placed(inner, inner_loops, left)


def needs(program: EventProgram, is_known: Callable[[str], bool] = lambda event: True, grids: int = 1) -> tuple[Need, ...]:
    """All pairs of copies and calls that events order directly, or through unknown statements."""
    return Orders(program, is_known, placed(program, grids)).all()


Iterations: TypeAlias = "Mapping[Var, Iteration]"


@frozen
class Waiting:
    """The waiting statement, the event that it waits for, and the last unknown copy or call between them, if there is one."""

    second: str
    by: Event
    through: str | None = None


@attrs.define(eq=False)
class Orders:
    """Resolves events to copies and calls."""

    program: EventProgram
    is_known: Callable[[str], bool]
    leaves: dict[str, Placed]
    loops: dict[str, tuple[For | Pfor | Branch, int]] = attrs.field(factory=dict, init=False)
    carries: dict[str, tuple[For, int]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._record_names(self.program.body)

    def _record_names(self, block: Block) -> None:
        for stmt in block.statements:
            if isinstance(stmt, (For, Pfor, Branch)):
                self.loops |= {result.name: (stmt, number) for number, result in enumerate(stmt.results)}
            if isinstance(stmt, For):
                self.carries |= {carry.name: (stmt, number) for number, carry in enumerate(stmt.carries)}
            for inner in blocks_of(stmt):
                self._record_names(inner)

    def all(self) -> tuple[Need, ...]:
        """All pairs, without repetitions."""
        needs_of_leaves = (
            need
            for event, leaf in self.leaves.items()
            if self.is_known(event)
            for waited in leaf.leaf.after
            for need in self._of((waited,), {}, Waiting(event, waited), frozenset())
        )
        return tuple(dict.fromkeys(needs_of_leaves))

    def _of(self, events: Iterable[Event], current: Iterations, waiting: Waiting, seen: frozenset[str]) -> Iterator[Need]:
        for event in events:
            if event.name in self.leaves:
                yield from self._leaf(event, current, waiting, seen)
            elif event.name in self.loops:
                loop, number = self.loops[event.name]
                yield from self._result(event, loop, number, current, waiting, seen)
            elif event.name not in seen:
                yield from self._carried(event, current, waiting, seen | {event.name})

    def _leaf(self, event: Event, current: Iterations, waiting: Waiting, seen: frozenset[str]) -> Iterator[Need]:
        leaf = self.leaves[event.name]
        if self.is_known(event.name):
            iterations = tuple(current.get(var, Iteration(var)) for var, _ in leaf.loops)
            yield Need(event.name, waiting.second, waiting.by, event.index, iterations, waiting.through)
            return
        values = {var: iteration.index for var, iteration in current.items()} | _values(leaf.leaf.over, event.index)
        yield from self._of(_at(leaf.leaf.after, values), current, attrs.evolve(waiting, through=event.name), seen)

    def _result(
        self, event: Event, loop: For | Pfor | Branch, number: int, current: Iterations, waiting: Waiting, seen: frozenset[str]
    ) -> Iterator[Need]:
        """Resolve the event of a loop to statements in all of its iterations, or in the iterations at the event's indices."""
        over, index, inner = loop.results[number].over, event.index, dict(current)
        values: dict[Var, Index] = {}
        if isinstance(loop, Pfor):
            values = dict(zip(loop.variables, index, strict=False))
            index = index[len(loop.variables) :]
        elif isinstance(loop, For):
            values = {loop.variable: EVERY}
            if number < len(loop.carries):
                yield from self._of(_at(loop.carries[number].initial, _values(over, index)), current, waiting, seen)
        inner |= {var: Iteration(index_of_var) for var, index_of_var in values.items()}
        for block in blocks_of(loop):
            yield from self._of(_at(block.yields[number], values | _values(over, index)), inner, waiting, seen)

    def _carried(self, event: Event, current: Iterations, waiting: Waiting, seen: frozenset[str]) -> Iterator[Need]:
        """Resolve a carried event to statements before the loop and in previous iterations."""
        loop, number = self.carries[event.name]
        carry = loop.carries[number]
        values = _values(carry.over, event.index)
        yield from self._of(_at(carry.initial, values), current, waiting, seen)
        earlier = {**current, loop.variable: current.get(loop.variable, Iteration(loop.variable)).earlier(carry.distance)}
        yield from self._of(_at(loop.body.yields[number], values), earlier, waiting, seen)


def _values(over: Type, index: tuple[Index, ...]) -> dict[Var, Index]:
    return dict(zip(processor_variables(over), index, strict=True))


def _at(events: Events, values: Mapping[Var, Index]) -> Events:
    """Events with indices substituted for variables."""
    return tuple(attrs.evolve(event, index=tuple(_index(index, values) for index in event.index)) for event in events)


def _index(index: Index, values: Mapping[Var, Index]) -> Index:
    if isinstance(index, Every) or any(isinstance(values.get(var), Every) for var in index.variables()):
        return EVERY
    return as_expr(index).substitute({var: value for var, value in values.items() if not isinstance(value, Every)})
