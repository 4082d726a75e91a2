"""Control: a chunk of blocks through the statements, loops and barriers of the plan.

The program is a coroutine of a group of threads. It stops at barriers and at collective statements, which whoever drives it deals
with: here, for all threads of a block in step; in `warps`, for warps in random order.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import Barrier, ClaimTile, Commit, ExitIfDone, Fence, FenceKind, Release, Wait
from fireiron.sim.block_batch import BlockBatch
from fireiron.sim.execute import Executor
from fireiron.sim.locations import OverlappingWrites, ThreadGroup
from fireiron.sim.memory import Global
from fireiron.sim.plan import Array, Environment, Loop, Name, Nest, Plan, PlannedStatement, SkipPlan
from fireiron.sim.race_detector import RaceDetector
from fireiron.sim.rings import Rings, require_stored
from fireiron.sim.shadow import History
from fireiron.values.expr import compiled

Event: TypeAlias = "tuple[Any, Environment]"


class Run:
    """A chunk of blocks, executed together; `watch` says whether its shared memory is watched for races.

    Blocks of clusters have one `rank`: those of the others run beside them.
    """

    def __init__(
        self,
        plan: Plan,
        parameters: Mapping[str, Global],
        history: History,
        blocks: tuple[int, ...],
        watch: bool,
        careful: bool,
        rank: int = 0,
        dealt: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> None:
        self.plan = plan
        self.batch = BlockBatch(plan, parameters, blocks, careful)
        self.race_detector = RaceDetector(self.batch, history, watch)
        self.rings = Rings(plan, rank, dealt.get(blocks[0], ()))
        self.executor = Executor(self.batch, self.race_detector, self.rings)
        self.barriers = 0

    @staticmethod
    def joined(runs: Sequence[Run]) -> Sequence[Run]:
        """Chunks that are the blocks of clusters, by rank, and reach into each other."""
        for run in runs:
            run.rings.cluster = [one.rings for one in runs]
            run.executor.cluster = [one.executor for one in runs]
        return runs

    def in_step(self) -> None:
        """Execute all threads of a block together."""
        # One of the orders in which a block may run: races are found by what barriers order, not by what happens here.
        group = self.group(np.arange(self.plan.kernel.workers))
        for event, env in self.body(self.plan.nodes, group.environment, group):
            if isinstance(event, Barrier):
                self.pass_barrier([group], event)
            else:
                self.perform(event, env, group)
        require_stored(group)

    def group(self, threads: Array) -> ThreadGroup:
        """Threads at the start of the program."""
        env: Environment = dict(self.plan.symbols)
        env |= self.batch.tables
        env["thread"], env["block"] = threads[:, None], self.batch.numbers
        return ThreadGroup(threads, env)

    def perform(self, site: PlannedStatement, env: Environment, group: ThreadGroup) -> None:
        """A statement that waits for several warps, all of which are here: those of whole units."""
        if site.wide:
            self.executor.execute(site, env, group)
        else:
            self.executor.collective(site, env, group)

    def pass_barrier(self, groups: Sequence[ThreadGroup], barrier: Barrier) -> None:
        """All threads of the groups have arrived."""
        self.barriers += 1
        for group in groups:
            # A block is the group of as many threads as its numbers take, the idle ones of its last group included.
            # A block is the group of `pitch` threads: of all numbers up to those of the next one.
            group.clock = group.clock.behind(barrier.scope.threads or self.plan.pitch)
            group.apart.clear()

    def body(self, nodes: list[Any], env: Environment, group: ThreadGroup) -> Generator[Event, None, bool]:
        """Execute statements for a group; barriers and collective statements are handed out. Returns whether the loop around is over."""
        for node in nodes:
            if isinstance(node, PlannedStatement):
                if node.collective or node.wide:
                    yield node, env
                else:
                    self.executor.execute(node, env, group)
            elif isinstance(node, Nest):
                if not self._nest(node, env, group):
                    yield from self.body(node.plain, env, group)
                    _forget(node.plain, env)
            elif isinstance(node, Loop):
                for value in range(node.first, self._extent(node, env), node.step):
                    env[node.name] = value
                    if node.taken is not None:
                        env.setdefault(node.taken, 0)
                    if (yield from self.body(node.body, env, group)):
                        break
                    if node.taken is not None and node.growth is not None:
                        env[node.taken] = env[node.taken] + np.asarray(node.growth(env)).flat[0]
                else:
                    if any(isinstance(one, ExitIfDone) for one in node.body):
                        raise SimulationError(f"loop {node.name} goes on behind the last tile", within=self.batch.where(env))
                _forget(node.body, env)
                env.pop(node.name, None)
            elif isinstance(node, ClaimTile):
                env[node.var.name] = self.rings.tile(node, env, group, self.batch.where(env))
            elif isinstance(node, ExitIfDone):
                if np.asarray(compiled(node.tile)(env)).flat[0] >= np.asarray(compiled(node.tiles)(env)).flat[0]:
                    return True
            elif isinstance(node, SkipPlan):
                yield from self._needed(node, env, group)
            elif isinstance(node, Name):
                env[node.name] = node.value(env)
            elif isinstance(node, Commit):
                group.flights[node.mechanism].commit()
            elif isinstance(node, Wait):
                self.executor.arrive(group, node.groups, node.mechanism)
            elif isinstance(node, Fence):
                self._fence(node, group)
            elif isinstance(node, Release):
                self.rings.release(node, env, group, self.batch.where(env))
            else:
                yield node, env
        return False

    def _needed(self, skip: SkipPlan, env: Environment, group: ThreadGroup) -> Generator[Event, None, None]:
        """Execute the body for all threads, and give those of warps that leave it out what they had: it writes nothing but registers."""
        left = self.batch.left_out(skip.needed, group)
        if not left.all():
            kept = self.batch.registers_of(skip.written, group)
            yield from self.body(skip.body, env, group)
            _forget(skip.body, env)
            self.batch.give_back(kept, left, group)

    def _fence(self, fence: Fence, group: ThreadGroup) -> None:
        if fence.kind is FenceKind.ASYNC_PROXY:
            self.race_detector.fence(group)
            group.unfenced_stages.clear()
            group.hidden.clear()
        else:
            group.touched.clear()
            group.fenced = True

    def _extent(self, loop: Loop, env: Environment) -> int:
        extent = np.asarray(loop.extent(env))
        if extent.size != 1 and (extent != extent.flat[0]).any():
            raise SimulationError(f"loop {loop.name} has an extent that differs between threads", within=self.batch.where(env))
        return int(extent.flat[0])

    def _nest(self, nest: Nest, env: Environment, group: ThreadGroup) -> bool:
        """Execute a nest with some loops as axes; False if that is not legal, before anything has been executed."""
        if not nest.outer:
            try:
                self.executor.execute(nest.vector, env, group)
            except OverlappingWrites:
                return False
            return True
        for values in itertools.product(*(range(int(np.asarray(extent(env)).flat[0])) for _, extent in nest.outer)):
            for (name, _), value in zip(nest.outer, values, strict=True):
                env[name] = value
            try:
                self.executor.execute(nest.vector, env, group)
            except OverlappingWrites:
                return False
        for name, _ in nest.outer:
            env.pop(name, None)
        return True


def _forget(nodes: list[Any], env: Environment) -> None:
    """End the names of a list of statements: they mean nothing outside, where groups that came another way have no such name."""
    for node in nodes:
        if isinstance(node, Name):
            env.pop(node.name, None)
