"""Roles: which warps of a block do what, as a partition of a program's events, and the events that cross it (Cypress, section 4.2.5,
Figure 12).

A warp of its own does the copies from global to shared memory, the other warps all else. Where an event of one role is waited for by
another, a barrier is needed: in a kernel these are the rings of `warp_specialize`, which decides by itself. Another partition is another
function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import attrs

from fireiron.tasks.events import Call, Copy, EventProgram, Leaf, tensors_of, walk
from fireiron.tasks.mapping import GLOBAL, SHARED, Mapping
from fireiron.tasks.orders import needs

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
    found = [
        Crossing(one.first, one.second, sum(turn.before for turn in one.turns))
        for one in needs(program)
        if roles[one.first] != roles[one.second]
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
