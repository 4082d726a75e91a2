"""Lane maps, "TV layouts" in CuTe: (thread, value) -> element of an instruction's tile.

Instructions of a warp (mma, ldmatrix, WMMA) distribute a tile over the registers of their lanes. A `LaneMap` specifies this by two layouts:
one from the lane number and one from the value number to an element number of the tile, which counts the first dimension fastest. The
element is their sum. The PTX ISA draws these maps as figures. All of them have this form, and CUTLASS publishes them in this form.

>>> accumulator = LaneMap((16, 8), lanes=Layout((4, 8), (32, 1)), values=Layout((2, 2), (16, 8)))
>>> accumulator.coordinate(lane=5, value=3)
(9, 3)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

from fireiron.errors import ArgumentError, LayoutError
from fireiron.frozen import frozen
from fireiron.ir import Access
from fireiron.values.expr import Expr, as_expr, constant
from fireiron.values.layout import Layout, running_products, runs, shown
from fireiron.values.tensor import Mode, UnitMode, View

Part = tuple[int, int, int]
"""`(size, dimension, stride)`: `size` numbers, each `stride` coordinates further along a dimension of the tile."""


@frozen
class LaneMap:
    """`(lane, value)` to an element of a tile: `lanes(lane) + values(value)` is its number, the first dimension fastest.

    A leaf of stride 0 means that several lanes hold, or address, the same element.

    >>> from fireiron import HMMA_16816_F32
    >>> lanes = HMMA_16816_F32.maps()["C"]
    >>> lanes.tile, lanes.threads, lanes.coordinate(5, 2)
    ((16, 8), 32, (9, 2))
    """

    tile: tuple[int, ...]
    lanes: Layout
    values: Layout

    def __attrs_post_init__(self) -> None:
        if not _integers(self.tile, 1) or not all(isinstance(layout, Layout) and layout.static for layout in (self.lanes, self.values)):
            raise ArgumentError("LaneMap needs a tile, and static layouts of lanes and values", got=(self.tile, self.lanes, self.values))

    @classmethod
    def along(cls, tile: tuple[int, ...], lanes: tuple[Part, ...], values: tuple[Part, ...]) -> LaneMap:
        """The map that consists of parts, the fastest first; each part steps through one dimension of the tile.

        >>> str(LaneMap.along((16, 8), ((4, 1, 2), (8, 0, 1)), ((2, 1, 1), (2, 0, 8))).lanes)
        '(4,8):(32,1)'
        """
        if not _integers(tile, 1) or not all(isinstance(parts, tuple) for parts in (lanes, values)):
            raise ArgumentError("LaneMap.along needs a tile, and tuples of parts for lanes and values", got=(tile, lanes, values))
        for part in (*lanes, *values):
            if not _integers(part, 0) or len(part) != 3 or part[0] < 1 or part[1] >= len(tile):
                raise ArgumentError("a part of a lane map must be (size, dimension, stride)", got=part)
        weights = running_products(tile)
        lanes_layout, values_layout = (
            Layout(tuple(size for size, _, _ in parts), tuple(stride * weights[dim] for _, dim, stride in parts))
            for parts in (lanes, values)
        )
        return cls(tile, lanes_layout, values_layout)

    @property
    def threads(self) -> int:
        """The number of lanes."""
        return self.lanes.size()

    @property
    def count(self) -> int:
        """The number of values per lane."""
        return self.values.size()

    def coordinate(self, lane: int, value: int) -> tuple[int, ...]:
        """The coordinates of a lane's value."""
        return self.table[lane][value]

    @functools.cached_property
    def table(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Coordinates of all values of all lanes; an error unless they are exactly the elements of the tile."""
        return tuple(tuple(map(tuple, row)) for row in self.points.tolist())

    @functools.cached_property
    def points(self) -> Any:
        """The coordinates of all values of all lanes, as an array `(lanes, values, dimensions)`; an error as for `table`."""
        import numpy

        try:
            lanes, values = (_points(_parts(layout, self.tile), len(self.tile)) for layout in (self.lanes, self.values))
        except LayoutError as error:
            raise ArgumentError(f"a lane map steps out of its {'x'.join(map(str, self.tile))} tile: {error.asked}", got=self) from None
        points = numpy.array(lanes)[:, None, :] + numpy.array(values)[None, :, :]
        reached = numpy.zeros(self.tile, dtype=bool)
        inside = bool((points < numpy.array(self.tile)).all())
        if inside:
            reached[tuple(numpy.moveaxis(points, -1, 0))] = True
        if not inside or not reached.all():
            raise ArgumentError(f"a lane map does not reach exactly the elements of its {'x'.join(map(str, self.tile))} tile", got=self)
        return points

    def transposed(self, order: tuple[int, ...]) -> LaneMap:
        """The map with the dimensions of its tile in another order: the new dimension `i` is the old dimension `order[i]`.

        >>> LaneMap.along((16, 8), ((4, 1, 2), (8, 0, 1)), ((2, 1, 1), (2, 0, 8))).transposed((1, 0)).coordinate(lane=5, value=3)
        (3, 9)
        """
        lanes, values = (
            tuple((size, order.index(dim), step) for size, dim, step in _parts(layout, self.tile)) for layout in (self.lanes, self.values)
        )
        return LaneMap.along(tuple(self.tile[dim] for dim in order), lanes, values)

    @functools.cached_property
    def numbers(self) -> Any:
        """The element numbers of all values of all lanes, the last dimension fastest, as an array `(lanes, values)`."""
        import numpy

        return numpy.ravel_multi_index(tuple(numpy.moveaxis(self.points, -1, 0)), self.tile)

    def access(self, view: View, lane: Expr, write: bool, origin: str | None) -> Access:
        """The access of a lane to a view of this tile, with its elements in the order of the values."""
        numerals = view.numerals
        base = [dim.base for dim in numerals]
        unit_modes = [list(dim.unit_modes) for dim in numerals]
        modes: list[list[Mode]] = [[] for _ in numerals]
        weight = 1
        for part, dim, step in _placed(self.lanes, self.tile, view):
            if step:
                digit = lane // weight
                base[dim] = base[dim] + (digit if weight * part == self.threads else digit % part) * step
                unit_modes[dim].append(UnitMode(part, step, True))
            weight *= part
        points = [(0,) * len(numerals)]
        for part, dim, step in _placed(self.values, self.tile, view):
            modes[dim].append(Mode(as_expr(part), as_expr(step)))
            points = [_moved(point, dim, index * step) for index in range(part) for point in points]
        return Access(
            view.tensor.name,
            tuple(base),
            tuple(tuple(mode) or (Mode(as_expr(1), as_expr(1)),) for mode in modes),
            tuple(dim.bound for dim in numerals),
            write,
            view.copy,
            tuple(tuple(one) for one in unit_modes),
            origin=origin,
            points=tuple(points),
        )


def _integers(values: object, least: int) -> bool:
    return isinstance(values, tuple) and all(type(value) is int and value >= least for value in values)


def _moved(point: tuple[int, ...], dim: int, step: int) -> tuple[int, ...]:
    return (*point[:dim], point[dim] + step, *point[dim + 1 :])


def _points(parts: tuple[Part, ...], rank: int) -> list[tuple[int, ...]]:
    points = [(0,) * rank]
    for size, dim, stride in parts:
        points = [_moved(point, dim, index * stride) for index in range(size) for point in points]
    return points


@functools.lru_cache(maxsize=4096)
def _parts(layout: Layout, tile: tuple[int, ...]) -> tuple[Part, ...]:
    """The leaves of a layout of element numbers, split where they cross from one dimension of the tile into the next."""
    parts: list[Part] = []
    for size, stride in layout.modes:
        parts += ((part, dim, step) for dim, part, step in runs(tile, size, stride)) if stride else ((size, 0, 0),)
    return tuple(parts)


def _placed(layout: Layout, tile: tuple[int, ...], view: View) -> Iterator[Part]:
    """The parts in coordinates of the tensor, split where the view's own modes end: the composition of the view and the layout.

    Raises ArgumentError if the tile is smaller than the instruction's, or its modes do not divide those of the view.
    """
    for size, dim, stride in _parts(layout, tile):
        if not stride:
            yield size, view.axis(dim), 0
            continue
        for part, step in placed(view, size, dim, stride):
            yield part, view.axis(dim), step


def placed(view: View, size: int, dim: int, stride: int) -> Iterator[tuple[int, int]]:
    """`size` steps of `stride` elements along a dimension of a view, as `(size, stride)` in coordinates of the tensor.

    Raises ArgumentError where the view is smaller, or its modes do not divide the steps.
    """
    if size == 1:
        return
    sizes, steps = _known_modes(view.dims[dim].modes)
    if (size - 1) * stride >= math.prod(sizes):
        raise ArgumentError(f"the tile of {view.tensor.name} is smaller than the instruction's")
    try:
        parts = runs(sizes, size, stride)
    except LayoutError:
        what = f"the {size} steps of {stride} elements of an instruction do not fit the tile's modes"
        raise ArgumentError(what, got=shown(sizes)) from None
    for position, part, step in parts:
        yield part, steps[position] * step


@functools.lru_cache(maxsize=4096)
def _known_modes(modes: tuple[Mode, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    sizes, strides = [], []
    for mode in modes:
        extent, step = constant(mode.size), constant(mode.stride)
        if extent is None or step is None:
            raise ArgumentError(f"a tile of an instruction has {mode.size} elements, a number known only at run time")
        sizes.append(extent)
        strides.append(step)
    return tuple(sizes), tuple(strides)
