"""Groups of threads as coroutines, each on its own from barrier to barrier: warps in random order, or the roles of a block.

A barrier, or a statement that several groups perform together, is passed when all of them have come to it; a group that waits elsewhere, or
has ended, is a deadlock. A wait for a ring's stage is passed when its phase is over. Loads on their way arrive at any time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import Acquire, Barrier, Completion
from fireiron.sim.places import Group
from fireiron.sim.plan import Array, Environment, RolesPlan
from fireiron.sim.rings import warps
from fireiron.sim.run import Event, Run

WARP = 32


class Warps:
    """Groups that stop at barriers, at waits, and at statements which several of them perform together.

    Without an order, the consumers of a block with roles go in step, and loads arrive at once.
    """

    def __init__(self, run: Run, order: random.Random | None) -> None:
        self.run_, self.order = run, order
        self.teams: dict[tuple[int, ...], Group] = {}
        self.groups: list[Group] = []
        self.programs: list[Any] = []
        roles = next((node for node in run.plan.nodes if isinstance(node, RolesPlan)), None)
        if roles is None:
            self._add(0, run.plan.kernel.workers, run.plan.nodes)
            return
        before = [node for node in run.plan.nodes if node is not roles]
        for role, nodes in roles.roles:
            self._add(role.first, 1 if role.elected else role.threads, [*before, *nodes])

    def _add(self, first: int, count: int, nodes: list[Any]) -> None:
        threads = np.arange(first, first + count)
        for start in range(0, count, count if self.order is None else WARP):
            group = self.run_.group(threads[start : start + (count if self.order is None else WARP)])
            self.groups.append(group)
            self.programs.append(self.run_.body(nodes, group.environment, group))

    def _choice(self, count: int) -> int:
        return 0 if self.order is None else self.order.randrange(count)

    def run(self) -> None:
        """Execute all groups to their end."""
        rings = self.run_.rings
        ready = list(range(len(self.programs)))
        waiting: dict[int, Event] = {}
        while ready or waiting:
            if rings.loads and (self.order is None or not ready or self.order.random() < 0.5):
                rings.arrive(self._choice(len(rings.loads)))
            if not ready:
                ready = self._meet(waiting)
                waiting = {number: event for number, event in waiting.items() if number not in ready}
                continue
            number = ready.pop(self._choice(len(ready)))
            event = next(self.programs[number], None)
            if event is None:
                continue
            if self._alone(event[0], number):
                self._pass(event[0], [number], {number: event})
                ready.append(number)
            else:
                waiting[number] = event
        while rings.loads:
            rings.arrive(self._choice(len(rings.loads)))
        rings.require_settled()
        for group in self.groups:
            if any(group.flights[Completion.BULK].groups) or group.flights[Completion.BULK].issued:
                raise SimulationError(
                    "a store by TMA reads shared memory beyond the end of the kernel", hint="a wait for its group at the end"
                )

    def _alone(self, event: Any, number: int) -> bool:
        """Whether a group comes to an event that holds none but its own threads."""
        # Lanes of a warp go in step here, so that whichever of them a barrier holds have all arrived.
        threads = _together(event)
        return not isinstance(event, Acquire) and threads is not None and threads <= min(WARP, self.groups[number].threads.size)

    def _meet(self, waiting: dict[int, Event]) -> list[int]:
        """No group goes on by itself: those that do together, or whose stage is there; an error if there are none."""
        rings = self.run_.rings
        passed = [number for number, (event, env) in waiting.items() if isinstance(event, Acquire) and self._passes(event, env, number)]
        released = [*passed, *(number for group in self._meeting(waiting) for number in group)]
        if released or rings.loads:
            return released
        self._refuse(waiting)
        return []

    def _passes(self, event: Acquire, env: Environment, number: int) -> bool:
        return self.run_.rings.passes(event, env, self.groups[number], self.run_.chunk.where(env))

    def _meeting(self, waiting: dict[int, Event]) -> Iterator[list[int]]:
        """The groups that have all reached one event of theirs, which they pass."""
        for number, (event, _) in waiting.items():
            if isinstance(event, Acquire):
                continue
            group = self._members(number, _together(event))
            # Each is asked for once, by its first. The same event, not an equal one: that may be another place of the program.
            if group[0] == number and all(one in waiting and waiting[one][0] is event for one in group):
                self._pass(event, group, waiting)
                yield group

    def _members(self, number: int, threads: int | None) -> list[int]:
        """The groups that come together with one at an event of so many threads; None: all of them."""
        if threads is None:
            return list(range(len(self.groups)))
        first = int(self.groups[number].threads[0]) // threads * threads
        return [one for one, group in enumerate(self.groups) if first <= group.threads[0] < first + threads]

    def _pass(self, event: Any, group: list[int], waiting: dict[int, Event]) -> None:
        """Groups have come to a barrier, or to a statement, of theirs."""
        if isinstance(event, Barrier):
            self.run_.pass_barrier([self.groups[one] for one in group], event)
            return
        team = self._team(group, [waiting[one][1] for one in group])
        self.run_.perform(event, team.environment, team)

    def _team(self, group: list[int], environments: list[Environment]) -> Group:
        """Groups that stand at one place of the program as one group of threads."""
        members = [self.groups[one] for one in group]
        if len(members) == 1:
            return members[0]
        env: Environment = {}
        for name, value in environments[0].items():
            env[name] = value if not isinstance(value, np.ndarray) else self._joined(members, [one[name] for one in environments])
        env["block"] = environments[0]["block"]
        if tuple(group) not in self.teams:
            self.teams[tuple(group)] = Group(np.concatenate([one.threads for one in members]), env, members=tuple(members))
        team = self.teams[tuple(group)]
        team.environment, team.clock = env, members[0].clock  # that of all of them
        return team

    def _joined(self, members: list[Group], values: list[Array]) -> Array:
        parts = []
        for value, group in zip(values, members, strict=True):
            value = np.asarray(value)
            if value.ndim < 2:
                return values[0]
            parts.append(np.broadcast_to(value, (group.threads.size, value.shape[1])))
        return np.concatenate(parts)

    def _refuse(self, waiting: dict[int, Event]) -> None:
        """Nobody goes on: who waits for what."""
        alike: dict[str, list[int]] = {}
        for number, (event, env) in waiting.items():
            alike.setdefault(self._named(event, env), []).append(number)
        meeting = [(number, _together(event)) for number, (event, _) in waiting.items() if not isinstance(event, Acquire)]
        ended = sorted({one for number, threads in meeting for one in self._members(number, threads)} - waiting.keys())
        said = [f"{self._names(numbers)} {'wait' if self._several(numbers) else 'waits'} {what}" for what, numbers in alike.items()]
        said += [f"{self._names(ended)} {'have' if self._several(ended) else 'has'} ended"] if ended else []
        at_rings = any(isinstance(event, Acquire) for event, _ in waiting.values())
        hint = "every warp must reach the same barriers"
        if at_rings:
            hint = "each turn of a ring is filled once, and released by all consumers"
        _, env = next(iter(waiting.values()))
        raise SimulationError(f"deadlock: {'; '.join(said)}", within=self.run_.chunk.where(env), hint=hint)

    def _several(self, numbers: Sequence[int]) -> bool:
        return len(numbers) > 1 or self.groups[numbers[0]].threads.size > WARP

    def _names(self, numbers: Sequence[int]) -> str:
        """Groups of threads, for a message."""
        workers = self.run_.plan.kernel.workers
        groups = [self.groups[number].threads for number in numbers]
        found = sorted({int(warp) for threads in groups if threads[0] < workers for warp in threads // WARP})
        producer = ["the producer"] if any(threads[0] >= workers for threads in groups) else []
        return " and ".join([*([warps(found)] if found else []), *producer])

    def _named(self, event: Any, env: Environment) -> str:
        if isinstance(event, Acquire):
            return f"for {self.run_.rings.described(event, env)}"
        return f"at the {event.scope} barrier ({event.reason})" if isinstance(event, Barrier) else f"at {event.what}"


def _together(event: Any) -> int | None:
    """How many threads come together at an event; None: all of the block, or of its part."""
    if isinstance(event, Barrier):
        return event.scope.threads
    if isinstance(event, Acquire):
        return 1
    return event.level.threads if event.scratch is None else None
