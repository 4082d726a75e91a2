"""Registers, shared and global memory as NumPy arrays, filled with poison.

Private and shared buffers have one column per block of a batch. Global memory is one flat array per parameter, with guards around it, which
all batches share. A mask of written elements is kept if poison cannot detect unwritten ones: for integers, and with `track_all` for floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from fireiron.errors import ArgumentError, SimulationError
from fireiron.ir import Buffer
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.sim.plan import Array, Plan
from fireiron.specs.fused import fused, positive_numbers
from fireiron.values.orders import MatrixLayout
from fireiron.values.scalars import value_of

POISON: Final = {"float": 0xFF, "int": 0x5A}
"""The byte that fills fresh memory: floats are NaN; integers are 0x5A5A..., and a mask detects reads of them."""


class Memory:
    """The rows of one buffer: `rows` of them from row `first`, each with the value of every block of a batch.

    Two rows follow the array: a zero row for masked reads, and one for masked writes. An array with affine indices that may leave it has a
    third one, with the value outside of it. `defined` masks the written values, if they are
    tracked.
    """

    def __init__(self, data: Array, first: int, rows: int, zero: int, defined: Array | None) -> None:
        self.data, self.first, self.rows, self.zero, self.defined = data, first, rows, zero, defined
        self.flat = data.reshape(-1)
        self.width = data.shape[1]
        self.complete = defined is None
        self.checks = 0

    def update_complete(self) -> None:
        """Check from time to time whether everything was written, so that tracking can stop."""
        self.checks += 1
        # at powers of two: a check costs as much as it saves, so checks become rarer
        if self.checks & (self.checks - 1) == 0 and self.defined is not None:
            self.complete = bool(self.defined[self.first : self.first + self.rows].all())


def _mask_of(data: Array, zero: int, tracked: bool) -> Array | None:
    if not tracked:
        return None
    defined = np.zeros(data.shape, dtype=bool)
    defined[zero:] = True
    return defined


def registers(plan: Plan, buffer: Buffer, width: int, track_all: bool) -> Memory:
    """Registers of all threads: one row per register index and thread."""
    rows = max(plan.number(buffer.total), 1) * plan.kernel.threads
    data = np.empty((rows + 2, width), buffer.dtype.to_numpy())
    data.view(np.uint8)[:] = POISON[buffer.dtype.kind]
    data[rows] = 0  # the zero row: masked reads of out-of-bounds elements use it
    return Memory(data, 0, rows, rows, _mask_of(data, rows, track_all or buffer.dtype.kind == "int"))


def coordinate_memory(buffer: Buffer) -> Memory:
    """The memory of coordinate tensors, which store nothing."""
    return Memory(np.zeros((2, 1), buffer.dtype.to_numpy()), 0, 0, 0, None)


def shared_memory(plan: Plan, width: int, track_all: bool) -> dict[str, Memory]:
    """Shared buffers by name; overlapping buffers are views of the same bytes."""
    result = {}
    _check_extent(plan)
    for group in plan.components:
        start = group[0].offset
        size = max(buffer.offset + buffer.bytes for buffer in group) - start
        # Whole elements of every type, followed by two rows of the largest: zeros for masked reads, and a target of masked writes.
        size = -(-size // 16) * 16
        raw = np.empty((size + 32) * width, np.uint8)
        # NaN shows in a result; unwritten integers are detected by their mask.
        raw[:] = POISON["float" if any(buffer.dtype.kind == "float" for buffer in group) else "int"]
        raw[size * width :] = 0
        for buffer in group:
            dtype = buffer.dtype.to_numpy()
            data = raw.view(dtype).reshape(-1, width)
            zero = size // dtype.itemsize
            first = (buffer.offset - start) // dtype.itemsize
            tracked = track_all or buffer.dtype.kind == "int"
            result[buffer.name] = Memory(data, first, plan.number(buffer.total), zero, _mask_of(data, zero, tracked))
    return result


def _check_extent(plan: Plan) -> None:
    """Raise if a used buffer exceeds the shared memory of the block. Other regions have higher addresses."""
    for buffer in plan.shared_in_use:
        if not buffer.memory.in_shared:
            legal = plan.kernel.shared_bytes <= buffer.offset
        else:
            legal = buffer.offset >= 0 and buffer.offset + buffer.bytes <= plan.kernel.shared_bytes
        if not legal:
            raise SimulationError(
                f"{buffer.name} occupies bytes {buffer.offset} ... {buffer.offset + buffer.bytes - 1} of shared memory",
                legal=f"0 ... {plan.kernel.shared_bytes - 1}",
            )


class Global:
    """A parameter in flat global memory, with poisoned guard rows around it and poison in the padding between rows."""

    def __init__(self, plan: Plan, buffer: Buffer, given: Array | None, track_all: bool, known: Array | None = None) -> None:
        self.buffer = buffer
        self.shape = tuple(plan.number(size) for size in buffer.array.shape)
        dtype = buffer.dtype.to_numpy()
        extent = plan.number(buffer.elements)
        # An access one row or column too far should hit poison, not the end of the array: the guard covers the longest stride, up to 2**14.
        guard = min(max([64, *(extent // max(size, 1) for size in self.shape)]), 1 << 14)
        has_windows = bool(buffer.storage.windows)
        self.flat = np.empty(2 * guard + extent + 2 + has_windows, dtype)
        self.bytes = self.flat.view(np.uint8)
        self.bytes[:] = POISON[buffer.dtype.kind]
        zero = 2 * guard + extent
        self.flat[zero] = 0
        self.flat[zero + 2 :] = np.asarray(buffer.storage.outside).astype(dtype)
        self.places = guard + self._addresses(plan)
        if given is not None:
            self._fill(given)
        partial = given is not None and known is not None and not known.all()
        if partial:
            self.bytes.reshape(-1, self.flat.itemsize)[self.places[~known]] = POISON[buffer.dtype.kind]  # type: ignore[operator]
        # Given elements count as written, so only a missing output, or missing elements, need tracking.
        tracked = (given is None or partial) and (track_all or buffer.dtype.kind == "int")
        defined = _mask_of(self.flat.reshape(-1, 1), zero, tracked)
        if defined is not None and partial:
            defined[self.places[known]] = True
        self.memory = Memory(self.flat.reshape(-1, 1), guard, extent, zero, defined)
        self.guard, self.end, self.zero = guard, guard + extent, zero

    def _fill(self, given: Array) -> None:
        """Store the elements; elements that share an address because of strides of 0 must be equal."""
        self.flat[self.places] = given
        bits = f"u{self.flat.itemsize}"
        if (self.flat[self.places].view(bits) != np.ascontiguousarray(given).view(bits)).any():
            what = f"{self.buffer.name}: elements that share an address differ"
            raise ArgumentError(what, got=str(self.buffer.array.layout), hint="numpy.broadcast_to(...), according to the strides")

    def _addresses(self, plan: Plan) -> Array:
        if not self.shape:
            return np.zeros((), np.int64)
        coordinates = np.ogrid[tuple(slice(size) for size in self.shape)]
        return np.broadcast_to(self.buffer.array_storage.evaluated(plan.symbols).address(coordinates), self.shape)

    @property
    def array(self) -> Array:
        """The tensor in logical shape."""
        return self.flat[self.places]

    def element(self, number: Any, mask: Any = True) -> Array:
        """Elements of an array of integers by their number, as a kernel reads sizes and positions: negative values become 0.

        Nothing is read where the mask does not hold: the value is 0.
        """
        return np.maximum(self.signed(number, mask), 0)

    def signed(self, number: Any, mask: Any = True) -> Array:
        """The same with negative elements."""
        number = np.asarray(number)
        bad = ((number < 0) | (number >= self.end - self.guard)) & mask
        if bad.any():
            wrong = int(np.broadcast_to(number, bad.shape)[bad].max())
            raise SimulationError(f"{self.buffer.name}: element {wrong} is read, but the array has {self.end - self.guard} elements")
        return self.numbers(number) if mask is True else np.where(mask, self.numbers(np.where(mask, number, 0)), 0)

    def numbers(self, place: Any) -> Array:
        """Elements of an array of integers at places inside it, as they are."""
        return self.flat[self.guard + np.asarray(place)].astype(np.int64)

    def check_guards(self) -> None:
        """Raise if the kernel wrote outside of the tensor."""
        item = self.flat.itemsize
        # An array that fills its addresses has guards only before and after it, however large it is.
        layout = self.buffer.array.layout
        dense = isinstance(layout, MatrixLayout) and layout.leading is None and self.places.size == self.end - self.guard
        parts = [(0, self.guard), (self.end, self.zero)] if dense else [(0, self.zero)]
        for first, stop in parts:
            written_ = self.bytes[first * item : stop * item].reshape(-1, item) != POISON[self.buffer.dtype.kind]
            rows = written_.any(axis=1)
            if not dense:
                rows[self.places] = False
            if not rows.any():
                continue
            address = first + int(np.flatnonzero(rows)[0]) - self.guard
            raise SimulationError(
                f"{self.buffer.name}: address {address}, outside of the tensor, was written",
                legal=f"elements of the {' x '.join(map(str, self.shape))} tensor",
            )


def global_memory(
    plan: Plan,
    arrays: Mapping[str, Array],
    track_all: bool,
    known: Mapping[str, Array] = MappingProxyType({}),
    shared: Mapping[str, Global] = MappingProxyType({}),
) -> dict[str, Global]:
    """Parameters by name, from arrays in logical shape. Those that are `shared` with other launches stay as they are.

    Missing outputs are poison, and so are elements that `known` marks as unwritten. Raises `ArgumentError` if an array does not fit.
    """
    names = {buffer.name for buffer in plan.kernel.buffers if buffer.parameter}
    for name in arrays:
        if name not in names:
            raise ArgumentError(f"{plan.kernel.name} has no parameter {name}", legal=sorted(names))
    result: dict[str, Global] = {}
    for buffer in plan.kernel.buffers:
        if buffer.name in shared:
            result[buffer.name] = shared[buffer.name]
        if not buffer.memory.of_grid or buffer.name in shared:
            continue
        given = arrays.get(buffer.name)
        if given is not None and buffer.memory.by_value:
            given = value_of(buffer.name, given, buffer.dtype, buffer.name in positive_numbers(plan.kernel.spec))
        if given is not None:
            _check_array(plan, buffer, given)
        elif not buffer.written:
            raise ArgumentError(f"{plan.kernel.name}: the input {buffer.name} is missing", legal=sorted(names))
        zeroed = buffer.name in plan.kernel.effects[Zeroed].names
        if zeroed:
            shape = tuple(plan.number(size) for size in buffer.array.shape)
            given = np.full(shape, plan.kernel.effects[Zeroed].value(buffer.name), buffer.dtype.to_numpy())
        result[buffer.name] = Global(plan, buffer, given, track_all, None if zeroed else known.get(buffer.name))
    for table, count in _distinct_tables(plan):
        _check_distinct(table, count, result[table].array)
    return result


def _distinct_tables(plan: Plan) -> Iterable[tuple[str, int]]:
    """The arrays of integers whose indices are promised to be distinct, each with the number of indices."""
    definition = fused(plan.kernel.spec)
    for buffer in plan.kernel.buffers if definition is not None and definition.distinct else ():
        if buffer.written:
            yield from ((table.array, plan.number(table.most) + 1) for table in buffer.storage.tables)


def _check_distinct(table: str, count: int, numbers: Array) -> None:
    """Raise if two elements of a table are the same index: two elements of an output would be written to one place."""
    flat = numbers.reshape(-1)
    places = np.flatnonzero((flat >= 0) & (flat < count))
    order = places[np.argsort(flat[places], kind="stable")]
    again = np.flatnonzero(flat[order][1:] == flat[order][:-1])
    if again.size:
        first, second = (np.unravel_index(int(order[again[0] + step]), numbers.shape) for step in (0, 1))
        where = [f"{table}[{','.join(str(int(index)) for index in place)}]" for place in (first, second)]
        raise SimulationError(
            f"{where[0]} and {where[1]} are both {int(flat[order[again[0]]])}, and the definition promises distinct indices in {table}",
            legal="each index once; -1 where nothing is written",
        )  # fmt: skip


def _check_array(plan: Plan, buffer: Buffer, given: Array) -> None:
    shape = tuple(plan.number(size) for size in buffer.array.shape)
    if not isinstance(given, np.ndarray):
        raise ArgumentError(f"{buffer.name}: not a NumPy array", got=type(given).__name__)
    if given.shape != shape:
        raise ArgumentError(f"{buffer.name}: wrong shape", got=given.shape, legal=f"{shape}")
    compatible = given.dtype.name in buffer.dtype.numpy_aliases and not buffer.written
    if given.dtype != buffer.dtype.to_numpy() and not compatible:
        raise ArgumentError(f"{buffer.name}: wrong element type", got=str(given.dtype), legal=buffer.dtype.name)
    layout = buffer.array.layout
    leading = getattr(layout, "leading", None)
    if leading is not None:
        need = shape[0] if getattr(layout, "order", "col") == "col" else shape[-1]
        if plan.number(leading) < need:
            what = f"{buffer.name}: the leading dimension is less than a row or column"
            raise ArgumentError(what, got=plan.number(leading), legal=f"at least {need}")
