"""Roles: which warps of a block do what, as a partition of a program's events, and the events that cross it (Cypress, section 4.2.5,
Figure 12).

A warp of its own does the copies from global to shared memory, the other warps all else. Where an event of one role is waited for by
another, a barrier is needed: in a kernel these are the rings of `specialize`, which decides by itself. Another partition is another
function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

import attrs

from fireiron.tasks.events import (
    Call,
    Copy,
    Event,
    EventProgram,
    Events,
    For,
    Leaf,
    Statement,
    blocks_of,
    tensors_of,
    walk,
)
from fireiron.tasks.mapping import GLOBAL, SHARED, Mapping

Choice: TypeAlias = "Callable[[EventProgram, Leaf], str]"
"""The role of a copy or a call."""

DMA: Final = "dma"
COMPUTE: Final = "compute"


def loads_apart(program: EventProgram, leaf: Leaf) -> str:
    """The paper's partition: copies from global to shared memory are `dma`, all else is `compute`."""
    if not isinstance(leaf, Copy):
        return COMPUTE
    tensors = tensors_of(program)
    places = tensors[leaf.source.tensor].place, tensors[leaf.target.tensor].place
    return DMA if places == (GLOBAL, SHARED) else COMPUTE


def all_together(program: EventProgram, leaf: Leaf) -> str:
    """One role for all, of a mapping that does not specialise warps."""
    return COMPUTE


@attrs.frozen
class Crossing:
    """A dependence from one role to another; with `turns` the second waits for what the first did so many turns before."""

    first: str
    second: str
    turns: int = 0

    def __str__(self) -> str:
        before = f", {self.turns} turn{'s' if self.turns > 1 else ''} before" if self.turns else ""
        return f"{self.first} {'- ->' if self.turns else '-->'} {self.second}{before}"


@attrs.frozen
class Roles:
    """A partition: the role of each copy and call by its event, and the dependences that cross it."""

    roles: tuple[tuple[str, str], ...]
    crossing: tuple[Crossing, ...]

    def of(self, role: str) -> tuple[str, ...]:
        """The events of a role."""
        return tuple(event for event, mine in self.roles if mine == role)


def divided(program: EventProgram, choose: Choice = loads_apart) -> Roles:
    """The partition of a program by a function, and the dependences that cross it."""
    leaves = {one.event: one for one in walk(program.body) if isinstance(one, (Copy, Call))}
    roles = {event: choose(program, leaf) for event, leaf in leaves.items()}
    sources = _Sources(program)
    found = [
        Crossing(first, event, turns)
        for event, leaf in leaves.items()
        for first, turns in sources.of(leaf.after)
        if roles[first] != roles[event]
    ]
    return Roles(tuple(roles.items()), tuple(dict.fromkeys(found)))


def report(program: EventProgram, mapping: Mapping) -> str:
    """The roles as a table: what each does, and what crosses from one to another."""
    asked = any(one.warpspecialize for one in mapping.instances)
    found = divided(program, loads_apart if asked else all_together)
    leaves = {one.event: _text(one) for one in walk(program.body) if isinstance(one, (Copy, Call))}
    lines = [f"{role:<8} {event}: {leaves[event]}" for role in dict.fromkeys(role for _, role in found.roles) for event in found.of(role)]
    return "\n".join([*lines, *(f"crosses  {one}" for one in found.crossing)])


def _text(leaf: Leaf) -> str:
    if isinstance(leaf, Copy):
        return f"copy({leaf.source.tensor}, {leaf.target.tensor})"
    return f"call({', '.join((leaf.task, *(ref.tensor for ref in leaf.arguments)))})"


@attrs.define(eq=False)
class _Sources:
    """The copies and calls that events are made of, each with the number of turns that it lies before."""

    program: EventProgram
    parts: dict[str, list[tuple[Events, int]]] = attrs.field(factory=dict, init=False)
    leaves: set[str] = attrs.field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        for one in walk(self.program.body):
            if isinstance(one, (Copy, Call)):
                self.leaves.add(one.event)
            else:
                self._compound(one)

    def _compound(self, one: Statement) -> None:
        for block in blocks_of(one):
            for result, used in zip(getattr(one, "results", ()), block.yields, strict=True):
                self.parts.setdefault(result.name, []).append((used, 0))
        if isinstance(one, For):
            for carry, result, used in zip(one.carries, one.results, one.body.yields, strict=False):
                self.parts[carry.name] = [(carry.initial, 0), (used, carry.distance)]
                self.parts[result.name].append((carry.initial, 0))

    def of(self, events: Iterable[Event]) -> tuple[tuple[str, int], ...]:
        """The leaves of some events."""
        return tuple(dict.fromkeys(self._of(events, 0, frozenset())))

    def _of(self, events: Iterable[Event], turns: int, seen: frozenset[str]) -> Iterator[tuple[str, int]]:
        for one in events:
            if one.name in self.leaves:
                yield one.name, turns
            elif one.name not in seen:
                for used, before in self.parts.get(one.name, ()):
                    yield from self._of(used, turns + before, seen | {one.name})
