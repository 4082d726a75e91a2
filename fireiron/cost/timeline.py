"""Estimate the time of a single warp. It issues its instructions in order, and each waits for its operands, barriers and copies in flight.

A clock advances with the statements of a representative warp. The executions of a statement in a nest of loops without other statements
count as one batch. They do not wait for each other. A loop is simulated until an iteration takes as long as the previous one. The remaining
iterations take the same time.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fireiron.cost.amounts import Operation
from fireiron.cost.work import MAX_POINTS, Work
from fireiron.frozen import frozen
from fireiron.ir import (
    BLOCK_SCOPE,
    Acquire,
    Barrier,
    ClaimTile,
    ClusterBarrier,
    Comment,
    Commit,
    Exec,
    ExitIfDone,
    Fence,
    For,
    GridDepControl,
    IfAnyLane,
    Let,
    Release,
    Roles,
    StageState,
    Stmt,
    Wait,
    unknown,
)
from fireiron.values.expr import Expr, conjuncts, constant

MAX_SIMULATED = 24
"""Maximum number of simulated iterations of a loop."""

SAME = 0.02
"""Maximum relative difference of two iterations that count as equally long."""


@frozen
class Latencies:
    """Clocks from the issue of an instruction to its result, and the cost of a barrier."""

    memory: float
    shared: float
    mma: float
    fma: float
    barrier: float
    chained_mma: float
    stage: float


@frozen
class Speeds:
    """The clocks of a scheduler per tensor-core operation, and per multiply-add of a warp, by type.

    `extra_instructions` is the number of additional instructions per load or store, and `port` the bytes per clock from L2.
    """

    tensor: dict[str, float]
    fma: dict[str, float]
    extra_instructions: float
    port: float = math.inf


class Clock:
    """The clock of a warp. `now` is the current time in clocks, and `wait_clocks` the clocks of stalls, by reason."""

    def __init__(self, work: Work, latencies: Latencies, speeds: Speeds) -> None:
        self.work = work
        self.latencies = latencies
        self.speeds = speeds
        self.now = 0.0
        self.ready: dict[tuple[str, int], float] = {}
        self.stored = 0.0
        self.issued = 0.0
        self.groups: list[float] = []
        self.wait_clocks: dict[str, float] = {}
        self.values: dict[str, int] = {**work.fixed, "thread": 0}
        self.acquired = dict.fromkeys((ring.name for ring in work.kernel.rings), 0)
        self.released: dict[str, list[float]] = {ring.name: [] for ring in work.kernel.rings}

    def walk(self, body: tuple[Stmt, ...]) -> None:
        """Advance the clock by statements. Raises: `VerificationError` if the cost model has no rule for a statement."""
        for statement in body:
            match statement:
                case For():
                    batch = _batch(statement)
                    if batch is None:
                        self._loop(statement)
                    else:
                        self._execute(*batch)
                case Exec():
                    self._execute(statement, ())
                case Commit() if statement.mechanism.in_registers:
                    pass
                case Wait(groups=groups) if statement.mechanism.in_registers:
                    # MMAs complete in order. A wait that leaves some MMAs pending counts as no wait.
                    if not groups:
                        self._wait(max(self.ready.values(), default=0.0), "results")
                    self.now += 1.0
                case Commit():
                    self.groups.append(max(self.issued, self.now))
                    self.issued = 0.0
                case Wait(groups=groups):
                    if len(self.groups) > groups:
                        self._wait(self.groups[-groups - 1], "copies")
                    self.now += 1.0
                case Barrier():
                    self._wait(self.stored, "copies")
                    self.now += self.latencies.barrier if statement.scope == BLOCK_SCOPE else 1.0
                case ClusterBarrier():
                    self._wait(self.stored, "copies")
                    self.now += self.latencies.barrier
                case IfAnyLane():
                    self.walk(statement.body)
                case Roles():
                    self.walk(statement.roles[0].body)
                case Acquire(ring=ring, state=StageState.FULL):
                    self._acquire(ring)
                case Release(ring=ring, state=StageState.EMPTY):
                    self.released[ring].append(self.now)
                case Let() | Comment() | Fence() | Acquire() | Release() | ClaimTile() | ExitIfDone() | GridDepControl():
                    pass
                case _:
                    raise unknown(statement, "the cost model")

    def _acquire(self, name: str) -> None:
        """Wait for a stage. The producer requests it when the previous fill is released, or at the start."""
        ring = self.work.kernel.ring(name)
        number = self.acquired[name] - ring.stages
        requested = self.released[name][number] if 0 <= number < len(self.released[name]) else 0.0
        self._wait(requested + self.latencies.memory + ring.bytes / self.speeds.port, "copies")
        self.now += self.latencies.stage
        self.acquired[name] += 1

    def _wait(self, until: float, why: str) -> None:
        if until > self.now:
            self.wait_clocks[why] = self.wait_clocks.get(why, 0.0) + until - self.now
            self.now = until

    def _loop(self, loop: For) -> None:
        extent = self.work.extent(loop)
        last, equal_count = -1.0, 0
        for index in range(extent):
            self.values[loop.var.name] = index
            start, waits = self.now, dict(self.wait_clocks)
            self.walk(loop.body)
            duration = self.now - start
            equal_count = equal_count + 1 if abs(duration - last) <= SAME * max(duration, 1.0) else 0
            remaining = extent - index - 1
            enough = equal_count >= max(2, min(len(self.groups), 4)) or index + 1 >= MAX_SIMULATED
            if remaining > 1 and enough and id(loop) in self.work.running:
                self._skip(remaining, duration, waits)
                break
            last = duration
        self.values.pop(loop.var.name, None)

    def _skip(self, remaining: int, duration: float, waits: dict[str, float]) -> None:
        """Advance the clock by the remaining iterations, which take as long as the last iteration."""
        skipped = remaining * duration
        for why, total in self.wait_clocks.items():
            self.wait_clocks[why] = total + remaining * (total - waits.get(why, 0.0))
        self.now += skipped
        self.stored += skipped
        self.groups = [time + skipped for time in self.groups]
        self.released = {name: [time + skipped for time in times] for name, times in self.released.items()}
        self.ready = {key: time + skipped for key, time in self.ready.items()}

    def _active(self, statement: Exec, inner: tuple[For, ...]) -> int:
        """Return how often a batch executes at the current loop values. Conditions on threads or unknown values count as true."""
        count = 1
        for loop in inner:
            count *= self.work.extent(loop)
        names = {loop.var.name for loop in inner}
        for condition in conjuncts(statement.performed):
            if constant(condition) is not None:
                continue
            roots = self.work.access_trace.roots(condition)
            if roots <= self.values.keys() and "thread" not in roots and "block" not in roots:
                if not self._value(condition):
                    return 0
            elif roots <= self.values.keys() | names and "thread" not in roots:
                return self._counted(statement, inner) if count <= MAX_POINTS else count
        return count

    def _counted(self, statement: Exec, inner: tuple[For, ...]) -> int:
        axes = [(loop.var.name, np.arange(self.work.extent(loop))) for loop in inner]
        frame = self.work.access_trace.frame(axes, self.values)
        mask = np.ones(frame.shape, dtype=bool)
        known = self.values.keys() | {name for name, _ in axes}
        for condition in conjuncts(statement.performed):
            if self.work.access_trace.roots(condition) <= known:
                mask = mask & np.asarray(frame.full(condition), dtype=bool)
        return int(mask.sum())

    def _value(self, expression: Expr) -> Any:
        return self.work.access_trace.frame([], self.values).value(expression)

    def _copy_index(self, expression: Expr) -> int:
        number = constant(expression)
        if number is not None:
            return number
        frame = self.work.access_trace.frame([], {**dict.fromkeys(self.work.access_trace.roots(expression), 0), **self.values})
        return int(frame.value(expression))

    def _execute(self, statement: Exec, inner: tuple[For, ...]) -> None:
        """Execute a batch: all executions of a statement in a nest of loops. Accumulations into the same element wait for each other."""
        times = self._active(statement, inner)
        if not times:
            return
        operation = self.work.operation(statement)
        reads = [(name, self._copy_index(copy)) for name, copy in operation.reads]
        writes = [(name, self._copy_index(copy)) for name, copy in operation.writes]
        for key in [*reads, *(writes if operation.accumulates else ())]:
            self._wait(self.ready.get(key, 0.0), "results")
        start, loading = self.now, self._loading(operation.kind)
        computing = self._computing(operation)
        self.now += times * self._issue(operation)
        if operation.accumulates:
            rounds = math.prod(self.work.extent(loop) for loop in inner if loop.var.name not in operation.result_names)
            self._wait(start + loading + (rounds - 1) * computing, "copies" if operation.kind == "global" else "results")
            done = max(start + loading + rounds * computing, self.now)
        else:
            done = self.now + loading + computing
        self.ready.update(dict.fromkeys(writes, done))
        if operation.asynchronous:
            self.issued = max(self.issued, done)
        elif operation.into_shared or not writes:
            self.stored = max(self.stored, done)

    def _computing(self, operation: Operation) -> float:
        """Return the clocks until the result of arithmetic is an operand of the next one."""
        if operation.amounts.tensor:
            return self.latencies.chained_mma if self.work.kernel.rings else self.latencies.mma
        return self.latencies.fma if operation.amounts.flops else 0.0

    def _loading(self, kind: str) -> float:
        """Return the clocks until an operand from memory arrives."""
        return self.latencies.memory if kind == "global" else self.latencies.shared if kind == "shared" else 0.0

    def _issue(self, operation: Operation) -> float:
        """Return the clocks in which a warp issues an execution."""
        amounts = operation.amounts
        share = 1 / max(operation.warps, 1e-9)
        tensor = sum(self.speeds.tensor.get(name, 0.0) * value for name, value in amounts.tensor.items())
        fma = sum(self.speeds.fma.get(name, 1.0) * value for name, value in amounts.fma.items())
        shared = amounts.shared
        return max(amounts.instructions + self.speeds.extra_instructions * amounts.memory, tensor, fma, shared) * share


def _batch(loop: For) -> tuple[Exec, tuple[For, ...]] | None:
    """Return the statement and the loops of a nest that contains only one statement; else None."""
    inner = [stmt for stmt in loop.body if not isinstance(stmt, (Let, Comment))]
    if len(inner) != 1:
        return None
    if isinstance(inner[0], Exec):
        return inner[0], (loop,)
    if isinstance(inner[0], For):
        inner_batch = _batch(inner[0])
        return None if inner_batch is None else (inner_batch[0], (loop, *inner_batch[1]))
    return None
