"""Check Stream-K: blocks compute segments of tiles, and the block that finishes a tile last adds the segments and performs the epilogue.

All blocks and segments are enumerated. Each tile's segments must partition its iterations; their partial results must be in different
places of the workspace, in the order in which the last block reads them; and exactly these segments count at the semaphore of the tile.
Then the reads of the last block follow the stores, and everything in its epilogue is work of one block per tile.

So the race check compares three simpler kernels:

- one tile per block, with all iterations and the epilogue: accesses of all blocks, and of the threads of a block, to the results;
- persistent blocks whose tiles have any number of iterations, with the epilogue in each iteration, and in none: accesses of the threads of
  a block to shared memory. A barrier of the consumers at the semaphore separates consecutive epilogues, so other sequences add no hazard;
- the stores of the partial results, of one segment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.check.access_trace import AccessTrace
from fireiron.frozen import frozen
from fireiron.ir import (
    Barrier,
    Exec,
    For,
    Kernel,
    Let,
    Roles,
    SemaphoreAction,
    SemaphoreBarrier,
    Stmt,
    execs,
    located,
    rewritten,
    statements,
    substituted,
)
from fireiron.ir.effect import Effects
from fireiron.ir.effects.joint_tiles import StreamedTiles
from fireiron.ir.rewrite import variables
from fireiron.values.expr import ONE, ZERO, Expr, Var, as_expr, constant, mod

Array = Any


def streamed(kernel: Kernel) -> StreamedTiles | None:
    """The description of the segments of a kernel; None without Stream-K."""
    description = kernel.effects[StreamedTiles]
    return description if description.segment else None


# ---------------------------------------------------------------------------------------------- simpler kernels


def whole_tiles(kernel: Kernel) -> Kernel:
    """The kernel with one block per tile, which executes all iterations and the epilogue."""
    description = _described(kernel)
    number = Var("number of the tile", 0, description.tiles - 1)  # distinct from the index of a persistent block
    block = Var(kernel.block.name, 0, description.tiles - 1)

    def whole(loop: For) -> tuple[Stmt, ...]:
        names = {description.number: as_expr(description.iterations)}
        body = _of_segment(loop.body, description, Let(_tile(loop, description), number), names, True)
        return substituted(body, {loop.var: ZERO, **({} if loop.prior_iterations is None else {loop.prior_iterations: ZERO})})

    result = _with_segments(kernel, whole)
    return attrs.evolve(result, body=substituted(result.body, {number: block}), grid=as_expr(description.tiles))


def persistent_tiles(kernel: Kernel, finishes: bool) -> Kernel:
    """The kernel with persistent blocks, whose tiles have any number of iterations; with the epilogue in each iteration, or in none."""
    description, blocks = _described(kernel), constant(kernel.grid) or 1
    most = max(loop.var.high for loop in statements(kernel.body) if isinstance(loop, For) and loop.var.name == description.segment) + 1
    blocks = max(blocks, -(-description.iterations // most))  # so that segments with each number of iterations exist
    varies = description.segment in AccessTrace(kernel).needs((Var(description.number),))
    block = Var(kernel.block.name, 0, blocks - 1)

    work = Var("number of the segment", 0, blocks * most - 1)

    def persistent(loop: For) -> tuple[Stmt, ...]:
        names = {description.number: mod(work if varies else block, as_expr(description.iterations)) + 1}
        tile = Let(_tile(loop, description), mod(work, as_expr(description.tiles)))
        body = (Let(work, block + loop.var * blocks), *_of_segment(loop.body, description, tile, names, finishes))
        if most == 1:
            return substituted(body, {loop.var: ZERO})
        var = Var(loop.var.name, 0, most - 1)
        return substituted((attrs.evolve(loop, var=var, extent=as_expr(most), body=body),), {loop.var: var})

    return attrs.evolve(_with_segments(kernel, persistent), grid=as_expr(blocks))


def stores_of_segment(kernel: Kernel) -> Kernel:
    """The stores of the partial results of one segment, at one place of the workspace."""
    partial = _partial(kernel)
    lists = [kernel.body, *(role.body for stmt in kernel.body if isinstance(stmt, Roles) for role in stmt.roles)]
    loops = [loop for body in lists for loop in body if isinstance(loop, For) and loop.var.name == _described(kernel).segment]
    stores: list[Stmt] = []
    for stmt in (stmt for loop in loops for stmt in loop.body):
        if isinstance(stmt, For) and any(access.write and access.buffer in partial for one, _ in execs((stmt,)) for access in one.accesses):
            stores += substituted(stmt.body, {stmt.var: ZERO})

    def at_one_place(stmt: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(stmt, Exec):
            return (stmt,)
        accesses = (attrs.evolve(one, base=(ZERO, *one.base[1:])) if one.buffer in partial else one for one in stmt.accesses)
        return (attrs.evolve(stmt, accesses=tuple(accesses)),)

    names = tuple(stmt for stmt in kernel.body if isinstance(stmt, Let))
    body = _used((*names, *rewritten(stores, at_one_place)))
    return attrs.evolve(kernel, body=body, workspace=None, effects=_without_segments(kernel), rings=(), threads=kernel.workers)


def _described(kernel: Kernel) -> StreamedTiles:
    description = streamed(kernel)
    assert description is not None
    return description


def _partial(kernel: Kernel) -> frozenset[str]:
    return frozenset(buffer.name for buffer in kernel.buffers if buffer.workspace)


def _without_segments(kernel: Kernel) -> Effects:
    return Effects(tuple(one for one in kernel.effects.all if not isinstance(one, StreamedTiles)))


def _tile(loop: For, description: StreamedTiles) -> Var:
    """The variable of the tile; a role that does not use it has no such name."""
    names = (stmt.var for stmt in loop.body if isinstance(stmt, Let) and stmt.var.name == description.tile)
    return next(names, Var(description.tile, 0, description.tiles - 1))


def _with_segments(kernel: Kernel, replace: Any) -> Kernel:
    """The kernel with its loops over segments replaced, and without partial results."""
    name, partial = _described(kernel).segment, _partial(kernel)

    def edit(stmt: Stmt) -> tuple[Stmt, ...]:
        if isinstance(stmt, Exec) and any(access.buffer in partial for access in stmt.accesses):
            return ()
        if isinstance(stmt, For) and not any(True for _ in execs(stmt.body)):
            return ()
        return tuple(replace(stmt)) if isinstance(stmt, For) and stmt.var.name == name else (stmt,)

    body = _used(rewritten(kernel.body, edit))
    return attrs.evolve(kernel, body=body, workspace=None, effects=_without_segments(kernel))


def _of_segment(body: Sequence[Stmt], description: StreamedTiles, tile: Let, names: Mapping[str, Expr], finishes: bool) -> tuple[Stmt, ...]:
    """The body of a segment for another tile, without the semaphore."""
    values = {description.first: ZERO, description.parts: ONE, **names}

    def edit(stmt: Stmt) -> tuple[Stmt, ...]:
        if isinstance(stmt, SemaphoreBarrier):
            return (Barrier(stmt.scope, stmt.reason),)
        if isinstance(stmt, For) and stmt.extent.variables() == {Var(description.last, 0, 1)}:
            return (attrs.evolve(stmt, extent=ONE),) if finishes else ()
        return (stmt,)

    result: list[Stmt] = [tile]
    for stmt in body:
        if not isinstance(stmt, Let):
            result += rewritten((stmt,), edit)
        elif stmt.var.name in values:
            result.append(Let(stmt.var, values[stmt.var.name]))
        elif stmt.var != tile.var:
            result.append(stmt)
    return _used(tuple(result), tile.var)


def _used(body: tuple[Stmt, ...], *always: Var) -> tuple[Stmt, ...]:
    """A list without names that no later statement uses, except for those that are `always` used."""
    used: set[Var] = set(always)
    kept: list[Stmt] = []
    for stmt in reversed(body):
        if not isinstance(stmt, Let) or stmt.var in used:
            used |= variables((stmt,)) | _counted((stmt,))
            kept.append(stmt)
    return tuple(reversed(kept))


def _counted(body: Sequence[Stmt]) -> set[Var]:
    """The variables of the counts of iterations."""
    return {var for stmt in statements(tuple(body)) if isinstance(stmt, For) for var in stmt.increment.variables()}


# ---------------------------------------------------------------------------------------------- the segments of all blocks


@frozen(eq=False)
class Segments:
    """All segments, as arrays: the values of the expressions of a semaphore, of a description, and of the places in the workspace.

    `stored` and `read` are the numbers of times that a block stores its part, and that the last block reads a part.
    """

    block: Array
    tile: Array
    first: Array
    number: Array
    parts: Array
    index: Array
    slot: Array
    first_slot: Array
    stored: Array
    read: Array


def problems(access_trace: AccessTrace, barriers: Sequence[tuple[SemaphoreBarrier, tuple[Stmt, ...]]]) -> Iterator[str]:
    """The violations of the conditions under which the last block of each tile sees all partial results."""
    kernel, description = access_trace.kernel, streamed(access_trace.kernel)
    wrong = _wrong_structure(kernel, description, barriers)
    if wrong is not None or description is None:
        yield wrong or "a block determines whether it is the last one of a tile, but no loop over segments is described"
        return
    (stmt, around), *_ = barriers
    loop = next(one for one in around if isinstance(one, For))
    segments = _segments(access_trace, description, stmt, loop)
    if isinstance(segments, str):
        yield segments
        return
    yield from _wrong_segments(segments, description, stmt.group)


def _wrong_structure(
    kernel: Kernel, description: StreamedTiles | None, barriers: Sequence[tuple[SemaphoreBarrier, tuple[Stmt, ...]]]
) -> str | None:
    """The problem of the order of statements; None if there is none."""
    (stmt, around), *others = barriers
    name = f"the semaphore of {stmt.group}"
    loops = [one for one in around if not isinstance(one, Roles)]
    if others or stmt.action is not SemaphoreAction.FIND_LAST:
        return f"{name}: a segment uses it {len(barriers)} times"
    if description is None or len(loops) != 1 or not isinstance(loops[0], For) or loops[0].var.name != description.segment:
        return f"{name}: it is not in the loop over segments"
    partial, place = _partial(kernel), next(number for number, one in enumerate(loops[0].body) if one is stmt)
    for part, inside in located(kernel.body):
        if not isinstance(part, Exec):
            continue
        last = any(isinstance(one, For) and stmt.last is not None and one.extent == stmt.last for one in inside)
        early = any(one is part or any(each is part for each in statements((one,))) for one in loops[0].body[:place])
        for access in part.accesses:
            if access.buffer in partial and (access.write != early or access.write == last):
                return f"{access.buffer} is {'stored after' if access.write else 'read before'} the last block is determined"
            if access.buffer not in partial and access.write and kernel.buffer(access.buffer).memory.of_grid and not last:
                return f"{access.buffer} is written by blocks that are not the last one of a tile"
    return None


def _segments(access_trace: AccessTrace, description: StreamedTiles, stmt: SemaphoreBarrier, loop: For) -> Segments | str:
    """All segments; a text if the places of partial results depend on anything but the segment."""
    kernel, partial = access_trace.kernel, _partial(access_trace.kernel)
    blocks = np.arange(int(access_trace.frame([]).value(kernel.grid)))
    stores = [(one, loops) for one, loops in execs(loop.body) for access in one.accesses if access.write and access.buffer in partial]
    reads = [(one, loops) for one, loops in execs(loop.body) for access in one.accesses if not access.write and access.buffer in partial]
    if not stores or not reads:
        return "no block stores partial results, or no block reads them"
    known = frozenset({"block", loop.var.name})
    by_loop = {id(loops[1]) if len(loops) > 1 else id(one): (one, loops) for one, loops in reads}  # one loop may contain several statements
    groups = [_Reads.of(access_trace, one, loops, partial, known) for one, loops in by_loop.values()]
    if len({(id(loops[1]) if len(loops) > 1 else id(one), _place(one, partial)) for one, loops in reads}) != len(by_loop):
        return "the statements of a loop over parts read different parts"
    stored_at = {_place(one, partial) for one, _ in stores}
    places = [*stored_at, *(group.place for group in groups)]
    names = [known | ({group.part.name} if group.part is not None else set()) for group in groups]
    if len(stored_at) != 1 or any(not access_trace.roots(one) <= own for one, own in zip(places, [known, *names], strict=True)):
        return "the places of partial results depend on other values than the block, the segment and the part"
    counts = np.asarray(access_trace.frame([("block", blocks)]).full(loop.extent))
    rows: list[list[Array]] = []
    for number in range(int(counts.max())):
        here = blocks[counts > number]
        frame = access_trace.frame([("block", here)], {loop.var.name: number})
        read, first_slot = np.zeros(here.shape, int), np.full(here.shape, -1)
        for group in groups:
            start, count, adjacent = group.values(access_trace, here, {loop.var.name: number})
            if not adjacent or ((count > 0) & (read > 0) & (start != first_slot + read)).any():
                return "the last block does not read adjacent partial results, in the order of k"
            first_slot = np.where((read == 0) & (count > 0), start, first_slot)
            read = read + count
        named = (_value(frame, name) for name in (description.tile, description.first, description.number))
        stored, slot = frame.full(stores[0][1][0].extent), frame.full(places[0])
        rows.append([here, *named, frame.full(stmt.blocks), frame.full(stmt.index), slot, first_slot, stored, read])
    return Segments(*(np.concatenate([np.broadcast_to(one[number], one[0].shape) for one in rows]) for number in range(len(rows[0]))))


@frozen(eq=False)
class _Reads:
    """A statement that reads partial results: their `place`, in `counted` iterations; `part` is the variable of the loop over parts."""

    place: Expr
    counted: Expr
    part: Var | None

    @staticmethod
    def of(access_trace: AccessTrace, stmt: Exec, loops: Sequence[For], partial: frozenset[str], known: frozenset[str]) -> _Reads:
        """The reads of a statement in the loop over segments. The first loop around it is that of the epilogue."""
        place, outer = _place(stmt, partial), loops[1] if len(loops) > 1 else None
        moves = outer is not None and outer.var.name in access_trace.roots(place)
        return _Reads(place, ONE if outer is None else outer.extent, outer.var if outer is not None and moves else None)

    def _at(self, number: int) -> dict[str, int]:
        return {} if self.part is None else {self.part.name: number}

    def values(self, access_trace: AccessTrace, blocks: Array, fixed: Mapping[str, int]) -> tuple[Array, Array, bool]:
        """The first place and the number of places, by block, and whether the places are adjacent, in order."""
        first = access_trace.frame([("block", blocks)], {**fixed, **self._at(0)})
        start, count = first.full(self.place), first.full(self.counted)
        adjacent = True
        for number in range(1, int(count.max(initial=0))):
            place = access_trace.frame([("block", blocks)], {**fixed, **self._at(number)}).full(self.place)
            adjacent = adjacent and not ((place != start + number) & (count > number)).any()
        return start, count, adjacent


def _place(stmt: Exec, partial: frozenset[str]) -> Expr:
    return next(access.base[0] for access in stmt.accesses if access.buffer in partial)


def _value(frame: Any, name: str) -> Array:
    return frame.full(as_expr(int(name)) if name.lstrip("-").isdigit() else Var(name))


def _wrong_segments(segments: Segments, description: StreamedTiles, group: str) -> Iterator[str]:
    order = np.lexsort((segments.first, segments.tile))
    segments = Segments(*(value[order] for value in attrs.astuple(segments, recurse=False)))
    starts = np.flatnonzero(np.concatenate(([True], segments.tile[1:] != segments.tile[:-1])))
    counts = np.diff(np.append(starts, segments.tile.size))
    of_tile = np.repeat(np.arange(starts.size), counts)
    rank = np.arange(segments.tile.size) - starts[of_tile]
    ends = segments.first + segments.number
    following = np.append(segments.first[1:], 0)
    is_final = np.append(starts[1:] - 1, segments.tile.size - 1)
    inner = np.ones(segments.tile.size, dtype=bool)
    inner[is_final] = False
    complete = np.array_equal(segments.tile[starts], np.arange(description.tiles)) and not segments.first[starts].any()
    adjacent = (ends[is_final] == description.iterations).all() and (ends[inner] == following[inner]).all()
    if not complete or not adjacent or (segments.number < 1).any():
        yield f"the segments of {group} do not partition the iterations of all tiles"
        return
    name, shared = f"the semaphore of {group}", segments.parts > 1
    if (segments.parts != counts[of_tile]).any():
        yield f"{name}: a tile with {int(counts.max())} segments expects another number"
        return
    if (segments.stored != shared).any() or (segments.read != np.where(shared, segments.parts, 0)).any():
        yield f"{group}: a partial result is read but not stored, or stored but not read"
    if (segments.slot[shared] != (segments.first_slot + rank)[shared]).any():
        yield f"{group}: the last block of a tile reads other partial results than those of its segments"
    if np.unique(segments.slot[shared]).size != int(shared.sum()):
        yield f"{group}: two segments store their partial results at the same place"
    heads = starts[shared[starts]]
    if (segments.index[shared] != segments.index[starts][of_tile][shared]).any() or np.unique(segments.index[heads]).size != heads.size:
        yield f"{name}: the segments of a tile use different semaphores, or those of different tiles the same one"


__all__ = ["persistent_tiles", "problems", "stores_of_segment", "streamed", "whole_tiles"]
