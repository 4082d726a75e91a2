"""Semaphores in the simulator: the order in which blocks produce results together, and what each block knows of the others.

Blocks start in the order of their indices, a limited number at a time, as on a GPU. A block that waits for one that cannot start is a
deadlock. An increment publishes the accesses of its block; a block that observes it knows them, if both are fenced.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
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
    counted there: for each warp of the launch, those before a number of its barriers. `awaited` are those that waits of a launch ordered.
    """

    def __init__(self) -> None:
        self.totals = Totals()
        self.values: dict[int, int] = {}
        self.published: dict[int, dict[int, int]] = {}
        self.waited: set[tuple[int, int]] = set()
        self.copied: dict[int, dict[int, int]] = {}
        self.awaited: list[Mapping[int, int]] = []

    def is_ready(self, barrier: SemaphoreBarrier, env: Environment) -> bool:
        """Whether a block, or a thread that reads copies, need not wait."""
        if barrier.action is SemaphoreAction.AWAIT:
            assert barrier.launch is not None
            position = value_at(barrier.position, env) * (value_at(barrier.launch, env) + 1)
            return not value_at(barrier.active, env) or all(self.values.get(one, 0) >= position for one in _awaited(barrier, env))
        if barrier.action is not SemaphoreAction.WAIT:
            return True
        return self.values.get(value_at(barrier.index, env), 0) == value_at(barrier.position, env)

    def use(
        self, barrier: SemaphoreBarrier, env: Environment, block: int, count: int, known: Mapping[int, int], where: str
    ) -> Mapping[int, int] | None:
        """Use a semaphore in a block that has passed `count` barriers and knows the accesses `known`.

        Return what it knows afterwards; None if it is not the last one, after an action that determines this.
        """
        index, blocks = value_at(barrier.index, env), value_at(barrier.blocks, env)
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

    def number_of_launch(self, barrier: SemaphoreBarrier, env: Environment) -> int:
        """Return the number of the launch that warps read. Raises: SimulationError if their words differ."""
        numbers = {self.values.get(one, 0) for one in values_at(barrier.index, env)}
        if len(numbers) > 1:
            raise SimulationError(f"warps of a launch read different numbers of it: {sorted(numbers)}", legal="one number in all warps")
        return numbers.pop()

    def count_tile(self, barrier: SemaphoreBarrier, env: Environment, published: Mapping[int, int]) -> None:
        """Count a tile that a GPU has stored, and publish accesses: for each warp of all GPUs, those before a number of barriers."""
        index = value_at(barrier.index, env)
        self.values[index] = self.values.get(index, 0) + 1
        known = self.copied.setdefault(index, {})
        known |= {warp: max(count, known.get(warp, 0)) for warp, count in published.items()}

    def end_launch(self, barrier: SemaphoreBarrier, env: Environment) -> None:
        """Set the number of the next launch."""
        assert barrier.launch is not None
        self.values |= dict.fromkeys(values_at(barrier.index, env), value_at(barrier.launch, env) + 1)

    def copies(self, barrier: SemaphoreBarrier, env: Environment) -> Mapping[int, int]:
        """Return the known copies after a wait: for each warp, those before a number of barriers."""
        if not barrier.fenced or not value_at(barrier.active, env):
            return {}
        known: dict[int, int] = {}
        for index in _awaited(barrier, env):
            known |= {warp: max(count, known.get(warp, 0)) for warp, count in self.copied.get(index, {}).items()}
        return known

    def require_reset(self) -> None:
        """Raise if a semaphore is not 0 after the launch."""
        wrong = next((index for index, value in sorted(self.values.items()) if value), None)
        if wrong is not None:
            raise SimulationError(
                f"semaphore {wrong} is {self.values[wrong]} after the launch", legal="0, for the next launch",
                hint="each block that shares a result must be counted once, and the last one must reset the semaphore",
            )  # fmt: skip


def value_at(value: Expr, env: Environment) -> int:
    """Return the value of an expression that is equal in all threads."""
    return int(np.asarray(compiled(value)(env)).flat[0])


def values_at(value: Expr, env: Environment) -> list[int]:
    """Return the distinct values of an expression in all threads."""
    return [int(one) for one in np.unique(np.asarray(compiled(value)(env)))]


def _awaited(barrier: SemaphoreBarrier, env: Environment) -> list[int]:
    """Return the semaphores for which warps or threads wait: one, or one for each GPU that counts."""
    return [first + gpu for first in values_at(barrier.index, env) for gpu in range(value_at(barrier.blocks, env))]


@attrs.frozen(eq=False)
class GpuPlace:
    """A launch on one of the GPUs of a node.

    Attributes:
        first_block: the number of its first block among those of all launches on all GPUs.
        semaphores: those of each GPU.
        known: the accesses that precede the launch: for each warp of all launches, those before a number of barriers.
    """

    first_block: int
    semaphores: Sequence[Semaphores]
    known: Mapping[int, int]


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


__all__ = ["GpuPlace", "Semaphores", "run_blocks", "value_at"]
