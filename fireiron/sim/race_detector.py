"""Detect races and uninitialized reads in a batch: compare each access with shadow memory, then record it.

Two accesses race if no barrier between them orders their threads. Error messages contain the statements, loops, threads and elements of
both accesses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fireiron.errors import SimulationError
from fireiron.sim.block_batch import BlockBatch
from fireiron.sim.locations import Location, Rows, ThreadGroup, first_true, pick, vector_environment
from fireiron.sim.plan import Array, Environment, Operand, PlannedStatement
from fireiron.sim.shadow import Clock, History, Shadow


class _Repeated:
    """Counts the accesses of one statement to one shadow, without any barrier or other statement between, by location.

    Asynchronous operations and fences can be ignored: the statement that started a copy, or an MMA, has accessed the shadow.
    """

    def __init__(self, site: Any, clock: Clock, group: Any) -> None:
        self.site, self.clock, self.group = site, clock, group
        self.places: dict[int, tuple[Any, int]] = {}

    def continues(self, site: Any, clock: Clock, group: Any) -> bool:
        """Whether an access belongs to the same sequence."""
        return self.site is site and self.clock is clock and self.group is group

    def is_repetition(self, operand: Any, location: Any) -> bool:
        """Count an access; return whether all operands were accessed twice at their current locations, so that it changes nothing."""
        previous, count = self.places.get(id(operand), (None, 0))
        if previous is not location:
            self.places = {number: (other, 0) for number, (other, _) in self.places.items()}
            count = 0
        self.places[id(operand)] = (location, count + 1)
        # The first access conflicts with earlier statements, the second with the first; a third could only repeat that.
        return count >= 2 and all(times >= 2 for _, times in self.places.values())


def _kind(operand: Operand) -> str:
    return "add" if operand.adds else "write" if operand.write else "read"


class RaceDetector:
    """The access history of a batch's shared memory and of the launch's global memory, with the passed barriers."""

    def __init__(self, batch: BlockBatch, history: History, shared: bool, first_block: int = 0) -> None:
        plan = batch.plan
        self.batch, self.plan, self.history = batch, plan, history
        self.width, self.numbers = batch.width, batch.numbers + first_block
        self.shared_shadow: Shadow | None = None
        if shared and plan.components:
            units = max(buffer.offset + buffer.bytes for part in plan.components for buffer in part) // plan.granule
            self.shared_shadow = Shadow(units * (1 if plan.uniform else self.width), plan.pitch)
        self.latest: dict[int, _Repeated] = {}

    def check(
        self, site: PlannedStatement, accesses: Sequence[tuple[Operand, Location]], env: Environment, group: ThreadGroup, span: Any = None
    ) -> None:
        """Compare accesses with earlier ones, then record them.

        Without `span` this is one access. With `span` these are all accesses of one collective statement, which orders them, for one unit.
        A statement that repeats the same accesses, without any barrier or other statement between, changes nothing.
        """
        if span is None:
            if self._is_repetition(site, *accesses[0], group):
                return
        else:
            self.latest.clear()
        with self.history.lock:
            for operand, location in accesses:
                self._check(site, operand, location, env, group, span)
            for operand, location in accesses:
                self._record(site, operand, location, env, group, span)

    def fence(self, group: ThreadGroup) -> None:
        """Make a group's writes to shared memory visible to the async proxy, once a barrier orders them."""
        if self.shared_shadow is not None and group.unfenced:
            self.shared_shadow.fence(np.concatenate(group.unfenced), group.clock)
            group.unfenced.clear()

    def _wrote(self, shadow: Shadow, keys: Array, group: ThreadGroup) -> None:
        """Record generic-proxy writes, if the async proxy may read them."""
        if self.plan.uses_async_proxy and shadow is self.shared_shadow:
            shadow.mark_unfenced(keys)
            group.unfenced.append(keys)

    def start_reading(
        self, site: PlannedStatement, accesses: Sequence[tuple[Operand, Location]], env: Environment, group: ThreadGroup
    ) -> Callable[[Clock], None]:
        """Record that the async proxy reads from now on, until the returned function is called: no thread may write there."""
        shadow = self.shared_shadow
        if shadow is None:
            return lambda clock: None
        reads = []
        with self.history.lock:
            for operand, location in accesses:
                reads.append((*self._accessed(shadow, operand, location, group, None), self.history.note(site, operand, env)))
                shadow.start_read(reads[-1][0], reads[-1][-1])

        def done(clock: Clock) -> None:
            with self.history.lock:
                for keys, low, high, log in reads:
                    shadow.end_read(keys)
                    shadow.read(keys, low, high, clock, log)

        return done

    def start_copy(self, site: PlannedStatement, operand: Operand, location: Location, env: Environment, group: ThreadGroup) -> None:
        """Record an asynchronous copy in flight: no thread may access its target."""
        shadow = self._shadow_of(operand)
        if shadow is not None:
            with self.history.lock:
                keys, _, _ = self._accessed(shadow, operand, location, group, None)
                shadow.start_copy(keys, self.history.note(site, operand, env))

    def end_copy(self, site: PlannedStatement, operand: Operand, location: Location, env: Environment, group: ThreadGroup) -> None:
        """Record that the issuing threads have waited for a copy, as if they had written now."""
        shadow = self._shadow_of(operand)
        if shadow is not None:
            with self.history.lock:
                keys, low, high = self._accessed(shadow, operand, location, group, None)
                shadow.end_copy(keys)
                shadow.write(keys, low, high, group.clock, self.history.note(site, operand, env))
                self._wrote(shadow, keys, group)

    def _shadow_of(self, operand: Operand) -> Shadow | None:
        if not operand.checked:
            return None
        return self.shared_shadow if operand.buffer.memory.of_block else self.history.shadows.get(operand.buffer.name)

    def _is_repetition(self, site: PlannedStatement, operand: Operand, location: Location, group: ThreadGroup) -> bool:
        shadow = self._shadow_of(operand)
        if shadow is None:
            return False
        run = self.latest.get(id(shadow))
        if run is None or not run.continues(site, group.clock, group):
            run = self.latest[id(shadow)] = _Repeated(site, group.clock, group)
        return run.is_repetition(operand, location)

    def require_defined(self, site: PlannedStatement, operand: Operand, location: Location, env: Environment, group: ThreadGroup) -> None:
        """Raise if an access reads a value before any write."""
        defined = location.defined()
        if not defined.all():
            self._report_uninitialized(site, operand, defined, env, group)
        location.memory.update_complete()

    def _check(self, site: PlannedStatement, operand: Operand, location: Location, env: Environment, group: ThreadGroup, span: Any) -> None:
        if not operand.write and not location.memory.complete:
            self.require_defined(site, operand, location, env, group)
        shadow = self._shadow_of(operand)
        if shadow is None:
            return
        keys, low, high = self._accessed(shadow, operand, location, group, span)
        waiting = shadow.in_copy(keys)
        if len(waiting):
            self._report_copy_in_flight(site, operand, shadow, int(keys[waiting[0]]), env)
        if operand.write:
            read = shadow.in_read(keys)
            if len(read):
                self._report_read_in_flight(site, operand, shadow, int(keys[read[0]]), env)
        # Any lane of the unit may perform a spread access, so the unit counts as one thread. For a collective statement, the block does.
        group_size = operand.spread if span is None else self.plan.pitch
        distinct_units = low // group_size != high // group_size
        if operand.write and not operand.adds and distinct_units.any():
            where = int(np.flatnonzero(distinct_units)[0])
            previous = int(low[where]), site, operand, site.loop_values(env)
            self._race_error(site, operand, location, int(keys[where]), previous, int(high[where]), env, group)
        for kind in shadow.conflicting_kinds(_kind(operand)):
            sides, clocks, logs = shadow.last_accesses(kind)
            positions = shadow.conflicts(sides, clocks, keys, low, high, group.clock)
            if len(positions):
                self._report_race(site, operand, (sides, logs), location, keys, low, high, int(positions[0]), env, group)
        if site.statement.instruction.mechanism.by_engine and not operand.write:
            unfenced = shadow.unfenced(keys, low, high, group.clock)
            if len(unfenced):
                self._report_unfenced(site, operand, shadow, int(keys[unfenced[0]]), env)

    def _record(
        self, site: PlannedStatement, operand: Operand, location: Location, env: Environment, group: ThreadGroup, span: Any
    ) -> None:
        if operand.write and not operand.adds and not location.memory.complete:
            location.define()
        shadow = self._shadow_of(operand)
        if shadow is not None:
            record = {"write": shadow.write, "read": shadow.read, "add": shadow.add}[_kind(operand)]
            keys, low, high = self._accessed(shadow, operand, location, group, span)
            record(keys, low, high, group.clock, self.history.note(site, operand, env))
            if operand.write:
                self._wrote(shadow, keys, group)

    def _accessed(self, shadow: Shadow, operand: Operand, location: Any, group: ThreadGroup, span: Any) -> tuple[Array, Array, Array]:
        """Distinct keys with the lowest and highest thread that accesses each; `span` holds the ends of all units, and the selected
        unit.
        """
        # The accessing threads do not change while the location stays; only the clock does.
        if span is None and location.accessed is not None:
            return location.accessed  # type: ignore[no-any-return]
        low, high, unit = span or (*self._actors(operand, group), None)
        keys, valid, ids = self._keys(operand, location, (low, high))
        if unit is not None:
            valid = valid & (ids[0] % self.plan.pitch == low[unit])
        accessed = shadow.merged(keys[valid], *(one[valid] for one in ids))
        if span is None:
            location.accessed = accessed
        return accessed

    def _actors(self, operand: Operand, group: ThreadGroup) -> tuple[Array, Array]:
        """The lowest and the highest thread that may have performed each thread's access."""
        first = group.threads // operand.spread * operand.spread
        return first, np.minimum(first + operand.spread - 1, self.plan.kernel.threads - 1)

    def _keys(self, operand: Operand, location: Any, span: tuple[Array, Array]) -> tuple[Array, Array, list[Array]]:
        """Shadow keys, the mask of participating ones, and thread numbers (lowest, highest), all in one shape."""
        memory, rows = location.memory, location.rows
        shared = operand.buffer.memory.of_block
        if isinstance(location, Rows):
            rows = rows[..., None]
            if not self.plan.uniform:
                rows = np.broadcast_to(rows, (*rows.shape[:-1], self.width))
            row = rows
            block: Array = np.arange(rows.shape[-1])
        else:
            rows = np.broadcast_to(rows, (*rows.shape[:-1], self.width))
            row = rows // self.width if shared else rows
            block = np.arange(self.width)
        ids = [one[:, None] + (self.numbers[:, : block.size] * self.plan.pitch) for one in span]
        shape = np.broadcast_shapes(rows.shape, *(one.shape for one in ids))
        # Masked elements were redirected to the rows past the end.
        valid = np.broadcast_to(row < memory.zero, shape)
        if not shared:
            return np.broadcast_to(rows, shape), valid, [np.broadcast_to(one, shape) for one in ids]
        parts = operand.buffer.dtype.bytes // self.plan.granule
        keys = (row - memory.first) * parts + operand.buffer.offset // self.plan.granule
        keys = np.broadcast_to(keys * block.size + block, shape)
        if parts > 1:
            keys = keys[..., None] + np.arange(parts) * block.size
            shape = keys.shape
            valid = np.broadcast_to(valid[..., None], shape)
            ids = [np.broadcast_to(one[..., None], shape) for one in ids]
        return keys, valid, [np.broadcast_to(one, shape) for one in ids]

    def _report_uninitialized(self, site: PlannedStatement, operand: Operand, defined: Array, env: Environment, group: ThreadGroup) -> None:
        where = first_true(~defined, site, group)
        element = self._element(site, operand, env, group, where[0])
        raise SimulationError(
            f"{operand.buffer.name}{element} is read before any write to it: thread {where[1]} of block {self.batch.block(where[2])}",
            within=f"{site.what}, {self.batch.where(env, where[3])}",
            at=operand.origin or site.statement.origin,
            hint="an init or a copy is missing, or writes other addresses",
        )

    def _element(self, site: PlannedStatement, operand: Operand, env: Environment, group: ThreadGroup, index: tuple[int, ...]) -> str:
        """Coordinates and address of one position of an access."""
        mask, coordinates, parts = self.batch.coordinates(site, operand, env, group)
        address = self.batch.address(site, operand, vector_environment(site, env), mask, coordinates, parts, group)
        if operand.boxes is not None:
            return f" (a box at address {pick(address, index)})"
        element = ", ".join(str(pick(one, index)) for one in coordinates)
        kind = "register" if operand.buffer.memory.private else "address"
        return f"[{element}] ({kind} {pick(address, index)})"

    def _report_copy_in_flight(self, site: PlannedStatement, operand: Operand, shadow: Shadow, key: int, env: Environment) -> None:
        assert shadow.copies_in_flight is not None
        old_site, old_operand, old_env = self.history.log[int(shadow.copies_in_flight[key])]
        lines = [old_operand.origin or old_site.statement.origin, operand.origin or site.statement.origin]
        raise SimulationError(
            f"{operand.buffer.name} is {'written' if operand.write else 'read'} while an asynchronous copy to it is in flight: "
            f"{old_site.what} at {lines[0]}, {self.batch.where(old_env)}, which no thread has waited for",
            within=f"{site.what}, {self.batch.where(env)}",
            at=lines[1],
            hint="add a wait for its group, and a barrier, between the two",
        )

    def _report_read_in_flight(self, site: PlannedStatement, operand: Operand, shadow: Shadow, key: int, env: Environment) -> None:
        old_site, old_operand, old_env = self.history.log[int(shadow.reader_in_flight[key])]
        lines = [old_operand.origin or old_site.statement.origin, operand.origin or site.statement.origin]
        raise SimulationError(
            f"{operand.buffer.name} is written while an MMA that reads it is in flight: {old_site.what} at {lines[0]}, "
            f"{self.batch.where(old_env)}",
            within=f"{site.what}, {self.batch.where(env)}",
            at=lines[1],
            hint="add a wait for its group, and a barrier, between the two",
        )

    def _report_unfenced(self, site: PlannedStatement, operand: Operand, shadow: Shadow, key: int, env: Environment) -> None:
        old_site, old_operand, old_env = self.history.log[int(shadow.write_log[key])]
        lines = [old_operand.origin or old_site.statement.origin, operand.origin or site.statement.origin]
        raise SimulationError(
            f"{operand.buffer.name} is read through the async proxy, which does not see what was written to it: "
            f"{old_site.what} at {lines[0]}, {self.batch.where(old_env)}",
            within=f"{site.what}, {self.batch.where(env)}",
            at=lines[1],
            hint="add fence.proxy.async in the writing threads, before the barrier",
        )

    def _report_race(
        self,
        site: PlannedStatement,
        operand: Operand,
        previous: tuple[Sequence[Array], Sequence[Array]],
        location: Any,
        keys: Array,
        low: Array,
        high: Array,
        position: int,
        env: Environment,
        group: ThreadGroup,
    ) -> None:
        key = int(keys[position])
        sides, logs = previous
        own = int(low[position]), int(high[position])
        # Report threads of two warps if possible. A thread does not race with itself.
        pairs = [(int(sides[side][key]), me, side) for side in (0, 1) for me in own]
        other, me, side = max(pairs, key=lambda pair: (pair[0] // 32 != pair[1] // 32, pair[0] != pair[1]))
        log = int(logs[side][key])
        self._race_error(site, operand, location, key, (other, *self.history.log[log]), me, env, group)

    def _race_error(
        self,
        site: PlannedStatement,
        operand: Operand,
        location: Any,
        key: int,
        previous: tuple[int, PlannedStatement, Operand, Environment],
        me: int,
        env: Environment,
        group: ThreadGroup,
    ) -> None:
        keys, valid, (threads, _) = self._keys(operand, location, (group.threads, group.threads))
        positions = np.argwhere((keys == key) & valid & (threads == me))
        if not len(positions):
            positions = np.argwhere((keys == key) & valid)
        index = tuple(int(one) for one in positions[0])[: len(site.loops) + 3]
        more = {name: index[1 + axis] for axis, (name, _) in enumerate(site.loops)}
        other, old_site, old_operand, old_env = previous
        element = self._element(site, operand, env, group, index)
        verbs = [{"write": "writes", "read": "reads", "add": "adds to"}[_kind(one)] for one in (old_operand, operand)]
        lines = [old_operand.origin or old_site.statement.origin, operand.origin or site.statement.origin]
        distinct_blocks = other // self.plan.pitch != me // self.plan.pitch
        same = distinct_blocks or (old_site is site and old_env == site.loop_values(env))
        hint = "assign each element to one thread only" if same else "add a barrier between the two"
        names = [self._thread_name(one, distinct_blocks) for one in (other, me)]
        loop_values = self.batch.where(old_env)
        raise SimulationError(
            f"race on {operand.buffer.name}{element}: {names[0]} {verbs[0]} it ({old_site.what} at {lines[0]}, {loop_values}), "
            f"{names[1]} {verbs[1]} it ({site.what} at {lines[1]}), and no barrier orders them",
            within=f"block {me // self.plan.pitch}, {self.batch.where(env, more)}",
            at=operand.origin or site.statement.origin,
            hint=hint,
        )

    def _thread_name(self, number: int, with_block: bool) -> str:
        block, thread = divmod(number, self.plan.pitch)
        return f"thread {thread} of block {block}" if with_block else f"thread {thread}"
