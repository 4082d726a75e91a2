"""What one access amounts to: addresses of all threads of block 0, at a few values of the loops, with NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from fireiron.check.access_trace import AccessTrace, Frame
from fireiron.check.banks import lanes_per_phase, wavefronts
from fireiron.check.coalescing import SECTOR, sectors
from fireiron.cost.amounts import Amounts
from fireiron.ir import Access, Buffer, Exec, For
from fireiron.values.expr import constant
from fireiron.values.tensor import View

Array = Any

WARP: Final = 32
"""Threads of a warp."""

LINE: Final = 128
"""Bytes of an L1 line, and of one pass through shared memory."""

SAMPLES: Final = 3
"""Joint values of the enclosing loops at which the addresses of an access are sampled."""

WINDOW: Final = 8
"""Iterations of the innermost loop for which L1 keeps the data that a block has read."""


MOST_ROOM: Final = 1 << 20
"""Most entries of a table of numbers; above it the numbers are sorted."""


class Accesses:
    """Counts what accesses amount to, in a kernel with given sizes; `extent` gives the iterations of a loop."""

    def __init__(self, access_trace: AccessTrace, fixed: Mapping[str, int], extent: Callable[[For], int]) -> None:
        self.access_trace, self.fixed, self.extent = access_trace, fixed, extent
        self.warps = -(-access_trace.kernel.workers // WARP)

    def frame(self, loops: tuple[For, ...], window: For | None = None) -> Frame:
        """All threads, at a few joint values of the loops; with `window`, at the first values of that loop and 0 of the others."""
        count = min(self.extent(window), WINDOW) if window is not None else SAMPLES if any(self.extent(loop) > 1 for loop in loops) else 1
        axis = np.arange(count)
        frame = self.access_trace.frame([("thread", self.access_trace.threads), ("sample", axis)], self.fixed)
        for position, loop in enumerate(loops):
            values = axis * (2 * position + 1) % max(self.extent(loop), 1)
            frame[loop.var.name] = values.reshape(1, -1) if window is None else axis.reshape(1, -1) if loop is window else 0
        return frame

    def amounts(self, statement: Exec, position: int, loops: tuple[For, ...], active: Array, warps: float, units: float) -> Amounts:
        """What an operand in GL or SH amounts to, for one execution by all warps.

        `active` says which threads take part, `(threads, samples)`, or is None for all; they are in `warps` warps, and in `units` units of
        the spec's level.
        """
        access = statement.accesses[position]
        buffer = self.access_trace.kernel.buffer(access.buffer)
        elements = len(access.points) or math.prod(access.shape)
        if statement.tensor_map is not None:
            return _by_box(buffer, elements * units, access.write)
        if statement.collective:
            return _collective(buffer, elements * units, access.write)
        if statement.instruction.mechanism.by_engine:
            return _by_engine(buffer, statement.spec.operands[tuple(statement.operands)[position]], units)
        frame = self.frame(loops)
        samples = frame.shape[1]
        if access.spread:
            places, vector = self._pieces(access, buffer, frame)
            lanes = np.ones(places[0].shape, dtype=bool)
            requests = len(lanes) / samples
            copies: Array = 0
        else:
            width = statement.width(position)
            vector = width if elements % width == 0 else 1
            steps = np.array(access.elements()[::vector]).T
            wide = (*frame.shape, steps.shape[1])
            places = [_by_warp(frame.full(base)[..., None] + step) for base, step in zip(access.base, steps, strict=True)]
            lanes = _by_warp(np.broadcast_to(np.ones(1, dtype=bool) if active is None else active[..., None], wide), False)
            requests = elements // vector * warps
            copies = _by_warp(np.broadcast_to(frame.full(access.copy)[..., None], wide)) * (constant(buffer.elements) or 0)
        size = vector * buffer.dtype.bytes
        if buffer.memory.of_block:
            start = (buffer.storage.address(places) + copies) * buffer.dtype.bytes + buffer.offset
            ideal = lanes.reshape(len(lanes), -1, lanes_per_phase(size)).any(axis=2).sum()
            share = 1 / samples / _repeats(statement, position)
            passes = float(wavefronts(start, size, lanes).sum())
            return Amounts(memory=requests, shared=passes * share, conflicts=(passes - float(ideal)) * share)
        start = self._bytes(buffer, places)
        moved, _ = sectors(start, size, lanes)
        count = float(moved.sum()) / samples
        fresh = SECTOR * min(count, self._fresh(access, buffer, loops, size, vector, active))
        # A copy under way passes L1 by, or reaches shared memory through the pass that its write counts.
        passes = 0.0 if statement.mechanism.arrives_in_groups else max(requests, _lines(start, lanes) / samples)
        read, written = (0.0, fresh) if access.write else (fresh, 0.0)
        return Amounts(memory=requests, shared=passes, sectors=count, l2_read=read, l2_written=written)

    def reach(self, access: Access, loops: tuple[For, ...]) -> float:
        """At most how many bytes of an array the block touches in all: from the first element to the last in each dimension."""
        frame = self.access_trace.frame([("thread", self.access_trace.threads), ("sample", np.arange(2))], self.fixed)
        for loop in loops:
            frame[loop.var.name] = np.array([[0, max(self.extent(loop) - 1, 0)]])
        buffer = self.access_trace.kernel.buffer(access.buffer)
        total = float(buffer.dtype.bytes)
        for base, step, size in zip(access.base, np.array(access.elements()).T, buffer.tensor.shape, strict=True):
            places = frame.full(base)
            total *= min(int(places.max() - places.min() + step.max() - step.min()) + 1, int(size.evaluate(self.fixed)))
        return total

    def _bytes(self, buffer: Buffer, places: Any) -> Array:
        """Byte addresses in an array of GL that starts at a multiple of 256 bytes."""
        return buffer.storage.evaluated(self.fixed).address(places) * buffer.dtype.bytes

    def _fresh(self, access: Access, buffer: Buffer, loops: tuple[For, ...], size: int, vector: int, active: Array) -> float:
        """Sectors of an execution that L1 does not have: the different ones of a block, within a few iterations."""
        needed = self.access_trace.needs(access.base)
        around = [loop for loop in loops if loop.var.name in needed and self.extent(loop) > 1]
        frame = self.frame(loops, around[-1]) if around else self.frame(())
        for loop in loops:
            frame.setdefault(loop.var.name, 0)
        steps = np.array(access.elements() if access.spread else access.elements()[::vector]).T
        wide = (*frame.shape, steps.shape[1])
        places = [frame.full(base)[..., None] + step for base, step in zip(access.base, steps, strict=True)]
        if active is not None:
            keep = np.broadcast_to(active[:, :1, None], wide)
            places = [np.broadcast_to(place, wide)[keep] for place in places]
        start = self._bytes(buffer, places).reshape(-1)
        length = buffer.dtype.bytes if access.spread else size
        return _different((start[:, None] + np.arange(0, length, SECTOR)) // SECTOR) / frame.shape[1]

    def _pieces(self, access: Access, buffer: Buffer, frame: Frame) -> tuple[list[Array], int]:
        """A tile whose lanes are not specified, as matrix instructions move it: `(requests, 32)` places, and elements of each.

        Pieces of 16 bytes in SH (8 where elements are wider than 16 bits), of 4 in GL; in the order of blocks of eight columns, their rows,
        and the pieces of a row.
        """
        along = _contiguous(buffer)
        size = 4 if buffer.memory.of_grid else 16 if buffer.dtype.bits <= 16 else 8
        vector = max(size // buffer.dtype.bytes, 1)
        every = []
        for base, step in zip(access.base, np.array(access.elements()).T, strict=True):
            values = (frame.full(base)[..., None] + step).reshape(self.warps, WARP, frame.shape[1], -1)
            every.append(np.moveaxis(values, 2, 1).reshape(self.warps * frame.shape[1], -1))
        first = [place[0] - place[0].min() for place in every]
        starts = np.flatnonzero(first[along] % vector == 0)
        rows = sum(place[starts] for dim, place in enumerate(first) if dim != along)
        keys = (first[along][starts] // 8 * (1 << 20) + rows) * 8 + first[along][starts] % 8
        _, chosen = np.unique(keys, return_index=True)
        picked = starts[chosen[: len(chosen) // WARP * WARP or None]]
        width = min(WARP, len(picked))
        places = [place[:, picked].reshape(-1, width) for place in every]
        return [np.pad(place, ((0, 0), (0, WARP - width)), mode="edge") for place in places], vector


def _by_warp(values: Array, fill: Any = 0) -> Array:
    """`(threads, samples, vectors)` as `(requests, 32)`, the last warp filled up."""
    missing = -len(values) % WARP
    if missing:
        values = np.concatenate([values, np.full((missing, *values.shape[1:]), fill, dtype=values.dtype)])
    return np.moveaxis(values.reshape(len(values) // WARP, WARP, -1), 1, 2).reshape(-1, WARP)


def _different(numbers: Array) -> float:
    """How many different ones there are: by a table, where they are near enough to each other to have one."""
    if not numbers.size:
        return 0.0
    least, greatest = int(numbers.min()), int(numbers.max())
    if greatest - least >= MOST_ROOM:
        return float(len(np.unique(numbers)))
    table = np.zeros(greatest - least + 1, dtype=bool)
    table[numbers - least] = True
    return float(np.count_nonzero(table))


def _lines(start: Array, active: Array) -> float:
    """Lines that requests touch, of which L1 looks up one in a clock; no lane's bytes lie in two."""
    lines = np.sort(np.where(active, start // LINE, -1), axis=1)
    fresh = np.ones(lines.shape, dtype=bool)
    fresh[:, 1:] = lines[:, 1:] != lines[:, :-1]
    return float((fresh & (lines >= 0)).sum())


def _repeats(statement: Exec, position: int) -> int:
    """How many lanes of a matrix copy address the same row, of which one counts."""
    if not statement.lane_maps or statement.accesses[position].write:
        return 1
    return math.prod(size for size, stride in statement.lane_maps[position].lanes.modes if not stride)


def _contiguous(buffer: Buffer) -> int:
    """The dimension along which neighbours lie side by side."""
    unit = [dim for dim, digits in enumerate(buffer.storage.dims) if any(constant(digit.weight) == 1 for digit in digits)]
    return unit[0] if unit else len(buffer.storage.dims) - 1


def _by_engine(buffer: Buffer, tile: View, units: float) -> Amounts:
    """A tile that an engine reads from shared memory: its bytes pass by, at full width, and no warp asks for them."""
    return Amounts(shared=math.prod(constant(size) or 1 for size in tile.shape) * buffer.dtype.bytes / LINE * units)


def _by_box(buffer: Buffer, elements: float, write: bool) -> Amounts:
    """A tile that TMA moves: its bytes pass L2 and shared memory, one thread asks for all of it, and L1 has none of it."""
    size = elements * buffer.dtype.bytes
    if buffer.memory.of_block:
        return Amounts(shared=size / LINE)
    read, written = (0.0, size) if write else (size, 0.0)
    return Amounts(memory=1.0, sectors=size / SECTOR, l2_read=read, l2_written=written)


def _collective(buffer: Buffer, elements: float, write: bool) -> Amounts:
    """A micro-kernel of many threads: which thread touches what is not known, so coalesced and free of conflicts."""
    size = elements * buffer.dtype.bytes
    requests = size / LINE
    if buffer.memory.of_block:
        return Amounts(memory=requests, shared=requests)
    read, written = (0.0, size) if write else (size, 0.0)
    return Amounts(memory=requests, shared=requests, sectors=size / SECTOR, l2_read=read, l2_written=written)
