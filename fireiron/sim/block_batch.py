"""A batch of blocks that are simulated together: their memory, and the locations of accesses in it.

Coordinates, masks and addresses are computed for all elements, vector loops, threads and blocks at once, and cached while the loops that
they depend on do not advance. Out-of-bounds coordinates and addresses are reported here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping

import numpy as np

from fireiron.errors import SimulationError
from fireiron.sim.conditions import aligned, both
from fireiron.sim.locations import (
    CoordinateValues,
    Flat,
    Location,
    OverlappingWrites,
    Rows,
    ThreadGroup,
    Window,
    first_true,
    pick,
    steps_of,
    vector_environment,
)
from fireiron.sim.memory import Global, Memory, coordinate_memory, registers, shared_memory
from fireiron.sim.plan import Array, Environment, Operand, Plan, PlannedStatement
from fireiron.sim.tma_boxes import LINE, PIECE, TmaBoxes
from fireiron.values import affine
from fireiron.values.expr import ZERO, constant, table
from fireiron.values.indirect import Table
from fireiron.values.machine import int32

WARP = 32


class Numbers:
    """The elements of an array of integers, as functions of their place: none below 0, or `signed`."""

    def __init__(self, parameter: Global, mask: Array = True) -> None:
        self.parameter, self.mask = parameter, mask

    def where(self, mask: Array) -> Numbers:
        """The same for the threads of a mask; the others read nothing, and get 0."""
        return Numbers(self.parameter, mask)

    def __call__(self, place: Array) -> Array:
        return self.parameter.element(place, self.mask)

    def signed(self, place: Array) -> Array:
        """The elements as they are."""
        return self.parameter.signed(place, self.mask)


class BlockBatch:
    """Blocks that run together, as the last axis of all arrays."""

    def __init__(self, plan: Plan, parameters: Mapping[str, Global], blocks: tuple[int, ...], track_all: bool) -> None:
        self.plan, self.blocks = plan, blocks
        self.width = len(blocks)
        self.numbers = np.array(blocks, dtype=np.int64)[None, :]
        self.memories: dict[str, Memory] = {name: one.memory for name, one in parameters.items()}
        self.tables = {table(name).name: Numbers(one) for name, one in parameters.items() if one.buffer.dtype == int32}
        self.parameters = parameters
        self.memories |= shared_memory(plan, self.width, track_all)
        for buffer in plan.kernel.buffers:
            if buffer.memory.private:
                self.memories[buffer.name] = registers(plan, buffer, self.width, track_all)
            elif buffer.memory.is_coordinate:
                self.memories[buffer.name] = coordinate_memory(buffer)
        self.read_bytes = self.written_bytes = 0
        # The blocks that executed a write to global memory, and those with a written element in bounds.
        self.has_write, self.in_bounds_write = (np.zeros(self.width, dtype=bool) for _ in range(2))

    def all_lanes_zero(self, needed: str, group: ThreadGroup) -> Array:
        """For each thread of a group and each block, whether its warp has only zeros in some registers."""
        (number, _), *_ = self.registers_of((needed,), group).values()
        present, warps = np.unique(group.threads // WARP, return_inverse=True)
        any_nonzero = np.zeros((len(present), self.width), dtype=bool)
        np.logical_or.at(any_nonzero, warps, (number != 0).any(axis=0))
        return ~any_nonzero[warps]

    def registers_of(self, names: Iterable[str], group: ThreadGroup) -> dict[str, tuple[Array, Array | None]]:
        """Copies of the threads' registers, `(registers, threads, blocks)`, and the mask of written ones, if it is tracked."""
        registers = {}
        for name in names:
            memory, rows = self._rows_of(name, group)
            registers[name] = (memory.data[rows], None if memory.defined is None else memory.defined[rows])
        return registers

    def restore(self, saved: Mapping[str, tuple[Array, Array | None]], where: Array, group: ThreadGroup) -> None:
        """Restore the registers of threads for which `where` holds."""
        for name, (values, defined) in saved.items():
            memory, rows = self._rows_of(name, group)
            memory.data[rows] = np.where(where, values, memory.data[rows])
            if memory.defined is not None:
                memory.defined[rows] = np.where(where, defined, memory.defined[rows])
                memory.complete = memory.complete and bool(memory.defined[rows].all())

    def _rows_of(self, name: str, group: ThreadGroup) -> tuple[Memory, Array]:
        memory, threads = self.memories[name], self.plan.kernel.threads
        return memory, np.arange(0, memory.rows, threads)[:, None] + group.threads

    def location(self, site: PlannedStatement, operand: Operand, env: Environment, group: ThreadGroup) -> Location:
        """The location of an access, from the group's cache if some surrounding loop does not move it."""
        # Every surrounding loop moves it, so no location would be reused.
        if not operand.cacheable and operand.key:
            return self.compute(site, operand, env, group)
        key = (operand, *(env[name] for name in operand.key))
        location = group.location_cache.get(key)
        if location is None:
            location = group.location_cache[key] = self.compute(site, operand, env, group)
        return location

    def compute(self, site: PlannedStatement, operand: Operand, env: Environment, group: ThreadGroup) -> Location:
        """Compute and check the location of an access."""
        if operand.buffer.memory.is_coordinate:
            rank = len(site.loops) + 3
            vector = vector_environment(site, env)
            values = self._dimension(operand, 0, vector, rank, self._conditions(operand, vector, rank))[0]
            return CoordinateValues(values, self.memories[operand.buffer.name])
        memory, private = self.memories[operand.buffer.name], operand.buffer.memory.private
        mask, coordinates, parts = self.coordinates(site, operand, env, group)
        env = vector_environment(site, env)
        numbers = self.address(site, operand, env, mask, coordinates, parts, group)
        self._check_vectors(site, operand, env, mask, numbers, group)
        if operand.boxes is not None:
            mask, numbers = self._with_boxes(operand.boxes, site, operand, env, coordinates, numbers)
        if private and mask is None:
            view = self._view(site, operand, env, numbers, group)
            if view is not None:
                return view
        rows = numbers * self.plan.kernel.threads + group.threads[:, None] if private else numbers + memory.first
        if operand.write and site.loops:
            self._check_distinct(self._full(site, env, operand, rows[..., 0], group))
        if mask is not None:
            # Masked reads get zero; masked writes go to the row after it, which is never read. The third one is outside of an array.
            outside = self._outside(operand, env, memory.zero + operand.write, len(site.loops) + 3)
            rows = np.where(mask, rows, outside)
        if operand.buffer.memory.of_grid:
            self._count_bytes(site, operand, rows, mask, env, group)
            return Flat(memory, self._full(site, env, operand, rows, group, self.width) if operand.write else rows)
        if rows.shape[-1] == 1:
            rows = rows.squeeze(axis=-1)
            return Rows(memory, self._full(site, env, operand, rows, group) if operand.write else rows)
        rows = rows * self.width + np.arange(self.width)
        return Flat(memory, self._full(site, env, operand, rows, group, self.width) if operand.write else rows)

    def _with_boxes(
        self, boxes: TmaBoxes, site: PlannedStatement, operand: Operand, env: Environment, coordinates: list[Array], starts: Array
    ) -> tuple[Array | None, Array]:
        """The mask of participating elements of a tensor map's boxes, and their addresses in the buffer as TMA computes them."""
        mask = self._conditions(operand, env, len(site.loops) + 3)
        if operand.buffer.memory.of_grid:
            if boxes.extents:
                mask = both(mask, ~boxes.outside_of_array(coordinates))
            for value, size in zip(coordinates, operand.sizes, strict=True) if not boxes.extents else ():
                mask = both(mask, (value >= 0) & (value < size))
            looked_up = []
            for looked in operand.storage.tables:
                number, most = self.parameters[looked.array].numbers(looked.place(coordinates)), int(looked.most.evaluate({}))
                mask = both(mask, (number >= 0) & (number <= most))
                looked_up.append(np.clip(number, 0, most))
            unaligned = boxes.unaligned_starts(coordinates, looked_up, operand.buffer.dtype.bytes)
            if (wrong := unaligned[unaligned != -1]).size:
                raise SimulationError(
                    f"{site.what}: a box starts at element {int(wrong[0])} of a row of {operand.buffer.name}, an illegal instruction",
                    legal=f"multiples of {PIECE} bytes", within=self.where(env), at=site.statement.origin,
                )  # fmt: skip
            numbers = boxes.addresses(coordinates, looked_up)
        else:
            offset, size = operand.buffer.offset, operand.buffer.dtype.bytes
            places = starts * size + offset
            if (places % LINE).any():
                what = f"{site.what}: a box of its tensor map starts at byte {int(places[places % LINE != 0][0])} of shared memory"
                raise SimulationError(what, legal=f"multiples of {LINE}", within=self.where(env), at=site.statement.origin)
            numbers = (boxes.places(places) - offset) // size
        bad = (numbers < 0) | (numbers >= operand.total)
        bad = bad if mask is None else bad & mask
        if bad.any():
            verb = "writes to" if operand.write else "reads from"
            raise SimulationError(
                f"{site.what}: TMA {verb} address {int(np.broadcast_to(numbers, bad.shape)[bad][0])} of {operand.buffer.name}, "
                "which is outside of the buffer",
                legal=f"0 ... {operand.total - 1}",
                within=self.where(env),
                at=site.statement.origin,
                hint="the boxes of the tensor map do not match the tile of the statement",
            )
        return mask, numbers

    def _conditions(self, operand: Operand, vector: Environment, rank: int) -> Array | None:
        """Where the conditions of a statement hold; None: everywhere."""
        return operand.conditions.mask(vector, rank)

    def _outside(self, operand: Operand, vector: Environment, row: int, rank: int) -> Array:
        """The rows that elements read which are not accessed: zero out of bounds, and the value outside of an array in bounds."""
        if not operand.within:
            return np.asarray(row)
        values = {piece.outside for piece in operand.pieces}
        if values != {operand.storage.outside}:
            raise SimulationError(
                f"{operand.buffer.name} is {', '.join(map(str, values))} outside of its array, for accesses that test the index",
                legal=f"{operand.storage.outside}, as its storage states", at=operand.origin,
            )  # fmt: skip
        active = operand.active.mask(vector, rank)
        within = np.broadcast_arrays(*(one.holds(vector, rank, active) for one in operand.within))
        return np.where(np.concatenate(within).take(operand.piece_of, axis=0), row + 2, row)

    def _full(self, site: PlannedStatement, env: Environment, operand: Operand, rows: Array, group: ThreadGroup, *blocks: int) -> Array:
        """Broadcast the index arrays of writes to every iteration, thread and block."""
        shape = (operand.count, *(env[name].size for name, _ in site.loops), group.threads.size, *blocks)
        return rows if rows.shape == shape else np.ascontiguousarray(np.broadcast_to(rows, shape))

    def _check_distinct(self, rows: Array) -> None:
        """Require that iterations of a vector loop write different elements; masks only remove elements."""
        if np.unique(rows).size != rows.size:
            raise OverlappingWrites

    def _count_bytes(
        self, site: PlannedStatement, operand: Operand, rows: Array, mask: Array | None, env: Environment, group: ThreadGroup
    ) -> None:
        """Count the bytes of global memory that all threads request."""
        size = operand.count * math.prod(env[name].size for name, _ in site.loops) * group.threads.size * self.width
        if mask is not None:
            size = size * int(np.count_nonzero(mask)) // mask.size
        if operand.write:
            self.written_bytes += size * operand.buffer.dtype.bytes
            self.has_write |= self._by_block(site.assigned.mask(env, len(site.loops) + 3))
            self.in_bounds_write |= self._by_block(mask)
        else:
            self.read_bytes += size * operand.buffer.dtype.bytes

    def _by_block(self, mask: Array | None) -> Array:
        """The blocks in which a mask holds somewhere."""
        if mask is None or mask.ndim == 0:
            return np.full(self.width, mask is None or bool(mask))
        return np.broadcast_to(mask.any(axis=tuple(range(mask.ndim - 1))), self.width)

    def _view(self, site: PlannedStatement, operand: Operand, env: Environment, numbers: Array, group: ThreadGroup) -> Window | None:
        """The registers as a strided window, if their indices are equal in all threads and affine in the loops."""
        same = numbers[..., :1, :1]
        if (numbers != same).any():
            return None
        window = same[..., 0, 0]
        if operand.write:
            window = np.broadcast_to(window, (operand.count, *(env[name].size for name, _ in site.loops)))
            if site.loops:
                self._check_distinct(window)
        return None if steps_of(window) is None else Window(self.memories[operand.buffer.name], window, self.plan.kernel.threads, group)

    def coordinates(
        self, site: PlannedStatement, operand: Operand, env: Environment, group: ThreadGroup
    ) -> tuple[Array | None, list[Array], list[tuple[Array, int, int]]]:
        """The mask of participating elements, their coordinates, and each coordinate's contribution to the address with its range."""
        vector = vector_environment(site, env)
        rank = len(site.loops) + 3
        mask = self._conditions(operand, vector, rank)
        if operand.parts:
            parts_hold = np.broadcast_arrays(*(one.holds(vector, rank, mask) for one in operand.parts))
            mask = both(mask, np.concatenate(parts_hold).take(operand.part_of, axis=0))
        coordinates, parts, doubtful = [], [], False
        for dim in range(len(operand.base)):
            names = operand.keys[dim]
            reused = len(names) < len(site.enclosing) and not operand.reads_tables[dim]  # a mask may move with other loops
            key = (operand, dim, *(env[name] for name in names)) if reused else None
            part = group.part_cache.get(key) if key is not None else None
            if part is None:
                part = self._dimension(operand, dim, vector, rank, mask)
                if key is not None:
                    group.part_cache[key] = part
            value, contribution, inside, ok = part
            mask = both(mask, inside)
            coordinates.append(value)
            parts.append(contribution)
            doubtful |= not ok
        if doubtful:
            self._check_coordinates(site, operand, vector, mask, coordinates, group)
        for looked_up in operand.storage.tables:
            parts.append(self._looked_up(site, operand, looked_up, vector, mask, coordinates, group))
        for computed in operand.storage.computed:
            part = np.asarray(computed.of(coordinates) * int(computed.stride.evaluate({})))
            parts.append((part, int(part.min()), int(part.max())))
        if operand.boxes is not None and operand.boxes.extents and operand.buffer.memory.of_grid:  # TMA reads zeros there
            mask = both(mask, ~operand.boxes.outside_of_array(coordinates))
        for index_window in operand.storage.windows if operand.boxes is None else ():
            self._require_in_array(site, operand, index_window, vector, mask, coordinates, group)
        if operand.storage.offset != ZERO:
            offset = int(operand.storage.offset.evaluate({}))
            parts.append((np.asarray(offset), offset, offset))
        return mask, coordinates, parts

    def _require_in_array(
        self,
        site: PlannedStatement,
        operand: Operand,
        window: affine.Window,
        env: Environment,
        mask: Array | None,
        coordinates: list[Array],
        group: ThreadGroup,
    ) -> None:
        """Require that an affine index of each accessed element is inside of the array. Raises: SimulationError for another one."""
        bad = window.misses(coordinates)
        bad = bad if mask is None else bad & mask
        if bad.any():
            where = first_true(bad, site, group)
            element = ", ".join(str(pick(one, where[0])) for one in coordinates)
            raise SimulationError(
                f"{operand.buffer.name}[{element}] is not in its array: thread {where[1]} of block {self.block(where[2])} "
                f"{'writes' if operand.write else 'reads'} it",
                got=f"the affine index is {pick(window.index.of(coordinates), where[0])}",
                legal=f"0 ... {constant(window.extent - 1)}",
                within=f"{site.what}, {self.where(env, where[3])}",
                at=operand.origin or site.statement.origin,
                hint="a guard is missing or wrong",
            )

    def _looked_up(
        self,
        site: PlannedStatement,
        operand: Operand,
        table: Table,
        env: Environment,
        mask: Array | None,
        coordinates: list[Array],
        group: ThreadGroup,
    ) -> tuple[Array, int, int]:
        """The part of addresses that an array of integers determines, with its range.

        Raises: SimulationError for a number that is not an index, although an element that is accessed uses it.
        """
        numbers = self.parameters[table.array].numbers(table.place(coordinates))
        most = int(table.most.evaluate({}))
        bad = (numbers < 0) | (numbers > most)
        bad = bad if mask is None else bad & mask
        if bad.any() and operand.boxes is None:  # TMA reads zeros
            where = first_true(bad, site, group)
            element = ", ".join(str(pick(one, where[0])) for one in coordinates)
            raise SimulationError(
                f"{operand.buffer.name}[{element}] is element {pick(numbers, where[0])} of its array, by {table.array}: thread {where[1]} "
                f"of block {self.block(where[2])} {'writes' if operand.write else 'reads'} it",
                legal=f"0 ... {most}",
                within=f"{site.what}, {self.where(env, where[3])}",
                at=operand.origin or site.statement.origin,
                hint=f"correct {table.array}: it is in range for all elements that the kernel accesses",
            )
        part = np.clip(numbers, 0, most) * int(table.stride.evaluate({}))
        return part, int(part.min()), int(part.max())

    def _dimension(
        self, operand: Operand, dim: int, env: Environment, rank: int, mask: Array | None
    ) -> tuple[Array, tuple[Array, int, int], Array | None, bool]:
        """Return the coordinates, their contribution to the address with its range, and the in-bounds mask; last, whether all participating
        coordinates are provably in bounds.
        """
        value = aligned(operand.base[dim].at(env, mask), rank)
        if operand.count > 1:
            value = value + operand.offsets[dim].reshape((-1,) + (1,) * (rank - 1))
        low, high = int(value.min()), int(value.max())
        bound, inside = operand.bounds[dim], None
        size = operand.sizes[dim]
        ok = low >= 0 and high < size
        if bound is not None:
            limit = bound.at(env, mask)
            if (high >= limit).any():
                inside = value < limit
                ok = low >= 0 and bool((limit <= size).all())
        digit = aligned(np.asarray(operand.storage.part(dim, value)), rank)
        return value, (digit, int(digit.min()), int(digit.max())), inside, ok

    def _check_coordinates(
        self, site: PlannedStatement, operand: Operand, env: Environment, mask: Array | None, coordinates: list[Array], group: ThreadGroup
    ) -> None:
        for dim, (value, size) in enumerate(zip(coordinates, operand.sizes, strict=True)):
            bad = (value < 0) | (value >= size)
            bad = bad if mask is None else bad & mask
            if bad.any():
                where = first_true(bad, site, group)
                element = tuple(pick(one, where[0]) for one in coordinates)
                raise SimulationError(
                    f"{operand.buffer.name}[{', '.join(map(str, element))}] is outside of the tensor: thread {where[1]} of block "
                    f"{self.block(where[2])} {'writes' if operand.write else 'reads'} it",
                    got=f"coordinate {dim} is {element[dim]}",
                    legal=f"0 ... {size - 1}",
                    within=f"{site.what}, {self.where(env, where[3])}",
                    at=operand.origin or site.statement.origin,
                    hint="a guard is missing or wrong",
                )

    def address(
        self,
        site: PlannedStatement,
        operand: Operand,
        env: Environment,
        mask: Array | None,
        coordinates: list[Array],
        parts: list[tuple[Array, int, int]],
        group: ThreadGroup,
    ) -> Array:
        """Addresses in elements from the start of the buffer. Raises `SimulationError` for the first one outside of it."""
        low, high = sum(part[1] for part in parts), sum(part[2] for part in parts)
        # Small arrays first: only the last additions are of full size.
        ordered = sorted((part[0] for part in parts), key=lambda one: one.size)
        address = functools.reduce(np.add, ordered) if ordered else np.zeros((1,) * (len(site.loops) + 3), np.int64)
        swizzle = operand.storage.swizzle
        if swizzle is not None:
            address = swizzle.expression(address)
        copy = np.asarray(operand.copy(env))
        if copy.any():
            address = address + copy * operand.elements
            low, high = low + int(copy.min()) * operand.elements, high + int(copy.max()) * operand.elements
        if not (swizzle is None and low >= 0 and high < operand.total):
            bad = (address < 0) | (address >= operand.total)
            bad = bad if mask is None else bad & mask
            if bad.any():
                where = first_true(bad, site, group)
                element = tuple(pick(one, where[0]) for one in coordinates)
                raise SimulationError(
                    f"address {pick(address, where[0])} of {operand.buffer.name}[{', '.join(map(str, element))}] is outside of the buffer: "
                    f"thread {where[1]} of block {self.block(where[2])} {'writes' if operand.write else 'reads'} it",
                    legal=f"0 ... {operand.total - 1}",
                    within=f"{site.what}, {self.where(env, where[3])}",
                    at=operand.origin or site.statement.origin,
                )
        return address

    def _check_vectors(
        self, site: PlannedStatement, operand: Operand, env: Environment, mask: Array | None, numbers: Array, group: ThreadGroup
    ) -> None:
        """Require that the elements of one load or store are contiguous and start at a multiple of its size."""
        buffer = operand.buffer
        for piece in operand.vectors:
            taken = numbers[piece.first : piece.first + piece.width]
            start, size = taken[0], piece.width * buffer.dtype.bytes
            steps = np.arange(piece.width).reshape((-1,) + (1,) * (numbers.ndim - 1))
            bad = ((start * buffer.dtype.bytes + buffer.offset) % size != 0) | (taken - start != steps).any(axis=0)
            # In shared memory the exact offset is known; of any other array only its alignment `align` is known.
            bad = bad | (buffer.tensor.align % size != 0 and not buffer.memory.of_block)
            bad = bad if mask is None else bad & mask[min(piece.first, len(mask) - 1)]
            if bad.any():
                where = first_true(bad[None], site, group)
                addresses = ", ".join(str(pick(one[None], where[0])) for one in taken)
                raise SimulationError(
                    f"{buffer.name}: a vector of {piece.width} elements at addresses {addresses}: thread {where[1]} of block "
                    f"{self.block(where[2])} {'writes' if operand.write else 'reads'} them",
                    legal=f"{piece.width} contiguous elements, the first at a multiple of {size} bytes",
                    within=f"{site.what}, {self.where(env, where[3])}",
                    at=operand.origin or site.statement.origin,
                    hint="the pass vectorize is wrong, or the buffer starts elsewhere",
                )

    def idle(self) -> Array:
        """The blocks, by position, that executed writes to global memory, all of which were out of bounds."""
        return np.flatnonzero(self.has_write & ~self.in_bounds_write)

    def block(self, position: int) -> int:
        """The number of a block of the batch, by position."""
        return int(self.blocks[min(position, self.width - 1)])

    def where(self, env: Environment, more: Mapping[str, int] | None = None) -> str:
        """Format the values of loops for a message."""
        names = {name: value for name, value in env.items() if isinstance(value, int) and name not in self.plan.symbols}
        return ", ".join(f"{name}={value}" for name, value in {**names, **(more or {})}.items()) or "outside loops"
