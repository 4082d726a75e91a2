"""The watch over a chunk: every touch of memory is compared with what came before, then recorded.

It names races, by shadow memory and the barriers passed, and reads of what was never written. The text of both is made here, from
the statements, loops, threads and elements that met.
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
    """One statement's touches of one shadow, with no barrier and no other statement between: how often each place was touched.

    What engines do meanwhile, and fences, may be left out of account: the statement that began a copy, or a product, touched the shadow.
    """

    def __init__(self, site: Any, clock: Clock, group: Any) -> None:
        self.site, self.clock, self.group = site, clock, group
        self.places: dict[int, tuple[Any, int]] = {}

    def goes_on(self, site: Any, clock: Clock, group: Any) -> bool:
        """Whether a touch belongs to the same run of touches."""
        return self.site is site and self.clock is clock and self.group is group

    def settled(self, operand: Any, place: Any) -> bool:
        """Whether all operands were touched twice where they are now, so that once more changes nothing; counts the touch."""
        former, count = self.places.get(id(operand), (None, 0))
        if former is not place:
            self.places = {number: (other, 0) for number, (other, _) in self.places.items()}
            count = 0
        self.places[id(operand)] = (place, count + 1)
        # The first time meets what came before, the second what the first left behind; a third could only find the same again.
        return count >= 2 and all(times >= 2 for _, times in self.places.values())


def _kind(operand: Operand) -> str:
    return "add" if operand.adds else "write" if operand.write else "read"


class RaceDetector:
    """What a chunk's shared memory and the launch's global memory went through, and the barriers passed."""

    def __init__(self, batch: BlockBatch, history: History, shared: bool) -> None:
        plan = batch.plan
        self.batch, self.plan, self.history = batch, plan, history
        self.width, self.numbers = batch.width, batch.numbers
        self.shared_shadow: Shadow | None = None
        if shared and plan.components:
            units = max(buffer.offset + buffer.bytes for part in plan.components for buffer in part) // plan.granule
            self.shared_shadow = Shadow(units * (1 if plan.uniform else self.width), plan.pitch)
        self.latest: dict[int, _Repeated] = {}

    def touch(
        self, site: PlannedStatement, touches: Sequence[tuple[Operand, Location]], env: Environment, group: ThreadGroup, span: Any = None
    ) -> None:
        """Check accesses against what came before, then record them: one, or all that one statement orders itself, of its units in `span`.

        A statement that touches the same places over and over, with no barrier and no other statement between, changes nothing.
        """
        if span is None:
            if self._settled(site, *touches[0], group):
                return
        else:
            self.latest.clear()
        with self.history.lock:
            for operand, place in touches:
                self._check(site, operand, place, env, group, span)
            for operand, place in touches:
                self._record(site, operand, place, env, group, span)

    def fence(self, group: ThreadGroup) -> None:
        """What the threads of a group wrote to shared memory is there for engines too, as soon as a barrier orders it."""
        if self.shared_shadow is not None and group.unfenced:
            self.shared_shadow.fence(np.concatenate(group.unfenced), group.clock)
            group.unfenced.clear()

    def _wrote(self, shadow: Shadow, keys: Array, group: ThreadGroup) -> None:
        """Ordinary writes, if any engine may read them."""
        if self.plan.engines and shadow is self.shared_shadow:
            shadow.hide(keys)
            group.unfenced.append(keys)

    def reading(
        self, site: PlannedStatement, touches: Sequence[tuple[Operand, Location]], env: Environment, group: ThreadGroup
    ) -> Callable[[Clock], None]:
        """An engine reads from now on until what this returns is called: nobody may write there."""
        shadow = self.shared_shadow
        if shadow is None:
            return lambda clock: None
        reads = []
        with self.history.lock:
            for operand, place in touches:
                reads.append((*self._touched(shadow, operand, place, group, None), self.history.note(site, operand, env)))
                shadow.lend(reads[-1][0], reads[-1][-1])

        def done(clock: Clock) -> None:
            with self.history.lock:
                for keys, low, high, log in reads:
                    shadow.give_back(keys)
                    shadow.read(keys, low, high, clock, log)

        return done

    def depart(self, site: PlannedStatement, operand: Operand, place: Location, env: Environment, group: ThreadGroup) -> None:
        """An asynchronous copy is under way from now on: nobody may touch where it writes."""
        shadow = self._shadow_of(operand)
        if shadow is not None:
            with self.history.lock:
                keys, _, _ = self._touched(shadow, operand, place, group, None)
                shadow.depart(keys, self.history.note(site, operand, env))

    def arrive(self, site: PlannedStatement, operand: Operand, place: Location, env: Environment, group: ThreadGroup) -> None:
        """The threads that issued a copy have waited for it: as if they had written now."""
        shadow = self._shadow_of(operand)
        if shadow is not None:
            with self.history.lock:
                keys, low, high = self._touched(shadow, operand, place, group, None)
                shadow.arrive(keys)
                shadow.write(keys, low, high, group.clock, self.history.note(site, operand, env))
                self._wrote(shadow, keys, group)

    def _shadow_of(self, operand: Operand) -> Shadow | None:
        if not operand.watched:
            return None
        return self.shared_shadow if operand.buffer.memory.of_block else self.history.shadows.get(operand.buffer.name)

    def _settled(self, site: PlannedStatement, operand: Operand, place: Location, group: ThreadGroup) -> bool:
        shadow = self._shadow_of(operand)
        if shadow is None:
            return False
        run = self.latest.get(id(shadow))
        if run is None or not run.goes_on(site, group.clock, group):
            run = self.latest[id(shadow)] = _Repeated(site, group.clock, group)
        return run.settled(operand, place)

    def require_defined(self, site: PlannedStatement, operand: Operand, place: Location, env: Environment, group: ThreadGroup) -> None:
        """Refuse to read what was never written."""
        defined = place.defined()
        if not defined.all():
            self._uninitialised(site, operand, defined, env, group)
        place.memory.settle()

    def _check(self, site: PlannedStatement, operand: Operand, place: Location, env: Environment, group: ThreadGroup, span: Any) -> None:
        if not operand.write and not place.memory.complete:
            self.require_defined(site, operand, place, env, group)
        shadow = self._shadow_of(operand)
        if shadow is None:
            return
        keys, low, high = self._touched(shadow, operand, place, group, span)
        waiting = shadow.under_way(keys)
        if len(waiting):
            self._under_way(site, operand, shadow, int(keys[waiting[0]]), env)
        if operand.write:
            read = shadow.being_read(keys)
            if len(read):
                self._being_read(site, operand, shadow, int(keys[read[0]]), env)
        # A spread access names its whole unit for each place: which lane writes there is not known. So does one of all units of a block.
        together = operand.spread if span is None else self.plan.pitch
        strangers = low // together != high // together
        if operand.write and not operand.adds and strangers.any():
            where = int(np.flatnonzero(strangers)[0])
            former = int(low[where]), site, operand, site.place(env)
            self._race_text(site, operand, place, int(keys[where]), former, int(high[where]), env, group)
        for kind in shadow.strangers_to(_kind(operand)):
            sides, clocks, logs = shadow.touches(kind)
            found = shadow.conflicts(sides, clocks, keys, low, high, group.clock)
            if len(found):
                self._race(site, operand, (sides, logs), place, keys, low, high, int(found[0]), env, group)
        if site.statement.instruction.mechanism.by_engine and not operand.write:
            hidden = shadow.hidden(keys, low, high, group.clock)
            if len(hidden):
                self._hidden(site, operand, shadow, int(keys[hidden[0]]), env)

    def _record(self, site: PlannedStatement, operand: Operand, place: Location, env: Environment, group: ThreadGroup, span: Any) -> None:
        if operand.write and not operand.adds and not place.memory.complete:
            place.define()
        shadow = self._shadow_of(operand)
        if shadow is not None:
            record = {"write": shadow.write, "read": shadow.read, "add": shadow.add}[_kind(operand)]
            keys, low, high = self._touched(shadow, operand, place, group, span)
            record(keys, low, high, group.clock, self.history.note(site, operand, env))
            if operand.write:
                self._wrote(shadow, keys, group)

    def _touched(self, shadow: Shadow, operand: Operand, place: Any, group: ThreadGroup, span: Any) -> tuple[Array, Array, Array]:
        """Distinct keys with the least and greatest thread that touches each; `span` are those of all units, and the unit asked for."""
        # Who touches what does not change while the place stays; only the clock does.
        if span is None and place.touched is not None:
            return place.touched  # type: ignore[no-any-return]
        low, high, unit = span or (*self._actors(operand, group), None)
        keys, valid, ids = self._keys(operand, place, (low, high))
        if unit is not None:
            valid = valid & (ids[0] % self.plan.pitch == low[unit])
        touched = shadow.gathered(keys[valid], *(one[valid] for one in ids))
        if span is None:
            place.touched = touched
        return touched

    def _actors(self, operand: Operand, group: ThreadGroup) -> tuple[Array, Array]:
        """The least and the greatest thread that may have touched what each thread's access names."""
        first = group.threads // operand.spread * operand.spread
        return first, np.minimum(first + operand.spread - 1, self.plan.kernel.threads - 1)

    def _keys(self, operand: Operand, place: Any, span: tuple[Array, Array]) -> tuple[Array, Array, list[Array]]:
        """Shadow keys, which of them take part, and thread numbers (least, greatest), all in one shape."""
        memory, rows = place.memory, place.rows
        shared = operand.buffer.memory.of_block
        if isinstance(place, Rows):
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
        # What a mask excludes was sent to the rows behind the memory.
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

    def _uninitialised(self, site: PlannedStatement, operand: Operand, defined: Array, env: Environment, group: ThreadGroup) -> None:
        where = first_true(~defined, site, group)
        element = self._element(site, operand, env, group, where[0])
        raise SimulationError(
            f"{operand.buffer.name}{element} is read before anything was written to it: "
            f"thread {where[1]} of block {self.batch.block(where[2])}",
            within=f"{site.what}, {self.batch.where(env, where[3])}",
            at=operand.origin or site.statement.origin,
            hint="an init or a copy is missing, or writes with other addresses than this reads",
        )

    def _element(self, site: PlannedStatement, operand: Operand, env: Environment, group: ThreadGroup, index: tuple[int, ...]) -> str:
        """Coordinates, and the address, of one position of an access."""
        mask, coordinates, parts = self.batch.coordinates(site, operand, env, group)
        address = self.batch.address(site, operand, vector_environment(site, env), mask, coordinates, parts, group)
        if operand.boxes is not None:
            return f" (a box from address {pick(address, index)} on)"
        element = ", ".join(str(pick(one, index)) for one in coordinates)
        kind = "register" if operand.buffer.memory.private else "address"
        return f"[{element}] ({kind} {pick(address, index)})"

    def _under_way(self, site: PlannedStatement, operand: Operand, shadow: Shadow, key: int, env: Environment) -> None:
        assert shadow.flight is not None
        old_site, old_operand, old_env = self.history.log[int(shadow.flight[key])]
        lines = [old_operand.origin or old_site.statement.origin, operand.origin or site.statement.origin]
        raise SimulationError(
            f"{operand.buffer.name} is {'written' if operand.write else 'read'} while an asynchronous copy to it is under way: "
            f"{old_site.what} at {lines[0]}, {self.batch.where(old_env)}, which nobody has waited for",
            within=f"{site.what}, {self.batch.where(env)}",
            at=lines[1],
            hint="a wait for its group, and a barrier, between the two",
        )

    def _being_read(self, site: PlannedStatement, operand: Operand, shadow: Shadow, key: int, env: Environment) -> None:
        old_site, old_operand, old_env = self.history.log[int(shadow.reader_under_way[key])]
        lines = [old_operand.origin or old_site.statement.origin, operand.origin or site.statement.origin]
        raise SimulationError(
            f"{operand.buffer.name} is written while a product that reads it is under way: {old_site.what} at {lines[0]}, "
            f"{self.batch.where(old_env)}",
            within=f"{site.what}, {self.batch.where(env)}",
            at=lines[1],
            hint="a wait for its group, and a barrier, between the two",
        )

    def _hidden(self, site: PlannedStatement, operand: Operand, shadow: Shadow, key: int, env: Environment) -> None:
        old_site, old_operand, old_env = self.history.log[int(shadow.write_log[key])]
        lines = [old_operand.origin or old_site.statement.origin, operand.origin or site.statement.origin]
        raise SimulationError(
            f"{operand.buffer.name} is read through the asynchronous proxy, and what was written to it is not there yet: "
            f"{old_site.what} at {lines[0]}, {self.batch.where(old_env)}",
            within=f"{site.what}, {self.batch.where(env)}",
            at=lines[1],
            hint="a fence of the proxy by the threads that wrote, in front of the barrier",
        )

    def _race(
        self,
        site: PlannedStatement,
        operand: Operand,
        former: tuple[Sequence[Array], Sequence[Array]],
        place: Any,
        keys: Array,
        low: Array,
        high: Array,
        position: int,
        env: Environment,
        group: ThreadGroup,
    ) -> None:
        key = int(keys[position])
        sides, logs = former
        mine = int(low[position]), int(high[position])
        # Threads of two warps, if there are such, make the clearest witnesses; one thread alone would make none.
        pairs = [(int(sides[side][key]), me, side) for side in (0, 1) for me in mine]
        other, me, side = max(pairs, key=lambda pair: (pair[0] // 32 != pair[1] // 32, pair[0] != pair[1]))
        log = int(logs[side][key])
        self._race_text(site, operand, place, key, (other, *self.history.log[log]), me, env, group)

    def _race_text(
        self,
        site: PlannedStatement,
        operand: Operand,
        place: Any,
        key: int,
        former: tuple[int, PlannedStatement, Operand, Environment],
        me: int,
        env: Environment,
        group: ThreadGroup,
    ) -> None:
        keys, valid, (threads, _) = self._keys(operand, place, (group.threads, group.threads))
        found = np.argwhere((keys == key) & valid & (threads == me))
        if not len(found):
            found = np.argwhere((keys == key) & valid)
        index = tuple(int(one) for one in found[0])[: len(site.loops) + 3]
        more = {name: index[1 + axis] for axis, (name, _) in enumerate(site.loops)}
        other, old_site, old_operand, old_env = former
        element = self._element(site, operand, env, group, index)
        verbs = [{"write": "writes", "read": "reads", "add": "adds to"}[_kind(one)] for one in (old_operand, operand)]
        lines = [old_operand.origin or old_site.statement.origin, operand.origin or site.statement.origin]
        strangers = other // self.plan.pitch != me // self.plan.pitch
        same = strangers or (old_site is site and old_env == site.place(env))
        hint = "deal each element to one thread only" if same else "a barrier between the two"
        names = [self._thread_name(one, strangers) for one in (other, me)]
        then = self.batch.where(old_env)
        raise SimulationError(
            f"race on {operand.buffer.name}{element}: {names[0]} {verbs[0]} it ({old_site.what} at {lines[0]}, {then}), "
            f"{names[1]} {verbs[1]} it ({site.what} at {lines[1]}), and no barrier orders them",
            within=f"block {me // self.plan.pitch}, {self.batch.where(env, more)}",
            at=operand.origin or site.statement.origin,
            hint=hint,
        )

    def _thread_name(self, number: int, with_block: bool) -> str:
        block, thread = divmod(number, self.plan.pitch)
        return f"thread {thread} of block {block}" if with_block else f"thread {thread}"
