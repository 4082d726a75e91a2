"""Compare the elements that the lanes of an instruction own or receive with those that another statement requires."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from fireiron.ir.lanes import LaneMap
from fireiron.language.tree import Context, Mismatch
from fireiron.performing.layout_propagation import lanes_of
from fireiron.spec import Spec


def ownership_mismatch(given: LaneMap, spec: Spec, name: str, context: Context) -> tuple[Mismatch, ...]:
    """Return why the map `given` differs from the ownership of an operand in registers; an undecided ownership does not differ."""
    ownership = context.owners.get(spec.operands[name].tensor.name)
    if ownership is None:
        return () if context.decides else (Mismatch("registers", "an operand whose thread ownership another statement decides", "none"),)
    expected = lanes_of(spec, name, ownership, context)
    if expected is None:
        return (Mismatch("registers", "elements owned by the lanes of a warp", f"elements owned by {ownership.level}"),)
    return registers_mismatch(given, expected)


@functools.lru_cache(maxsize=4096)
def registers_mismatch(given: LaneMap, expected: LaneMap) -> tuple[Mismatch, ...]:
    """Return why the map `given` does not have the elements of `expected`: both layouts, and the first difference."""
    if given.threads != expected.threads:
        return (Mismatch("registers", f"those of {given.threads} lanes", f"those of {expected.threads}"),)
    difference = first_difference(given, expected)
    if difference is None:
        return ()
    lane, value, point = difference
    tile = _common_tile(given, expected)
    return (
        Mismatch("registers", f"{_first_lanes(given)}", f"{_first_lanes(expected)} in the instruction of the main chain"),
        Mismatch(f"lane {lane}", f"{point} as its value {value}", f"{_listed(_wrapped(expected, lane, tile))} of each {tile[0]}x{tile[1]}"),
    )


def first_difference(given: LaneMap, expected: LaneMap) -> tuple[int, int, tuple[int, ...]] | None:
    """Return the first lane, value and coordinate, modulo the common tile, that only `given` has; None if the maps agree."""
    import numpy

    tile = _common_tile(given, expected)
    numbers, owned = (numpy.ravel_multi_index(tuple(numpy.moveaxis(lane_map.points % tile, -1, 0)), tile) for lane_map in (given, expected))
    lanes = numpy.arange(given.threads)[:, None]
    is_owned = numpy.zeros((given.threads, math.prod(tile)), dtype=bool)
    is_owned[lanes, owned] = True
    missing = numpy.argwhere(~is_owned[lanes, numbers])
    if not len(missing):
        return None
    lane, value = map(int, missing[0])
    return lane, value, _wrapped(given, lane, tile)[value]


def _common_tile(left: LaneMap, right: LaneMap) -> tuple[int, ...]:
    return tuple(min(sizes) for sizes in zip(left.tile, right.tile, strict=True))


def _wrapped(lane_map: LaneMap, lane: int, tile: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [tuple(int(part) % size for part, size in zip(point, tile, strict=True)) for point in lane_map.table[lane]]


def _listed(points: Iterable[tuple[int, ...]]) -> str:
    return " ".join(f"({', '.join(map(str, point))})" for point in dict.fromkeys(points))


def _first_lanes(lane_map: LaneMap) -> str:
    """Return the elements of the first two lanes, in register order."""
    lanes = "; ".join(f"lane {lane} {_listed(lane_map.table[lane])}" for lane in range(2))
    return f"{lanes} of {lane_map.tile[0]}x{lane_map.tile[1]}"
