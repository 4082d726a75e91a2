"""A simulated launch, from arguments to outputs.

Arguments are checked, the grid is cut into chunks of blocks that fit a core's cache, and chunks run in Python threads. Where NaN
comes out, a block is executed again with every value watched, which names the first bad read.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Final

import attrs
import numpy as np

from fireiron.errors import ArgumentError, SimulationError
from fireiron.ir import Kernel, verify
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.sim.block_batch import BlockBatch
from fireiron.sim.dynamic_scheduler import deal
from fireiron.sim.memory import global_memory
from fireiron.sim.plan import MOST_ELEMENTS, Array, Plan
from fireiron.sim.rings import check_barriers
from fireiron.sim.run import Run
from fireiron.sim.shadow import History, Shadow
from fireiron.sim.warps import Warps
from fireiron.spec import with_strides
from fireiron.values.expr import compiled

_CHUNK_BYTES: Final = 1 << 21
"""Working memory of the blocks that one Python thread simulates together: what a core keeps in its cache."""


@attrs.frozen(eq=False)
class Simulation:
    """What a simulated launch left behind.

    `outputs` are the written parameters in logical shape, and `written` which of their elements the launch wrote, where shadow memory
    was kept; `blocks` those executed, of `threads` threads each. `statements`
    counts executed statements and `barriers` passed barriers, both of one block; `read_bytes` and `written_bytes` count what
    all threads asked of global memory.
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
    """Execute a kernel; a `SimulationError` names the first race, access out of bounds or read of uninitialised data.

    `arrays` are the parameters by buffer name, in logical shape; an output may be left out, and then starts as poison (NaN
    for floats). `known` says of arrays which of their elements hold anything, by name: the others are poison; where it is given, the
    result says which elements were written. `symbols` are the sizes known at run time;
    strides that are not among them leave no gaps. `blocks` is a sample of blocks instead of the whole grid. `shadow`
    watches for races. With `order`, each warp runs on its own from barrier to barrier, warps in random order; without it all
    threads of a block go in step. See the text of `fireiron.sim` for what fp32 multiply-adds round.
    """
    start = time.perf_counter()
    verify(kernel, final=True)
    plan = Plan(kernel, _checked_symbols(kernel, with_strides(kernel.spec, symbols)))
    check_barriers(plan)
    chosen = _chosen_blocks(plan, blocks)
    launch = _Launch(plan, arrays, chosen, shadow, order, careful=_may_drop_poison(plan), known=known or {})
    launch.run()
    _name_poison(plan, arrays, launch)
    found = Simulation(launch.outputs(), chosen, kernel.threads, time.perf_counter() - start, *launch.counts)
    return found if known is None else attrs.evolve(found, written=launch.written())


# ---------------------------------------------------------------------------------------------- arguments


def _checked_symbols(kernel: Kernel, given: Mapping[str, int]) -> dict[str, int]:
    known = {symbol.name for symbol in kernel.symbols}
    for name in given:
        if name not in known:
            raise ArgumentError(f"{kernel.name} has no symbol {name}", legal=sorted(known) or "none")
    values: dict[str, int] = {}
    for symbol in kernel.symbols:
        if symbol.name not in given:
            raise ArgumentError(f"{kernel.name}: the symbol {symbol.name} has no value", hint=f"symbols={{{symbol.name!r}: ...}}")
        value = given[symbol.name]
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ArgumentError(f"symbol {symbol.name}: not an integer", got=value)
        values[symbol.name] = int(value.__index__())
        if not symbol.low <= values[symbol.name] <= symbol.high or values[symbol.name] % symbol.multiple_of:
            legal = f"{symbol.low} ... {symbol.high}" + (f", multiples of {symbol.multiple_of}" if symbol.multiple_of > 1 else "")
            raise ArgumentError(f"symbol {symbol.name}={values[symbol.name]} breaks the facts it was declared with", legal=legal)
    for text, condition in kernel.facts:
        if not compiled(condition)(values):
            raise ArgumentError(f"{kernel.name} requires that {text}: {condition}", got=values)
    return values


def _chosen_blocks(plan: Plan, blocks: Sequence[int] | None) -> tuple[int, ...]:
    if blocks is None:
        return tuple(range(plan.grid))
    for block in blocks:
        if isinstance(block, bool) or not hasattr(block, "__index__") or not 0 <= int(block) < plan.grid:
            raise ArgumentError("blocks: no such block in the grid", got=block, legal=f"0 ... {plan.grid - 1}")
    return _whole_clusters(plan, map(int, blocks))


def _whole_clusters(plan: Plan, blocks: Iterable[int]) -> tuple[int, ...]:
    """Blocks with all others of their clusters, for which they wait."""
    clusters = dict.fromkeys(block // plan.cluster for block in blocks)
    return tuple(number * plan.cluster + rank for number in clusters for rank in range(plan.cluster))


# ---------------------------------------------------------------------------------------------- a launch


class _Launch:
    """One simulated launch: global memory, the blocks in chunks, shadow memory."""

    def __init__(
        self,
        plan: Plan,
        arrays: Mapping[str, Array],
        blocks: tuple[int, ...],
        shadow: bool,
        order: random.Random | None,
        careful: bool = False,
        dealt: Mapping[int, Sequence[int]] | None = None,
        known: Mapping[str, Array] = MappingProxyType({}),
    ) -> None:
        self.plan, self.blocks, self.order, self.careful, self.shadow = plan, blocks, order, careful, shadow
        self.known = known
        self.dealt = deal(plan, order) if dealt is None else dealt
        self.parameters = global_memory(plan, arrays, careful, known)
        written = {name: one for name, one in self.parameters.items() if shadow and one.buffer.written}
        self.history = History({name: Shadow(one.flat.size, plan.pitch) for name, one in written.items()})
        self.counts = [0, 0, 0, 0]

    def run(self) -> None:
        """Execute all chunks; of several errors the one in the first block counts."""
        chunks = self._chunks()
        # A generator for each chunk: they run in parallel, and the orders of warps must not depend on which comes first.
        seeds = [None if self.order is None else type(self.order)(self.order.getrandbits(64)) for _ in chunks]
        jobs = [(number, batch, seed) for number, (batch, seed) in enumerate(zip(chunks, seeds, strict=True))]
        workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, len(jobs))
        if workers <= 1:
            runs = [self._chunk(*job) for job in jobs]
        else:
            with ThreadPoolExecutor(workers) as pool:
                futures = [pool.submit(self._chunk, *job) for job in jobs]
                try:
                    runs = [future.result() for future in futures]
                finally:
                    for future in futures:
                        future.cancel()
        for run in (one for together in runs for one in together):
            self.counts[2] += run.batch.read_bytes
            self.counts[3] += run.batch.written_bytes
        if runs:
            self.counts[0], self.counts[1] = runs[0][0].executor.statements, runs[0][0].barriers
        for together in runs:
            _require_work([run.batch for run in together])
        for parameter in self.parameters.values():
            parameter.check_guards()

    def _chunks(self) -> list[tuple[int, ...]]:
        plan, blocks = self.plan, self.blocks
        each = plan.cluster
        # Blocks of a chunk run the same turns of all loops. And buffers of several types that overlap are the same bytes only where a row
        # has one column.
        if plan.block_loops or plan.mixed:
            return [blocks[start : start + each] for start in range(0, len(blocks), each)]
        size = plan.kernel.block_bytes
        for buffer in plan.kernel.buffers:
            if buffer.memory.private:
                size += plan.number(buffer.elements) * buffer.dtype.bytes * plan.kernel.threads
        count = len(blocks) // each
        # Two chunks take two threads; what one chunk holds is executed before threads that take turns in Python are.
        shared_out = count if size * len(blocks) <= _CHUNK_BYTES else -(-count // 2)
        width = max(1, min(_CHUNK_BYTES // max(size * each, 1), MOST_ELEMENTS // plan.largest, 256, shared_out)) * each
        return [blocks[start : start + width] for start in range(0, len(blocks), width)]

    def _chunk(self, number: int, blocks: tuple[int, ...], order: random.Random | None) -> Sequence[Run]:
        each = self.plan.cluster
        with np.errstate(all="ignore"):
            # Where all blocks touch shared memory alike, those of the first chunk stand for all.
            watch = self.shadow and (number == 0 or not self.plan.uniform)
            given = self.plan, self.parameters, self.history
            runs = [Run(*given, blocks[rank::each], watch, self.careful, rank, self.dealt) for rank in range(each)]
            if order is None and each == 1 and not self.plan.kernel.rings:
                runs[0].in_step()
            else:
                Warps(Run.joined(runs), order).run()
        return runs

    def outputs(self) -> dict[str, Array]:
        """The written parameters."""
        return {name: one.array for name, one in self.parameters.items() if one.buffer.written}

    def written(self) -> dict[str, Array]:
        """Which elements of the written parameters were written, by the launch or before it."""
        zeroed = self.plan.kernel.effects[Zeroed].names
        shadows = self.history.shadows
        return {
            name: np.full(self.parameters[name].shape, True) if name in zeroed else shadow.write_clock[self.parameters[name].places] >= 0
            for name, shadow in shadows.items()
        }


def _require_work(cluster: Sequence[BlockBatch]) -> None:
    """Refuse a grid with blocks all of whose results lie outside their tensors; in a cluster, whose blocks come together, with none inside.

    Where arrays of integers say who does what, the grid is a bound, and blocks beyond the last one's work have none. So it is where tiles
    interleave, as layouts do that deal every fourth row to a block: past the end of an array some blocks of the last period have none.
    """
    if cluster[0].tables or _interleaves(cluster[0].plan):
        return
    for position in set.intersection(*(set(batch.idle().tolist()) for batch in cluster)):
        raise SimulationError(
            f"block {cluster[0].block(position)} of the grid has no work: each element that it writes lies outside its tensor",
            hint="the grid has a block too many, or guards leave out too much",
        )


def _interleaves(plan: Plan) -> bool:
    """Whether elements of one block lie between those of another: what was dealt first, to blocks, has not the largest stride."""
    written = [operand.access for site in plan.sites for operand in site.operand_list if operand.write and operand.buffer.memory.of_grid]
    strides = [[dealt.stride for dealt in modes if dealt.unit] for access in written for modes in access.dealt]
    return any(along and along[0] < max(along) for along in strides)


def _may_drop_poison(plan: Plan) -> bool:
    """Whether a value that was never written may leave no NaN in an output: a comparison, a maximum, a conversion to integers drops it."""
    return any(
        any(formula.drops_nan for formula in site.statement.spec.definition.formulas)
        or any(
            not read.buffer.memory.counts and read.buffer.dtype.kind == "float" and write.buffer.dtype.kind == "int"
            for _, read in site.inputs
            for _, write, _ in site.outputs
        )
        for site in plan.sites
    )


def _name_poison(plan: Plan, arrays: Mapping[str, Array], launch: _Launch) -> None:
    """Where NaN reached an output, execute a block again with every value watched, which names the first bad read."""
    for name, parameter in launch.parameters.items():
        if not parameter.buffer.written or parameter.buffer.dtype.kind != "float":
            continue
        bad = parameter.places[np.isnan(parameter.array)]
        if name in launch.history.shadows and bad.size:
            shadow = launch.history.shadows[name]
            bad = bad[shadow.write_clock[bad] >= 0]
            blocks = _whole_clusters(plan, (shadow.writer[0][bad[:1]] // plan.pitch).tolist())
        else:
            blocks = launch.blocks[: plan.cluster]
        if bad.size:
            _Launch(plan, arrays, blocks, False, launch.order, careful=True, dealt=launch.dealt, known=launch.known).run()
