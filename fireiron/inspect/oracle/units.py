"""Determine for which warps a warp waits: map the processors of two launches to threads of a block."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from fireiron.check.access_trace import Array
from fireiron.check.races.footprints import WARP
from fireiron.frozen import frozen
from fireiron.tasks.events import Every, Index, Type, processor_variables
from fireiron.values.expr import as_expr, compiled

FREE = -1
"""Index along a dimension that matches any index."""


@frozen
class AwaitedWarps:
    """The warps for which a warp waits. `same_thread` is true if, within the warp, each thread waits only for itself."""

    warps: frozenset[int]
    same_thread: bool


def processor_indices(over: Type, threads: int) -> Array:
    """Return the indices of each thread along processor dimensions. Threads without a processor have a negative index.

    Dimensions of the same level are digits of one number.
    """
    every = np.arange(threads)
    indices = np.zeros((len(over), threads), dtype=np.int64)
    outer = threads
    position = 0
    while position < len(over):
        level = over[position].processor.level
        end = next((axis for axis in range(position, len(over)) if over[axis].processor.level != level), len(over))
        unit_threads = level.threads or threads
        unit = every % outer // unit_threads
        sizes = [dim.size.high for dim in over[position:end]]
        absent = unit >= math.prod(sizes)
        for axis in reversed(range(position, end)):
            indices[axis] = unit if axis == position else unit % over[axis].size.high
            unit = unit // over[axis].size.high
        indices[:, absent] = FREE - 1
        position, outer = end, unit_threads
    return indices


def awaited_warps(second: Type, first: Type, index: tuple[Index, ...], threads: int) -> dict[int, AwaitedWarps]:
    """Return for each warp of the second launch the warps of the first launch for which an event with these indices waits."""
    own, other = processor_indices(second, threads), processor_indices(first, threads)
    awaited = np.stack([*_awaited_indices(second, own, index, threads)]) if first else np.zeros((0, threads), dtype=np.int64)
    fixed = [axis for axis in range(len(first)) if (awaited[axis] != FREE).any()]
    threads_at: dict[tuple[int, ...], list[int]] = {}
    for thread in range(threads):
        if (other[:, thread] >= 0).all():
            threads_at.setdefault(tuple(other[fixed, thread].tolist()), []).append(thread)
    by_warp: dict[int, tuple[set[int], bool]] = {}
    for thread in range(threads):
        if not (own[:, thread] >= 0).all():
            continue
        warps, same_thread = by_warp.get(thread // WARP, (set(), True))
        matches = threads_at.get(tuple(awaited[fixed, thread].tolist()), [])
        in_warp = [match for match in matches if match // WARP == thread // WARP]
        by_warp[thread // WARP] = warps | {match // WARP for match in matches}, same_thread and in_warp in ([], [thread])
    return {warp: AwaitedWarps(frozenset(warps), same_thread) for warp, (warps, same_thread) in by_warp.items()}


def _awaited_indices(over: Type, own: Array, index: tuple[Index, ...], threads: int) -> Iterator[Array]:
    """Yield the indices for which each thread waits. Indices that depend on other variables match any index."""
    values = {var.name: own[at] for at, var in enumerate(processor_variables(over))}
    for component in index:
        if isinstance(component, Every) or not {var.name for var in as_expr(component).variables()} <= values.keys():
            yield np.full(threads, FREE)
        else:
            yield np.broadcast_to(np.asarray(compiled(as_expr(component))(values)), (threads,))
