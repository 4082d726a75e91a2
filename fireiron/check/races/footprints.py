"""Compute footprints with NumPy: the grains of memory that each thread of a block accesses.

A *space* is memory in which addresses may overlap: shared memory, or one array in global memory. A *pattern* is what an access covers in
some iteration, up to a shift by whole stages. A *footprint* is a pattern at its shift. Addresses count in grains: 16 bytes if all accesses
of the space cover whole grains, else the largest smaller power of two that they do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from fireiron.check.access_trace import MANY, AccessTrace, Array, Frame, Use, distinct, linear, product
from fireiron.check.blocks import Local
from fireiron.check.races.extra_roles import issuers
from fireiron.frozen import frozen
from fireiron.ir import Access, Buffer, Exec, For, Mechanism
from fireiron.values.expr import TRUE, ZERO, Expr, conjuncts, constant, less
from fireiron.values.machine import Block, Level
from fireiron.values.tensor import Storage
from fireiron.values.units import unit_in

Test: TypeAlias = "tuple[Expr, Array]"
"""A condition of single elements of an access, and the indices of those elements."""

WARP = 32
"""Threads of a warp."""

_GRAINS = (16, 8, 4, 2, 1)


@frozen(eq=False)
class RowThreads:
    """The threads that perform the accesses of each row of a pattern.

    - `rows`: the threads at which the access is evaluated.
    - `warp`: the accessing warp. `low`, `high`: the lowest and the highest thread of this warp that may perform the access.
    - `unit`: the unit of threads within which one execution of the statement needs no order.
    """

    rows: Array
    warp: Array
    low: Array
    high: Array
    unit: Array


def row_threads(access_trace: AccessTrace, use: Use, issuer: tuple[int, int]) -> RowThreads:
    """A row for each thread; or, if the statement does not specify which thread of a unit accesses which elements, rows for whole units.

    `issuer` is the thread, and the agent, that issues a load of the async proxy.
    """
    threads = access_trace.threads
    warps = threads // WARP
    if use.statement.ring and use.statement.mechanism.counted:
        thread, agent = (np.array([number]) for number in issuer)
        return RowThreads(np.zeros(1, dtype=np.int64), agent, thread, thread, agent)
    if use.access.spread:
        return _spread_row_threads(threads, max(use.statement.spec.level.threads or WARP, WARP))
    if not use.statement.collective:
        return RowThreads(threads, warps, threads, threads, threads)
    level = use.statement.spec.level
    # One row per warp of a unit, evaluated at the unit's first thread: its threads name the same operands.
    number = unit_in(level, _block_level(level), access_trace.kernel.thread)
    units = np.broadcast_to(np.asarray(access_trace.frame([("thread", threads)]).value(number)), threads.shape)
    parts = np.stack((units, warps))
    _, first = np.unique(parts, axis=1, return_index=True)
    _, last = np.unique(parts[:, ::-1], axis=1, return_index=True)
    _, leader, owner = np.unique(units, return_index=True, return_inverse=True)
    high = first if _is_issued_by_one(use.statement) else len(threads) - 1 - last
    return RowThreads(leader[owner[first]], warps[first], first, high, units[first])


def _is_issued_by_one(statement: Exec) -> bool:
    """Whether the first thread of a warp issues a statement of the warp: a copy of the async proxy, such as a TMA store."""
    return statement.spec.level.threads == WARP and statement.mechanism.by_engine and not statement.mechanism.in_registers


def _spread_row_threads(threads: Array, unit: int) -> RowThreads:
    """One row per thread and per warp of its unit: each warp may access what any thread of the unit names."""
    each = unit // WARP
    rows = np.repeat(threads, each)
    warps = rows // unit * each + np.tile(np.arange(each), len(threads))
    first = warps * WARP
    return RowThreads(rows, warps, first, np.minimum(first + WARP - 1, threads[-1]), rows // unit)


def _block_level(level: Level) -> Level:
    return next((one for one in (level, *level.ancestors()) if one == Block), level)


@attrs.define(eq=False, slots=False)
class Pattern:
    """The elements that an access covers: `bases` per dimension of its space at each row and point, and `offsets` of the elements.

    Elements have `width` bytes. Shared memory has one dimension, of bytes; other memory has those of its array. `frame` has a thread axis
    and one per loop that is taken as a whole; `valid` is the activity mask of the statement. After `Space.number_grains`, `keys` are
    grains, `(rows, accesses)`, and `active` masks those that count (None: all).
    """

    use: Use
    threads: RowThreads
    width: int
    frame: Frame
    bases: list[Array]
    offsets: Array
    valid: Array | None
    keys: Any = None
    active: Any = None
    element_order: Any = None

    @functools.cached_property
    def mechanism(self) -> Mechanism:
        """The completion mechanism."""
        return self.use.statement.mechanism

    @functools.cached_property
    def by_engine(self) -> bool:
        """Whether the access uses the async proxy."""
        return self.use.statement.instruction.mechanism.by_engine

    def element(self, column: int) -> int:
        """The index of the element that a column of the keys belongs to."""
        position = column % self.columns
        if len(self.element_order) > 1:
            return int(self.element_order[position * len(self.element_order) // self.columns])
        return position * self.use.access.count // self.columns

    @property
    def columns(self) -> int:
        """Columns of the keys per point of the frame."""
        return int(self.keys.shape[1]) // math.prod(self.frame.shape[1:])

    @functools.cached_property
    def present(self) -> tuple[Array, Array]:
        """The keys that count, with their rows."""
        rows = np.broadcast_to(np.arange(len(self.keys))[:, None], self.keys.shape)
        return (self.keys.ravel(), rows.ravel()) if self.active is None else (self.keys[self.active], rows[self.active])

    @functools.cached_property
    def span(self) -> tuple[int, int]:
        """The lowest key, and the number of keys up to the highest."""
        keys = self.keys if self.active is None else self.keys[self.active]
        return (int(keys.min()), int(keys.max()) - int(keys.min()) + 1) if keys.size else (0, 0)

    @functools.cached_property
    def warps(self) -> Array:
        """For each key of the span, the bit set of warps that access it."""
        first, length = self.span
        result = np.zeros(length, dtype=np.uint32)
        for warp in distinct(self.threads.warp):
            rows = np.flatnonzero(self.threads.warp == warp)
            keys = self.keys[rows] if self.active is None else self.keys[rows][self.active[rows]]
            result[keys.ravel() - first] |= np.uint32(1 << int(warp))
        return result

    @functools.cached_property
    def changes(self) -> Array:
        """The keys of the span, relative to its first, at which the set of warps changes; the end is one of them."""
        inside = np.flatnonzero(self.warps[1:] != self.warps[:-1]) + 1
        return np.concatenate(([0], inside, [self.span[1]]))

    @functools.cached_property
    def distinct_threads(self) -> tuple[int, int, int] | None:
        """A key that rows of two different units access, with the rows, if there is one."""
        return self._overlap(other_unit=True)

    @functools.cached_property
    def repeated(self) -> tuple[int, int, int] | None:
        """A key that one unit accesses twice, with the rows, if there is one."""
        return self._overlap(other_unit=False)

    def _overlap(self, other_unit: bool) -> tuple[int, int, int] | None:
        first, length = self.span
        keys, rows = self.present
        unit, indices = self.threads.unit[rows], np.arange(keys.size)
        last_access = np.empty(length, dtype=np.int64)
        # The table has the last access of each key. Any other access of the key overlaps with it.
        last_access[keys - first] = indices
        last_at = last_access[keys - first]
        hits = np.flatnonzero(unit[last_at] != unit if other_unit else (last_at != indices) & (unit[last_at] == unit))
        return (int(keys[hits[0]]), int(rows[hits[0]]), int(rows[last_at[hits[0]]])) if hits.size else None

    @functools.cached_property
    def ends(self) -> tuple[Array, Array, Array]:
        """Each key with a warp that accesses it, as `key * 32 + warp`, ascending, and the lowest and highest thread of that warp."""
        keys, rows = self.present
        keys_and_warps = keys * WARP + self.threads.warp[rows]
        order = np.argsort(keys_and_warps, kind="stable")
        keys_and_warps, low, high = keys_and_warps[order], self.threads.low[rows][order], self.threads.high[rows][order]
        if not keys_and_warps.size:
            return keys_and_warps, low, high
        starts = np.flatnonzero(np.concatenate(([True], keys_and_warps[1:] != keys_and_warps[:-1])))
        return keys_and_warps[starts], np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)


@attrs.define(eq=False)
class Footprint:
    """A pattern at its shift. `atoms` are, per warp, the atoms that it accesses (none if no other access can overlap)."""

    space: Space
    pattern: Pattern
    shift_bytes: int
    atoms: Sequence[Sequence[int]] = ()

    @property
    def use(self) -> Use:
        """The access."""
        return self.pattern.use

    @property
    def shift(self) -> int:
        """The shift in grains."""
        return self.shift_bytes // self.space.grain

    @property
    def first(self) -> int:
        """The first accessed grain."""
        return self.pattern.span[0] + self.shift

    @property
    def warps(self) -> Array:
        """For each grain from the first on, the bit set of warps that access it."""
        return self.pattern.warps

    @property
    def changes(self) -> Array:
        """The grains, relative to the first, at which the set of warps changes."""
        return self.pattern.changes


class Space:
    """Memory in which addresses may overlap, with the patterns and footprints of all its accesses."""

    def __init__(self, shared: bool) -> None:
        self.shared = shared
        self.patterns: list[Pattern] = []
        self.footprints: dict[tuple[int, int], Footprint] = {}
        self.grain = 1
        self.first = 0
        self.length = 0

    def footprint(self, pattern: Pattern, shift_bytes: int) -> Footprint:
        """The footprint of a pattern at a shift; equal footprints are the same object."""
        footprint = self.footprints.get((id(pattern), shift_bytes))
        if footprint is None:
            footprint = self.footprints[id(pattern), shift_bytes] = Footprint(self, pattern, shift_bytes)
        return footprint

    def number_grains(self) -> None:
        """Number the grains of all patterns, once all patterns are known."""
        byte_starts = [self._bytes(pattern) for pattern in self.patterns]
        low = [int(np.bitwise_or.reduce(starts, axis=None)) for starts, _ in byte_starts]
        shifts = {shift for _, shift in self.footprints}
        fitting = (
            grain
            for grain in _GRAINS
            if not any(shift % grain for shift in shifts)
            and all(_whole(bits, steps, pattern, grain) for pattern, bits, (_, steps) in zip(self.patterns, low, byte_starts, strict=True))
        )
        self.grain = next(fitting, 1)  # elements of one access with equal addresses fill no grain; another check reports them
        for pattern, (starts, steps) in zip(self.patterns, byte_starts, strict=True):
            pieces = _pieces(steps, pattern.width, self.grain)
            pattern.element_order = np.argsort(steps, kind="stable")
            pattern.keys = (starts[..., None] // self.grain + pieces).reshape(len(starts), -1)
            if pattern.valid is not None:
                pattern.active = np.repeat(pattern.valid, len(pieces), axis=-1)
        self._compress()

    def _bytes(self, pattern: Pattern) -> tuple[Array, Array]:
        """The first byte at each row and point, and the byte offsets of the elements."""
        if self.shared:
            return pattern.bases[0], pattern.offsets[:, 0]
        weights, lows = self._weights
        parts = ((base - low) * weight for base, low, weight in zip(pattern.bases, lows, weights, strict=True))
        return functools.reduce(np.add, parts) * pattern.width, pattern.offsets @ np.array(weights) * pattern.width

    @functools.cached_property
    def _weights(self) -> tuple[list[int], list[int]]:
        """Strides and lower bounds that give different elements different numbers, and contiguous elements consecutive ones."""
        rank = len(self.patterns[0].bases)
        lows = [min(int(one.bases[dim].min() + one.offsets[:, dim].min()) for one in self.patterns) for dim in range(rank)]
        highs = [max(int(one.bases[dim].max() + one.offsets[:, dim].max()) for one in self.patterns) for dim in range(rank)]
        offsets = self.patterns[0].offsets
        fastest = int(np.argmax(offsets[1] != offsets[0])) if len(offsets) > 1 else 0
        weights, size = dict[int, int](), 1
        for dim in (fastest, *(other for other in range(rank) if other != fastest)):
            lows[dim] -= lows[dim] % _GRAINS[0]
            weights[dim] = size
            size *= -(-(highs[dim] - lows[dim] + 1) // _GRAINS[0]) * _GRAINS[0]
        return [weights[dim] for dim in range(rank)], lows

    def _compress(self) -> None:
        """Make keys dense, so that they can index tables."""
        footprints = [one for one in self.footprints.values() if one.pattern.span[1]]
        if not footprints:
            return
        self.first = min(one.pattern.span[0] + one.shift for one in footprints)
        self.length = max(sum(one.pattern.span) + one.shift for one in footprints) - self.first
        if self.length <= MANY:
            return
        known = distinct(np.concatenate([pattern.present[0] for pattern in self.patterns]))
        for pattern in self.patterns:
            pattern.keys = np.searchsorted(known, pattern.keys).clip(max=len(known) - 1)
            for name in ("present", "span"):
                pattern.__dict__.pop(name, None)
        self.first, self.length = 0, len(known)


def _pieces(steps: Array, width: int, grain: int) -> Array:
    """The grains, relative to the first byte, that hold the elements."""
    return distinct((steps[:, None] + np.arange(0, width, min(grain, width))) // grain)


def _whole(bits: int, steps: Array, pattern: Pattern, grain: int) -> bool:
    """Whether the elements fill whole grains at every row and point; `bits` are the bits that occur in a first byte."""
    return bits % grain == 0 and len(_pieces(steps, pattern.width, grain)) * grain == len(steps) * pattern.width


class Footprints:
    """The patterns of all accesses to memory that threads share."""

    def __init__(self, access_trace: AccessTrace, local: Mapping[str, Local]) -> None:
        self.access_trace, self.kernel, self.local = access_trace, access_trace.kernel, local
        self.ring_of_buffer = {name: ring.name for ring in access_trace.kernel.rings for name in ring.buffers}
        self.spaces: dict[str, Space] = {}
        self.row_threads: dict[Any, RowThreads] = {}
        self.issuers = issuers(access_trace.kernel)

    def space(self, buffer: str) -> Space:
        """The space of a buffer. Shared-memory buffers share one space and may overlap; each array in global memory is its own."""
        name = "" if self.kernel.buffer(buffer).memory.of_block else buffer
        if name not in self.spaces:
            self.spaces[name] = Space(not name)
        return self.spaces[name]

    def local_bytes(self, buffer: Buffer) -> int:
        """An upper bound, in whole grains, of the bytes that the local coordinates of an array in global memory span."""
        local = self.local[buffer.name]
        sizes = [(high - low) // _GRAINS[0] + 2 for low, high in zip(local.low or [0], local.high or [0], strict=True)]
        return math.prod(size * _GRAINS[0] for size in sizes) * buffer.dtype.bytes

    def threads(self, use: Use) -> RowThreads:
        """The threads that perform an access; the same object for the same kind of access."""
        issuer = self.issuers.get(id(use.statement), (self.kernel.workers, -(-self.kernel.workers // WARP)))
        kind = (
            use.access.spread,
            issuer if use.statement.ring and use.statement.mechanism.counted else None,
            use.statement.spec.level if use.statement.collective or use.access.spread else None,
            use.statement.collective and _is_issued_by_one(use.statement),
        )
        if kind not in self.row_threads:
            self.row_threads[kind] = row_threads(self.access_trace, use, issuer)
        return self.row_threads[kind]

    def parts(self, access: Access) -> tuple[Expr, ...]:
        """The expressions that locate an access. Fill indices determine the stage of a ring."""
        if access.buffer in self.ring_of_buffer:
            return access.base
        local = self.local.get(access.buffer)
        return (*access.base, access.copy) if local is None else local.parts[access.base]

    def pattern(
        self, use: Use, copy: Expr, loops: Sequence[For], fixed: Mapping[str, int], guards: Sequence[Expr], tests: Sequence[Test]
    ) -> Pattern:
        """The pattern of an access with `copy` as copy index, if `loops` are taken as a whole and other loops have their `fixed` values.

        `guards` are the conditions of the whole statement, `tests` those of single elements.
        """
        access = attrs.evolve(use.access, copy=copy)
        threads = self.threads(use)
        needed = self.access_trace.needs((*self.parts(access), *guards, *(condition for condition, _ in tests)))
        frame = self.access_trace.frame([("thread", threads.rows), *(self.access_trace.loop_axes(loops, needed) or ())], fixed)
        bases, offsets = self._bases(frame, access)
        pattern = Pattern(use, threads, self.kernel.buffer(access.buffer).dtype.bytes, frame, bases, offsets, _active(frame, guards))
        if tests:
            _one_by_one(pattern)
            inside = np.ones((*pattern.bases[0].shape[:1], math.prod(frame.shape[1:]), access.count), dtype=bool)
            for condition, elements in tests:
                inside[..., elements] &= _full(frame, condition).astype(bool)[..., None]
            pattern.valid = inside.reshape(len(inside), -1) & (True if pattern.valid is None else pattern.valid)
        elif pattern.valid is not None:
            pattern.valid = np.repeat(pattern.valid, bases[0].shape[-1] // pattern.valid.shape[-1], axis=-1)
        self.space(access.buffer).patterns.append(pattern)
        return pattern

    def _bases(self, frame: Frame, access: Access) -> tuple[list[Array], Array]:
        """The start of each row and point, and the offsets of the elements from there."""
        buffer = self.kernel.buffer(access.buffer)
        if not buffer.memory.of_block:
            parts = self.local[access.buffer].parts[access.base]
            if not parts:  # an array of one element, without dimensions
                return [_full(frame, ZERO)], np.zeros((1, 1), dtype=np.int64)
            return [_full(frame, part) for part in parts], access.table()
        width = buffer.dtype.bytes
        steps = _steps(buffer, access)
        if steps is None:
            addresses = self.access_trace.addresses(frame, access).reshape(frame.shape[0], -1)
            return [addresses * width + buffer.offset], np.zeros((1, 1), dtype=np.int64)
        first = _full(frame, buffer.address(access, access.first))
        return [first * width + buffer.offset], steps[:, None] * width


def _one_by_one(pattern: Pattern) -> None:
    """Make each element of a pattern a separate point."""
    count, points = pattern.use.access.count, math.prod(pattern.frame.shape[1:])
    if pattern.bases[0].shape[-1] == points:
        pattern.bases = [(one[..., None] + pattern.offsets[:, dim]).reshape(len(one), -1) for dim, one in enumerate(pattern.bases)]
        pattern.offsets = np.zeros((1, len(pattern.bases)), dtype=np.int64)
    if pattern.valid is not None:
        pattern.valid = np.repeat(pattern.valid, count, axis=-1)


def element_tests(use: Use) -> Iterator[Test]:
    """The conditions of single elements, each with the indices of its elements. Conditions that always hold are omitted."""
    offsets = use.access.table()
    for piece in use.pieces:
        for part in conjuncts(piece.condition):
            yield part, np.arange(piece.first, piece.first + piece.width)
    for dim, bound in enumerate(() if use.pieces else use.access.bounds):
        if bound is None:
            continue
        for step in distinct(offsets[:, dim]):
            condition = less(use.access.base[dim] + int(step), bound)
            if condition != TRUE:
                yield condition, np.flatnonzero(offsets[:, dim] == step)


def _full(frame: Frame, expression: Expr) -> Array:
    """Values at all rows and points."""
    return frame.full(expression).reshape(frame.shape[0], -1)


def _active(frame: Frame, guards: Sequence[Expr]) -> Array | None:
    values = [_full(frame, guard).astype(bool) for guard in guards]
    return functools.reduce(np.logical_and, values) if values else None


@functools.lru_cache(maxsize=8192)
def _steps(buffer: Buffer, access: Access) -> Array | None:
    """The distances of the elements from the first address of an access, if they are the same for all threads and loops; else None."""
    offsets = access.table()
    if not access.base:  # the element of an array without dimensions
        return np.zeros(len(offsets), dtype=np.int64)
    storage = access.storage or buffer.storage
    weights = _weights(storage)
    if weights is not None:
        plain = (offsets - offsets[0]) @ weights
        # A swizzle moves groups of 2**base addresses as a whole, so elements of one group keep their distances.
        if storage.swizzle is None or _in_one_group(storage, access.coordinates(access.first), plain):
            return plain
    if _starts_period(storage, access):
        addresses = storage.address(list(offsets.T))
        return addresses - addresses[0]
    first = buffer.address(access, access.first)
    steps = [constant(buffer.address(access, offset) - first) for offset in access.elements()]
    return None if None in steps else np.array(steps)


def _starts_period(storage: Storage, access: Access) -> bool:
    """Whether an access starts at a multiple of every digit of its coordinates, and of the period of the swizzle.

    The element offsets alone then determine the distances.
    """
    if not storage.layout.static or any(
        base.factor % digits[-1].step for base, digits in zip(access.base, storage.dims, strict=True) if len(digits) > 1
    ):
        return False
    period = storage.swizzle.size() if storage.swizzle is not None else 1
    return storage.plain.address(access.base).factor % period == 0


def _in_one_group(storage: Storage, first: Sequence[Expr], steps: Array) -> bool:
    """Whether elements at these distances from the first one stay within one 2**base group of the swizzle."""
    assert storage.swizzle is not None
    size = 1 << storage.swizzle.base
    return bool(steps.min() >= 0 and steps.max() < size) and storage.plain.address(first).factor % size == 0


def _weights(storage: Storage) -> Array | None:
    """The address step along each dimension before the swizzle, if it is constant; else None."""
    weights = [None if step is None else constant(step) for step in storage.steps]
    return None if None in weights else np.array(weights)


def stages(access_trace: AccessTrace, copy: Expr, ordered: frozenset[str]) -> tuple[Expr, Expr]:
    """Split a copy index into the part that ordered loops determine, equal for all threads, and the rest."""
    terms, number = linear(copy)
    moved: Expr = ZERO + number
    rest: Expr = ZERO
    for atoms, coefficient in terms:
        term = product(atoms, coefficient)
        if access_trace.roots(term) <= ordered:
            moved = moved + term
        else:
            rest = rest + term
    return access_trace.opened(moved), rest
