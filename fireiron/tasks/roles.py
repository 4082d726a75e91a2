"""Assign the copies and calls of a program to warp roles, and report the events between roles (Cypress, section 4.2.5, Figure 12).

A dedicated warp issues the copies from global to shared memory; the other warps execute all other statements. If one role waits for an
event of another, a barrier is necessary. In a kernel, the mbarriers of circular buffers are these barriers; `warp_specialize` computes them
independently. To define another partition, pass another function to `divided`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from fireiron.frozen import frozen
from fireiron.tasks.events import Call, Copy, EventProgram, Leaf, tensors_of, walk
from fireiron.tasks.mapping import GLOBAL, SHARED, Mapping
from fireiron.tasks.orders import needs

Choice: TypeAlias = "Callable[[EventProgram, Leaf], str]"
"""The role of a copy or a call."""

DMA: Final = "dma"
COMPUTE: Final = "compute"


def loads_apart(program: EventProgram, leaf: Leaf) -> str:
    """The partition of the paper: copies from global to shared memory are `dma`, everything else is `compute`."""
    if not isinstance(leaf, Copy):
        return COMPUTE
    tensors = tensors_of(program)
    places = tensors[leaf.source.tensor].place, tensors[leaf.target.tensor].place
    return DMA if places == (GLOBAL, SHARED) else COMPUTE


def all_together(program: EventProgram, leaf: Leaf) -> str:
    """A single role, for mappings without warp specialization."""
    return COMPUTE


@frozen
class Crossing:
    """A dependence between roles: `second` waits for `first`, `distance` iterations before."""

    first: str
    second: str
    distance: int = 0

    def __str__(self) -> str:
        before = f", {self.distance} iteration{'s' if self.distance > 1 else ''} before" if self.distance else ""
        return f"{self.first} {'- ->' if self.distance else '-->'} {self.second}{before}"


@frozen
class Roles:
    """A partition: the role of each copy and call, by its event, and the dependences between different roles."""

    roles: tuple[tuple[str, str], ...]
    crossing: tuple[Crossing, ...]

    def of(self, role: str) -> tuple[str, ...]:
        """The events of a role."""
        return tuple(event for event, role_of_event in self.roles if role_of_event == role)


def divided(program: EventProgram, choose: Choice = loads_apart) -> Roles:
    """Partition a program by a function, and compute the dependences between different roles."""
    leaves = {leaf.event: leaf for leaf in walk(program.body) if isinstance(leaf, (Copy, Call))}
    roles = {event: choose(program, leaf) for event, leaf in leaves.items()}
    crossing = [
        Crossing(need.first, need.second, sum(iteration.before for iteration in need.iterations))
        for need in needs(program)
        if roles[need.first] != roles[need.second]
    ]
    return Roles(tuple(roles.items()), tuple(dict.fromkeys(crossing)))


def report(program: EventProgram, mapping: Mapping) -> str:
    """A table of the roles: their copies and calls, and the dependences between them."""
    specialized = any(instance.warpspecialize for instance in mapping.instances)
    roles_of_program = divided(program, loads_apart if specialized else all_together)
    leaves = {leaf.event: _text(leaf) for leaf in walk(program.body) if isinstance(leaf, (Copy, Call))}
    lines = [
        f"{role:<8} {event}: {leaves[event]}"
        for role in dict.fromkeys(role for _, role in roles_of_program.roles)
        for event in roles_of_program.of(role)
    ]
    return "\n".join([*lines, *(f"crosses  {crossing}" for crossing in roles_of_program.crossing)])


def _text(leaf: Leaf) -> str:
    if isinstance(leaf, Copy):
        return f"copy({leaf.source.tensor}, {leaf.target.tensor})"
    return f"call({', '.join((leaf.task, *(ref.tensor for ref in leaf.arguments)))})"
