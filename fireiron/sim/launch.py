"""Simulate a launch, from arguments to outputs.

Arguments are checked, the grid is divided into batches of blocks that fit a core's cache, and batches run in Python threads. If an output
contains NaN, a block is executed again with every value tracked, to report the first read of an uninitialized value.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Final

import attrs
import numpy as np

from fireiron.errors import ArgumentError, SimulationError
from fireiron.ir import Kernel, verify
from fireiron.ir.effects.joint_tiles import Combination, JointTiles
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.sim.block_batch import BlockBatch
from fireiron.sim.dynamic_scheduler import assign_tiles
from fireiron.sim.memory import Global, global_memory
from fireiron.sim.plan import MAX_ELEMENTS, Array, Operand, Plan
from fireiron.sim.rings import check_barriers
from fireiron.sim.run import Run
from fireiron.sim.semaphores import Semaphores, run_blocks
from fireiron.sim.shadow import History, Shadow
from fireiron.sim.tracing import Line
from fireiron.sim.warps import Warps
from fireiron.spec import with_strides
from fireiron.values.expr import compiled
from fireiron.values.tensor import UnitMode

_BATCH_BYTES: Final = 1 << 21
"""Working memory of the blocks that one Python thread simulates together: the size of a core's cache."""


@attrs.frozen(eq=False)
class Simulation:
    """The result of a simulated launch.

    `outputs` are the written parameters in logical shape. `written` masks their written elements, if shadow memory was kept. `blocks` are
    the executed blocks, of `threads` threads each. `statements` and `barriers` count executed statements and passed barriers of one block;
    `read_bytes` and `written_bytes` count the global memory traffic requested by all threads. `lines` are those that the kernel printed.
    """

    outputs: dict[str, Array]
    blocks: tuple[int, ...]
    threads: int
    seconds: float
    statements: int
    barriers: int
    read_bytes: int
    written_bytes: int
    written: Mapping[str, Array] = attrs.field(factory=dict, kw_only=True)
    lines: tuple[str, ...] = attrs.field(default=(), kw_only=True)


def simulate(
    kernel: Kernel,
    arrays: Mapping[str, Array],
    symbols: Mapping[str, int] = {},
    *,
    blocks: Sequence[int] | None = None,
    shadow: bool = True,
    order: random.Random | None = None,
    known: Mapping[str, Array] | None = None,
) -> Simulation:
    """Execute a kernel. A `SimulationError` describes the first race, out-of-bounds access or read of uninitialized data.

    `arrays` are the parameters by buffer name, in logical shape. A missing output starts as poison (NaN for floats). `known` masks, by
    array name, the elements that hold values; the others are poison. If it is given, the result contains a mask of the written elements.
    `symbols` are the run-time sizes; strides that are not among them leave no gaps. `blocks` selects a sample of the grid. `shadow` enables
    race detection. With `order`, each warp runs separately from barrier to barrier, in random order; without it all threads of a block run
    in lockstep. Lines that the kernel prints (`print_values`) are printed after the last block. See `fireiron.sim` for
    the rounding of float32 multiply-adds.
    """
    start = time.perf_counter()
    verify(kernel, final=True)
    if kernel.exchanges:
        raise ArgumentError(
            f"{kernel.name}: the GPUs of a node exchange sums in this launch, which is simulated on all of them",
            hint="call the compiled kernel of the node with NumPy arrays",
        )  # fmt: skip
    plan = Plan(kernel, checked_symbols(kernel, with_strides(kernel.spec, symbols)))
    check_barriers(plan)
    chosen = _chosen_blocks(plan, blocks)
    launch = SingleLaunch(plan, arrays, chosen, shadow, order, track_all=_may_drop_poison(plan), known=known or {})
    launch.run()
    _locate_poison(plan, arrays, launch)
    lines = tuple(line.text for line in sorted(launch.lines))
    for line in lines:
        print(line)
    result = Simulation(launch.outputs(), chosen, kernel.threads, time.perf_counter() - start, *launch.counts, lines=lines)
    return result if known is None else attrs.evolve(result, written=launch.written())


# ---------------------------------------------------------------------------------------------- arguments


def checked_symbols(kernel: Kernel, common: Mapping[str, int]) -> dict[str, int]:
    """Return the values of a kernel's symbols. Raises: ArgumentError for a symbol without a legal value."""
    known = {symbol.name for symbol in kernel.symbols}
    for name in common:
        if name not in known:
            raise ArgumentError(f"{kernel.name} has no symbol {name}", legal=sorted(known) or "none")
    values: dict[str, int] = {}
    for symbol in kernel.symbols:
        if symbol.name not in common:
            raise ArgumentError(f"{kernel.name}: the symbol {symbol.name} has no value", hint=f"symbols={{{symbol.name!r}: ...}}")
        value = common[symbol.name]
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ArgumentError(f"symbol {symbol.name}: the value must be an integer", got=value)
        values[symbol.name] = int(value.__index__())
        if not symbol.low <= values[symbol.name] <= symbol.high or values[symbol.name] % symbol.multiple_of:
            legal = f"{symbol.low} ... {symbol.high}" + (f", multiples of {symbol.multiple_of}" if symbol.multiple_of > 1 else "")
            raise ArgumentError(f"symbol {symbol.name}={values[symbol.name]} violates its declaration", legal=legal)
    for text, condition in kernel.facts:
        if not compiled(condition)(values):
            raise ArgumentError(f"{kernel.name} requires that {text}: {condition}", got=values)
    return values


def _chosen_blocks(plan: Plan, blocks: Sequence[int] | None) -> tuple[int, ...]:
    if blocks is None or plan.kernel.workspace is not None:  # blocks that produce a result together all run
        return tuple(range(plan.grid))
    for block in blocks:
        if isinstance(block, bool) or not hasattr(block, "__index__") or not 0 <= int(block) < plan.grid:
            raise ArgumentError("blocks: the grid has no such block", got=block, legal=f"0 ... {plan.grid - 1}")
    return _whole_clusters(plan, map(int, blocks))


def _whole_clusters(plan: Plan, blocks: Iterable[int]) -> tuple[int, ...]:
    """The blocks of all clusters that contain some blocks, since the blocks of a cluster wait for each other."""
    clusters = dict.fromkeys(block // plan.cluster for block in blocks)
    return tuple(number * plan.cluster + rank for number in clusters for rank in range(plan.cluster))


# ---------------------------------------------------------------------------------------------- a launch


class SingleLaunch:
    """One simulated launch: global memory, the blocks in batches, shadow memory."""

    def __init__(
        self,
        plan: Plan,
        arrays: Mapping[str, Array],
        blocks: tuple[int, ...],
        shadow: bool,
        order: random.Random | None,
        track_all: bool = False,
        tiles_of_blocks: Mapping[int, Sequence[int]] | None = None,
        known: Mapping[str, Array] = MappingProxyType({}),
        shared: Mapping[str, Global] = MappingProxyType({}),
    ) -> None:
        self.plan, self.blocks, self.order, self.track_all, self.shadow = plan, blocks, order, track_all, shadow
        self.known = known
        self.tiles_of_blocks = assign_tiles(plan, order) if tiles_of_blocks is None else tiles_of_blocks
        self.parameters = global_memory(plan, arrays, track_all, known, shared)
        written = {name: one for name, one in self.parameters.items() if shadow and one.buffer.written and name not in shared}
        ordered = plan.kernel.effects[JointTiles].combination is Combination.ORDERED
        self.history = History({name: Shadow(one.flat.size, plan.pitch, ordered) for name, one in written.items()})
        self.counts = [0, 0, 0, 0]
        self.lines: list[Line] = []

    def run(self) -> None:
        """Execute all batches. If several fail, the error of the first block is raised."""
        runs = self._run_batches() if self.plan.kernel.workspace is None else self._run_together()
        for run in (one for ranks in runs for one in ranks):
            self.counts[2] += run.batch.read_bytes
            self.counts[3] += run.batch.written_bytes
            self.lines += run.executor.lines
        if runs:
            self.counts[0], self.counts[1] = runs[0][0].executor.statements, runs[0][0].barriers
        for ranks in runs:
            _require_work([run.batch for run in ranks])
        for parameter in self.parameters.values():
            parameter.check_guards()

    def _run_batches(self) -> list[Sequence[Run]]:
        """Execute independent batches, in several Python threads."""
        batches = self._batches()
        # One random generator per batch: batches run in parallel, and the order of warps must not depend on which batch runs first.
        seeds = [None if self.order is None else type(self.order)(self.order.getrandbits(64)) for _ in batches]
        jobs = [(number, batch, seed) for number, (batch, seed) in enumerate(zip(batches, seeds, strict=True))]
        workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, len(jobs))
        if workers <= 1:
            return [self._run_batch(*job) for job in jobs]
        with ThreadPoolExecutor(workers) as pool:
            futures = [pool.submit(self._run_batch, *job) for job in jobs]
            try:
                return [future.result() for future in futures]
            finally:
                for future in futures:
                    future.cancel()

    def _batches(self) -> list[tuple[int, ...]]:
        plan, blocks = self.plan, self.blocks
        cluster = plan.cluster
        # Blocks of a batch run the same iterations of all loops. And overlapping buffers of different types share bytes only if a row has
        # one column.
        if plan.block_loops or plan.mixed:
            return [blocks[start : start + cluster] for start in range(0, len(blocks), cluster)]
        size = plan.kernel.block_bytes
        for buffer in plan.kernel.buffers:
            if buffer.memory.private:
                size += plan.number(buffer.elements) * buffer.dtype.bytes * plan.kernel.threads
        count = len(blocks) // cluster
        # Two batches for two threads: a few wide batches are faster than many small ones, since Python threads alternate.
        per_thread_count = count if size * len(blocks) <= _BATCH_BYTES else -(-count // 2)
        width = max(1, min(_BATCH_BYTES // max(size * cluster, 1), MAX_ELEMENTS // plan.largest, 256, per_thread_count)) * cluster
        return [blocks[start : start + width] for start in range(0, len(blocks), width)]

    def _run_batch(self, number: int, blocks: tuple[int, ...], order: random.Random | None) -> Sequence[Run]:
        cluster = self.plan.cluster
        with np.errstate(all="ignore"):
            common = self.plan, self.parameters, self.history
            runs = [
                Run(*common, blocks[rank::cluster], self._detects(number), self.track_all, rank, self.tiles_of_blocks)
                for rank in range(cluster)
            ]
            for _ in programs_of(runs, order):
                pass
        return runs

    def _run_together(self) -> list[Sequence[Run]]:
        """Execute blocks that wait for each other, or that continue the work of others: in one Python thread, in several orders."""
        semaphores, results, programs = Semaphores(), list[Sequence[Run]](), list[tuple[int, Iterator[bool]]]()
        for number, block in enumerate(self.blocks):
            run = Run(self.plan, self.parameters, self.history, (block,), self._detects(number), self.track_all, semaphores=semaphores)
            results.append((run,))
            programs.append((block, programs_of((run,), self.order)))
        with np.errstate(all="ignore"):
            run_blocks(programs, self.order, self.plan.kernel.awaits_copies)
        semaphores.require_reset()
        return results

    def _detects(self, number: int) -> bool:
        """Whether a batch detects races in shared memory. If all blocks access it alike, the first batch represents all."""
        return self.shadow and (number == 0 or not self.plan.uniform)

    def outputs(self) -> dict[str, Array]:
        """The written parameters."""
        return {name: one.array for name, one in self.parameters.items() if one.buffer.written and not one.buffer.workspace}

    def written(self) -> dict[str, Array]:
        """The mask of elements of the written parameters that this or an earlier launch wrote."""
        zeroed = self.plan.kernel.effects[Zeroed].names
        shadows = self.history.shadows
        return {
            name: np.full(self.parameters[name].shape, True) if name in zeroed else shadow.write_clock[self.parameters[name].places] >= 0
            for name, shadow in shadows.items()
            if not self.parameters[name].buffer.workspace
        }


def programs_of(runs: Sequence[Run], order: random.Random | None) -> Iterator[bool]:
    """The program of a batch, or of the blocks of a cluster; it yields where other blocks may run."""
    if order is None and len(runs) == 1 and not runs[0].plan.kernel.rings:
        return runs[0].run_in_lockstep()
    return Warps(Run.joined(runs), order).run()


def _require_work(cluster: Sequence[BlockBatch]) -> None:
    """Raise if a block, or all blocks of a cluster, write only out-of-bounds elements.

    If integer arrays determine the work, the grid is an upper bound, and some blocks have none. The same holds for interleaved tiles, such
    as every fourth row per block: past the end of an array, some blocks of the last period have no work. Nested tiles may exceed an array.
    """
    if cluster[0].tables or _interleaves(cluster[0].plan) or _exceeds(cluster[0].plan):
        return
    for position in set.intersection(*(set(batch.idle().tolist()) for batch in cluster)):
        raise SimulationError(
            f"block {cluster[0].block(position)} of the grid has no work: every element that it writes is out of bounds",
            hint="the grid is too large, or guards are too strict",
        )


def _interleaves(plan: Plan) -> bool:
    """Whether elements of one block are between those of another: the mode of the blocks does not have the largest stride."""
    return any(along and along[0].stride < max(mode.stride for mode in along) for _, _, along in _distributed(plan))


def _exceeds(plan: Plan) -> bool:
    """Whether the tiles of nested levels of blocks exceed an array, so that the last blocks have no work.

    An example are tiles of 2 in tiles of 8 of a dimension of 5: the grid has four blocks, and three have work. A bound that moves with the
    block is the end of a tile in the block's own tile, which contains the first element of the block.
    """
    return any(
        along and (along[0].size - 1) * along[0].stride >= plan.number(bound)
        for operand, dim, along in _distributed(plan)
        for bound in [operand.access.bounds[dim]]
        if bound is not None and "block" in operand.dependences[dim] and plan.is_known(bound)
    )


def _distributed(plan: Plan) -> Iterator[tuple[Operand, int, list[UnitMode]]]:
    """Yield each dimension of the writes to global memory, and the modes that distribute it over units, blocks first."""
    for site in plan.sites:
        for operand in site.operand_list:
            if operand.write and operand.buffer.memory.of_grid:
                for dim, modes in enumerate(operand.access.unit_modes):
                    yield operand, dim, [mode for mode in modes if mode.unit]


def _may_drop_poison(plan: Plan) -> bool:
    """Whether an unwritten value may leave no NaN in an output: comparisons, maxima and conversions to integers drop NaN."""
    return any(
        any(formula.drops_nan for formula in site.statement.spec.definition.formulas)
        or any(
            not read.buffer.memory.is_coordinate and read.buffer.dtype.kind == "float" and write.buffer.dtype.kind == "int"
            for _, read in site.inputs
            for _, write, _ in site.outputs
        )
        for site in plan.sites
    )


def _locate_poison(plan: Plan, arrays: Mapping[str, Array], launch: SingleLaunch) -> None:
    """If NaN reached an output, execute a block again with every value tracked, to report the first read of an uninitialized value."""
    for name, parameter in launch.parameters.items():
        if not parameter.buffer.written or parameter.buffer.workspace or parameter.buffer.dtype.kind != "float":
            continue
        bad = parameter.places[np.isnan(parameter.array)]
        if plan.kernel.workspace is not None:
            blocks = launch.blocks
        elif name in launch.history.shadows and bad.size:
            shadow = launch.history.shadows[name]
            bad = bad[shadow.write_clock[bad] >= 0]
            blocks = _whole_clusters(plan, (shadow.writer[0][bad[:1]] // plan.pitch).tolist())
        else:
            blocks = launch.blocks[: plan.cluster]
        if bad.size:
            SingleLaunch(
                plan, arrays, blocks, False, launch.order, track_all=True, tiles_of_blocks=launch.tiles_of_blocks, known=launch.known
            ).run()
