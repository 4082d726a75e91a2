"""Places: where an access lies in memory, as index arrays over elements, loops, threads and blocks.

A place reads (`get`), writes (`put`), and tells and notes what was written (`defined`, `define`). There are four kinds: a
strided window of registers, rows that all blocks share, positions one by one, and the parts of a distributed array.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import Mechanism
from fireiron.sim.memory import Memory
from fireiron.sim.plan import Array, Environment, PlannedStatement
from fireiron.sim.shadow import Clock


@attrs.define(eq=False)
class PendingGroups:
    """Copies, or products, of a group of threads: those issued since the last commit, and groups not waited for yet."""

    issued: list[Any] = attrs.field(factory=list)
    groups: list[list[Any]] = attrs.field(factory=list)

    def commit(self) -> None:
        """What was issued becomes a group."""
        self.groups.append(self.issued)
        self.issued = []

    def taken(self) -> list[Any]:
        """All that is under way, which from now on something else waits for."""
        found = [copy for group in (*self.groups, self.issued) for copy in group]
        self.groups, self.issued = [[] for _ in self.groups], []
        return found

    def arrived(self, pending: int) -> list[Any]:
        """The copies of all groups but the `pending` last ones, which are under way no more."""
        count = max(len(self.groups) - pending, 0)
        done, self.groups = self.groups[:count], self.groups[count:]
        return [copy for group in done for copy in group]


@attrs.define(eq=False)
class PendingMma:
    """A product under way: how many groups of threads have yet to wait for it, the registers it uses, each with whether it writes them,
    and what happens when all have.

    `stages` are those of rings that it reads.
    """

    waiting: int
    registers: frozenset[tuple[str, bool]]
    done: Callable[[Clock], None]
    stages: frozenset[tuple[str, int]] = frozenset()


@attrs.define(eq=False)
class ThreadGroup:
    """Threads that run together: all of a block, or a warp; or the warps that are its `members`, for one statement.

    `touched` are the registers that they touched by ordinary statements since their last fence, and `fenced` is whether there was one;
    `busy` are those of each product under way, with whether it writes them;
    `held` are the turns of rings that they acquired and did not release; `unfenced` are the places in shared memory that they wrote since
    the last fence of the proxy; `meetings` counts the barriers of the cluster that they passed; `apart` are the stages of rings that lanes
    read by themselves since they last met. Of stages of rings, `filled` are those that they said to be full since they last acquired them
    empty; of stages of buffers in rings, `unfenced_stages` are those that they wrote since the last fence of the proxy, and `hidden` those
    that they acquired full and that engines may not read before a fence of theirs.
    """

    threads: Array
    environment: Environment
    clock: Clock = attrs.field(factory=Clock)
    places: dict[Any, Any] = attrs.field(factory=dict)
    parts: dict[Any, Any] = attrs.field(factory=dict)
    own: dict[Any, ThreadGroup] = attrs.field(factory=dict)
    seats: dict[Any, Any] = attrs.field(factory=dict)
    flights: dict[Mechanism, PendingGroups] = attrs.field(factory=lambda: collections.defaultdict(PendingGroups))
    members: tuple[ThreadGroup, ...] = ()
    touched: set[str] = attrs.field(factory=set)
    fenced: bool = False
    busy: list[tuple[str, bool]] = attrs.field(factory=list)
    held: set[Any] = attrs.field(factory=set)
    unfenced: list[Array] = attrs.field(factory=list)
    meetings: int = 0
    apart: set[tuple[str, int]] = attrs.field(factory=set)
    filled: set[tuple[str, int]] = attrs.field(factory=set)
    unfenced_stages: set[tuple[str, int]] = attrs.field(factory=set)
    hidden: set[tuple[str, int]] = attrs.field(factory=set)


class Window:
    """Registers with the same numbers in all threads: a strided window, updated in place."""

    def __init__(self, memory: Memory, numbers: Array, threads: int, group: ThreadGroup) -> None:
        self.memory, self.rows = memory, numbers
        # Registers of one number lie side by side, a row a thread: a step of the number is a step over all threads.
        self.start, self.steps = int(numbers.flat[0]), steps_of(numbers)
        self.shape = (*numbers.shape, len(group.threads), memory.width)
        self.threads, self.first = threads, int(group.threads[0])
        self.data = self._window(memory.data)

    def _window(self, data: Array) -> Array:
        row = data.strides[0]
        strides = (*(step * self.threads * row for step in self.steps or ()), row, data.strides[1])
        raw = data.view(f"u{data.itemsize}")  # as_strided knows NumPy's own types only
        return np.lib.stride_tricks.as_strided(raw[self.start * self.threads + self.first :], self.shape, strides).view(data.dtype)

    def get(self) -> Array:
        return self.data

    def put(self, values: Array) -> None:
        self.data[...] = values

    def defined(self) -> Array:
        return self._window(self.memory.defined)

    def define(self) -> None:
        self._window(self.memory.defined)[...] = True


def steps_of(numbers: Array) -> tuple[int, ...] | None:
    """The step of an array along each axis, if it is affine in its indices."""
    first = int(numbers.flat[0])
    steps = []
    total: Array = np.int64(first)
    for axis, size in enumerate(numbers.shape):
        index = tuple(1 if other == axis else 0 for other in range(numbers.ndim))
        step = int(numbers[index]) - first if size > 1 else 0
        steps.append(step)
        total = total + (np.arange(size) * step).reshape([-1 if other == axis else 1 for other in range(numbers.ndim)])
    return tuple(steps) if np.array_equal(np.broadcast_to(total, numbers.shape), numbers) else None


class Rows:
    """Rows that are the same in all blocks: axes elements, loops, threads; a value is a row, over blocks."""

    def __init__(self, memory: Memory, rows: Array) -> None:
        self.memory, self.rows = memory, rows
        self.shape = (*rows.shape, memory.width)
        self.touched: Any = None

    def get(self) -> Array:
        memory = self.memory
        if memory.width == 1:
            return memory.flat.take(self.rows).reshape(self.shape)
        return memory.data.take(self.rows, axis=0)

    def put(self, values: Array) -> None:
        if self.memory.width == 1:
            self.memory.flat[self.rows] = values[..., 0]
        else:
            self.memory.data[self.rows] = values

    def defined(self) -> Array:
        assert self.memory.defined is not None
        return self.memory.defined.take(self.rows, axis=0)

    def define(self) -> None:
        assert self.memory.defined is not None
        self.memory.defined[self.rows] = True

    def masked(self) -> Array:
        """Which elements are not read."""
        return (self.rows == self.memory.zero)[..., None]


class Flat:
    """Positions in a flat array: axes elements, loops, threads, blocks."""

    def __init__(self, memory: Memory, rows: Array) -> None:
        self.memory, self.rows = memory, rows
        self.shape = rows.shape
        self.touched: Any = None

    def get(self) -> Array:
        return self.memory.flat.take(self.rows)

    def put(self, values: Array) -> None:
        self.memory.flat[self.rows] = values

    def defined(self) -> Array:
        assert self.memory.defined is not None
        return self.memory.defined.reshape(-1).take(self.rows)

    def define(self) -> None:
        assert self.memory.defined is not None
        self.memory.defined.reshape(-1)[self.rows] = True

    def masked(self) -> Array:
        """Which elements are not read."""
        return self.rows // self.memory.width == self.memory.zero


class CoordinateValues:
    """Coordinates of a dimension, which lie nowhere: axes elements, loops, threads, blocks."""

    def __init__(self, values: Array, memory: Memory) -> None:
        self.values, self.memory = values.astype(np.int32), memory
        self.rows, self.shape = values, values.shape
        self.touched: Any = None

    def get(self) -> Array:
        return self.values

    def put(self, values: Array) -> None:
        raise SimulationError(f"coordinates are written, as if they lay in memory: {values.shape}")

    def defined(self) -> Array:
        return np.ones(self.shape, bool)

    def define(self) -> None:
        raise SimulationError("coordinates are written, as if they lay in memory")


class DistributedPart:
    """A part of a distributed array, whole in its unit of threads: where each element is read, and all places of each.

    `rows` is where an element (by unit) is read; `targets` and `sources` are rows to write with the elements they take.
    """

    def __init__(self, memory: Memory, rows: Array, targets: Array, sources: Array) -> None:
        self.memory, self.rows, self.targets, self.sources = memory, rows, targets, sources
        self.shape = (*rows.shape, memory.width)

    def get(self) -> Array:
        return self.memory.data.take(self.rows, axis=0)

    def put(self, values: Array) -> None:
        self.memory.data[self.targets] = np.broadcast_to(values, self.shape).reshape(-1, self.memory.width)[self.sources]

    def defined(self) -> Array:
        assert self.memory.defined is not None
        return self.memory.defined.take(self.rows, axis=0)

    def define(self) -> None:
        assert self.memory.defined is not None
        self.memory.defined[self.targets] = True


Location: TypeAlias = "Window | Rows | Flat | DistributedPart | CoordinateValues"


class OverlappingWrites(Exception):
    """Turns of a loop write the same element: it cannot be an array axis."""


def vector_environment(site: PlannedStatement, env: Environment) -> Environment:
    """The environment with loops as axes in front of threads and blocks."""
    if not site.loops:  # names of its own it has only inside of these
        return env
    result = dict(env)
    count = len(site.loops)
    for axis, (name, extent) in enumerate(site.loops):
        size = int(np.asarray(extent(env)).flat[0])
        result[name] = np.arange(size).reshape((1,) * axis + (size,) + (1,) * (count - axis + 1))
    for name, value in site.lets:
        result[name] = value(result)
    return result


def pick(values: Array, index: tuple[int, ...]) -> int:
    """A value of an array that is broadcast to the shape of the index."""
    values = np.asarray(values)
    index = index[len(index) - values.ndim :]
    return int(values[tuple(min(one, size - 1) for one, size in zip(index, values.shape, strict=True))])


def first_true(bad: Array, site: PlannedStatement, group: ThreadGroup) -> tuple[tuple[int, ...], int, int, dict[str, int]]:
    """The first true position: its index, thread, block in the chunk, and values of the loops that are axes."""
    index = tuple(int(one) for one in np.argwhere(bad)[0])
    loops = {name: index[1 + axis] for axis, (name, _) in enumerate(site.loops)}
    return index, int(group.threads[index[-2]]), index[-1], loops
