"""Report which barrier, wait, fence or mbarrier of a final kernel orders each dependence.

The passes record in each synchronization statement the dependences that it orders (`ir.Dependence`). Those of a ring's mbarriers follow
from the statements that fill and use its buffers.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import attrs

from fireiron.frozen import frozen
from fireiron.ir import (
    THREAD_SCOPE,
    WARP_SCOPE,
    Acquire,
    Barrier,
    BlockSet,
    ClaimTile,
    ClusterBarrier,
    Comment,
    Commit,
    Dependence,
    Exec,
    ExitIfDone,
    Fence,
    FenceKind,
    For,
    GridDepAction,
    GridDepControl,
    IfAnyLane,
    Kernel,
    Let,
    Mechanism,
    Release,
    Ring,
    Role,
    Roles,
    SemaphoreAction,
    SemaphoreBarrier,
    StageState,
    Stmt,
    Wait,
    execs,
    statements,
    unknown,
)
from fireiron.values.expr import conjuncts

Synchronizing: TypeAlias = "Acquire | Barrier | GridDepControl | ClusterBarrier | Commit | Fence | Release | Wait"

KINDS: Final = (Acquire, Barrier, GridDepControl, ClusterBarrier, Commit, Fence, Release, Wait)
"""The synchronization statements."""


_WHY_SEMAPHORE: Final = {
    SemaphoreAction.LAST: "counts the block at the semaphore of its tile; only the block that is counted last continues, with all parts",
    SemaphoreAction.FIND_LAST: "counts the block at the semaphore of its tile; the block that is counted last sums all parts",
    SemaphoreAction.WAIT: "waits until the blocks before this one have added to the same tile of the output, so that the order is fixed",
    SemaphoreAction.COUNT: "counts the block at the semaphore of the tile, so that the next block may add",
    SemaphoreAction.SIGNAL: "counts the copy of a warp in its region of {group}, for the producers of that GPU",
    SemaphoreAction.AWAIT: "waits until all copies of a region of {group} were counted, before the first load from it",
    SemaphoreAction.BEGIN: "reads the number of this launch, which selects the place of {group} and the counts to wait for",
    SemaphoreAction.END: "sets its word to the number of the next launch, so that no semaphore is reset",
}
"""The reasons for semaphores in the report."""

_WHY_EXCHANGE: Final = {
    SemaphoreAction.SIGNAL: "counts the tile of {group} that it has stored, on the GPU that adds it, after the stores have arrived",
    SemaphoreAction.AWAIT: "waits until each GPU has counted its tiles of a region of {group} in this launch, before loads from it",
}
"""The reasons for semaphores of all GPUs of a node, by which they exchange sums."""

_WHY_GRID_DEPENDENCY: Final = {
    GridDepAction.LAUNCH_DEPENDENTS: "the next kernel may start on free SMs; its own griddepcontrol.wait orders the memory accesses",
    GridDepAction.WAIT: "the preceding kernel has completed and its writes are visible; placed before all accesses to global memory",
}

_WHY_SINGLE: Final = "each fill is acquired before its first use and released after its last"
_WHY_ONCE: Final = "each stage is filled once, so it is never released"
_WHY_ORDERED: Final = "a group issues the MMAs of its tile after the preceding group has issued its own, so the MMAs of the tiles alternate"
_WHY_ALTERNATE: Final = "while MMAs of one warpgroup run, the others execute other work"


_WHY_DYNAMIC: Final = "each block claims its next tile when it needs one; its producer claims it while the preceding tile is computed"


def _users_of(stmt: SemaphoreBarrier) -> str:
    """The threads that use a semaphore together."""
    return f"a {stmt.scope}" if stmt.action.counts_copies else "all threads of the block"


@frozen
class OrderedPair:
    """Dependences of the same kind between two instructions: the names of the earlier and the later one, and their source lines."""

    kind: str
    buffers: tuple[str, ...]
    before: str
    before_at: tuple[str, ...]
    after: str
    after_at: tuple[str, ...]
    carried: str

    def text(self, file: str) -> str:
        """Return the text in one line; origins in `file` are printed as line numbers only."""
        left, right = _with_lines(self.before, self.before_at, file), _with_lines(self.after, self.after_at, file)
        later = f", a later {self.carried}" if self.carried else ""
        return f"{self.kind:<14}  {', '.join(self.buffers)}: {left} -> {right}{later}"


@frozen
class Point:
    """A synchronization statement.

    The role `role` (empty: all threads) executes it in the loops `loops`, outermost first. `kind` is its name, `scope` the threads that
    wait or arrive together, `orders` the dependences that it orders, and `why` the reason for its kind.
    """

    role: str
    loops: tuple[str, ...]
    kind: str
    scope: str
    orders: tuple[OrderedPair, ...]
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return attrs.asdict(self)


@frozen
class RingReport:
    """A ring: buffers with `stages` stages of `bytes` bytes.

    `fillers` and `users` are the instructions that fill and use the buffers, with their source lines. `arrivals` arrivals complete a phase
    of an empty barrier, `filling` arrivals a phase of a full barrier. When the next iteration starts, `in_flight` wgmma groups still read
    stages; `why` is the reason for this number. `shared` are the multicast loads of a cluster: the buffer, the number of blocks that load a
    part of it, and the ranks of the receivers.

    A ring without buffers holds tile indices if it has `filled_by`. Otherwise it orders `stages` groups of threads: groups that claim tiles
    alternately, or warpgroups of `each` threads that issue their MMAs alternately.
    """

    name: str
    buffers: tuple[str, ...]
    stages: int
    bytes: int
    filled_by: str
    emptied_by: str
    arrivals: int
    fillers: tuple[tuple[str, tuple[str, ...]], ...]
    users: tuple[tuple[str, tuple[str, ...]], ...]
    in_flight: int
    why: str
    shared: tuple[tuple[str, int, str], ...] = ()
    each: int = 0
    filling: int = 1
    refilled: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return attrs.asdict(self)


@frozen
class SynchronizationReport:
    """The synchronization of a kernel: its rings, its roles as `(name, threads)`, and its synchronization statements in program order."""

    roles: tuple[tuple[str, str], ...]
    rings: tuple[RingReport, ...]
    points: tuple[Point, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "roles": [{"role": name, "threads": threads} for name, threads in self.roles],
            "rings": [ring.as_dict() for ring in self.rings],
            "points": [point.as_dict() for point in self.points],
        }


def synchronization(kernel: Kernel) -> SynchronizationReport:
    """Return the synchronization report of a final kernel. Raises: `VerificationError` for an unknown kind of statement."""
    roles = next((stmt for stmt in kernel.body if isinstance(stmt, Roles)), None)
    common = tuple(_Reader(kernel, None).points(kernel.body, ()))
    all_threads = ("", f"threads 0 to {kernel.threads - 1}")
    if roles is None:
        return SynchronizationReport((all_threads,), (), common)
    points = (point for role in roles.roles for point in _Reader(kernel, role).points(role.body, ()))
    rings = tuple(_ring(kernel, ring, roles) for ring in kernel.rings)
    named = tuple((role.name, _threads(role)) for role in roles.roles)
    return SynchronizationReport((all_threads, *named) if common else named, rings, (*common, *points))


def _threads(role: Role) -> str:
    registers = f", {role.registers} registers each" if role.registers else ""
    if role.elected:
        return f"one of threads {role.first} to {role.first + role.threads - 1}{registers}"
    return f"threads {role.first} to {role.first + role.threads - 1}{registers}"


# ---------------------------------------------------------------------------------------------- rings


def _ring(kernel: Kernel, ring: Ring, roles: Roles) -> RingReport:
    if ring.tiles:
        claiming, reading = (" and ".join(role.name for role in roles.roles if role.elected == is_elected) for is_elected in (True, False))
        return RingReport(ring.name, (), ring.stages, 0, claiming, reading, ring.consumers, (), (), 0, _WHY_DYNAMIC)
    if ring.is_order:
        groups = " and ".join(role.name for role in roles.roles if any(_accesses(stmt, ring) for stmt in statements(role.body)))
        why = _WHY_ALTERNATE if ring.each else _WHY_ORDERED
        return RingReport(ring.name, (), ring.stages, 0, "", groups, ring.consumers, (), (), 0, why, each=ring.each)
    producers = [role for role in roles.roles if any(stmt.ring == ring.name for stmt, _ in execs(role.body))]
    consumers = [role for role in roles.roles if any(isinstance(stmt, Acquire) and _is_full(stmt, ring) for stmt in statements(role.body))]
    in_flight, why = _in_flight(ring, consumers[0])
    return RingReport(
        ring.name,
        ring.buffers,
        ring.stages,
        ring.bytes,
        " and ".join(role.name for role in producers),
        " and ".join(role.name for role in consumers),
        ring.consumers,
        _listed(_fillers(kernel, ring)),
        _listed(_users(kernel, ring)),
        in_flight,
        why,
        _shared(kernel, ring),
        filling=ring.producers,
        refilled=ring.refilled,
    )


def is_first_fill(kernel: Kernel, acquire: Acquire) -> bool:
    """Whether an acquire precedes the only fill of its stage: then it does not wait, and is not printed."""
    return acquire.state is StageState.EMPTY and not kernel.ring(acquire.ring).refilled


def _is_full(acquire: Acquire, ring: Ring) -> bool:
    """Whether an acquire waits for a full stage of the ring."""
    return acquire.ring == ring.name and acquire.state is StageState.FULL


def _accesses(statement: Stmt, ring: Ring) -> bool:
    return isinstance(statement, (Acquire, Release)) and statement.ring == ring.name


def _fillers(kernel: Kernel, ring: Ring) -> list[Exec]:
    return [stmt for stmt, _ in execs(kernel.body) if stmt.ring == ring.name]


def _shared(kernel: Kernel, ring: Ring) -> tuple[tuple[str, int, str], ...]:
    """Return the loads of a ring that are multicast to several blocks of the cluster."""
    loads = ((load.accesses[1].buffer, load.multicast) for load in _fillers(kernel, ring))
    return tuple((buffer, blocks.count, str(blocks)) for buffer, blocks in loads if blocks is not None)


def _users(kernel: Kernel, ring: Ring) -> list[Exec]:
    others = [stmt for stmt, _ in execs(kernel.body) if stmt.ring != ring.name]
    return [stmt for stmt in others if any(access.buffer in ring.buffers for access in stmt.accesses)]


def _in_flight(ring: Ring, consumers: Role) -> tuple[int, str]:
    """Return how many wgmma groups are in flight when a stage is released, and the reason."""
    if not ring.refilled:
        return 0, _WHY_ONCE
    loop = _fill_loop(consumers.body, ring)
    if loop is None or not loop.period:
        return 0, _WHY_SINGLE
    wait = _wait_before_release(loop.body, ring)
    groups = consumers.threads // 128
    if wait is None:
        return 0, "no statement reads a stage after the one that uses it"
    depth = wait.groups
    if all(order.after is None or order.after.ring != ring.name for order in wait.orders):
        iteration = "" if any(_releases_own_fill(stmt, ring) for stmt in loop.body) else " one iteration later"
        return depth, f"a stage is released{iteration} at an existing wait for MMAs: {wait.reason}"
    if wait.requested is not None:
        return depth, f"requested by mma_in_flight({wait.requested})"
    if depth:
        return depth, "one warpgroup: it issues the next MMAs while these run, and releases the stage one iteration later"
    if groups <= 1:
        return depth, "with one stage no MMA can stay in flight" if ring.stages == 1 else "all MMAs of an iteration complete at its end"
    return depth, f"{groups} warpgroups: while one waits for its MMAs, those of the others run"


def _wait_before_release(body: Sequence[Stmt], ring: Ring) -> Wait | None:
    """Return the wait for MMAs after which a loop releases a stage of a ring, if it has one."""
    wait: Wait | None = None
    for stmt in body:
        if isinstance(stmt, Wait) and stmt.mechanism.in_registers:
            wait = stmt
        elif _accesses(stmt, ring) and isinstance(stmt, Release):
            return wait
    return wait


def _releases_own_fill(statement: Stmt, ring: Ring) -> bool:
    """Whether a statement releases a stage in the iteration that uses it: its only condition selects the arriving lane."""
    return isinstance(statement, Release) and statement.ring == ring.name and len(conjuncts(statement.active)) <= 1


def _fill_loop(body: Sequence[Stmt], ring: Ring) -> For | None:
    """Return the loop whose iterations are fills of a ring; None if it is filled once."""
    loops = (stmt for stmt in statements(body) if isinstance(stmt, For))
    return next((loop for loop in loops if any(isinstance(stmt, Acquire) and stmt.ring == ring.name for stmt in loop.body)), None)


# ---------------------------------------------------------------------------------------------- statements


class _Reader:
    """Collects the synchronization statements of a role, or of all threads."""

    def __init__(self, kernel: Kernel, role: Role | None) -> None:
        self.kernel, self.role = kernel, role
        self.open: dict[Mechanism, list[Exec]] = collections.defaultdict(list)
        self.committed: list[str] = []
        self.waited: Wait | None = None
        self.has_multiple_rings = len([ring for ring in kernel.rings if ring.buffers]) > 1

    def points(self, body: Iterable[Stmt], loops: tuple[str, ...]) -> Iterator[Point]:
        """Yield the synchronization statements of a body."""
        for statement in body:
            if isinstance(statement, Acquire) and is_first_fill(self.kernel, statement):
                continue
            if isinstance(statement, KINDS):
                yield self._point(statement, loops)
            elif isinstance(statement, Exec):
                self.open[statement.mechanism].append(statement)
            elif isinstance(statement, For):
                yield from self.points(statement.body, (*loops, statement.var.name))
            elif not isinstance(statement, (Let, Comment, Roles, IfAnyLane, ClaimTile, ExitIfDone)):
                raise unknown(statement, "the synchronization report")

    def _point(self, stmt: Synchronizing, loops: tuple[str, ...]) -> Point:
        name = "" if self.role is None else self.role.name
        match stmt:
            case SemaphoreBarrier():
                local = stmt.launch is None or stmt.scope == THREAD_SCOPE
                reasons = {**_WHY_SEMAPHORE, **({} if local else _WHY_EXCHANGE)}
                return Point(
                    name, loops, f"semaphore {stmt.action.value}", _users_of(stmt), (), reasons[stmt.action].format(group=stmt.group)
                )
            case Barrier():
                orders = [order for order in stmt.orders if not order.before.mechanism.in_registers]  # a wait orders these
                return Point(
                    name, loops, f"barrier {stmt.scope}", _barrier_threads(stmt), _grouped(orders or stmt.orders), self._why_barrier(stmt)
                )
            case Wait():
                kind = f"wait {stmt.mechanism.what} {stmt.groups}"
                orders = [order for order in stmt.orders if order.before.mechanism is stmt.mechanism]  # others are complete already
                return Point(name, loops, kind, stmt.mechanism.unit, _grouped(orders or stmt.orders), self._why_wait(stmt))
            case Fence(kind=FenceKind.WGMMA_REGISTERS):
                why = "orders earlier accesses of the threads to these registers before the following wgmma"
                if not stmt.orders:
                    why = "no thread has accessed these registers, but the first wgmma of a warpgroup needs a fence (PTX ISA)"
                return Point(name, loops, "fence registers", "each warpgroup", _grouped(stmt.orders), why)
            case Fence():
                late = any(order.before.ring and order.before.mechanism.arrives for order in stmt.orders)
                why = "ordinary stores write it, the async proxy reads it: each writer orders the two proxies before the barrier"
                if stmt.orders and all(order.writes == (False, True) for order in stmt.orders):
                    why = "threads read it, the async proxy overwrites it: each reader orders the two proxies before the barrier"
                if late:
                    why = "asynchronous copies write it, the async proxy reads it: threads that waited for the copies order the two proxies"
                return Point(name, loops, "fence proxy", "each thread", _grouped(stmt.orders), why)
            case Commit():
                return Point(name, loops, f"commit {stmt.mechanism.what}", stmt.mechanism.unit, (), self._why_commit(stmt))
            case ClusterBarrier():
                return Point(name, loops, "barrier cluster", "all threads of the cluster's blocks", (), stmt.reason)
            case GridDepControl(action=action):
                return Point(name, loops, f"griddepcontrol.{action.value}", "each thread", (), _WHY_GRID_DEPENDENCY[action])
            case Acquire() | Release():
                return self._stage_point(stmt, name, loops)

    def _why_wait(self, wait: Wait) -> str:
        why = _why_wait(wait)
        if wait.mechanism.in_registers:
            self.waited = wait
            left = list(dict.fromkeys(self.committed[-wait.groups :])) if wait.groups else []
            if left and len(set(self.committed)) > 1:
                why = f"{why}, MMAs into {' and '.join(left)}"
        return why

    def _why_barrier(self, barrier: Barrier) -> str:
        if not barrier.orders:
            return barrier.reason
        reason = barrier.reason
        if barrier.scope == WARP_SCOPE:
            return f"{reason}; the conflicting threads are of one warp"
        if barrier.scope.threads is None:
            return f"{reason}; threads of several warps conflict"
        if self.role is not None and barrier.scope.threads == self.role.threads and barrier.scope.name == self.role.name:
            return f"{reason}; threads of several warps conflict, none of other roles"
        return f"{reason}; the conflicting threads are of one {barrier.scope}, so the rest of the block does not wait"

    def _why_commit(self, commit: Commit) -> str:
        issued = self.open[commit.mechanism]
        self.open[commit.mechanism] = []
        buffer = 0 if commit.mechanism.reads_in_groups else -1
        operations = _joined((stmt.accesses[buffer].buffer for stmt in issued), (stmt.instruction.name for stmt in issued))
        if commit.mechanism.in_registers:
            self.committed.append(", ".join(dict.fromkeys(stmt.accesses[buffer].buffer for stmt in issued)))
        if not issued:
            return f"an empty group, so that there is one group per iteration; {commit.mechanism.instruction} completes by groups"
        return f"{operations} form a group; {commit.mechanism.instruction} completes by groups"

    def _stage_point(self, stmt: Acquire | Release, role: str, loops: tuple[str, ...]) -> Point:
        ring = self.kernel.ring(stmt.ring)
        full = stmt.state is StageState.FULL
        fillers, users = _fillers(self.kernel, ring), _users(self.kernel, ring)
        orders: list[Dependence] = []
        if ring.buffers:
            loop = _fill_loop(self.kernel.body, ring)
            orders = (
                _stage_dependences(fillers, users, ring, "")
                if full
                else _stage_dependences(users, fillers, ring, loop.var.name if loop is not None else "")
            )
        if isinstance(stmt, Acquire):
            why = _why_acquire(stmt, ring)
            scope = "one thread" if self.role is not None and self.role.elected else "each thread"
        else:
            waited = None
            if not full and self.has_multiple_rings and any(user.mechanism.in_registers for user in users):
                waited = self.waited
            why = _why_release(stmt, ring, waited)
            scope = "each thread" if stmt.by is not None else "one thread" if full else "one lane per warp"
        verb = "acquire" if isinstance(stmt, Acquire) else "release"
        return Point(role, loops, f"{verb} {stmt.state.value} {ring.name}", scope, _grouped(orders), why)


def _barrier_threads(barrier: Barrier) -> str:
    return f"{barrier.scope.threads} threads" if barrier.scope.threads else "all threads of the block"


def _why_wait(wait: Wait) -> str:
    pending = {0: "none may be pending", 1: "the last one may be pending"}.get(wait.groups, f"the last {wait.groups} may be pending")
    return f"{wait.reason}; {wait.mechanism.instruction} is asynchronous until its group is waited for: {pending}"


def _why_acquire(acquire: Acquire, ring: Ring) -> str:
    stage, cycle = acquire.fill_index % ring.stages, acquire.fill_index // ring.stages
    if acquire.state is StageState.FULL and ring.tiles:
        return f"mbarrier of stage {stage}, phase {cycle % 2}: complete when the tile index has arrived"
    if acquire.state is StageState.FULL:
        bytes_arrived = f"TMA has copied its {ring.bytes} bytes" if ring.bytes else ""
        threads_arrived = f"{ring.producers} threads have arrived" if ring.producers > 1 else ""
        condition = " and ".join(part for part in (bytes_arrived, threads_arrived) if part)
        return f"mbarrier of stage {stage}, phase {cycle % 2}: complete when {condition}"
    if ring.each:
        return f"mbarrier {stage}, complete when the preceding warpgroup has issued its MMAs; the first wait passes"
    first = "the first fill passes" if ring.stages == 1 else f"the first {ring.stages} fills pass"
    before = "before" if ring.stages == 1 else f"{ring.stages} fills before"
    return f"mbarrier of stage {stage}, phase {(cycle + 1) % 2}: complete with {_arrivals(ring)} that release the fill {before}; {first}"


def _why_release(release: Release, ring: Ring, waited: Wait | None) -> str:
    stage = release.fill_index % ring.stages
    if release.state is StageState.FULL and ring.tiles:
        return f"the one arrival at the mbarrier of stage {stage}, after the tile index"
    if release.state is StageState.FULL and release.by is not None:
        late = f"when all copies of the thread by {release.by.instruction} have arrived" if release.by.defers else "after its copies"
        return f"one of {ring.producers} arrivals at the mbarrier of stage {stage}: {late}"
    if release.state is StageState.FULL:
        which = "the one arrival" if ring.producers == 1 else f"one of {ring.producers} arrivals"
        size = ring.bytes if release.part is None else release.part
        return f"{which} at the mbarrier of stage {stage}, with expect-tx of {size} bytes, which TMA counts"
    if ring.each:
        return f"one of {_arrivals(ring)} at mbarrier {stage}, after which the next warpgroup issues its MMAs"
    remark = "; its MMAs, of an earlier iteration, are complete" if len(conjuncts(release.active)) > 1 else ""
    if waited is not None:
        remark = f"; the preceding wait ({waited.reason}) leaves no pending group that reads it"
    target = f" in each of the blocks {_ranks(release.to)}, which multicast to this one" if release.to else ""
    return f"one of {_arrivals(ring)} at the mbarrier of stage {stage}{target}{remark}"


def _ranks(blocks: Iterable[BlockSet]) -> str:
    """Return the blocks of a cluster, by their ranks."""
    return " and ".join(map(str, blocks))


def _arrivals(ring: Ring) -> str:
    return f"{ring.consumers} arrival{'s' if ring.consumers > 1 else ''}"


# ---------------------------------------------------------------------------------------------- dependences


def _stage_dependences(before: Sequence[Exec], after: Sequence[Exec], ring: Ring, carried: str) -> list[Dependence]:
    """Return the dependences between producers and users of a ring, by buffer."""
    return [
        Dependence(x.buffer, first, second, (x.write, y.write), carried)
        for first, second in itertools.product(before, after)
        for x, y in itertools.product(first.accesses, second.accesses)
        if x.buffer == y.buffer and x.buffer in ring.buffers
    ]


def _grouped(dependences: Iterable[Dependence]) -> tuple[OrderedPair, ...]:
    """Group dependences by kind and pair of instructions."""
    groups: dict[tuple[str, str, str, str], list[Dependence]] = {}
    for dependence in dependences:
        after = "the end of the block" if dependence.after is None else dependence.after.instruction.name
        groups.setdefault((dependence.kind, dependence.before.instruction.name, after, dependence.carried), []).append(dependence)
    return tuple(
        OrderedPair(
            kind,
            tuple(dict.fromkeys(dependence.buffer for dependence in group)),
            before,
            _lines(dependence.before for dependence in group),
            after,
            _lines(dependence.after for dependence in group),
            carried,
        )
        for (kind, before, after, carried), group in groups.items()
    )


def _lines(operations: Iterable[Exec | None]) -> tuple[str, ...]:
    """Return the source lines of statements."""
    return tuple(sorted({stmt.origin for stmt in operations if stmt is not None and stmt.origin}, key=_by_line))


def _by_line(origin: str) -> tuple[str, int]:
    file, _, line = origin.rpartition(":")
    return (file, int(line)) if line.isdigit() else (origin, 0)


def _listed(instructions: Sequence[Exec]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    names = dict.fromkeys(stmt.instruction.name for stmt in instructions)
    return tuple((name, _lines(stmt for stmt in instructions if stmt.instruction.name == name)) for name in names)


def _joined(buffers: Iterable[str], names: Iterable[str]) -> str:
    return f"{', '.join(dict.fromkeys(names))} of {', '.join(dict.fromkeys(buffers))}"


# ---------------------------------------------------------------------------------------------- text


def text(report: SynchronizationReport) -> str:
    """Print the synchronization: rings first, then the statements of each role by loop."""
    file = _file(report)
    parts = [f"lines of {file}"] if file else []
    parts += [_ring_text(ring, file) for ring in report.rings]
    for name, threads in report.roles:
        points = [point for point in report.points if point.role == name]
        parts.append("\n".join([f"{name or 'all threads'}: {threads}", *(_points(points, file) or ["  no synchronization"])]))
    return "\n\n".join(parts)


def _file(report: SynchronizationReport) -> str:
    """Return the file that contains most of the source lines."""
    origins = [origin for point in report.points for order in point.orders for origin in (*order.before_at, *order.after_at)]
    files = [origin.rpartition(":")[0] for origin in origins]
    return max(dict.fromkeys(files), key=files.count, default="")


def _with_lines(name: str, origins: Sequence[str], file: str) -> str:
    """Return a name with its lines, such as `TMA_LOAD :47 :48`."""
    return " ".join([name, *(origin.removeprefix(file) if file else origin for origin in origins)])


def _ring_text(ring: RingReport, file: str) -> str:
    if not ring.buffers and ring.filled_by:
        head = f"tiles {ring.name}: indices of {ring.stages} tiles"
        return f"{head}\n  claimed    by {ring.filled_by}, from the counter\n  read       by {ring.emptied_by}\n  why        {ring.why}"
    if not ring.buffers:
        members = f"warpgroups of {ring.each} threads issue MMAs" if ring.each else "consumer groups claim tiles"
        head = f"order {ring.name}: {ring.stages} {members} alternately"
        given = f"by {ring.emptied_by}: {ring.arrivals} arrivals, one per warp, complete a phase"
        return f"{head}\n  passed on  {given}\n  why        {ring.why}"
    fillers = ", ".join(_with_lines(name, origins, file) for name, origins in ring.fillers)
    users = ", ".join(_with_lines(name, origins, file) for name, origins in ring.users)
    released = f"{ring.arrivals} arrivals, one per warp, complete a phase of its empty barriers" if ring.refilled else "not filled again"
    rows = (
        ("filled", f"by {ring.filled_by}: {fillers}; {_full_barrier_count(ring)} complete a phase of its full barriers"),
        ("emptied", f"by {ring.emptied_by}: {users}; {released}"),
        *(("shared", f"{name}: each of {count} blocks loads a part, multicast to blocks {ranks}") for name, count, ranks in ring.shared),
        ("in flight", f"{ring.in_flight}; {ring.why}"),
    )
    head = f"ring {ring.name}: {', '.join(ring.buffers)}; {ring.stages} stage{'s' if ring.stages > 1 else ''} of {ring.bytes} bytes"
    return "\n".join([head, *(f"  {name:<9}  {value}" for name, value in rows)])


def _full_barrier_count(ring: RingReport) -> str:
    """Return what the full barriers of a ring count."""
    arrivals = f"{ring.filling} arrival{'s' if ring.filling > 1 else ''}"
    return f"{arrivals} and {ring.bytes} bytes" if ring.bytes or ring.filling == 1 else arrivals


def _points(points: Sequence[Point], file: str) -> list[str]:
    width = max((len(point.kind) for point in points), default=0) + 2
    lines: list[str] = []
    for loops, points_of_loops in itertools.groupby(points, key=lambda point: point.loops):
        lines.append(f"  in loop {', '.join(loops)}" if loops else "  once")
        for point, same in itertools.groupby(points_of_loops):
            count = len(list(same))
            first, *rest = [*(pair.text(file) for pair in point.orders), f"{point.why} ({point.scope})"]
            lines.append(f"    {point.kind:<{width}}{first}" + (f", {count} times" if count > 1 else ""))
            lines += [f"    {'':<{width}}{line}" for line in rest]
    return lines
