"""Access map: which threads access which addresses, for the accesses of one block to shared and global memory.

The unit of comparison (a *place*) is a range of shared memory as long as the shortest access to the compared buffers, or a box of a written
array in global memory of which each access covers all or nothing. The least and the greatest thread that access a place determine whether
two accesses conflict between threads, and how far apart these threads are.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import attrs
import numpy as np

from fireiron.errors import SynchronizationError
from fireiron.frozen import frozen
from fireiron.ir import Access, Exec, For, Kernel, execs, located, scratch_access
from fireiron.lower.footprint import Array, Grid, active_mask, closure, grid_of, needed_variables
from fireiron.values.expr import TRUE, Expr, Var, compiled, constant
from fireiron.values.expr.normal import terms_of
from fireiron.values.units import index_in

Located: TypeAlias = "tuple[Grid, Array, Array | None]"

MOST_ROOM = 1 << 23
"""Maximum number of entries of a table; beyond it the accessed addresses are numbered first."""


@frozen(eq=False)
class Touch:
    """An access with its statement, the enclosing loops, and its width: the number of elements that are accessed contiguously, in order."""

    statement: Exec
    loops: tuple[For, ...]
    access: Access
    width: int = 1

    @property
    def atomic(self) -> bool:
        """Whether it adds atomically: atomic additions need no order among themselves."""
        return self.statement.atomic and self.access.write

    @property
    def asynchronous_write(self) -> bool:
        """Whether the issuing thread may continue before it has written."""
        return self.statement.mechanism.arrives_in_groups and self.access.write

    @property
    def completes_at_wait(self) -> bool:
        """Whether it completes only at a wait for its group: a copy's write, or the read of an asynchronous engine."""
        return self.statement.mechanism.in_groups and self.statement.mechanism.is_late(self.access.write)


@frozen(eq=False)
class Footprint:
    """The places of an access (combined with the values of kept loops), with the least and greatest thread of each.

    `listed` are their sorted keys. None: `least` and `greatest` have an entry for each possible key, -1 for a place that is not accessed.
    """

    least: Array
    greatest: Array
    listed: Array | None = None

    @property
    def keys(self) -> Array:
        """The keys of the accessed places."""
        return np.flatnonzero(self.greatest >= 0) if self.listed is None else self.listed

    @property
    def low(self) -> Array:
        """The least thread of each accessed place."""
        return self.least[self.keys] if self.listed is None else self.least

    @property
    def high(self) -> Array:
        """The greatest thread of each accessed place."""
        return self.greatest[self.keys] if self.listed is None else self.greatest

    def common_places(self, other: Footprint) -> tuple[Array, Array, Array]:
        """The keys of the common places, and the least and greatest thread of either access."""
        keys, here, present = np.intersect1d(self.keys, other.keys, assume_unique=True, return_indices=True)
        return keys, np.minimum(self.low[here], other.low[present]), np.maximum(self.high[here], other.high[present])

    def extremes(self, other: Footprint) -> tuple[Array, Array]:
        """The least and greatest thread of each common place; faster than `common_places`."""
        if other is self:
            return self.low, self.high
        if self.listed is not None or other.listed is not None or self.least.size != other.least.size:
            return self.common_places(other)[1:]
        both = (self.greatest >= 0) & (other.greatest >= 0)
        return np.minimum(self.least, other.least)[both], np.maximum(self.greatest, other.greatest)[both]


def _unshared_ring_buffers(kernel: Kernel) -> set[str]:
    """The buffers of rings that share no bytes with buffers outside of rings."""
    rings = {name for ring in kernel.rings for name in ring.buffers}
    others = [buffer for buffer in kernel.buffers if buffer.memory.of_block and buffer.name not in rings]
    return {name for name in rings if not any(kernel.buffer(name).shares(one) for one in others)}


class AccessMap:
    """The accesses of a kernel to memory that threads share."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        # Read-only memory and registers, which belong to one thread, need no synchronization.
        rings = _unshared_ring_buffers(kernel)  # synchronized by their mbarriers
        self.watched = {
            buffer.name for buffer in kernel.buffers if buffer.memory.of_block or (buffer.memory.of_grid and buffer.written)
        } - rings
        self._threads = np.arange(kernel.workers)
        self._sharing: dict[str, frozenset[str]] = {}
        self._bytes: dict[str, range | None] = {}
        self._grids: dict[Any, Grid] = {}
        self._needed: dict[int, frozenset[Var]] = {}
        self._places: dict[tuple[int, int], Located] = {}
        self._footprints: dict[Any, Footprint] = {}
        # The caches use ids of touches, which must stay unique as long as the caches live.
        self._alive: list[Touch] = []

    @functools.cached_property
    def granules(self) -> Mapping[str, int]:
        """For each shared buffer, the largest size in bytes that divides its offset and all accesses to it; 0 for other buffers."""
        return _granules(self.kernel)

    @functools.cached_property
    def boxes(self) -> Mapping[str, tuple[int, ...]]:
        """For each array in global memory, the extents of adjacent boxes, from the first element on, that no access divides."""
        return _boxes(self.kernel, self.watched)

    def of(self, statement: Exec, loops: tuple[For, ...]) -> tuple[Touch, ...]:
        """The accesses of a statement that other accesses may have to wait for."""
        touches = []
        for position, access in enumerate(statement.accesses):
            if access.buffer in self.watched:
                touches.append(Touch(statement, loops, access, _width(statement, position)))
        if statement.scratch is not None:
            touches.append(Touch(statement, loops, scratch_access(statement.scratch)))
        return tuple(touches)

    def needed(self, touch: Touch) -> frozenset[Var]:
        """The variables that its coordinates and its statement's condition depend on."""
        if id(touch) not in self._needed:
            self._alive.append(touch)
            self._needed[id(touch)] = needed_variables(self.kernel, touch.statement, touch.access)
        return self._needed[id(touch)]

    def may_overlap(self, x: Touch, y: Touch) -> bool:
        """Whether two accesses may be to the same memory, as far as their buffers determine."""
        name = x.access.buffer
        if name not in self._sharing:
            buffer = self.kernel.buffer(name)
            self._sharing[name] = frozenset((name, *(other.name for other in self.kernel.buffers if buffer.shares(other))))
        return y.access.buffer in self._sharing[name]

    # ------------------------------------------------------------------------------------------ places

    def granule(self, *touches: Touch) -> int:
        """The size in bytes of a place in shared memory, for touches that are compared."""
        return math.gcd(*(self.granules[one.access.buffer] for one in touches)) or 1

    def places(self, touch: Touch, granule: int, fixed: Mapping[str, int] = {}) -> Located:
        """The grid; the places along its axes and a last axis for the parts of the access; and a mask of those accessed (None: all).

        Places past the end of a shared buffer are not accessed: a check proves that a condition prevents it. For a multicast load, the
        parts of all blocks count, since all of them arrive in this block.
        """
        cluster = self.kernel.cluster
        if cluster is None or touch.statement.multicast is None or not self.kernel.buffer(touch.access.buffer).memory.of_block:
            return self._places_of(touch, granule, fixed)
        located = [self._places_of(touch, granule, {**fixed, **cluster.values(rank)}) for rank in range(cluster.blocks)]
        masks = [np.ones(places.shape, dtype=bool) if mask is None else mask for _, places, mask in located]
        return located[0][0], np.concatenate([one[1] for one in located], axis=-1), np.concatenate(masks, axis=-1)

    def _places_of(self, touch: Touch, granule: int, fixed: Mapping[str, int]) -> Located:
        """The same for the part of this block, or of the block at `fixed` coordinates of its cluster."""
        kernel, access = self.kernel, touch.access
        grid = self._grid(touch, fixed)
        if touch.statement.collective:
            grid = grid.at_threads(self.representatives(touch))
        buffer = kernel.buffer(access.buffer)
        if buffer.memory.of_block:
            # Tiles in global memory are disjoint for different values of an open loop and for different blocks (see `Grid`), so one
            # represents all.
            _require_decided(kernel, access, grid, fixed)
        width = 1 if not buffer.memory.of_block else touch.width
        if buffer.memory.of_block:
            steps = access.table()[::width].T
            coordinates = [
                np.asarray(compiled(base)(grid.environment))[..., None] + step for base, step in zip(access.base, steps, strict=True)
            ]
            numbers = (access.storage or buffer.storage).address(coordinates) if coordinates else np.zeros(1, dtype=int)
            copy = np.asarray(compiled(access.copy)(grid.environment))[..., None] * (constant(buffer.elements) or 0)
            # in bytes of the block's memory: overlapping buffers may have elements of different sizes
            start = ((numbers + copy) * buffer.dtype.bytes + buffer.offset) // granule
            parts = max(width * buffer.dtype.bytes // granule, 1)
            places = (start[..., None] + np.arange(parts)).reshape(*start.shape[:-1], -1)
        else:
            places = self._numbered(access, grid)
        shape = (*grid.shape, places.shape[-1])
        mask: Array = True if touch.statement.active == TRUE else active_mask(touch.statement, grid)[..., None]
        if buffer.memory.of_block:
            end = -(-(buffer.offset + buffer.bytes) // granule)
            mask = mask & (places < end) if places.size and places.max() >= end else mask
        return grid, np.broadcast_to(places, shape), None if mask is True or mask.all() else np.broadcast_to(mask, shape)

    def _grid(self, touch: Touch, fixed: Mapping[str, int]) -> Grid:
        """The grid of a touch; touches in the same loops share one."""
        needed = self.needed(touch)
        loops = tuple(loop for loop in touch.loops if loop.var in needed)
        memo = (*map(id, loops), *fixed.items())
        if memo not in self._grids:
            self._alive.append(touch)
            self._grids[memo] = grid_of(self.kernel, loops, needed, fixed)
        return self._grids[memo]

    def _numbered(self, access: Access, grid: Grid) -> Array:
        """Boxes of an array in global memory, numbered by their coordinates in block 0, which range from 0 to slightly more than a tile."""
        sides = self.boxes[access.buffer]
        steps = _box_steps(access, sides)
        sizes = self.kernel.buffer(access.buffer).tensor.shape
        number: Array = np.zeros(1, dtype=int)
        for base, step, side, size in zip(access.base, steps, sides, sizes, strict=True):
            number = number * _span(size) + np.asarray(compiled(base)(grid.environment) // side)[..., None] + step
        return number

    def span(self, granule: int, *touches: Touch) -> range:
        """The range of place numbers of touches that may overlap; tables have this size."""
        spans = [one for one in (self._bytes_of(touch.access.buffer) for touch in touches) if one is not None]
        if len(spans) < len(touches):
            return range(1 << 40)
        return range(min(one.start for one in spans) // granule, -(-max(one.stop for one in spans) // granule))

    def _bytes_of(self, name: str) -> range | None:
        """The bytes of a buffer in shared memory; None for an array in global memory."""
        if name not in self._bytes:
            buffer = self.kernel.buffer(name)
            self._bytes[name] = range(buffer.offset, buffer.offset + buffer.bytes) if buffer.memory.of_block else None
        return self._bytes[name]

    def named(self, touch: Touch, key: int, granule: int, span: range) -> str:
        """The place of a key as printed in messages, without the values of loops."""
        buffer = self.kernel.buffer(touch.access.buffer)
        key = span[key % len(span)]
        if buffer.memory.of_block:
            return f"{buffer.name}[{(key * granule - buffer.offset) // buffer.dtype.bytes}]"
        coordinates: list[int] = []
        for size, side in zip(reversed(buffer.tensor.shape), reversed(self.boxes[buffer.name]), strict=True):
            key, digit = divmod(key, _span(size))
            coordinates.append(digit * side)
        return f"{buffer.name}[{', '.join(map(str, reversed(coordinates)))}]"

    def representatives(self, touch: Touch) -> Array:
        """The threads that represent a statement: all threads, or for a collective statement the first thread of each unit, because all
        threads of a unit have the same operands.
        """
        threads = self._threads
        if not touch.statement.collective:
            return threads
        level, active = touch.statement.spec.level, touch.statement.active
        first = threads == 0 if level.threads is None else compiled(index_in(level, self.kernel.thread))({"thread": threads}) == 0
        whole = constant(active) is not None or self._of_whole_units(active, first)
        return np.flatnonzero(first) if whole else threads

    def _of_whole_units(self, active: Expr, first: Array) -> bool:
        """Whether a condition depends only on the thread and is the same for all threads of a unit; units begin at the `first` threads."""
        if active.variables() != {self.kernel.thread}:
            return False
        holds = np.asarray(compiled(active)({"thread": np.arange(first.size)}))
        return bool((holds == holds[np.maximum.accumulate(np.where(first, np.arange(first.size), 0))]).all())

    # ------------------------------------------------------------------------------------------ tables

    def footprint(self, touch: Touch, granule: int, span: range, kept: tuple[Var, ...], later: Var | None = None) -> Footprint:
        """The threads that access each place in one block, by value of the kept loops; `granule` is the size of a place. Footprints with
        the same span are comparable.

        With `later`, iterations of that loop count as the previous one in its period: what the next iteration accesses.
        """
        memo = (id(touch), granule, span, tuple(var.name for var in kept), None if later is None or later not in kept else later.name)
        if memo not in self._footprints:
            keys, threads, room = self.keys(touch, granule, span, kept, later)
            self._footprints[memo] = self._by_units(touch, _extremes(keys, threads, room))
        return self._footprints[memo]

    def times(self, touch: Touch, granule: int) -> int:
        """The number of accesses to places by all threads."""
        _, places, mask = self._located(touch, granule)
        return int(places.size if mask is None else mask.sum())

    def keys(self, touch: Touch, granule: int, span: range, kept: tuple[Var, ...], later: Var | None = None) -> tuple[Array, Array, int]:
        """A key and a thread for each access to a place, ordered by thread; and the number of possible keys."""
        grid, places, mask = self._located(touch, granule)
        room, rows = len(span), 1
        prefix: Array = 0
        for var in kept:
            # A kept loop of unknown extent has no axis: it has its first value.
            if var.name in grid.axes:
                count, number = grid.shape[grid.axes.index(var.name)], grid.environment[var.name]
                prefix = prefix * count + ((number - 1) % count if var == later else number)
                rows *= count
        start = np.asarray(prefix * room - span.start)
        # Threads come first: `_extremes` takes the last entry for the greatest thread.
        keys = np.moveaxis(places + start[..., None], -2, 0)
        threads = np.broadcast_to(self.representatives(touch).astype(np.int16).reshape(-1, *(1,) * (keys.ndim - 1)), keys.shape)
        if mask is None:
            return keys.ravel(), threads.ravel(), rows * room
        touched = np.moveaxis(mask, -2, 0)
        return keys[touched], threads[touched], rows * room

    def _located(self, touch: Touch, granule: int) -> Located:
        memo = (id(touch), granule)
        if memo not in self._places:
            self._alive.append(touch)
            self._places[memo] = self.places(touch, granule)
        return self._places[memo]

    def _by_units(self, touch: Touch, footprint: Footprint) -> Footprint:
        """An access by a unit of threads counts as an access by its first and its last thread."""
        if not touch.access.spread and not touch.statement.collective:
            return footprint
        unit = touch.statement.spec.level.threads
        if unit is None or unit >= self.kernel.workers:
            greatest = np.where(footprint.greatest >= 0, np.int16(self.kernel.workers - 1), footprint.greatest)
            return attrs.evolve(footprint, least=np.zeros_like(footprint.least), greatest=greatest)
        unit = max(unit, 32)  # quad-pairs are spread over their warp
        # Places that are not accessed keep -1: -1 // unit * unit + unit - 1 is -1.
        return attrs.evolve(footprint, least=footprint.least // unit * unit, greatest=footprint.greatest // unit * unit + unit - 1)


def _require_decided(kernel: Kernel, access: Access, grid: Grid, fixed: Mapping[str, int]) -> None:
    """Refuse a shared-memory address with several possible values, because the accessing threads would be unknown."""
    parts = {var for value in (*access.base, access.copy) for var in value.variables() if var.name not in fixed}
    unknown_names = {var.name for var in closure(kernel, frozenset(parts))}
    unknown_names = (unknown_names & grid.undecided) | (unknown_names - grid.environment.keys())
    if unknown_names:
        raise SynchronizationError(
            f"an address in {access.buffer} depends on {', '.join(sorted(unknown_names))}, so the accessing threads are unknown",
            at=access.origin,
            hint="shared memory is addressed by threads and by loops of known extent",
        )


def _extremes(keys: Array, threads: Array, room: int) -> Footprint:
    """Each key once, with the least and the greatest thread; entries are ordered by thread."""
    if room <= MOST_ROOM:
        low, high = np.full(room, -1, dtype=np.int16), np.full(room, -1, dtype=np.int16)
        high[keys] = threads  # the last of several assignments wins
        low[keys[::-1]] = threads[::-1]
        return Footprint(low, high)
    order = np.argsort(keys, kind="stable")
    keys, threads = keys[order], threads[order]
    first = np.concatenate(([True], keys[1:] != keys[:-1])) if keys.size else np.zeros(0, dtype=bool)
    last = np.concatenate((first[1:], [True])) if keys.size else first
    return Footprint(threads[first], threads[last], keys[first])


def _width(statement: Exec, position: int) -> int:
    """Elements of an access that are contiguous and aligned, in order; 1 if lanes are unspecified."""
    unknown = statement.collective or (statement.accesses[position].spread and not statement.instruction.mechanism.by_engine)
    return 1 if unknown else statement.width(position)


def _box_steps(access: Access, sides: tuple[int, ...]) -> Array:
    """The offsets from the box of an access's base to all boxes that contain its elements, each once."""
    if access.points:
        boxes, _ = np.unique(access.table() // np.array(sides), axis=0, return_index=True)  # without an index it loads numpy.ma
        return boxes.T
    axes = ({offset // side for offset in offsets} for offsets, side in zip(access.offsets(), sides, strict=True))
    return np.array(list(itertools.product(*axes))).T


def _span(size: Expr) -> int:
    """An upper bound of the coordinates of block 0 along a dimension of this size."""
    number = constant(size)
    return 1 << 20 if number is None else min(number + 4096, 1 << 20)


def _boxes(kernel: Kernel, watched: Collection[str]) -> dict[str, tuple[int, ...]]:
    """For each of these arrays in global memory, the extents of adjacent boxes, from the first element on, that no access divides."""
    sides: dict[str, tuple[int, ...]] = {}
    for statement, _ in execs(kernel.body):
        for access in statement.accesses:
            if access.buffer in watched and kernel.buffer(access.buffer).memory.of_grid:
                known = sides.get(access.buffer, (0,) * len(access.base))
                sides[access.buffer] = tuple(math.gcd(side, _side(access, dim)) for dim, side in enumerate(known))
    return sides


def _side(access: Access, dim: int) -> int:
    """The largest n such that an access covers each n elements along a dimension, from a multiple of n on, completely or not at all."""
    if access.points:
        return 1
    terms, number = terms_of(access.base[dim])
    steps = set(access.offsets()[dim])
    # where runs of adjacent elements begin and end
    ends = [step for step in steps if step - 1 not in steps] + [step + 1 for step in steps if step + 1 not in steps]
    return math.gcd(number, *(coefficient for _, coefficient in terms), *ends)


def _granules(kernel: Kernel) -> dict[str, int]:
    """For each shared buffer, the largest size in bytes that divides its offset and all accesses to it; 0 for other buffers."""
    sizes = {buffer.name: buffer.offset if buffer.memory.of_block else 0 for buffer in kernel.buffers}
    for statement, _ in located(kernel.body):
        if isinstance(statement, Exec):
            if statement.scratch is not None:
                sizes[statement.scratch.name] = 1
            for position, access in enumerate(statement.accesses):
                buffer = kernel.buffer(access.buffer)
                if buffer.memory.of_block:
                    sizes[buffer.name] = math.gcd(sizes[buffer.name], _width(statement, position) * buffer.dtype.bytes)
    return sizes
