"""Compute the time of a kernel from its work and a GPU.

    time  = launch + sum over waves of blocks
    wave  = its phases, L2 and device memory: sequential if an SM has one block, concurrent if blocks overlap
    phase = a single warp (`timeline`), and the parts of the SM for all its blocks:
            instruction issue or multiply-adds, tensor cores, shared memory

Concurrent times are combined by a norm. It is the largest value, and somewhat more if other values are close, because they interfere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

import attrs

from fireiron.check.coalescing import SECTOR
from fireiron.check.registers import Registers, register_prediction
from fireiron.check.resources import Occupancy, occupancy
from fireiron.cost.accesses import LINE, WARP
from fireiron.cost.amounts import Amounts, Phase
from fireiron.cost.constants import CONSTANTS, Constants
from fireiron.cost.gpus import Gpu
from fireiron.cost.prediction import LAUNCH_PART, LINK, TAIL, PhaseTime, Prediction
from fireiron.cost.timeline import Clock, Latencies, Speeds
from fireiron.cost.work import MAX_BLOCKS, Work
from fireiron.frozen import frozen
from fireiron.ir import Kernel
from fireiron.ir.cluster import SM_COUNT, concurrent_blocks
from fireiron.values.machine import Architecture, as_architecture

SCHEDULERS: Final = 4
"""Number of schedulers per SM, each with a quarter of its warps (since Maxwell; sm_60 has two schedulers of twice the width)."""

L2_PORT: Final = 64
"""Bytes per clock from L2 to an SM (NVIDIA A100 Tensor Core GPU Architecture white paper)."""

MIN_L1: Final = 16 * 1024
"""Minimum number of bytes of L1, for any use of shared memory."""

ISSUE, FMA, TENSOR, SHARED = "instruction issue", "FMA", "tensor cores", "shared memory bandwidth"
L1: Final = "L1 bandwidth"
"""The name of `SHARED`, which is one unit with L1, in kernels without shared memory."""
L2, DRAM, LAUNCH = "L2", "DRAM", LAUNCH_PART
COPIES, RESULTS = "latency of copies", "latency of instructions"

SPILLED_SHARE: Final = 4.0
"""Number of local-memory accesses per access to spilled registers. Compilers spill whole arrays (two strategies of the sweep)."""

NOTABLE: Final = 0.3
"""If waits for copies take a larger share of a single warp's time, they are reported as the reason."""


def model(work: Work, gpu: Gpu, constants: Constants = CONSTANTS) -> Prediction:
    """Return the prediction for counted work on a GPU."""
    return _Model(work, gpu, constants).prediction()


@frozen
class _Phase:
    """The time of a phase of a wave in clocks: `bounds` by part of the GPU, and `clocks` combined."""

    clocks: float
    bounds: Mapping[str, float]


@frozen
class _Wave:
    """The time of a wave of blocks in clocks. There are `count` such waves, with at most `blocks` blocks per SM."""

    clocks: float
    count: int
    blocks: int
    phases: tuple[_Phase, ...]
    outside: Mapping[str, float]


def occupancy_on(kernel: Kernel, target: Architecture) -> tuple[Occupancy, Registers]:
    """Return the occupancy of a target with the estimated registers, and the registers. There is at least one block per SM."""
    retargeted = attrs.evolve(kernel, architecture=target)
    registers = register_prediction(retargeted)
    occupied = occupancy(retargeted, registers.given)
    return (occupied, registers) if occupied.blocks else (attrs.evolve(occupied, blocks=1, warps=-(-kernel.threads // 32)), registers)


def _blocks_at_once(kernel: Kernel, multiprocessors: int) -> int:
    """Return the number of blocks that run concurrently, one per SM. With clusters, some SMs may be idle."""
    if kernel.cluster is None:
        return multiprocessors
    size = kernel.cluster.blocks
    return max(multiprocessors * concurrent_blocks(size) // SM_COUNT // size, 1) * size


class _Model:
    def __init__(self, work: Work, gpu: Gpu, constants: Constants) -> None:
        self.work, self.gpu, self.constants = work, gpu, constants
        self.occupancy, self.registers = occupancy_on(work.kernel, as_architecture(gpu.architecture))
        self.slots = _blocks_at_once(work.kernel, gpu.multiprocessors) * self.occupancy.blocks
        self.spill = min(1.0, SPILLED_SHARE * self.registers.spilled / max(self.registers.arrays, 1))
        self.dram, self.first_reads = self._dram()
        self.remote = remote_bytes(work)
        self.local = SHARED if work.kernel.shared_bytes else L1
        self.fma, self.tensor = self._fma_clocks(), self._tensor_clocks()
        self.single_warp = self._single_warp()

    # ------------------------------------------------------------------------------------------ speeds

    def _tensor_clocks(self) -> dict[str, float]:
        """Return the clocks of a scheduler's tensor core per operation, by type. Without tensor cores, multiply-adds compute them."""
        return {name: SCHEDULERS / (self.gpu.tensor_rate(name) or 2 * self.gpu.lanes) for name in self.work.amounts.tensor}

    def _fma_clocks(self) -> dict[str, float]:
        """Return the clocks of a scheduler for a multiply-add of all lanes of a warp, by type of the sum."""
        gpu = self.gpu
        half = gpu.half_lanes or gpu.lanes
        lanes = {"float64": gpu.double_lanes, "float16": half, "bfloat16": half}
        return {name: SCHEDULERS * WARP / lanes.get(name, gpu.lanes) for name in self.work.amounts.fma}

    # ------------------------------------------------------------------------------------------ device memory

    def _dram(self) -> tuple[tuple[float, float], float]:
        """Return the bytes of device memory read and written, and the share of a wave's reads that miss in L2.

        If several blocks of a wave read the same tile, it is read once. Repeated reads of later waves hit in L2 to the extent that the
        arrays fit into it.
        """
        wave = max(min(self.work.grid, self.slots), 1)
        waves = self.work.grid / wave
        touched: dict[tuple[str, bool], float] = {}
        sizes: dict[str, float] = {}
        for copy in self.work.traffic:
            key = (copy.buffer, copy.write)
            touched[key] = touched.get(key, 0.0) + copy.bytes * copy.tiles(wave) * waves
            sizes[copy.buffer] = copy.array_bytes
        fits = min(1.0, self.gpu.l2_bytes / max(sum(sizes.values()), 1.0))
        total = {key: min(size, sizes[key[0]]) + max(size - sizes[key[0]], 0.0) * (1 - fits) ** 2 for key, size in touched.items()}
        read, requested = (sum(value for (_, write), value in amounts.items() if not write) for amounts in (total, touched))
        return (read, sum(total.values()) - read), read / requested if requested else 0.0

    def _common_tiles(self) -> bool:
        """Whether concurrent blocks read the same tiles of an operand."""
        wave = max(min(self.work.grid, self.slots), 1)
        return any(copy.tiles(wave) < min(wave, MAX_BLOCKS) for copy in self.work.traffic if not copy.write)

    # ------------------------------------------------------------------------------------------ one warp alone

    def _single_warp(self) -> list[tuple[float, str]]:
        """Return the clocks of a single warp for each phase without other work, and the name of this bound."""
        c = self.constants
        far = c.l2_latency + self.first_reads * c.memory_latency * self.gpu.clock / 1000
        latencies = Latencies(far, c.shared_latency, c.mma_latency, c.fma_latency, c.barrier, c.chained_mma, c.stage)
        clock = Clock(self.work, latencies, Speeds(self.tensor, self.fma, c.extra_instructions, L2_PORT))
        first_pass = [self._walk_phase(clock, phase) for phase in self.work.phases]
        repetitions = [math.prod(self.work.extent(loop) for loop in phase.loops) for phase in self.work.phases]
        # For the second and each later tile, the first stages are already full, so these tiles take the same time.
        repeated = [self._walk_phase(clock, phase) for phase in self.work.phases] if max(repetitions, default=1) > 1 else first_pass
        clocks = []
        for (first, wait_clocks), (later, waiting), count in zip(first_pass, repeated, repetitions, strict=True):
            total, stalled = first + (count - 1) * later, wait_clocks + (count - 1) * waiting
            clocks.append((total, COPIES if stalled > NOTABLE * total else RESULTS))
        return clocks

    def _walk_phase(self, clock: Clock, phase: Phase) -> tuple[float, float]:
        """Return the clocks of a phase, and the clocks of its waits for copies."""
        start, wait_clocks = clock.now, clock.wait_clocks.get("copies", 0.0)
        clock.values.update({loop.var.name: 0 for loop in phase.loops})
        clock.walk(phase.body)
        if phase is self.work.phases[-1]:
            clock.now = max(clock.now, clock.stored)
        return clock.now - start, clock.wait_clocks.get("copies", 0.0) - wait_clocks

    # ------------------------------------------------------------------------------------------ many blocks

    def _sm_clocks(self, amounts: Amounts, blocks: int) -> dict[str, float]:
        """Return the clocks of each part of an SM for `blocks` concurrent blocks."""
        queue = math.ceil(blocks * self.work.warps / SCHEDULERS) / self.work.warps
        spilled = self.spill * amounts.touched
        return {
            ISSUE: (amounts.instructions + amounts.memory * self.constants.extra_instructions + spilled) * queue,
            FMA: sum(self.fma[name] * value for name, value in amounts.fma.items()) * queue,
            TENSOR: sum(self.tensor[name] * value for name, value in amounts.tensor.items()) * queue,
            self.local: (amounts.shared + spilled) * blocks,
        }

    def _shared_clocks(self, amounts: Amounts, running: int, blocks: int) -> dict[str, float]:
        """Return the clocks of the resources that SMs share, for `running` blocks."""
        gpu, c, total = self.gpu, self.constants, self.work.amounts
        moved = amounts.l2_read + amounts.l2_written + self.spill * amounts.touched * LINE * self._local_misses(blocks)
        read = self.dram[0] * amounts.l2_read / total.l2_read if total.l2_read else 0.0
        written = self.dram[1] * amounts.l2_written / total.l2_written if total.l2_written else 0.0
        clocks = running / max(self.work.grid, 1) * gpu.clock / (gpu.memory_gb_s * 1000)
        bounds = {
            L2: max(moved * running / gpu.l2_clock_bytes, moved * blocks / L2_PORT),
            DRAM: (read / c.read_share + written / c.write_share) * clocks,
        }
        if self.remote and gpu.link_gb_s and total.l2_read:
            share = amounts.l2_read / total.l2_read
            bounds[LINK] = self.remote * share * running / (gpu.link_gb_s * 1000) * gpu.clock
        return bounds

    def _local_misses(self, blocks: int) -> float:
        """Return the share of spilled registers that are not in L1."""
        available = max(self.gpu.l1_bytes - blocks * self.work.kernel.shared_bytes, MIN_L1)
        needed = blocks * self.work.kernel.threads * 4 * max(self.registers.spilled, 1)
        return min(1.0, max(0.0, 1 - available / needed) + 0.1) if self.spill else 0.0

    def _wave(self, running: int, count: int, only: bool) -> _Wave:
        """Return a wave of `running` blocks, `count` times. The blocks of the `only` wave start together and remain synchronized."""
        c = self.constants
        blocks = math.ceil(running / self.gpu.multiprocessors)
        order = (c.ring_order if self.work.kernel.rings else c.order) * blocks**c.growth
        phases = []
        for phase, (single_warp, name) in zip(self.work.phases, self.single_warp, strict=True):
            bounds = self._sm_clocks(phase.amounts, blocks)
            busy = _norm((max(bounds[ISSUE], bounds[FMA]), bounds[TENSOR], bounds[self.local]), order)
            busy += phase.amounts.barriers * c.drain / blocks
            bounds = {name: single_warp, **bounds}
            phases.append(_Phase(_norm((single_warp, busy), c.ring_order if self.work.kernel.rings else c.alone_order), bounds))
        outside = self._shared_clocks(self.work.amounts, running, blocks)
        overlapped = _norm((sum(phase.clocks for phase in phases), *outside.values()), order)
        tiles = self._tiles_in_turn()
        if tiles > 1:
            overlapped = _norm((overlapped, outside[DRAM]), c.tiles_order)
        separate = 0.0
        for stores in (False, True):
            part = [(timed, phase.amounts) for timed, phase in zip(phases, self.work.phases, strict=True) if phase.stores == stores]
            amounts = sum((phase_amounts for _, phase_amounts in part), Amounts())
            separate += _norm((sum(timed.clocks for timed, _ in part), *self._shared_clocks(amounts, running, blocks).values()), order)
        share = (1.0 if only else 1.0 / blocks) / tiles
        return _Wave(separate * share + overlapped * (1 - share), count, blocks, tuple(phases), outside)

    def _tiles_in_turn(self) -> float:
        """Return how many tiles an SM computes one after another, if the kernel has a ring.

        Device memory takes the stores of a tile while the SM computes the next one.
        """
        tiles = max(math.prod(self.work.extent(loop) for loop in phase.loops) for phase in self.work.phases)
        return max(float(tiles) * math.ceil(self.work.grid / self.slots), 1.0) if self.work.kernel.rings else 1.0

    def _waves(self) -> list[_Wave]:
        full, rest = divmod(self.work.grid, self.slots)
        rounds = [(running, count) for running, count in ((self.slots, full), (rest, 1)) if running and count]
        return [self._wave(running, count, len(rounds) == 1 and count == 1) for running, count in rounds]

    # ------------------------------------------------------------------------------------------ the prediction

    def prediction(self) -> Prediction:
        """Return the prediction from all parts."""
        work, clock, c = self.work, self.gpu.clock, self.constants
        waves = self._waves()
        us = sum(wave.clocks * wave.count for wave in waves) / clock
        parts: dict[str, float] = {}
        for wave in waves:
            for bounds in (*(phase.bounds for phase in wave.phases), wave.outside):
                for name, value in bounds.items():
                    parts[name] = parts.get(name, 0.0) + value * wave.count / clock
        lost = 1 - work.grid / self.gpu.multiprocessors / max(sum(wave.blocks * wave.count for wave in waves), 1)
        bottleneck = max(parts, key=lambda name: parts[name]) if us else LAUNCH
        if bottleneck in (ISSUE, FMA, TENSOR, self.local) and lost > 0.5:
            bottleneck = TAIL
        launch = c.launch_us + (c.cluster_us if work.kernel.cluster is not None else 0.0)
        if max(parts.values(), default=0.0) < launch:
            bottleneck = LAUNCH
        totals = work.amounts.times(work.grid)
        return Prediction(
            us=us + launch,
            bottleneck=bottleneck,
            parts={**{name: value for name, value in parts.items() if value}, TAIL: lost * us, LAUNCH: launch},
            bytes={
                DRAM: sum(self.dram),
                L2: totals.l2_read + totals.l2_written,
                LINK: self.remote * work.grid,
                "L1": totals.sectors * SECTOR,
                "shared": totals.shared * LINE,
            },
            flops=totals.flops,
            useful=work.useful,
            instructions={
                "all": totals.instructions,
                "mma": totals.mma,
                "FMA": sum(totals.fma.values()),
                "memory": totals.memory,
                "bank conflicts": totals.conflicts,
                "barriers": totals.barriers,
            },
            occupancy=self.occupancy,
            registers=self.registers,
            blocks=work.grid,
            waves=sum(wave.count for wave in waves),
            filled=1 - lost,
            phases=tuple(_phase_times(waves, [phase.name for phase in work.phases], clock)),
            gpu=self.gpu,
            sizes=dict(work.sizes),
            left_out=tuple(map(str, work.varying_loops.values())),
            least_bytes=float(work.kernel.spec.bytes.evaluate(work.sizes)),
            common_tiles=self._common_tiles(),
        )


def remote_bytes(work: Work) -> float:
    """Return the bytes that a block stores on other GPUs, or reads of them: the share of their parts in an array of all GPUs."""
    workspace = work.kernel.workspace
    if workspace is not None and workspace.exchange is not None:
        return workspace.exchange.stored / work.grid
    total = 0.0
    for copy in work.traffic:
        array = work.kernel.buffer(copy.buffer).tensor.array
        axis = None if array.portion is None else array.portion.gpu_axis
        if axis is not None and not copy.write:
            gpus = float(array.shape[axis].evaluate(work.sizes))
            total += copy.bytes * (gpus - 1) / gpus
    return total


def _phase_times(waves: Iterable[_Wave], names: list[str], clock: float) -> Iterable[PhaseTime]:
    for number, name in enumerate(names):
        rows = [(wave.phases[number], wave.count / clock) for wave in waves]
        if rows:
            bounds: dict[str, float] = {}
            for phase, factor in rows:
                for part, value in phase.bounds.items():
                    bounds[part] = bounds.get(part, 0.0) + value * factor
            limit = max(bounds, key=lambda part: bounds[part])
            yield PhaseTime(name, sum(phase.clocks * factor for phase, factor in rows), limit, bounds)


def _norm(values: Iterable[float], order: float) -> float:
    """Return the norm of an order: the largest value, and somewhat more if other values are close."""
    positive = [value for value in values if value > 0]
    top = max(positive, default=0.0)
    return float(top * sum((value / top) ** order for value in positive) ** (1 / order)) if positive else 0.0
