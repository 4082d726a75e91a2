"""Execute one statement for all threads of a group and all blocks of a batch.

The executor computes the locations of the operands, reports their accesses to the race detector, and applies the spec. Multiply-adds and
copies, most of a kernel's work, operate in place. Collective statements execute once per unit of threads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fireiron.errors import SimulationError
from fireiron.ir import Mechanism
from fireiron.ir.lanes import LaneMap
from fireiron.ir.look_back import looks_back
from fireiron.sim.block_batch import BlockBatch
from fireiron.sim.conditions import Reading
from fireiron.sim.locations import DistributedPart, Flat, Location, PendingMma, Rows, ThreadGroup, Window, vector_environment
from fireiron.sim.look_back import Totals, place_of
from fireiron.sim.memory import POISON
from fireiron.sim.plan import Array, Environment, Operand, Plan, PlannedStatement
from fireiron.sim.race_detector import RaceDetector
from fireiron.sim.rings import Load, Rings
from fireiron.sim.tracing import Line, lines
from fireiron.specs.meaning import combining_function
from fireiron.values.expr import Var, compiled
from fireiron.values.machine import Block
from fireiron.values.units import THREAD, index_in, unit_in


class Executor:
    """Executes the statements of a batch."""

    def __init__(self, batch: BlockBatch, race_detector: RaceDetector, rings: Rings, totals: Totals | None = None) -> None:
        self.totals = Totals() if totals is None else totals
        self.batch, self.race_detector, self.rings, self.plan = batch, race_detector, rings, batch.plan
        self.temporary: dict[Any, Array] = {}
        self.statements = 0
        self.lines: list[Line] = []
        self.late: list[tuple[Array, Location, Array]] = []
        self.cluster: Sequence[Executor] = (self,)
        rings.on_complete = self.complete

    def execute(self, site: PlannedStatement, env: Environment, group: ThreadGroup) -> None:
        """Execute a statement that each thread executes individually."""
        if self.plan.uses_async_proxy:
            self._use_registers(site, env, group)
        accumulate = site.accumulate
        if not isinstance(accumulate, bool):
            accumulate = self._accumulate(site, env)
        inputs = [(name, operand, self.batch.location(site, operand, env, group)) for name, operand in site.inputs]
        outputs = []
        for name, write, read in site.outputs:
            location = self.batch.location(site, write, env, group)
            old = None if accumulate is False else location if accumulate is True else self.batch.location(site, read, env, group)
            outputs.append((name, write, read, location, old))
        self.statements += 1
        reads = [(operand, location) for _, operand, location in inputs] + [
            (read, old) for _, _, read, _, old in outputs if old is not None
        ]
        for access in (*reads, *((write, location) for _, write, _, location, _ in outputs)):
            if self.plan.in_rings:
                self.rings.require_owned(site, access[0], env, group, self.batch.where(env))
            if access[0].checked or not access[1].memory.complete:
                self.race_detector.check(site, (access,), env, group)
        if site.statement.mechanism.arrives:
            self._issue_copy(site, inputs, outputs, env, group)
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
            results = self._perform(site, inputs, outputs, accumulate)
            if site.statement.instruction.prints:
                self._print(site, inputs, results, env, group)
        if site.statement.mechanism.in_registers or site.statement.mechanism.reads_late:
            self._start_reading(site, inputs, env, group, group)

    def _use_registers(self, site: PlannedStatement, env: Environment, group: ThreadGroup) -> None:
        """Require that only MMAs access the registers of MMAs in flight, and that a fence precedes an MMA whose registers were accessed
        otherwise.
        """
        mma_registers = site.registers & self.plan.mma_registers
        written = mma_registers & site.written_registers
        mma = site.statement.mechanism.in_registers
        for member in group.members or (group,):
            # MMAs that accumulate into the same registers run in order, so they do not conflict. A operands in registers do.
            conflicting = {
                name
                for name, writes in member.conflicting
                if name in (mma_registers - written if mma and writes else mma_registers if writes else written)
            }
            if conflicting:
                self._refuse_registers(site, conflicting, env, "while an MMA that uses it is in flight", "wait for its group first")
            if not mma:
                member.accessed |= mma_registers
            elif not member.fenced:
                # PTX ISA, "wgmma.fence": the first MMA of a warpgroup needs one too, whatever accessed its registers.
                self._refuse_registers(site, mma_registers, env, "without a preceding wgmma.fence", "add wgmma.fence before the first MMA")
            elif mma_registers & member.accessed:
                when = "after other statements, without wgmma.fence between"
                self._refuse_registers(site, mma_registers & member.accessed, env, when, "add wgmma.fence before the MMA")

    def _refuse_registers(self, site: PlannedStatement, names: Iterable[str], env: Environment, when: str, hint: str) -> None:
        message = f"{', '.join(sorted(names))} is accessed by {site.what} {when}"
        raise SimulationError(message, within=self.batch.where(env), at=site.statement.origin, hint=hint)

    def _start_reading(self, site: PlannedStatement, inputs: list[Any], env: Environment, group: ThreadGroup, readers: ThreadGroup) -> None:
        """Record an MMA, or a store, in flight: its inputs are read until all threads that issued it have waited."""
        mma_registers = frozenset((name, name in site.written_registers) for name in site.registers & self.plan.mma_registers)
        done = self.race_detector.start_reading(
            site, [(operand, location) for _, operand, location in inputs if operand.checked], env, readers
        )
        members = group.members or (group,)
        stages = frozenset(stage for _, operand, _ in inputs for stage in self.rings.stages_of(operand, env))
        mma = PendingMma(len(members), mma_registers, done, stages)
        for member in members:
            member.in_flight[site.statement.mechanism].issued.append(mma)
            member.conflicting += mma_registers

    def _load(self, site: PlannedStatement, inputs: list[Any], outputs: list[Any], env: Environment, group: ThreadGroup) -> None:
        """Execute a TMA load: the values are in flight, and their target is poison until they arrive.

        In a cluster they may go to several blocks, and arrive in each at a separate time.
        """
        performed = site.assigned.mask(env, 2)
        if performed is not None and not performed.any():
            return
        ((name, write, _, location, _),) = outputs
        values = np.broadcast_to(site.statement.spec.perform(_values(inputs), False)[name], location.shape).copy()
        fill = int(np.asarray(compiled(site.statement.fill_index)(env)).flat[0])
        size = write.count * write.buffer.dtype.bytes  # the bytes of whole boxes, including out-of-bounds elements
        peers, where = site.statement.multicast, self.batch.where(env)
        for rings in self.rings.reached_rings(
            () if peers is None else (peers,), env, group, f"{write.buffer.name}: {site.what} arrives", where
        ):
            target = self.cluster[rings.rank].counterpart(write, location)
            if rings is not self.rings:
                rings.require_empty(site.statement.ring, fill, where)
            target.put(np.broadcast_to(_poison(location.memory.data.dtype, write.buffer.dtype.kind), location.shape))
            if not target.memory.complete:
                target.define()
            rings.start_load(Load(site.statement.ring, fill, size, functools.partial(target.put, values)))

    def counterpart(self, operand: Operand, location: Location) -> Location:
        """The same location in the blocks of this batch, given one in other blocks of the cluster."""
        memory = self.batch.memories[operand.buffer.name]
        if memory is location.memory:
            return location
        assert isinstance(location, (Rows, Flat)), location
        return type(location)(memory, location.rows)

    def _issue_copy(self, site: PlannedStatement, inputs: list[Any], outputs: list[Any], env: Environment, group: ThreadGroup) -> None:
        """Execute an asynchronous copy: the values are in flight, and their target is poison until they arrive."""
        ((name, write, _, location, _),) = outputs
        values = site.statement.spec.perform(_values(inputs), False)[name]
        location.put(np.broadcast_to(_poison(location.memory.data.dtype, write.buffer.dtype.kind), location.shape))
        group.in_flight[site.statement.mechanism].issued.append((site, write, location, np.broadcast_to(values, location.shape), dict(env)))
        self.rings.copy_issued(write, env)
        self.race_detector.start_copy(site, write, location, env, group)

    def complete_groups(self, group: ThreadGroup, pending: int, mechanism: Mechanism) -> None:
        """Complete the group's copies or MMAs, except for those of its `pending` last commits."""
        done = group.in_flight[mechanism].complete_groups(pending)
        if mechanism.in_registers and done:
            group.unfenced_reads.clear()  # a proxy fence follows the completion of a wgmma
        self.complete(done, group, mechanism)

    def complete(self, done: Iterable[Any], group: ThreadGroup, mechanism: Mechanism) -> None:
        """Complete operations of a group by a mechanism: copies have arrived, MMAs and stores have read their inputs."""
        if not mechanism.writes_late:
            for mma in done:
                mma.waiting -= 1
                for mma_registers in mma.registers:
                    group.conflicting.remove(mma_registers)
                if not mma.waiting:
                    mma.done(group.clock)
            return
        for site, write, location, values, env in done:
            location.put(values)
            self.rings.copy_completed(write, env)
            self.race_detector.end_copy(site, write, location, env, group)

    def _accumulate(self, site: PlannedStatement, env: Environment) -> Any:
        """Whether to accumulate into old values: a bool, or an array if threads, blocks or iterations differ."""
        assert isinstance(site.accumulate, Reading)
        vector = vector_environment(site, env)
        value = site.accumulate.at(vector, site.active.mask(vector, len(site.loops) + 2) if site.accumulate.tables else None)
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
        # A product above 128 KiB would leave the cache between multiplication and addition, so iterations run one by one.
        if axis is None or target.nbytes <= 1 << 17:
            product = self._temporary(target.shape, dtype)
            np.multiply(left, right, out=product)
            np.add(target, product, out=target)
            return
        lead = (slice(None),) * axis
        product = self._temporary(target[(*lead, 0)].shape, dtype)
        for index in range(target.shape[axis]):
            part = target[(*lead, index)]
            x = left[(*lead, index if left.shape[axis] > 1 else 0)]
            y = right[(*lead, index if right.shape[axis] > 1 else 0)]
            np.multiply(x, y, out=product)
            np.add(part, product, out=part)

    def _temporary(self, shape: tuple[int, ...], dtype: Any) -> Array:
        array = self.temporary.get((shape, dtype))
        if array is None:
            array = self.temporary[shape, dtype] = np.empty(shape, dtype)
        return array

    def _copy(self, site: PlannedStatement, source: Location, target: Location) -> None:
        values = source.get()
        if values.dtype != target.memory.data.dtype:
            values = site.statement.spec.perform({"src": values}, False)["dst"]
        target.put(values if isinstance(target, Window) else np.broadcast_to(values, target.shape))

    def _add(self, site: PlannedStatement, inputs: list[Any], outputs: list[Any], env: Environment, group: ThreadGroup) -> None:
        """Add the elements of each thread atomically; additions to the same location by several threads or blocks all count."""
        ((name, _, read, location, _),) = outputs
        values = site.statement.spec.perform(_values(inputs), False)[name]
        # Batches run in parallel, and all of them add to the same arrays.
        with self.race_detector.history.lock:
            if not location.memory.complete:
                self.race_detector.require_defined(site, read, location, env, group)
            # `+=` with an index array adds only once for repeated indices
            (formula,) = site.statement.spec.definition.formulas
            combining_function(formula.combiner).at(location.memory.flat, location.rows, np.broadcast_to(values, location.shape))

    def _print(self, site: PlannedStatement, inputs: list[Any], results: Mapping[str, Array], env: Environment, group: ThreadGroup) -> None:
        """Record the lines that the threads of a group print."""
        values = {name: _unfolded(_read(location, site.outside[name]), operand) for name, operand, location in inputs}
        ((name, write, _),) = site.outputs
        self.lines += lines(site, values, _folded(results[name], write), self.batch, env, group, self.statements)

    def _perform(self, site: PlannedStatement, inputs: list[Any], outputs: list[Any], accumulate: Any) -> Mapping[str, Array]:
        """The general case: move the element dimensions of operands to the front, then apply the spec. Return the results."""
        values = {name: _unfolded(_read(location, site.outside[name]), operand) for name, operand, location in inputs}
        for name, write, _, location, old in outputs:
            before = np.broadcast_to(np.zeros((), location.memory.data.dtype), location.shape) if old is None else old.get()
            values[name] = _unfolded(before, write)
        results = site.statement.spec.perform(values, accumulate, site.statement.instruction.rounds)
        for name, write, _, location, _ in outputs:
            # a formula without operands
            result = results[name] if np.ndim(results[name]) else np.broadcast_to(results[name], values[name].shape)
            location.put(np.broadcast_to(_folded(result, write), location.shape))
        return results

    def _copy_boxes(self, site: PlannedStatement, inputs: list[Any], outputs: list[Any], group: ThreadGroup) -> None:
        """Execute a TMA copy, element by element of its boxes. Stores to other GPUs land late."""
        ((name, write, _, location, _),) = outputs
        values = np.broadcast_to(site.statement.spec.perform(_values(inputs), False)[name], location.shape)
        if write.buffer.workspace and self.plan.kernel.exchanges:
            self.late.append((group.threads, location, values.copy()))
        else:
            location.put(values)

    def land(self, first: int, end: int) -> None:
        """Let the stores to other GPUs arrive that threads from `first` to `end` - 1 have issued."""
        here = [one for one in self.late if ((one[0] >= first) & (one[0] < end)).any()]
        self.late = [one for one in self.late if all(one is not other for other in here)]
        for _, location, values in here:
            location.put(values)

    # ------------------------------------------------------------------------------------------ instructions of several lanes

    def _by_lanes(self, site: PlannedStatement, inputs: list[Any], outputs: list[Any], accumulate: Any, group: ThreadGroup) -> None:
        """Gather tiles from the lanes, apply the spec, and distribute the results, as the lane maps specify."""
        lane_positions = self._lane_positions(site, group)
        values = {name: _gathered(location.get(), site.lane_maps[name], lane_positions) for name, _, location in inputs}
        for name, _, _, location, old in outputs:
            before = np.zeros((1,) * len(location.shape), location.memory.data.dtype) if old is None else old.get()
            values[name] = _gathered(before, site.lane_maps[name], lane_positions)
        if isinstance(accumulate, np.ndarray) and accumulate.shape[-2] > 1:  # the condition differs between units
            accumulate = accumulate[..., lane_positions[:, 0], :]
        results = site.statement.spec.perform(values, accumulate)
        for name, _, _, location, _ in outputs:
            location.put(_distributed(results[name], site.lane_maps[name], lane_positions, location.shape))

    def _lane_positions(self, site: PlannedStatement, group: ThreadGroup) -> Array:
        """Positions in the group of the lanes of each unit: `(units, lanes)`."""
        positions = group.lane_positions.get(site.level)
        if positions is None:
            env = {"thread": group.threads}
            thread = _thread(self.plan)
            unit, lane = (
                np.broadcast_to(compiled(number)(env), group.threads.shape)
                for number in (unit_in(site.level, Block, thread), index_in(site.level, thread))
            )
            lanes = site.level.threads
            assert lanes is not None
            order = np.lexsort((lane, unit))
            # skip incomplete units: a subset of the lanes cannot execute an instruction of all lanes
            whole = np.bincount(unit[order])[unit[order]] == lanes
            positions = group.lane_positions[site.level] = order[whole].reshape(-1, lanes)
        return positions

    # ------------------------------------------------------------------------------------------ collective statements

    def collective(self, site: PlannedStatement, env: Environment, group: ThreadGroup) -> None:
        """Execute a statement that units of threads execute together: on the whole operands, once per unit."""
        if self.plan.uses_async_proxy:
            self._use_registers(site, env, group)
        units = np.broadcast_to(np.asarray(compiled(unit_in(site.level, Block, _thread(self.plan)))(env)), (group.threads.size, 1))[:, 0]
        present, leaders = np.unique(units, return_index=True)
        unit = np.searchsorted(present, units)
        self._check_uniform(site, env, leaders[unit])
        leader_env: Environment = {name: _at_threads(value, leaders, group.threads.size) for name, value in env.items()}
        leaders_group = group.leaders.setdefault(site.level, ThreadGroup(group.threads[leaders], leader_env))
        leaders_group.clock = group.clock
        lasts = np.array([group.threads[units == one].max() for one in present])
        span = (group.threads[leaders], lasts)
        accumulate = site.accumulate if isinstance(site.accumulate, bool) else self._accumulate(site, leader_env)
        inputs = [
            (name, operand, self._unit_location(site, operand, env, leader_env, group, leaders_group, unit))
            for name, operand in site.inputs
        ]
        if looks_back(site.statement) and self._publish(site, inputs, leader_env):
            return
        outputs = []
        for name, write, read in site.outputs:
            location = self._unit_location(site, write, env, leader_env, group, leaders_group, unit)
            old = None if accumulate is False else self._unit_location(site, read, env, leader_env, group, leaders_group, unit)
            outputs.append((name, write, read, location, old))
        self.statements += 1
        reads = [(operand, location) for _, operand, location in inputs] + [
            (read, old) for _, _, read, _, old in outputs if old is not None
        ]
        accesses = [*reads, *((write, location) for _, write, _, location, _ in outputs)]
        if self.plan.in_rings:
            for operand, _ in accesses:
                self.rings.require_owned(site, operand, leader_env, group, self.batch.where(env))
        if site.statement.collective:
            for number in range(len(leaders)):
                self.race_detector.check(site, accesses, leader_env, leaders_group, (*span, number))
        else:
            for access in accesses:
                self.race_detector.check(site, (access,), leader_env, leaders_group)
        if site.scratch is not None:
            self._scratch(site, site.scratch, leader_env, leaders_group, group)
        if looks_back(site.statement):
            self._look_back(site, outputs, leader_env)
        elif site.atomic:
            self._add(site, inputs, outputs, leader_env, leaders_group)
        elif site.boxes is None:
            self._perform(site, inputs, outputs, accumulate)
        else:
            self._copy_boxes(site, inputs, outputs, leaders_group)
        if site.statement.mechanism.reads_late:
            self._start_reading(site, inputs, leader_env, group, leaders_group)

    def _publish(self, site: PlannedStatement, inputs: list[Any], env: Environment) -> bool:
        """Publish the totals of a tile; whether they were not published before."""
        key, tile = place_of(site.statement, env)
        if self.totals.is_published(key, tile):
            return False
        given = [_unfolded(_read(location, site.outside[name]), operand).reshape(-1) for name, operand, location in inputs]
        self.totals.publish(key, tile, given[::-1])
        return True

    def _look_back(self, site: PlannedStatement, outputs: list[Any], env: Environment) -> None:
        """Write the totals of the tiles before a tile. The words themselves are not simulated."""
        _, write, _, location, _ = outputs[-1]
        before = self.totals.before(site.statement.spec, *place_of(site.statement, env))
        shape = np.shape(_unfolded(np.zeros(location.shape, before.dtype), write))
        location.put(np.broadcast_to(_folded(before.reshape(shape), write), location.shape))

    def _check_uniform(self, site: PlannedStatement, env: Environment, leader: Array) -> None:
        """Require that all threads of a unit specify the same operands."""
        active = site.active.mask(env, 2)
        results = [value for value, _ in site.active.values(env, 2)]
        for operand in site.operand_list:
            results += [*(one.at(env, active) for one in operand.base), np.asarray(operand.copy(env))]
        for result in results:
            if result.ndim == 2 and result.shape[0] > 1 and (result != result[leader]).any():
                what = f"{site.what}: threads of one {site.level} specify different operands"
                raise SimulationError(what, within=self.batch.where(env), at=site.statement.origin)

    def _unit_location(
        self,
        site: PlannedStatement,
        operand: Operand,
        env: Environment,
        leader_env: Environment,
        group: ThreadGroup,
        leaders_group: ThreadGroup,
        unit: Array,
    ) -> Location:
        if operand.buffer.memory.private and site.statement.collective:
            return self._distributed_part(site, operand, env, leader_env, group, unit)
        return self.batch.compute(site, operand, leader_env, leaders_group)

    def _distributed_part(
        self, site: PlannedStatement, operand: Operand, env: Environment, leader_env: Environment, group: ThreadGroup, unit: Array
    ) -> DistributedPart:
        """The locations of a distributed operand, from the buffer's map of registers to elements."""
        units, count = int(unit.max()) + 1, math.prod(operand.sizes)
        owned, valid = _registers(operand, env, group)
        wanted, allowed = self._requested_elements(site, operand, leader_env, group, units)
        rows = np.arange(operand.elements)[:, None] * self.plan.kernel.threads + group.threads
        # One table holds the elements of all units, unit after unit: registers of different units never alias.
        where = np.broadcast_to(unit, rows.shape) * count + np.where(valid, owned, 0)
        keys = np.arange(units) * count + np.where(allowed, wanted, 0)
        owner = np.full(units * count, -1)
        owner[where[valid]] = rows[valid]
        sources = owner[keys]
        missing = np.argwhere(allowed & (sources < 0))
        if missing.size:
            element, number = missing[0]
            location = self._coordinate_text(operand, int(wanted[element, number]))
            what = f"{site.what}: no thread of {site.level} {number} has {operand.buffer.name}{location}"
            raise SimulationError(what, within=self.batch.where(env), at=site.statement.origin)
        # Several threads may have a copy of an element: one of them is read, all of them are written.
        position = np.full(units * count, -1)
        position[keys[allowed]] = np.arange(keys.size).reshape(keys.shape)[allowed]
        selected = valid & (position[where] >= 0)
        memory = self.batch.memories[operand.buffer.name]
        return DistributedPart(memory, np.where(allowed, sources, memory.zero), rows[selected], position[where[selected]])

    def _requested_elements(
        self, site: PlannedStatement, operand: Operand, leader_env: Environment, group: ThreadGroup, units: int
    ) -> tuple[Array, Array]:
        """The element indices that each unit's statement names, and the in-bounds mask: `(elements, units)`."""
        mask, coordinates, _ = self.batch.coordinates(site, operand, leader_env, group)
        wanted = _element_numbers(coordinates, operand.sizes)
        wanted = np.broadcast_to(wanted, (operand.count, units, wanted.shape[-1]))[..., 0]
        allowed = np.broadcast_to(np.True_ if mask is None else mask, (operand.count, units, 1 if mask is None else mask.shape[-1]))[..., 0]
        return wanted, allowed

    def _coordinate_text(self, operand: Operand, number: int) -> str:
        digits: list[int] = []
        for size in reversed(operand.sizes):
            number, digit = divmod(number, max(size, 1))
            digits.append(digit)
        return f"[{', '.join(map(str, reversed(digits)))}]"

    def _scratch(self, site: PlannedStatement, operand: Operand, env: Environment, leaders_group: ThreadGroup, group: ThreadGroup) -> None:
        """Treat the statement's scratch memory as written by all threads, with undefined contents afterwards."""
        memory = self.batch.memories[operand.buffer.name]
        location = Rows(memory, memory.first + np.arange(memory.rows)[:, None])
        ends = (group.threads[:1], group.threads[-1:], 0)
        self.race_detector.check(site, ((operand, location),), env, leaders_group, ends)
        memory.data[memory.first : memory.first + memory.rows].view(np.uint8)[:] = POISON[operand.buffer.dtype.kind]
        if memory.defined is not None:
            memory.defined[memory.first : memory.first + memory.rows] = False
            memory.complete = False


def _registers(operand: Operand, env: Environment, group: ThreadGroup) -> tuple[Array, Array]:
    """The element index of each register of each thread, and whether it belongs to the buffer: `(registers, threads)`."""
    register = Var("#register", 0, max(operand.elements - 1, 0))
    values = {**env, register.name: np.arange(operand.elements)[:, None, None]}
    coordinates = [np.asarray(compiled(coordinate)(values)) for coordinate in operand.buffer.register_coordinates(register)]
    valid: Array = np.True_
    for value, size in zip(coordinates, operand.sizes, strict=True):
        valid = valid & (value >= 0) & (value < size)
    # Registers map to the same elements in all blocks of the batch, so the values of the first block suffice.
    owned, valid = (
        np.broadcast_to(part, (operand.elements, group.threads.size, max(part.shape[-1:] or (1,))))[..., 0]
        for part in (_element_numbers(coordinates, operand.sizes), valid)
    )
    return owned, valid


def _values(inputs: list[Any]) -> dict[str, Array]:
    """The values of the only input of a copy or an addition, by name."""
    ((name, _, location),) = inputs
    return {name: location.get()}


def _element_numbers(coordinates: Iterable[Array], sizes: Iterable[int]) -> Array:
    """The element index of coordinates, the last dimension fastest."""
    number: Array = np.int64(0)
    for coordinate, size in zip(coordinates, sizes, strict=True):
        number = number * size + coordinate
    return number


def _poison(dtype: Any, kind: str) -> Array:
    return np.full(np.dtype(dtype).itemsize, POISON[kind], np.uint8).view(dtype)


def _gathered(values: Array, lane_map: LaneMap, lane_positions: Array) -> Array:
    """Arrange values `(values, loops, threads, blocks)` as tiles: tile dimensions, loops, units, blocks."""
    lanes = lane_positions.shape[1]
    values = np.broadcast_to(
        values, (lane_map.count, *values.shape[1:-2], max(values.shape[-2], int(lane_positions.max(initial=0)) + 1), values.shape[-1])
    )
    parts = np.moveaxis(values[..., lane_positions.T, :], -3, 1)
    source = np.empty(math.prod(lane_map.tile), np.int64)
    source[lane_map.numbers.T.ravel()] = np.arange(lane_map.count * lanes)
    tiles = parts.reshape(lane_map.count * lanes, *parts.shape[2:]).take(source, axis=0)
    return tiles.reshape(*lane_map.tile, *tiles.shape[1:])


def _distributed(tiles: Array, lane_map: LaneMap, lane_positions: Array, shape: tuple[int, ...]) -> Array:
    """Distribute tiles to the lanes; threads of incomplete units get zeros."""
    lanes = lane_positions.shape[1]
    rank = len(lane_map.tile)
    flat = tiles.reshape(math.prod(lane_map.tile), *tiles.shape[rank:])
    parts = flat.take(lane_map.numbers.T.ravel(), axis=0)
    parts = np.moveaxis(parts.reshape(lane_map.count, lanes, *parts.shape[1:]), 1, -3)
    result = np.zeros((lane_map.count, *parts.shape[1:-3], shape[-2], parts.shape[-1]), tiles.dtype)
    result[..., lane_positions.T, :] = parts
    return np.broadcast_to(result, shape)


def _thread(plan: Plan) -> Var:
    return Var(THREAD.name, 0, plan.kernel.workers - 1)


def _at_threads(value: Any, chosen: Array, threads: int) -> Any:
    """A named value, restricted to some threads."""
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.shape[0] == threads and threads > 1:
        return value[chosen]
    return value


def _read(location: Location, outside: float) -> Array:
    """The values at a location; out-of-bounds elements have the value `outside`, because masked reads alone would give zero."""
    if not outside or not isinstance(location, (Rows, Flat)):
        return location.get()
    return np.where(location.masked(), np.asarray(outside).astype(location.memory.data.dtype), location.get())


def _unfolded(values: Array, operand: Operand) -> Array:
    """Split the element axis into the dimensions of the operand's view."""
    if not operand.tile:
        (only,) = values
        return only
    if operand.count == 1:
        return values.reshape((1,) * (len(operand.tile) - 1) + values.shape)
    if operand.element_order is not None:
        values = values[operand.element_order]
    rank = len(operand.tile)
    values = values.reshape((*operand.tile[::-1], *values.shape[1:]))
    return values.transpose((*(rank - 1 - axis for axis in operand.order), *range(rank, values.ndim)))


def _folded(values: Array, operand: Operand) -> Array:
    """The dimensions of the operand's view as one element axis, in the order of its elements."""
    rank = len(operand.tile)
    values = values.transpose((*(operand.order.index(axis) for axis in reversed(range(rank))), *range(rank, values.ndim)))
    values = values.reshape((operand.count, *values.shape[rank:]))
    return values if operand.element_order is None else values[np.argsort(operand.element_order)]
