"""`synchronize`: the fewest barriers that order every hazard, from which thread touches which address.

A hazard is a pair of accesses to one address by different threads, at least one a write. In its innermost common
statement list it is an interval of positions, cyclic when carried by a loop; any barrier inside meets it. Lists are solved
inside out by minimum stabbing, the latest position preferred. `no_sync` forbids a position, `sync` requires one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np

from fireiron.errors import SynchronizationError
from fireiron.ir import BLOCK_SCOPE, WARP_SCOPE, Access, Barrier, Commit, Exec, For, Kernel, Scope, Stmt, SyncPoint, scratch_access
from fireiron.lower.footprint import Array, active_mask, evaluate, grid_of, needed_variables
from fireiron.values.expr import Expr, Var, constant
from fireiron.values.machine import GL, SH


@attrs.frozen(eq=False)
class Touch:
    """An access with the statement and the loops around it."""

    statement: Exec
    loops: tuple[For, ...]
    access: Access

    @property
    def atomic(self) -> bool:
        """Whether it adds atomically, which needs no order among those that do."""
        return self.statement.atomic and self.access.write


@attrs.frozen(eq=False)
class Summary:
    """What of a statement is exposed to what stands before and behind it, and whether a barrier always runs in it.

    `first` and `last` end at block barriers; `near_first` and `near_last` at barriers of a warp as well, which is where
    hazards within a warp end.
    """

    first: tuple[Touch, ...] = ()
    last: tuple[Touch, ...] = ()
    near_first: tuple[Touch, ...] = ()
    near_last: tuple[Touch, ...] = ()
    barrier: bool = False
    near_barrier: bool = False


@attrs.frozen(eq=False)
class Hazard:
    """Positions of which one needs a barrier, its scope, and the witness."""

    positions: frozenset[int]
    scope: Scope
    before: Touch
    behind: Touch
    witness: str
    first: int = 0


def synchronize(kernel: Kernel) -> Kernel:
    """The kernel with barriers, sync points resolved; a `SynchronizationError` where a forbidden one is needed."""
    solver = _Solver(kernel)
    body, _ = solver.solve(kernel.body, None, ())
    return attrs.evolve(kernel, body=body)


class _Solver:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.watched = {buffer.name for buffer in kernel.buffers if (buffer.memory == SH) or (buffer.memory == GL and buffer.written)}
        self.footprint = functools.lru_cache(maxsize=None)(self._footprint)

    # -------------------------------------------------------------------------------------- lists, inside out

    def solve(self, body: Sequence[Stmt], loop: For | None, loops: tuple[For, ...]) -> tuple[tuple[Stmt, ...], Summary]:
        """The list with barriers, and what of it is exposed."""
        items: list[tuple[Stmt, ...]] = []
        summaries: list[Summary] = []
        leading: list[Stmt] = []
        commits: list[int] = []
        best: list[int] = []
        required: dict[int, SyncPoint] = {}
        forbidden: dict[int, SyncPoint] = {}
        for statement in body:
            if isinstance(statement, SyncPoint) and statement.require is None:
                best.append(len(items))
                continue
            if isinstance(statement, SyncPoint):
                (required if statement.require else forbidden)[len(items)] = statement
                continue
            summary = Summary()
            if isinstance(statement, For):
                inner, summary = self.solve(statement.body, statement, (*loops, statement))
                runs = statement.extent.low >= 1
                if statement.period:
                    summary = _at_the_ends(summary, statement)
                statement = attrs.evolve(statement, body=inner)
                summary = attrs.evolve(summary, barrier=summary.barrier and runs, near_barrier=summary.near_barrier and runs)
            elif isinstance(statement, Exec):
                touches = self._touches(statement, loops)
                summary = Summary(touches, touches, touches, touches)
            elif isinstance(statement, Commit):
                commits.append(len(items))
            elif not isinstance(statement, Barrier):
                leading.append(statement)
                continue
            else:
                summary = Summary(barrier=statement.scope == BLOCK_SCOPE, near_barrier=True)
            items.append((*leading, statement))
            summaries.append(summary)
            leading = []
        if leading:
            items.append(tuple(leading))
            summaries.append(Summary())
        hazards = [_behind_commit(one, commits) for one in self._hazards(summaries, loop is not None, loops)]
        order = [*best, *(position for position in range(len(items), -1, -1) if position not in best)]
        barriers = self._placed(hazards, order, set(required), forbidden)
        return self._merged(items, summaries, barriers)

    def _touches(self, statement: Exec, loops: tuple[For, ...]) -> tuple[Touch, ...]:
        accesses = statement.accesses if statement.scratch is None else (*statement.accesses, scratch_access(statement.scratch))
        return tuple(Touch(statement, loops, access) for access in accesses if access.buffer in self.watched)

    def _merged(
        self, items: list[tuple[Stmt, ...]], summaries: list[Summary], barriers: dict[int, tuple[Scope, str]]
    ) -> tuple[tuple[Stmt, ...], Summary]:
        merged: list[Stmt] = []
        parts: list[Summary] = []
        for position in range(len(items) + 1):
            if position in barriers:
                scope, reason = barriers[position]
                merged.append(Barrier(scope, reason))
                parts.append(Summary(barrier=scope == BLOCK_SCOPE, near_barrier=True))
            if position < len(items):
                merged += items[position]
                parts.append(summaries[position])
        backward = parts[::-1]
        return tuple(merged), Summary(
            _exposed(parts, "first", "barrier"),
            _exposed(backward, "last", "barrier"),
            _exposed(parts, "near_first", "near_barrier"),
            _exposed(backward, "near_last", "near_barrier"),
            any(part.barrier for part in parts),
            any(part.near_barrier for part in parts),
        )

    # -------------------------------------------------------------------------------------- hazards

    def _hazards(self, summaries: list[Summary], cyclic: bool, loops: tuple[For, ...]) -> list[Hazard]:
        hazards: list[Hazard] = []
        count = len(summaries)
        outer = tuple(loop.var for loop in loops)
        for i in range(count):
            for j in range(i + 1, count):
                hazards += self._between(summaries, i, j, range(i + 1, j), frozenset(range(i + 1, j + 1)), outer)
        if cyclic:
            for i in range(count):
                for j in range(count):
                    positions = frozenset((*range(i + 1, count + 1), *range(j + 1))) if j <= i else frozenset(range(count + 1))
                    middle = (*range(i + 1, count), *range(j)) if j <= i else ()
                    hazards += self._between(summaries, i, j, middle, positions, outer[:-1], loops[-1])
        return hazards

    def _between(
        self,
        summaries: list[Summary],
        i: int,
        j: int,
        middle: Iterable[int],
        positions: frozenset[int],
        outer: tuple[Var, ...],
        carried: For | None = None,
    ) -> Iterable[Hazard]:
        """The hazards between two items of a list that no barrier in the items between them meets."""
        middle = tuple(middle)
        if any(summaries[k].barrier for k in middle):
            return
        before, behind = summaries[i], summaries[j]
        near = not any(summaries[k].near_barrier for k in middle)
        for x in before.last:
            for y in behind.first:
                if (x.access.write or y.access.write) and not (x.atomic and y.atomic) and self._may_overlap(x, y):
                    conflict = self._conflict(x, y, outer)
                    if conflict is None:
                        continue
                    later = carried is not None and carried.period and not self._meets_next(x, y, outer, carried)
                    where = frozenset(range(len(summaries) + 1)) if later else positions
                    if conflict[0] == BLOCK_SCOPE or (near and x in before.near_last and y in behind.near_first):
                        yield Hazard(where, conflict[0], x, y, conflict[1], i)

    def _may_overlap(self, x: Touch, y: Touch) -> bool:
        if x.access.buffer == y.access.buffer:
            return True
        a, b = self.kernel.buffer(x.access.buffer), self.kernel.buffer(y.access.buffer)
        return a.memory == b.memory == SH and a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes

    def _meets_next(self, x: Touch, y: Touch, outer: tuple[Var, ...], loop: For) -> bool:
        """Whether two accesses meet from an iteration to the next; if only later, any position in the loop lies between."""
        if any(loop.var not in needed_variables(self.kernel, one.statement, one.access) for one in (x, y)):
            return True
        return self._conflict(x, y, (*outer, loop.var), loop) is not None

    def _conflict(self, x: Touch, y: Touch, outer: tuple[Var, ...], later: For | None = None) -> tuple[Scope, str] | None:
        """The scope of the barrier that orders two accesses, and a witness; None if each address has one thread."""
        left_needs = needed_variables(self.kernel, x.statement, x.access)
        right_needs = needed_variables(self.kernel, y.statement, y.access)
        kept = tuple(var for var in outer if var in left_needs and var in right_needs)
        left, right = self.footprint(x, kept), self.footprint(y, kept, None if later is None else later.var)
        keys, at_left, at_right = np.intersect1d(left[0], right[0], assume_unique=True, return_indices=True)
        low = np.minimum(left[1][at_left], right[1][at_right])
        high = np.maximum(left[2][at_left], right[2][at_right])
        under_way = x.statement.asynchronous and x.access.write
        conflicts = np.flatnonzero((low != high) | under_way)
        alone = x.statement is y.statement and x.access is y.access
        if not conflicts.size or (alone and (x.access.spread or under_way) and not self._repeats(x, outer)):
            return None
        scope = WARP_SCOPE if (low // 32 == high // 32).all() else BLOCK_SCOPE
        crossing = np.flatnonzero(low // 32 != high // 32) if scope == BLOCK_SCOPE else conflicts
        where = int(crossing[0])
        one, other = int(left[1][at_left[where]]), int(right[2][at_right[where]])
        if one == other:
            one, other = int(left[2][at_left[where]]), int(right[1][at_right[where]])
        return scope, self._witness(x, y, one, other, int(keys[where]))

    def _repeats(self, touch: Touch, outer: tuple[Var, ...]) -> bool:
        """Whether a statement comes back to an address while the loops `outer` stay in one iteration."""
        varying = [loop for loop in touch.loops if loop.var not in outer]
        needed = needed_variables(self.kernel, touch.statement, touch.access)
        if any(loop.var not in needed or (loop.period and loop.extent.high > loop.period) for loop in varying):
            return True
        grid = grid_of(self.kernel, touch.loops, needed)
        mask = active_mask(touch.statement, grid)
        prefix: Any = 0
        for var in outer:
            prefix = prefix * (var.high + 1) + evaluate(var, grid) if var in needed else prefix
        prefix = np.broadcast_to(prefix, grid.shape)[mask]
        keys = np.concatenate([prefix * _SPAN + address[mask] for address in self._addresses(touch, grid)])
        return bool(np.unique(keys).size < keys.size)

    def _witness(self, x: Touch, y: Touch, one: int, other: int, key: int) -> str:
        verbs = ["writes" if touch.access.write else "reads" for touch in (x, y)]
        places = [f"{touch.statement.spec} at {touch.access.origin or 'an unknown line'}" for touch in (x, y)]
        address = self._place(x.access, key)
        return f"thread {one} {verbs[0]} {address} ({places[0]}), thread {other} {verbs[1]} it ({places[1]})"

    def _place(self, access: Access, key: int) -> str:
        buffer = self.kernel.buffer(access.buffer)
        if buffer.memory == SH:
            return f"{buffer.name}[{(key % _SPAN * _granule(self.kernel) - buffer.offset) // buffer.dtype.bytes}]"
        coordinates: list[int] = []
        key %= _SPAN
        for size in reversed(buffer.tensor.shape):
            key, digit = divmod(key, _room(size))
            coordinates.append(digit)
        return f"{buffer.name}[{', '.join(map(str, reversed(coordinates)))}]"

    # -------------------------------------------------------------------------------------- who touches what

    def _footprint(self, touch: Touch, kept: tuple[Var, ...], later: Var | None = None) -> tuple[Array, Array, Array]:
        """Addresses (with the values of the kept loops), least and greatest thread of each.

        With `later`, iterations of that loop count as the one before, in its period: what the next iteration touches.
        """
        kernel, access = self.kernel, touch.access
        grid = grid_of(kernel, touch.loops, needed_variables(kernel, touch.statement, access) | set(kept))
        mask = active_mask(touch.statement, grid)
        thread = np.broadcast_to(np.arange(kernel.workers), grid.shape)[mask]
        thread = thread // 32 * 32 if access.spread else thread
        prefix: Any = 0
        for var in kept:
            value = evaluate(var, grid)
            if var == later:
                period = next(loop.period for loop in touch.loops if loop.var == var)
                value = (value - 1) % period
            prefix = prefix * (var.high + 1) + value
        prefix = np.broadcast_to(prefix, grid.shape)[mask]
        keys = np.concatenate([prefix * _SPAN + address[mask] for address in self._addresses(touch, grid)])
        low, high = np.tile(thread, keys.size // max(thread.size, 1)), None
        if getattr(touch.statement.instruction, "collective", False) or touch.statement.collective:
            unique = np.unique(keys)
            return unique, np.zeros_like(unique), np.full_like(unique, kernel.workers - 1)
        order = np.argsort(keys, kind="stable")
        keys, low = keys[order], low[order]
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1]))) if keys.size else np.zeros(0, dtype=np.int64)
        if not keys.size:
            return keys, low, low
        high = np.maximum.reduceat(low, starts) + (31 if access.spread else 0)
        return keys[starts], np.minimum.reduceat(low, starts), high

    def _addresses(self, touch: Touch, grid: Any) -> Iterable[Array]:
        buffer = self.kernel.buffer(touch.access.buffer)
        for offset in touch.access.elements():
            if buffer.memory != SH:
                number: Array = np.zeros(grid.shape, dtype=np.int64)
                for coordinate, size in zip(touch.access.coordinates(offset), buffer.tensor.shape, strict=True):
                    number = number * _room(size) + evaluate(coordinate, grid)
                yield number
                continue
            granule = _granule(self.kernel)
            start = evaluate(buffer.address(touch.access, offset), grid) * (buffer.dtype.bytes // granule) + buffer.offset // granule
            for part in range(buffer.dtype.bytes // granule):
                yield start + part

    # -------------------------------------------------------------------------------------- stabbing

    def _placed(
        self, hazards: list[Hazard], order: list[int], required: set[int], forbidden: dict[int, SyncPoint]
    ) -> dict[int, tuple[Scope, str]]:
        chosen: dict[int, Scope] = dict.fromkeys(required, BLOCK_SCOPE)
        for scope in (BLOCK_SCOPE, WARP_SCOPE):
            open_hazards = [h for h in hazards if h.scope == scope and not (h.positions & set(chosen))]
            allowed = [position for position in order if position not in forbidden]
            for position in self._stab(open_hazards, allowed, forbidden):
                chosen.setdefault(position, scope)
        return {position: (scope, _reason(hazards, position, scope)) for position, scope in chosen.items()}

    def _stab(self, hazards: list[Hazard], allowed: list[int], forbidden: dict[int, SyncPoint]) -> tuple[int, ...]:
        possible = []
        for hazard in hazards:
            if hazard.positions.isdisjoint(allowed):
                if not self.kernel.unchecked:
                    raise self._unsatisfiable(hazard, forbidden)
            else:
                possible.append(hazard)
        if not possible:
            return ()
        sets = list({hazard.positions & frozenset(allowed) for hazard in possible})
        useful = [position for position in allowed if any(position in one for one in sets)]
        for size in range(1, min(len(useful), 4) + 1):
            for combination in itertools.combinations(useful, size):
                if all(not one.isdisjoint(combination) for one in sets):
                    return combination
        return tuple(useful)

    def _unsatisfiable(self, hazard: Hazard, forbidden: dict[int, SyncPoint]) -> SynchronizationError:
        wishes = [point for position, point in forbidden.items() if position in hazard.positions]
        names = ", ".join(f"no_sync on {point.subject} ({point.origin})" for point in wishes)
        return SynchronizationError(
            f"race on {hazard.before.access.buffer}: {hazard.witness}, and no barrier may stand between: {names or 'no position is left'}",
            at=wishes[-1].origin if wishes else hazard.behind.access.origin,
            hint="remove no_sync from the last load before the use; one barrier behind the last load covers all of them",
        )


def _at_the_ends(summary: Summary, loop: For) -> Summary:
    """What of a pipelined loop is exposed: before its first barrier the first iteration, behind its last one the last."""
    if not summary.barrier:
        return summary
    end = constant(loop.extent)
    early = {touch: _at(touch, loop.var, 0) for touch in summary.first}
    late = {touch: touch if end is None else _at(touch, loop.var, end - 1) for touch in summary.last}
    return attrs.evolve(
        summary,
        first=tuple(early.values()),
        last=tuple(late.values()),
        near_first=tuple(early.get(touch, touch) for touch in summary.near_first),
        near_last=tuple(late.get(touch, touch) for touch in summary.near_last),
    )


def _at(touch: Touch, var: Var, value: int) -> Touch:
    statement = attrs.evolve(touch.statement, active=touch.statement.active.substitute({var: value}))
    return attrs.evolve(touch, statement=statement, access=touch.access.substitute({var: value}))


def _behind_commit(hazard: Hazard, commits: list[int]) -> Hazard:
    """For a copy that may be under way: only positions behind the commit of its group, where it can be waited for."""
    if not hazard.before.statement.asynchronous:
        return hazard
    own = [position for position in commits if hazard.first <= position]
    if not own:
        return hazard
    hidden = range(hazard.first + 1, own[0] + 1)
    kept = frozenset(position for position in hazard.positions if position not in hidden)
    return attrs.evolve(hazard, positions=kept or hazard.positions)


_SPAN = 1 << 40
"""Room for an address inside a key that also carries loop values."""


def _room(size: Expr) -> int:
    """More than any coordinate of block 0 along a dimension of this size."""
    number = constant(size)
    return 1 << 20 if number is None else min(number + 4096, 1 << 20)


def _granule(kernel: Kernel) -> int:
    sizes = [buffer.dtype.bytes for buffer in kernel.buffers if buffer.memory == SH]
    return min(sizes, default=1)


def _exposed(parts: Sequence[Summary], side: str, barrier: str) -> tuple[Touch, ...]:
    """The touches of the parts up to the first that always runs a barrier."""
    touches: list[Touch] = []
    for part in parts:
        touches += getattr(part, side)
        if getattr(part, barrier):
            break
    return tuple(touches)


def _reason(hazards: list[Hazard], position: int, scope: Scope) -> str:
    """What a barrier orders, for the reader of the code: buffers complete (written before) or free (read before)."""
    met = [hazard for hazard in hazards if position in hazard.positions]
    complete = dict.fromkeys(h.before.access.buffer for h in met if h.before.access.write)
    free = dict.fromkeys(h.before.access.buffer for h in met if not h.before.access.write)
    parts = []
    if complete:
        parts.append(f"{', '.join(complete)} complete")
    free = dict.fromkeys(name for name in free if name not in complete)
    if free:
        parts.append(f"{', '.join(free)} free again")
    return "; ".join(parts) or "asked for by sync"
