"""Where two accesses meet: the grains that both touch, and the threads that do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np

from fireiron.check.access_trace import Array
from fireiron.check.races.footprints import WARP, Footprint, Footprints
from fireiron.check.races.traces import AccessEvent
from fireiron.ir import Access


@attrs.frozen(eq=False)
class Point:
    """One thread (or unit of threads) at one address: `element` are its coordinates, `address` counts elements of the buffer."""

    thread: int
    unit: int
    loops: Mapping[str, int]
    element: tuple[int, ...]
    address: int | None


class Conflicts:
    """Pairs of footprints, compared thread by thread."""

    def __init__(self, places: Footprints) -> None:
        self.places = places
        self.known: dict[Any, int] = {}

    def same_thread(self, before: AccessEvent, behind: AccessEvent, warp: int) -> bool:
        """Whether of a warp the same thread touches each grain that both accesses touch."""
        one, other = before.footprint, behind.footprint
        key = id(one.pattern), id(other.pattern), one.shift - other.shift
        if key not in self.known:
            places, (low, high), (least, most) = _common(one, other)
            distinct_threads = np.flatnonzero((low != high) | (least != most) | (low != least))
            # Places are numbered by grain and warp: the remainder is the warp, and each warp in which threads differ has its bit.
            self.known[key] = int(np.bitwise_or.reduce(1 << (places[distinct_threads] % WARP), initial=0))
        return not self.known[key] >> warp & 1

    def distinct_threads(self, one: Footprint, other: Footprint) -> tuple[int, int, int] | None:
        """A grain and the rows of two units that both touch it, in one execution of a statement."""
        if one is other:
            return one.pattern.distinct_threads
        keys, rows = one.pattern.present
        others, other_rows = other.pattern.present
        units, other_units = one.pattern.threads.unit[rows], other.pattern.threads.unit[other_rows]
        for grain in np.intersect1d(keys + one.shift, others + other.shift):
            mine, theirs = np.flatnonzero(keys + one.shift == grain), np.flatnonzero(others + other.shift == grain)
            pairs = np.argwhere(units[mine][:, None] != other_units[theirs][None, :])
            if len(pairs):
                return int(grain) - one.shift, int(rows[mine[pairs[0][0]]]), int(other_rows[theirs[pairs[0][1]]])
        return None

    def witnesses(self, before: AccessEvent, behind: AccessEvent, warps: tuple[int, int], alike: bool) -> Iterator[tuple[Point, Point]]:
        """Some of the conflicts of two operations; `alike` where one thread may be on both sides."""
        one, other = before.footprint, behind.footprint
        (keys, low, high), (others, least, most) = (_of_warp(part, warp) for part, warp in zip((one, other), warps, strict=True))
        common, mine, theirs = np.intersect1d(keys, others, assume_unique=True, return_indices=True)
        different = np.flatnonzero((low[mine] != most[theirs]) | (high[mine] != least[theirs]) | alike)
        for where in different[np.unique(np.linspace(0, len(different) - 1, 8).astype(int))] if len(different) else ():
            first, second = low[mine[where]], most[theirs[where]]
            if first == second and not alike:
                first, second = high[mine[where]], least[theirs[where]]
            yield self.point(before, int(common[where]), int(first)), self.point(behind, int(common[where]), int(second))

    def point(self, touch: AccessEvent, grain: int, thread: int) -> Point:
        """A thread at a grain."""
        pattern, key = touch.footprint.pattern, grain - touch.footprint.shift
        keys, rows = pattern.present
        acts = (pattern.threads.low[rows] <= thread) & (thread <= pattern.threads.high[rows])
        return self.at_row(touch, key, int(rows[np.flatnonzero((keys == key) & acts)[0]]), thread)

    def at_row(self, touch: AccessEvent, key: int, row: int, thread: int | None = None, again: bool = False) -> Point:
        """A row of a pattern at a key, where it comes there first, or last if it does so `again`; its first thread if none is named."""
        footprint, pattern, use = touch.footprint, touch.footprint.pattern, touch.use
        hits = (pattern.keys[row] == key) & (True if pattern.active is None else pattern.active[row])
        column = int(np.flatnonzero(hits)[-1 if again else 0])
        shape = pattern.frame.shape
        index = (row, *(int(one) for one in np.unravel_index(column // pattern.columns, shape[1:]))) if len(shape) > 1 else (row,)
        values = {**pattern.frame.at(index), **touch.fixed}
        actor = int(pattern.threads.low[row]) if thread is None else thread
        loops = {loop.var.name: int(values.get(loop.var.name, 0)) for loop in use.loops}
        element = self._element(use.access, {**touch.fixed, **loops, "thread": int(values["thread"])}, pattern.element(column))
        buffer = self.places.kernel.buffer(use.access.buffer)
        address = None
        if buffer.memory.of_block:
            address = ((key + footprint.shift) * footprint.space.grain - buffer.offset) // buffer.dtype.bytes
        return Point(actor, int(pattern.threads.unit[row]), loops, element, address)

    def _element(self, access: Access, values: Mapping[str, int], number: int) -> tuple[int, ...]:
        """The coordinates of an element; in an array of global memory those in the block's part."""
        local = self.places.local.get(access.buffer)
        parts = access.base if local is None else local.parts[access.base]
        frame = self.places.access_trace.frame([], values)
        offset = access.elements()[number]
        return tuple(int(frame.value(part)) + step for part, step in zip(parts, offset, strict=True))


def _common(one: Footprint, other: Footprint) -> tuple[Array, tuple[Array, Array], tuple[Array, Array]]:
    (places, low, high), (others, least, most) = one.pattern.ends, other.pattern.ends
    moved = (one.shift - other.shift) * WARP
    both, mine, theirs = np.intersect1d(places + moved, others, assume_unique=True, return_indices=True)
    return both, (low[mine], high[mine]), (least[theirs], most[theirs])


def _of_warp(footprint: Footprint, warp: int) -> tuple[Array, Array, Array]:
    places, low, high = footprint.pattern.ends
    mine = places % WARP == warp
    return places[mine] // WARP + footprint.shift, low[mine], high[mine]
