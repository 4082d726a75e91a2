"""Shadow memory: the last accesses of each address, and which of them no barrier orders.

A `Shadow` covers one shared or written global memory, in terms of addresses, threads and clocks only. The `History` of a launch holds the
shadows of global memory, which all batches share, and the statement of each recorded access.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from fireiron.errors import SimulationError
from fireiron.sim.plan import Array, Environment, Operand, PlannedStatement


@attrs.frozen(eq=False)
class Clock:
    """The barriers that a group of threads has passed: their count, and the number of the last one by the number of threads it spans.

    Barriers are numbered along the program. All threads of a block pass the same ones, so numbers are comparable, whichever warp runs
    first: an access at an earlier `count` than a barrier's number precedes that barrier.

    `known` are the accesses of other blocks that precede the next ones of this block: for each block, those before a number of barriers.
    `copies` are those of warps that copy, of any block: for each warp of the launch, those before a number of its barriers.
    """

    count: int = 0
    last: Mapping[int, int] = attrs.field(factory=dict)
    known: Mapping[int, int] = attrs.field(factory=dict)
    copies: Mapping[int, int] = attrs.field(factory=dict)

    def after(self, threads: int) -> Clock:
        """The clock after one more barrier, of groups of `threads` threads."""
        return Clock(self.count + 1, {**self.last, threads: self.count + 1}, self.known, self.copies)

    def after_copies(self, known: Mapping[int, int]) -> Clock:
        """The clock after a wait that orders the accesses of warps: for each warp, those before a number of its barriers."""
        later = {warp: max(count, self.copies.get(warp, 0)) for warp, count in known.items()}
        return attrs.evolve(self, copies={**self.copies, **later}) if later else self


_NEVER_WRITTEN, _UNFENCED = -2, -1
"""Special clock values: never written, or written and not fenced."""


WARP, WARPGROUP = 32, 128
"""Threads of a warp and of a warpgroup."""


class Shadow:
    """Per address: the last writer and the readers since the last barrier, as lowest and highest thread, with the clock count.

    Threads are numbered across blocks. Each block starts at a multiple of `pitch`, which is a multiple of all barrier group sizes. So a
    group is an aligned range of threads, and no group has threads of two blocks.
    """

    def __init__(self, size: int, pitch: int, ordered_adds: bool = False) -> None:
        self.pitch, self.ordered_adds = pitch, ordered_adds
        self.writer = [np.full(size, -1, np.int64) for _ in range(2)]
        self.reader = [np.full(size, -1, np.int64) for _ in range(2)]
        self.write_clock, self.read_clock = (np.full(size, -1, np.int64) for _ in range(2))
        self.write_log = np.zeros(size, np.int32)
        self.read_log = [np.zeros(size, np.int32) for _ in range(2)]
        self.tags = np.zeros(size, np.int32)
        self.copies_in_flight: Array | None = None
        self.adder: list[Array] = []
        self.fenced: Array | None = None
        self.reads_in_flight: Array | None = None

    def conflicting_kinds(self, kind: str) -> tuple[str, ...]:
        """The kinds of earlier accesses that a read, a write or an atomic addition must be ordered with.

        Additions need no mutual order, unless the kernel orders them.
        """
        adds = ("write", "read", "add") if self.ordered_adds else ("write", "read")
        others = {"read": ("write", "add"), "write": ("write", "read", "add"), "add": adds}[kind]
        return others if self.adder else tuple(one for one in others if one != "add")

    def last_accesses(self, kind: str) -> tuple[Sequence[Array], Array, Sequence[Array]]:
        """Lowest and highest thread, the clock and the logs of earlier accesses of a kind."""
        if kind == "write":
            return self.writer, self.write_clock, (self.write_log, self.write_log)
        return (self.reader, self.read_clock, self.read_log) if kind == "read" else (self.adder, self.add_clock, self.add_log)

    def conflicts(self, old: Sequence[Array], clocks: Array, keys: Array, low: Array, high: Array, clock: Clock) -> Array:
        """Positions whose threads are not ordered with the recorded ones."""
        recorded = clocks[keys]
        if (recorded < 0).all():
            return ()
        lowest, highest = np.minimum(old[0][keys], low), np.maximum(old[1][keys], high)
        late = (recorded >= 0) & (lowest != highest) & ~_ordered(recorded, lowest, highest, clock, self.pitch)
        return np.flatnonzero(late & ~_copied(recorded, old[0][keys], old[1][keys], clock) if clock.copies else late)

    def read(self, keys: Array, low: Array, high: Array, clock: Clock, log: int) -> None:
        """Record readers; drop those that a barrier has ordered before."""
        self._join("read", keys, low, high, clock, log)

    def add(self, keys: Array, low: Array, high: Array, clock: Clock, log: int) -> None:
        """Record atomic additions, like readers."""
        if not self.adder:
            self.adder = [np.full(self.tags.size, -1, np.int64) for _ in range(2)]
            self.add_clock = np.full(self.tags.size, -1, np.int64)
            self.add_log = [np.zeros(self.tags.size, np.int32) for _ in range(2)]
        self._join("add", keys, low, high, clock, log)

    def _join(self, kind: str, keys: Array, low: Array, high: Array, clock: Clock, log: int) -> None:
        sides, clocks, logs = self.last_accesses(kind)
        previous, recorded = [one[keys] for one in sides], clocks[keys]
        # Any thread ordered after the new accesses is ordered after these too, so the two ends of the current accesses suffice.
        old = (recorded < 0) | _ordered(recorded, np.minimum(previous[0], low), np.maximum(previous[1], high), clock, self.pitch)
        old |= _copied(recorded, previous[0], previous[1], clock) if clock.copies else False
        lower, higher = old | (low <= previous[0]), old | (high >= previous[1])
        for side, (own, better) in enumerate(((low, lower), (high, higher))):
            sides[side][keys] = np.where(better, own, previous[side])
            logs[side][keys] = np.where(better, log, logs[side][keys])
        clocks[keys] = clock.count

    def write(self, keys: Array, low: Array, high: Array, clock: Clock, log: int) -> None:
        """Record writers."""
        self.writer[0][keys], self.writer[1][keys] = low, high
        self.write_clock[keys], self.write_log[keys] = clock.count, log

    def mark_unfenced(self, keys: Array) -> None:
        """Record that the last writes, through the generic proxy, are not yet visible to the async proxy."""
        if self.fenced is None:
            self.fenced = np.full(self.tags.size, _NEVER_WRITTEN, np.int64)
        self.fenced[keys] = _UNFENCED

    def fence(self, keys: Array, clock: Clock) -> None:
        """Record that the writers fenced their writes."""
        assert self.fenced is not None
        self.fenced[keys] = clock.count

    def unfenced(self, keys: Array, low: Array, high: Array, clock: Clock) -> Array:
        """Positions at which async-proxy readers may not see the last write: no fence, or no barrier after it."""
        if self.fenced is None:
            return ()
        recorded = self.fenced[keys]
        lowest, highest = np.minimum(self.writer[0][keys], low), np.maximum(self.writer[1][keys], high)
        late = (recorded == _UNFENCED) | ((recorded >= 0) & (lowest != highest) & ~_ordered(recorded, lowest, highest, clock, self.pitch))
        return np.flatnonzero(late)

    def start_read(self, keys: Array, log: int) -> None:
        """Record that the async proxy reads these addresses from now on."""
        if self.reads_in_flight is None:
            self.reads_in_flight = np.zeros(self.tags.size, np.int32)
            self.reader_in_flight = np.zeros(self.tags.size, np.int32)
        self.reads_in_flight[keys] += 1
        self.reader_in_flight[keys] = log

    def end_read(self, keys: Array) -> None:
        """Record that one such read has completed."""
        assert self.reads_in_flight is not None
        self.reads_in_flight[keys] -= 1

    def in_read(self, keys: Array) -> Array:
        """Positions of addresses that the async proxy is reading."""
        return () if self.reads_in_flight is None else np.flatnonzero(self.reads_in_flight[keys] > 0)

    def start_copy(self, keys: Array, log: int) -> None:
        """Record that an asynchronous copy to these addresses is in flight."""
        if self.copies_in_flight is None:
            self.copies_in_flight = np.full(self.tags.size, -1, np.int64)
        self.copies_in_flight[keys] = log

    def end_copy(self, keys: Array) -> None:
        """Record that the copy has completed."""
        if self.copies_in_flight is not None:
            self.copies_in_flight[keys] = -1

    def in_copy(self, keys: Array) -> Array:
        """Positions of addresses with a copy in flight."""
        return () if self.copies_in_flight is None else np.flatnonzero(self.copies_in_flight[keys] >= 0)

    def merged(self, keys: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
        """Distinct addresses with the lowest and highest thread of each."""
        # For repeated addresses the last number wins, so the numbers read back unchanged only if all addresses are distinct: the usual
        # case, and much cheaper to test than sorting.
        numbers = np.arange(keys.size, dtype=np.int32)
        self.tags[keys] = numbers
        if (self.tags[keys] == numbers).all():
            return keys, low, high
        order = np.argsort(keys, kind="stable")
        keys, low, high = keys[order], low[order], high[order]
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        return keys[starts], np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)


def _ordered(recorded: Array, lowest: Array, highest: Array, clock: Clock, pitch: int) -> Array:
    """Where a barrier that spans all threads from lowest to highest was passed since `recorded`, or a semaphore ordered their blocks."""
    # Groups are aligned ranges: one that spans both ends spans all threads between.
    ordered = np.zeros(recorded.shape, bool)
    for threads, number in clock.last.items():
        ordered |= (recorded < number) & (lowest // threads == highest // threads)
    if clock.known:
        first, last = lowest // pitch, highest // pitch
        known = np.zeros(max(*clock.known, int(last.max(initial=0))) + 1, np.int64)
        known[list(clock.known)] = list(clock.known.values())
        ordered |= (first != last) & (recorded < np.minimum(known[np.maximum(first, 0)], known[np.maximum(last, 0)]))
    return ordered


def _copied(recorded: Array, first: Array, last: Array, clock: Clock) -> Array:
    """Where a wait for counts of warps ordered the recorded accesses before the next ones: those of all warps from first to last."""
    start, end = np.maximum(first // WARP, 0), np.maximum(last // WARP, 0)
    known = np.zeros(max(*clock.copies, int(end.max(initial=0))) + 1, np.int64)
    known[list(clock.copies)] = list(clock.copies.values())
    # The warps of a warpgroup count what it has stored together.
    least = np.minimum(known[start], known[end])
    spread = np.flatnonzero(first // WARPGROUP != last // WARPGROUP)
    if spread.size:
        pairs, places = np.unique(np.stack((start[spread], end[spread])), axis=1, return_inverse=True)
        least[spread] = np.array([known[low : high + 1].min() for low, high in pairs.T])[places.ravel()]
    return recorded < least


class StoredParts(Shadow):
    """The parts of an array that GPUs store, and that kernels before each launch overwrite.

    A warp may read a part if it knows that the GPU has started the launch. A GPU may overwrite its part if it knows all reads.
    """

    def __init__(self, name: str, size: int, pitch: int, places: Array) -> None:
        super().__init__(size, pitch)
        self.name = name
        self.owner = np.full(size, -1, np.int64)
        for gpu, part in enumerate(places):
            self.owner[part] = gpu
        self.fills = [-1] * len(places)
        self.readers: list[dict[int, int]] = [{} for _ in places]

    def overwrite(self, gpu: int, fill: int, known: Mapping[int, int]) -> None:
        """Record that a kernel before a launch has overwritten a part, which `fill` identifies, like a warp that did it.

        Raises: SimulationError if the GPU does not know all reads of the part before.
        """
        late = [warp for warp, count in self.readers[gpu].items() if known.get(warp, 0) <= count]
        if late:
            what = f"{self.name}: GPU {gpu} ends its launch while other GPUs may still read its part"
            raise SimulationError(what, legal="a wait for them")
        self.fills[gpu], self.readers[gpu] = fill, {}

    def conflicts(self, old: Sequence[Array], clocks: Array, keys: Array, low: Array, high: Array, clock: Clock) -> Array:
        return ()

    def read(self, keys: Array, low: Array, high: Array, clock: Clock, log: int) -> None:
        for gpu in np.unique(self.owner[keys]):
            if clock.copies.get(self.fills[gpu], 0) < 1:
                raise SimulationError(f"{self.name}: the part of GPU {gpu} is read before it has started the launch", legal="a wait for it")
            for warp in np.unique(np.concatenate((low, high)) // WARP):
                self.readers[gpu][int(warp)] = max(clock.count, self.readers[gpu].get(int(warp), 0))


class History:
    """What the batches of a launch share: shadows of written parameters by name, a lock, and a log of recorded accesses."""

    def __init__(self, shadows: dict[str, Shadow]) -> None:
        self.shadows = shadows
        self.log: list[tuple[PlannedStatement, Operand, Environment]] = []
        self.lock = threading.RLock()

    def note(self, site: PlannedStatement, operand: Operand, env: Environment) -> int:
        """A number that identifies the statement and its loop values."""
        self.log.append((site, operand, site.loop_values(env)))
        return len(self.log) - 1
