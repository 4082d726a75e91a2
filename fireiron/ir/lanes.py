"""Value layouts: which element of an instruction's tile each of its lanes holds, or addresses, under which number.

Instructions of a warp (mma, ldmatrix, WMMA) spread a tile over the registers of their lanes. A `LaneMap` says how, in
digits: the lane's number and the value's number each split into parts, fastest first, and each part steps through one
dimension of the tile. The PTX ISA draws these maps as figures; every one of them has this form.

>>> accumulator = LaneMap((16, 8), lanes=((4, 1, 2), (8, 0, 1)), values=((2, 1, 1), (2, 0, 8)))
>>> accumulator.coordinate(lane=5, value=3)
(9, 3)
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import attrs

from fireiron.errors import ArgumentError
from fireiron.ir import Access
from fireiron.values.expr import Expr, as_expr, constant
from fireiron.values.tensor import Dealt, Mode, View

Part = tuple[int, int, int]
"""`(size, dimension, stride)`: `size` numbers, each `stride` coordinates further along a dimension of the tile."""


@attrs.frozen
class LaneMap:
    """`(lane, value)` to coordinates in a tile of `tile` elements; parts are fastest first.

    A part with stride 0 repeats: lanes that hold, or address, the same element.
    """

    tile: tuple[int, ...]
    lanes: tuple[Part, ...]
    values: tuple[Part, ...]

    def __attrs_post_init__(self) -> None:
        if not _integers(self.tile, 1) or not all(isinstance(parts, tuple) for parts in (self.lanes, self.values)):
            raise ArgumentError("a lane map has a tile, and tuples of parts for lanes and values", got=(self.tile, self.lanes, self.values))
        for part in (*self.lanes, *self.values):
            if not _integers(part, 0) or len(part) != 3 or part[0] < 1 or part[1] >= len(self.tile):
                raise ArgumentError("a part of a lane map is (size, dimension, stride)", got=part)

    @property
    def threads(self) -> int:
        """How many lanes take part."""
        return math.prod(size for size, _, _ in self.lanes)

    @property
    def count(self) -> int:
        """Values of a lane."""
        return math.prod(size for size, _, _ in self.values)

    def coordinate(self, lane: int, value: int) -> tuple[int, ...]:
        """The coordinates of a lane's value."""
        return self.table[lane][value]

    @functools.cached_property
    def table(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Coordinates of all values of all lanes; refused unless they are all elements of the tile."""
        values = _points(self.values, len(self.tile))
        table = tuple(tuple(_sum(lane, value) for value in values) for lane in _points(self.lanes, len(self.tile)))
        reached = {point for row in table for point in row}
        if reached != set(itertools.product(*(range(size) for size in self.tile))):
            raise ArgumentError(f"a lane map does not reach exactly the elements of its {'x'.join(map(str, self.tile))} tile", got=self)
        return table

    @functools.cached_property
    def numbers(self) -> Any:
        """The same with coordinates as one number, the last dimension fastest: an array `(lanes, values)`."""
        import numpy

        return numpy.ravel_multi_index(tuple(numpy.moveaxis(numpy.array(self.table), -1, 0)), self.tile)

    def access(self, view: View, lane: Expr, write: bool, origin: str | None) -> Access:
        """What a lane touches of a view of this tile; its elements in the order of the values."""
        base = [dim.base for dim in view.dims]
        dealt = [list(dim.dealt) for dim in view.dims]
        modes: list[list[Mode]] = [[] for _ in view.dims]
        weight = 1
        for size, dim, stride in self.lanes:
            for part, step in placed(view, size, dim, stride) if stride else ():
                digit = lane // weight
                base[dim] = base[dim] + (digit if weight * part == self.threads else digit % part) * step
                dealt[dim].append(Dealt(part, step, True))
                weight *= part
            weight *= 1 if stride else size
        points = [(0,) * len(view.dims)]
        for dim, part, step in value_parts(self, view):
            modes[dim].append(Mode(as_expr(part), as_expr(step)))
            points = [_moved(point, dim, index * step) for index in range(part) for point in points]
        access = Access(
            view.tensor.name,
            tuple(base),
            tuple(tuple(one) or (Mode(as_expr(1), as_expr(1)),) for one in modes),
            tuple(dim.bound for dim in view.dims),
            write,
            view.copy,
            tuple(tuple(one) for one in dealt),
            origin=origin,
            points=tuple(points),
        )
        return access.placed(view.at)


def _integers(values: object, least: int) -> bool:
    return isinstance(values, tuple) and all(type(value) is int and value >= least for value in values)


def _moved(point: tuple[int, ...], dim: int, step: int) -> tuple[int, ...]:
    return (*point[:dim], point[dim] + step, *point[dim + 1 :])


def _sum(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _points(parts: tuple[Part, ...], rank: int) -> list[tuple[int, ...]]:
    points = [(0,) * rank]
    for size, dim, stride in parts:
        points = [_moved(point, dim, index * stride) for index in range(size) for point in points]
    return points


def value_parts(lane_map: LaneMap, view: View) -> Iterator[tuple[int, int, int]]:
    """The values' parts as `(dimension, size, stride in coordinates of the tensor)`, fastest first."""
    for size, dim, stride in lane_map.values:
        for part, step in placed(view, size, dim, stride):
            yield dim, part, step


def placed(view: View, size: int, dim: int, stride: int) -> Iterator[tuple[int, int]]:
    """A part of a tile in coordinates of the tensor: `(size, stride)`, split where the view's own modes end.

    An `ArgumentError` where the tile is smaller than the instruction's, or its modes do not divide those of the view.
    """
    if size == 1:
        return
    reached = 1
    for mode in view.dims[dim].modes:
        extent, step = constant(mode.size), constant(mode.stride)
        if extent is None or step is None:
            raise ArgumentError(f"a tile of an instruction has {mode.size} elements, a number known only at run time")
        end = reached * extent
        if stride < end and size > 1:
            part = min(size, end // stride)
            if size % part or stride % reached:
                raise ArgumentError(f"the {size} steps of {stride} elements of an instruction do not fit the tile's modes")
            yield part, step * (stride // reached)
            size, stride = size // part, stride * part
        reached = end
    if size > 1:
        raise ArgumentError(f"the tile of {view.tensor.name} is smaller than the instruction's")
