"""Check a launch that copies an array and reads the copy: readers wait for all copies of a region, and no wait lasts forever.

Both parts of the kernel are checked as separate launches. Here follow the conditions under which they may overlap:

- a warp counts a copy after it has written all of its elements, in the semaphore of the region that contains them, on the GPU whose
  workspace contains them;
- each region of parts of other GPUs gets as many counts as readers wait for, on each GPU;
- each read is in one region, for which its thread waited before, and a fence orders the copies before reads by the async proxy;
- each element of the own part is read where it is stored, and each one of another part from its copy, by one of two statements;
- the copying warps never wait, so all counts arrive if all blocks are resident, which the launcher checks;
- copies of even and of odd launches have different places. A GPU that copies for a launch has read, in the launch before, each region that
  other GPUs copied to it, so these have read the copies of the launch two before: two places suffice;
- each warp, or thread, that copies or waits has its own word for the number of the launch, reads it first, and increments it last.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import attrs
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
from fireiron.values.expr import ZERO, Expr, Var, constant

WARP = 32

Located = tuple[SemaphoreBarrier, tuple[Stmt, ...]]


def check_overlap(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """Return an error for each violation of these conditions; none for a kernel that awaits no copies."""
    if not access_trace.kernel.gathers:
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
        group = next(stmt.group for pairs in self.used.values() for stmt, _ in pairs)
        signals = [(role, pair) for role in self.roles for pair in self._of(role, SemaphoreAction.SIGNAL)]
        if len(signals) != 1:
            yield f"{group}: copies are counted at {len(signals)} places"
            return
        ((copying, signal),) = signals
        waits = [stmt for role in self.roles if role is not copying for stmt, _ in self._of(role, SemaphoreAction.AWAIT)]
        yield from self._of_numbers(group)
        yield from self._of_copying(copying, signal)
        positions = {constant(wait.position) for wait in waits}
        if len(positions) != 1 or None in positions or any(constant(wait.blocks) != 1 for wait in waits):
            yield f"{group}: readers wait for different numbers of copies"
            return
        yield from self._of_counts(signal, copying, next(iter(positions)) or 0)
        for role in self.roles:
            yield from self._of_reader(role, group, copying)

    def _of(self, role: Role, action: SemaphoreAction) -> list[Located]:
        """The statements of a role with an action."""
        return [pair for pair in self.used[role.name] if pair[0].action is action]

    # ------------------------------------------------------------------------------------------ numbers of launches

    def _of_numbers(self, group: str) -> Iterator[str]:
        """Problems of the words with the number of the launch: one per warp or thread, apart from the other semaphores."""
        places = self._regions.count
        words: list[Array] = []
        for role in self.roles:
            begins, ends = (self._of(role, action) for action in (SemaphoreAction.BEGIN, SemaphoreAction.END))
            others = [stmt for stmt, _ in self.used[role.name] if stmt.action in (SemaphoreAction.AWAIT, SemaphoreAction.SIGNAL)]
            if not begins and not ends and not others:
                continue
            if len(begins) != 1 or len(ends) != 1 or role.body[-1] is not ends[0][0] or self.used[role.name][0][0] is not begins[0][0]:
                yield f"{role.name}: the number of the launch is not read first, and incremented last"
                continue
            (begin, _), (end, _) = begins[0], ends[0]
            numbers = {stmt.launch for stmt in others if stmt.launch is not None}
            if begin.index != end.index or end.launch != begin.last or not numbers <= {begin.last} or begin.last != self._launch:
                yield f"{role.name}: the word of the next launch is not that of this one, plus 1"
            frame = self._frame((), None if role.elected else self._threads(role), WARP)
            words.append(np.zeros(0, np.int64) if frame is None else frame.full(begin.index)[:1].ravel())
        every = np.concatenate(words) if words else np.zeros(0, np.int64)
        most = constant(self.kernel.workspace.semaphores) if self.kernel.workspace is not None else None
        if not every.size or every.min() < places or every.max() >= (most or 0) or len(np.unique(every)) < every.size:
            yield f"{group}: the words for the number of the launch are not those of {every.size} warps"

    # ------------------------------------------------------------------------------------------ copying warps

    def _of_copying(self, role: Role, signal: Located) -> Iterator[str]:
        """Problems of the program of the copying warps: order, regions, and waits."""
        stmt, around = signal
        waiting = any(isinstance(one, Acquire) for one in statements(role.body)) or self._of(role, SemaphoreAction.AWAIT)
        if waiting or any(outer and one is not stmt for one, outer in self.used[role.name]):
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
                    elif not self._is_in_region(access, stmt.index, loops, self._threads(role), stmt.gpu):
                        yield f"{stmt.group}: a warp counts a copy in a region that does not contain it"
                    elif not self._is_own(copy, access):
                        yield f"{stmt.group}: a warp copies elements to other places than those of this GPU's part"

    def _is_own(self, copy: Exec, access: Access) -> bool:
        """Whether a copy is at the place of the elements that it reads, in the part of the launch's GPU, on the GPU of their number."""
        sources = [one for one in copy.accesses if one.buffer in self._sources]
        workspace, regions = self.kernel.workspace, self._regions
        if len(sources) != 1 or regions.rank is None or workspace is None or workspace.exchange is None:
            return False
        row = sources[0].base[regions.axis]
        place = list(sources[0].base)
        place[regions.axis] = row % regions.part + regions.rank * regions.part
        place[0] = workspace.exchange.copies(row // regions.part, self._launch, place[0])
        same = all(self._opened(one) == self._opened(other) for one, other in zip(access.base, place, strict=True))
        return same and access.modes == sources[0].modes

    def _plain(self, access: Access, gpu: Expr | None = None) -> Access:
        """An access with coordinates of the array, not of the workspaces of all GPUs; `gpu` is that of the workspace, if it is known."""
        workspace = self.kernel.workspace
        if access.buffer not in self._copies or workspace is None or workspace.exchange is None:
            return access
        exchange, (first, *others) = workspace.exchange, access.base
        own = first % exchange.rows % (exchange.used // 2) if gpu is None else first - exchange.copies(gpu, self._launch, ZERO)
        return attrs.evolve(access, base=(own, *others))

    def _is_in_region(self, access: Access, index: Expr, loops: Sequence[For], thread: Var | None, gpu: Expr | None) -> bool:
        """Whether all elements of an access are in the region of an index on a GPU, for all threads, blocks and iterations."""
        regions, access = self._regions, self._plain(access, gpu)
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
        places = self._numbered(frame, stmt.index, stmt.gpu)[self._executed(frame, around)].ravel()
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
        if role is copying:
            if reads:
                yield f"{group}: {role.name} read it"
            return
        for stmt, loops, access in reads:
            yield from self._of_read(role, stmt, loops, access)

    def _of_read(self, role: Role, stmt: Exec, loops: Sequence[For], access: Access) -> Iterator[str]:
        body = loops[-1].body if loops else role.body
        place = next((place for place, one in enumerate(body) if one is stmt), 0)
        waits = [one for one in body[:place] if isinstance(one, SemaphoreBarrier) and one.action is SemaphoreAction.AWAIT]
        wait = next((one for one in waits if self._is_in_region(access, one.index, loops, None, self._regions.rank)), None)
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
            yield f"{access.buffer}: a region that no block reads may still be copied to in a later launch"
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
        copy = self._plain(access, self._regions.rank)
        same = tuple(map(self._opened, own.base)) == tuple(map(self._opened, copy.base)) and own.modes == access.modes
        if not same or elsewhere[executed & in_place].any():
            yield f"{access.buffer}: {role.name} reads a part of another GPU where it is stored"

    # ------------------------------------------------------------------------------------------ values

    @functools.cached_property
    def _copies(self) -> frozenset[str]:
        """The copied arrays."""
        return frozenset(buffer.name for buffer in self.kernel.buffers if buffer.workspace)

    @functools.cached_property
    def _launch(self) -> Expr:
        """The number of the launch."""
        begins = (stmt for role in self.roles for stmt, _ in self._of(role, SemaphoreAction.BEGIN))
        return next((stmt.last for stmt in begins if stmt.last is not None), ZERO)

    @functools.cached_property
    def _sources(self) -> frozenset[str]:
        """The operands of which the launch reads the part of its GPU, and copies of the others."""
        return frozenset(name for name in self.kernel.spec.inputs if self.kernel.spec.operands[name].tensor.through is not None)

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

    def _numbered(self, frame: Frame, region: Expr, gpu: Expr | None = None) -> Array:
        """The numbers of regions of a GPU, by default of the launch's own one, among those of all GPUs."""
        gpu = self._regions.rank if gpu is None else gpu
        own = frame.full(region)
        return own if gpu is None else own + frame.full(gpu) * self._regions.count

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
        # An odd launch. That copies are in the place of each launch, `_is_own` and `_of_own` compare as expressions.
        numbers = {self._launch.name: 1} if isinstance(self._launch, Var) else {}
        return None if points > MANY else self.trace.frame(axes, numbers)

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
