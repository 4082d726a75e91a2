"""Compute the cost of an access from the addresses of all threads of block 0, at a few values of the loops, with NumPy."""

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
"""Number of threads of a warp."""

LINE: Final = 128
"""Number of bytes of an L1 line, and of a wavefront through shared memory."""

SAMPLES: Final = 3
"""Number of joint values of the enclosing loops at which the addresses of an access are sampled."""

WINDOW: Final = 8
"""Number of iterations of the innermost loop for which L1 keeps the data that a block has read."""


MAX_TABLE: Final = 1 << 20
"""Maximum number of entries of a lookup table. Larger ranges of numbers are sorted instead."""


class Accesses:
    """Counts the cost of accesses in a kernel with given sizes. `extent` returns the number of iterations of a loop."""

    def __init__(self, access_trace: AccessTrace, fixed: Mapping[str, int], extent: Callable[[For], int]) -> None:
        self.access_trace, self.fixed, self.extent = access_trace, fixed, extent
        self.warps = -(-access_trace.kernel.workers // WARP)

    def frame(self, loops: tuple[For, ...], window: For | None = None) -> Frame:
        """Return the frame of all threads at a few joint values of the loops.

        With `window`, it has the first values of that loop, and 0 for the other loops.
        """
        count = min(self.extent(window), WINDOW) if window is not None else SAMPLES if any(self.extent(loop) > 1 for loop in loops) else 1
        axis = np.arange(count)
        frame = self.access_trace.frame([("thread", self.access_trace.threads), ("sample", axis)], self.fixed)
        for position, loop in enumerate(loops):
            values = axis * (2 * position + 1) % max(self.extent(loop), 1)
            frame[loop.var.name] = values.reshape(1, -1) if window is None else axis.reshape(1, -1) if loop is window else 0
        return frame

    def amounts(self, statement: Exec, position: int, loops: tuple[For, ...], active: Array, warps: float, units: float) -> Amounts:
        """Return the cost of an operand in GL or SH, for one execution by all warps.

        `active` is the mask of participating threads, with the shape `(threads, samples)`. None means all threads. These threads belong to
        `warps` warps and to `units` units of the spec's level.
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
            coordinates, vector = self._pieces(access, buffer, frame)
            lanes = np.ones(coordinates[0].shape, dtype=bool)
            requests = len(lanes) / samples
            copies: Array = 0
        else:
            width = statement.width(position)
            vector = width if elements % width == 0 else 1
            steps = np.array(access.elements()[::vector]).T
            wide = (*frame.shape, steps.shape[1])
            coordinates = [_by_warp(frame.full(base)[..., None] + step) for base, step in zip(access.base, steps, strict=True)]
            lanes = _by_warp(np.broadcast_to(np.ones(1, dtype=bool) if active is None else active[..., None], wide), False)
            requests = elements // vector * warps
            copies = _by_warp(np.broadcast_to(frame.full(access.copy)[..., None], wide)) * (constant(buffer.elements) or 0)
        size = vector * buffer.dtype.bytes
        if buffer.memory.of_block:
            start = (buffer.storage.address(coordinates) + copies) * buffer.dtype.bytes + buffer.offset
            ideal = lanes.reshape(len(lanes), -1, lanes_per_phase(size)).any(axis=2).sum()
            share = 1 / samples / _repeats(statement, position)
            passes = float(wavefronts(start, size, lanes).sum())
            return Amounts(memory=requests, shared=passes * share, conflicts=(passes - float(ideal)) * share)
        start = self._bytes(buffer, coordinates)
        moved, _ = sectors(start, size, lanes)
        count = float(moved.sum()) / samples
        fresh = SECTOR * min(count, self._l1_misses(access, buffer, loops, size, vector, active))
        # An asynchronous copy bypasses L1, or its write already counts the shared-memory wavefront.
        passes = 0.0 if statement.mechanism.arrives_in_groups else max(requests, _lines(start, lanes) / samples)
        read, written = (0.0, fresh) if access.write else (fresh, 0.0)
        return Amounts(memory=requests, shared=passes, sectors=count, l2_read=read, l2_written=written)

    def reach(self, access: Access, loops: tuple[For, ...]) -> float:
        """Return an upper bound of the bytes of an array that the block accesses: from the first to the last element in each dimension."""
        frame = self.access_trace.frame([("thread", self.access_trace.threads), ("sample", np.arange(2))], self.fixed)
        for loop in loops:
            frame[loop.var.name] = np.array([[0, max(self.extent(loop) - 1, 0)]])
        buffer = self.access_trace.kernel.buffer(access.buffer)
        total = float(buffer.dtype.bytes)
        for base, step, size in zip(access.base, np.array(access.elements()).T, buffer.tensor.shape, strict=True):
            coordinates = frame.full(base)
            total *= min(int(coordinates.max() - coordinates.min() + step.max() - step.min()) + 1, int(size.evaluate(self.fixed)))
        return total

    def _bytes(self, buffer: Buffer, coordinates: Any) -> Array:
        """Return byte addresses in an array of GL, which starts at a multiple of 256 bytes."""
        return buffer.storage.assumed.evaluated(self.fixed).address(coordinates) * buffer.dtype.bytes

    def _l1_misses(self, access: Access, buffer: Buffer, loops: tuple[For, ...], size: int, vector: int, active: Array) -> float:
        """Return the number of sectors of an execution that miss in L1: the distinct sectors of a block within a few iterations."""
        needed = self.access_trace.needs(access.base)
        around = [loop for loop in loops if loop.var.name in needed and self.extent(loop) > 1]
        frame = self.frame(loops, around[-1]) if around else self.frame(())
        for loop in loops:
            frame.setdefault(loop.var.name, 0)
        steps = np.array(access.elements() if access.spread else access.elements()[::vector]).T
        wide = (*frame.shape, steps.shape[1])
        coordinates = [frame.full(base)[..., None] + step for base, step in zip(access.base, steps, strict=True)]
        if active is not None:
            keep = np.broadcast_to(active[:, :1, None], wide)
            coordinates = [np.broadcast_to(place, wide)[keep] for place in coordinates]
        start = self._bytes(buffer, coordinates).reshape(-1)
        length = buffer.dtype.bytes if access.spread else size
        return _distinct_count((start[:, None] + np.arange(0, length, SECTOR)) // SECTOR) / frame.shape[1]

    def _pieces(self, access: Access, buffer: Buffer, frame: Frame) -> tuple[list[Array], int]:
        """Return the coordinates of a tile with unspecified lanes, with the shape `(requests, 32)`, and the elements of each piece.

        Matrix instructions move such a tile in pieces: in SH of 16 bytes (8 if elements are wider than 16 bits), in GL of 4 bytes. Pieces
        are ordered by blocks of eight columns, then by rows, then within a row.
        """
        along = _contiguous(buffer)
        size = 4 if buffer.memory.of_grid else 16 if buffer.dtype.bits <= 16 else 8
        vector = max(size // buffer.dtype.bytes, 1)
        coordinates_by_dim = []
        for base, step in zip(access.base, np.array(access.elements()).T, strict=True):
            values = (frame.full(base)[..., None] + step).reshape(self.warps, WARP, frame.shape[1], -1)
            coordinates_by_dim.append(np.moveaxis(values, 2, 1).reshape(self.warps * frame.shape[1], -1))
        first = [place[0] - place[0].min() for place in coordinates_by_dim]
        starts = np.flatnonzero(first[along] % vector == 0)
        rows = sum(place[starts] for dim, place in enumerate(first) if dim != along)
        keys = (first[along][starts] // 8 * (1 << 20) + rows) * 8 + first[along][starts] % 8
        _, chosen = np.unique(keys, return_index=True)
        columns = starts[chosen[: len(chosen) // WARP * WARP or None]]
        width = min(WARP, len(columns))
        coordinates = [place[:, columns].reshape(-1, width) for place in coordinates_by_dim]
        return [np.pad(place, ((0, 0), (0, WARP - width)), mode="edge") for place in coordinates], vector


def _by_warp(values: Array, fill: Any = 0) -> Array:
    """Reshape `(threads, samples, vectors)` to `(requests, 32)`, with the last warp padded."""
    missing = -len(values) % WARP
    if missing:
        values = np.concatenate([values, np.full((missing, *values.shape[1:]), fill, dtype=values.dtype)])
    return np.moveaxis(values.reshape(len(values) // WARP, WARP, -1), 1, 2).reshape(-1, WARP)


def _distinct_count(numbers: Array) -> float:
    """Return the number of distinct values, by a table if their range is small enough."""
    if not numbers.size:
        return 0.0
    least, greatest = int(numbers.min()), int(numbers.max())
    if greatest - least >= MAX_TABLE:
        return float(len(np.unique(numbers)))
    table = np.zeros(greatest - least + 1, dtype=bool)
    table[numbers - least] = True
    return float(np.count_nonzero(table))


def _lines(start: Array, active: Array) -> float:
    """Return the number of L1 lines that requests access. L1 looks up one line per clock. The bytes of a lane never span two lines."""
    lines = np.sort(np.where(active, start // LINE, -1), axis=1)
    fresh = np.ones(lines.shape, dtype=bool)
    fresh[:, 1:] = lines[:, 1:] != lines[:, :-1]
    return float((fresh & (lines >= 0)).sum())


def _repeats(statement: Exec, position: int) -> int:
    """Return the number of lanes of a matrix copy that address the same row. Only one of them counts."""
    if not statement.lane_maps or statement.accesses[position].write:
        return 1
    return math.prod(size for size, stride in statement.lane_maps[position].lanes.modes if not stride)


def _contiguous(buffer: Buffer) -> int:
    """Return the dimension with a stride of one."""
    unit = [dim for dim, digits in enumerate(buffer.storage.dims) if any(constant(digit.weight) == 1 for digit in digits)]
    return unit[0] if unit else len(buffer.storage.dims) - 1


def _by_engine(buffer: Buffer, tile: View, units: float) -> Amounts:
    """Return the cost of a tile that the async proxy reads from shared memory: its bytes, at full width, without a request by a warp."""
    return Amounts(shared=math.prod(constant(size) or 1 for size in tile.shape) * buffer.dtype.bytes / LINE * units)


def _by_box(buffer: Buffer, elements: float, write: bool) -> Amounts:
    """Return the cost of a tile that TMA moves. Its bytes pass L2 and shared memory, but not L1, with a single request by one thread."""
    size = elements * buffer.dtype.bytes
    if buffer.memory.of_block:
        return Amounts(shared=size / LINE)
    read, written = (0.0, size) if write else (size, 0.0)
    return Amounts(memory=1.0, sectors=size / SECTOR, l2_read=read, l2_written=written)


def _collective(buffer: Buffer, elements: float, write: bool) -> Amounts:
    """Return the cost of an operand of a collective micro-kernel.

    Its accesses are unknown, so they count as coalesced and free of bank conflicts.
    """
    size = elements * buffer.dtype.bytes
    requests = size / LINE
    if buffer.memory.of_block:
        return Amounts(memory=requests, shared=requests)
    read, written = (0.0, size) if write else (size, 0.0)
    return Amounts(memory=requests, shared=requests, sectors=size / SECTOR, l2_read=read, l2_written=written)
