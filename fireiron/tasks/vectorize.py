"""Vectorisation: parallel loops over warpgroups, warps and threads are no loops of a kernel, and go (Cypress, section 4.2.2, Figure 9).

From the innermost processor on, the statements of such a loop get its dimensions, as do their events and tensors; the loop's variables
become those of the processor. Who waited for a turn of the loop waits for what the turn yielded, point by point or for all along it.
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
    """The program without loops over processors inside a block, from the innermost on."""
    for processor in inner_processors(program):
        program = flattened(program, processor)
    return program


def inner_processors(program: EventProgram) -> tuple[Processor, ...]:
    """The processors inside a block that loops of a program are about, the innermost first."""
    depths: dict[Processor, int] = {}
    for depth, one in _loops(program.body, 0):
        if one.processor.level not in (Kernel, BlockLevel):
            depths[one.processor] = max(depths.get(one.processor, 0), depth)
    return tuple(sorted(depths, key=lambda one: (-depths[one], one.name)))


def _loops(block: Block, depth: int) -> Iterator[tuple[int, Pfor]]:
    for one in block.statements:
        if isinstance(one, Pfor):
            yield depth, one
        for inner in blocks_of(one):
            yield from _loops(inner, depth + isinstance(one, Pfor))


def flattened(program: EventProgram, processor: Processor) -> EventProgram:
    """The program without loops over one kind of processor: those within which the processor changes. Where it stays they are loops.

    A loop stays as well if the number of turns of a loop inside, or a condition, depends on its variables.
    """
    kept = {one.results[0].name for one in _staying(program.body, processor, False)}
    while (found := _find(program.body, processor, kept)) is not None:
        if _depends(found):
            kept.add(found.results[0].name)
        else:
            program = _without(program, found)
    return program


def _staying(block: Block, processor: Processor, inside: bool) -> Iterator[Pfor]:
    """The loops over a processor within one that is over it already."""
    for one in block.statements:
        of_it = isinstance(one, Pfor) and one.processor == processor
        if inside and of_it and isinstance(one, Pfor):
            yield one
        for inner in blocks_of(one):
            yield from _staying(inner, processor, inside or of_it)


def _find(block: Block, processor: Processor, kept: set[str]) -> Pfor | None:
    """The first loop over a processor that is not kept."""
    for one in block.statements:
        if isinstance(one, Pfor) and one.processor == processor and one.results[0].name not in kept:
            return one
        for inner in blocks_of(one):
            found = _find(inner, processor, kept)
            if found is not None:
                return found
    return None


def _depends(loop: Pfor) -> bool:
    """Whether loops or branches inside differ from turn to turn."""
    sizes: list[Expr] = []
    for one in walk(loop.body):
        if isinstance(one, For):
            sizes.append(one.extent)
        elif isinstance(one, Pfor):
            sizes += one.extents
        elif isinstance(one, Branch):
            sizes.append(one.condition)
    return any(set(loop.variables) & size.variables() for size in sizes)


def _without(program: EventProgram, loop: Pfor) -> EventProgram:
    """The program with the statements of a loop in its place."""
    flat = Flattened(loop)

    def replaced(block: Block) -> Block:
        statements: list[Statement] = []
        for one in block.statements:
            if one is loop:
                statements += map(flat.statement, loop.body.statements)
            else:
                statements.append(with_blocks(one, tuple(map(replaced, blocks_of(one)))))
        return attrs.evolve(block, statements=tuple(statements))

    return attrs.evolve(program, body=with_events(replaced(program.body), flat.behind))


@attrs.define(eq=False)
class Flattened:
    """What becomes of the statements of a loop, and of those that wait for it."""

    loop: Pfor
    own: dict[str, int] = attrs.field(factory=dict, init=False)
    values: dict[Var, Expr] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """`own` are the events inside, and how many dimensions of theirs stand before the loop's."""
        self.values = dict(zip(self.loop.variables, processor_variables(self.loop.dims), strict=True))
        for one in walk(self.loop.body):
            self.own |= dict.fromkeys(defined(one), len(one.dims) if isinstance(one, Pfor) else 0)
            if isinstance(one, For):
                self.own |= dict.fromkeys((carry.name for carry in one.carries), 0)

    def statement(self, one: Statement) -> Statement:
        """A statement with the dimensions of the loop."""
        dims = self.loop.dims
        if isinstance(one, Alloc):
            return attrs.evolve(one, over=(*dims, *one.over))
        if isinstance(one, (Copy, Call)):
            moved: Leaf = with_refs(one, lambda ref: ref.at(self.values))
            return attrs.evolve(moved, after=self._events(one.after), over=(*dims, *one.over))
        results = tuple(attrs.evolve(result, over=(*dims, *result.over)) for result in one.results)
        if isinstance(one, For):
            carries = (attrs.evolve(carry, initial=self._events(carry.initial), over=(*dims, *carry.over)) for carry in one.carries)
            one = attrs.evolve(one, carries=tuple(carries))
        return with_results(one, results, tuple(map(self._block, blocks_of(one))))

    def behind(self, events: Events) -> Events:
        """What is waited for, where the loop is no more."""
        found: list[Event] = []
        numbers = {result.name: number for number, result in enumerate(self.loop.results)}
        for one in events:
            found += [one] if one.name not in numbers else self._yielded(numbers[one.name], one)
        return tuple(dict.fromkeys(found))

    def _block(self, block: Block) -> Block:
        return Block(tuple(map(self.statement, block.statements)), tuple(map(self._events, block.yields)))

    def _events(self, events: Events) -> Events:
        """Events that are waited for inside: of the same processor."""
        return tuple(self._inside(one.at(self.values), tuple(self.values.values())) for one in events)

    def _inside(self, one: Event, index: tuple[Index, ...]) -> Event:
        if one.name not in self.own:
            return one
        before = self.own[one.name]
        return attrs.evolve(one, index=(*one.index[:before], *index, *one.index[before:]))

    def _yielded(self, number: int, event: Event) -> list[Event]:
        """What the loop's result is made of, at the indices of an event."""
        variables = (*self.loop.variables, *processor_variables(self.loop.results[number].over))
        values = dict(zip(variables, event.index, strict=True))
        own = event.index[: len(self.loop.variables)]
        found = []
        for one in self.loop.body.yields[number]:
            index = tuple(_at(place, values) for place in one.index)
            found.append(self._inside(attrs.evolve(one, index=index), own))
        return found


def _at(place: Index, values: dict[Var, Index]) -> Index:
    """An index with values for variables: all along its dimension, where one of them is."""
    if isinstance(place, Every) or any(values.get(var) is EVERY for var in place.variables()):
        return EVERY
    return place.substitute({var: one for var, one in values.items() if not isinstance(one, Every)})
