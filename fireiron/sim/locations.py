"""Locations: the memory that an access covers, as index arrays over elements, loops, threads and blocks.

A location reads (`get`) and writes (`put`) values. It reports which values were written (`defined`), and records a write (`define`). The
kinds are a strided window of registers, rows that all blocks share, individual positions, parts of distributed arrays, and coordinates.
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
    """Copies or MMAs of a group of threads: those issued since the last commit, and the committed groups not waited for."""

    issued: list[Any] = attrs.field(factory=list)
    groups: list[list[Any]] = attrs.field(factory=list)

    def commit(self) -> None:
        """Make a group of the operations issued since the last commit."""
        self.groups.append(self.issued)
        self.issued = []

    def take_all(self) -> list[Any]:
        """Remove and return all operations in flight; from now on the caller waits for them."""
        operations = [copy for group in (*self.groups, self.issued) for copy in group]
        self.groups, self.issued = [[] for _ in self.groups], []
        return operations

    def complete_groups(self, pending: int) -> list[Any]:
        """Remove and return the operations of all groups but the last `pending` ones."""
        count = max(len(self.groups) - pending, 0)
        done, self.groups = self.groups[:count], self.groups[count:]
        return [copy for group in done for copy in group]


@attrs.define(eq=False)
class PendingMma:
    """An MMA in flight, or another operation that reads its inputs late.

    `waiting` is the number of thread groups that have yet to wait for it. `registers` are the registers that it uses, each with whether the
    MMA writes them. `done` is called when all groups have waited. `stages` are the ring stages that it reads.
    """

    waiting: int
    registers: frozenset[tuple[str, bool]]
    done: Callable[[Clock], None]
    stages: frozenset[tuple[str, int]] = frozenset()


@attrs.define(eq=False)
class ThreadGroup:
    """Threads that run together: all of a block, or a warp; or, for one statement, the warps that are its `members`.

    Registers: `accessed` are those that other statements accessed since the last `wgmma.fence`, `fenced` records whether there was one, and
    `conflicting` are those of each MMA in flight, with whether it writes them. Rings: `owned` are the fills that the group acquired and did
    not release, `read_by_lanes` the stages that lanes have read individually since they last synchronized, `filled` the stages that the
    group marked full since it last acquired them empty. Async proxy: `unfenced_reads` are the stages that the group has read by loads of
    threads since the last proxy fence or the last completed wgmma. `unfenced` are the shared-memory locations that the group wrote since
    the last proxy fence, `unfenced_stages` the buffer stages that it wrote since then, and `hidden_stages` the stages that it acquired as
    full but that the async proxy may not read before a fence by the group. `cluster_barriers` counts the cluster barriers that it passed.
    `exits` records that the block exits, because another block continues its work.
    """

    threads: Array
    environment: Environment
    clock: Clock = attrs.field(factory=Clock)
    location_cache: dict[Any, Any] = attrs.field(factory=dict)
    part_cache: dict[Any, Any] = attrs.field(factory=dict)
    leaders: dict[Any, ThreadGroup] = attrs.field(factory=dict)
    lane_positions: dict[Any, Any] = attrs.field(factory=dict)
    in_flight: dict[Mechanism, PendingGroups] = attrs.field(factory=lambda: collections.defaultdict(PendingGroups))
    members: tuple[ThreadGroup, ...] = ()
    accessed: set[str] = attrs.field(factory=set)
    fenced: bool = False
    conflicting: list[tuple[str, bool]] = attrs.field(factory=list)
    owned: set[Any] = attrs.field(factory=set)
    unfenced: list[Array] = attrs.field(factory=list)
    cluster_barriers: int = 0
    exits: bool = False
    read_by_lanes: set[tuple[str, int]] = attrs.field(factory=set)
    filled: set[tuple[str, int]] = attrs.field(factory=set)
    unfenced_stages: set[tuple[str, int]] = attrs.field(factory=set)
    unfenced_reads: set[tuple[str, int]] = attrs.field(factory=set)
    hidden_stages: set[tuple[str, int]] = attrs.field(factory=set)


class Window:
    """Registers with the same indices in all threads: a strided window, updated in place."""

    def __init__(self, memory: Memory, numbers: Array, threads: int, group: ThreadGroup) -> None:
        self.memory, self.rows = memory, numbers
        # Registers of one index are contiguous, one row per thread: a step of the index is a step over all threads.
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
    """The step of an array along each axis, if it is affine in its indices; else None."""
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
    """Rows that are the same in all blocks: axes elements, loops, threads; a value is a row over blocks."""

    def __init__(self, memory: Memory, rows: Array) -> None:
        self.memory, self.rows = memory, rows
        self.shape = (*rows.shape, memory.width)
        self.accessed: Any = None

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
        """The elements that are not read."""
        return (self.rows == self.memory.zero)[..., None]


class Flat:
    """Positions in a flat array: axes elements, loops, threads, blocks."""

    def __init__(self, memory: Memory, rows: Array) -> None:
        self.memory, self.rows = memory, rows
        self.shape = rows.shape
        self.accessed: Any = None

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
        """The elements that are not read."""
        return self.rows // self.memory.width == self.memory.zero


class CoordinateValues:
    """Coordinates of a dimension, which are not stored: axes elements, loops, threads, blocks."""

    def __init__(self, values: Array, memory: Memory) -> None:
        self.values, self.memory = values.astype(np.int32), memory
        self.rows, self.shape = values, values.shape
        self.accessed: Any = None

    def get(self) -> Array:
        return self.values

    def put(self, values: Array) -> None:
        raise SimulationError("a statement writes a coordinate tensor, which is read-only")

    def defined(self) -> Array:
        return np.ones(self.shape, bool)

    def define(self) -> None:
        raise SimulationError("a statement writes a coordinate tensor, which is read-only")


class DistributedPart:
    """A part of a distributed array that is complete within its unit of threads, with all copies of each element.

    `rows` are the rows from which the elements are read, by unit. `targets` are the rows to write, and `sources` the elements that they
    get.
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
    """Iterations of a loop write the same element, so the loop cannot be an array axis."""


def vector_environment(site: PlannedStatement, env: Environment) -> Environment:
    """The environment with loops as axes before threads and blocks."""
    if not site.loops:  # names bound at the statement exist only inside these loops
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
    """The first true position: its index, thread, block in the batch, and values of the vector loops."""
    index = tuple(int(one) for one in np.argwhere(bad)[0])
    loops = {name: index[1 + axis] for axis, (name, _) in enumerate(site.loops)}
    return index, int(group.threads[index[-2]]), index[-1], loops
