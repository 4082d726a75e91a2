"""Run groups of threads as coroutines, each separately from barrier to barrier: warps in random order, or the roles of a block.

A barrier, or a statement that several groups execute together, is passed when all of them have reached it. If a group waits elsewhere, or
has exited, that is a deadlock. A wait for a ring stage is passed when its phase is complete. Loads in flight arrive at any time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import BLOCK_SCOPE, Acquire, Barrier, ClusterBarrier, Roles, SemaphoreBarrier
from fireiron.sim.locations import ThreadGroup
from fireiron.sim.plan import Array, Environment, RolesPlan
from fireiron.sim.rings import Rings, require_released, require_stored, warps
from fireiron.sim.run import Event, Run

WARP = 32

BLOCK_BARRIER = Barrier(BLOCK_SCOPE)
"""The effect of a cluster barrier on the threads of one block."""


class Warps:
    """Groups that stop at barriers, at waits, and at statements that several of them execute together.

    The groups belong to one batch of blocks, or to the blocks of a cluster, one run each. Without `order`, the consumers of a block with
    roles run in lockstep, and loads arrive at once.
    """

    def __init__(self, runs: Sequence[Run], order: random.Random | None) -> None:
        self.runs, self.order = runs, order
        self.joined_groups: dict[tuple[int, ...], ThreadGroup] = {}
        self.groups: list[ThreadGroup] = []
        self.programs: list[Any] = []
        self.owners: list[Run] = []
        for run in runs:
            self._start(run)

    def _start(self, run: Run) -> None:
        nodes = run.plan.nodes
        position = next((number for number, node in enumerate(nodes) if isinstance(node, RolesPlan)), None)
        if position is None:
            self._add(run, 0, run.plan.kernel.workers, nodes)
            return
        for role, program in nodes[position].roles:
            count = 1 if role.elected else role.threads
            self._add(run, role.first, count, [*nodes[:position], *program, *nodes[position + 1 :]])

    def _add(self, run: Run, first: int, count: int, nodes: list[Any]) -> None:
        threads = np.arange(first, first + count)
        # Units that alternate fills never run in lockstep.
        units = next((ring.each for ring in run.plan.kernel.rings if ring.each), count)
        each = min(units, count) if self.order is None else WARP
        for start in range(0, count, each):
            group = run.group(threads[start : start + each])
            self.groups.append(group)
            self.programs.append(run.body(nodes, group.environment, group))
            self.owners.append(run)

    def _choice(self, count: int) -> int:
        return 0 if self.order is None else self.order.randrange(count)

    def _with_loads(self) -> list[Rings]:
        """The rings of blocks with loads in flight."""
        return [run.rings for run in self.runs if run.rings.loads]

    def _arrive(self, loading: list[Rings]) -> None:
        rings = loading[self._choice(len(loading))] if len(loading) > 1 else loading[0]
        rings.complete_load(self._choice(len(rings.loads)))

    def run(self) -> Iterator[bool]:
        """Execute all groups to their end; yield after each use of a semaphore, and False while the block waits at one."""
        ready = list(range(len(self.programs)))
        waiting: dict[int, Event] = {}
        while ready or waiting:
            loading = self._with_loads()
            if loading and (self.order is None or not ready or self.order.random() < 0.5):
                self._arrive(loading)
            if not ready:
                at_semaphore = any(self._may_wait(event, number) for number, (event, _) in waiting.items())
                published = self._publish(waiting)
                ready = self._advance_waiting(waiting)
                waiting = {number: event for number, event in waiting.items() if number not in ready}
                if at_semaphore:
                    yield bool(ready) or published or bool(self._with_loads())
                continue
            number = ready.pop(self._choice(len(ready)))
            event = next(self.programs[number], None)
            if event is None:
                continue
            if self._is_single_group(event[0], number):
                self._pass(event[0], [number], {number: event})
                ready.append(number)
            else:
                waiting[number] = event
        while loading := self._with_loads():
            self._arrive(loading)
        for run in self.runs:
            run.rings.require_complete()
            run.rings.require_not_accessed(
                min(group.cluster_barriers for group, owner in zip(self.groups, self.owners, strict=True) if owner is run)
            )
        for group, run in zip(self.groups, self.owners, strict=True):
            require_released(group, {name for name, ring in run.rings.rings.items() if ring.refilled})
            require_stored(group)

    def _may_wait(self, event: Any, number: int) -> bool:
        """Whether a block may wait for other blocks at an event."""
        return isinstance(event, SemaphoreBarrier) or self.owners[number].publishes(event)

    def _must_wait(self, event: Any, env: Environment, number: int) -> bool:
        """Whether a block waits for other blocks at an event that all of its threads have reached."""
        run = self.owners[number]
        if isinstance(event, SemaphoreBarrier):
            return not run.semaphores.is_ready(event, env)
        return run.publishes(event) and not (run.has_published(event, env) and run.is_ready(event, env))

    def _publish(self, waiting: dict[int, Event]) -> bool:
        """Let blocks whose threads have all reached a scan across blocks publish their totals; whether a block did."""
        published = False
        for number, (event, env) in waiting.items():
            run = self.owners[number]
            if run.publishes(event) and not run.has_published(event, env):
                group = self._participants(number, event)
                if all(one in waiting and waiting[one][0] is event for one in group):
                    joined = self._joined_group(group, [waiting[one][1] for one in group])
                    run.perform(event, joined.environment, joined)
                    published = True
        return published

    def _is_single_group(self, event: Any, number: int) -> bool:
        """Whether an event involves only the threads of one group."""
        # Lanes of a warp run in lockstep here, so all lanes that a barrier spans have arrived.
        threads = _participant_threads(event)
        return (
            not isinstance(event, Acquire)
            and not self._may_wait(event, number)
            and threads is not None
            and threads <= min(WARP, self.groups[number].threads.size)
        )

    def _advance_waiting(self, waiting: dict[int, Event]) -> list[int]:
        """Release the groups that synchronize with each other, and those whose stage is ready; raise a deadlock error if there are none."""
        passed = [number for number, (event, env) in waiting.items() if isinstance(event, Acquire) and self._passes(event, env, number)]
        released = [*passed, *(number for group in self._complete_events(waiting) for number in group)]
        if released or self._with_loads() or self._waits_for_other_blocks(waiting):
            return released
        self._raise_deadlock(waiting)
        return []

    def _waits_for_other_blocks(self, waiting: dict[int, Event]) -> bool:
        """Whether all threads of a block have reached a semaphore at which the block must wait."""
        return any(
            self._must_wait(event, env, number)
            and all(one in waiting and waiting[one][0] is event for one in self._participants(number, event))
            for number, (event, env) in waiting.items()
        )  # fmt: skip

    def _passes(self, event: Acquire, env: Environment, number: int) -> bool:
        run = self.owners[number]
        return run.rings.passes(event, env, self.groups[number], run.batch.where(env))

    def _complete_events(self, waiting: dict[int, Event]) -> Iterator[list[int]]:
        """Yield the sets of groups that have all reached their common event, after they pass it."""
        for number, (event, env) in waiting.items():
            if isinstance(event, Acquire) or self._must_wait(event, env, number):
                continue
            group = self._participants(number, event)
            # Each set is considered once, by its first group. The event must be identical, not just equal: an equal one may be elsewhere in
            # the program.
            if group[0] == number and all(one in waiting and waiting[one][0] is event for one in group):
                self._pass(event, group, waiting)
                yield group

    def _participants(self, number: int, event: Any) -> list[int]:
        """The groups that participate in an event: those of the threads that it spans, of the block, or of the cluster."""
        if isinstance(event, ClusterBarrier):
            return list(range(len(self.groups)))
        threads = _participant_threads(event)
        own = [one for one, owner in enumerate(self.owners) if owner is self.owners[number]]
        if threads is None:
            return own
        first = int(self.groups[number].threads[0]) // threads * threads
        return [one for one in own if first <= self.groups[one].threads[0] < first + threads]

    def _pass(self, event: Any, group: list[int], waiting: dict[int, Event]) -> None:
        """Let groups pass their barrier or statement."""
        if isinstance(event, ClusterBarrier):
            for run in self.runs:
                run.pass_barrier([one for one, owner in zip(self.groups, self.owners, strict=True) if owner is run], BLOCK_BARRIER)
            for member in self.groups:
                member.cluster_barriers += 1
            return
        run = self.owners[group[0]]
        if isinstance(event, SemaphoreBarrier):
            run.pass_semaphore([self.groups[one] for one in group], event, waiting[group[0]][1])
            return
        if isinstance(event, Barrier):
            run.pass_barrier([self.groups[one] for one in group], event)
            return
        joined = self._joined_group(group, [waiting[one][1] for one in group])
        run.perform(event, joined.environment, joined)

    def _joined_group(self, group: list[int], environments: list[Environment]) -> ThreadGroup:
        """Join groups at one point of the program to one group of threads."""
        members = [self.groups[one] for one in group]
        if len(members) == 1:
            return members[0]
        env: Environment = {}
        for name, value in environments[0].items():
            env[name] = value if not isinstance(value, np.ndarray) else self._joined(members, [one[name] for one in environments])
        env["block"] = environments[0]["block"]
        if tuple(group) not in self.joined_groups:
            self.joined_groups[tuple(group)] = ThreadGroup(np.concatenate([one.threads for one in members]), env, members=tuple(members))
        joined = self.joined_groups[tuple(group)]
        joined.environment, joined.clock = env, members[0].clock  # all members have the same clock
        return joined

    def _joined(self, members: list[ThreadGroup], values: list[Array]) -> Array:
        parts = []
        for value, group in zip(values, members, strict=True):
            value = np.asarray(value)
            if value.ndim < 2:
                return values[0]
            parts.append(np.broadcast_to(value, (group.threads.size, value.shape[1])))
        return np.concatenate(parts)

    def _raise_deadlock(self, waiting: dict[int, Event]) -> None:
        """Raise a deadlock error that lists which groups wait for what."""
        groups_by_wait: dict[str, list[int]] = {}
        for number, (event, env) in waiting.items():
            groups_by_wait.setdefault(self._wait_text(number, event, env), []).append(number)
        at_barriers = [(number, event) for number, (event, _) in waiting.items() if not isinstance(event, Acquire)]
        exited = sorted({one for number, event in at_barriers for one in self._participants(number, event)} - waiting.keys())
        texts = [
            f"{self._names(numbers)} {'wait' if self._is_plural(numbers) else 'waits'} {what}" for what, numbers in groups_by_wait.items()
        ]
        texts += [f"{self._names(exited)} {'have' if self._is_plural(exited) else 'has'} exited"] if exited else []
        at_rings = any(isinstance(event, Acquire) for event, _ in waiting.values())
        hint = "every warp must reach the same barriers"
        if at_rings:
            hint = "each fill of a ring must be filled once, and released by all consumers"
        first, (_, env) = next(iter(waiting.items()))
        raise SimulationError(f"deadlock: {'; '.join(texts)}", within=self.owners[first].batch.where(env), hint=hint)

    def _is_plural(self, numbers: Sequence[int]) -> bool:
        first, *others = numbers
        return bool(others) or self.groups[first].threads.size > WARP

    def _names(self, numbers: Sequence[int]) -> str:
        """Format groups of threads for a message."""
        names = []
        for run in self.runs:
            own = [one for one in numbers if self.owners[one] is run]
            of = f" of block {run.rings.rank} of the cluster" if len(self.runs) > 1 else ""
            names += [f"{self._names_in_block(own)}{of}"] if own else []
        return " and ".join(names)

    def _names_in_block(self, numbers: Sequence[int]) -> str:
        workers = self.runs[0].plan.kernel.workers
        groups = [self.groups[number].threads for number in numbers]
        names = sorted({int(warp) for threads in groups if threads[0] < workers for warp in threads // WARP})
        others = dict.fromkeys(f"the {self._role_of(int(threads[0]))}" for threads in groups if threads[0] >= workers)
        return " and ".join([*([warps(names)] if names else []), *others])

    def _role_of(self, thread: int) -> str:
        """The name of the role of a thread over which no tiles are distributed."""
        roles = (role for stmt in self.runs[0].plan.kernel.body if isinstance(stmt, Roles) for role in stmt.roles)
        return next((role.name for role in roles if role.first <= thread < role.first + role.threads), "producer")

    def _wait_text(self, number: int, event: Any, env: Environment) -> str:
        if isinstance(event, Acquire):
            return f"for {self.owners[number].rings.described(event, env)}"
        if isinstance(event, ClusterBarrier):
            return f"at the cluster barrier ({event.reason})"
        return f"at the {event.scope} barrier ({event.reason})" if isinstance(event, Barrier) else f"at {event.what}"


def _participant_threads(event: Any) -> int | None:
    """The number of threads that participate in an event; None: all of the block, or of the cluster."""
    if isinstance(event, Barrier):
        return event.scope.threads
    if isinstance(event, Acquire):
        return 1
    if isinstance(event, ClusterBarrier):
        return None
    return event.level.threads if event.scratch is None else None
