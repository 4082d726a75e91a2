"""`wgmma_waits`: insert wgmma commits and waits, and release ring stages when no MMA reads them.

Consecutive MMAs form a group, with `wgmma.fence` before and `wgmma.commit_group` after it. A data-flow analysis tracks the groups in
flight; loops run to a fixed point. A statement that accesses registers that a group in flight writes, or overwrites registers that it
reads, waits for the youngest such group; later groups stay in flight. `specialize` releases a stage after its last use. Here the release
moves to where no group in flight reads the stage, possibly one iteration later. If no statement of a ring loop waits for a group, the end
of the loop does. The pass `wait` handles other operands in shared memory, because it determines which statements overwrite them.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import attrs

from fireiron.errors import VerificationError
from fireiron.frozen import evolve, frozen
from fireiron.ir import (
    AT_ONCE,
    WARP_SCOPE,
    Acquire,
    Barrier,
    Comment,
    Commit,
    Dependence,
    Exec,
    Fence,
    FenceKind,
    For,
    Kernel,
    Let,
    Mechanism,
    Release,
    Ring,
    Role,
    Roles,
    StageState,
    Stmt,
    Wait,
    execs,
    statements,
    unknown,
)
from fireiron.ir.accumulators import begun_in_loops, copied_in
from fireiron.ir.asks.pending_mmas import PendingMmas
from fireiron.ir.rewrite import without_asks
from fireiron.language.tree import Executable
from fireiron.lower.outstanding import OLDEST, Outstanding
from fireiron.lower.registers import require_registers
from fireiron.lower.roles import uses_stage
from fireiron.values.expr import Expr, all_of, as_expr, constant, less, mod

GROUP_THREADS = 128
"""Threads of a warpgroup."""


def wgmma_waits(kernel: Kernel) -> Kernel:
    """The kernel with its MMAs in groups, the waits for them, and each stage released when no MMA reads it.

    Raises:     ResourceError: the MMAs need more registers than a thread has.
    """
    require_registers(kernel)
    body = without_asks(_with_waits(kernel), PendingMmas)
    return kernel if body is kernel.body else evolve(kernel, body=body)


def _with_waits(kernel: Kernel) -> tuple[Stmt, ...]:
    """The program with groups and waits, each role separately."""
    inside = list(statements(kernel.body))
    if not any(isinstance(stmt, Release) or (isinstance(stmt, Exec) and stmt.mechanism.in_registers) for stmt in inside):
        return kernel.body
    roles = [stmt for stmt in kernel.body if isinstance(stmt, Roles)]
    if not roles:
        return _Analysis(kernel, kernel.body, kernel.workers).all()
    rewritten_roles = {id(stmt): stmt.rebuilt(tuple(_of_role(kernel, role) for role in stmt.roles)) for stmt in roles}
    return tuple(rewritten_roles.get(id(stmt), stmt) for stmt in kernel.body)


def _of_role(kernel: Kernel, role: Role) -> tuple[Stmt, ...]:
    """The program of a role with groups and waits. Only threads over which tiles are distributed issue MMAs."""
    return role.body if role.first >= kernel.workers else _Analysis(kernel, role.body, role.threads).all()


def _prepared(mmas: Iterable[Exec]) -> list[str]:
    """The input registers of MMAs that a function prepares before their fence."""
    preparing = [stmt for stmt in mmas if type(stmt.instruction).prepared is not Executable.prepared]
    inputs = [(stmt, name, access) for stmt in preparing for name, access in stmt.operands.items() if not access.write]
    return sorted({access.buffer for stmt, name, access in inputs if stmt.instruction.prepared(name) is not None})


# ---------------------------------------------------------------------------------------------- groups in flight


@frozen(eq=False)
class _Group:
    """MMAs that are waited for together: the registers that they write, and those that they only read."""

    mmas: tuple[Exec, ...]
    writes: frozenset[str]
    reads: frozenset[str]

    def conflicts_with(self, written: frozenset[str], read: frozenset[str]) -> frozenset[str]:
        """The registers because of which a statement that writes and reads some must wait for it."""
        return self.writes & (written | read) | self.reads & written


@frozen
class _Fill:
    """A fill of a ring, by the expression of its index."""

    ring: str
    number: Expr


Key = tuple[_Fill, int]
"""An acquired fill, and the number of iterations since it was acquired."""


@attrs.define
class _AsyncState:
    """What may be in flight at a point of the program, for the `mechanism` of its MMAs.

    - `in_flight`: the groups in flight, by number, and the fills whose stages they read.
    - `fills`: the acquired fills, and whether their last use is past.
    - `own`: the registers that threads have written since the last MMA on them.
    - `copied`: accumulators filled by copies that no code before an MMA has pinned yet.
    """

    mechanism: Mechanism
    outstanding: Outstanding[int | Key] = attrs.field(factory=Outstanding)
    fills: dict[Key, bool] = attrs.field(factory=dict)
    own: frozenset[str] = frozenset()
    copied: frozenset[str] = frozenset()

    @property
    def groups(self) -> dict[int, int]:
        """For each group, the number of groups committed after its last instance."""
        ages = self.outstanding.groups.get(self.mechanism, {})
        return {item: age.least for item, age in ages.items() if isinstance(item, int)}

    def age(self, key: Key) -> int | None:
        """The number of groups committed after the youngest one that reads a fill; None if none in flight does."""
        return self.outstanding.age(self.mechanism, key)

    def copy(self) -> _AsyncState:
        """A copy that may be changed."""
        return evolve(self, fills=dict(self.fills))

    def acquire(self, key: Key) -> None:
        """A fill is acquired, and nothing in flight reads it yet."""
        self.outstanding = self.outstanding.without((key,))
        self.fills[key] = False

    def end(self, key: Key) -> None:
        """The last use of a fill is past."""
        if key not in self.fills:
            self.acquire(key)
        self.fills[key] = True

    def commit(self, group: int, read: Iterable[_Fill]) -> None:
        """A group that reads the stages of some fills is committed."""
        self.outstanding = self.outstanding.issue(self.mechanism, (group, *((fill, 0) for fill in read))).commit(self.mechanism)

    def wait(self, left: int) -> None:
        """All groups but the last `left` are complete."""
        self.outstanding = self.outstanding.wait(self.mechanism, left)

    def later(self, own: Iterable[_Fill]) -> _AsyncState:
        """The state at the head of the next iteration of a loop whose body acquires the fills `own`."""
        own_fills = set(own)

        def named(item: int | Key) -> int | Key:
            return item if isinstance(item, int) else (item[0], item[1] + (item[0] in own_fills))

        fills = {(fill, lag + (fill in own_fills)): past_use for (fill, lag), past_use in self.fills.items()}
        return evolve(self, outstanding=self.outstanding.renamed(named), fills=fills)

    def joined(self, other: _AsyncState) -> _AsyncState:
        """The join of two states, at the head of a loop or after it."""
        fills = {key: all(one.fills[key] for one in (self, other) if key in one.fills) for key in (*self.fills, *other.fills)}
        outstanding = self.outstanding.joined(other.outstanding, widened=True)
        return _AsyncState(self.mechanism, outstanding, fills, self.own | other.own, self.copied | other.copied)

    def write(self, registers: frozenset[str], copied: frozenset[str]) -> None:
        """Threads write registers; `copied` are the accumulators among them that copies fill."""
        self.own |= registers
        self.copied |= registers & copied


# ---------------------------------------------------------------------------------------------- one program


class _Analysis:
    """Analyzes and rewrites the program of a role, or of all threads."""

    def __init__(self, kernel: Kernel, body: tuple[Stmt, ...], threads: int) -> None:
        self.kernel, self.body, self.threads = kernel, body, threads
        self.private = {buffer.name for buffer in kernel.buffers if buffer.memory.private}
        self.rings: Mapping[str, Ring] = {ring.name: ring for ring in kernel.rings if ring.buffers}
        self.orders = {ring.name for ring in kernel.rings if ring.each}
        self.loads = {access.buffer: stmt for stmt, _ in execs(kernel.body) if stmt.ring for access in stmt.accesses if access.write}
        self.execs = [(stmt, {id(loop) for loop in loops}) for stmt, loops in execs(body)]
        self.mmas = [stmt for stmt, _ in self.execs if stmt.mechanism.in_registers]
        numbers: dict[str, set[Expr]] = {}
        for stmt in statements(body):
            if isinstance(stmt, Acquire):
                numbers.setdefault(stmt.ring, set()).add(stmt.fill_index)
        self.shared_rings = {ring for ring, indices in numbers.items() if len(indices) > 1}
        self.several_accumulators = bool(self.rings) and len(self._registers(self.mmas, write=True)) > 1
        self.groups: dict[int, _Group] = {}

    def all(self) -> tuple[Stmt, ...]:
        """The program with its groups, waits and releases."""
        mechanism = self.mmas[0].mechanism if self.mmas else AT_ONCE
        writer = _Writer(self, self.body, None, _AsyncState(mechanism), None)
        return (*writer.written(), *self._last_wait(writer.async_state))

    def _last_wait(self, async_state: _AsyncState) -> tuple[Wait, ...]:
        """The wait at the end for groups whose results only iterations of a loop read, such as the state of a scan.

        Without it, ptxas inserts a wait at the end of the loop (C7517).
        """
        inside = [frozenset().union(*self.touched(stmt)) for stmt in statements(self.body) if isinstance(stmt, For)]
        pending = frozenset().union(*(self.groups[number].writes for number in async_state.groups))
        names = pending & frozenset().union(*inside)
        reason = f"{', '.join(sorted(names))} {'is' if len(names) == 1 else 'are'} complete before the kernel ends"
        return (Wait(0, reason, async_state.mechanism),) if names else ()

    def group(self, run: Sequence[Stmt]) -> int:
        """The number of the group of some MMAs."""
        number = id(run[0])
        if number not in self.groups:
            inside = tuple(stmt for stmt, _ in execs(run))
            written, read = self._registers(inside, write=True), self._registers(inside, write=False)
            self.groups[number] = _Group(inside, written, read - written)
        return number

    def touched(self, statement: Stmt) -> tuple[frozenset[str], frozenset[str]]:
        """The registers that a statement writes and reads, except by MMAs."""
        others = [stmt for stmt, _ in execs((statement,)) if not stmt.mechanism.in_registers]
        return self._registers(others, write=True), self._registers(others, write=False)

    def before(self, mma: Exec) -> list[Exec]:
        """The statements on registers that an MMA may follow: those before it, and those in loops around it; without other MMAs."""
        place, around = next((number, loops) for number, (stmt, loops) in enumerate(self.execs) if stmt is mma)
        earlier = (stmt for number, (stmt, loops) in enumerate(self.execs) if number < place or loops & around)
        return [stmt for stmt in earlier if not stmt.mechanism.in_registers and self._registers([stmt])]

    def used(self, statement: Stmt) -> frozenset[str]:
        """The registers of the MMAs in a statement."""
        return self._registers(stmt for stmt, _ in execs((statement,)) if stmt.mechanism.in_registers)

    def reads(self, statement: Stmt, fill: _Fill) -> bool:
        """Whether a statement uses the stage of a fill."""
        ring = self.rings[fill.ring]
        return uses_stage(statement, ring, mod(fill.number, as_expr(ring.stages)) if fill.ring in self.shared_rings else None)

    def _registers(self, inside: Iterable[Exec], write: bool | None = None) -> frozenset[str]:
        accesses = (access for stmt in inside for access in stmt.accesses if access.buffer in self.private)
        return frozenset(access.buffer for access in accesses if write in (None, access.write))

    # ------------------------------------------------------------------------------------------ loops

    def loop(self, loop: For, async_state: _AsyncState) -> tuple[For, _AsyncState]:
        """A loop, and the state after it, given the state before it; fills that are still acquired are part of the state."""
        own, late, head = set(_fills(self.rings, loop.body)), loop.asks[PendingMmas].groups, async_state
        if own and loop.period and late is None and self._outlives_iteration(loop, own, async_state):
            late = self._groups_left(own)
        while True:
            writer = _Writer(self, loop.body, loop, head.copy(), late)
            body = writer.written()
            joined = head.joined(writer.async_state.later(own))
            if joined == head:
                break
            _require_released(joined)
            head = joined
        return loop.rebuilt((body,)), writer.async_state if loop.extent.low > 0 else async_state.joined(writer.async_state)

    def _outlives_iteration(self, loop: For, own: set[_Fill], async_state: _AsyncState) -> bool:
        """Whether a fill of a loop is still read at the end of the next iteration: no statement inside waits for its MMAs."""
        for _ in range(2):
            writer = _Writer(self, loop.body, loop, async_state.copy(), None, dry_run=True)
            writer.written()
            async_state = async_state.joined(writer.async_state.later(own))
        return any(lag for fill, lag in writer.async_state.fills if fill in own)

    def _groups_left(self, own: Iterable[_Fill]) -> int:
        """The number of groups that stay in flight at the end of an iteration if no statement in it waits for them.

        With several warpgroups none needs to stay, because other warpgroups keep the tensor cores busy. With one stage none can stay,
        because a group in flight occupies its stage.
        """
        most = min(self.rings[fill.ring].stages for fill in own) - 1
        return min(1 if self.threads <= GROUP_THREADS else 0, most)


def _require_released(async_state: _AsyncState) -> None:
    """Raise a `VerificationError` for a fill that is never released; the analysis would not terminate."""
    for fill, lag in async_state.fills:
        if lag > OLDEST:
            raise VerificationError(f"ring {fill.ring}: fill {fill.number} is acquired full, but never released")


def _fills(rings: Mapping[str, Ring], body: Iterable[Stmt]) -> list[_Fill]:
    """The fills that a list acquires full."""
    return [
        _Fill(stmt.ring, stmt.fill_index)
        for stmt in body
        if isinstance(stmt, Acquire) and stmt.state is StageState.FULL and stmt.ring in rings
    ]


def _releases(rings: Mapping[str, Ring], body: Iterable[Stmt]) -> dict[_Fill, Release]:
    """The releases of a list, by fill."""
    return {_Fill(stmt.ring, stmt.fill_index): stmt for stmt in body if isinstance(stmt, Release) and stmt.ring in rings}


# ---------------------------------------------------------------------------------------------- one list


class _Writer:
    """Rewrites a list: the body of `loop`, or the whole program. At its end at most `late` groups that read its fills stay in flight.

    A `dry_run` only analyzes: it frees no stages.
    """

    def __init__(
        self,
        analysis: _Analysis,
        body: tuple[Stmt, ...],
        loop: For | None,
        async_state: _AsyncState,
        late: int | None,
        dry_run: bool = False,
    ) -> None:
        self.analysis, self.body, self.loop, self.async_state = analysis, body, loop, async_state
        self.late, self.dry_run = late, dry_run
        pending = PendingMmas() if loop is None else loop.asks[PendingMmas]
        self.requested, self.always = pending.groups, pending.groups is not None and not pending.at_end
        self.own = _fills(analysis.rings, body)
        self.releases = _releases(analysis.rings, body)
        self.result: list[Stmt] = []
        self.run: list[Stmt] = []
        self.last: tuple[For, list[tuple[_Fill, int]]] | None = None

    def written(self) -> tuple[Stmt, ...]:
        """The list; `async_state` is then the state after it."""
        for statement in self.body:
            if not (isinstance(statement, Release) and statement.ring not in self.analysis.rings):
                self._after_loop()
            if _is_mma(statement) or (self.run and isinstance(statement, Let)):
                self.run.append(statement)
                continue
            self._group()
            self._rewrite(statement)
        self._group()
        self._after_loop()
        self._end()
        return tuple(self.result)

    def _rewrite(self, statement: Stmt) -> None:
        match statement:
            case Acquire(state=StageState.EMPTY) if statement.ring in self.analysis.orders:
                self._free_stages_in_order(statement)
                self.result.append(statement)
            case Acquire(state=StageState.FULL) if statement.ring in self.analysis.rings:
                if not self.dry_run:
                    self._free_stages(statement.ring)
                self.async_state.acquire((_Fill(statement.ring, statement.fill_index), 0))
                self.result.append(statement)
            case Release(state=StageState.EMPTY) if statement.ring in self.analysis.rings:
                self.async_state.end((_Fill(statement.ring, statement.fill_index), 0))
                self.result += self._released()
                if self.always and self.requested == 0:
                    self._end()  # also of a fill that no later group reads
            case Wait(groups=groups) if statement.mechanism.in_registers:
                self.result.append(statement)
                self.async_state.wait(groups)
            case For():
                self._for(statement)
            case _ if any(_is_relevant(stmt) for child in statement.children for stmt in statements(child)):
                raise unknown(statement, "wgmma_waits")
            case _:
                written, read = self.analysis.touched(statement)
                self._wait_for_registers(statement, written, read)
                self.async_state.write(written, copied_in(self.analysis.kernel))
                self.result.append(statement)

    def _group(self) -> None:
        """The collected MMAs become a group."""
        run, self.run = self.run, []
        if not run:
            return
        number = self.analysis.group(run)
        group = self.analysis.groups[number]
        # MMAs are ordered among each other, except for registers that one writes and the other reads as its A operand.
        pending = {number: self.analysis.groups[number] for number in self.async_state.groups}
        conflicts = {one: other.writes & group.reads | other.reads & group.writes for one, other in pending.items()}
        self._wait({one: names for one, names in conflicts.items() if names}, group.mmas)
        others = self.analysis.before(group.mmas[0])
        orders = _dependences(others, group.mmas, first_writes=True) or _dependences(others, group.mmas, first_writes=False)
        copied = (*sorted(self.async_state.copied & group.writes), *_prepared(group.mmas))
        self.result += [Fence(FenceKind.WGMMA_REGISTERS, pinned_registers=copied, orders=orders), *run, Commit(self.async_state.mechanism)]
        acquired = [fill for (fill, lag), past_use in self.async_state.fills.items() if not lag and not past_use]
        self.async_state.own -= group.writes
        self.async_state.copied -= group.writes
        self.async_state.commit(number, [fill for fill in acquired if any(self.analysis.reads(one, fill) for one in run)])
        if self.always:
            self._end()  # this many groups stay in flight, of any fill: stages of older ones are released before new MMAs are issued

    def _for(self, loop: For) -> None:
        written, read = self.analysis.touched(loop)
        conflicts = self._conflicts(written, read)
        if conflicts and not frozenset().union(*conflicts.values()) <= self.analysis.used(loop):
            self._wait(conflicts, self._others(loop))
        rings = {stmt.ring for stmt in statements(loop.body) if isinstance(stmt, Acquire)}
        early = [key for key, past_use in self.async_state.fills.items() if key[0] in self.own and key[0].ring in rings and past_use]
        if early:  # inside the loop they could not be released, and the loop needs their stages
            self._wait_for_fills(early)
        if not any(_is_relevant(stmt) for stmt in statements(loop.body)):
            self.async_state.write(written, copied_in(self.analysis.kernel))
            self.result.append(loop)
            return
        own = set(_fills(self.analysis.rings, loop.body))
        # Accumulators of MMAs in flight, perhaps of the previous iteration of a loop around this one, must not be accessed.
        free = (self.async_state.own | begun_in_loops(self.analysis.kernel)) - self._in_flight()
        once = constant(loop.extent) == 1  # its body is printed without a loop
        self.async_state.copied -= frozenset() if once else self.analysis.used(loop)
        rewritten, self.async_state = self.analysis.loop(loop, self.async_state)
        self.result.append(evolve(rewritten, pinned_registers=() if once else self._to_pin(loop, free)))
        left = [key for key in self.async_state.fills if key[0] in own]
        self.last = (loop, left) if left else None

    def _to_pin(self, loop: For, free: frozenset[str]) -> tuple[str, ...]:
        """The registers to pin before a loop, of the `free` ones: those that threads wrote before it and MMAs in flight at its end use,
        if it may have no iteration.

        Otherwise the compiler moves the writes to after the loop, and serializes the MMAs. The same happens in a loop of known trip count,
        which the compiler may unroll, if its MMAs accumulate in several parts without other accesses; and in any loop for accumulators
        filled by copies.
        """
        if constant(loop.extent) is not None:
            left = free.difference(*self.analysis.touched(loop))
            tiles = {name: count for name, count in _accumulated(loop).items() if name in left}
            return tuple(sorted(tiles if sum(tiles.values()) > 1 else copied_in(self.analysis.kernel).intersection(tiles)))
        return tuple(sorted(free & self._in_flight() & self.analysis.used(loop)))

    def _in_flight(self) -> frozenset[str]:
        """The accumulators of the MMAs in flight."""
        return frozenset().union(*(self.analysis.groups[number].writes for number in self.async_state.groups))

    # ------------------------------------------------------------------------------------------ waits

    def _conflicts(self, written: frozenset[str], read: frozenset[str]) -> dict[int, frozenset[str]]:
        """The groups in flight that a statement must wait for because it writes and reads some registers, and which of these they use."""
        conflicts = {number: self.analysis.groups[number].conflicts_with(written, read) for number in self.async_state.groups}
        return {number: names for number, names in conflicts.items() if names}

    def _wait_for_registers(self, statement: Stmt, written: frozenset[str], read: frozenset[str]) -> None:
        self._wait(self._conflicts(written, read), self._others(statement))

    def _wait(self, conflicts: Mapping[int, frozenset[str]], later: Sequence[Exec]) -> None:
        """Insert a wait for the conflicting groups, if any, because of registers that the `later` statements access."""
        if not conflicts:
            return
        names = frozenset().union(*conflicts.values())
        orders = tuple(
            dependence for dependence in _dependences(self.analysis.mmas, later, first_writes=False) if dependence.buffer in names
        )
        ages = self.async_state.groups
        left = min(ages[number] for number in conflicts)
        written = {name for number, conflicting in conflicts.items() for name in conflicting & self.analysis.groups[number].writes}
        states = ((written, "is", "are", "complete"), (names - written, "has", "have", "been read"))
        parts = (f"{', '.join(sorted(some))} {one if len(some) == 1 else plural} {state}" for some, one, plural, state in states if some)
        reason = "; ".join(parts)
        pinned = tuple(sorted(written.union(self._pinned(left)))) if self.analysis.rings else ()
        self._put(Wait(left, reason, self.async_state.mechanism, pinned, orders=orders))

    def _pinned(self, left: int) -> tuple[str, ...]:
        """The registers to pin after a wait for fills: those of all groups that have completed, if there are several accumulators."""
        if not self.analysis.several_accumulators:
            return ()
        done = [self.analysis.groups[number] for number, age in self.async_state.groups.items() if age >= left]
        return tuple(sorted(frozenset().union(*(group.writes for group in done))))

    def _put(self, wait: Wait) -> None:
        """Insert a wait and the releases that it allows, before the comments about the next statement and before fills acquired for it."""
        position = len(self.result)
        while position and (isinstance(self.result[position - 1], Comment) or _is_full(self.result[position - 1])):
            position -= 1
        self.async_state.wait(wait.groups)
        self.result[position:position] = [evolve(wait, requested=self.requested), *self._released()]

    def _others(self, statement: Stmt) -> list[Exec]:
        return [stmt for stmt, _ in execs((statement,)) if not stmt.mechanism.in_registers]

    # ------------------------------------------------------------------------------------------ fills

    def _free_stages_in_order(self, fill: Acquire) -> None:
        """Before an ordered warpgroup waits until it may issue MMAs: free stages for the fills that become full meanwhile.

        While this warpgroup waits, the producer cannot fill stages that this warpgroup has not released.
        """
        if self.dry_run:
            return
        place = next(number for number, stmt in enumerate(self.body) if stmt is fill)
        inside = itertools.takewhile(lambda one: not (isinstance(one, Release) and one.ring == fill.ring), self.body[place:])
        for ring, count in Counter(fill.ring for fill in _fills(self.analysis.rings, list(inside))).items():
            self._free_stages(ring, count)

    def _free_stages(self, ring: str, fills: int = 1) -> None:
        """Release the oldest fills of a ring that are past their last use, until `fills` stages are free."""
        while len(acquired := [key for key in self.async_state.fills if key[0].ring == ring]) > self.analysis.rings[ring].stages - fills:
            past_use = [key for key in acquired if self.async_state.fills[key] and key[0] in self.own]
            if not past_use:
                return
            self._wait_for_fills([max(past_use, key=lambda key: self.async_state.age(key) or 0)])

    def _end(self) -> None:
        """At the end of a list, release the fills that it acquired, except those that may stay in flight into the next iteration."""
        ended = (key for key, is_past_use in self.async_state.fills.items() if key[0] in self.own and is_past_use)
        past_use = [key for key in ended if self.async_state.age(key) is not None]
        if self.late is not None:
            past_use = [key for key in past_use if (self.async_state.age(key) or 0) >= self.late]
        elif self.loop is not None and self.loop.period:
            return
        if past_use:
            self._wait_for_fills(past_use, self.late)

    def _wait_for_fills(self, keys: Sequence[tuple[_Fill, int]], left: int | None = None) -> None:
        ages = [self.async_state.age(key) or 0 for key in keys]
        number = min(ages) if left is None else left
        past_use = [key for key, is_past_use in self.async_state.fills.items() if key[0] in self.own and is_past_use]
        done = [key for key in past_use if (age := self.async_state.age(key)) is not None and age >= number]
        lags = sorted({lag for _, lag in done})
        parts = (f"{self._names(fill for fill, lag in done if lag == one)} of {_when(one)}" for one in lags)
        orders = self._orders((fill for fill, _ in done), self.body, self.loop)
        self._put(Wait(number, f"{' and '.join(parts)} have been read", self.async_state.mechanism, self._pinned(number), orders=orders))

    def _after_loop(self) -> None:
        """After a loop, release the fills of its last iterations when the MMAs that read them are complete."""
        if self.last is None:
            return
        (loop, keys), self.last = self.last, None
        fills = list(dict.fromkeys(fill for fill, _ in keys))
        number = min(self.async_state.age(key) or 0 for key in keys)
        orders = self._orders(fills, loop.body, loop)
        reason = f"{self._names(fills)} of the last iteration have been read"
        self.result.append(Wait(number, reason, self.async_state.mechanism, self._pinned(number), orders=orders, requested=self.requested))
        self.async_state.wait(number)
        self.result += self._warp_barrier(fills, loop.body, loop)
        releases = _releases(self.analysis.rings, loop.body)
        for fill, lag in sorted(keys, key=lambda key: -key[1]):
            del self.async_state.fills[fill, lag]
            last = fill.number.substitute({loop.var: loop.extent - 1 - lag})
            ran = less(as_expr(lag), loop.extent)
            self.result.append(evolve(releases[fill], fill_index=last, active=all_of((releases[fill].active, ran))))
        self.result += self._released()

    def _released(self) -> list[Stmt]:
        """The releases of the list's fills that are past their last use and that no group in flight reads; after a warp barrier, if its
        lanes read them separately.
        """
        done = [
            key for key, past_use in self.async_state.fills.items() if key[0] in self.own and past_use and self.async_state.age(key) is None
        ]
        done.sort(key=lambda key: -key[1])
        releases: list[Stmt] = []
        releases += self._warp_barrier([fill for fill, _ in done], self.body, self.loop)
        for fill, lag in done:
            del self.async_state.fills[fill, lag]
            release = self.releases[fill]
            if lag:
                assert self.loop is not None
                began = less(as_expr(lag - 1), self.loop.var)
                before = fill.number.substitute({self.loop.var: self.loop.var - lag})
                release = evolve(release, fill_index=before, active=all_of((release.active, began)))
            releases.append(release)
        return releases

    def _warp_barrier(self, fills: Iterable[_Fill], body: tuple[Stmt, ...], loop: For | None) -> tuple[Stmt, ...]:
        """A warp barrier if lanes read stages separately: one lane arrives for its warp, so all of them must be done."""
        lanes = [fill for fill in fills if self._read_by_lanes(fill, body)]
        if not lanes:
            return ()
        return (Barrier(WARP_SCOPE, f"all lanes have read {self._names(lanes)}", orders=self._orders(lanes, body, loop)),)

    def _read_by_lanes(self, fill: _Fill, body: Iterable[Stmt]) -> bool:
        uses = [stmt for stmt, _ in execs(body) if self.analysis.reads(stmt, fill)]
        return not uses or any(not use.mechanism.by_engine for use in uses)

    def _names(self, fills: Iterable[_Fill]) -> str:
        return ", ".join(dict.fromkeys(name for fill in fills for name in self.analysis.rings[fill.ring].buffers))

    def _orders(self, fills: Iterable[_Fill], body: Iterable[Stmt], loop: For | None) -> tuple[Dependence, ...]:
        """Dependences from each use of the stages to the load that fills them again, in a later iteration."""
        names = {name for fill in fills for name in self.analysis.rings[fill.ring].buffers}
        for name in sorted(names - self.analysis.loads.keys()):
            raise VerificationError(f"{name} is a buffer of a ring, but nothing loads it")
        return tuple(
            Dependence(access.buffer, stmt, self.analysis.loads[access.buffer], (False, True), "" if loop is None else loop.var.name)
            for stmt, _ in execs(body)
            for access in stmt.accesses
            if access.buffer in names
        )


def _is_relevant(statement: Stmt) -> bool:
    """Whether the analysis must handle a statement."""
    return isinstance(statement, (Acquire, Release, Wait)) or (isinstance(statement, Exec) and statement.mechanism.in_registers)


def _accumulated(loop: For) -> dict[str, int]:
    """The number of parts in which MMAs of a loop accumulate, by buffer; each part has its own instruction."""
    parts: dict[str, int] = {}
    for stmt, loops in execs(loop.body):
        for access in stmt.accesses if stmt.mechanism.in_registers else ():
            if access.write:
                variables = {var for value in access.expressions() for var in value.variables()}
                count = math.prod(constant(inner.extent) or 1 for inner in loops if inner.var in variables)
                parts[access.buffer] = max(parts.get(access.buffer, 0), count)
    return parts


def _is_mma(statement: Stmt) -> bool:
    """Whether a statement consists of MMAs only."""
    if isinstance(statement, Exec):
        return statement.mechanism.in_registers
    inner = [one for child in statement.children for one in child if not isinstance(one, (Let, Comment))]
    return bool(inner) and all(_is_mma(one) for one in inner)


def _is_full(statement: Stmt) -> bool:
    return isinstance(statement, Acquire) and statement.state is StageState.FULL


def _when(lag: int) -> str:
    return ("this iteration", "the previous iteration")[lag] if lag < 2 else f"{lag} iterations before"


def _dependences(before: Iterable[Exec], after: Sequence[Exec], first_writes: bool) -> tuple[Dependence, ...]:
    """The dependences between statements by a buffer that some of the first write, or that both access."""
    return tuple(
        Dependence(x.buffer, stmt, other, (x.write, y.write))
        for stmt in before
        for x in stmt.accesses
        if x.write or not first_writes
        for other in after
        for y in other.accesses
        if x.buffer == y.buffer and (x.write or y.write)
    )
