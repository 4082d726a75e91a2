"""Check a launch in which the GPUs of a node exchange sums: each sum is read after it has arrived, and no wait lasts forever.

Both parts of the kernel are checked as separate launches. Here follow the conditions under which they may run together, in each launch and
on each GPU, at the scope of the system:

- each warp that uses sums reads the number of the launch first, from a word that no other warp and no count uses, and increments it last;
- a warpgroup stores sums in the rows of its GPU's number, on the GPU that stores the result, for launches of this parity;
- a warpgroup counts a tile at this GPU, in the semaphore of its region and of its GPU, after its stores have arrived, with a fence;
- each semaphore gets as many counts in each launch as warps wait for, per launch;
- a warp reads sums for rows that its GPU stores, of launches of this parity, in a region for which it waited in this launch, with a fence;
- threads that count never wait for counts, so all counts arrive if all blocks are resident, which the launcher checks.

A GPU stores sums for a launch after it has waited for sums of all GPUs for the launch before, which these have stored after they read those
of the launch two before. So two places suffice, and each launch must wait for sums of all GPUs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from fireiron.check.access_trace import MANY, AccessTrace, Array, Frame
from fireiron.check.finding import Finding
from fireiron.frozen import frozen
from fireiron.ir import Access, Exec, For, Role, Roles, SemaphoreAction, SemaphoreBarrier, Stmt, located
from fireiron.ir.overlap import Exchange, Regions
from fireiron.values.expr import TRUE, Expr, constant

WARP, WARPGROUP = 32, 128

PARITIES = (0, 1)
"""Numbers of launches with the two places of sums."""


def check_exchange(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """Return an error for each violation of these conditions; none for a kernel that exchanges no sums."""
    if not access_trace.kernel.exchanges or access_trace.kernel.gathers:
        return ()
    return tuple(Finding("race", "error", None, text) for text in dict.fromkeys(_Check(access_trace).problems()))


@frozen(eq=False)
class _Point:
    """A statement of a role, with the statements around it and its places in their lists."""

    stmt: Stmt
    around: tuple[Stmt, ...]
    places: tuple[int, ...]

    @property
    def loops(self) -> tuple[For, ...]:
        """The loops around it."""
        return tuple(one for one in self.around if isinstance(one, For))


def _points(body: Sequence[Stmt], around: tuple[Stmt, ...] = (), places: tuple[int, ...] = ()) -> Iterator[_Point]:
    for place, stmt in enumerate(body):
        yield _Point(stmt, around, (*places, place))
        for child in stmt.children:
            yield from _points(child, (*around, stmt), (*places, place))


class _Check:
    def __init__(self, access_trace: AccessTrace) -> None:
        self.trace, self.kernel = access_trace, access_trace.kernel
        workspace = self.kernel.workspace
        assert workspace is not None and workspace.exchange is not None and workspace.regions is not None
        self.exchange: Exchange = workspace.exchange
        self.regions: Regions = workspace.regions
        self.words = constant(workspace.semaphores) or 0
        self.roles = next(stmt.roles for stmt in self.kernel.body if isinstance(stmt, Roles))

    @functools.cached_property
    def name(self) -> str:
        """The array of sums."""
        return self.regions.buffer

    def problems(self) -> Iterator[str]:
        users = [role for role in self.roles if self._actions(role) or self._accesses(role, True) or self._accesses(role, False)]
        yield from self._of_numbers(users)
        storing = [role for role in users if self._accesses(role, True)]
        reading = [role for role in users if self._accesses(role, False)]
        waits = [point.stmt for role in users for point in self._actions(role, SemaphoreAction.AWAIT)]
        positions = {constant(stmt.position) for stmt in waits if isinstance(stmt, SemaphoreBarrier)}
        if len(storing) != 1 or storing == reading or len(positions) != 1 or not next(iter(positions), 0):
            yield f"{self.name}: {len(storing)} roles store sums, and warps wait for {sorted(map(str, positions))} tiles"
            return
        for role in users:
            counts = bool(self._actions(role, SemaphoreAction.SIGNAL))
            if counts and self._actions(role, SemaphoreAction.AWAIT):
                yield f"{role.name}: they wait, so warps may wait for their counts forever"
            if counts and role is not storing[0]:
                yield f"{role.name}: they count tiles that others store"
        yield from self._of_storing(storing[0], next(iter(positions)) or 0)
        for role in reading:
            yield from self._of_reading(role)

    def _actions(self, role: Role, *actions: SemaphoreAction) -> list[_Point]:
        """The uses of semaphores in a role."""
        points = [point for point in _points(role.body) if isinstance(point.stmt, SemaphoreBarrier)]
        return [point for point in points if not actions or point.stmt.action in actions]  # type: ignore[attr-defined]

    def _accesses(self, role: Role, write: bool) -> list[tuple[_Point, Access]]:
        """The statements of a role that store or read sums."""
        points = [point for point in _points(role.body) if isinstance(point.stmt, Exec)]
        pairs = [(point, access) for point in points for access in point.stmt.accesses]  # type: ignore[attr-defined]
        return [(point, access) for point, access in pairs if access.buffer == self.name and access.write == write]

    # ------------------------------------------------------------------------------------------ numbers of launches

    def _of_numbers(self, users: Sequence[Role]) -> Iterator[str]:
        """Problems of the words with the number of the launch."""
        used = np.zeros(self.words, np.int64)
        used[: self.regions.count * self.exchange.gpus] = 1
        for role in users:
            begins, ends = self._actions(role, SemaphoreAction.BEGIN), self._actions(role, SemaphoreAction.END)
            named = {var for point in self._actions(role) if (launch := self._launch(point)) is not None for var in launch.variables()}
            ok = len(begins) == len(ends) == 1 and begins[0].places == (0,) and ends[0].places == (len(role.body) - 1,)
            if not ok:
                yield f"{role.name}: they must read the number of the launch once, first, and increment it once, last"
                continue
            begin, end = begins[0].stmt, ends[0].stmt
            assert isinstance(begin, SemaphoreBarrier) and isinstance(end, SemaphoreBarrier) and begin.last is not None
            if begin.index != end.index or end.launch != begin.last or not named <= {begin.last}:
                yield f"{role.name}: the word of the next launch is not that of this one, plus 1"
            frame = self._frame((), role, WARP, gpus=False)
            if frame is None:
                yield f"{role.name}: undecided whether each warp has a word for the number of the launch"
                continue
            words = frame.full(begin.index).ravel()
            if words.min() < 0 or words.max() >= self.words:
                yield f"{role.name}: the number of the launch is outside of the {self.words} semaphores"
                continue
            np.add.at(used, words, 1)
        if (used > 1).any():
            yield f"{self.name}: semaphore {int(np.argmax(used > 1))} has two purposes"

    @staticmethod
    def _launch(point: _Point) -> Expr | None:
        return point.stmt.launch if isinstance(point.stmt, SemaphoreBarrier) else None

    # ------------------------------------------------------------------------------------------ stores and counts

    def _of_storing(self, role: Role, expected: int) -> Iterator[str]:
        """Problems of the role that stores and counts tiles."""
        signals = self._actions(role, SemaphoreAction.SIGNAL)
        for point in signals:
            stmt = point.stmt
            assert isinstance(stmt, SemaphoreBarrier)
            if not stmt.fenced:
                yield f"{self.name}: no fence orders sums before their count"
            if stmt.follows and not self._is_ordered(role, point):
                yield f"{self.name}: no wait and no fence of a preceding count order the sums that are counted on further GPUs"
            if not stmt.arrived:
                yield f"{self.name}: a tile is counted before its stores have arrived, when they may only have read shared memory"
            if stmt.gpu is None:
                yield f"{self.name}: a tile is counted on the GPU that stores it, not on the one that adds it"
                return
        events = []
        for point, access in self._accesses(role, True):
            assert isinstance(point.stmt, Exec)
            if not point.stmt.mechanism.outlives:
                yield f"{self.name}: {role.name} store sums by an instruction for whose arrival they do not wait"
            stored = self._stored(role, point, access)
            if isinstance(stored, str):
                yield stored
                return
            events.append(stored)
        for point in signals:
            counted = self._counted(role, point)
            if isinstance(counted, str):
                yield counted
                return
            events.append(counted)
        yield from self._of_order(events, expected)

    def _is_ordered(self, role: Role, point: _Point) -> bool:
        """Whether a count that follows another one comes directly after it, under the same condition."""
        bodies = point.around[-1].children if point.around else (role.body,)
        body = next(child for child in bodies if any(one is point.stmt for one in child))
        place = next(place for place, one in enumerate(body) if one is point.stmt)
        before, stmt = body[place - 1] if place else None, point.stmt
        if not isinstance(before, SemaphoreBarrier) or not isinstance(stmt, SemaphoreBarrier) or before.action is not stmt.action:
            return False
        return before.fenced and before.arrived and before.active == stmt.active and before.launch == stmt.launch

    def _stored(self, role: Role, point: _Point, access: Access) -> _Events | str:
        """The stores of a statement, or a problem of their rows."""
        frame = self._frame(point.loops, role, WARPGROUP)
        if frame is None:
            return f"{self.name}: undecided where sums are stored; use compile-time sizes"
        rank = np.broadcast_to(frame[self.exchange.rank.name], frame.shape)
        for launch in PARITIES:
            frame_ = self._frame(point.loops, role, WARPGROUP, launch)
            assert frame_ is not None
            row, owner, slot, own = self._parts(frame_, access)
            wrong = (slot != launch * self.exchange.gpus + rank) | (own + access.reach[0] >= self.exchange.part)
            wrong |= (owner < 0) | (owner >= self.exchange.gpus) | (row < 0)
            if (wrong & self._executed(frame_, point.around)).any():
                return f"{self.name}: GPUs store sums in rows that are not those of their number and of launches of this parity"
        _, owner, _, own = self._parts(frame, access)
        column = frame.full(access.base[1])
        height, width = self.regions.tile
        if ((own % height + access.reach[0] >= height) | (column % width + access.reach[1] >= width)).any():
            return f"{self.name}: a store is in several regions"
        region = own // height * (self.regions.shape[1] // width) + column // width
        return self._events(frame, role, point, owner * self.regions.count + region, np.full(frame.shape, access.count), 0)

    def _counted(self, role: Role, point: _Point) -> _Events | str:
        """The counts of a statement, or a problem of their semaphores."""
        stmt, frame = point.stmt, self._frame(point.loops, role, WARPGROUP)
        assert isinstance(stmt, SemaphoreBarrier) and stmt.gpu is not None
        if frame is None:
            return f"{self.name}: undecided where tiles are counted; use compile-time sizes"
        index, owner, active = frame.full(stmt.index), frame.full(stmt.gpu), frame.full(stmt.active) != 0
        active = active & self._executed(frame, point.around)
        rank = np.broadcast_to(frame[self.exchange.rank.name], frame.shape)
        legal = (index >= 0) & (index < self.regions.count * self.exchange.gpus) & (owner >= 0) & (owner < self.exchange.gpus)
        if (active & ~(legal & (index % self.exchange.gpus == rank))).any():
            return f"{self.name}: a tile is counted in a semaphore that is not that of its region and GPU"
        region = owner * self.regions.count + index // self.exchange.gpus
        return self._events(frame, role, point, region, np.zeros(frame.shape, np.int64), 1, active)

    def _events(
        self, frame: Frame, role: Role, point: _Point, region: Array, elements: Array, counts: int, active: Array | None = None
    ) -> _Events:
        """Events at all points of a frame that are executed."""
        executed = self._executed(frame, point.around) if active is None else active
        units = [frame[self.exchange.rank.name], frame[self.kernel.block.name], frame[self.kernel.thread.name]]
        keys: list[Array] = []
        for place, inside in itertools.zip_longest(point.places, point.around):
            iteration = frame[inside.var.name] if isinstance(inside, For) else 0
            keys += [np.full(frame.shape, place), np.broadcast_to(iteration, frame.shape)]
        return _Events(
            np.stack([np.broadcast_to(one, frame.shape)[executed] for one in units]), [one[executed] for one in keys],
            region[executed], elements[executed], np.full(int(executed.sum()), counts),
        )  # fmt: skip

    def _of_order(self, events: Sequence[_Events], expected: int) -> Iterator[str]:
        """Problems of the order of stores and counts of each warpgroup, and of the numbers of counts."""
        length = max(len(one.keys) for one in events)
        keys = [
            np.concatenate([one.keys[at] if at < len(one.keys) else np.full(one.region.shape, -1) for one in events])
            for at in range(length)
        ]
        units = np.concatenate([one.units for one in events], axis=1)
        region, elements, counts = (
            np.concatenate(parts) for parts in zip(*((one.region, one.elements, one.counts) for one in events), strict=True)
        )
        gpus, total = self.exchange.gpus, self.exchange.gpus * self.regions.count
        given = np.bincount((region * gpus + units[0])[counts == 1], minlength=total * gpus)
        if (given != expected).any():
            wrong = int(np.argmax(given != expected))
            yield (
                f"{self.name}: warps wait for {expected} tiles of region {wrong // gpus % self.regions.count} of GPU {wrong % gpus}, "
                f"which counts {int(given[wrong])}"
            )
            return
        size = self.regions.tile[0] * self.regions.tile[1] // expected
        order = np.lexsort([*keys[::-1], region, *units[::-1]])
        same = np.concatenate(
            ([False], (units[:, order][:, 1:] == units[:, order][:, :-1]).all(axis=0) & (region[order][1:] == region[order][:-1]))
        )
        starts = np.flatnonzero(~same)
        stored, counted = (_within(values[order], starts) for values in (elements, counts * size))
        early = (counts[order] == 1) & (stored < counted)
        if early.any():
            yield f"{self.name}: a tile is counted before it is stored"

    # ------------------------------------------------------------------------------------------ reads

    def _of_reading(self, role: Role) -> Iterator[str]:
        """Problems of the role that adds sums."""
        for point, access in self._accesses(role, False):
            body = [one for one, around in located(role.body) if isinstance(one, SemaphoreBarrier) and self._precedes(one, around, point)]
            waits = [one for one in body if isinstance(one, SemaphoreBarrier) and one.action is SemaphoreAction.AWAIT]
            if not waits:
                yield f"{self.name}: {role.name} read sums without a wait for the region"
                continue
            yield from self._of_wait(role, point, access, waits[-1])

    def _precedes(self, stmt: SemaphoreBarrier, around: Sequence[Stmt], point: _Point) -> bool:
        """Whether a wait precedes a read in each iteration of the loops around the wait."""
        if len(around) > len(point.around) or any(one is not other for one, other in zip(around, point.around, strict=False)):
            return False
        inner = point.around[len(around)] if len(point.around) > len(around) else point.stmt
        last = around[-1] if around else None
        bodies = [child for child in last.children if any(one is stmt for one in child)] if last is not None else [
            role.body for role in self.roles if any(one is stmt for one in role.body)
        ]  # fmt: skip
        places = {id(one): place for body in bodies for place, one in enumerate(body)}
        return id(inner) in places and places[id(stmt)] < places[id(inner)]

    def _of_wait(self, role: Role, point: _Point, access: Access, wait: SemaphoreBarrier) -> Iterator[str]:
        """Problems of a read after a wait."""
        launch = next((point_.stmt.last for point_ in self._actions(role, SemaphoreAction.BEGIN)), None)  # type: ignore[attr-defined]
        if not wait.fenced:
            yield f"{self.name}: no fence orders sums before reads by {role.name}"
        if wait.launch is None or wait.launch != launch:
            yield f"{self.name}: {role.name} wait for the counts of another launch"
        if constant(wait.blocks) != self.exchange.gpus or wait.active != TRUE:
            yield f"{self.name}: {role.name} do not wait for all GPUs"
        if isinstance(point.stmt, Exec) and point.stmt.mechanism.by_engine:
            yield f"{self.name}: {role.name} read sums by the async proxy"
        for number in PARITIES:
            frame = self._frame(point.loops, role, WARP, number, ends=True)
            if frame is None:
                yield f"{self.name}: undecided whether each read follows a wait; use compile-time sizes"
                return
            executed = self._executed(frame, point.around)
            rank = np.broadcast_to(frame[self.exchange.rank.name], frame.shape)
            row, owner, slot, own = self._parts(frame, access)
            if ((owner != rank) | (slot // self.exchange.gpus != number) | (row < 0))[executed].any():
                yield f"{self.name}: {role.name} read rows of another GPU, or of launches of another parity"
                return
            height, width = self.regions.tile
            column = frame.full(access.base[1])
            last = (own + access.reach[0]) // height, (column + access.reach[1]) // width
            region = own // height * (self.regions.shape[1] // width) + column // width
            inside = (own // height == last[0]) & (column // width == last[1]) & (own + access.reach[0] < self.exchange.part)
            if (~inside | (frame.full(wait.index) != region * self.exchange.gpus))[executed].any():
                yield f"{self.name}: {role.name} read a region for which they did not wait"
                return

    # ------------------------------------------------------------------------------------------ values

    def _parts(self, frame: Frame, access: Access) -> tuple[Array, Array, Array, Array]:
        """The rows of an access, their GPU, the number of their place among those of the GPU, and the row of its part."""
        row = frame.full(access.base[0])
        rest = row % self.exchange.rows
        return row, row // self.exchange.rows, rest // self.exchange.part, rest % self.exchange.part

    def _frame(self, loops: Sequence[For], role: Role, step: int, launch: int = 0, gpus: bool = True, ends: bool = False) -> Frame | None:
        """The frame of all GPUs, blocks, iterations, and units of `step` threads (their first thread, or both `ends`)."""
        grid = constant(self.kernel.grid)
        counts = [constant(loop.extent) or (loop.extent.high if not self._depends_on_sizes(loop.extent) else None) for loop in loops]
        if grid is None or None in counts:
            return None
        axes: list[tuple[str, Array]] = [(self.exchange.rank.name, np.arange(self.exchange.gpus if gpus else 1))]
        axes.append((self.kernel.block.name, np.arange(grid)))
        for loop, count in zip(loops, counts, strict=True):
            values = loop.values(count or 0)
            axes.append((loop.var.name, np.arange(values.start, values.stop, values.step)))
        first = np.arange(role.first, role.first + role.threads, step)
        axes.append((self.kernel.thread.name, np.sort(np.concatenate((first, first + step - 1))) if ends else first))
        points = 1
        for _, values_ in axes:
            points *= max(len(values_), 1)
        numbers = {point.stmt.last.name for one in self.roles for point in self._actions(one, SemaphoreAction.BEGIN)}  # type: ignore[attr-defined]
        return None if points > 4 * MANY else self.trace.frame(axes, dict.fromkeys(numbers, launch))

    def _depends_on_sizes(self, value: Expr) -> bool:
        return not self.trace.roots(value) <= {self.kernel.block.name, self.exchange.rank.name}

    def _executed(self, frame: Frame, around: Sequence[Stmt]) -> Array:
        """The mask of the points of a frame that are executed: a block may have fewer iterations than others."""
        mask = np.ones(frame.shape, bool)
        for loop in around:
            if isinstance(loop, For):
                mask &= frame.full(loop.extent) > np.broadcast_to(frame[loop.var.name], frame.shape)
        return mask


@frozen(eq=False)
class _Events:
    """Stores and counts of tiles: the GPU, block and warpgroup, the place in its program, the region, the stored elements, and counts."""

    units: Array
    keys: list[Array]
    region: Array
    elements: Array
    counts: Array


def _within(values: Array, starts: Array) -> Array:
    """Return the sums of the values of each segment up to each one."""
    sums = np.cumsum(values)
    before = sums[starts] - values[starts]
    return sums - np.repeat(before, np.diff(np.append(starts, len(values))))


__all__ = ["check_exchange"]
