"""Semaphores in the simulator: the order in which blocks produce results together, and what each block knows of the others.

Blocks start in the order of their indices, a limited number at a time, as on a GPU. A block that waits for one that cannot start is a
deadlock. An increment publishes the accesses of its block; a block that observes it knows them, if both are fenced.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import SemaphoreAction, SemaphoreBarrier
from fireiron.sim.look_back import Totals
from fireiron.sim.plan import Environment
from fireiron.values.expr import Expr, compiled


class Semaphores:
    """The semaphores of a launch: their values, and the accesses that their increments publish.

    `published` maps a semaphore to the known accesses: for each block, the number of barriers before which they happened. `waited` are the
    semaphores at which a block has waited. `totals` are those of scans across blocks. `copied` maps a semaphore to the copies that warps
    counted there: for each warp of the launch, those before a number of its barriers.
    """

    def __init__(self) -> None:
        self.totals = Totals()
        self.values: dict[int, int] = {}
        self.published: dict[int, dict[int, int]] = {}
        self.waited: set[tuple[int, int]] = set()
        self.copied: dict[int, dict[int, int]] = {}

    def is_ready(self, barrier: SemaphoreBarrier, env: Environment) -> bool:
        """Whether a block, or a thread that reads copies, need not wait."""
        if barrier.action is SemaphoreAction.AWAIT:
            return not _number(barrier.active, env) or self.values.get(_number(barrier.index, env), 0) >= _number(barrier.position, env)
        if barrier.action is not SemaphoreAction.WAIT:
            return True
        return self.values.get(_number(barrier.index, env), 0) == _number(barrier.position, env)

    def use(
        self, barrier: SemaphoreBarrier, env: Environment, block: int, count: int, known: Mapping[int, int], where: str
    ) -> Mapping[int, int] | None:
        """Use a semaphore in a block that has passed `count` barriers and knows the accesses `known`.

        Return what it knows afterwards; None if it is not the last one, after an action that determines this.
        """
        index, blocks = _number(barrier.index, env), _number(barrier.blocks, env)
        if barrier.action is SemaphoreAction.FIND_LAST and blocks == 1:
            return known
        value = self.values.get(index, 0)
        seen = {**known, **{other: max(number, known.get(other, 0)) for other, number in self.published.get(index, {}).items()}}
        if barrier.action is SemaphoreAction.WAIT:
            self.waited.add((block, index))
            return seen if barrier.fenced else known
        if barrier.action is SemaphoreAction.COUNT and (block, index) not in self.waited:
            raise SimulationError(f"block {block} is counted at semaphore {index}, at which it did not wait", within=where)
        self.waited.discard((block, index))
        self.values[index] = 0 if barrier.resets and value >= blocks - 1 else value + 1
        if barrier.fenced:
            self.published[index] = {**seen, block: count}
        if barrier.action is SemaphoreAction.COUNT:
            return known
        return None if value != blocks - 1 else seen if barrier.fenced else known

    def count_copy(self, barrier: SemaphoreBarrier, env: Environment, warp: int, count: int) -> None:
        """Count a copy of a warp, which has passed `count` barriers."""
        index = _number(barrier.index, env)
        self.values[index] = self.values.get(index, 0) + 1
        if barrier.fenced:
            self.copied.setdefault(index, {})[warp] = count

    def copies(self, barrier: SemaphoreBarrier, env: Environment) -> Mapping[int, int]:
        """Return the known copies after a wait: for each warp, those before a number of barriers."""
        return self.copied.get(_number(barrier.index, env), {}) if barrier.fenced and _number(barrier.active, env) else {}

    def finish(self, barrier: SemaphoreBarrier, env: Environment) -> None:
        """Count a block that has read all copies; the last one resets the semaphores of the group."""
        count, blocks = _number(barrier.count, env), _number(barrier.blocks, env)
        self.values[count] = self.values.get(count, 0) + 1
        if self.values[count] == blocks:
            self.values |= dict.fromkeys(range(count + 1), 0)

    def require_reset(self) -> None:
        """Raise if a semaphore is not 0 after the launch."""
        wrong = next((index for index, value in sorted(self.values.items()) if value), None)
        if wrong is not None:
            raise SimulationError(
                f"semaphore {wrong} is {self.values[wrong]} after the launch", legal="0, for the next launch",
                hint="each block that shares a result must be counted once, and the last one must reset the semaphore",
            )  # fmt: skip


def _number(value: Expr, env: Environment) -> int:
    return int(np.asarray(compiled(value)(env)).flat[0])


def run_blocks(programs: Sequence[tuple[int, Iterator[Any]]], order: random.Random | None, together: bool = False) -> None:
    """Execute the programs of blocks, in the order of their indices. A program yields False if it waits for another block.

    Without `order`, one block runs at a time; otherwise a random number of them, each of which advances at random. If they run `together`,
    all of them are resident.
    """
    resident = len(programs) if together else 1 if order is None else order.randint(1, len(programs))
    waiting = list(programs)
    running: list[tuple[int, Iterator[Any]]] = []
    blocked: set[int] = set()
    while running or waiting:
        while waiting and len(running) < resident:
            running.append(waiting.pop(0))
        free = [one for one in running if one[0] not in blocked]
        if not free:
            names = ", ".join(str(block) for block, _ in running)
            raise SimulationError(
                f"deadlock: the blocks {names} wait for other blocks", legal="positions that grow with the block index",
                hint="a block may only wait for blocks with lower indices",
            )  # fmt: skip
        block, program = free[0 if order is None else order.randrange(len(free))]
        advanced = next(program, None)
        if advanced is None:
            running.remove((block, program))
        blocked = {*blocked, block} if advanced is False else set()


__all__ = ["Semaphores", "run_blocks"]
