"""Simulate launches on all GPUs of a node that wait for each other: the blocks of all GPUs run at once, and launches follow each other.

Stores to other GPUs land when their issuer has waited for their arrival, else at the end of its block. GPUs advance at random, so one
may be a launch ahead of others. The race detector orders accesses by semaphores: what a warp knew when it counted a tile is known after
a wait. Before each launch, a kernel overwrites the parts of inputs that other GPUs read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import Kernel, verify
from fireiron.sim.launch import SingleLaunch, checked_symbols, programs_of
from fireiron.sim.memory import Global
from fireiron.sim.plan import Array, Plan
from fireiron.sim.rings import check_barriers
from fireiron.sim.run import ALL, Run
from fireiron.sim.semaphores import GpuPlace, Semaphores
from fireiron.sim.shadow import WARP, Shadow, StoredParts
from fireiron.spec import with_strides

LAUNCHES = 2
"""Launches by default. The third one is the first that stores sums or copies where those of an earlier launch were."""


@attrs.frozen(eq=False)
class Exchanged:
    """The outputs of the last launch and the masks of their written elements, by GPU."""

    outputs: list[dict[str, Array]]
    written: list[dict[str, Array]]


def simulate_exchange(
    kernel: Kernel, arrays: Sequence[Mapping[str, Array]], symbols: Mapping[str, int], order: random.Random | None, launches: int = LAUNCHES
) -> Exchanged:
    """Execute a kernel on GPUs that wait for each other, several times in a row: with other inputs first, and last with `arrays` by GPU.

    The inputs of two launches in a row differ, and those with one launch between them, so that values of an earlier launch are noticed.

    Raises: SimulationError for a race, a deadlock, or a read of uninitialized data.
    """
    verify(kernel, final=True)
    node = _Node(kernel, symbols, order)
    rolled, reversed_ = ([{name: change(one) for name, one in given.items()} for given in arrays] for change in (_rolled, np.flipud))
    node.run([arrays if later == 0 else reversed_ if later % 2 else rolled for later in reversed(range(launches))])
    last = [stream[-1] for stream in node.done]
    return Exchanged([launch.outputs() for launch in last], [launch.written() for launch in last])


def _rolled(array: Array) -> Array:
    """Return an array with its last row first."""
    return np.roll(array, 1, 0)


class _Node:
    """The GPUs of a node: their semaphores, and the memory that all of them access."""

    def __init__(self, kernel: Kernel, symbols: Mapping[str, int], order: random.Random | None) -> None:
        assert kernel.workspace is not None and kernel.workspace.exchange is not None
        self.kernel, self.order, exchange = kernel, order, kernel.workspace.exchange
        values = [{**with_strides(kernel.spec, symbols), exchange.rank.name: gpu} for gpu in range(exchange.gpus)]
        self.plans = [Plan(kernel, checked_symbols(kernel, one)) for one in values]
        for plan in self.plans:
            check_barriers(plan)
        self.semaphores = [Semaphores() for _ in self.plans]
        plan = self.plans[0]
        self.shared = {one.name: Global(plan, one, None, False) for one in kernel.buffers if one.workspace}
        self.shadows = {name: Shadow(one.flat.size, plan.pitch) for name, one in self.shared.items()}
        self.parts: dict[str, StoredParts] = {}
        for buffer in kernel.buffers:
            if buffer.parameter and buffer.tensor.of_all_gpus:
                stored = Global(plan, buffer, np.zeros(tuple(map(plan.number, buffer.array.shape)), buffer.dtype.to_numpy()), False)
                self.shared[buffer.name] = stored
                self.parts[buffer.name] = StoredParts(buffer.name, stored.flat.size, plan.pitch, stored.places)
        self.shadows |= self.parts
        self.fills = 0
        self.log: list[Any] = []
        self.known: list[dict[int, int]] = [{} for _ in self.plans]
        self.done: list[list[SingleLaunch]] = [[] for _ in self.plans]

    def run(self, inputs: Sequence[Sequence[Mapping[str, Array]]]) -> None:
        """Execute launches with the inputs of each launch and GPU."""
        self.fills = len(inputs) * len(self.plans) * self.plans[0].grid * self.plans[0].pitch // WARP
        streams = [self._stream(gpu, [given[gpu] for given in inputs]) for gpu in range(len(self.plans))]
        running = list(enumerate(streams))
        blocked: set[int] = set()
        leading = 0 if self.order is None else self.order.randrange(len(self.plans))
        with np.errstate(all="ignore"):
            while running:
                free = [one for one in running if one[0] not in blocked]
                if not free:
                    names = ", ".join(f"GPU {gpu} in launch {len(self.done[gpu])}" for gpu, _ in running)
                    raise SimulationError(
                        f"deadlock: all blocks wait for tiles of {self.kernel.name}: {names}", legal="each wait is met by earlier counts",
                        hint="each region must be counted as often as warps wait for",
                    )  # fmt: skip
                if self.order is not None and self.order.random() < 0.01:
                    leading = self.order.randrange(len(self.plans))
                ahead = [one for one in free if one[0] == leading]
                gpu, stream = (ahead or free)[0 if self.order is None or ahead else self.order.randrange(len(free))]
                advanced = next(stream, None)
                if advanced is None:
                    running.remove((gpu, stream))
                blocked = {*blocked, gpu} if advanced is False else set()
        for parameter in self.shared.values():
            parameter.check_guards()

    def _stream(self, gpu: int, inputs: Sequence[Mapping[str, Array]]) -> Iterator[bool]:
        """Execute the launches of a GPU in order; yield False while all of its blocks wait for other GPUs."""
        for given in inputs:
            yield from self._launch(gpu, given)

    def _launch(self, gpu: int, given: Mapping[str, Array]) -> Iterator[bool]:
        """Execute one launch, all of whose blocks are resident. The blocks of a cluster advance together."""
        plan, number = self.plans[gpu], len(self.done[gpu])
        fill = self.fills + number * len(self.plans) + gpu
        for name, parts in self.parts.items():
            parts.overwrite(gpu, fill, self.known[gpu])
            self.shared[name].flat[self.shared[name].places[gpu]] = given[name]
        given = {name: array for name, array in given.items() if name not in self.parts}
        launch = SingleLaunch(plan, given, tuple(range(plan.grid)), True, self.order, shared=self.shared)
        launch.history.shadows.update(self.shadows)
        launch.history.log = self.log
        self.done[gpu].append(launch)
        first_block = (number * len(self.plans) + gpu) * plan.grid
        place = GpuPlace(first_block, self.semaphores, {**self.known[gpu], fill: 1})
        running: list[tuple[Sequence[Run], Any]] = []
        for first in range(0, plan.grid, plan.cluster):
            blocks = [self._run_of(launch, first, rank, gpu, place) for rank in range(plan.cluster)]
            running.append((blocks, programs_of(blocks, self.order)))
        blocked: set[int] = set()
        while running:
            free = [place for place in range(len(running)) if id(running[place][0]) not in blocked]
            if not free:
                blocked = set()
                yield False
                continue
            runs, program = running[free[0 if self.order is None else self.order.randrange(len(free))]]
            advanced = next(program, None)
            if advanced is None:
                for run in runs:
                    run.executor.land(0, plan.kernel.threads)
                running.remove((runs, program))
            blocked = {*blocked, id(runs)} if advanced is False else set()
            if advanced:
                yield True
        for name, parameter in launch.parameters.items():
            if name not in self.shared:
                parameter.check_guards()
        start = first_block * plan.pitch // WARP
        self.known[gpu] |= dict.fromkeys(range(start, start + plan.grid * plan.pitch // WARP), ALL)
        for published in self.semaphores[gpu].awaited:
            self.known[gpu] |= {warp: max(count, self.known[gpu].get(warp, 0)) for warp, count in published.items()}
        self.semaphores[gpu].awaited.clear()

    def _run_of(self, launch: SingleLaunch, first: int, rank: int, gpu: int, place: GpuPlace) -> Run:
        """The state of a block of a GPU, which has a rank in the cluster whose first block has this number."""
        return Run(
            self.plans[gpu], launch.parameters, launch.history, (first + rank,), True, False, rank,
            semaphores=self.semaphores[gpu], place=place,
        )  # fmt: skip


__all__ = ["LAUNCHES", "Exchanged", "simulate_exchange"]
