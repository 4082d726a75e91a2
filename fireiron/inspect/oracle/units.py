"""Which warps a wait is about: processors of two launches, as threads of a block."""

from __future__ import annotations

import math
from collections.abc import Iterator

import attrs
import numpy as np

from fireiron.check.access_trace import Array
from fireiron.check.races.footprints import WARP
from fireiron.tasks.events import Every, Index, Type, processor_variables
from fireiron.values.expr import as_expr, compiled

FREE = -1
"""Index along a dimension that matches any index."""


@attrs.frozen
class Reach:
    """Of a warp that waits those that it waits for; `alike` if of its own each thread waits for itself alone."""

    warps: frozenset[int]
    alike: bool


def places(over: Type, threads: int) -> Array:
    """The indices of each thread along the dimensions of processors, those of one level as digits; -1 where there is none."""
    every = np.arange(threads)
    found = np.zeros((len(over), threads), dtype=np.int64)
    outer = threads
    position = 0
    while position < len(over):
        level = over[position].processor.level
        behind = next((at for at in range(position, len(over)) if over[at].processor.level != level), len(over))
        each = level.threads or threads
        unit = every % outer // each
        sizes = [dim.size.high for dim in over[position:behind]]
        absent = unit >= math.prod(sizes)
        for at in reversed(range(position, behind)):
            found[at] = unit if at == position else unit % over[at].size.high
            unit = unit // over[at].size.high
        found[:, absent] = FREE - 1
        position, outer = behind, each
    return found


def reaches(second: Type, first: Type, index: tuple[Index, ...], threads: int) -> dict[int, Reach]:
    """For each warp of the second launch those of the first that an event with these indices is about."""
    own, other = places(second, threads), places(first, threads)
    wanted = np.stack([*_wanted(second, own, index, threads)]) if first else np.zeros((0, threads), dtype=np.int64)
    fixed = [at for at in range(len(first)) if (wanted[at] != FREE).any()]
    there: dict[tuple[int, ...], list[int]] = {}
    for thread in range(threads):
        if (other[:, thread] >= 0).all():
            there.setdefault(tuple(other[fixed, thread].tolist()), []).append(thread)
    found: dict[int, tuple[set[int], bool]] = {}
    for thread in range(threads):
        if not (own[:, thread] >= 0).all():
            continue
        warps, alike = found.get(thread // WARP, (set(), True))
        meant = there.get(tuple(wanted[fixed, thread].tolist()), [])
        mine = [one for one in meant if one // WARP == thread // WARP]
        found[thread // WARP] = warps | {one // WARP for one in meant}, alike and mine in ([], [thread])
    return {warp: Reach(frozenset(warps), alike) for warp, (warps, alike) in found.items()}


def _wanted(over: Type, own: Array, index: tuple[Index, ...], threads: int) -> Iterator[Array]:
    """The indices that each thread waits for; those that other variables say are any."""
    values = {var.name: own[at] for at, var in enumerate(processor_variables(over))}
    for one in index:
        if isinstance(one, Every) or not {var.name for var in as_expr(one).variables()} <= values.keys():
            yield np.full(threads, FREE)
        else:
            yield np.broadcast_to(np.asarray(compiled(as_expr(one))(values)), (threads,))
