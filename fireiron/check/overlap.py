"""Check a launch that copies an array and reads the copy: readers wait for all copies of a region, and no wait lasts forever.

Both parts of the kernel are checked as separate launches. Here follow the conditions under which they may overlap:

- a warp counts a copy after it has written all of its elements, in the semaphore of the region that contains them;
- each region of parts of other GPUs gets as many counts as readers wait for, on each GPU;
- each read is in one region, for which its thread waited before, and a fence orders the copies before reads by the async proxy;
- each element of the own part is read where it is stored, and each one of another part from its copy, by one of two statements;
- the program of the copying warps never waits, so all counts arrive if all blocks are resident, which the launcher checks;
- each block is counted as finished once, after its last wait, so the semaphores are 0 when the last one is counted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import numpy as np

from fireiron.check.access_trace import MANY, AccessTrace, Array, Frame
from fireiron.check.finding import Finding
from fireiron.ir import (
    Access,
    Acquire,
    Exec,
    For,
    Role,
    Roles,
    SemaphoreAction,
    SemaphoreBarrier,
    Stmt,
    execs,
    located,
    statements,
)
from fireiron.ir.overlap import Regions
from fireiron.values.expr import Expr, Var, constant

Located = tuple[SemaphoreBarrier, tuple[Stmt, ...]]


def check_overlap(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """Return an error for each violation of these conditions; none for a kernel that awaits no copies."""
    if not access_trace.kernel.awaits_copies or access_trace.kernel.exchanges:
        return ()
    return tuple(Finding("race", "error", None, text) for text in dict.fromkeys(_Overlap(access_trace).problems()))


class _Overlap:
    def __init__(self, access_trace: AccessTrace) -> None:
        self.trace, self.kernel = access_trace, access_trace.kernel
        self.roles = next(stmt.roles for stmt in self.kernel.body if isinstance(stmt, Roles))
        self.used = {role.name: self._of_copies(role) for role in self.roles}

    def _of_copies(self, role: Role) -> list[Located]:
        """The statements of a role that count or await copies, with those around them."""
        pairs = ((stmt, around) for stmt, around in located(role.body) if isinstance(stmt, SemaphoreBarrier))
        return [(stmt, around) for stmt, around in pairs if stmt.action.counts_copies]

    def problems(self) -> Iterator[str]:
        group = next(stmt.group for found in self.used.values() for stmt, _ in found)
        signals = [(role, one) for role in self.roles for one in self.used[role.name] if one[0].action is SemaphoreAction.SIGNAL]
        waits = [(role, one) for role in self.roles for one in self.used[role.name] if one[0].action is SemaphoreAction.AWAIT]
        if len(signals) != 1:
            yield f"{group}: copies are counted at {len(signals)} places"
            return
        ((copying, signal),) = signals
        yield from self._of_copying(copying, signal)
        positions = {constant(wait.position) for _, (wait, _) in waits}
        if len(positions) != 1 or None in positions:
            yield f"{group}: readers wait for different numbers of copies"
            return
        yield from self._of_counts(signal, copying, next(iter(positions)) or 0)
        for role in self.roles:
            yield from self._of_reader(role, group, copying)

    # ------------------------------------------------------------------------------------------ copying warps

    def _of_copying(self, role: Role, signal: Located) -> Iterator[str]:
        """Problems of the program of the copying warps: order, regions, and waits."""
        stmt, around = signal
        if any(isinstance(one, Acquire) for one in statements(role.body)) or len(self.used[role.name]) > 1:
            yield f"{role.name}: they wait, so readers may wait for them forever"
        if not stmt.fenced:
            yield f"{stmt.group}: no fence orders copies before their count"
        body = around[-1].children[0] if around else role.body
        before = body[: next(place for place, one in enumerate(body) if one is stmt)]
        early = [one for one, _ in execs(before)]
        for copy, loops in execs(role.body):
            for access in copy.accesses:
                if access.write and access.buffer == stmt.group:
                    if all(other is not copy for other in early):
                        yield f"{stmt.group}: a copy is counted before it is written"
                    elif not self._is_in_region(access, stmt.index, loops, self._threads(role)):
                        yield f"{stmt.group}: a warp counts a copy in a region that does not contain it"

    def _is_in_region(self, access: Access, index: Expr, loops: Sequence[For], thread: Var | None) -> bool:
        """Whether all elements of an access are in the region of an index, for all threads, blocks and iterations."""
        regions = self._regions
        corners = (tuple(0 for _ in access.base), access.reach)
        first, last = (self._opened(regions.index(access.coordinates(corner))) for corner in corners)
        if first == last == self._opened(index):
            return True
        frame = self._frame(loops, thread)
        return frame is not None and all((frame.full(one) == frame.full(index)).all() for one in (first, last))

    def _of_counts(self, signal: Located, role: Role, expected: int) -> Iterator[str]:
        """Problems of the numbers of counts that the regions get."""
        stmt, around = signal
        warps = self._threads(role)
        frame = self._frame([one for one in around if isinstance(one, For)], warps, 32)
        if frame is None:
            yield f"{stmt.group}: undecided how many copies each region gets; use compile-time sizes"
            return
        places = self._numbered(frame, stmt.index)[self._executed(frame, around)].ravel()
        if places.size and (places.min() < 0 or places.max() >= len(self._is_copied)):
            yield f"{stmt.group}: a copy is counted in a region that does not exist"
            return
        counts = np.bincount(places, minlength=len(self._is_copied))
        wrong = np.flatnonzero(counts != np.where(self._is_copied, expected, 0))
        if wrong.size:
            gpu, region = divmod(int(wrong[0]), self._regions.count)
            needed = expected if self._is_copied[wrong[0]] else 0
            place = f"region {region}" if self._regions.rank is None else f"region {region} on GPU {gpu}"
            yield f"{stmt.group}: readers wait for {needed} copies of {place}, which gets {int(counts[wrong[0]])}"

    # ------------------------------------------------------------------------------------------ readers

    def _of_reader(self, role: Role, group: str, copying: Role) -> Iterator[str]:
        """Problems of a role that reads copies."""
        reads = [
            (stmt, loops, access)
            for stmt, loops in execs(role.body)
            for access in stmt.accesses
            if access.buffer == group and not (role is copying and access.write)
        ]
        used = [stmt for stmt, _ in self.used[role.name]]
        if role is copying:
            if reads:
                yield f"{group}: {role.name} read it"
            return
        for stmt, loops, access in reads:
            yield from self._of_read(role, stmt, loops, access)
        if reads or used:
            yield from self._of_finish(role, group)

    def _of_read(self, role: Role, stmt: Exec, loops: Sequence[For], access: Access) -> Iterator[str]:
        body = loops[-1].body if loops else role.body
        place = next((place for place, one in enumerate(body) if one is stmt), 0)
        waits = [one for one in body[:place] if isinstance(one, SemaphoreBarrier) and one.action is SemaphoreAction.AWAIT]
        wait = next((one for one in waits if self._is_in_region(access, one.index, loops, None)), None)
        if access.write or wait is None:
            yield f"{access.buffer}: {role.name} {'writes' if access.write else 'reads'} it without a wait for the region"
            return
        if not wait.fenced or wait.proxied < stmt.mechanism.by_engine:
            yield f"{access.buffer}: no fence orders the copies before reads by {role.name}"
        frame = self._frame(loops, None)
        if frame is None:
            yield f"{access.buffer}: undecided whether each read follows a wait; use compile-time sizes"
            return
        # The points of the frame are in the order of execution of each block.
        executed = self._executed(frame, loops)
        copied = frame.full(stmt.active) != 0
        yield from self._of_own(role, stmt, access, [one for one in body if isinstance(one, Exec)], frame, executed, copied)
        regions = self._numbered(frame, wait.index)
        block = np.broadcast_to(frame[self.kernel.block.name], frame.shape)
        _, first = np.unique((regions * (int(block.max()) + 1) + block)[executed & copied], return_index=True)
        read = np.bincount(regions[executed & copied], minlength=len(self._is_copied)) > 0
        if read.sum() < self._is_copied.sum():
            yield f"{access.buffer}: a region that no block reads may still be copied when the semaphores are set to 0"
        if (read[: len(self._is_copied)] & ~self._is_copied).any() or len(read) > len(self._is_copied):
            yield f"{access.buffer}: {role.name} reads a region that is not copied"
        if not (frame.full(wait.active)[executed & copied][first] != 0).all():
            yield f"{access.buffer}: the first read from a region by {role.name} does not wait for it"

    def _of_own(
        self, role: Role, stmt: Exec, access: Access, others: Sequence[Exec], frame: Frame, executed: Array, copied: Array
    ) -> Iterator[str]:  # fmt: skip
        """Problems of the read of the own part, instead of a copy."""
        if self._regions.rank is None:
            return
        pairs = [(one, own) for one in others if one.ring == stmt.ring for own in one.accesses if own.buffer in self._sources]
        if len(pairs) != 1:
            yield f"{access.buffer}: {role.name} reads the part of its GPU by {len(pairs)} statements"
            return
        ((load, own),) = pairs
        in_place = frame.full(load.active) != 0
        if (in_place == copied)[executed].any() or load.fill_index != stmt.fill_index:
            yield f"{access.buffer}: {role.name} does not read each element once, from its part or from its copy"
        elsewhere = frame.full(self._regions.distance(own.base)) != 0
        if own.base != access.base or own.modes != access.modes or elsewhere[executed & in_place].any():
            yield f"{access.buffer}: {role.name} reads a part of another GPU where it is stored"

    def _of_finish(self, role: Role, group: str) -> Iterator[str]:
        """Problems of the count of finished blocks."""
        ends = [stmt for stmt, _ in self.used[role.name] if stmt.action is SemaphoreAction.FINISH]
        last = role.body[-1] if role.body else None
        if len(ends) != 1 or ends[0] is not last or not role.elected:
            yield f"{group}: {role.name} must count its block once, at its end"
            return
        (end,), count = ends, self._regions.count
        if constant(end.count) != count or constant(end.index) != count or end.blocks != self.kernel.grid or not end.fenced:
            yield f"{group}: the last of {self.kernel.grid} blocks must set {count} semaphores to 0"
        waiting = [other for other in self.roles if any(stmt.action is SemaphoreAction.AWAIT for stmt, _ in self.used[other.name])]
        others = [other.name for other in waiting if other is not role]
        if others:
            yield f"{group}: {role.name} counts its block, but {others[0]} may still wait"

    # ------------------------------------------------------------------------------------------ values

    @functools.cached_property
    def _sources(self) -> frozenset[str]:
        """The operands of which the launch accesses the parts of all GPUs."""
        return frozenset(name for name, view in self.kernel.spec.operands.items() if view.tensor.of_all_gpus)

    @functools.cached_property
    def _is_copied(self) -> Array:
        """The mask of the regions, for each GPU: whether its warps copy them."""
        regions = self._regions
        number = np.arange(regions.count)
        along = regions.tile[regions.axis]
        for size, part in zip(regions.shape[: regions.axis : -1], regions.tile[: regions.axis : -1], strict=True):
            number = number // (size // part)
        owner = number % (regions.shape[regions.axis] // along) * along // max(regions.part, 1)
        return np.concatenate([owner != gpu for gpu in range(regions.gpus)]) if regions.rank is not None else np.ones(regions.count, bool)

    def _numbered(self, frame: Frame, region: Expr) -> Array:
        """The numbers of regions among those of all GPUs."""
        rank = self._regions.rank
        own = frame.full(region)
        return own if rank is None else own + np.broadcast_to(frame[rank.name], frame.shape) * self._regions.count

    @functools.cached_property
    def _regions(self) -> Regions:
        assert self.kernel.workspace is not None and self.kernel.workspace.regions is not None
        return self.kernel.workspace.regions

    def _threads(self, role: Role) -> Var:
        """The variable of the threads of a role."""
        return Var(self.kernel.thread.name, role.first, role.first + role.threads - 1)

    def _opened(self, value: Expr) -> Expr:
        return self.trace.opened(value)

    def _frame(self, loops: Sequence[For], thread: Var | None, step: int = 1) -> Frame | None:
        """The frame of all blocks, iterations and threads, in the order of execution; None for sizes known only at run time."""
        grid = constant(self.kernel.grid)
        counts = [constant(loop.extent) or (loop.extent.high if not self._depends_on_sizes(loop.extent) else None) for loop in loops]
        if grid is None or None in counts:
            return None
        rank = self._regions.rank
        axes: list[tuple[str, Array]] = [] if rank is None else [(rank.name, np.arange(self._regions.gpus))]
        axes.append((self.kernel.block.name, np.arange(grid)))
        for loop, count in zip(loops, counts, strict=True):
            values = loop.values(count or 0)
            axes.append((loop.var.name, np.arange(values.start, values.stop, values.step)))
        if thread is not None:
            axes.append((thread.name, np.arange(thread.low, thread.high + 1, step)))
        points = 1
        for _, values in axes:
            points *= max(len(values), 1)
        return None if points > MANY else self.trace.frame(axes)

    def _depends_on_sizes(self, value: Expr) -> bool:
        rank = self._regions.rank
        return not self.trace.roots(value) <= {self.kernel.block.name, *([] if rank is None else [rank.name])}

    def _executed(self, frame: Frame, around: Sequence[Stmt]) -> Array:
        """The mask of the points of a frame that are executed: a block may have fewer iterations than others."""
        mask = np.ones(frame.shape, bool)
        for loop in around:
            if isinstance(loop, For):
                mask &= frame.full(loop.extent) > np.broadcast_to(frame[loop.var.name], frame.shape)
        return mask


__all__ = ["check_overlap"]
