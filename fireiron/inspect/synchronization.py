"""Explain which barrier, wait, fence or mbarrier of a final kernel orders each dependence, from its IR.

The passes leave in each statement that they place what it orders (`ir.Dependence`); what a ring's barriers order follows from who fills and
who uses its buffers.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

import attrs

from fireiron.ir import (
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
"""The statements that order others."""


_WHY_CHAINED: Final = {
    GridDepAction.LAUNCH_DEPENDENTS: "the next kernel may begin: it waits too, and gets the room that blocks of this one leave",
    GridDepAction.WAIT: (
        "what the kernel before wrote is there, and what it reads may be overwritten: in front of all that touches global memory"
    ),
}

_WHY_SINGLE: Final = "each fill is acquired before its first use and released after its last"
_WHY_ORDERED: Final = "a group issues the products of a tile when the one before has issued those of its own: they run one behind the other"
_WHY_ALTERNATE: Final = "while MMAs of one warpgroup run, the others execute other work"


_WHY_TAKEN: Final = "a block that is free takes the next tile that is left; its producer asks for it while the one before is multiplied"


@attrs.frozen
class Ordered:
    """Dependences of one kind between statements of two instructions: `before` and `behind` are their names, each with its lines."""

    kind: str
    buffers: tuple[str, ...]
    before: str
    before_at: tuple[str, ...]
    behind: str
    behind_at: tuple[str, ...]
    carried: str

    def text(self, file: str) -> str:
        """In a line; places in `file` by their line alone."""
        left, right = _placed(self.before, self.before_at, file), _placed(self.behind, self.behind_at, file)
        later = f", a later {self.carried}" if self.carried else ""
        return f"{self.kind:<14}  {', '.join(self.buffers)}: {left} -> {right}{later}"


@attrs.frozen
class Point:
    """A statement that orders others.

    `role` performs it (empty where threads have no roles), in the loops `loops`, outermost first; `kind` is its name, `scope` the threads
    that wait or arrive together, `orders` what it orders, and `why` the reason that it is of this kind.
    """

    role: str
    loops: tuple[str, ...]
    kind: str
    scope: str
    orders: tuple[Ordered, ...]
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return attrs.asdict(self)


@attrs.frozen
class RingAccount:
    """A ring: buffers with `stages` stages of `bytes` bytes.

    `fillers` and `users` are the instructions that fill and use them, with their lines; so many `arrivals` end a phase of an empty barrier,
    `filling` that of a full one; `mma_in_flight` groups of products still read when the next turn begins, and `why` says why so many. In a
    cluster `shared` are the loads that a block does for several: the buffer, how many blocks do a part of it each, and their ranks. Without
    buffers it holds numbers of tiles, or, filled by nobody, is an order in which so many groups as it has stages take turns: of tiles, or
    `each` of so many threads of a role.
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

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return attrs.asdict(self)


@attrs.frozen
class Account:
    """The synchronization of a kernel: its rings, its roles as `(name, threads)`, and all statements that order others, as they stand."""

    roles: tuple[tuple[str, str], ...]
    rings: tuple[RingAccount, ...]
    points: tuple[Point, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "roles": [{"role": name, "threads": threads} for name, threads in self.roles],
            "rings": [ring.as_dict() for ring in self.rings],
            "points": [point.as_dict() for point in self.points],
        }


def synchronization(kernel: Kernel) -> Account:
    """Return the account of a final kernel. Raises: `VerificationError` for an unknown kind of statement."""
    roles = next((one for one in kernel.body if isinstance(one, Roles)), None)
    common = tuple(_Reader(kernel, None).points(kernel.body, ()))
    everyone = ("", f"threads 0 to {kernel.threads - 1}")
    if roles is None:
        return Account((everyone,), (), common)
    points = (point for role in roles.roles for point in _Reader(kernel, role).points(role.body, ()))
    rings = tuple(_ring(kernel, ring, roles) for ring in kernel.rings)
    named = tuple((role.name, _threads(role)) for role in roles.roles)
    return Account((everyone, *named) if common else named, rings, (*common, *points))


def _threads(role: Role) -> str:
    registers = f", {role.registers} registers each" if role.registers else ""
    if role.elected:
        return f"one of threads {role.first} to {role.first + role.threads - 1}{registers}"
    return f"threads {role.first} to {role.first + role.threads - 1}{registers}"


# ---------------------------------------------------------------------------------------------- rings


def _ring(kernel: Kernel, ring: Ring, roles: Roles) -> RingAccount:
    if ring.tiles:
        taking, told = (" and ".join(role.name for role in roles.roles if role.elected == alone) for alone in (True, False))
        return RingAccount(ring.name, (), ring.stages, 0, taking, told, ring.consumers, (), (), 0, _WHY_TAKEN)
    if ring.is_order:
        groups = " and ".join(role.name for role in roles.roles if any(_is_of(one, ring) for one in statements(role.body)))
        why = _WHY_ALTERNATE if ring.each else _WHY_ORDERED
        return RingAccount(ring.name, (), ring.stages, 0, "", groups, ring.consumers, (), (), 0, why, each=ring.each)
    producers = [role for role in roles.roles if any(one.ring == ring.name for one, _ in execs(role.body))]
    consumers = [role for role in roles.roles if any(isinstance(one, Acquire) and _is_full(one, ring) for one in statements(role.body))]
    in_flight, why = _in_flight(ring, consumers[0])
    return RingAccount(
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
    )


def _is_full(acquire: Acquire, ring: Ring) -> bool:
    """Return whether it waits for a stage of a ring to be full."""
    return acquire.ring == ring.name and acquire.state is StageState.FULL


def _is_of(statement: Stmt, ring: Ring) -> bool:
    return isinstance(statement, (Acquire, Release)) and statement.ring == ring.name


def _fillers(kernel: Kernel, ring: Ring) -> list[Exec]:
    return [one for one, _ in execs(kernel.body) if one.ring == ring.name]


def _shared(kernel: Kernel, ring: Ring) -> tuple[tuple[str, int, str], ...]:
    """Return the loads of a ring that are multicast to several blocks of the cluster."""
    loads = ((one.accesses[1].buffer, one.multicast) for one in _fillers(kernel, ring))
    return tuple((buffer, peers.count, str(peers)) for buffer, peers in loads if peers is not None)


def _users(kernel: Kernel, ring: Ring) -> list[Exec]:
    inside = [one for one, _ in execs(kernel.body) if one.ring != ring.name]
    return [one for one in inside if any(access.buffer in ring.buffers for access in one.accesses)]


def _in_flight(ring: Ring, consumers: Role) -> tuple[int, str]:
    """How many groups of products run on when a stage is released, and why."""
    loop = _turns(consumers.body, ring)
    if loop is None or not loop.period:
        return 0, _WHY_SINGLE
    wait = _waited(loop.body, ring)
    groups = consumers.threads // 128
    if wait is None:
        return 0, "no statement reads a stage after the one that uses it"
    depth = wait.groups
    if all(one.after is None or one.after.ring != ring.name for one in wait.orders):
        turn = "" if any(_of_this_turn(one, ring) for one in loop.body) else " a turn later"
        return depth, f"a stage is released{turn} at an existing wait for MMAs: {wait.reason}"
    if wait.requested is not None:
        return depth, f"requested by mma_in_flight({wait.requested})"
    if depth:
        return depth, "one warpgroup: its next products are issued while these run, and the stage is given back a turn later"
    if groups <= 1:
        return depth, "with one stage no MMA can stay in flight" if ring.stages == 1 else "all MMAs of an iteration complete at its end"
    return depth, f"{groups} warpgroups: while one waits for its MMAs, those of the others run"


def _waited(body: Sequence[Stmt], ring: Ring) -> Wait | None:
    """Return the wait for MMAs after which a loop releases a stage of a ring, if it has one."""
    found: Wait | None = None
    for one in body:
        if isinstance(one, Wait) and one.mechanism.in_registers:
            found = one
        elif _is_of(one, ring) and isinstance(one, Release):
            return found
    return found


def _of_this_turn(statement: Stmt, ring: Ring) -> bool:
    """Whether a stage is released in the iteration that uses it: no condition but for which lane speaks."""
    return isinstance(statement, Release) and statement.ring == ring.name and len(conjuncts(statement.active)) <= 1


def _turns(body: Sequence[Stmt], ring: Ring) -> For | None:
    """Return the loop whose iterations are fills of a ring; None if it is filled once."""
    inside = (one for one in statements(body) if isinstance(one, For))
    return next((one for one in inside if any(isinstance(part, Acquire) and part.ring == ring.name for part in one.body)), None)


# ---------------------------------------------------------------------------------------------- statements


class _Reader:
    """Reads the program of a role, or of all threads."""

    def __init__(self, kernel: Kernel, role: Role | None) -> None:
        self.kernel, self.role = kernel, role
        self.open: dict[Mechanism, list[Exec]] = collections.defaultdict(list)
        self.committed: list[str] = []
        self.waited: Wait | None = None
        self.several = len([ring for ring in kernel.rings if ring.buffers]) > 1

    def points(self, body: Iterable[Stmt], loops: tuple[str, ...]) -> Iterator[Point]:
        """The statements of a list that order others."""
        for statement in body:
            if isinstance(statement, KINDS):
                yield self._point(statement, loops)
            elif isinstance(statement, Exec):
                self.open[statement.mechanism].append(statement)
            elif isinstance(statement, For):
                yield from self.points(statement.body, (*loops, statement.var.name))
            elif not isinstance(statement, (Let, Comment, Roles, IfAnyLane, ClaimTile, ExitIfDone)):
                raise unknown(statement, "the account of synchronization")

    def _point(self, one: Synchronizing, loops: tuple[str, ...]) -> Point:
        name = "" if self.role is None else self.role.name
        match one:
            case Barrier():
                orders = [order for order in one.orders if not order.before.mechanism.in_registers]  # these are waited for
                return Point(name, loops, f"barrier {one.scope}", _of_barrier(one), _grouped(orders or one.orders), self._why_barrier(one))
            case Wait():
                kind = f"wait {one.mechanism.what} {one.groups}"
                orders = [order for order in one.orders if order.before.mechanism is one.mechanism]  # others are done already
                return Point(name, loops, kind, one.mechanism.unit, _grouped(orders or one.orders), self._why_wait(one))
            case Fence(kind=FenceKind.WGMMA_REGISTERS):
                why = "wgmma takes registers as they were at this fence: without it what threads did to them may come later"
                return Point(name, loops, "fence registers", "each warpgroup", _grouped(one.orders), why)
            case Fence():
                late = any(order.before.ring and order.before.mechanism.arrives for order in one.orders)
                why = "written by ordinary stores, read by an engine: the writer orders the two proxies in front of the barrier"
                if late:
                    why = "copied behind all that the writers execute, read by an engine: who waited for the copies orders the two proxies"
                return Point(name, loops, "fence proxy", "each thread", _grouped(one.orders), why)
            case Commit():
                return Point(name, loops, f"commit {one.mechanism.what}", one.mechanism.unit, (), self._why_commit(one))
            case ClusterBarrier():
                return Point(name, loops, "barrier cluster", "all threads of the cluster's blocks", (), one.reason)
            case GridDepControl(action=action):
                return Point(name, loops, f"griddepcontrol.{action.value}", "each thread", (), _WHY_CHAINED[action])
            case Acquire() | Release():
                return self._turn(one, name, loops)

    def _why_wait(self, wait: Wait) -> str:
        why = _why_wait(wait)
        if wait.mechanism.in_registers:
            self.waited = wait
            left = list(dict.fromkeys(self.committed[-wait.groups :])) if wait.groups else []
            if left and len(set(self.committed)) > 1:
                why = f"{why}, products of {' and of '.join(left)}"
        return why

    def _why_barrier(self, barrier: Barrier) -> str:
        if not barrier.orders:
            return barrier.reason
        what = barrier.reason
        if barrier.scope == WARP_SCOPE:
            return f"{what}; the conflicting threads are of one warp"
        if barrier.scope.threads is None:
            return f"{what}; threads of several warps conflict"
        if self.role is not None and barrier.scope.threads == self.role.threads and barrier.scope.name == self.role.name:
            return f"{what}; threads of several warps conflict, none of other roles"
        return f"{what}; the conflicting threads are of one {barrier.scope}, so the rest of the block does not wait"

    def _why_commit(self, commit: Commit) -> str:
        issued = self.open[commit.mechanism]
        self.open[commit.mechanism] = []
        buffer = 0 if commit.mechanism.reads_in_groups else -1
        what = _joined((one.accesses[buffer].buffer for one in issued), (one.instruction.name for one in issued))
        if commit.mechanism.in_registers:
            self.committed.append(", ".join(dict.fromkeys(one.accesses[buffer].buffer for one in issued)))
        if not issued:
            return f"an empty group, so that there is one group per iteration; {commit.mechanism.instruction} completes by groups"
        return f"{what} form a group; {commit.mechanism.instruction} completes by groups"

    def _turn(self, one: Acquire | Release, role: str, loops: tuple[str, ...]) -> Point:
        ring = self.kernel.ring(one.ring)
        full = one.state is StageState.FULL
        fillers, users = _fillers(self.kernel, ring), _users(self.kernel, ring)
        orders: list[Dependence] = []
        if ring.buffers:
            turns = _turns(self.kernel.body, ring)
            orders = _met(fillers, users, ring, "") if full else _met(users, fillers, ring, turns.var.name if turns is not None else "")
        if isinstance(one, Acquire):
            why = _why_acquire(one, ring)
            scope = "one thread" if self.role is not None and self.role.elected else "each thread"
        else:
            waited = None
            if not full and self.several and any(user.mechanism.in_registers for user in users):
                waited = self.waited
            why = _why_release(one, ring, waited)
            scope = "each thread" if one.by is not None else "one thread" if full else "one lane per warp"
        verb = "acquire" if isinstance(one, Acquire) else "release"
        return Point(role, loops, f"{verb} {one.state.value} {ring.name}", scope, _grouped(orders), why)


def _of_barrier(barrier: Barrier) -> str:
    return f"{barrier.scope.threads} threads" if barrier.scope.threads else "all threads of the block"


def _why_wait(wait: Wait) -> str:
    still = {0: "none may be pending", 1: "the last one may be pending"}.get(wait.groups, f"the last {wait.groups} may be pending")
    return f"{wait.reason}; {wait.mechanism.instruction} is asynchronous until its group is waited for: {still}"


def _why_acquire(acquire: Acquire, ring: Ring) -> str:
    stage, round_ = acquire.fill_index % ring.stages, acquire.fill_index // ring.stages
    if acquire.state is StageState.FULL and ring.tiles:
        return f"mbarrier of stage {stage}, phase {round_ % 2}: complete when the tile index has arrived"
    if acquire.state is StageState.FULL:
        brought = f"TMA has copied its {ring.bytes} bytes" if ring.bytes else ""
        copied = f"{ring.producers} threads have arrived" if ring.producers > 1 else ""
        what = " and ".join(part for part in (brought, copied) if part)
        return f"mbarrier of stage {stage}, phase {round_ % 2}: complete when {what}"
    if ring.each:
        return f"mbarrier {stage}, complete when the preceding warpgroup has issued its MMAs; the first wait passes"
    first = "the first fill passes" if ring.stages == 1 else f"the first {ring.stages} fills pass"
    before = "before" if ring.stages == 1 else f"{ring.stages} fills before"
    return f"mbarrier of stage {stage}, phase {(round_ + 1) % 2}: complete with {_arrivals(ring)} that release the fill {before}; {first}"


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
    late = "; a turn whose products are done by now" if len(conjuncts(release.active)) > 1 else ""
    if waited is not None:
        late = f"; the preceding wait ({waited.reason}) leaves no pending group that reads it"
    there = f" in each of the blocks {_ranks(release.to)}, which multicast to this one" if release.to else ""
    return f"one of {_arrivals(ring)} at the mbarrier of stage {stage}{there}{late}"


def _ranks(several: Iterable[BlockSet]) -> str:
    """Return the blocks of a cluster, by their ranks."""
    return " and ".join(map(str, several))


def _arrivals(ring: Ring) -> str:
    return f"{ring.consumers} arrival{'s' if ring.consumers > 1 else ''}"


# ---------------------------------------------------------------------------------------------- dependences


def _met(before: Sequence[Exec], behind: Sequence[Exec], ring: Ring, carried: str) -> list[Dependence]:
    """Return producers and users of a ring's buffers, by buffer."""
    return [
        Dependence(x.buffer, one, other, (x.write, y.write), carried)
        for one, other in itertools.product(before, behind)
        for x, y in itertools.product(one.accesses, other.accesses)
        if x.buffer == y.buffer and x.buffer in ring.buffers
    ]


def _grouped(found: Iterable[Dependence]) -> tuple[Ordered, ...]:
    """Return dependences grouped by kind and pair of instructions."""
    groups: dict[tuple[str, str, str, str], list[Dependence]] = {}
    for one in found:
        behind = "the end of the block" if one.after is None else one.after.instruction.name
        groups.setdefault((one.kind, one.before.instruction.name, behind, one.carried), []).append(one)
    return tuple(
        Ordered(
            kind,
            tuple(dict.fromkeys(one.buffer for one in group)),
            before,
            _lines(one.before for one in group),
            behind,
            _lines(one.after for one in group),
            carried,
        )
        for (kind, before, behind, carried), group in groups.items()
    )


def _lines(found: Iterable[Exec | None]) -> tuple[str, ...]:
    """Return the source lines of statements."""
    return tuple(sorted({one.origin for one in found if one is not None and one.origin}, key=_by_line))


def _by_line(origin: str) -> tuple[str, int]:
    file, _, line = origin.rpartition(":")
    return (file, int(line)) if line.isdigit() else (origin, 0)


def _listed(found: Sequence[Exec]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    names = dict.fromkeys(one.instruction.name for one in found)
    return tuple((name, _lines(one for one in found if one.instruction.name == name)) for name in names)


def _joined(buffers: Iterable[str], names: Iterable[str]) -> str:
    return f"{', '.join(dict.fromkeys(names))} of {', '.join(dict.fromkeys(buffers))}"


# ---------------------------------------------------------------------------------------------- text


def text(account: Account) -> str:
    """Return the account as text: rings first, then each role's statements by loop."""
    file = _file(account)
    parts = [f"lines of {file}"] if file else []
    parts += [_ring_text(ring, file) for ring in account.rings]
    for name, threads in account.roles:
        points = [point for point in account.points if point.role == name]
        parts.append("\n".join([f"{name or 'all threads'}: {threads}", *(_points(points, file) or ["  no synchronization"])]))
    return "\n\n".join(parts)


def _file(account: Account) -> str:
    """Return the file of most source lines."""
    places = [place for point in account.points for one in point.orders for place in (*one.before_at, *one.behind_at)]
    files = [place.rpartition(":")[0] for place in places]
    return max(dict.fromkeys(files), key=files.count, default="")


def _placed(name: str, places: Sequence[str], file: str) -> str:
    """Return a name with its lines, such as `TMA_LOAD :47 :48`."""
    return " ".join([name, *(place.removeprefix(file) if file else place for place in places)])


def _ring_text(ring: RingAccount, file: str) -> str:
    if not ring.buffers and ring.filled_by:
        head = f"tiles {ring.name}: indices of {ring.stages} tiles"
        return f"{head}\n  claimed    by {ring.filled_by}, from the counter\n  read       by {ring.emptied_by}\n  why        {ring.why}"
    if not ring.buffers:
        what = f"warpgroups of {ring.each} threads issue MMAs" if ring.each else "consumer groups claim tiles"
        head = f"order {ring.name}: {ring.stages} {what} alternately"
        given = f"by {ring.emptied_by}: {ring.arrivals} arrivals, one per warp, complete a phase"
        return f"{head}\n  passed on  {given}\n  why        {ring.why}"
    fillers = ", ".join(_placed(name, places, file) for name, places in ring.fillers)
    users = ", ".join(_placed(name, places, file) for name, places in ring.users)
    rows = (
        ("filled", f"by {ring.filled_by}: {fillers}; {_counted(ring)} complete a phase of its full barriers"),
        ("emptied", f"by {ring.emptied_by}: {users}; {ring.arrivals} arrivals, one per warp, complete a phase of its empty barriers"),
        *(("shared", f"{name}: each of {count} blocks loads a part, multicast to blocks {ranks}") for name, count, ranks in ring.shared),
        ("in flight", f"{ring.in_flight}; {ring.why}"),
    )
    head = f"ring {ring.name}: {', '.join(ring.buffers)}; {ring.stages} stage{'s' if ring.stages > 1 else ''} of {ring.bytes} bytes"
    return "\n".join([head, *(f"  {name:<9}  {value}" for name, value in rows)])


def _counted(ring: RingAccount) -> str:
    """Return what the full barriers of a ring count."""
    arrivals = f"{ring.filling} arrival{'s' if ring.filling > 1 else ''}"
    return f"{arrivals} and {ring.bytes} bytes" if ring.bytes or ring.filling == 1 else arrivals


def _points(points: Sequence[Point], file: str) -> list[str]:
    width = max((len(point.kind) for point in points), default=0) + 2
    lines: list[str] = []
    for loops, several in itertools.groupby(points, key=lambda point: point.loops):
        lines.append(f"  in loop {', '.join(loops)}" if loops else "  once")
        for point, same in itertools.groupby(several):
            count = len(list(same))
            first, *rest = [*(one.text(file) for one in point.orders), f"{point.why} ({point.scope})"]
            lines.append(f"    {point.kind:<{width}}{first}" + (f", {count} times" if count > 1 else ""))
            lines += [f"    {'':<{width}}{line}" for line in rest]
    return lines
