"""Tensors, their storage, and views: the part of a tensor that a spec works on.

The coordinate of a view's dimension is a mixed-radix numeral. Some digits are fixed, to the number of a unit or of an iteration. The free
digits count the view's elements. Tiling divides the free digits, so strided tiles need no special case. A bound specifies where elements
may be out of bounds.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, overload

import attrs

from fireiron.errors import ArgumentError, DecompositionError, LayoutError
from fireiron.frozen import evolve, frozen
from fireiron.values.affine import PADDING_MODES, AffineIndex, ComputedIndex, Window, window
from fireiron.values.distribution import Portion
from fireiron.values.expr import ONE, ZERO, Expr, as_expr, constant, less
from fireiron.values.indirect import ArrayIndex, DimIndex, Table, TableIndex, tables_of_index
from fireiron.values.layout import Digit, Layout, Swizzle, complement, make_layout, numbers_of_digits, runs, sum_of_digits
from fireiron.values.machine import DType, Memory
from fireiron.values.orders import ColMajor as ColMajor
from fireiron.values.orders import Distributed as Distributed
from fireiron.values.orders import MatrixLayout as MatrixLayout
from fireiron.values.orders import RowMajor as RowMajor
from fireiron.values.sharer import refused_sharer


@attrs.frozen(cache_hash=True)
class Storage:
    """A mapping from coordinates to addresses, in elements, within one copy of a buffer.

    It is a layout with one mode per dimension, followed by an optional XOR swizzle.
    The outermost leaf of each mode is unbounded: coordinates past the end have addresses, too. `extent` is the number of elements of one
    copy. In an indirect tensor, `tables` are the parts of an address that the kernel reads from arrays of integers. With affine indices,
    `offset` is the address of the first coordinates, and `windows` state which elements are in the array, and the address
    decreases along the dimensions `reversed`, by a stride in addition to the layout's. `computed` are the parts of an address by affine
    indices that are no layout. Elements outside of the array read as `outside`.
    """

    layout: Layout
    extent: Expr = attrs.field(converter=as_expr)
    swizzle: Swizzle | None = None
    tables: tuple[Table, ...] = ()
    offset: Expr = attrs.field(default=ZERO, converter=as_expr)
    windows: tuple[Window, ...] = ()
    reversed: tuple[tuple[int, Expr], ...] = ()
    computed: tuple[ComputedIndex, ...] = ()
    outside: float = 0

    @functools.cached_property
    def dims(self) -> tuple[tuple[Digit, ...], ...]:
        """By dimension, the digits of its coordinate in the direct part of an address; none if the coordinate does not affect it."""
        return tuple(mode.digits for mode in self.layout)

    @functools.cached_property
    def steps(self) -> tuple[Expr | None, ...]:
        """By dimension, the stride in elements; None if it is not constant, or if a table or a computed index determines it."""
        steps = tuple(as_expr(mode.leaves[0][1]) if len(mode.leaves) == 1 else None for mode in self.layout)
        unknown = {dim for dim, _ in self.reversed} | {dim for dim in range(len(steps)) if self.looks_up(dim) or self.computes(dim)}
        return tuple(None if dim in unknown else step for dim, step in enumerate(steps)) if unknown else steps

    def looks_up(self, dim: int) -> bool:
        """Whether the kernel reads a part of the address of a coordinate of this dimension from an array of integers."""
        return any(table.has(dim) for table in self.tables)

    def computes(self, dim: int) -> bool:
        """Whether the coordinate of this dimension affects a part of the address that is no layout."""
        return any(part.has(dim) for part in self.computed)

    def repeats(self, dim: int) -> int:
        """The number of adjacent coordinates of a dimension, from a multiple of it on, that have the same address."""
        if self.computes(dim):
            return 1
        digits = [*self.dims[dim], *(digit for table in self.tables for digit in list(table.layout)[dim].digits)]
        return min((digit.step for digit in digits), default=1)

    @functools.cached_property
    def has_numbers(self) -> bool:
        """Whether an address depends only on coordinates: strides and offset are numbers, and nothing else determines it."""
        return self.layout.static and not (self.tables or self.computed or self.reversed) and constant(self.offset) is not None

    @functools.cached_property
    def plain(self) -> Storage:
        """The storage without its swizzle."""
        return self if self.swizzle is None else evolve(self, swizzle=None)

    @overload
    def address(self, coordinates: Sequence[Expr]) -> Expr: ...
    @overload
    def address(self, coordinates: Sequence[Any]) -> Any: ...
    def address(self, coordinates: Sequence[Any]) -> Any:
        """The address of an element, in elements from the first.

        Coordinates are expressions; or, if all strides are numbers (`evaluated`), integers or integer arrays. Without data, numbers in
        tables are unknown: `assumed` is the storage for estimates. Without dimensions, the result is the number 0.
        """
        if not coordinates:
            return 0
        total: Any = self.offset if all(isinstance(one, Expr) for one in coordinates) else constant(self.offset)
        for dim, coordinate in enumerate(coordinates):
            total = total + self.part(dim, coordinate)
        for table in self.tables:
            if not isinstance(total, Expr):
                raise ArgumentError(f"addresses of elements by {table.array}, which are known only at run time", hint="storage.assumed")
            total = total + table.number(coordinates) * table.stride
        for part in self.computed:
            index = part.of(coordinates)
            total = total + index * (part.stride if isinstance(index, Expr) else constant(part.stride))
        return total if self.swizzle is None else self.swizzle.expression(total)

    def part(self, dim: int, coordinate: Any) -> Any:
        """The contribution of a coordinate in one dimension to the address, before the swizzle."""
        back = sum((stride for own, stride in self.reversed if own == dim), start=ZERO) if self.reversed else ZERO
        if isinstance(coordinate, Expr):
            forward = _part(self.dims[dim], coordinate)
            return forward if back == ZERO else forward - coordinate * back
        if not self.layout.static:
            raise ArgumentError(f"addresses in {self.layout}: sizes known only at run time", hint="storage.evaluated(sizes)")
        # without digits: zero, of the coordinate's shape
        forward = numbers_of_digits(coordinate, self.dims[dim]) if self.dims[dim] else coordinate * 0
        return forward if back == ZERO else forward - coordinate * constant(back)

    def evaluated(self, sizes: Mapping[str, int]) -> Storage:
        """The storage with numbers instead of run-time sizes and strides."""
        tables = tuple(table.evaluated(sizes) for table in self.tables)
        windows = tuple(one.evaluated(sizes) for one in self.windows)
        falling = tuple((dim, as_expr(stride.evaluate(sizes))) for dim, stride in self.reversed)
        computed = tuple(one.evaluated(sizes) for one in self.computed)
        numbers = self.layout.evaluated(sizes), self.extent.evaluate(sizes)
        return Storage(*numbers, self.swizzle, tables, self.offset.evaluate(sizes), windows, falling, computed, self.outside)

    @property
    def assumed(self) -> Storage:
        """The storage for estimates without data: each table has ascending numbers, one for each place."""
        if not self.tables:
            return self
        storage = self
        for table in self.tables:
            modes = (_ascending(direct, places, table.stride) for direct, places in zip(storage.layout, table.layout, strict=True))
            layout = Layout(*zip(*modes, strict=True))
            storage = Storage(layout, self.extent, self.swizzle, (), self.offset, (), self.reversed, self.computed)
        return storage


def _ascending(direct: Layout, places: Layout, stride: Expr) -> tuple[Any, Any]:
    """The sizes and strides of a dimension if a table has ascending numbers."""
    bases = sorted({step for mode in (direct, places) for step in _steps_of(mode)})
    sizes = [larger // base for base, larger in itertools.pairwise(bases)]
    last = next(mode.leaves[-1][0] for mode in (direct, places) if _steps_of(mode)[-1] == bases[-1])
    strides = [_weight_at(direct, base) + _weight_at(places, base) * stride for base in bases]
    plain = [number if (number := constant(value)) is not None else value for value in strides]
    return ((*sizes, last), tuple(plain)) if sizes else (last, plain[0])


def _steps_of(mode: Layout) -> tuple[int, ...]:
    """The coordinates from one value of each digit of a dimension to the next."""
    sizes = [constant(size) or 1 for size, _ in mode.leaves[:-1]]
    return tuple(math.prod(sizes[:place]) for place in range(len(sizes) + 1))


def _weight_at(mode: Layout, base: int) -> Expr:
    """The elements that a step of `base` coordinates adds, for a digit that starts at or before it."""
    steps = _steps_of(mode)
    place = max(place for place, step in enumerate(steps) if step <= base)
    return as_expr(mode.leaves[place][1]) * (base // steps[place])


@functools.lru_cache(maxsize=20_000)
def _part(digits: tuple[Digit, ...], coordinate: Expr) -> Expr:
    """Cached: the elements of a tile share most coordinates."""
    return as_expr(sum_of_digits(coordinate, digits))


@attrs.frozen(cache_hash=True)
class Tensor:
    """A named array: logical shape, element type, memory and storage layout.

    - `pad`: extra elements in the leading dimension. `align`: alignment in bytes.
    - `copies`: the number of units that own one copy each.
    - `reuse`: it may share storage with an earlier buffer that is dead.
    - `owner`: which accesses determine the ownership of a distributed tensor: those that read it (`"reads"`), or those that accumulate in
      it (`"accumulates"`).
    - `free`: no layout was requested, so an instruction may choose one.
    - `stages`: the requested stages of its ring (0: as many as the loop around its load has).
    - `shares`: the buffer in whose stages it is stored; it has no separate stages.
    - `joins`: the buffer with whose stages its own are filled and released, on the same mbarriers.
    - `alternating`: the number of copies that the iterations of the loop around all accesses use alternately (0: one).
    - `through`: the array in which an indirect tensor is stored, and the index along each of the array's dimensions.
    - `portion`: in a launch on one GPU of a node, the portion of the node's array; None if each GPU has its own array.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    memory: Memory
    layout: MatrixLayout | Layout | Distributed
    pad: int = 0
    align: int = 16
    swizzle: Swizzle | None = None
    copies: int = 1
    reuse: bool = False
    must_reuse: bool = True
    owner: str = "reads"
    free: bool = False
    stages: int = 0
    shares: str = ""
    joins: str = ""
    alternating: int = 0
    through: Through | None = None
    portion: Portion | None = None
    origin: str | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def array(self) -> Tensor:
        """The array in memory, as callers pass it: the tensor itself, unless it is indirect."""
        return self if self.through is None else self.through.array

    @property
    def order(self) -> MatrixLayout | Layout:
        """The storage of the array, or of each part if GPUs store parts."""
        return self.layout.layout if isinstance(self.layout, Distributed) else self.layout

    @property
    def distributed_over(self) -> str | None:
        """The dimension of which each GPU of a node stores an equal part; None if each GPU stores the complete array."""
        layout = self.array.layout
        return layout.dim if isinstance(layout, Distributed) else None

    @property
    def of_all_gpus(self) -> bool:
        """Whether a launch on one GPU accesses the parts of all GPUs."""
        return self.array.portion is not None and self.array.portion.gpu_axis is not None

    def renamed(self, name: str) -> Tensor:
        """The tensor with another name, which is also that of its array."""
        through = None if self.through is None else evolve(self.through, array=evolve(self.through.array, name=name))
        return evolve(self, name=name, through=through)

    def own_axes(self, dims: Sequence[int], tile: Collection[int] = ()) -> tuple[int | None, ...]:
        """For dimensions of the array, the dimension whose coordinate determines the index along it; None for quotients and tables.

        `tile` are the dimensions of a tile, in which the other coordinates of an affine index are constant.
        """
        return tuple(dims) if self.through is None else tuple(self.through.own_axis(dim, tile) for dim in dims)

    def array_coordinates(self, coordinates: Sequence[Expr]) -> tuple[Expr, ...]:
        """The indices in the array of an element: numbers from tables as they are, since TMA reads zeros outside of an array."""
        if self.through is None:
            return tuple(coordinates)
        tables = iter(self.storage().tables)
        return tuple(
            index.of(coordinates[index.dim])
            if isinstance(index, DimIndex)
            else index.of(coordinates)
            if isinstance(index, AffineIndex)
            else next(tables).unclamped(coordinates)
            for index in self.through.index
        )

    @property
    def by_digits(self) -> bool:
        """Whether an index of its array is a digit of a coordinate, or a sum of digits, and none is a number from a table."""
        index = () if self.through is None else self.through.index
        return not any(isinstance(part, TableIndex) for part in index) and any(
            part.digits if isinstance(part, AffineIndex) else isinstance(part, DimIndex) and (part.divisor > 1 or part.modulus)
            for part in index
        )

    def array_steps(self, steps: Sequence[Any]) -> tuple[Any, ...]:
        """The indices in the array of elements minus those of the first element, given their steps from it along the dimensions.

        Legal if no digit carries: the coordinate of the first element is a multiple of the period of each digit of several values.
        """
        if self.through is None:
            return tuple(steps)
        return tuple(
            index.of(steps[index.dim])
            if isinstance(index, DimIndex)
            else evolve(index, offset=ZERO).of(steps)
            if isinstance(index, AffineIndex)
            else 0
            for index in self.through.index
        )

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.memory, Memory):
            raise ArgumentError("a tensor is in a memory", got=self.memory, legal="GL, SH, RF, or another Memory")
        if not self.memory.shared_by.is_ordered:
            raise refused_sharer(self.memory.name, self.memory.shared_by, self.name)

    def storage(self) -> Storage:
        """Addresses, for an addressable memory (not for registers, which are distributed)."""
        return _storage(self)

    def __str__(self) -> str:
        return Printed.text(self, "tensor_text")


@attrs.frozen(cache_hash=True)
class Through:
    """An array, and the index along each of its dimensions by coordinates of the tensor that is stored in it.

    `outside` is the value of elements whose affine index is not in the array, as text, or the padding mode that moves the index into it.
    """

    array: Tensor
    index: tuple[ArrayIndex, ...]
    outside: str = "0"

    @property
    def mode(self) -> str:
        """The padding mode that moves affine indices into the array; empty if elements outside have a constant value."""
        return self.outside if self.outside in PADDING_MODES else ""

    @property
    def value(self) -> float:
        """The value of elements outside of the array; 0 with a padding mode."""
        number = 0.0 if self.mode else float(self.outside)
        return int(number) if number.is_integer() else number

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the arrays of integers that the kernel reads."""
        return tuple(dict.fromkeys(part.array for part in self.index if isinstance(part, TableIndex)))

    @property
    def has_digits(self) -> bool:
        """Whether an affine index has digits of a coordinate."""
        return any(isinstance(index, AffineIndex) and index.digits for index in self.index)

    def own_axis(self, dim: int, tile: Collection[int] = ()) -> int | None:
        """The dimension of the tensor whose coordinate, or a remainder of it, is the index along a dimension of the array; else None.

        An affine index follows the only coordinate of a `tile` that it has, if its factor is 1.
        """
        index = self.index[dim]
        if isinstance(index, AffineIndex):
            inner = [(own, factor) for own, factor in index.terms if own in tile]
            if any(term.dim in tile for term in index.digits):
                return None
            return inner[0][0] if len(inner) == 1 and inner[0][1] == 1 and index.divisor == 1 else None
        return index.dim if isinstance(index, DimIndex) and index.divisor == 1 else None

    def storage(self, shape: Sequence[Expr]) -> Storage:
        """The storage of the tensor, whose shape is `shape`."""
        array = self.array.storage()
        strides = [ZERO if step is None else step for step in array.steps]
        places = list(zip(self.index, self.array.shape, strides, strict=True))
        windows = [window(index, shape, size) if isinstance(index, AffineIndex) else None for index, size, _ in places]
        direct, computed = [], []
        for place, tested in zip(places, windows, strict=True):
            index = place[0]
            falls = isinstance(index, AffineIndex) and any(term.factor < 0 for term in index.digits)
            if isinstance(index, AffineIndex) and (index.divisor > 1 or falls or (self.mode and tested is not None)):
                computed.append(ComputedIndex(index, *place[1:], self.mode))
            else:
                direct.append(place)
        layout, tables = tables_of_index(shape, *(zip(*direct, strict=True) if direct else ((), (), ())))
        affine = [(index, stride) for index, _, stride in direct if isinstance(index, AffineIndex)]
        offset = sum((index.offset * stride for index, stride in affine), start=ZERO)
        falling = [(dim, stride * -factor) for index, stride in affine for dim, factor in index.terms if factor < 0]
        present = () if self.mode else tuple(one for one in windows if one is not None)
        return Storage(layout, array.extent, None, tables, offset, present, tuple(falling), tuple(computed), self.value)


def indirect(array: Tensor, shape: Sequence[Expr], index: Sequence[ArrayIndex], outside: str = "0") -> Tensor:
    """The tensor of a shape whose elements are those of an array at the given indices.

    Elements outside of the array have the value `outside`, or a padding mode determines the element that they read.

    >>> from fireiron import GL, RowMajor, float16
    >>> array = Tensor("S", (as_expr(8), as_expr(2)), float16, GL, RowMajor)
    >>> print(indirect(array, (as_expr(8), as_expr(128)), [DimIndex(0), DimIndex(1, 64)]).layout)
    (8,(64,2)):(2,(0,1))

    Raises: ArgumentError if a dimension of the array has several strides, or the divisors of a dimension do not divide each other.
    """
    if None in array.storage().steps:
        raise ArgumentError(f"{array.name}: an indirect operand in an array whose dimensions have several strides", got=str(array.layout))
    through = Through(array, tuple(index), outside)
    return evolve(array, shape=tuple(shape), layout=through.storage(tuple(shape)).layout, through=through)


@functools.lru_cache(maxsize=4096)
def _storage(tensor: Tensor) -> Storage:
    if tensor.through is not None:
        return tensor.through.storage(tensor.shape)
    if isinstance(tensor.layout, Layout):
        layout = tensor.layout if isinstance(tensor.layout.shape, tuple) else make_layout(tensor.layout)
        return Storage(layout, _swizzled_extent(as_expr(layout.cosize()), tensor.swizzle), tensor.swizzle)
    order = tensor.order
    assert isinstance(order, MatrixLayout)
    rank = len(tensor.shape)
    weights: dict[int, Expr] = {}
    weight: Expr = as_expr(1)
    for position, dim in enumerate(order.fastest_first(rank)):
        weights[dim] = weight
        step = tensor.shape[dim] + tensor.pad if position == 0 else tensor.shape[dim]
        if position == 0 and order.leading is not None:
            step = order.leading
        weight = weight * step
    strides = tuple(weights[dim] for dim in range(rank))
    return Storage(Layout(tensor.shape, strides), _swizzled_extent(weight, tensor.swizzle), tensor.swizzle)  # type: ignore[arg-type]


def _swizzled_extent(extent: Expr, swizzle: Swizzle | None) -> Expr:
    number = constant(extent)
    if swizzle is None or number is None:
        return extent
    span = 1 << (swizzle.bits + swizzle.base + abs(swizzle.shift))
    return as_expr(-(-number // span) * span)


# ---------------------------------------------------------------------------------------------- views


@attrs.frozen(cache_hash=True)
class Mode:
    """`size` coordinates, `stride` apart."""

    size: Expr = attrs.field(converter=as_expr)
    stride: Expr = attrs.field(converter=as_expr)


@frozen
class UnitMode:
    """A mode removed from a view: distributed over units (`unit`), or iterated over."""

    size: int
    stride: int
    unit: bool


@attrs.frozen(cache_hash=True)
class Fixed:
    """A fixed digit of a coordinate: of `size` values, `stride` coordinates apart, it has the value `index`.

    The value differs between units (`unit`), or between iterations of a loop.
    """

    size: Expr = attrs.field(converter=as_expr)
    stride: Expr = attrs.field(converter=as_expr)
    unit: bool
    index: Expr = attrs.field(converter=as_expr)


@attrs.frozen(cache_hash=True)
class Dim:
    """One dimension of a view, in coordinates of the whole tensor: a numeral of which some digits are fixed and the others free.

    Invariant: sorted by stride, the digits form one number system. The first has stride 1, and each next one has the previous stride times
    the previous size. The last may extend past the end of the tensor if the dimension has a `bound`. So no coordinate occurs twice.
    """

    modes: tuple[Mode, ...]
    bound: Expr | None = None
    fixed: tuple[Fixed, ...] = ()

    @functools.cached_property
    def base(self) -> Expr:
        """The coordinate of the first element, determined by the fixed digits."""
        total: Expr = ZERO
        for digit in self.fixed:
            total = total + digit.index * digit.stride
        return total

    @functools.cached_property
    def unit_modes(self) -> tuple[UnitMode, ...]:
        """The fixed digits of known size and stride, regardless of their values."""
        known = ((constant(digit.size), constant(digit.stride), digit.unit) for digit in self.fixed)
        return tuple(UnitMode(size, stride, unit) for size, stride, unit in known if size is not None and stride is not None)

    @functools.cached_property
    def size(self) -> Expr:
        """The number of coordinates."""
        if len(self.modes) == 1:
            return self.modes[0].size
        total: Expr = as_expr(1)
        for mode in self.modes:
            total = total * mode.size
        return total

    def at(self, index: int) -> Expr:
        """The coordinate of a local index."""
        coordinate = self.base
        for mode in self.modes:
            size = constant(mode.size)
            if size is None:
                return coordinate + index * mode.stride
            coordinate = coordinate + (index % size) * mode.stride
            index //= size
        return coordinate

    def inside(self, index: int = 0) -> Expr:
        """The condition that a local index is in bounds."""
        return as_expr(1) if self.bound is None else less(self.at(index), self.bound)

    def moved(self, digit: Fixed) -> Dim:
        """The same tile at another position along the dimension."""
        return Dim(self.modes, self.bound, (*self.fixed, digit))

    @property
    def whole(self) -> bool:
        """Whether it is a whole dimension of the tensor, so that a tile may extend past its end."""
        return len(self.modes) == 1 and not self.fixed and self.bound is None


@attrs.frozen(cache_hash=True)
class View:
    """A part of a tensor; `copy` selects one of the copies that units own.

    `numerals` are the tensor's dimensions. `axes` are those that the view has, in its own order, so that a view may be transposed; the
    others are fixed to one coordinate, such as the batch index of a matrix. None: all dimensions in order.
    """

    tensor: Tensor
    numerals: tuple[Dim, ...]
    copy: Expr = ZERO
    axes: tuple[int, ...] | None = None

    @property
    def dims(self) -> tuple[Dim, ...]:
        """The view's own dimensions."""
        return self.numerals if self.axes is None else tuple(self.numerals[axis] for axis in self.axes)

    def axis(self, dim: int) -> int:
        """The tensor dimension of a dimension of the view."""
        return dim if self.axes is None else self.axes[dim]

    def _steps(self) -> tuple[Expr | None, ...]:
        """The strides of the tensor's dimensions; if adjacent coordinates share an element, the stride from one element to the next.

        For a dimension whose digits enumerate several ones of an array, the stride of the first digit.
        """
        storage, through = self.tensor.storage(), self.tensor.through
        enumerates = through is not None and through.has_digits
        parts = enumerate(zip(storage.steps, storage.dims, strict=True))
        return tuple(
            as_expr(digits[0].weight)
            if step is None and digits and (enumerates or digits[0].step > 1) and not storage.looks_up(dim)
            else step
            for dim, (step, digits) in parts
        )

    @functools.cached_property
    def order(self) -> str | None:
        """`"row"` if the last of its dimensions is contiguous, `"col"` if the first is; None if neither."""
        layout = self.tensor.layout
        if isinstance(layout, MatrixLayout) and self.axes is None:
            return layout.order
        steps, rank = self._steps(), len(self.dims)
        by_rows = isinstance(layout, MatrixLayout) and layout.order == "row"
        places = {"col": self.axis(0), "row": self.axis(rank - 1)} if rank else {}
        sides = [name for name, axis in places.items() if steps[axis] == ONE]
        return "row" if by_rows and "row" in sides else next(iter(sides), None)

    def extent(self, dim: int) -> Expr:
        """The size of the whole tensor along a dimension of the view."""
        return self.tensor.shape[self.axis(dim)]

    def with_dims(self, dims: Mapping[int, Dim]) -> View:
        """The view with other parts of some of its dimensions, by position."""
        numerals = list(self.numerals)
        for dim, part in dims.items():
            numerals[self.axis(dim)] = part
        return View(self.tensor, tuple(numerals), self.copy, self.axes)

    def at(self, dim: int, index: Expr, unit: bool) -> View:
        """The part at one coordinate of a dimension, which is removed from the view; `index` counts the dimension's elements.

        Legal when: the dimension has one mode.
        """
        part = self.dims[dim]
        (mode,) = part.modes
        here = Dim((), part.bound, (*part.fixed, Fixed(mode.size, mode.stride, unit, index)))
        rest = tuple(self.axis(other) for other in range(len(self.dims)) if other != dim)
        return View(self.tensor, self.with_dims({dim: here}).numerals, self.copy, rest)

    def tile(self, *sizes: int | Layout | None) -> Tiled:
        """The view divided into tiles, given the tile size in each dimension as for the verb `tile`; None keeps a dimension whole.

        Raises: a `DecompositionError` if the sizes do not divide the view; at the end of a whole tensor the last tile may be partly out of
        bounds.

        >>> from fireiron.values.notation import parse_view
        >>> tiled = parse_view("%A:[4,8 : 1,4].fp32").tile(Layout(2, 2), Layout((2, 2), (1, 4)))
        >>> [int(size.low) for size in tiled.shape], [str(dim.at(1)) for dim in tiled[1, 1].dims]
        ([2, 2], ['3', '3'])

        Source: Graphene section 3.3.
        """
        what = f"tile({', '.join(str(size) for size in sizes)})"
        if len(sizes) != len(self.dims):
            raise DecompositionError(f"{what}: {len(sizes)} sizes for {len(self.dims)} dimensions", legal="one each; None keeps it whole")
        parts = []
        for axis, (dim, size) in enumerate(zip(self.dims, sizes, strict=True)):
            if size is None:
                parts.append(Cut(dim.modes, (), dim.bound))
            else:
                parts.append(require_cut(cut(dim, size, self.extent(axis)), size, dim, what, self.tensor.name))
        return Tiled(self, tuple(parts))

    def only(self, dims: Sequence[int]) -> View:
        """The same elements with only these dimensions, in this order.

        Legal when: the other dimensions have one coordinate.
        """
        axes = tuple(self.axis(dim) for dim in dims)
        numerals = tuple(dim if axis in axes else Dim((), dim.bound, dim.fixed) for axis, dim in enumerate(self.numerals))
        return View(self.tensor, numerals, self.copy, None if axes == tuple(range(len(numerals))) else axes)

    @functools.cached_property
    def storage_order(self) -> tuple[int, ...]:
        """Its dimensions in storage order, from the contiguous one to the one with the largest stride."""
        layout, rank = self.tensor.layout, len(self.numerals)
        if isinstance(layout, MatrixLayout):
            order = layout.fastest_first(rank)
        else:  # dimensions without a constant stride, or with a run-time stride, come last
            steps = [None if step is None else constant(step) for step in self._steps()]
            order = tuple(sorted(range(rank), key=lambda axis: (steps[axis] is None, steps[axis] or 0, -axis)))
        places = {self.axis(dim): dim for dim in range(len(self.dims))}
        return tuple(places[axis] for axis in order if axis in places)

    @property
    def shape(self) -> tuple[Expr, ...]:
        """Logical sizes."""
        return tuple(dim.size for dim in self.dims)

    @property
    def memory(self) -> Memory:
        """The memory of the tensor."""
        return self.tensor.memory

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.tensor.dtype

    @property
    def bounded(self) -> bool:
        """Whether an element may be out of bounds."""
        return any(dim.bound is not None for dim in self.numerals)

    def __str__(self) -> str:
        return Printed.text(self, "view_text")


class Printed:
    """The printer of tensors and views: `repr` until the notation module, which depends on them, registers another one."""

    @staticmethod
    def text(value: Tensor | View, kind: str) -> str:
        """The text of a value: a `tensor_text`, a `view_text` or a `tiles_text`."""
        return repr(value)


def whole_view(tensor: Tensor, copy: Expr = ZERO) -> View:
    """The view of all of a tensor."""
    return View(tensor, tuple(Dim((Mode(size, 1),)) for size in tensor.shape), copy)


@frozen
class Cut:
    """A divided dimension: the modes inside a tile, and the modes that count the tiles (fastest first)."""

    inner: tuple[Mode, ...]
    outer: tuple[Mode, ...]
    bound: Expr | None


@frozen
class Tiled:
    """A view divided into tiles; `tiled[i, j]` is the view of one tile, without the outer shape.

    Source: Graphene section 3.3, and its Figures 1d and 8 (`%7[@i, @j]`).
    """

    view: View
    cuts: tuple[Cut, ...]

    @property
    def shape(self) -> tuple[Expr, ...]:
        """The number of tiles along each dimension."""
        return tuple(Dim(part.outer).size for part in self.cuts)

    def __getitem__(self, place: tuple[Expr | int, ...]) -> View:
        """The tile with these numbers, the same one for all units."""
        return self.at(place, unit=False)

    def __str__(self) -> str:
        return Printed.text(self.at((0,) * len(self.cuts), unit=True), "tiles_text")

    def at(self, place: tuple[Expr | int, ...], unit: bool) -> View:
        """The tile with these numbers, one per dimension; they differ between units (`unit`), or between iterations of a loop.

        Raises: a `LayoutError` if there is no such tile.
        """
        if not isinstance(place, tuple) or len(place) != len(self.cuts):
            raise LayoutError("the position of a tile has one number per dimension", got=place, legal=f"{len(self.cuts)} numbers")
        parts = {}
        for axis, (part, index) in enumerate(zip(self.cuts, map(as_expr, place), strict=True)):
            fixed = (*self.view.dims[axis].fixed, *_digits_of(part.outer, index, unit))
            parts[axis] = Dim(part.inner, part.bound, fixed)
        return self.view.with_dims(parts)


def _digits_of(outer: tuple[Mode, ...], index: Expr, unit: bool) -> Iterator[Fixed]:
    """The digits of a tile's number; the last one is unbounded."""
    count = constant(Dim(outer).size)
    if index.low < 0 or (count is not None and index.high >= count):
        raise LayoutError(f"there is no tile {index} among {Dim(outer).size}", legal=None if count is None else f"0 to {count - 1}")
    for position, mode in enumerate(outer):
        last = position == len(outer) - 1
        yield Fixed(mode.size, mode.stride, unit, index if last else index % mode.size)
        index = index // mode.size


def cut(dim: Dim, tile: int | Layout, extent: Expr | None) -> Cut | None:
    """Divide a dimension into tiles; None if they do not divide it and may not extend past its end.

    A tile is a number of adjacent elements, or a layout: element `i` of tile 0 is element `tile(i)` of the dimension, and its complement
    specifies where the other tiles begin. `extent` is the whole tensor's size in that dimension, the bound if tiles extend past the end.

    >>> cut(Dim((Mode(8, 1),)), Layout((2, 2), (1, 4)), None).outer
    (Mode(size=Const(2), stride=Const(2)),)

    Source: Graphene section 3.3, Figure 4.
    """
    divided = _divided(dim.modes, tile if isinstance(tile, Layout) else _neighbors(tile) if type(tile) is int else Layout(tile), dim.whole)
    return None if divided is None else Cut(divided[0], divided[1], dim.bound if divided[2] else extent)


def chunks(chunk: int, repeat: int, total: int | None) -> Layout | None:
    """A tile that consists of a chunk of `chunk` elements in every `repeat` elements; None if these do not divide the total."""
    if total is None or repeat % chunk or total % repeat:
        return None
    return Layout((chunk, total // repeat), (1, repeat))


def tile_fault(tile: Layout) -> str | None:
    """The reason why a layout is not a legal tile; None if it is."""
    if not tile.static:
        return "its sizes and strides are integers"
    if any(stride == 0 for size, stride in tile.modes if size > 1):
        return "a tile contains each element once, so no stride is 0"
    try:
        complement(tile)
    except LayoutError as error:
        return error.asked
    return None


@functools.lru_cache(maxsize=1024, typed=True)  # each operand of each spec is cut into such tiles
def _neighbors(count: int) -> Layout:
    return Layout(count)


@functools.lru_cache(maxsize=4096)
def _divided(modes: tuple[Mode, ...], tile: Layout, whole: bool) -> tuple[tuple[Mode, ...], tuple[Mode, ...], bool] | None:
    """Divide modes by a tile; return their composition with the tile, that with its complement, and whether the tiles fit exactly.

    Modes are not merged, since they become loops. Only the part of the last mode that one tile covers is composed. The number of such parts
    is rounded up, so the last mode may have a run-time size.
    """
    if tile_fault(tile) is not None:
        return None
    if tile.size() == 1:
        return (), _drop_ones(modes), True
    below = [constant(mode.size) for mode in modes[:-1]]
    if not modes or None in below:
        return None
    sizes = [size for size in below if size is not None]
    span, reach = math.prod(sizes), _period(tile)
    count = max(reach // span, 1)
    exact = modes[-1].size.factor % count == 0
    if (span % reach and reach % span) or not (exact or whole):
        return None
    try:
        inner, outer = (_composed(modes, (*sizes, count), one) for one in (tile, complement(tile, span * count)))
    except LayoutError:
        return None
    last = Mode((modes[-1].size + (count - 1)) // count, modes[-1].stride * count)
    return inner, _drop_ones((*outer, last)), exact


def _composed(modes: tuple[Mode, ...], sizes: tuple[int, ...], layout: Layout) -> tuple[Mode, ...]:
    """The composition of modes with these sizes and a layout."""
    return tuple(
        Mode(run, modes[position].stride * step)
        for size, stride in layout.modes
        for position, run, step in (runs(sizes, size, stride) if stride else ())
    )


def _period(tile: Layout) -> int:
    """The number of consecutive elements that consist of whole tiles."""
    return max((size * stride for size, stride in tile.modes if size > 1), default=1)


def _drop_ones(modes: Sequence[Mode]) -> tuple[Mode, ...]:
    return tuple(mode for mode in modes if constant(mode.size) != 1)


def require_cut(result: Cut | None, tile: int | Layout, dim: Dim, what: str, within: object) -> Cut:
    """The cut, or an error that lists the legal tile sizes."""
    if result is not None:
        return result
    total = constant(dim.size)
    legal = [divisor for divisor in range(1, total + 1) if total % divisor == 0] if total is not None and total <= 4096 else None
    extent = f"{dim.size}" if total is None else f"{dim.size} elements"
    fault = tile_fault(tile) if isinstance(tile, Layout) else None
    if fault is not None:
        raise DecompositionError(f"{what}: {tile} is not a tile: {fault}", legal="Layout(2, 2), as [2:2]", within=within)
    period = _period(tile) if isinstance(tile, Layout) else tile
    if (legal is None or period not in legal) and not isinstance(tile, Layout):
        raise DecompositionError(f"{what}: {tile} does not divide the {extent} of the tile", legal=legal, within=within)
    if legal is None or period not in legal:
        raise DecompositionError(
            f"{what}: tiles of {tile} cover {period} elements together, which do not divide the {extent} of the tile",
            legal=legal and f"size times stride of the widest part: {' '.join(map(str, legal))}",
            within=within,
        )
    strides = ", ".join(f"{mode.size} elements {mode.stride} apart" for mode in dim.modes)
    raise DecompositionError(
        f"{what}: the strides of {tile} cross the boundaries of the tile's runs ({strides})",
        hint="use sizes and strides that divide those of the runs",
        within=within,
    )
