"""Whether the lanes of a warp hold, or receive, what something else decided, and where they first differ if not."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from fireiron.ir.lanes import LaneMap
from fireiron.language.tree import Context, Mismatch
from fireiron.performing.layout_propagation import lanes_of
from fireiron.spec import Spec


def held_mismatch(given: LaneMap, spec: Spec, name: str, context: Context) -> tuple[Mismatch, ...]:
    """Why lanes that have what `given` says do not hold an operand in registers as something else decided; if nobody did, this may."""
    holding = context.held.get(spec.operands[name].tensor.name)
    if holding is None:
        return () if context.decides else (Mismatch("registers", "an operand of which something else says who holds what", "none"),)
    wanted = lanes_of(spec, name, holding, context)
    if wanted is None:
        return (Mismatch("registers", "what the lanes of a warp hold", f"what {holding.level} holds"),)
    return registers_mismatch(given, wanted)


@functools.lru_cache(maxsize=4096)
def registers_mismatch(given: LaneMap, wanted: LaneMap) -> tuple[Mismatch, ...]:
    """Why lanes that have what `given` says do not hold what `wanted` says; both layouts, and where they first differ."""
    if given.threads != wanted.threads:
        return (Mismatch("registers", f"those of {given.threads} lanes", f"those of {wanted.threads}"),)
    difference = first_difference(given, wanted)
    if difference is None:
        return ()
    lane, value, point = difference
    tile = _common_tile(given, wanted)
    return (
        Mismatch("registers", f"{_first_lanes(given)}", f"{_first_lanes(wanted)} in the instruction of the main chain"),
        Mismatch(f"lane {lane}", f"{point} as its value {value}", f"{_listed(_wrapped(wanted, lane, tile))} of each {tile[0]}x{tile[1]}"),
    )


def first_difference(given: LaneMap, wanted: LaneMap) -> tuple[int, int, tuple[int, ...]] | None:
    """The first lane, value and coordinate, modulo the common tile, that a lane has and should not hold; None if there is none."""
    import numpy

    tile = _common_tile(given, wanted)
    numbers, held = (numpy.ravel_multi_index(tuple(numpy.moveaxis(one.points % tile, -1, 0)), tile) for one in (given, wanted))
    lanes = numpy.arange(given.threads)[:, None]
    holds = numpy.zeros((given.threads, math.prod(tile)), dtype=bool)
    holds[lanes, held] = True
    missing = numpy.argwhere(~holds[lanes, numbers])
    if not len(missing):
        return None
    lane, value = map(int, missing[0])
    return lane, value, _wrapped(given, lane, tile)[value]


def _common_tile(one: LaneMap, other: LaneMap) -> tuple[int, ...]:
    return tuple(min(sizes) for sizes in zip(one.tile, other.tile, strict=True))


def _wrapped(lane_map: LaneMap, lane: int, tile: tuple[int, ...]) -> list[tuple[int, ...]]:
    return [tuple(int(part) % size for part, size in zip(point, tile, strict=True)) for point in lane_map.table[lane]]


def _listed(points: Iterable[tuple[int, ...]]) -> str:
    return " ".join(f"({', '.join(map(str, point))})" for point in dict.fromkeys(points))


def _first_lanes(lane_map: LaneMap) -> str:
    """What the first two lanes hold, in the order of their values."""
    lanes = "; ".join(f"lane {lane} {_listed(lane_map.table[lane])}" for lane in range(2))
    return f"{lanes} of {lane_map.tile[0]}x{lane_map.tile[1]}"
