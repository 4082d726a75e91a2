"""Compute which thread accesses which element: evaluate the accesses of the final kernel IR for every thread of a block.

Rows and columns are the values of the index expressions. So strided tiles, permuted lanes and rasterized blocks are shown as they are
executed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.check.access_trace import AccessTrace, Frame, Use
from fireiron.check.persistence import Persistence
from fireiron.ir import Buffer, For, Kernel, statements
from fireiron.values.expr import Expr, compiled, conjuncts
from fireiron.values.tensor import View

Array = Any

MOST_POINTS = 1 << 18
"""Maximum number of points enumerated for one access: threads times iterations times elements."""


@attrs.frozen(eq=False)
class Owners:
    """The elements of a buffer that one block accesses in one role, with the warps and threads that access them.

    `rows` and `columns` are coordinates in the buffer, ascending, without those that are not accessed. `warps` has a bit for each
    warp, per `(row, column)`; `first` is the lowest thread, -1 for elements without an access; `points` are all
    `(thread, row index, column index)`. `lanes_known` is false if the hardware does not specify the lane of an element;
    `partial` is true if there are too many points, so that only the first iterations of a loop are evaluated.
    """

    rows: Array
    columns: Array
    warps: Array
    first: Array
    points: tuple[Array, Array, Array]
    lanes_known: bool = True
    partial: bool = False

    def lanes(self, warp: int) -> tuple[Array, Array, Array]:
        """Return the row and column indices of the elements of a warp, and a bit for each lane."""
        thread, row, column = self.points
        own = thread // 32 == warp
        rows, columns = np.unique(row[own]), np.unique(column[own])
        masks = np.zeros((len(rows), len(columns)), dtype=np.int64)
        place = np.searchsorted(rows, row[own]), np.searchsorted(columns, column[own])
        np.bitwise_or.at(masks, place, 1 << (thread[own] % 32).astype(np.int64))
        return rows, columns, masks


def sample_sizes(kernel: Kernel, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return a value for each run-time size: the given one, else the smallest legal one of at least 512."""
    return {symbol.name: sizes.get(symbol.name, _sample(symbol)) for symbol in kernel.symbols}


def _sample(symbol: Any) -> int:
    step = symbol.multiple_of
    value = max(-(-512 // step), -(-symbol.low // step)) * step
    return int(min(value, symbol.high // step * step))


def role(use: Use) -> str:
    """Return the role of an access: `"computed"`, `"started"` (an init), `"read"`, `"written"` (a move) or `"added"` (atomically)."""
    if not use.access.write:
        return "read"
    if use.statement.atomic:
        return "added"
    spec = use.statement.spec
    return "started" if spec.fills else "written" if spec.copies else "computed"


def accessed_elements(access_trace: AccessTrace, use: Use, fixed: Mapping[str, int]) -> tuple[tuple[Array, Array, Array], bool] | None:
    """Return threads, rows and columns of all elements that a block accesses, in its first copy of the buffer.

    `fixed` contains the block, the run-time sizes and the variables of fixed loops. The flag is true if a loop was shortened. The result is
    None if the block accesses no element.
    """
    access, statement = use.access, use.statement
    buffer = access_trace.kernel.buffer(access.buffer)
    conditions = conjuncts(statement.performed)
    bounds = [*(bound for bound in access.bounds if bound is not None), *(piece.condition for piece in use.pieces)]
    needed = access_trace.needs((*access.base, access.copy, *conditions, *bounds))
    group = (statement.spec.level.threads or access_trace.kernel.workers) if statement.collective else 1
    threads = access_trace.threads[::group]
    counted = (stmt.prior_iterations for stmt in statements(access_trace.kernel.body) if isinstance(stmt, For))
    still = {**{var.name: 0 for var in counted if var is not None}, **fixed}  # the first execution of each loop
    partial = False
    room = max(MOST_POINTS // (len(threads) * access.count), 1)
    axes: list[tuple[str, Array]] = []
    for loop in reversed(use.loops):
        name = loop.var.name
        if name in still or name not in needed:
            still.setdefault(name, 0)
            continue
        first = {outer: 0 for outer, _ in axes}  # an extent that varies with an outer loop is that of its first iteration
        partial = partial or not access_trace.roots(loop.extent).isdisjoint(first)
        extent = int(np.max(compiled(loop.extent)(Frame(access_trace.lets, (), {**first, **still}))))
        partial = partial or extent > room
        axes.append((name, np.array(loop.values(min(extent, room)), dtype=np.int64)))
        room = max(room // max(extent, 1), 1)
    frame = access_trace.frame([("thread", threads), *axes], still)
    places = [np.asarray(coordinate) for coordinate in access_trace.coordinates(frame, access)]
    valid = np.ones(places[0].shape, dtype=bool)
    for condition in conditions:
        valid &= np.asarray(frame.full(condition), dtype=bool)[..., None]
    if buffer.tensor.copies > 1:
        valid &= (frame.full(access.copy) == 0)[..., None]
    valid &= access_trace.inside(use, frame)
    owner = np.broadcast_to(threads.reshape(-1, *[1] * (valid.ndim - 1)), valid.shape)[valid]
    rows, columns = _matrix([np.broadcast_to(place, valid.shape)[valid] for place in places])
    if not len(owner):
        return None
    return _widened(owner, rows, columns, 32 if access.spread else group, access_trace.kernel.workers), partial


def _matrix(places: Sequence[Array]) -> tuple[Array, Array]:
    """Return the last two coordinates; a vector is one row."""
    return (places[-2], places[-1]) if len(places) > 1 else (np.zeros_like(places[0]), places[0])


def _widened(owner: Array, rows: Array, columns: Array, group: int, threads: int) -> tuple[Array, Array, Array]:
    """Assign each element of a collective access to all threads of the group: one thread per warp represents its warp."""
    if group == 1:
        return owner, rows, columns
    first = owner // group * group
    warps = max(-(-min(group, threads) // 32), 1)
    steps = np.arange(warps) * 32
    return (first[:, None] + steps).ravel(), np.repeat(rows, warps), np.repeat(columns, warps)


def owners(access_trace: AccessTrace, uses: Iterable[Use], fixed: Mapping[str, int]) -> Owners | None:
    """Return the owners of all elements that a block accesses in several uses of one buffer; None if there are none."""
    accesses = list(uses)
    parts = [part for use in accesses if (part := accessed_elements(access_trace, use, fixed)) is not None]
    if not parts:
        return None
    thread, row, column = (np.concatenate(column) for column in zip(*(part for part, _ in parts), strict=True))
    rows, columns = np.unique(row), np.unique(column)
    shape = len(rows), len(columns)
    place = np.searchsorted(rows, row), np.searchsorted(columns, column)
    warps = np.zeros(shape, dtype=np.int64)
    np.bitwise_or.at(warps, place, 1 << (thread // 32).astype(np.int64))
    first = np.full(shape, access_trace.kernel.workers, dtype=np.int64)
    np.minimum.at(first, place, thread)
    first[first == access_trace.kernel.workers] = -1
    known = not any(use.access.spread or use.statement.collective or _fragment(access_trace.kernel, use) for use in accesses)
    return Owners(rows, columns, warps, first, (thread, *place), known, any(partial for _, partial in parts))


def _fragment(kernel: Kernel, use: Use) -> bool:
    """Return whether the registers are a fragment whose lanes the hardware does not specify."""
    return kernel.buffer(use.access.buffer).memory.name.startswith("FR")


def fixed_loops(access_trace: AccessTrace, use: Use, buffer: Buffer) -> frozenset[str]:
    """Return the loops to fix at their first iteration, so that one tile is drawn instead of all of them.

    These are the loops that only select the copy of a buffer and, for a move from global memory, those on which its destination
    does not depend.
    """
    loops = {loop.var.name for loop in use.loops}
    moving = access_trace.needs(use.access.base)
    still = loops - moving if buffer.tensor.copies > 1 else frozenset()
    if use.statement.spec.copies and not use.access.write and buffer.parameter:
        goals = [access.base for access in use.statement.accesses if access.write]
        still = still | (loops - access_trace.needs([base for goal in goals for base in goal]))
    return frozenset(still)


@attrs.frozen(eq=False)
class Blocks:
    """The blocks that compute each part of a tensor: the matrix is cut at `rows` and `columns` where the owner changes.

    `first` is the lowest block of each part (-1: none of the evaluated blocks), `count` the number of its blocks. `evaluated` is the number
    of evaluated tiles, `tiles` that of all tiles: one per block, except for persistent blocks.
    """

    rows: Array
    columns: Array
    first: Array
    count: Array
    evaluated: int
    grid: int
    tiles: int


MOST_BLOCKS = 4096
MOST_PARTS = 160
"""Maximum number of drawn parts of a dimension; the others are omitted."""


def blocks_of(view: View, lets: Mapping[str, Expr], grid: int, sizes: Mapping[str, int], persistent: Persistence | None = None) -> Blocks:
    """Return the blocks of a block-level view: a matrix, a vector as one row, or the first matrix of a batch (its last dimensions).

    For persistent blocks, all their tiles.
    """
    tiles = grid if persistent is None else _number(Frame(lets, (), sizes), persistent.tiles)
    evaluated = min(tiles, MOST_BLOCKS)
    owner = np.arange(evaluated) % grid
    frame = Frame(lets, [("block", owner)], sizes)
    if persistent is not None:
        frame[persistent.loop.var.name] = np.arange(evaluated) // grid
    runs: list[tuple[Array, list[tuple[int, int]]]] = []
    extents: list[int] = []
    for position, dim in enumerate(view.dims):
        base = np.broadcast_to(np.asarray(frame.value(dim.base)), (evaluated,))
        offsets = np.zeros(1, dtype=np.int64)
        for mode in dim.modes:
            size, stride = _number(frame, mode.size), _number(frame, mode.stride)
            offsets = (offsets[None, :] + np.arange(size)[:, None] * stride).ravel()
        runs.append((base, _runs(np.unique(offsets))))
        extents.append(_number(frame, view.extent(position)))
    if len(runs) == 1:
        runs.insert(0, (np.zeros(evaluated, dtype=np.int64), [(0, 1)]))
        extents.insert(0, 1)
    here = np.all([base == 0 for base, _ in runs[:-2]], axis=0) if len(runs) > 2 else np.ones(evaluated, dtype=bool)
    runs, extents = runs[-2:], extents[-2:]
    edges: list[Array] = []
    for (base, parts), end_of_all in zip(runs, extents, strict=True):
        marks = {0, end_of_all}
        for start in np.unique(base).tolist():
            marks |= {min(max(int(start) + end, 0), end_of_all) for part in parts for end in part}
        edges.append(np.array(sorted(marks)[: MOST_PARTS + 1]))
    first = np.full((len(edges[0]) - 1, len(edges[1]) - 1), -1, dtype=np.int64)
    count = np.zeros(first.shape, dtype=np.int64)
    for number in np.flatnonzero(here)[::-1]:
        rows, columns = (_covered(edge, int(base[number]), parts) for edge, (base, parts) in zip(edges, runs, strict=True))
        index = np.ix_(rows, columns)
        first[index] = owner[number]
        count[index] += 1
    return Blocks(edges[0], edges[1], first, count, evaluated, grid, tiles)


def _number(frame: Frame, value: Expr) -> int:
    return int(np.max(frame.value(value)))


def _runs(offsets: Array) -> list[tuple[int, int]]:
    """Return runs of adjacent offsets as `(first, past the last)`."""
    ends = np.flatnonzero(np.diff(offsets) != 1)
    starts = [0, *(ends + 1).tolist()]
    stops = [*ends.tolist(), len(offsets) - 1]
    return [(int(offsets[a]), int(offsets[b]) + 1) for a, b in zip(starts, stops, strict=True)]


def _covered(edges: Array, base: int, parts: Sequence[tuple[int, int]]) -> list[int]:
    """Return the parts between edges that a block covers."""
    low = edges[:-1]
    inside = np.zeros(len(low), dtype=bool)
    for start, stop in parts:
        inside |= (low >= base + start) & (low < base + stop)
    return np.flatnonzero(inside).tolist()


def members(mask: int) -> str:
    """Return the bits of a mask as text: `0-3`, `0 4 8 12`, or the first ones and their number."""
    numbers = [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
    if len(numbers) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return " ".join(map(str, numbers)) if len(numbers) <= 4 else f"{' '.join(map(str, numbers[:3]))} ... ({len(numbers)})"
