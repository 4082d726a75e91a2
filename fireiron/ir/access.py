"""Accesses of statements: the elements of buffers, the storage of buffers, and the elements that one load or store moves.

Accesses have coordinates in the whole buffer. Only `Buffer.address` converts them to addresses. So padding, swizzles and register numbers
are computed in one place, and the printer, the simulator and the checks agree on them.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import attrs

from fireiron.errors import VerificationError
from fireiron.frozen import evolve
from fireiron.values.expr import TRUE, ZERO, Expr, Var, all_of, as_expr, conjuncts, constant
from fireiron.values.machine import DType, Memory
from fireiron.values.tensor import Mode, Storage, Tensor, UnitMode


@attrs.frozen(cache_hash=True)
class Access:
    """The elements of a buffer that a statement accesses, per executing thread.

    - `base`: the coordinate of the first element. `modes`: the `(size, stride)` modes of the element tile, by dimension.
    - `bounds`: the extent that a coordinate must stay below; None if it always does.
    - `unit_modes`: the modes that the path to this access distributed over units; a distributed buffer gets its registers from them.
    - `copy`: the unit's own copy of the buffer.
    - `storage`: replaces the buffer's storage where a uniform write numbers registers differently.
    - `points`: the offsets of the elements, in the order in which an instruction numbers the values of a lane.
    - `spread`: the hardware does not specify which thread of the warp accesses which of the warp's elements. So each element counts as
      accessed by all threads of the warp.
    """

    buffer: str
    base: tuple[Expr, ...]
    modes: tuple[tuple[Mode, ...], ...]
    bounds: tuple[Expr | None, ...]
    write: bool
    copy: Expr = ZERO
    unit_modes: tuple[tuple[UnitMode, ...], ...] = ()
    storage: Storage | None = None
    points: tuple[tuple[int, ...], ...] = ()
    spread: bool = False
    origin: str | None = attrs.field(default=None, eq=False)

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """Elements per dimension."""
        return tuple(_extent(modes) for modes in self.modes)

    @functools.cached_property
    def reach(self) -> tuple[int, ...]:
        """The largest offset of an element from `base`, per dimension."""
        if self.points:
            return tuple(max(offsets) for offsets in zip(*self.points, strict=True))
        return tuple(map(max, _offsets(self.modes)))

    def elements(self) -> tuple[tuple[int, ...], ...]:
        """Offsets from `base` of all elements, in the order of the instruction if there is one, else the first dimension fastest."""
        return self.points or _elements(self.modes)

    @functools.cached_property
    def count(self) -> int:
        """The number of elements."""
        return len(self.points) or math.prod(self.shape)

    @property
    def first(self) -> tuple[int, ...]:
        """The offset of the first element from `base`."""
        return self.points[0] if self.points else (0,) * len(self.modes)

    def table(self) -> Any:
        """The offsets from `base` of all elements in order, as a read-only array `(elements, dimensions)`."""
        return _table_of_points(self.points) if self.points else _table(self.modes)

    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """The offsets from `base` along each dimension; all their combinations are elements. Legal without `points`."""
        return _offsets(self.modes)

    def steps(self, dim: int) -> tuple[int, ...]:
        """The offsets from `base` of all elements along a dimension."""
        return tuple(offset[dim] for offset in self.points) if self.points else _steps(self.modes, dim)

    def coordinates(self, offset: tuple[int, ...]) -> tuple[Expr, ...]:
        """Absolute coordinates of an element."""
        return tuple([base + step if step else base for base, step in zip(self.base, offset, strict=True)])

    def inside(self, offset: tuple[int, ...]) -> Expr:
        """The condition that an element is in bounds."""
        conditions = []
        for coordinate, bound in zip(self.coordinates(offset), self.bounds, strict=True):
            if bound is not None:
                conditions.append(coordinate < bound)
        return all_of(conditions)

    def expressions(self) -> tuple[Expr, ...]:
        """All expressions that the access contains."""
        return (*self.base, self.copy, *(bound for bound in self.bounds if bound is not None))

    def substitute(self, values: Mapping[Var, Expr | int]) -> Access:
        """The access with variables replaced."""
        if all(values.keys().isdisjoint(value.variables()) for value in self.expressions()):
            return self
        bounds = tuple(None if bound is None else bound.substitute(values) for bound in self.bounds)
        return evolve(self, base=tuple(b.substitute(values) for b in self.base), bounds=bounds, copy=self.copy.substitute(values))


def _extent(modes: tuple[Mode, ...]) -> int:
    total = 1
    for mode in modes:
        size = constant(mode.size)
        if size is None:
            raise VerificationError(f"an access has {mode.size} elements, a number known only at run time")
        total *= size
    return total


_BACKWARDS: Callable[[tuple[int, ...]], tuple[int, ...]] = operator.itemgetter(slice(None, None, -1))


@functools.lru_cache(maxsize=4096)
def _elements(modes: tuple[tuple[Mode, ...], ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(_BACKWARDS, itertools.product(*reversed(_offsets(modes)))))


@functools.lru_cache(maxsize=4096)
def _table(modes: tuple[tuple[Mode, ...], ...]) -> Any:
    import numpy  # slow to import, and only needed here

    axes = _offsets(modes)
    table = numpy.empty((*map(len, reversed(axes)), len(axes)), dtype=numpy.int64)
    for dim, axis in enumerate(axes):  # the first dimension fastest
        table[..., dim] = numpy.reshape(axis, (-1, *(1,) * dim))
    table = table.reshape(-1, len(axes)) if axes else table.reshape(1, 0)
    table.setflags(write=False)
    return table


@functools.lru_cache(maxsize=4096)
def _table_of_points(points: tuple[tuple[int, ...], ...]) -> Any:
    import numpy

    table = numpy.array(points)
    table.setflags(write=False)
    return table


@functools.lru_cache(maxsize=4096)
def _steps(modes: tuple[tuple[Mode, ...], ...], dim: int) -> tuple[int, ...]:
    return tuple(map(operator.itemgetter(dim), _elements(modes)))


@functools.lru_cache(maxsize=4096)
def _offsets(modes: tuple[tuple[Mode, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """The offsets of a tile's elements along each dimension, with the first mode fastest."""
    axes = []
    for dim in modes:
        offsets = [0]
        for mode in dim:
            size, stride = constant(mode.size), constant(mode.stride)
            assert size is not None and stride is not None
            offsets = [offset + index * stride for index in range(size) for offset in offsets]
        axes.append(tuple(offsets))
    return tuple(axes)


@attrs.frozen(cache_hash=True)
class Buffer:
    """A tensor and where it is stored.

    `storage` maps coordinates to the address in elements of one copy; in a distributed buffer to the register number. `elements` is the
    size of one copy, per thread in a distributed buffer. `offset` is the byte offset in shared memory. A buffer in the kernel's `workspace`
    is in global memory, but no operand. In a distributed buffer, `register_origin` are the coordinates of register 0 of a thread.
    """

    tensor: Tensor
    storage: Storage
    elements: Expr = attrs.field(converter=as_expr)
    parameter: bool = False
    offset: int = 0
    written: bool = False
    register_origin: tuple[Expr, ...] = ()
    workspace: bool = False

    @property
    def name(self) -> str:
        """Its name in the kernel."""
        return self.tensor.name

    @property
    def array(self) -> Tensor:
        """The array in memory, as callers pass it."""
        return self.tensor.array

    @property
    def array_storage(self) -> Storage:
        """The storage of the array in memory, by its own coordinates."""
        return self.storage if self.tensor.through is None else self.array.storage()

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.tensor.dtype

    @property
    def memory(self) -> Memory:
        """The memory that stores it."""
        return self.tensor.memory

    @property
    def total(self) -> Expr:
        """Elements of all copies."""
        return self.elements * self.tensor.copies

    @property
    def bytes(self) -> int:
        """Bytes of all copies (per thread for a distributed buffer); legal for buffers of static size."""
        total = constant(self.total)
        if total is None:
            raise VerificationError(f"{self.name} has {self.total} elements, a number known only at run time")
        return total * self.dtype.bytes

    def shares(self, other: Buffer) -> bool:
        """Whether both are in shared memory and overlap."""
        both = self.memory.of_block and other.memory.of_block
        return both and self.offset < other.offset + other.bytes and other.offset < self.offset + self.bytes

    def register_coordinates(self, register: Expr) -> tuple[Expr, ...]:
        """The coordinates of a register of a distributed buffer, in the executing thread."""
        coordinates = []
        # The digits of a register number are the modes that no thread owns alone, each with its weight: a mixed-radix number, decoded here.
        for base, digits in zip(self.register_origin, self.storage.dims, strict=True):
            for digit in digits:
                base = base + register // digit.weight % digit.size * digit.step
            coordinates.append(base)
        return tuple(coordinates)

    def address(self, access: Access, offset: tuple[int, ...]) -> Expr:
        """The address of an element, in elements from the start of the buffer."""
        return _address(access.storage or self.storage, self.elements, access.copy, access.coordinates(offset))


def promised_tables(buffers: Iterable[Buffer]) -> tuple[tuple[str, Expr], ...]:
    """The arrays of integers whose elements a caller promises to be indices, each with the largest legal element."""
    tables = (table for buffer in buffers for table in buffer.storage.tables if table.promised)
    return tuple(dict.fromkeys((table.array, table.most) for table in tables))


@functools.lru_cache(maxsize=50_000)
def _address(storage: Storage, elements: Expr, copy: Expr, coordinates: tuple[Expr, ...]) -> Expr:
    # Cached, because the printer, the simulator and each check need the same addresses many times.
    address = as_expr(storage.address(coordinates))
    return address if copy == ZERO else address + copy * elements


@attrs.frozen(cache_hash=True)
class Piece:
    """Elements of an access that one load or store moves: `width` elements, starting with number `first` in the order of `Access.elements`.

    They are accessed if `condition` holds, in addition to the statement's `active` and `guard`. Otherwise elements of an input are not read
    and count as zero, and elements of an output keep their values. The elements are contiguous, and the address of the first one is a
    multiple of `width` elements.

    An input with affine indices may have another value outside of its array: elements that are in bounds (`bounds`) and are not read count
    as `outside`. None: as elements out of bounds.
    """

    first: int
    width: int = 1
    condition: Expr = TRUE
    outside: float | None = None
    bounds: Expr = TRUE

    def substitute(self, values: Mapping[Var, Expr | int]) -> Piece:
        """The piece with variables replaced in its conditions."""
        if self.condition == TRUE:
            return self
        return evolve(self, condition=self.condition.substitute(values), bounds=self.bounds.substitute(values))

    def under(self, tested: Iterable[Expr]) -> Piece:
        """The piece where these conditions hold."""
        known = set(tested)
        condition, bounds = (all_of(part for part in conjuncts(one) if part not in known) for one in (self.condition, self.bounds))
        return evolve(self, condition=condition, bounds=bounds)


@functools.lru_cache(maxsize=1024)
def whole_pieces(count: int, width: int) -> tuple[Piece, ...]:
    """The pieces of an access of `count` elements without conditions."""
    return tuple(Piece(first, width) for first in range(0, count, width))


def scratch_access(tensor: Tensor) -> Access:
    """The access of a statement to all its scratch memory."""
    return Access(tensor.name, (ZERO,), ((Mode(tensor.shape[0], 1),),), (None,), True, unit_modes=((),))
