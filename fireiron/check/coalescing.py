"""Compare the 32-byte sectors of global memory that each request of a warp moves with the minimum.

Sectors are counted for block 0, in the first iterations of the loops, away from the edges. Run-time sizes are assumed to be about 4096, a
multiple of their known divisor. With such a large leading dimension, two elements in adjacent rows (or columns) never share a sector.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fireiron.check.access_trace import AccessTrace, Array, Use, assumed_elements
from fireiron.check.finding import Finding, described, line_of
from fireiron.check.persistence import dynamic_tiles, static_schedule
from fireiron.frozen import frozen
from fireiron.ir import Buffer
from fireiron.values.expr import BRACKETS, constant

SECTOR = 32
LARGE = 4096


@frozen(eq=False)
class _Traffic:
    """The coordinates of the first element of each lane's vector, an array `(requests, 32)` per dimension, and the mask of active lanes."""

    coordinates: tuple[Array, ...]
    active: Array
    vector: int


def check_coalescing(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """A finding for each access to global memory; a warning if a warp moves more than twice the sectors that it needs."""
    access_trace = AccessTrace(static_schedule(access_trace.kernel)) if dynamic_tiles(access_trace.kernel) else access_trace
    sizes = {symbol.name: -(-max(LARGE, symbol.low) // symbol.multiple_of) * symbol.multiple_of for symbol in access_trace.kernel.symbols}
    sizes |= assumed_elements(access_trace, sizes)
    findings = []
    for use in access_trace.uses:
        buffer = access_trace.kernel.buffer(use.access.buffer)
        if buffer.memory.of_grid and use.access.base and not use.statement.collective and not use.access.spread:
            traffic = _traffic(access_trace, use, sizes)
            if traffic is not None:
                findings.append(_finding(access_trace, use, buffer, traffic, sizes))
    return tuple(findings)


def _traffic(access_trace: AccessTrace, use: Use, sizes: dict[str, int]) -> _Traffic | None:
    statement, access = use.statement, use.access
    needed = access_trace.needs((*access.base, statement.performed))
    fixed = {**sizes, "block": 0, **dict.fromkeys(access_trace.tiles, 0)}
    axes: list[tuple[str, Array]] = []
    for loop in use.loops:
        if loop.var.name in needed:
            count = constant(loop.extent)
            axes.append((loop.var.name, np.arange(min(2, 2 if count is None else count))))
    if any(not len(values) for _, values in axes):
        return None
    frame = access_trace.frame([("thread", access_trace.threads), *axes], fixed)
    vector = use.width
    steps = np.array(access.elements()[::vector]).T
    coordinates = tuple(_by_warp(frame.full(base)[..., None] + step) for base, step in zip(access.base, steps, strict=True))
    active = np.asarray(frame.full(statement.performed), dtype=bool)
    return _Traffic(coordinates, _by_warp(np.broadcast_to(active[..., None], (*frame.shape, steps.shape[1]))), vector)


def _by_warp(values: Array) -> Array:
    """Reshape `(threads, ...)` to `(requests, 32)`; missing lanes are zero, or inactive."""
    missing = -len(values) % 32
    if missing:
        values = np.concatenate([values, np.zeros((missing, *values.shape[1:]), dtype=values.dtype)])
    return np.moveaxis(values.reshape(len(values) // 32, 32, -1), 1, 2).reshape(-1, 32)


def _start(buffer: Buffer, coordinates: tuple[Array, ...], sizes: dict[str, int]) -> Array:
    """Byte addresses; the array starts at a multiple of 256 bytes, as allocations do."""
    return buffer.storage.assumed.evaluated(sizes).address(coordinates) * buffer.dtype.bytes


def sectors(start: Array, width: int, active: Array) -> tuple[Array, Array]:
    """The number of sectors that each request moves, and the minimum for its bytes; `width` is the number of bytes per lane."""
    step = min(width, SECTOR)
    pieces = np.broadcast_to(start, active.shape)[:, :, None] + np.arange(0, width, step)
    moved = _distinct(np.where(active[:, :, None], pieces // SECTOR, -1))
    wanted = _distinct(np.where(active[:, :, None], pieces // step, -1)) * step
    return moved, -(-wanted // SECTOR)


def _distinct(values: Array) -> Array:
    """The number of distinct nonnegative values in each row."""
    rows = np.sort(values.reshape(len(values), -1), axis=1)
    fresh = np.ones(rows.shape, dtype=bool)
    fresh[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return np.asarray((fresh & (rows >= 0)).sum(axis=1))


def _finding(access_trace: AccessTrace, use: Use, buffer: Buffer, traffic: _Traffic, sizes: dict[str, int]) -> Finding:
    width = traffic.vector * buffer.dtype.bytes
    given = {name: value for name, value in sizes.items() if not name.endswith(BRACKETS)}
    moved, ideal = sectors(_start(buffer, traffic.coordinates, sizes), width, traffic.active)
    busy = ideal > 0
    count, least = (int(moved[busy].sum()), int(ideal[busy].sum())) if busy.any() else (0, 0)
    where = int(np.argmax(moved - ideal))
    access = described(use.statement, use.access)
    details: dict[str, Any] = {
        "sectors": int(moved[where]),
        "ideal": int(ideal[where]),
        "ratio": round(count / max(least, 1), 3),
        "vector_bytes": width,
        "assumed_sizes": given,
    }
    note = f" (with {', '.join(f'{name}={value}' for name, value in given.items())})" if given else ""
    message = f"{access}: {moved[where]} 32-byte sectors per warp request, {ideal[where]} needed, {width} bytes per lane{note}"
    uncoalesced = count > 2 * least
    if uncoalesced:
        order = _better_order(access_trace, use, buffer, traffic, sizes, count)
        if order is not None:
            details["layout"] = order
            message += f"; .layout({order}) on the tile of the threads makes adjacent lanes access adjacent elements"
        elif any(access_trace.kernel.buffer(other.buffer).memory.private for other in use.statement.accesses):
            through = "load(SRC, SH) in a store" if use.access.write else f"a preceding load({buffer.name}, SH)"
            message += f"; a Strided tile assigns adjacent elements to adjacent lanes, and {through} goes through shared memory"
    elif count > least:
        message += _through_shared_memory(use, buffer)
    return Finding(
        "coalescing", "warning" if uncoalesced else "note", buffer.name, message, line_of(use.statement, use.access), access, details
    )


def _through_shared_memory(use: Use, buffer: Buffer) -> str:
    """Advice for a store of registers whose requests move up to twice the sectors that they need; empty for other accesses."""
    spec, source = use.statement.spec, next(iter(use.statement.spec.inputs), None)
    if not (use.access.write and spec.copies and source is not None and spec.operands[source].memory.private):
        return ""
    cast = ".cast_on_copy()" if spec.operands[source].dtype != buffer.dtype else ""
    store = f"Move.load(SRC, SH, Move.done()){cast}.pad(8).coalesced_copy({max(16 // max(buffer.dtype.bytes, 1), 1)}).done()"
    return f"; a store through shared memory moves whole sectors: {store}"


def _better_order(access_trace: AccessTrace, use: Use, buffer: Buffer, traffic: _Traffic, sizes: dict[str, int], count: int) -> str | None:
    """The order in which to assign the same tiles to lanes so that they move at most half the sectors; None if there is none."""
    dims = len(use.access.base)
    if dims != 2 or len(traffic.active) * 32 < access_trace.kernel.workers:
        return None
    frame = access_trace.frame(
        [("thread", access_trace.threads)],
        {**sizes, "block": 0, **dict.fromkeys(access_trace.tiles, 0), **{loop.var.name: 0 for loop in use.loops}},
    )
    lanes = [frame.full(base) for base in use.access.base]
    values = [np.unique(part) for part in lanes]
    if len(values[0]) * len(values[1]) != access_trace.kernel.workers:
        return None
    for name, contiguous in (("ColMajor", 0), ("RowMajor", 1)):
        digits = {
            contiguous: access_trace.threads % len(values[contiguous]),
            1 - contiguous: access_trace.threads // len(values[contiguous]),
        }
        coordinates = tuple(_by_warp(values[dim][digits[dim]][:, None]) for dim in (0, 1))
        active = np.ones(coordinates[0].shape, dtype=bool)
        moved, _ = sectors(_start(buffer, coordinates, sizes), traffic.vector * buffer.dtype.bytes, active)
        # Advice is only given if it halves the traffic.
        if moved.mean() * 2 <= count / len(traffic.active):
            return name
    return None
