"""Count a kernel's work from its IR: instructions, shared-memory wavefronts and bytes, for one block, by phase.

A phase is a top-level loop that the CUDA code does not unroll, or the statements between two such loops. The counts depend only on the
printed program: the spec of a statement, its level, the memory of its operands, and the loops that are unrolled. They do not depend on the
name of a strategy or an instruction.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import numpy as np

from fireiron.check.access_trace import AccessTrace, assumed_elements
from fireiron.check.persistence import static_schedule
from fireiron.check.variable_trip_count import TripCounts, typical_block, varying_trip_counts
from fireiron.cost.accesses import WARP, Accesses
from fireiron.cost.amounts import Amounts, Operation, Phase, Traffic
from fireiron.cost.gpus import wgmma_rate_name
from fireiron.errors import ArgumentError, shown
from fireiron.ir import (
    BLOCK_SCOPE,
    Access,
    Acquire,
    Barrier,
    Buffer,
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
    Kernel,
    Let,
    Release,
    Roles,
    Rotations,
    StageState,
    Stmt,
    Wait,
    execs,
    plain,
    statements,
    unknown,
)
from fireiron.ir.unrolled import loops_that_run
from fireiron.spec import Spec, with_strides
from fireiron.specs.fused import fused
from fireiron.stepping.masks import visible_shares
from fireiron.values.expr import FALSE, conjuncts, constant
from fireiron.values.sharer import BLOCK, GRID

Array = Any

MAX_BLOCKS: Final = 1 << 14
"""Maximum number of blocks whose tiles are compared for sharing."""

MAX_POINTS: Final = 1 << 20
"""Maximum number of loop values at which a condition is evaluated. With more values, the condition counts as true."""

LOOP_INSTRUCTIONS: Final = 3
"""Number of warp instructions per iteration of a loop that runs: count, compare, branch."""

MAX_UNROLLED: Final = 256
"""Maximum number of instructions of all iterations of a loop that the compiler unrolls without a pragma (nvcc 13.0: 192, but not 384)."""

MAX_PARTIALLY_UNROLLED: Final = 64
"""Maximum number of instructions of an iteration after the compiler has unrolled a loop partially (nvcc 13.0: 48, but not 96)."""

MMA_BYTES: Final = 32
"""Number of bytes of a row of A of a 16 x 8 x 16 float16 MMA (PTX ISA, "Matrix fragments for mma")."""


class Work:
    """The work of a kernel for given sizes."""

    def __init__(self, kernel: Kernel, sizes: Mapping[str, int] | None = None) -> None:
        self.access_trace = AccessTrace(static_schedule(kernel))
        # Count one iteration of a data-dependent loop, because few tiles occur in several iterations.
        chosen = {symbol.name: 1 for symbol in self.access_trace.kernel.symbols if symbol not in kernel.symbols}
        self.sizes = {**checked_sizes(kernel, sizes or {}), **chosen}
        self.sizes |= assumed_elements(self.access_trace, self.sizes)
        self.kernel = kernel = self.access_trace.kernel
        self.grid = int(kernel.grid.evaluate(self.sizes))
        self.fixed = {**self.sizes, "block": typical_block(tuple(self.varying_loops.values()))}
        self.warps = -(-kernel.workers // WARP)
        self.running = loops_that_run(kernel)
        self.operations: dict[int, Operation] = {}
        self.traffic: list[Traffic] = []
        self.accesses = Accesses(self.access_trace, self.fixed, self.extent)
        self.rotations = Rotations(kernel)
        self.phases = tuple(
            attrs.evolve(phase, amounts=self._sum(phase.body, phase.loops) + self._sum(phase.concurrent, ())) for phase in _phases(kernel)
        )

    @functools.cached_property
    def amounts(self) -> Amounts:
        """The sum of the amounts of all phases, for one block."""
        return sum((phase.amounts for phase in self.phases), Amounts())

    @functools.cached_property
    def useful(self) -> float:
        """The number of operations of the whole spec."""
        return useful_operations(self.kernel.spec, self.sizes)

    def extent(self, loop: For) -> int:
        """Return the trip count of a loop for the typical block, in the first iteration of the surrounding loops on which it depends."""
        number = constant(loop.extent)
        if number is None:
            first = {stmt.var.name: stmt.first for stmt in statements(self.kernel.body) if isinstance(stmt, For)}
            number = int(self.access_trace.frame([], {**first, **self.fixed}).value(loop.extent))
        return len(loop.values(number))

    def trip_count(self, loop: For) -> float:
        """Return the trip count of a loop. If blocks skip iterations, it is the average over the blocks."""
        counts = self.varying_loops.get(loop.var.name)
        return float(self.extent(loop)) if counts is None else counts.mean

    @functools.cached_property
    def varying_loops(self) -> Mapping[str, TripCounts]:
        """The loops of which blocks skip fully masked iterations, by name."""
        return {counts.loop.var.name: counts for counts in varying_trip_counts(self.access_trace, self.sizes)}

    def operation(self, statement: Exec) -> Operation:
        """Return the counts of a statement."""
        return self.operations[id(statement)]

    # ------------------------------------------------------------------------------------------ programs

    def _sum(self, body: tuple[Stmt, ...], loops: tuple[For, ...]) -> Amounts:
        """Return the amounts of statements for one block."""
        total = Amounts()
        for statement in body:
            match statement:
                case For():
                    inside = self._sum(statement.body, (*loops, statement))
                    total = total + inside + Amounts(instructions=self._counting(statement, inside, self._times((*loops, statement))))
                case Exec():
                    times = self._executions(statement, loops)
                    operation = self.operations[id(statement)] = self._operation(statement, loops)
                    total = total + operation.amounts.times(times)
                    self.traffic += self._traffic(statement, loops, operation, times)
                case Barrier(scope=scope):
                    times = self._times(loops)
                    total = total + Amounts(instructions=self.warps * times, barriers=times if scope == BLOCK_SCOPE else 0.0)
                case IfAnyLane(needed=needed):  # counted as if every warp executed it, because this depends on data
                    requested = (constant(self.kernel.buffer(needed).elements) or 0) + LOOP_INSTRUCTIONS
                    total = total + self._sum(statement.body, loops) + Amounts(instructions=requested * self.warps * self._times(loops))
                case ClusterBarrier():
                    total = total + Amounts(instructions=2.0 * self.warps, barriers=1.0)
                case Roles():
                    for child in statement.children:
                        total = total + self._sum(child, loops)
                case (
                    Let() | Comment() | Commit() | Wait() | Fence() | Acquire() | Release() | ClaimTile() | ExitIfDone() | GridDepControl()
                ):
                    pass
                case _:
                    raise unknown(statement, "the cost model")
        return total

    def _counting(self, loop: For, inside: Amounts, iterations: float) -> float:
        """Return the instructions that count the iterations of a loop, if `inside` are the amounts of all its iterations.

        The compiler unrolls an innermost loop with a constant trip count even without a pragma: completely if it is short, else partially.
        """
        if id(loop) not in self.running or not iterations:
            return 0.0
        trips, factor = constant(loop.extent), 1
        if trips is not None and not any(id(stmt) in self.running for stmt in statements(loop.body)):
            length = inside.instructions / iterations / self.warps
            if length * trips <= MAX_UNROLLED:
                return 0.0
            while trips % (2 * factor) == 0 and 2 * factor * length <= MAX_PARTIALLY_UNROLLED:
                factor *= 2
        return LOOP_INSTRUCTIONS * self.warps * iterations / factor

    def _times(self, loops: Sequence[For]) -> float:
        return float(math.prod(self.trip_count(loop) for loop in loops))

    def _executions(self, statement: Exec, loops: tuple[For, ...]) -> float:
        """Return how often the participating threads execute a statement.

        Conditions that depend on the block count as true, except for masks. If the kernel skips iterations, the typical block determines
        how often masks hold.
        """
        known = frozenset({*(loop.var.name for loop in loops), *self.sizes})
        conditions = [condition for condition in conjuncts(statement.performed) if self.access_trace.roots(condition) <= known]
        needed = self.access_trace.needs(conditions)
        outer = self._times([loop for loop in loops if loop.var.name not in needed])
        around = [loop for loop in loops if loop.var.name in needed]
        inner = [(loop.var.name, self.extent(loop)) for loop in around]
        points = math.prod(extent for _, extent in inner)
        outer *= self._unmasked_share(statement, loops) * (self._times(around) / points if points else 0.0)
        if not conditions or not outer or points > MAX_POINTS:
            return outer * points
        frame = self.access_trace.frame([(name, np.arange(extent)) for name, extent in inner], self.fixed)
        mask = np.ones(frame.shape, dtype=bool)
        for condition in conditions:
            mask &= np.asarray(frame.full(condition), dtype=bool)
        return outer * float(mask.sum())

    def _unmasked_share(self, statement: Exec, loops: Sequence[For]) -> float:
        """Return the share of a typical block's threads and iterations for which conditions on the block and on iterations hold."""
        names = {loop.var.name for loop in loops}
        known = {"block", "thread", *names, *self.sizes}
        conditions = [
            condition
            for condition in conjuncts(statement.performed)
            if "block" in (roots := self.access_trace.roots(condition)) and names & roots and roots <= known
        ]
        around = [(loop.var.name, self.extent(loop)) for loop in loops if loop.var.name in self.access_trace.needs(conditions)]
        if not self.varying_loops or not conditions or math.prod(extent for _, extent in around) > MAX_POINTS // self.kernel.workers:
            return 1.0
        axes = [(name, np.arange(extent)) for name, extent in around]
        frame = self.access_trace.frame([("thread", self.access_trace.threads), *axes], self.fixed)
        mask = np.ones(frame.shape, dtype=bool)
        for condition in conditions:
            mask = mask & np.asarray(frame.full(condition), dtype=bool)
        return float(mask.mean()) if mask.size else 0.0

    # ------------------------------------------------------------------------------------------ statements

    def _operation(self, statement: Exec, loops: tuple[For, ...]) -> Operation:
        """Return the amounts of one execution by all warps of a block."""
        active, threads, warps = self._active(statement, loops)
        units = threads / (statement.spec.level.threads or self.kernel.workers)
        amounts = self._arithmetic(statement, units, warps)
        in_memory = [(position, access) for position, access in enumerate(statement.accesses) if self._is_in_memory(access)]
        if not in_memory and not amounts.flops:
            target = statement.accesses[-1]
            words = math.prod(target.shape) * self._buffer(target).dtype.bits / 32
            amounts = amounts + Amounts(instructions=max(words, 1.0) * warps)
        memory = Amounts()
        for position, access in in_memory:
            part = self.accesses.amounts(statement, position, loops, active, warps, units)
            if statement.multicast is not None:  # a block requests only its part from L2, and receives the parts of all blocks
                part = attrs.evolve(part.times(statement.multicast.count), l2_read=part.l2_read)
            memory = memory + part
            if access.write and self._reads_old(statement):
                memory = memory + attrs.evolve(part, l2_read=part.l2_written, l2_written=0.0)
        issued = memory.memory / 2 if statement.mechanism.arrives_in_groups else memory.memory  # one instruction, two operands
        usual = plain(statement)  # most warps are completely in bounds
        conditions = {piece.condition for pieces in usual.pieces for piece in pieces} | {usual.active, usual.guard}
        conditions |= set() if statement.interior == FALSE else {statement.interior}
        guards = sum(len(conjuncts(condition)) for condition in conditions)
        amounts = amounts + memory + Amounts(instructions=issued + guards * warps, touched=self._touched(statement, warps))
        return self._described(statement, amounts, warps)

    def _arithmetic(self, statement: Exec, units: float, warps: float) -> Amounts:
        """Return the operations of a statement: of the tensor cores if lanes share its tiles, else multiply-adds."""
        flops = operations(statement.spec, [constant(size) or 1 for size in statement.spec.sizes])
        if not flops:
            return Amounts()
        total = flops * units
        if _on_tensor_cores(statement):
            kind = self._buffer(statement.accesses[0]).dtype
            executed = total / math.prod(statement.spec.definition.coarse.get(statement.spec.inputs[0], ()))  # half, if A is 2:4 sparse
            if statement.instruction.mechanism.by_engine:
                return Amounts(instructions=warps, mma=warps, tensor={wgmma_rate_name(kind.name): executed}, flops=total)
            mma = max(executed / (2 * 16 * 8 * MMA_BYTES / kind.bytes), warps)
            return Amounts(instructions=mma, mma=mma, tensor={kind.name: executed}, flops=total)
        result = self._buffer(statement.accesses[-1]).dtype
        pairs = flops == 4 or statement.instruction.packs
        packed = result.bits == 16 and result.kind == "float" and pairs and not statement.collective
        adds = total / (4 if packed else 2) / WARP
        return Amounts(instructions=adds, fma={result.name: adds}, flops=total)

    def _active(self, statement: Exec, loops: tuple[For, ...]) -> tuple[Array, float, float]:
        """Return the mask of threads for which conditions on threads hold, the number of these threads, and the number of their warps.

        The mask has the shape `(threads, samples)`. None means all threads.
        """
        conditions = [
            condition
            for condition in conjuncts(statement.performed)
            if "thread" in (roots := self.access_trace.roots(condition)) and "block" not in roots
        ]
        if not conditions:
            return None, float(self.kernel.workers), float(self.warps)
        frame = self.accesses.frame(loops)
        mask = np.ones(frame.shape, dtype=bool)
        for condition in conditions:
            mask = mask & np.asarray(frame.full(condition), dtype=bool)
        padded = np.concatenate([mask, np.zeros((-len(mask) % WARP, mask.shape[1]), dtype=bool)])
        warps = padded.reshape(self.warps, WARP, -1).any(axis=1).sum(axis=0).mean()
        return mask, float(mask.sum(axis=0).mean()), float(warps)

    def _touched(self, statement: Exec, warps: float) -> float:
        total = 0.0
        for access in statement.accesses:
            buffer = self._buffer(access)
            if buffer.memory.private:
                words = math.prod(access.shape) * buffer.dtype.bits / 32
                total += warps * words * (2 if access.write and self._reads_old(statement) else 1)
        return total

    def _described(self, statement: Exec, amounts: Amounts, warps: float) -> Operation:
        private = [access for access in statement.accesses if self._buffer(access).memory.private]
        read = {self._buffer(access).memory.shared_by for access in statement.accesses if not access.write}
        arithmetic = "mma" if amounts.tensor else "fma" if amounts.flops else ""
        return Operation(
            amounts,
            warps,
            "global" if GRID in read else "shared" if BLOCK in read else arithmetic,
            tuple((access.buffer, access.copy) for access in private if not access.write),
            tuple((access.buffer, access.copy) for access in private if access.write),
            amounts.flops > 0 and self._reads_old(statement),
            self.access_trace.needs(base for access in statement.accesses if access.write for base in access.base),
            any(access.write and self._buffer(access).memory.of_block for access in statement.accesses),
            statement.mechanism.arrives_in_groups,
        )

    def _buffer(self, access: Access) -> Buffer:
        return self.kernel.buffer(access.buffer)

    def _reads_old(self, statement: Exec) -> bool:
        return statement.accumulate != FALSE and not statement.atomic

    # ------------------------------------------------------------------------------------------ blocks

    def _is_in_memory(self, access: Access) -> bool:
        """Whether an access uses memory. Coordinates, and single elements that all threads read, have no counted cost."""
        memory = self._buffer(access).memory
        return not memory.private and not memory.is_coordinate and bool(access.base)

    def _traffic(self, statement: Exec, loops: tuple[For, ...], operation: Operation, times: float) -> Iterator[Traffic]:
        """Yield the traffic of a statement's operands in GL. Bytes that are read are distributed over the operands by their elements.

        Repeated requests of a block hit in L2.
        """
        amounts = operation.amounts.times(times)
        in_memory = [access for access in statement.accesses if self._buffer(access).memory.of_grid and self._is_in_memory(access)]
        sizes = [math.prod(access.shape) * self._buffer(access).dtype.bytes for access in in_memory]
        reading = [not access.write or self._reads_old(statement) for access in in_memory]
        whole = sum(size for size, reads in zip(sizes, reading, strict=True) if reads)
        for access, size, reads in zip(in_memory, sizes, reading, strict=True):
            buffer = self._buffer(access)
            length = float(buffer.elements.evaluate(self.sizes)) * buffer.dtype.bytes
            tiles, reach = self._tiles(access, loops), self.accesses.reach(access, loops)
            if reads:
                yield Traffic(buffer.name, False, min(amounts.l2_read * size / whole, reach), length, tiles)
            if access.write:
                yield Traffic(buffer.name, True, min(amounts.l2_written, reach), length, tiles)

    def _tiles(self, access: Access, loops: tuple[For, ...]) -> Callable[[int], int]:
        """Return a function that counts the distinct start positions of the first blocks in the array.

        A staggered loop has the same positions for every start.
        """
        fixed = {**self.sizes, "thread": 0, **{loop.var.name: 0 for loop in loops}}

        def tiles(count: int) -> int:
            frame = self.access_trace.frame([("block", np.arange(min(max(count, 1), MAX_BLOCKS)))], fixed)
            places = np.stack([frame.full(self.rotations.straight(base)) for base in access.base])
            return int(np.unique(places, axis=1).shape[1])

        return tiles


def useful_operations(spec: Spec, sizes: Mapping[str, int]) -> float:
    """Return the number of operations of a whole spec. For a definition, it is that of its steps, without masked elements."""
    definition = fused(spec)
    extents = {dim: int(spec.size(dim).evaluate(sizes)) for dim in spec.dims}
    if definition is None:
        return operations(spec, list(extents.values()))
    total, shares = 0.0, visible_shares(definition, extents)
    for step in definition.steps:
        dims = {*step.formula.target.dims, *step.formula.over}
        terms = 2.0 if step.formula.contracts else 1.0 if step.formula.reduces or len(step.formula.elements) > 1 else 0.0
        visible = math.prod(share for along, share in shares if along <= dims)
        total += terms * visible * math.prod(extents.get(dim, 1) for dim in {*dims, *definition.batch, *definition.scan})
    return total


def operations(spec: Spec, sizes: Sequence[int]) -> float:
    """Return the number of operations of a spec: two per multiply-add, one per term of a sum or element of other arithmetic, 0 per copy."""
    inputs = [name for name in spec.operands if name not in spec.outputs]
    reduced = [dim for dim in spec.dims if all(dim not in spec.uses[name] for name in spec.outputs)]
    points = float(math.prod(sizes))
    if reduced and len(inputs) > 1:
        return 2 * points
    return points if reduced or len(inputs) > 1 or spec.atomic else 0.0


def checked_sizes(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the run-time sizes. Strides that are not given leave no gaps.

    Raises: `ArgumentError` if a size is missing, unknown, or illegal for the kernel.
    """
    wanted = {symbol.name: symbol for symbol in kernel.symbols}
    for name, value in sizes.items():
        symbol = wanted.get(name)
        if symbol is None:
            raise ArgumentError(f"{name}={value}: the kernel has no such size", legal=list(wanted) or "none")
        if isinstance(value, bool) or not isinstance(value, int) or not symbol.low <= value <= symbol.high or value % symbol.multiple_of:
            legal = f"{symbol.low} <= {name} <= {symbol.high}, a multiple of {symbol.multiple_of}"
            raise ArgumentError(f"{name}={shown(value)}", legal=legal)
    known = with_strides(kernel.spec, sizes)
    missing = [name for name in wanted if name not in known]
    if missing:
        example = ", ".join(f"{name!r}: 4096" for name in missing)
        hint = f"sizes={{{example}}}; on the command line --size {missing[0]}=4096"
        raise ArgumentError(f"the time depends on {', '.join(missing)}, which is known only at run time", hint=hint)
    return known


# ---------------------------------------------------------------------------------------------- phases


def _phases(kernel: Kernel) -> Iterator[Phase]:
    """Yield the phases of the program. With roles, these are the phases of the consumers.

    The producer runs concurrently with phases that wait for a ring. Persistent blocks repeat their phases for each tile.
    """
    roles = next((stmt for stmt in kernel.body if isinstance(stmt, Roles)), None)
    if roles is None:
        yield from _parts(kernel, kernel.body)
        return
    body, concurrent = roles.roles[0].body, tuple(stmt for role in roles.roles[1:] for stmt in role.body)
    persistent_loop = next(
        (
            loop
            for loop in body
            if isinstance(loop, For) and not _waits(loop, kernel) and any(_waits(inner, kernel) for inner in statements(loop.body))
        ),
        None,
    )
    for phase in _parts(kernel, body if persistent_loop is None else persistent_loop.body):
        with_loads = any(_waits(stmt, kernel) for stmt in phase.body)
        yield attrs.evolve(phase, loops=() if persistent_loop is None else (persistent_loop,), concurrent=concurrent if with_loads else ())


def _waits(statement: Stmt, kernel: Kernel) -> bool:
    """Whether a loop of the consumers waits for fills of a ring. Waits for empty stages of a ring that another role stores do not count."""
    waits = (stmt for stmt in statement.body if isinstance(stmt, Acquire)) if isinstance(statement, For) else ()
    return any(wait.state is StageState.FULL or not kernel.ring(wait.ring).buffers for wait in waits)


def _parts(kernel: Kernel, body: Sequence[Stmt]) -> Iterator[Phase]:
    """Yield the phases of a statement list: loops that run, the statements between them, and the part that writes results."""
    parts: list[tuple[str, list[Stmt]]] = []
    place, fresh, stored = "before", True, False
    for statement in body:
        if isinstance(statement, (Let, Comment, GridDepControl)):
            continue
        loop = id(statement) in loops_that_run(kernel)
        if isinstance(statement, For) and loop:
            place, fresh = f"loop over {statement.var.name}", True
        elif _writes_global(kernel, statement) and not stored:
            place, fresh, stored = "store", True, True
        if fresh:
            parts.append((place, []))
        parts[-1][1].append(statement)
        after = f"after {place}" if any(name == "after" for name, _ in parts) else "after"
        place, fresh = (after, True) if loop else (place, False)
    last = max((number for number, (_, body) in enumerate(parts) if any(map(_multiplies, body))), default=-1)
    for number, (name, body) in enumerate(parts):
        yield Phase(name, tuple(body), number > last and any(_writes_global(kernel, stmt) for stmt in body))


def _writes_global(kernel: Kernel, statement: Stmt) -> bool:
    return any(
        access.write and kernel.buffer(access.buffer).memory.of_grid for inner, _ in execs((statement,)) for access in inner.accesses
    )


def _multiplies(statement: Stmt) -> bool:
    return any(len(inner.spec.operands) > 2 for inner, _ in execs((statement,)))


def _on_tensor_cores(statement: Exec) -> bool:
    return bool(statement.lane_maps) and len(statement.spec.operands) > 2 and statement.spec.level.threads != 1
