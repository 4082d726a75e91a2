"""Warps in random order: each runs on its own from barrier to barrier.

A barrier, or a statement that several warps perform together, is passed when all warps of its group have come to it; a warp that
waits elsewhere, or has ended, is a deadlock.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import WARP_SCOPE, Barrier
from fireiron.sim.places import Group
from fireiron.sim.plan import Array, Environment, Site
from fireiron.sim.run import Event, Run
from fireiron.values.machine import Block


class Warps:
    """Warps as coroutines that stop at barriers and at statements which several warps perform together."""

    def __init__(self, run: Run, order: random.Random) -> None:
        self.run_, self.order = run, order
        threads = np.arange(run.plan.kernel.workers)
        self.teams: dict[tuple[int, ...], Group] = {}
        self.warps = [run.group(threads[start : start + 32]) for start in range(0, threads.size, 32)]

    def run(self) -> None:
        """Execute all warps to their end."""
        run = self.run_
        tasks = [run.body(run.plan.nodes, warp.environment, warp) for warp in self.warps]
        ready = list(range(len(tasks)))
        waiting: dict[int, Event] = {}
        while ready:
            warp = ready.pop(self.order.randrange(len(ready)))
            event = next(tasks[warp], None)
            # Lanes of a warp go in step here, so that whichever of them a barrier holds have all arrived.
            if event is not None and isinstance(event[0], Barrier) and event[0].scope <= WARP_SCOPE:
                run.pass_barrier([self.warps[warp]], event[0])
                ready.append(warp)
            elif event is not None and isinstance(event[0], Site) and self._inside_warp(event[0]):
                run.executor.collective(event[0], event[1], self.warps[warp])
                ready.append(warp)
            elif event is not None:
                waiting[warp] = event
            if not ready and waiting:
                ready = self._meet(waiting)
                waiting = {warp: event for warp, event in waiting.items() if warp not in ready}

    def _inside_warp(self, site: Site) -> bool:
        threads = site.level.threads
        return site.scratch is None and threads is not None and threads <= 32 and site.level != Block

    def _meet(self, waiting: dict[int, Event]) -> list[int]:
        """No warp goes on by itself: those that do together; an error if there are none."""
        released = [warp for group in self._groups(waiting) for warp in group]
        if released:
            return released
        self._meet_all(waiting)
        return sorted(waiting)

    def _groups(self, waiting: dict[int, Event]) -> Iterator[list[int]]:
        """The groups of warps, smaller than the block, that have all reached one barrier of theirs, which they pass."""
        for warp, event in waiting.items():
            threads = _together(event[0])
            # Each group is asked for once, by its first warp.
            if threads is None or warp * 32 % threads:
                continue
            group = [one for one in range(warp, warp + threads // 32) if one < len(self.warps)]
            # The same barrier, not an equal one: that may be another place of the program.
            if all(one in waiting and waiting[one][0] is event[0] for one in group):
                self._pass(event[0], group, waiting)
                yield group

    def _pass(self, event: Any, group: list[int], waiting: dict[int, Event]) -> None:
        """Warps have come to a barrier, or to a statement, of theirs."""
        if isinstance(event, Barrier):
            self.run_.pass_barrier([self.warps[one] for one in group], event)
        else:
            team = self._team(group, [waiting[one][1] for one in group])
            self.run_.perform(event, team.environment, team)

    def _meet_all(self, waiting: dict[int, Event]) -> None:
        """All warps have stopped: at the same statement, or for ever."""
        events = [waiting.get(warp) for warp in range(len(self.warps))]
        first = next(event for event in events if event is not None)
        for warp, event in enumerate(events):
            if event is None or event[0] is not first[0]:
                stopped = next(iter(waiting))
                where = "has ended" if event is None else f"waits at {_named(event[0])}"
                raise SimulationError(
                    f"deadlock: warp {stopped} waits at {_named(first[0])}, warp {warp} {where}",
                    within=self.run_.chunk.where(first[1]),
                    hint="every warp must reach the same barriers",
                )
        self._pass(first[0], list(range(len(self.warps))), waiting)

    def _team(self, group: list[int], environments: list[Environment]) -> Group:
        """Warps that stand at one place of the program as one group of threads."""
        warps = [self.warps[one] for one in group]
        env: Environment = {}
        for name, value in environments[0].items():
            env[name] = value if not isinstance(value, np.ndarray) else self._joined(warps, [one[name] for one in environments])
        env["block"] = environments[0]["block"]
        if tuple(group) not in self.teams:
            self.teams[tuple(group)] = Group(np.concatenate([warp.threads for warp in warps]), env, members=tuple(warps))
        team = self.teams[tuple(group)]
        team.environment, team.clock = env, warps[0].clock  # that of all of them
        return team

    def _joined(self, warps: list[Group], values: list[Array]) -> Array:
        parts = []
        for value, warp in zip(values, warps, strict=True):
            value = np.asarray(value)
            if value.ndim < 2:
                return values[0]
            parts.append(np.broadcast_to(value, (warp.threads.size, value.shape[1])))
        return np.concatenate(parts)


def _together(event: Any) -> int | None:
    """How many threads come together at an event before the others of their block do; None: all of them."""
    if isinstance(event, Barrier):
        return event.scope.threads
    return event.level.threads if event.wide else None


def _named(event: Any) -> str:
    return f"the {event.scope} barrier ({event.reason})" if isinstance(event, Barrier) else str(event.what)
