"""Shadow memory: who touched an address last, and which touches no barrier orders.

A `Shadow` stands for one shared or written global memory and knows addresses, threads and clocks only. The `History` of a
launch has the shadows of global memory, which all chunks share, and which statement each recorded touch belongs to.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from fireiron.sim.plan import Array, Environment, Operand, PlannedStatement


@attrs.frozen(eq=False)
class Clock:
    """The barriers that a group of threads has passed: how many, and the number of the last one that held so and so many threads.

    Barriers are numbered along the program. All threads of a block pass the same ones, so their numbers are comparable whichever
    warp runs first: what was touched at an earlier `count` than a barrier's number stands before that barrier.
    """

    count: int = 0
    last: Mapping[int, int] = attrs.field(factory=dict)

    def behind(self, threads: int) -> Clock:
        """The clock behind one more barrier, of groups of so many threads."""
        return Clock(self.count + 1, {**self.last, threads: self.count + 1})


_FROM_THE_START, _NOT_YET = -2, -1
"""In place of a clock: nobody wrote, or nobody fenced what was written."""


class Shadow:
    """Per address: the last writer and the readers since the last barrier, as least and greatest thread, with the count of the clock.

    Threads are numbered across blocks, each block from a multiple of `pitch`, a multiple of all groups that barriers hold: so a group
    is an aligned run of neighbours, and no group has threads of two blocks.
    """

    def __init__(self, size: int, pitch: int) -> None:
        self.pitch = pitch
        self.writer = [np.full(size, -1, np.int64) for _ in range(2)]
        self.reader = [np.full(size, -1, np.int64) for _ in range(2)]
        self.write_clock, self.read_clock = (np.full(size, -1, np.int64) for _ in range(2))
        self.write_log = np.zeros(size, np.int32)
        self.read_log = [np.zeros(size, np.int32) for _ in range(2)]
        self.tags = np.zeros(size, np.int32)
        self.flight: Array | None = None
        self.adder: list[Array] = []
        self.fenced: Array | None = None
        self.lent: Array | None = None

    def strangers_to(self, kind: str) -> tuple[str, ...]:
        """The kinds of former touches that a read, a write or an atomic addition must be ordered with; additions need no order."""
        others = {"read": ("write", "add"), "write": ("write", "read", "add"), "add": ("write", "read")}[kind]
        return others if self.adder else tuple(one for one in others if one != "add")

    def touches(self, kind: str) -> tuple[Sequence[Array], Array, Sequence[Array]]:
        """Least and greatest thread, the clock and the logs of former touches of a kind."""
        if kind == "write":
            return self.writer, self.write_clock, (self.write_log, self.write_log)
        return (self.reader, self.read_clock, self.read_log) if kind == "read" else (self.adder, self.add_clock, self.add_log)

    def conflicts(self, old: Sequence[Array], clocks: Array, keys: Array, low: Array, high: Array, clock: Clock) -> Array:
        """Positions whose threads are not ordered with those recorded."""
        then = clocks[keys]
        if (then < 0).all():
            return ()
        least, greatest = np.minimum(old[0][keys], low), np.maximum(old[1][keys], high)
        return np.flatnonzero((then >= 0) & (least != greatest) & ~_ordered(then, least, greatest, clock))

    def read(self, keys: Array, low: Array, high: Array, clock: Clock, log: int) -> None:
        """Record readers; those that a barrier has ordered before these are forgotten."""
        self._join("read", keys, low, high, clock, log)

    def add(self, keys: Array, low: Array, high: Array, clock: Clock, log: int) -> None:
        """Record those who add atomically, as readers are."""
        if not self.adder:
            self.adder = [np.full(self.tags.size, -1, np.int64) for _ in range(2)]
            self.add_clock = np.full(self.tags.size, -1, np.int64)
            self.add_log = [np.zeros(self.tags.size, np.int32) for _ in range(2)]
        self._join("add", keys, low, high, clock, log)

    def _join(self, kind: str, keys: Array, low: Array, high: Array, clock: Clock, log: int) -> None:
        sides, clocks, logs = self.touches(kind)
        former, then = [one[keys] for one in sides], clocks[keys]
        # Whoever is ordered behind the new ones is ordered behind these too, so two ends of those that count now are enough.
        old = (then < 0) | _ordered(then, np.minimum(former[0], low), np.maximum(former[1], high), clock)
        lower, higher = old | (low <= former[0]), old | (high >= former[1])
        for side, (mine, better) in enumerate(((low, lower), (high, higher))):
            sides[side][keys] = np.where(better, mine, former[side])
            logs[side][keys] = np.where(better, log, logs[side][keys])
        clocks[keys] = clock.count

    def write(self, keys: Array, low: Array, high: Array, clock: Clock, log: int) -> None:
        """Record writers."""
        self.writer[0][keys], self.writer[1][keys] = low, high
        self.write_clock[keys], self.write_log[keys] = clock.count, log

    def hide(self, keys: Array) -> None:
        """Record that the last writes, ordinary ones, are not there for engines yet."""
        if self.fenced is None:
            self.fenced = np.full(self.tags.size, _FROM_THE_START, np.int64)
        self.fenced[keys] = _NOT_YET

    def fence(self, keys: Array, clock: Clock) -> None:
        """Record that the writers fenced what they wrote."""
        assert self.fenced is not None
        self.fenced[keys] = clock.count

    def hidden(self, keys: Array, low: Array, high: Array, clock: Clock) -> Array:
        """Positions of which an engine's readers cannot rely on the last write: no fence, or no barrier behind it."""
        if self.fenced is None:
            return ()
        then = self.fenced[keys]
        least, greatest = np.minimum(self.writer[0][keys], low), np.maximum(self.writer[1][keys], high)
        late = (then == _NOT_YET) | ((then >= 0) & (least != greatest) & ~_ordered(then, least, greatest, clock))
        return np.flatnonzero(late)

    def lend(self, keys: Array, log: int) -> None:
        """Record that an engine reads these addresses from now on."""
        if self.lent is None:
            self.lent = np.zeros(self.tags.size, np.int32)
            self.reader_under_way = np.zeros(self.tags.size, np.int32)
        self.lent[keys] += 1
        self.reader_under_way[keys] = log

    def give_back(self, keys: Array) -> None:
        """Record that one engine has read them."""
        assert self.lent is not None
        self.lent[keys] -= 1

    def being_read(self, keys: Array) -> Array:
        """Positions of addresses that some engine reads."""
        return () if self.lent is None else np.flatnonzero(self.lent[keys] > 0)

    def depart(self, keys: Array, log: int) -> None:
        """Record that an asynchronous copy to these addresses is under way."""
        if self.flight is None:
            self.flight = np.full(self.tags.size, -1, np.int64)
        self.flight[keys] = log

    def arrive(self, keys: Array) -> None:
        """Record that the copy is complete."""
        if self.flight is not None:
            self.flight[keys] = -1

    def under_way(self, keys: Array) -> Array:
        """Positions of addresses to which a copy is under way."""
        return () if self.flight is None else np.flatnonzero(self.flight[keys] >= 0)

    def gathered(self, keys: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
        """Distinct addresses with the least and greatest thread of each."""
        # Of addresses that stand twice the last number stays, so the numbers are read back unchanged only where all are distinct:
        # the usual case, and much cheaper than sorting.
        numbers = np.arange(keys.size, dtype=np.int32)
        self.tags[keys] = numbers
        if (self.tags[keys] == numbers).all():
            return keys, low, high
        order = np.argsort(keys, kind="stable")
        keys, low, high = keys[order], low[order], high[order]
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        return keys[starts], np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)


def _ordered(then: Array, least: Array, greatest: Array, clock: Clock) -> Array:
    """Where a barrier that holds all threads from least to greatest was passed since `then`."""
    # Groups are aligned runs of neighbours: one that holds these two holds all between.
    found = np.zeros(then.shape, bool)
    for threads, number in clock.last.items():
        found |= (then < number) & (least // threads == greatest // threads)
    return found


class History:
    """What the chunks of a launch share: shadows of written parameters by name, a lock, and a log of recorded touches."""

    def __init__(self, shadows: dict[str, Shadow]) -> None:
        self.shadows = shadows
        self.log: list[tuple[PlannedStatement, Operand, Environment]] = []
        self.lock = threading.RLock()

    def note(self, site: PlannedStatement, operand: Operand, env: Environment) -> int:
        """A number under which the statement and its loop values are found again."""
        self.log.append((site, operand, site.place(env)))
        return len(self.log) - 1
