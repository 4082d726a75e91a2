"""What statements touch: elements of buffers, where buffers lie, and the pieces in which elements are loaded and stored.

Accesses carry coordinates in the whole buffer. The only place that turns them into addresses is `Buffer.address`, so pad, swizzle and
register numbers are decided once and are the same for what is printed, simulated and checked.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from fireiron.errors import VerificationError
from fireiron.values.expr import TRUE, ZERO, Expr, Var, all_of, as_expr, constant
from fireiron.values.machine import DType, Memory
from fireiron.values.tensor import Mode, Storage, Tensor, UnitMode


@attrs.frozen(cache_hash=True)
class Access:
    """Which elements of a buffer a statement touches, per executing thread.

    `base` is the coordinate of the first element, `modes` the `(size, stride)` modes of the element tile, per dimension;
    `bounds` the extent that a coordinate must stay below, where it may not. `dealt` are the modes that the path to this
    access took out of the buffer, from which a distributed buffer gets its registers. `copy` selects the unit's own copy.
    `storage` replaces the buffer's where a uniform write to registers numbers them in its own way. `points` are the offsets
    of the elements in the order in which an instruction numbers a lane's values. With `spread`, which thread of the warp
    touches which of the warp's elements is not specified: each counts as touched by all of them.
    """

    buffer: str
    base: tuple[Expr, ...]
    modes: tuple[tuple[Mode, ...], ...]
    bounds: tuple[Expr | None, ...]
    write: bool
    copy: Expr = ZERO
    dealt: tuple[tuple[UnitMode, ...], ...] = ()
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
        """Offsets from `base` of all elements: as an instruction numbers them, else the first dimension fastest."""
        return self.points or _elements(self.modes)

    @functools.cached_property
    def count(self) -> int:
        """How many elements there are."""
        return len(self.points) or math.prod(self.shape)

    @property
    def first(self) -> tuple[int, ...]:
        """The offset from `base` of the first element."""
        return self.points[0] if self.points else (0,) * len(self.modes)

    def table(self) -> Any:
        """The offsets from `base` of all elements in their order, as an array `(elements, dimensions)` that nobody may write to."""
        return _table_of_points(self.points) if self.points else _table(self.modes)

    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """The offsets from `base` along each dimension, of elements that are no `points`: all combinations of them are elements."""
        return _offsets(self.modes)

    def steps(self, dim: int) -> tuple[int, ...]:
        """The offsets from `base` of all elements along a dimension."""
        return tuple(offset[dim] for offset in self.points) if self.points else _steps(self.modes, dim)

    def coordinates(self, offset: tuple[int, ...]) -> tuple[Expr, ...]:
        """Absolute coordinates of an element."""
        return tuple(base + step for base, step in zip(self.base, offset, strict=True))

    def inside(self, offset: tuple[int, ...]) -> Expr:
        """The condition that an element lies inside the tensor."""
        conditions = []
        for coordinate, bound in zip(self.coordinates(offset), self.bounds, strict=True):
            if bound is not None:
                conditions.append(coordinate < bound)
        return all_of(conditions)

    def expressions(self) -> tuple[Expr, ...]:
        """All expressions it contains."""
        return (*self.base, self.copy, *(bound for bound in self.bounds if bound is not None))

    def substitute(self, values: Mapping[Var, Expr | int]) -> Access:
        """The access with variables replaced."""
        if all(values.keys().isdisjoint(value.variables()) for value in self.expressions()):
            return self
        bounds = tuple(None if bound is None else bound.substitute(values) for bound in self.bounds)
        return attrs.evolve(self, base=tuple(b.substitute(values) for b in self.base), bounds=bounds, copy=self.copy.substitute(values))


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
    import numpy  # takes longer to load than the language, which needs it only here

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
    """The offsets of a tile's elements along each dimension, in ascending order of the modes' digits."""
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
    """A tensor with its place.

    `storage` maps coordinates to an address in elements of one copy (for a distributed buffer: the register number);
    `elements` is the size of one copy (per thread for a distributed buffer); `offset` the byte offset in shared memory.
    `holder` are, for a distributed buffer, the coordinates of a thread's register 0.
    """

    tensor: Tensor
    storage: Storage
    elements: Expr = attrs.field(converter=as_expr)
    parameter: bool = False
    offset: int = 0
    written: bool = False
    holder: tuple[Expr, ...] = ()

    @property
    def name(self) -> str:
        """Its name in the kernel."""
        return self.tensor.name

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.tensor.dtype

    @property
    def memory(self) -> Memory:
        """Where it lies."""
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
        """Whether both lie in shared memory, in part in the same bytes."""
        both = self.memory.of_block and other.memory.of_block
        return both and self.offset < other.offset + other.bytes and other.offset < self.offset + self.bytes

    def held(self, register: Expr) -> tuple[Expr, ...]:
        """The coordinates of a register of a distributed buffer, in the executing thread."""
        coordinates = []
        # A register number has the digits of the modes that no thread took out, each at its weight: a mixed radix read backwards.
        for base, digits in zip(self.holder, self.storage.dims, strict=True):
            for digit in digits:
                base = base + register // digit.weight % digit.size * digit.step
            coordinates.append(base)
        return tuple(coordinates)

    def address(self, access: Access, offset: tuple[int, ...]) -> Expr:
        """The address of an element, in elements from the start of the buffer."""
        return _address(access.storage or self.storage, self.elements, access.copy, access.coordinates(offset))


@functools.lru_cache(maxsize=50_000)
def _address(storage: Storage, elements: Expr, copy: Expr, coordinates: tuple[Expr, ...]) -> Expr:
    # Printer, simulator and each check ask for the same elements, each of them many times.
    address = storage.address(coordinates)
    return address if copy == ZERO else address + copy * elements


@attrs.frozen(cache_hash=True)
class Piece:
    """Elements of an access that one load or store takes: `width` of them from number `first` on, as `Access.elements` counts.

    They are touched where `condition` holds, beside the statement's `active` and `guard`: elsewhere those of an input are not
    read and count as zero, and those of an output keep their values. They lie side by side, the first at a multiple of
    `width` elements.
    """

    first: int
    width: int = 1
    condition: Expr = TRUE

    def substitute(self, values: Mapping[Var, Expr | int]) -> Piece:
        """The piece with variables replaced in its condition."""
        return self if self.condition == TRUE else attrs.evolve(self, condition=self.condition.substitute(values))


@functools.lru_cache(maxsize=1024)
def whole_pieces(count: int, width: int) -> tuple[Piece, ...]:
    """The pieces of an access of `count` elements that are touched without condition."""
    return tuple(Piece(first, width) for first in range(0, count, width))


def scratch_access(tensor: Tensor) -> Access:
    """The access of a statement to all of its scratch memory."""
    return Access(tensor.name, (ZERO,), ((Mode(tensor.shape[0], 1),),), (None,), True, dealt=((),))
