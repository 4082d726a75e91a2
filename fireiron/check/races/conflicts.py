"""Find the memory grains (see `fireiron.check.races.footprints`) that two accesses share, and the threads that access them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fireiron.check.access_trace import Array
from fireiron.check.races.footprints import WARP, Footprint, Footprints
from fireiron.check.races.traces import AccessEvent
from fireiron.frozen import frozen
from fireiron.ir import Access


@frozen(eq=False)
class Point:
    """A thread (or unit of threads) that accesses an address. `element` contains coordinates; `address` counts elements of the buffer."""

    thread: int
    unit: int
    loops: Mapping[str, int]
    element: tuple[int, ...]
    address: int | None


class Conflicts:
    """Compare pairs of footprints thread by thread."""

    def __init__(self, footprints: Footprints) -> None:
        self.footprints = footprints
        self.differing_warps: dict[Any, int] = {}

    def same_thread(self, before: AccessEvent, after: AccessEvent, warp: int) -> bool:
        """Whether the same thread of a warp accesses each grain that both accesses share."""
        first, second = before.footprint, after.footprint
        key = id(first.pattern), id(second.pattern), first.shift - second.shift
        if key not in self.differing_warps:
            places, (low, high), (other_low, other_high) = _common(first, second)
            differing = np.flatnonzero((low != high) | (other_low != other_high) | (low != other_low))
            # `places` combine grain and warp: the remainder is the warp. The bit of each warp in which threads differ is set.
            self.differing_warps[key] = int(np.bitwise_or.reduce(1 << (places[differing] % WARP), initial=0))
        return not self.differing_warps[key] >> warp & 1

    def distinct_threads(self, first: Footprint, second: Footprint) -> tuple[int, int, int] | None:
        """A grain and the rows of two different units that both access it in one statement execution, if there is one."""
        if first is second:
            return first.pattern.distinct_threads
        keys, rows = first.pattern.present
        others, other_rows = second.pattern.present
        units, other_units = first.pattern.threads.unit[rows], second.pattern.threads.unit[other_rows]
        for grain in np.intersect1d(keys + first.shift, others + second.shift):
            own_rows, matching_rows = np.flatnonzero(keys + first.shift == grain), np.flatnonzero(others + second.shift == grain)
            pairs = np.argwhere(units[own_rows][:, None] != other_units[matching_rows][None, :])
            if len(pairs):
                return int(grain) - first.shift, int(rows[own_rows[pairs[0][0]]]), int(other_rows[matching_rows[pairs[0][1]]])
        return None

    def witnesses(
        self, before: AccessEvent, after: AccessEvent, warps: tuple[int, int], same_thread_allowed: bool
    ) -> Iterator[tuple[Point, Point]]:
        """Some conflicts of two operations. With `same_thread_allowed`, one thread may be on both sides."""
        first_footprint, second_footprint = before.footprint, after.footprint
        (keys, low, high), (others, other_low, other_high) = (
            _of_warp(part, warp) for part, warp in zip((first_footprint, second_footprint), warps, strict=True)
        )
        common, own_rows, matching_rows = np.intersect1d(keys, others, assume_unique=True, return_indices=True)
        different = np.flatnonzero(
            (low[own_rows] != other_high[matching_rows]) | (high[own_rows] != other_low[matching_rows]) | same_thread_allowed
        )
        for where in different[np.unique(np.linspace(0, len(different) - 1, 8).astype(int))] if len(different) else ():
            first, second = low[own_rows[where]], other_high[matching_rows[where]]
            if first == second and not same_thread_allowed:
                first, second = high[own_rows[where]], other_low[matching_rows[where]]
            yield self.point(before, int(common[where]), int(first)), self.point(after, int(common[where]), int(second))

    def point(self, event: AccessEvent, grain: int, thread: int) -> Point:
        """The point of a thread at a grain."""
        pattern, key = event.footprint.pattern, grain - event.footprint.shift
        keys, rows = pattern.present
        active = (pattern.threads.low[rows] <= thread) & (thread <= pattern.threads.high[rows])
        return self.at_row(event, key, int(rows[np.flatnonzero((keys == key) & active)[0]]), thread)

    def at_row(self, event: AccessEvent, key: int, row: int, thread: int | None = None, again: bool = False) -> Point:
        """The point of a pattern's row at a key: its first access of the key, or the last one if `again`; the row's first thread if
        `thread` is None.
        """
        footprint, pattern, use = event.footprint, event.footprint.pattern, event.use
        hits = (pattern.keys[row] == key) & (True if pattern.active is None else pattern.active[row])
        column = int(np.flatnonzero(hits)[-1 if again else 0])
        shape = pattern.frame.shape
        index = (row, *(int(one) for one in np.unravel_index(column // pattern.columns, shape[1:]))) if len(shape) > 1 else (row,)
        values = {**pattern.frame.at(index), **event.fixed}
        actor = int(pattern.threads.low[row]) if thread is None else thread
        loops = {loop.var.name: int(values.get(loop.var.name, 0)) for loop in use.loops}
        element = self._element(use.access, {**event.fixed, **loops, "thread": int(values["thread"])}, pattern.element(column))
        buffer = self.footprints.kernel.buffer(use.access.buffer)
        address = None
        if buffer.memory.of_block:
            address = ((key + footprint.shift) * footprint.space.grain - buffer.offset) // buffer.dtype.bytes
        return Point(actor, int(pattern.threads.unit[row]), loops, element, address)

    def _element(self, access: Access, values: Mapping[str, int], number: int) -> tuple[int, ...]:
        """The coordinates of an element; for an array in global memory, relative to the block's part."""
        local = self.footprints.local.get(access.buffer)
        parts = access.base if local is None else local.parts[access.base]
        frame = self.footprints.access_trace.frame([], values)
        offset = access.elements()[number]
        return tuple(int(frame.value(part)) + step for part, step in zip(parts, offset, strict=True))


def _common(first: Footprint, second: Footprint) -> tuple[Array, tuple[Array, Array], tuple[Array, Array]]:
    (places, low, high), (others, other_low, other_high) = first.pattern.ends, second.pattern.ends
    moved = (first.shift - second.shift) * WARP
    common, own_rows, matching_rows = np.intersect1d(places + moved, others, assume_unique=True, return_indices=True)
    return common, (low[own_rows], high[own_rows]), (other_low[matching_rows], other_high[matching_rows])


def _of_warp(footprint: Footprint, warp: int) -> tuple[Array, Array, Array]:
    places, low, high = footprint.pattern.ends
    own_rows = places % WARP == warp
    return places[own_rows] // WARP + footprint.shift, low[own_rows], high[own_rows]
