"""Control flow: run a batch of blocks through the statements, loops and barriers of the plan.

The program of a group of threads is a coroutine. It yields at barriers and at collective statements, which the caller handles: here, for
all threads of a block in lockstep; in `warps`, for warps in random order.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import attrs
import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import (
    THREAD_SCOPE,
    Barrier,
    ClaimTile,
    Commit,
    ExitIfDone,
    Fence,
    FenceKind,
    Release,
    SemaphoreAction,
    SemaphoreBarrier,
    StageState,
    Wait,
)
from fireiron.ir.look_back import looks_back
from fireiron.sim.block_batch import WARP, BlockBatch
from fireiron.sim.execute import Executor
from fireiron.sim.locations import OverlappingWrites, ThreadGroup
from fireiron.sim.look_back import place_of
from fireiron.sim.memory import Global
from fireiron.sim.plan import Array, Environment, Loop, Name, Nest, Plan, PlannedStatement, SkipPlan
from fireiron.sim.race_detector import RaceDetector
from fireiron.sim.rings import Rings, require_stored
from fireiron.sim.semaphores import GpuPlace, Semaphores, value_at
from fireiron.sim.shadow import Clock, History
from fireiron.values.expr import compiled

ALL: Final = 1 << 62
"""More barriers than any block passes: a block knows all its accesses."""

Event: TypeAlias = "tuple[Any, Environment]"


class Run:
    """A batch of blocks that run together; `detect_races` enables race detection in their shared memory.

    Blocks of clusters in one batch have the same `rank`; those of other ranks run concurrently.
    """

    def __init__(
        self,
        plan: Plan,
        parameters: Mapping[str, Global],
        history: History,
        blocks: tuple[int, ...],
        detect_races: bool,
        track_all: bool,
        rank: int = 0,
        tiles_of_blocks: Mapping[int, Sequence[int]] = MappingProxyType({}),
        semaphores: Semaphores | None = None,
        place: GpuPlace | None = None,
    ) -> None:
        self.plan, self.place = plan, place
        self.semaphores = Semaphores() if semaphores is None else semaphores
        self.batch = BlockBatch(plan, parameters, blocks, track_all)
        self.race_detector = RaceDetector(self.batch, history, detect_races, 0 if place is None else place.first_block)
        self.rings = Rings(plan, rank, tiles_of_blocks.get(blocks[0], ()))
        self.executor = Executor(self.batch, self.race_detector, self.rings, self.semaphores.totals)
        self.barriers = 0

    @staticmethod
    def joined(runs: Sequence[Run]) -> Sequence[Run]:
        """Connect the batches of a cluster's ranks, so that they can access each other."""
        for run in runs:
            run.rings.cluster = [one.rings for one in runs]
            run.executor.cluster = [one.executor for one in runs]
        return runs

    def run_in_lockstep(self) -> Iterator[bool]:
        """Execute all threads of a block in lockstep; yield after each use of a semaphore, and False while the block waits at one."""
        # Lockstep is one of the legal orders. Races are detected by barriers, not by this order.
        group = self.group(np.arange(self.plan.kernel.workers))
        for event, env in self.body(self.plan.nodes, group.environment, group):
            if isinstance(event, SemaphoreBarrier):
                while not self.semaphores.is_ready(event, env):
                    yield False
                self.pass_semaphore([group], event, env)
                yield True
            elif isinstance(event, Barrier):
                self.pass_barrier([group], event)
            else:
                if self.publishes(event):
                    self.perform(event, env, group)
                    yield True
                    while not self.is_ready(event, env):
                        yield False
                self.perform(event, env, group)
        require_stored(group)

    def publishes(self, event: Any) -> bool:
        """Whether a statement first publishes totals, and then waits for those of other blocks."""
        return isinstance(event, PlannedStatement) and looks_back(event.statement)

    def has_published(self, event: PlannedStatement, env: Environment) -> bool:
        """Whether the block has published the totals of its tile."""
        return self.semaphores.totals.is_published(*place_of(event.statement, env))

    def is_ready(self, event: PlannedStatement, env: Environment) -> bool:
        """Whether the totals of all tiles before that of the block are published."""
        return self.semaphores.totals.is_ready(*place_of(event.statement, env))

    def group(self, threads: Array) -> ThreadGroup:
        """A group of threads at the start of the program."""
        env: Environment = dict(self.plan.symbols)
        env |= self.batch.tables
        env["thread"], env["block"] = threads[:, None], self.batch.numbers
        return ThreadGroup(threads, env, Clock() if self.place is None else Clock(copies=self.place.known))

    def perform(self, site: PlannedStatement, env: Environment, group: ThreadGroup) -> None:
        """Execute a statement of several warps as whole units; all of these warps are in the group."""
        if site.wide:
            self.executor.execute(site, env, group)
        else:
            self.executor.collective(site, env, group)

    def pass_barrier(self, groups: Sequence[ThreadGroup], barrier: Barrier) -> None:
        """Pass a barrier at which all threads of the groups have arrived."""
        self.barriers += 1
        for group in groups:
            # A block counts as a group of `pitch` threads, including the unused thread numbers up to the next block.
            group.clock = group.clock.after(barrier.scope.threads or self.plan.pitch)
            group.read_by_lanes.clear()

    def pass_semaphore(self, groups: Sequence[ThreadGroup], barrier: SemaphoreBarrier, env: Environment) -> None:
        """Use a semaphore, at which all threads of a block have arrived; or those that count or await copies."""
        if self.place is not None:
            self._pass_exchange(groups, barrier, env, self.place)
            return
        self.pass_barrier(groups, barrier)
        block, clock = int(self.batch.block(0)), groups[0].clock
        known = self.semaphores.use(barrier, env, block, clock.count, clock.known, self.batch.where(env))
        self.pass_barrier(groups, barrier)
        if barrier.last is not None:  # the block continues in any case
            for group in groups:
                group.environment[barrier.last.name] = int(known is not None)
            known = clock.known if known is None else known
        for group in groups:
            group.exits = known is None
            group.clock = attrs.evolve(group.clock, known={} if not known else {**known, block: ALL})

    def _pass_exchange(self, groups: Sequence[ThreadGroup], barrier: SemaphoreBarrier, env: Environment, place: GpuPlace) -> None:
        """Count a tile or a copy, continue after a wait for counts, or number launches."""
        self.pass_barrier(groups, barrier)
        if barrier.action is SemaphoreAction.BEGIN and barrier.last is not None:
            for group in groups:
                group.environment[barrier.last.name] = self.semaphores.number_of_launch(barrier, env)
        elif barrier.action is SemaphoreAction.END:
            self.semaphores.end_launch(barrier, env)
        elif barrier.action is SemaphoreAction.SIGNAL:
            self._count_tiles(groups, barrier, env, place)
        else:
            visible = barrier.proxied or barrier.scope != THREAD_SCOPE  # a thread waits for copies that the async proxy reads
            known = dict(self.semaphores.copies(barrier, env)) if visible else {}
            self.semaphores.awaited.append(known)
            for group in groups:
                group.clock = group.clock.after_copies(known)

    def _count_tiles(self, groups: Sequence[ThreadGroup], barrier: SemaphoreBarrier, env: Environment, place: GpuPlace) -> None:
        """Count what each warpgroup has stored, or each warp has copied, and publish what its warps know, if it has arrived."""
        arrived = barrier.arrived or self.plan.kernel.gathers
        threads = np.concatenate([group.threads for group in groups])
        each = barrier.scope.threads or 1
        for first in range(int(threads[0]) // each * each, int(threads[-1]) + 1, each):
            row = int(np.searchsorted(threads, first))
            own = {name: value[row : row + 1] if np.shape(value)[:1] == threads.shape else value for name, value in env.items()}
            if not value_at(barrier.active, own):
                continue
            start = ((place.first_block + int(self.batch.block(0))) * self.plan.pitch + first) // WARP
            warps = range(start, start + each // WARP)
            published = {**groups[0].clock.copies, **dict.fromkeys(warps, groups[0].clock.count)}
            if barrier.arrived:
                self.executor.land(first, first + each)
            target = place.semaphores[value_at(barrier.gpu, own)] if barrier.gpu is not None else self.semaphores
            target.count_tile(barrier, own, published if arrived and barrier.fenced else {})

    def _publish(self, release: Release, env: Environment, group: ThreadGroup) -> None:
        """Order the accesses of threads before those of the warp that stores what they filled."""
        if release.state is not StageState.FULL or release.ring not in self.rings.stored:
            return
        threads = group.threads + self.race_detector.numbers.reshape(-1, 1) * self.plan.pitch
        published = {**group.clock.copies, **dict.fromkeys(map(int, np.unique(threads // WARP)), group.clock.count + 1)}
        self.rings.before.setdefault((release.ring, self.rings.fill(release, env)), {}).update(published)
        group.clock = group.clock.after(1)

    def body(self, nodes: list[Any], env: Environment, group: ThreadGroup) -> Generator[Event, None, bool]:
        """Execute statements for a group; yield barriers and collective statements. Return whether the surrounding loop has ended."""
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
                    if node.prior_iterations is not None:
                        env.setdefault(node.prior_iterations, 0)
                    if (yield from self.body(node.body, env, group)):
                        break
                    if node.prior_iterations is not None and node.increment is not None:
                        env[node.prior_iterations] = env[node.prior_iterations] + np.asarray(node.increment(env)).flat[0]
                else:
                    if any(isinstance(one, ExitIfDone) for one in node.body):
                        raise SimulationError(f"loop {node.name} continues past the last tile", within=self.batch.where(env))
                _forget(node.body, env)
                env.pop(node.name, None)
            elif isinstance(node, ClaimTile):
                env[node.var.name] = self.rings.tile(node, env, group, self.batch.where(env))
            elif isinstance(node, ExitIfDone):
                if np.asarray(compiled(node.tile)(env)).flat[0] >= np.asarray(compiled(node.tiles)(env)).flat[0]:
                    return True
            elif isinstance(node, SkipPlan):
                yield from self._if_any_lane(node, env, group)
            elif isinstance(node, Name):
                env[node.name] = node.value(env)
            elif isinstance(node, Commit):
                group.in_flight[node.mechanism].commit()
            elif isinstance(node, Wait):
                self.executor.complete_groups(group, node.groups, node.mechanism)
            elif isinstance(node, Fence):
                self._fence(node, group)
            elif isinstance(node, Release):
                self.rings.release(node, env, group, self.batch.where(env))
                self._publish(node, env, group)
            else:
                yield node, env
                if group.exits:
                    return True
        return False

    def _if_any_lane(self, skip: SkipPlan, env: Environment, group: ThreadGroup) -> Generator[Event, None, None]:
        """Execute the body for all threads, then restore the registers of warps that skip it: the body writes nothing but registers."""
        idle = self.batch.all_lanes_zero(skip.needed, group)
        if not idle.all():
            saved = self.batch.registers_of(skip.written, group)
            yield from self.body(skip.body, env, group)
            _forget(skip.body, env)
            self.batch.restore(saved, idle, group)

    def _fence(self, fence: Fence, group: ThreadGroup) -> None:
        if fence.kind is FenceKind.ASYNC_PROXY:
            self.race_detector.fence(group)
            group.unfenced_stages.clear()
            group.unfenced_reads.clear()
            group.hidden_stages.clear()
        else:
            group.accessed.clear()
            group.fenced = True

    def _extent(self, loop: Loop, env: Environment) -> int:
        extent = np.asarray(loop.extent(env))
        if extent.size != 1 and (extent != extent.flat[0]).any():
            raise SimulationError(f"the trip count of loop {loop.name} differs between threads", within=self.batch.where(env))
        return int(extent.flat[0])

    def _nest(self, nest: Nest, env: Environment, group: ThreadGroup) -> bool:
        """Execute a nest with some loops as axes; False, before any effect, if that is illegal."""
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
    """Remove the names that a list of statements binds: they have no meaning outside, and other groups may not have them."""
    for node in nodes:
        if isinstance(node, Name):
            env.pop(node.name, None)
