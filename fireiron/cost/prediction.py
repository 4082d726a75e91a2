"""Define the result of the cost model: a time with its parts, the bottleneck, and a hint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron.display import Displayed
from fireiron.frozen import frozen

if TYPE_CHECKING:
    from fireiron.check.registers import Registers
    from fireiron.check.resources import Occupancy
    from fireiron.cost.gpus import Gpu

TAIL: Final = "tail (waves)"
"""The bottleneck that is not a part of the GPU: SMs have no block."""

COPIES: Final = "preceding copies"
"""The part of the time for preceding copy kernels, which `repack` requests."""

LINK: Final = "link"
"""The part of the time for reads of the memory of other GPUs of a node, which no cache keeps."""

BARRIERS: Final = "barriers of GPUs"
"""The part of the time for barriers of all GPUs of a node."""

LAUNCH_PART: Final = "launch"
"""The part of the time for launches."""

HINTS: Final[Mapping[str, str]] = {
    "tensor cores": "at the limit of the matrix instruction: only fewer operations help",
    "FMA": "at the limit of multiply-adds: use tensor cores, or a narrower type",
    "instruction issue": "larger tiles per thread, wider vectors, fewer guards (sizes that are multiples of the tiles)",
    "shared memory bandwidth": "larger tiles for each warp or thread; pad, swizzle or coalesce where fireiron check reports conflicts",
    "L1 bandwidth": "larger tiles for each warp or thread; wider vectors, or elements of adjacent lanes that are adjacent in memory",
    "DRAM": "fewer bytes: larger tiles, narrower types, rasterize(...) so that concurrent blocks share tiles (its effect is not predicted)",
    "L2": "larger tiles for each block; coalesce loads; fewer registers if arrays spill",
    "latency of copies": "more stages in pipeline(...), more blocks per SM, a larger k in split(...), or split_k",
    "latency of instructions": "more warps per SM (smaller tiles per warp), or prefetched fragments by pipeline(2)",
    TAIL: "more and smaller tiles, or split_k, so that every SM has work until the end",
    "launch": "do more in one launch",
    LINK: "read each part of other GPUs once: load(operand, GL) first; sums in 16 bits: to_gpus(dim, sums=float16)",
    BARRIERS: "fewer launches that read parts of other GPUs",
}
"""Hints by bottleneck."""

ONCE: Final = "at the limit of DRAM, and each byte moves once: only fewer bytes help, by narrower types or fusion with adjacent kernels"
"""The hint if device memory moves little more than the operands."""

MORE_WARPS: Final = "more warps per SM (smaller tiles per warp or thread)"
"""The hint for the latency of instructions in a kernel without matrix instructions."""

NOT_SHARED: Final = "fewer bytes: keep what a block reads again in registers or shared memory; narrower types; fusion with adjacent kernels"
"""The hint for device memory if concurrent blocks read no common tile."""

MOVED_ONCE: Final = 1.1
"""Device memory moves each byte once if it moves at most this many times the bytes of the operands."""

AT_LIMIT: Final = 0.9
"""A part is at its limit if it is busy for this share of the time."""

IGNORED: Final = (
    "falling clocks under load, orders of tiles (rasterize), conversions of types, L1 hits of other blocks, jitter that stages hide"
)
"""What the model ignores (docs/cost-model.md, Limitations)."""

SHOWN: Final = 0.005
"""Smallest share of the time that is shown."""


@frozen
class PhaseTime:
    """A phase of the program, in all waves: its microseconds, its limiting part, and the time of each part of the GPU by itself."""

    name: str
    us: float
    limit: str
    bounds: Mapping[str, float]


@attrs.frozen(kw_only=True)
class Prediction(Displayed):
    """The model's prediction for a kernel on a GPU. `str` returns an explanation.

    Attributes:
        us: the predicted time of a launch in microseconds.
        bottleneck: the largest of the `parts`, or the tail if a compute-bound kernel leaves more than half of the SM time without a block.
        parts: the microseconds that each part of the GPU would take by itself.
        bytes: the bytes that each memory moves, for the whole grid.
        flops: the executed operations of the whole grid, including elements of tiles that are out of bounds.
        useful: the operations of the spec.
        instructions: the warp instructions of the whole grid, by class.
        occupancy: the resident blocks per SM.
        registers: the estimated registers per thread.
        blocks: the number of blocks.
        waves: the number of waves of blocks on the GPU.
        filled: the share of SM time with a block.
        phases: the phases of the program.
        gpu: the GPU.
        sizes: the run-time sizes.
        left_out: descriptions of the loops of which blocks skip iterations. The counts exclude skipped iterations.
        least_bytes: the bytes of the operands, each moved once.
        common_tiles: whether concurrent blocks read the same tiles of an operand.
    """

    us: float
    bottleneck: str
    parts: Mapping[str, float]
    bytes: Mapping[str, float]
    flops: float
    useful: float
    instructions: Mapping[str, float]
    occupancy: Occupancy
    registers: Registers
    blocks: int
    waves: int
    filled: float
    phases: tuple[PhaseTime, ...]
    gpu: Gpu
    sizes: Mapping[str, int]
    left_out: tuple[str, ...] = ()
    least_bytes: float = 0.0
    common_tiles: bool = True

    @property
    def tflops(self) -> float:
        """Useful operations per second, in 10^12."""
        return self.useful / self.us / 1e6

    @property
    def hint(self) -> str:
        """A hint for the bottleneck."""
        if self.registers.spilled:
            return "arrays do not fit into registers: smaller tiles per thread, or fewer warps per block"
        if self.bottleneck == "DRAM" and self.bytes.get("DRAM", 0.0) <= MOVED_ONCE * self.least_bytes:
            return ONCE if self.parts["DRAM"] >= AT_LIMIT * self.us else self._beside
        if self.bottleneck == "DRAM" and not self.common_tiles:
            return NOT_SHARED
        if self.bottleneck == "tensor cores" and self.parts["tensor cores"] < AT_LIMIT * self.us:
            share = self.parts["tensor cores"] / self.us
            better = "larger tiles, or persistent blocks, whose next tile loads during the store"
            return f"tensor cores are busy for {share:.0%} of the time: {better}"
        if self.bottleneck == "latency of instructions" and not self.instructions.get("mma"):
            return MORE_WARPS
        return HINTS.get(self.bottleneck, "")

    @property
    def _beside_phases(self) -> list[list[str]]:
        """A row for the difference of the time and its phases: what all SMs share, or phases of blocks that overlap."""
        left = self.us - sum(phase.us for phase in self.phases)
        if abs(left) <= SHOWN * self.us:
            return []
        return [["L2, DRAM, launches" if left > 0 else "overlap of phases", number_text(left), ""]]

    @property
    def _beside(self) -> str:
        """The hint if each byte moves once, but parts that delay DRAM take a large share of the time."""
        others = {name: value for name, value in self.parts.items() if name not in ("DRAM", TAIL, LAUNCH_PART)}
        name = max(others, key=lambda part: others[part], default="")
        hint = MORE_WARPS if name == "latency of instructions" and not self.instructions.get("mma") else HINTS.get(name, "")
        return f"DRAM takes {self.parts['DRAM'] / self.us:.0%} of the time, each byte once; {name} delays it: {hint}" if hint else ONCE

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return attrs.asdict(self) | {"gpu": self.gpu.name, "tflops": self.tflops, "hint": self.hint}

    def __str__(self) -> str:
        from tabulate import tabulate

        shown = ((name, value) for name, value in self.parts.items() if value > SHOWN * self.us and name != TAIL)
        parts = sorted(shown, key=lambda pair: -pair[1])
        marks = {self.bottleneck: "<-- bottleneck"}
        table = tabulate(
            [[name, number_text(value), f"{value / self.us:.0%}", marks.get(name, "")] for name, value in parts],
            headers=["part by itself", "us", "of the time", ""],
            disable_numparse=True,
            colalign=("left", "right", "right", "left"),
        )
        phases = tabulate(
            [[phase.name, number_text(phase.us), phase.limit] for phase in self.phases] + self._beside_phases,
            headers=["phase of all blocks", "us", "limited by"],
            disable_numparse=True,
            colalign=("left", "right", "left"),
        )
        return "\n".join([*self._head(), "", table, "", phases, "", *self._foot()])

    def _head(self) -> list[str]:
        speed = f", {number_text(self.tflops)} TFLOP/s" if self.useful else ""
        idle = f": {1 - self.filled:.0%} of the SM time has no block" if self.bottleneck == TAIL else ""
        return [f"{number_text(self.us)} us on one {self.gpu}{speed} (predicted)", f"bottleneck: {self.bottleneck}{idle}{self._longest}"]

    @property
    def _longest(self) -> str:
        """The longest phase, if another part limits it: the bottleneck is the part with the most work in all phases together."""
        longest = max(self.phases, key=lambda phase: phase.us, default=None)
        if longest is None or longest.limit == self.bottleneck or longest.us < SHOWN * self.us:
            return ""
        return f"; the longest phase, {longest.name}, is limited by {longest.limit}"

    def _foot(self) -> list[str]:
        occupancy = self.occupancy
        needed = self.registers
        launched = f", launched with {needed.given}" if needed.given != needed.used else ""
        spilled = f"; its arrays need {needed.arrays}, so about {needed.spilled} spill" if needed.spilled else ""
        moved = ", ".join(f"{name} {_size(value)}" for name, value in self.bytes.items() if value)
        counted = ", ".join(f"{name} {_count(value)}" for name, value in self.instructions.items() if value)
        lines = [
            f"blocks        {self.blocks}, {occupancy.blocks} per SM (limited by {occupancy.limiting}), "
            f"in {self.waves} wave{'s' if self.waves != 1 else ''}, {self.filled:.0%} filled",
            f"registers     about {needed.used} per thread{launched}{spilled}",
            f"bytes         {moved}",
            f"instructions  {counted}",
        ]
        waste = f", {self.useful / self.flops:.0%} of them useful" if self.useful and self.flops > 1.005 * self.useful else ""
        lines += [f"operations    {_count(self.flops)}{waste}"] if self.flops else []
        lines += [f"skipped       {loop}" for loop in self.left_out]
        lines += [f"may help      {self.hint}"] if self.hint else []
        return [*lines, f"ignored       {IGNORED}"]


def number_text(value: float) -> str:
    """Return a number with four digits."""
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _count(value: float) -> str:
    for size, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _size(value: float) -> str:
    return f"{_count(value)}B" if value >= 1e3 else f"{value:.0f} B"
