"""One statement, executed for all threads of a group and all blocks of a chunk.

Operands are located, what they touch is watched, and the spec says what becomes of the values. The multiply-add and the copy,
which are most of what a kernel does, work in place; collective statements are performed once per unit of threads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import Mechanism
from fireiron.ir.lanes import LaneMap
from fireiron.sim.block_batch import BlockBatch
from fireiron.sim.locations import DistributedPart, Flat, Location, PendingMma, Rows, ThreadGroup, Window, vector_environment
from fireiron.sim.memory import POISON
from fireiron.sim.plan import Array, Environment, Operand, Plan, PlannedStatement
from fireiron.sim.race_detector import RaceDetector
from fireiron.sim.rings import Load, Rings
from fireiron.values.expr import Var, compiled
from fireiron.values.machine import Block
from fireiron.values.units import THREAD, index_in, unit_in


class Executor:
    """Executes the statements of a chunk."""

    def __init__(self, batch: BlockBatch, race_detector: RaceDetector, rings: Rings) -> None:
        self.batch, self.race_detector, self.rings, self.plan = batch, race_detector, rings, batch.plan
        self.temporary: dict[Any, Array] = {}
        self.statements = 0
        self.cluster: Sequence[Executor] = (self,)
        rings.landed = self.landed

    def execute(self, site: PlannedStatement, env: Environment, group: ThreadGroup) -> None:
        """A statement that each thread performs on its own."""
        if self.plan.engines:
            self._use_registers(site, env, group)
        accumulate = site.accumulate
        if not isinstance(accumulate, bool):
            accumulate = self._accumulate(site, env)
        inputs = [(name, operand, self.batch.place(site, operand, env, group)) for name, operand in site.inputs]
        outputs = []
        for name, write, read in site.outputs:
            place = self.batch.place(site, write, env, group)
            old = None if accumulate is False else place if accumulate is True else self.batch.place(site, read, env, group)
            outputs.append((name, write, read, place, old))
        self.statements += 1
        reads = [(operand, place) for _, operand, place in inputs] + [(read, old) for _, _, read, _, old in outputs if old is not None]
        for touch in (*reads, *((write, place) for _, write, _, place, _ in outputs)):
            if self.plan.in_rings:
                self.rings.require_held(site, touch[0], env, group, self.batch.where(env))
            if touch[0].watched or not touch[1].memory.complete:
                self.race_detector.touch(site, (touch,), env, group)
        if site.statement.mechanism.arrives:
            self._issue(site, inputs, outputs, env, group)
        elif site.statement.mechanism.counted:
            self._load(site, inputs, outputs, env, group)
        elif site.multiply_add:
            (_, _, a), (_, _, b) = inputs
            ((_, _, _, c, old),) = outputs
            self._multiply_add(a, b, c, accumulate, old)
        elif site.copy:
            ((_, _, source),) = inputs
            ((_, _, _, target, _),) = outputs
            self._copy(site, source, target)
        elif site.atomic:
            self._add(site, inputs, outputs, env, group)
        elif site.lane_maps:
            self._by_lanes(site, inputs, outputs, accumulate, group)
        else:
            self._perform(site, inputs, outputs, accumulate)
        if site.statement.mechanism.in_registers or site.statement.mechanism.reads_late:
            self._depart(site, inputs, env, group, group)

    def _use_registers(self, site: PlannedStatement, env: Environment, group: ThreadGroup) -> None:
        """Registers of products under way are not to be touched by anything but products, and these want a fence behind other touches."""
        used = site.registers & self.plan.product_registers
        written = used & site.written_registers
        product = site.statement.mechanism.in_registers
        for member in group.members or (group,):
            # Products add to the same registers one behind the other; a factor is another matter.
            busy = {name for name, writes in member.busy if name in (used - written if product and writes else used if writes else written)}
            if busy:
                self._refuse_registers(site, busy, env, "while a product that uses it is under way", "a wait for its group before")
            if not product:
                member.touched |= used
            elif not member.fenced:
                # PTX ISA, "wgmma.fence": one stands in front of the first product of a warpgroup too, whoever touched its registers.
                self._refuse_registers(site, used, env, "with no fence of registers before it", "a fence in front of the first product")
            elif used & member.touched:
                when = "behind ordinary statements, with no fence of registers"
                self._refuse_registers(site, used & member.touched, env, when, "a fence of the registers in front of the product")

    def _refuse_registers(self, site: PlannedStatement, names: Iterable[str], env: Environment, when: str, hint: str) -> None:
        message = f"{', '.join(sorted(names))} is touched by {site.what} {when}"
        raise SimulationError(message, within=self.batch.where(env), at=site.statement.origin, hint=hint)

    def _depart(self, site: PlannedStatement, inputs: list[Any], env: Environment, group: ThreadGroup, readers: ThreadGroup) -> None:
        """A product, or a store, is under way: its inputs are being read until all threads that issued it have waited."""
        used = frozenset((name, name in site.written_registers) for name in site.registers & self.plan.product_registers)
        done = self.race_detector.reading(site, [(operand, place) for _, operand, place in inputs if operand.watched], env, readers)
        members = group.members or (group,)
        stages = frozenset(stage for _, operand, _ in inputs for stage in self.rings.stages_of(operand, env))
        product = PendingMma(len(members), used, done, stages)
        for member in members:
            member.flights[site.statement.mechanism].issued.append(product)
            member.busy += used

    def _load(self, site: PlannedStatement, inputs: list[Any], outputs: list[Any], env: Environment, group: ThreadGroup) -> None:
        """A load by an engine: the values are on their way, and what lies at their place until they arrive is poison.

        In a cluster they may be on their way to several blocks, and arrive in each at a time of its own.
        """
        ((name, write, _, place, _),) = outputs
        values = np.broadcast_to(site.statement.spec.perform(_values(inputs), False)[name], place.shape).copy()
        turn = int(np.asarray(compiled(site.statement.fill_index)(env)).flat[0])
        size = write.count * write.buffer.dtype.bytes  # those of whole boxes, outside the array too
        peers, where = site.statement.multicast, self.batch.where(env)
        for rings in self.rings.reach(() if peers is None else (peers,), env, group, f"{write.buffer.name}: {site.what} arrives", where):
            target = self.cluster[rings.rank].counterpart(write, place)
            if rings is not self.rings:
                rings.require_empty(site.statement.ring, turn, where)
            target.put(np.broadcast_to(_poison(place.memory.data.dtype, write.buffer.dtype.kind), place.shape))
            if not target.memory.complete:
                target.define()
            rings.depart(Load(site.statement.ring, turn, size, functools.partial(target.put, values)))

    def counterpart(self, operand: Operand, place: Location) -> Location:
        """The same place in the blocks of this chunk, as a place in other blocks of the cluster."""
        memory = self.batch.memories[operand.buffer.name]
        if memory is place.memory:
            return place
        assert isinstance(place, (Rows, Flat)), place
        return type(place)(memory, place.rows)

    def _issue(self, site: PlannedStatement, inputs: list[Any], outputs: list[Any], env: Environment, group: ThreadGroup) -> None:
        """An asynchronous copy: the values are under way, and what lies at their place until they arrive is poison."""
        ((name, write, _, place, _),) = outputs
        values = site.statement.spec.perform(_values(inputs), False)[name]
        place.put(np.broadcast_to(_poison(place.memory.data.dtype, write.buffer.dtype.kind), place.shape))
        group.flights[site.statement.mechanism].issued.append((site, write, place, np.broadcast_to(values, place.shape), dict(env)))
        self.rings.issued(write, env)
        self.race_detector.depart(site, write, place, env, group)

    def arrive(self, group: ThreadGroup, pending: int, mechanism: Mechanism) -> None:
        """The group's copies, or products, arrive, but for those of its `pending` last commits."""
        self.landed(group.flights[mechanism].arrived(pending), group, mechanism)

    def landed(self, done: Iterable[Any], group: ThreadGroup, mechanism: Mechanism) -> None:
        """What a group had under way by a mechanism is done: copies are there, products and stores have read."""
        if not mechanism.writes_late:
            for product in done:
                product.waiting -= 1
                for used in product.registers:
                    group.busy.remove(used)
                if not product.waiting:
                    product.done(group.clock)
            return
        for site, write, place, values, env in done:
            place.put(values)
            self.rings.arrived(write, env)
            self.race_detector.arrive(site, write, place, env, group)

    def _accumulate(self, site: PlannedStatement, env: Environment) -> Any:
        """Whether old values are added to: a truth value, or an array where threads, blocks or turns differ."""
        assert callable(site.accumulate)
        value = np.asarray(site.accumulate(vector_environment(site, env)))
        if value.all():
            return True
        return value if value.any() else False

    def _multiply_add(self, a: Location, b: Location, c: Location, accumulate: Any, old: Location | None) -> None:
        left, right = a.get(), b.get()
        dtype = c.memory.data.dtype
        left, right = left.astype(dtype, copy=False), right.astype(dtype, copy=False)
        if not isinstance(c, Window) or accumulate is not True:
            base: Any = dtype.type(0) if old is None else old.get()
            c.put(np.broadcast_to(base + left * right, c.shape))
            return
        target = c.data
        axis = next((axis for axis in range(target.ndim - 2) if target.shape[axis] > 1), None)
        # A product beyond 128 KiB would leave the cache between being written and being added: it is taken turn by turn.
        if axis is None or target.nbytes <= 1 << 17:
            product = self._temporary(target.shape, dtype)
            np.multiply(left, right, out=product)
            np.add(target, product, out=target)
            return
        lead = (slice(None),) * axis
        product = self._temporary(target[(*lead, 0)].shape, dtype)
        for turn in range(target.shape[axis]):
            part = target[(*lead, turn)]
            x = left[(*lead, turn if left.shape[axis] > 1 else 0)]
            y = right[(*lead, turn if right.shape[axis] > 1 else 0)]
            np.multiply(x, y, out=product)
            np.add(part, product, out=part)

    def _temporary(self, shape: tuple[int, ...], dtype: Any) -> Array:
        found = self.temporary.get((shape, dtype))
        if found is None:
            found = self.temporary[shape, dtype] = np.empty(shape, dtype)
        return found

    def _copy(self, site: PlannedStatement, source: Location, target: Location) -> None:
        values = source.get()
        if values.dtype != target.memory.data.dtype:
            values = site.statement.spec.perform({"src": values}, False)["dst"]
        target.put(values if isinstance(target, Window) else np.broadcast_to(values, target.shape))

    def _add(self, site: PlannedStatement, inputs: list[Any], outputs: list[Any], env: Environment, group: ThreadGroup) -> None:
        """Each thread adds its elements; where threads or blocks add to one place, nothing gets lost."""
        ((name, _, read, place, _),) = outputs
        values = site.statement.spec.perform(_values(inputs), False)[name]
        # Chunks run in parallel, and all of them add to the same arrays.
        with self.race_detector.history.lock:
            if not place.memory.complete:
                self.race_detector.require_defined(site, read, place, env, group)
            # `+=` with an array of indices adds once where an index stands twice
            np.add.at(place.memory.flat, place.rows, np.broadcast_to(values, place.shape))

    def _perform(self, site: PlannedStatement, inputs: list[Any], outputs: list[Any], accumulate: Any) -> None:
        """The general case: operands with their element dimensions first, then the spec's own meaning."""
        values = {name: _unfolded(_read(place, site.outside[name]), operand) for name, operand, place in inputs}
        for name, write, _, place, old in outputs:
            before = np.broadcast_to(np.zeros((), place.memory.data.dtype), place.shape) if old is None else old.get()
            values[name] = _unfolded(before, write)
        results = site.statement.spec.perform(values, accumulate, site.statement.instruction.rounds)
        for name, write, _, place, _ in outputs:
            result = results[name] if np.ndim(results[name]) else np.broadcast_to(results[name], values[name].shape)  # a formula of numbers
            place.put(np.broadcast_to(_folded(result, write), place.shape))

    def _exchange(self, site: PlannedStatement, inputs: list[Any], outputs: list[Any]) -> None:
        """A copy by an engine, element by element of its boxes."""
        ((name, _, _, place, _),) = outputs
        values = site.statement.spec.perform(_values(inputs), False)[name]
        place.put(np.broadcast_to(values, place.shape))

    # ------------------------------------------------------------------------------------------ instructions of several lanes

    def _by_lanes(self, site: PlannedStatement, inputs: list[Any], outputs: list[Any], accumulate: Any, group: ThreadGroup) -> None:
        """Tiles gathered from the lanes, the spec's own meaning, and the results dealt back, as the lane maps say."""
        seats = self._seats(site, group)
        values = {name: _gathered(place.get(), site.lane_maps[name], seats) for name, _, place in inputs}
        for name, _, _, place, old in outputs:
            before = np.zeros((1,) * len(place.shape), place.memory.data.dtype) if old is None else old.get()
            values[name] = _gathered(before, site.lane_maps[name], seats)
        if isinstance(accumulate, np.ndarray) and accumulate.shape[-2] > 1:  # it differs between units
            accumulate = accumulate[..., seats[:, 0], :]
        results = site.statement.spec.perform(values, accumulate)
        for name, _, _, place, _ in outputs:
            place.put(_dealt(results[name], site.lane_maps[name], seats, place.shape))

    def _seats(self, site: PlannedStatement, group: ThreadGroup) -> Array:
        """Positions in the group of the lanes of each unit: `(units, lanes)`."""
        found = group.seats.get(site.level)
        if found is None:
            env = {"thread": group.threads}
            thread = _thread(self.plan)
            unit, lane = (
                np.broadcast_to(compiled(number)(env), group.threads.shape)
                for number in (unit_in(site.level, Block, thread), index_in(site.level, thread))
            )
            lanes = site.level.threads
            assert lanes is not None
            order = np.lexsort((lane, unit))
            # lanes of a unit that the block does not fill have no seat: an instruction of all lanes cannot be performed by some
            whole = np.bincount(unit[order])[unit[order]] == lanes
            found = group.seats[site.level] = order[whole].reshape(-1, lanes)
        return found

    # ------------------------------------------------------------------------------------------ collective statements

    def collective(self, site: PlannedStatement, env: Environment, group: ThreadGroup) -> None:
        """A statement that units of threads perform together: on the whole operands, once per unit."""
        if self.plan.engines:
            self._use_registers(site, env, group)
        units = np.broadcast_to(np.asarray(compiled(unit_in(site.level, Block, _thread(self.plan)))(env)), (group.threads.size, 1))[:, 0]
        present, leaders = np.unique(units, return_index=True)
        unit = np.searchsorted(present, units)
        self._check_uniform(site, env, leaders[unit])
        small: Environment = {name: _at_threads(value, leaders, group.threads.size) for name, value in env.items()}
        team = group.own.setdefault(site.level, ThreadGroup(group.threads[leaders], small))
        team.clock = group.clock
        lasts = np.array([group.threads[units == one].max() for one in present])
        span = (group.threads[leaders], lasts)
        accumulate = site.accumulate if isinstance(site.accumulate, bool) else self._accumulate(site, small)
        inputs = [(name, operand, self._shared_place(site, operand, env, small, group, team, unit)) for name, operand in site.inputs]
        outputs = []
        for name, write, read in site.outputs:
            place = self._shared_place(site, write, env, small, group, team, unit)
            old = None if accumulate is False else self._shared_place(site, read, env, small, group, team, unit)
            outputs.append((name, write, read, place, old))
        self.statements += 1
        reads = [(operand, place) for _, operand, place in inputs] + [(read, old) for _, _, read, _, old in outputs if old is not None]
        touches = [*reads, *((write, place) for _, write, _, place, _ in outputs)]
        if self.plan.in_rings:
            for operand, _ in touches:
                self.rings.require_held(site, operand, small, group, self.batch.where(env))
        if site.statement.collective:
            for number in range(len(leaders)):
                self.race_detector.touch(site, touches, small, team, (*span, number))
        else:
            for touch in touches:
                self.race_detector.touch(site, (touch,), small, team)
        if site.scratch is not None:
            self._scratch(site, site.scratch, small, team, group)
        if site.boxes is None:
            self._perform(site, inputs, outputs, accumulate)
        else:
            self._exchange(site, inputs, outputs)
        if site.statement.mechanism.reads_late:
            self._depart(site, inputs, small, group, team)

    def _check_uniform(self, site: PlannedStatement, env: Environment, leader: Array) -> None:
        """All threads of a unit must mean the same operands."""
        values = [*site.active, *(one for operand in site.operand_list for one in (*operand.base, operand.copy))]
        for value in values:
            result = np.asarray(value(env))
            if result.ndim == 2 and result.shape[0] > 1 and (result != result[leader]).any():
                what = f"{site.what}: threads of one {site.level} disagree about its operands"
                raise SimulationError(what, within=self.batch.where(env), at=site.statement.origin)

    def _shared_place(
        self,
        site: PlannedStatement,
        operand: Operand,
        env: Environment,
        small: Environment,
        group: ThreadGroup,
        team: ThreadGroup,
        unit: Array,
    ) -> Location:
        if operand.buffer.memory.private and site.statement.collective:
            return self._held(site, operand, env, small, group, unit)
        return self.batch.locate(site, operand, small, team)

    def _held(
        self, site: PlannedStatement, operand: Operand, env: Environment, small: Environment, group: ThreadGroup, unit: Array
    ) -> DistributedPart:
        """The places of a distributed operand, from what its buffer says each thread holds in each register."""
        units, count = int(unit.max()) + 1, math.prod(operand.sizes)
        held, valid = _registers(operand, env, group)
        wanted, allowed = self._wanted(site, operand, small, group, units)
        rows = np.arange(operand.elements)[:, None] * self.plan.kernel.threads + group.threads
        # The elements of all units stand in one table, unit after unit: what a register of one unit holds is none of another's.
        where = np.broadcast_to(unit, rows.shape) * count + np.where(valid, held, 0)
        keys = np.arange(units) * count + np.where(allowed, wanted, 0)
        holder = np.full(units * count, -1)
        holder[where[valid]] = rows[valid]
        found = holder[keys]
        missing = np.argwhere(allowed & (found < 0))
        if missing.size:
            element, number = missing[0]
            place = self._coordinate_text(operand, int(wanted[element, number]))
            what = f"{site.what}: no thread of {site.level} {number} holds {operand.buffer.name}{place}"
            raise SimulationError(what, within=self.batch.where(env), at=site.statement.origin)
        # Several threads may hold an element: any of them is read, all of them are written.
        position = np.full(units * count, -1)
        position[keys[allowed]] = np.arange(keys.size).reshape(keys.shape)[allowed]
        taken = valid & (position[where] >= 0)
        memory = self.batch.memories[operand.buffer.name]
        return DistributedPart(memory, np.where(allowed, found, memory.zero), rows[taken], position[where[taken]])

    def _wanted(self, site: PlannedStatement, operand: Operand, small: Environment, group: ThreadGroup, units: int) -> tuple[Array, Array]:
        """The elements that each unit's statement names, by number, and which of them lie inside: `(elements, units)`."""
        mask, coordinates, _ = self.batch.coordinates(site, operand, small, group)
        wanted = _numbered(coordinates, operand.sizes)
        wanted = np.broadcast_to(wanted, (operand.count, units, wanted.shape[-1]))[..., 0]
        allowed = np.broadcast_to(np.True_ if mask is None else mask, (operand.count, units, 1 if mask is None else mask.shape[-1]))[..., 0]
        return wanted, allowed

    def _coordinate_text(self, operand: Operand, number: int) -> str:
        digits: list[int] = []
        for size in reversed(operand.sizes):
            number, digit = divmod(number, max(size, 1))
            digits.append(digit)
        return f"[{', '.join(map(str, reversed(digits)))}]"

    def _scratch(self, site: PlannedStatement, operand: Operand, env: Environment, team: ThreadGroup, group: ThreadGroup) -> None:
        """All threads may write anywhere in the statement's own memory, and leave nothing of use there."""
        memory = self.batch.memories[operand.buffer.name]
        place = Rows(memory, memory.first + np.arange(memory.rows)[:, None])
        ends = (group.threads[:1], group.threads[-1:], 0)
        self.race_detector.touch(site, ((operand, place),), env, team, ends)
        memory.data[memory.first : memory.first + memory.rows].view(np.uint8)[:] = POISON[operand.buffer.dtype.kind]
        if memory.defined is not None:
            memory.defined[memory.first : memory.first + memory.rows] = False
            memory.complete = False


def _registers(operand: Operand, env: Environment, group: ThreadGroup) -> tuple[Array, Array]:
    """The element, by number, that each thread holds in each register, and whether it is one of the buffer's: `(registers, threads)`."""
    register = Var("#register", 0, max(operand.elements - 1, 0))
    values = {**env, register.name: np.arange(operand.elements)[:, None, None]}
    coordinates = [np.asarray(compiled(coordinate)(values)) for coordinate in operand.buffer.held(register)]
    valid: Array = np.True_
    for value, size in zip(coordinates, operand.sizes, strict=True):
        valid = valid & (value >= 0) & (value < size)
    # What a register holds is the same in all blocks of the chunk, so the first one's answer is taken.
    held, valid = (
        np.broadcast_to(one, (operand.elements, group.threads.size, max(one.shape[-1:] or (1,))))[..., 0]
        for one in (_numbered(coordinates, operand.sizes), valid)
    )
    return held, valid


def _values(inputs: list[Any]) -> dict[str, Array]:
    """What the only input of a copy or an addition holds, by its name."""
    ((name, _, place),) = inputs
    return {name: place.get()}


def _numbered(coordinates: Iterable[Array], sizes: Iterable[int]) -> Array:
    """The number of an element by its coordinates, the last dimension fastest."""
    number: Array = np.int64(0)
    for coordinate, size in zip(coordinates, sizes, strict=True):
        number = number * size + coordinate
    return number


def _poison(dtype: Any, kind: str) -> Array:
    return np.full(np.dtype(dtype).itemsize, POISON[kind], np.uint8).view(dtype)


def _gathered(values: Array, lane_map: LaneMap, seats: Array) -> Array:
    """Values `(values, loops, threads, blocks)` as tiles: dimensions of the tile, loops, units, blocks."""
    lanes = seats.shape[1]
    values = np.broadcast_to(
        values, (lane_map.count, *values.shape[1:-2], max(values.shape[-2], int(seats.max(initial=0)) + 1), values.shape[-1])
    )
    parts = np.moveaxis(values[..., seats.T, :], -3, 1)
    source = np.empty(math.prod(lane_map.tile), np.int64)
    source[lane_map.numbers.T.ravel()] = np.arange(lane_map.count * lanes)
    tiles = parts.reshape(lane_map.count * lanes, *parts.shape[2:]).take(source, axis=0)
    return tiles.reshape(*lane_map.tile, *tiles.shape[1:])


def _dealt(tiles: Array, lane_map: LaneMap, seats: Array, shape: tuple[int, ...]) -> Array:
    """Tiles back as values of the lanes; threads that belong to no whole unit get zeros."""
    lanes = seats.shape[1]
    rank = len(lane_map.tile)
    flat = tiles.reshape(math.prod(lane_map.tile), *tiles.shape[rank:])
    parts = flat.take(lane_map.numbers.T.ravel(), axis=0)
    parts = np.moveaxis(parts.reshape(lane_map.count, lanes, *parts.shape[1:]), 1, -3)
    result = np.zeros((lane_map.count, *parts.shape[1:-3], shape[-2], parts.shape[-1]), tiles.dtype)
    result[..., seats.T, :] = parts
    return np.broadcast_to(result, shape)


def _thread(plan: Plan) -> Var:
    return Var(THREAD.name, 0, plan.kernel.workers - 1)


def _at_threads(value: Any, chosen: Array, threads: int) -> Any:
    """A named value at some threads only."""
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.shape[0] == threads and threads > 1:
        return value[chosen]
    return value


def _read(place: Location, outside: float) -> Array:
    """The values at a place, and what elements outside their tensor count as: masked reads find zero."""
    if not outside or not isinstance(place, (Rows, Flat)):
        return place.get()
    return np.where(place.masked(), np.asarray(outside).astype(place.memory.data.dtype), place.get())


def _unfolded(values: Array, operand: Operand) -> Array:
    """The element axis as the dimensions of the operand's view."""
    if not operand.tile:
        (only,) = values
        return only
    if operand.count == 1:
        return values.reshape((1,) * (len(operand.tile) - 1) + values.shape)
    if operand.numbers is not None:
        values = values[operand.numbers]
    rank = len(operand.tile)
    values = values.reshape((*operand.tile[::-1], *values.shape[1:]))
    return values.transpose((*(rank - 1 - axis for axis in operand.order), *range(rank, values.ndim)))


def _folded(values: Array, operand: Operand) -> Array:
    """The dimensions of the operand's view as one element axis, in the order of its elements."""
    rank = len(operand.tile)
    values = values.transpose((*(operand.order.index(axis) for axis in reversed(range(rank))), *range(rank, values.ndim)))
    values = values.reshape((operand.count, *values.shape[rank:]))
    return values if operand.numbers is None else values[np.argsort(operand.numbers)]
