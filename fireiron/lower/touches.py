"""Who touches what: for an access, each place it touches with the least and greatest thread that does; and where two conflict.

Places in shared memory are aligned granules of at most 16 bytes, as wide as the vectors that `vectorize` proved; those of a
written parameter are coordinates. Both are numbered densely, so that a table by place takes two assignments and no sort.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.errors import SynchronizationError
from fireiron.ir import Access, Buffer, Exec, For, Kernel, Scope, execs, scratch_access
from fireiron.lower.footprint import Array, Grid, active_mask, evaluate, grid_of, named, needed_variables, period_of
from fireiron.values.expr import Expr, Var, compiled, constant
from fireiron.values.machine import SH

MOST_PLACES = 1 << 22
"""Places of a table; beyond it they are numbered by what is touched."""

FEW_PIECES = 8
"""Up to so many elements each has an expression of its own, mostly one that is compiled already."""

GRANULE = 16
"""Bytes: no load or store takes more at once."""


@attrs.frozen(eq=False)
class Touch:
    """An access with the statement and the loops around it."""

    statement: Exec
    loops: tuple[For, ...]
    access: Access

    @property
    def atomic(self) -> bool:
        """Whether it adds atomically, which needs no order among those that do."""
        return self.statement.atomic and self.access.write

    @property
    def under_way(self) -> bool:
        """Whether what it writes is still under way when its thread goes on."""
        return self.statement.asynchronous and self.access.write

    @property
    def together(self) -> bool:
        """Whether the threads of the block perform it together, and no place belongs to one thread."""
        return self.statement.collective or bool(getattr(self.statement.instruction, "collective", False))

    def at(self, var: Var, value: int) -> Touch:
        """The same at one iteration of a loop."""
        statement = attrs.evolve(self.statement, active=self.statement.active.substitute({var: value}))
        return attrs.evolve(self, statement=statement, access=self.access.substitute({var: value}))


@attrs.frozen(eq=False)
class Points:
    """All combinations of thread, loop values and element of an access: `places` are arrays `(threads, points of a thread)`.

    One array of granule numbers for shared memory, one a dimension for a parameter; `loops` the values of loops at the points,
    by name; `low` and `high` the range of each array; `mask` the points that take part, None for all.
    """

    places: tuple[Array, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    loops: dict[str, Array]
    mask: Array | None
    granule: int


@attrs.frozen(eq=False)
class Table:
    """By place: the least and the greatest thread, -1 where there is none."""

    low: Array
    high: Array


@attrs.frozen
class Conflict:
    """Two threads that meet at a place; `scope` is the least whose groups hold the threads of every such meeting."""

    scope: Scope
    place: str
    one: int
    other: int


class Touches:
    """The accesses of a kernel to memory that threads share, evaluated once each."""

    def __init__(self, kernel: Kernel, scopes: Sequence[Scope]) -> None:
        self.kernel, self.scopes = kernel, scopes
        self.watched = {buffer.name for buffer in kernel.buffers if buffer.memory == SH or (not buffer.memory.private and buffer.written)}
        self.needs = functools.lru_cache(maxsize=None)(self._needs)
        self.points = functools.lru_cache(maxsize=None)(self._points)
        self.table = functools.lru_cache(maxsize=None)(self._table)
        self.conflict = functools.lru_cache(maxsize=None)(self._conflict)
        self.regions = _regions(kernel)

    def of(self, statement: Exec, loops: tuple[For, ...]) -> tuple[Touch, ...]:
        """The touches of a statement of memory that others may touch."""
        accesses = statement.accesses if statement.scratch is None else (*statement.accesses, scratch_access(statement.scratch))
        return tuple(Touch(statement, loops, access) for access in accesses if access.buffer in self.watched)

    def may_meet(self, x: Touch, y: Touch) -> bool:
        """Whether two touches, one a write, may concern one address."""
        if not (x.access.write or y.access.write) or (x.atomic and y.atomic):
            return False
        if x.access.buffer == y.access.buffer:
            return True
        a, b = self.kernel.buffer(x.access.buffer), self.kernel.buffer(y.access.buffer)
        return a.memory == b.memory == SH and a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes

    # -------------------------------------------------------------------------------------- conflicts

    def meets(self, x: Touch, y: Touch, outer: tuple[Var, ...], later: For | None = None) -> Conflict | None:
        """How two touches conflict while the loops of `outer` stay in one iteration; None if each place has one thread.

        With `later`, `y` is an iteration of that loop further than `x`.
        """
        kept = tuple(var for var in outer if var in self.needs(x) and var in self.needs(y))
        if kept and x is y and self.conflict(x, y, (), None) is None:
            return None
        return self.conflict(x, y, kept, later)

    def _conflict(self, x: Touch, y: Touch, kept: tuple[Var, ...], later: For | None) -> Conflict | None:
        if x is y and (x.access.spread or x.under_way) and not self._comes_back(x, kept):
            return None
        left, right, box = self._tables(x, y, kept, later)
        both = (left.high >= 0) & (right.high >= 0)
        low, high = np.minimum(left.low, right.low), np.maximum(left.high, right.high)
        met = both if x.under_way else both & (low != high)
        places = np.flatnonzero(met)
        if not places.size:
            return None
        low, high = low[places], high[places]
        scope, outside = self._least(low, high)
        where = places[outside]
        one, other = int(left.low[where]), int(right.high[where])
        if one == other:
            one, other = int(left.high[where]), int(right.low[where])
        return Conflict(scope, self._name(x.access, int(where), box), one, other)

    def _least(self, low: Array, high: Array) -> tuple[Scope, int]:
        """The narrowest scope whose groups hold both threads everywhere, and a position that the scope before it does not hold."""
        witness = 0
        for scope in self.scopes:
            if scope.threads is None:
                return scope, witness
            crossing = np.flatnonzero(low // scope.threads != high // scope.threads)
            if not crossing.size:
                return scope, witness
            witness = int(crossing[0])
        raise SynchronizationError(f"threads {low[witness]} and {high[witness]} conflict, and no barrier holds both", legal=self.scopes)

    def _comes_back(self, touch: Touch, kept: tuple[Var, ...]) -> bool:
        """Whether a statement touches a place twice while the loops `kept` stay in one iteration."""
        needs = self.needs(touch)
        varying = [loop for loop in touch.loops if loop.var not in kept]
        if any(loop.var not in needs or (loop.period and loop.extent.high > loop.period) for loop in varying):
            return True
        points = self.points(touch)
        keys, _, size = self._keys(touch, points, (points.low, points.high), kept, None)
        if size > MOST_PLACES:
            return bool(np.unique(keys).size < keys.size)
        numbers = np.arange(keys.size, dtype=np.int32)
        last = np.empty(size, dtype=np.int32)
        last[keys] = numbers
        return bool((last[keys] != numbers).any())

    # -------------------------------------------------------------------------------------- tables by place

    def _tables(self, x: Touch, y: Touch, kept: tuple[Var, ...], later: For | None) -> tuple[Table, Table, tuple[Any, ...]]:
        """The tables of two touches over the same places; and the box of places, with granule, for naming one."""
        a, b = self.points(x), self.points(y)
        granule = min(a.granule, b.granule)
        if self.kernel.buffer(x.access.buffer).memory == SH:
            first, size = self.regions[x.access.buffer]
            tables = [
                self._finer(self.table(touch, ((first // p.granule,), ((first + size) // p.granule - 1,)), kept, shift), p.granule // granule)
                for touch, p, shift in ((x, a, None), (y, b, later))
            ]
            return tables[0], tables[1], (granule, first, size)
        box = (tuple(map(min, a.low, b.low)), tuple(map(max, a.high, b.high)))
        if _extent(box) * math.prod(self._counts(kept, x)) > MOST_PLACES:
            return self._sparse(x, y, box, kept, later)
        return self.table(x, box, kept, None), self.table(y, box, kept, later), (granule, box, None)

    def _finer(self, table: Table, times: int) -> Table:
        return table if times == 1 else Table(np.repeat(table.low, times), np.repeat(table.high, times))

    def _sparse(self, x: Touch, y: Touch, box: Any, kept: tuple[Var, ...], later: For | None) -> tuple[Table, Table, tuple[Any, ...]]:
        sides = [self._keys(touch, self.points(touch), box, kept, shift) for touch, shift in ((x, None), (y, later))]
        places, numbers = np.unique(np.concatenate([keys for keys, _, _ in sides]), return_inverse=True)
        cut = sides[0][0].size
        parts = (numbers[:cut], numbers[cut:])
        one, other = (
            self._filled(touch, keys, threads, places.size)
            for touch, keys, (_, threads, _) in zip((x, y), parts, sides, strict=True)
        )
        return one, other, (1, box, places)

    def _table(self, touch: Touch, box: tuple[tuple[int, ...], tuple[int, ...]], kept: tuple[Var, ...], later: For | None) -> Table:
        keys, threads, size = self._keys(touch, self.points(touch), box, kept, later)
        return self._filled(touch, keys, threads, size)

    def _filled(self, touch: Touch, keys: Array, threads: Array, size: int) -> Table:
        """The threads stand in ascending order, so that of several at one place the last assignment is the greatest."""
        low, high = np.full(size, 32767, dtype=np.int16), np.full(size, -1, dtype=np.int16)
        if touch.together:
            low[keys], high[keys] = 0, self.kernel.threads - 1
            return Table(low, high)
        last = np.minimum(threads + 31, self.kernel.threads - 1) if touch.access.spread else threads
        high[keys] = last
        low[keys[::-1]] = threads[::-1]
        return Table(low, high)

    def _counts(self, kept: tuple[Var, ...], touch: Touch) -> list[int]:
        return [period_of(self.kernel, loop) or 1 for loop in touch.loops if loop.var in kept]

    def _keys(self, touch: Touch, points: Points, box: Any, kept: tuple[Var, ...], later: For | None) -> tuple[Array, Array, int]:
        """Numbers of places, with the values of the kept loops, and the thread of each; and how many numbers there may be."""
        shape = points.places[0].shape
        keys: Array = np.zeros((1, 1), dtype=np.int64)
        mask, total = points.mask, 1
        for loop in touch.loops:
            if loop.var not in kept and (later is None or loop.var != later.var):
                continue
            count = period_of(self.kernel, loop) or 1
            if loop.var.name not in points.loops:
                continue
            value = points.loops[loop.var.name]
            if later is not None and loop.var == later.var:
                value, earlier = self._one_earlier(loop, value, count)
                mask = earlier if mask is None else mask & earlier
            keys, total = keys * count + value, total * count
        for place, low, high in zip(points.places, *box, strict=True):
            keys, total = keys * (high - low + 1) + (place - low), total * (high - low + 1)
        threads = np.arange(self.kernel.threads, dtype=np.int16)
        threads = threads // 32 * 32 if touch.access.spread else threads
        keys, threads = np.broadcast_to(keys, shape), np.broadcast_to(threads[:, None], shape)
        if mask is None:
            return keys.ravel(), threads.ravel(), total
        mask = np.broadcast_to(mask, shape)
        return keys[mask], threads[mask], total

    def _one_earlier(self, loop: For, value: Array, count: int) -> tuple[Array, Array]:
        """The iteration before, in the loop's period; a loop of no more than a period has none before its first."""
        number = constant(loop.extent)
        returns = number is None or number > count
        return (value - 1) % count, (value > 0) | returns

    def places(self, touch: Touch, fixed: Mapping[str, int]) -> int:
        """The granules of shared memory that a touch covers while some loops stay at an iteration: a set, as the bits of a number.

        Bits are granules of the smallest size that any access to the region has.
        """
        points = self._points(touch, tuple(fixed.items()))
        first, size = self.regions[touch.access.buffer]
        covered = np.zeros(size // points.granule, dtype=bool)
        granules = points.places[0] - first // points.granule
        covered[granules if points.mask is None else granules[points.mask]] = True
        return int.from_bytes(np.packbits(np.repeat(covered, points.granule // self.finest), bitorder="little").tobytes(), "little")

    @functools.cached_property
    def finest(self) -> int:
        """The bytes of the smallest granule of any access to shared memory."""
        touches = (touch for statement, loops in execs(self.kernel.body) for touch in self.of(statement, loops))
        return min((self._pieces(touch)[1] for touch in touches if touch.access.buffer in self.regions), default=GRANULE)

    # -------------------------------------------------------------------------------------- points

    def _needs(self, touch: Touch) -> frozenset[Var]:
        return needed_variables(self.kernel, touch.statement, touch.access)

    def _points(self, touch: Touch, fixed: tuple[tuple[str, int], ...] = ()) -> Points:
        kernel, access = self.kernel, touch.access
        self._require_decided(touch)
        grid = grid_of(kernel, touch.loops, self.needs(touch), dict(fixed))
        mask = active_mask(touch.statement, grid, kernel)
        if kernel.buffer(access.buffer).memory == SH:
            granule, arrays = self._granules(touch, grid)
        else:
            granule, arrays = 1, [_along(base, steps, grid) for base, steps in zip(access.base, np.array(access.elements()).T, strict=True)]
        shape = (len(arrays[0]), *grid.shape)
        loops = {loop.var.name: _by_thread(grid.environment[loop.var.name], shape) for loop in grid.loops}
        where = None if mask.all() else _by_thread(mask, shape)
        arrays = [_by_thread(one, shape) for one in arrays]
        low, high = tuple(int(one.min()) for one in arrays), tuple(int(one.max()) for one in arrays)
        return Points(tuple(arrays), low, high, loops, where, granule)

    def _granules(self, touch: Touch, grid: Grid) -> tuple[int, list[Array]]:
        """The bytes of a granule, and the granules that an access to shared memory touches, along a first axis."""
        access, buffer = touch.access, self.kernel.buffer(touch.access.buffer)
        pieces, granule = self._pieces(touch)
        parts = buffer.dtype.bytes * (len(access.elements()) // len(pieces)) // granule
        if len(pieces) <= FEW_PIECES:
            starts = np.stack([evaluate(buffer.address(access, offset), grid) for offset in pieces])
        else:
            starts = _moved(buffer, access, pieces, grid)
        first = (starts * buffer.dtype.bytes + buffer.offset) // granule
        return granule, [first if parts == 1 else np.concatenate([first + part for part in range(parts)])]

    def _pieces(self, touch: Touch) -> tuple[Sequence[tuple[int, ...]], int]:
        """The first elements of the vectors of an access to shared memory, and the bytes of a granule."""
        access, buffer = touch.access, self.kernel.buffer(touch.access.buffer)
        width = 1
        if not access.spread and access in touch.statement.accesses:
            width = touch.statement.width(touch.statement.accesses.index(access))
        first, size = self.regions[access.buffer]
        granule = math.gcd(width * buffer.dtype.bytes, GRANULE, buffer.offset, first, size)
        return access.elements()[::width], granule

    def _require_decided(self, touch: Touch) -> None:
        """Refuse an address in shared memory that depends on what is not enumerated: it would be judged by one of its values."""
        buffer = self.kernel.buffer(touch.access.buffer)
        if buffer.memory != SH:
            return
        known = {"thread", *(loop.var.name for loop in touch.loops if period_of(self.kernel, loop) is not None)}
        for value in (*touch.access.base, touch.access.copy):
            open_ = named(self.kernel).roots(value) - known
            if open_:
                raise SynchronizationError(
                    f"the address {value} in {buffer.name} depends on {', '.join(sorted(open_))}: who touches what cannot be told",
                    at=touch.access.origin,
                    hint="shared memory is addressed by threads and loops of known extent",
                )

    def _name(self, access: Access, where: int, box: tuple[Any, ...]) -> str:
        """An element at a place, as a reader knows it."""
        buffer = self.kernel.buffer(access.buffer)
        granule, first, more = box
        if buffer.memory == SH:
            byte = first + where * granule % more
            return f"{buffer.name}[{(byte - buffer.offset) // buffer.dtype.bytes}]"
        key, coordinates = (where if more is None else int(more[where])), []
        for low, high in reversed(list(zip(*first, strict=True))):
            key, digit = divmod(key, high - low + 1)
            coordinates.append(low + digit)
        return f"{buffer.name}[{', '.join(map(str, reversed(coordinates)))}]"


def _by_thread(value: Array, shape: tuple[int, ...]) -> Array:
    """An array over elements, loops and threads as `(threads, elements and loops)`."""
    return np.moveaxis(np.broadcast_to(value, shape), -1, 0).reshape(shape[-1], -1)


def _along(base: Expr, steps: Array, grid: Grid) -> Array:
    """Coordinates along a dimension, elements along a first axis."""
    return evaluate(base, grid) + steps.reshape(-1, *[1] * len(grid.shape))


def _moved(buffer: Buffer, access: Access, offsets: Sequence[tuple[int, ...]], grid: Grid) -> Array:
    """Addresses of many elements: one expression, in which the element is an array along a first axis."""
    steps = np.array(offsets).T
    names = [Var(f"element {dim}", 0, int(step.max())) for dim, step in enumerate(steps)]
    moved = attrs.evolve(access, base=tuple(base + name for base, name in zip(access.base, names, strict=True)))
    values = {name.name: step.reshape(-1, *[1] * len(grid.shape)) for name, step in zip(names, steps, strict=True)}
    address = compiled(buffer.address(moved, (0,) * len(steps)))({**grid.environment, **values})
    return np.broadcast_to(address, (len(offsets), *grid.shape))


def _extent(box: tuple[tuple[int, ...], tuple[int, ...]]) -> int:
    return math.prod(high - low + 1 for low, high in zip(*box, strict=True))


def _regions(kernel: Kernel) -> dict[str, tuple[int, int]]:
    """For each shared buffer, first byte and size of the region of all those that it overlaps, directly or through others."""
    regions: list[tuple[int, int, list[str]]] = []
    for buffer in sorted((one for one in kernel.buffers if one.memory == SH), key=lambda one: one.offset):
        start, stop = buffer.offset, buffer.offset + buffer.bytes
        if regions and start < regions[-1][1]:
            first, last, names = regions[-1]
            regions[-1] = (first, max(last, stop), [*names, buffer.name])
        else:
            regions.append((start, stop, [buffer.name]))
    return {name: (first, last - first) for first, last, names in regions for name in names}
