"""Vectorization: remove parallel loops over warpgroups, warps and threads (Cypress, section 4.2.2, Figure 9).

Loops are removed from the innermost processor outward. The statements of a removed loop, their events and their tensors get its dimensions,
and the variables of the processor replace the loop's variables. A statement that waited for the loop waits for the yields of its block, at
one index or at all indices.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from fireiron.tasks.events import (
    EVERY,
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
    Index,
    Leaf,
    Pfor,
    Statement,
    blocks_of,
    defined,
    processor_variables,
    walk,
    with_blocks,
    with_events,
    with_refs,
    with_results,
)
from fireiron.tasks.mapping import Processor
from fireiron.values.expr import Expr, Var
from fireiron.values.machine import Block as BlockLevel
from fireiron.values.machine import Kernel


def vectorized(program: EventProgram) -> EventProgram:
    """The program without loops over processors within a block, removed from the innermost on."""
    for processor in inner_processors(program):
        program = flattened(program, processor)
    return program


def inner_processors(program: EventProgram) -> tuple[Processor, ...]:
    """The processors within a block that a program loops over, the innermost first."""
    depths: dict[Processor, int] = {}
    for depth, loop in _loops(program.body, 0):
        if loop.processor.level not in (Kernel, BlockLevel):
            depths[loop.processor] = max(depths.get(loop.processor, 0), depth)
    return tuple(sorted(depths, key=lambda processor: (-depths[processor], processor.name)))


def _loops(block: Block, depth: int) -> Iterator[tuple[int, Pfor]]:
    for stmt in block.statements:
        if isinstance(stmt, Pfor):
            yield depth, stmt
        for inner in blocks_of(stmt):
            yield from _loops(inner, depth + isinstance(stmt, Pfor))


def flattened(program: EventProgram, processor: Processor) -> EventProgram:
    """The program without loops over one kind of processor. Nested loops over the same processor stay.

    A loop also stays if an inner trip count, or a condition, depends on its variables.
    """
    kept = {loop.results[0].name for loop in _nested_loops(program.body, processor, False)}
    while (loop := _first_loop(program.body, processor, kept)) is not None:
        if _iterations_differ(loop):
            kept.add(loop.results[0].name)
        else:
            program = _replaced(program, loop)
    return program


def _nested_loops(block: Block, processor: Processor, inside: bool) -> Iterator[Pfor]:
    """The loops over a processor that are nested in another loop over it."""
    for stmt in block.statements:
        is_loop = isinstance(stmt, Pfor) and stmt.processor == processor
        if inside and is_loop and isinstance(stmt, Pfor):
            yield stmt
        for inner in blocks_of(stmt):
            yield from _nested_loops(inner, processor, inside or is_loop)


def _first_loop(block: Block, processor: Processor, kept: set[str]) -> Pfor | None:
    """Return the first loop over a processor that is not in `kept`."""
    for stmt in block.statements:
        if isinstance(stmt, Pfor) and stmt.processor == processor and stmt.results[0].name not in kept:
            return stmt
        for inner in blocks_of(stmt):
            loop = _first_loop(inner, processor, kept)
            if loop is not None:
                return loop
    return None


def _iterations_differ(loop: Pfor) -> bool:
    """Whether inner loops or branches differ between iterations."""
    sizes: list[Expr] = []
    for stmt in walk(loop.body):
        if isinstance(stmt, For):
            sizes.append(stmt.extent)
        elif isinstance(stmt, Pfor):
            sizes += stmt.extents
        elif isinstance(stmt, Branch):
            sizes.append(stmt.condition)
    return any(set(loop.variables) & size.variables() for size in sizes)


def _replaced(program: EventProgram, loop: Pfor) -> EventProgram:
    """The program with a loop replaced by its statements."""
    flat = Flattened(loop)

    def replaced(block: Block) -> Block:
        statements: list[Statement] = []
        for stmt in block.statements:
            if stmt is loop:
                statements += map(flat.statement, loop.body.statements)
            else:
                statements.append(with_blocks(stmt, tuple(map(replaced, blocks_of(stmt)))))
        return attrs.evolve(block, statements=tuple(statements))

    return attrs.evolve(program, body=with_events(replaced(program.body), flat.outer_events))


@attrs.define(eq=False)
class Flattened:
    """Rewrites the statements of a loop, and the events of the statements that wait for it."""

    loop: Pfor
    own: dict[str, int] = attrs.field(factory=dict, init=False)
    values: dict[Var, Expr] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """`own` are the inner events, with the number of their dimensions before the loop's."""
        self.values = dict(zip(self.loop.variables, processor_variables(self.loop.dims), strict=True))
        for stmt in walk(self.loop.body):
            self.own |= dict.fromkeys(defined(stmt), len(stmt.dims) if isinstance(stmt, Pfor) else 0)
            if isinstance(stmt, For):
                self.own |= dict.fromkeys((carry.name for carry in stmt.carries), 0)

    def statement(self, stmt: Statement) -> Statement:
        """A statement with the dimensions of the loop."""
        dims = self.loop.dims
        if isinstance(stmt, Alloc):
            return attrs.evolve(stmt, over=(*dims, *stmt.over))
        if isinstance(stmt, (Copy, Call)):
            moved: Leaf = with_refs(stmt, lambda ref: ref.at(self.values))
            return attrs.evolve(moved, after=self._events(stmt.after), over=(*dims, *stmt.over))
        results = tuple(attrs.evolve(result, over=(*dims, *result.over)) for result in stmt.results)
        if isinstance(stmt, For):
            carries = (attrs.evolve(carry, initial=self._events(carry.initial), over=(*dims, *carry.over)) for carry in stmt.carries)
            stmt = attrs.evolve(stmt, carries=tuple(carries))
        return with_results(stmt, results, tuple(map(self._block, blocks_of(stmt))))

    def outer_events(self, events: Events) -> Events:
        """The events that replace the loop's results after it."""
        renamed: list[Event] = []
        numbers = {result.name: number for number, result in enumerate(self.loop.results)}
        for event in events:
            renamed += [event] if event.name not in numbers else self._yielded(numbers[event.name], event)
        return tuple(dict.fromkeys(renamed))

    def _block(self, block: Block) -> Block:
        return Block(tuple(map(self.statement, block.statements)), tuple(map(self._events, block.yields)))

    def _events(self, events: Events) -> Events:
        """Events that inner statements wait for: of the same processor."""
        return tuple(self._inside(event.at(self.values), tuple(self.values.values())) for event in events)

    def _inside(self, event: Event, index: tuple[Index, ...]) -> Event:
        if event.name not in self.own:
            return event
        before = self.own[event.name]
        return attrs.evolve(event, index=(*event.index[:before], *index, *event.index[before:]))

    def _yielded(self, number: int, event: Event) -> list[Event]:
        """The events of the loop's result, at the indices of an event."""
        variables = (*self.loop.variables, *processor_variables(self.loop.results[number].over))
        values = dict(zip(variables, event.index, strict=True))
        own = event.index[: len(self.loop.variables)]
        events_of_result = []
        for event_yielded in self.loop.body.yields[number]:
            index = tuple(_at(index_yielded, values) for index_yielded in event_yielded.index)
            events_of_result.append(self._inside(attrs.evolve(event_yielded, index=index), own))
        return events_of_result


def _at(place: Index, values: dict[Var, Index]) -> Index:
    """An index with values substituted for variables; all indices, if one of them is broadcast."""
    if isinstance(place, Every) or any(values.get(var) is EVERY for var in place.variables()):
        return EVERY
    return place.substitute({var: value for var, value in values.items() if not isinstance(value, Every)})
