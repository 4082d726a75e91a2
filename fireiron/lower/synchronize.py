"""`synchronize`: place the fewest barriers that order every hazard, from the addresses that each thread accesses.

A hazard is a pair of accesses to one address by different threads, at least one of them a write. In its innermost common statement list it
is an arc of positions, which wraps around the end if a loop carries it. A barrier at any of these positions orders it, if its scope
contains both threads. Lists are solved from the inside out, all scopes at once, with the fewest barriers (`barrier_placement.py`), later
positions preferred. `no_sync` forbids a position, `sync` requires one. Each hazard is credited to one barrier, whose comment lists it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import attrs

from fireiron.errors import SynchronizationError
from fireiron.frozen import evolve, frozen
from fireiron.ir import (
    Acquire,
    Barrier,
    ClaimTile,
    Comment,
    Commit,
    Dependence,
    Exec,
    ExitIfDone,
    Fence,
    For,
    IfAnyLane,
    Kernel,
    Let,
    Mechanism,
    Release,
    Role,
    Roles,
    Scope,
    Stmt,
    SyncPoint,
    Wait,
    execs,
    unknown,
)
from fireiron.ir.effects.unchecked import Unchecked
from fireiron.lower.access_map import Touch
from fireiron.lower.barrier_placement import fewest_of_scopes
from fireiron.lower.dependences import Dependences, Edge
from fireiron.lower.outstanding import Outstanding
from fireiron.values.expr import Var, constant

Exposed = tuple[tuple[Touch, ...], ...]
"""For each scope, the accesses that no barrier of it, or of a wider one, separates from the statements outside."""


@frozen(eq=False)
class Summary:
    """The accesses of a statement that are exposed to statements before (`first`) and after it (`last`), by scope.

    `barrier` is the number of scopes of which it always executes a barrier: a barrier of a wide scope counts for all narrower ones.
    `pending` are copies that no commit in it follows: no barrier can wait for them before they are committed.
    """

    first: Exposed
    last: Exposed
    barrier: int = 0
    pending: frozenset[Touch] = frozenset()


@frozen(eq=False)
class Hazard:
    """An edge with the positions of which at least one needs a barrier; `first` is the item after which they begin."""

    positions: frozenset[int]
    edge: Edge
    first: int

    @property
    def reused(self) -> int | None:
        """For an edge around the end of a loop, the last position before the second statement; None if that statement is further down."""
        return max((position for position in self.positions if position <= self.first), default=None)


def synchronize(kernel: Kernel) -> Kernel:
    """The kernel with barriers and without sync points; a `SynchronizationError` if a forbidden barrier is needed."""
    solver = _Solver(kernel)
    body, _ = solver.solve(kernel.body, ())
    ineffective = (point for point, relevant in solver.requests.values() if not relevant)
    return evolve(kernel, body=body, ineffective=(*kernel.ineffective, *ineffective))


@attrs.define(eq=False)
class _List:
    """A statement list as items: statements that access memory or contain barriers, each with the statements that only lead up to it."""

    items: list[tuple[Stmt, ...]] = attrs.field(factory=list)
    summaries: list[Summary] = attrs.field(factory=list)
    commits: list[tuple[int, Mechanism]] = attrs.field(factory=list)
    best: list[int] = attrs.field(factory=list)
    required: dict[int, SyncPoint] = attrs.field(factory=dict)
    forbidden: dict[int, SyncPoint] = attrs.field(factory=dict)

    @property
    def positions(self) -> int:
        """The number of possible barrier positions: before each item, and after the last."""
        return len(self.items) + 1

    def note(self, point: SyncPoint) -> None:
        """Record a request for the current position."""
        if point.require is None:
            self.best.append(len(self.items))
        else:
            (self.required if point.require else self.forbidden)[len(self.items)] = point

    def preferred(self, hazards: Iterable[Hazard]) -> list[int]:
        """All positions in order of preference: requested ones; then those before statements that overwrite what a TMA store reads; then
        later ones first.

        A TMA store reads shared memory long after it was issued. A thread that waits only where the memory is reused can continue
        meanwhile.
        """
        again = [one.reused for one in hazards if one.edge.before.statement.mechanism.reads_in_groups]
        wanted = sorted({position for position in again if position is not None})
        return list(dict.fromkeys((*self.best, *wanted, *reversed(range(self.positions)))))


class _Solver:
    """Places the barriers of a kernel's statement lists."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.graph = Dependences(kernel)
        self.scopes = self.graph.scopes
        self.requests: dict[tuple[bool | None, str, str | None], tuple[SyncPoint, bool]] = {}

    # -------------------------------------------------------------------------------------- lists, inside out

    def solve(self, body: Sequence[Stmt], loops: tuple[For, ...], carried: bool = False) -> tuple[tuple[Stmt, ...], Summary]:
        """The list with barriers, and its exposed accesses; `carried` if the innermost of the loops repeats it."""
        items = self._list(body, loops)
        hazards = [self._after_commit(hazard, items) for hazard in self._hazards(items, loops, carried)]
        barriers = self._placed(hazards, items)
        self._record_requests(hazards, items, barriers)
        return self._merged(items, barriers, _credited(hazards, barriers, items.positions))

    def _list(self, body: Sequence[Stmt], loops: tuple[For, ...]) -> _List:
        items = _List()
        leading: list[Stmt] = []
        for statement in body:
            match statement:
                case SyncPoint():
                    items.note(statement)
                    continue
                case Let() | Comment() | Fence() | Wait():
                    # Kept with the next statement: no barrier separates a comment, a name or a wait from what it belongs to.
                    leading.append(statement)
                    continue
                case For():
                    statement, summary = self._loop(statement, loops)
                case Exec():
                    touches = self.graph.of(statement, loops)
                    summary = self._everywhere(touches, pending=frozenset(one for one in touches if one.asynchronous_write))
                case Barrier(scope=scope):
                    summary = self._everywhere((), self._reach(scope))
                case Roles():
                    # The work of one elected thread is in order, and it waits for others only at mbarriers of rings: a barrier of several
                    # threads would expect its arrival. The same holds for threads over which no tiles are distributed.
                    statement = statement.rebuilt(
                        tuple(
                            role.body if _waits_at_rings(role, self.kernel) else self.solve(role.body, loops)[0] for role in statement.roles
                        )
                    )
                    summary = self._everywhere(())
                case Acquire() | Release() | ClaimTile() | ExitIfDone() | IfAnyLane():
                    summary = self._everywhere(())
                case Commit(mechanism=mechanism):
                    items.commits.append((len(items.items), mechanism))
                    summary = self._everywhere(())
                case _:
                    raise unknown(statement, "synchronize")
            items.items.append((*leading, statement))
            items.summaries.append(summary)
            leading = []
        if leading:
            items.items.append(tuple(leading))
            items.summaries.append(self._everywhere(()))
        return items

    def _loop(self, loop: For, loops: tuple[For, ...]) -> tuple[For, Summary]:
        """A loop with barriers; those inside count for statements around it only if it certainly runs."""
        # A loop of at most one iteration carries nothing.
        inner, summary = self.solve(loop.body, (*loops, loop), loop.extent.high > 1)
        if loop.period:
            summary = _at_the_ends(summary, loop)
        runs = loop.extent.low > loop.first
        return evolve(loop, body=inner), summary if runs else evolve(summary, barrier=0)

    def _everywhere(self, touches: tuple[Touch, ...], barrier: int = 0, pending: frozenset[Touch] = frozenset()) -> Summary:
        exposed = (touches,) * len(self.scopes)
        return Summary(exposed, exposed, barrier, pending)

    def _reach(self, scope: Scope) -> int:
        """The number of scopes that a barrier of a scope counts for."""
        return sum(one <= scope for one in self.scopes)

    def _merged(
        self, items: _List, barriers: Mapping[int, int], ordered: Mapping[int, Sequence[Hazard]]
    ) -> tuple[tuple[Stmt, ...], Summary]:
        merged: list[Stmt] = []
        parts: list[Summary] = []
        commits: list[Mechanism | None] = []
        own = dict(items.commits)
        for position in range(items.positions):
            if position in barriers:
                orders = _different(hazard.edge.dependence for hazard in ordered[position])
                merged.append(Barrier(self.scopes[barriers[position]], _reason(ordered[position]), orders=orders))
                parts.append(self._everywhere((), barriers[position] + 1))
                commits.append(None)
            if position < len(items.items):
                merged += items.items[position]
                parts.append(items.summaries[position])
                commits.append(own.get(position))
        first = tuple(_exposed([(part.first[scope], part.barrier > scope) for part in parts]) for scope in range(len(self.scopes)))
        last = tuple(_exposed_after(parts, commits, scope) for scope in range(len(self.scopes)))
        return tuple(merged), Summary(first, last, max((part.barrier for part in parts), default=0), _pending(parts, commits))

    # -------------------------------------------------------------------------------------- hazards

    def _hazards(self, items: _List, loops: tuple[For, ...], carried: bool) -> list[Hazard]:
        hazards: list[Hazard] = []
        count = len(items.summaries)
        outer = tuple(loop.var for loop in loops)
        before = [number for number, one in enumerate(items.summaries) if any(one.last)]
        after = [number for number, one in enumerate(items.summaries) if any(one.first)]
        # No item with itself: inner lists are solved, and no barrier can be inside a statement.
        for i, j in ((i, j) for i in before for j in after if i < j):
            hazards += self._between(items, i, j, range(i + 1, j), range(i + 1, j + 1), outer)
        if carried:
            everywhere = range(count + 1)
            for i, j in itertools.product(before, after):
                # From after item i around the end to item j; if j is further down, past every position.
                positions = (*range(i + 1, count + 1), *range(j + 1)) if j <= i else everywhere
                middle = (*range(i + 1, count), *range(j)) if j <= i else range(count)
                # without the loop's own variable: the two sides are in different iterations
                hazards += self._between(items, i, j, middle, positions, outer[:-1], loops[-1])
        return hazards

    def _between(
        self,
        items: _List,
        i: int,
        j: int,
        middle: Sequence[int],
        positions: Iterable[int],
        outer: tuple[Var, ...],
        carried: For | None = None,
    ) -> Iterable[Hazard]:
        """The hazards between two items of a list that no barrier in the items between them orders."""
        summaries = items.summaries
        before, after = summaries[i], summaries[j]
        exposed = [scope for scope in range(len(self.scopes)) if before.last[scope] and after.first[scope]]
        if not exposed:
            return
        passed = max([summaries[k].barrier for k in middle], default=0)
        start = i + 1 if carried is None else max(i + 1, j)  # a whole iteration also passes the statements before item j
        committed = _after_commits(items, start, middle) if passed and before.pending else {}
        anywhere = max([one.barrier for one in summaries])
        # barriers that certainly run in between order hazards of narrower scopes
        for scope in exposed:
            if scope < passed and not committed:
                continue
            unmet: Sequence[Touch] = before.last[scope]
            if committed:
                unmet = [
                    touch
                    for touch in unmet
                    if scope >= (committed.get(touch.statement.mechanism, passed) if touch in before.pending else passed)
                ]
            for edge in self.graph.between(unmet, after.first[scope], scope, outer, carried):
                if edge.adjacent:
                    yield Hazard(frozenset(positions), edge, i)
                # The two iterations are not adjacent, so the whole body runs in between: a barrier inside any item orders the hazard, too.
                elif scope >= anywhere:
                    yield Hazard(frozenset(range(len(summaries) + 1)), edge, i)

    def _after_commit(self, hazard: Hazard, items: _List) -> Hazard:
        """Restrict accesses in flight to positions after the commit of their group, where a thread can wait for it."""
        own_mechanism = hazard.edge.before.statement.mechanism
        own = [position for position, mechanism in items.commits if hazard.first <= position and mechanism is own_mechanism]
        if not own:
            return hazard
        kept = hazard.positions - frozenset(range(hazard.first + 1, own[0] + 1))
        # An access before the commit has no such position. The barrier then stays, and the race check refuses the copy.
        return evolve(hazard, positions=kept or hazard.positions)

    # -------------------------------------------------------------------------------------- barrier positions

    def _placed(self, hazards: Sequence[Hazard], items: _List) -> dict[int, int]:
        """The scope of the barrier at each position that has one."""
        # `sync` requests a block barrier, even if a narrower scope suffices
        chosen = dict.fromkeys(items.required, len(self.scopes) - 1)
        if not hazards:
            return chosen
        allowed = [position for position in items.preferred(hazards) if position not in items.forbidden]
        arcs = []
        for hazard in hazards:
            # a block barrier that is needed anyway orders hazards of every scope
            if hazard.positions.isdisjoint(chosen):
                arc = hazard.positions.intersection(allowed)
                if arc:
                    arcs.append((arc, hazard.edge.scope))
                elif not self.kernel.effects[Unchecked].reasons:
                    raise self._unsatisfiable(hazard, items.forbidden)
        return {**chosen, **fewest_of_scopes(arcs, allowed)}

    def _record_requests(self, hazards: Sequence[Hazard], items: _List, barriers: Mapping[int, int]) -> None:
        """Record which requests have no effect on the barriers; a request may be in several lists, and counts if it matters in any."""
        for requests in (items.required, items.forbidden):
            for position, point in requests.items():
                rest = {other: one for other, one in requests.items() if other != position}
                others = evolve(items, required=rest) if requests is items.required else evolve(items, forbidden=rest)
                request = (point.require, point.subject, point.origin)
                relevant = self._differs(hazards, others, barriers)
                self.requests[request] = (point, relevant or self.requests.get(request, (point, False))[1])

    def _differs(self, hazards: Sequence[Hazard], items: _List, barriers: Mapping[int, int]) -> bool:
        """Whether other requests lead to other barriers, or make them impossible."""
        try:
            return self._placed(hazards, items) != barriers
        except SynchronizationError:
            return True

    def _unsatisfiable(self, hazard: Hazard, forbidden: Mapping[int, SyncPoint]) -> SynchronizationError:
        requests = [point for position, point in forbidden.items() if position in hazard.positions]
        names = ", ".join(f"no_sync on {point.subject} ({point.origin})" for point in requests)
        return SynchronizationError(
            f"race on {hazard.edge.before.access.buffer}: {self.graph.witness(hazard.edge)}, "
            f"and no barrier is allowed in between: {names or 'no position is left'}",
            at=requests[-1].origin if requests else hazard.edge.after.access.origin,
            hint="remove no_sync from the last load before the use; one barrier after the last load orders all loads",
        )


def _exposed(parts: Iterable[tuple[tuple[Touch, ...], bool]]) -> tuple[Touch, ...]:
    """The accesses of the parts up to the first one that always executes a barrier."""
    touches: list[Touch] = []
    for some, barrier in parts:
        touches += some
        if barrier:
            break
    return tuple(touches)


def _after_commits(items: _List, start: int, middle: Sequence[int]) -> dict[Mechanism, int]:
    """By mechanism, the number of scopes of which a barrier runs in the items `middle`, without those from `start` to the first commit."""
    first = {mechanism: position for position, mechanism in reversed(items.commits) if position >= start}
    return {
        mechanism: max([items.summaries[k].barrier for k in middle if not start <= k <= position], default=0)
        for mechanism, position in first.items()
    }


def _exposed_after(parts: Sequence[Summary], commits: Sequence[Mechanism | None], scope: int) -> tuple[Touch, ...]:
    """The accesses from the last part on that always executes a barrier, and pending copies whose commit no barrier follows."""
    touches: list[Touch] = []
    barrier = False
    committed: set[Mechanism] = set()
    for part, mechanism in zip(reversed(parts), reversed(commits), strict=True):
        if barrier and mechanism is not None:
            committed.add(mechanism)
        touches += [one for one in part.last[scope] if not barrier or (one in part.pending and one.statement.mechanism not in committed)]
        barrier = barrier or part.barrier > scope
    return tuple(touches)


def _pending(parts: Sequence[Summary], commits: Sequence[Mechanism | None]) -> frozenset[Touch]:
    """The copies of a list that no commit in it follows."""
    outstanding: Outstanding[Touch] = Outstanding()
    for part, mechanism in zip(parts, commits, strict=True):
        outstanding = outstanding if mechanism is None else outstanding.commit(mechanism)
        for touch in part.pending:
            outstanding = outstanding.issue(touch.statement.mechanism, (touch,))
    return frozenset(itertools.chain(*outstanding.open.values()))


def _waits_at_rings(role: Role, kernel: Kernel) -> bool:
    """Whether only rings synchronize the threads of a role: one thread, threads that fill rings, or threads that store their stages."""
    return role.elected or role.first >= kernel.workers or all(stmt.ring for stmt, _ in execs(role.body))


def _at_the_ends(summary: Summary, loop: For) -> Summary:
    """The exposed accesses of a pipelined loop: the first iteration before its first barrier, the last iteration after its last one.

    For scopes of which not every iteration has a barrier, all iterations are exposed.
    """
    # With an unknown trip count the last iteration may use any stage, so the variable stays.
    end = constant(loop.extent)
    early = {touch: _at(touch, loop.var, 0) for touches in summary.first for touch in touches}
    late = {touch: touch for touches in summary.last for touch in touches}
    if end is not None:
        late = {touch: touch if touch in summary.pending else _at(touch, loop.var, end - 1) for touch in late}
    return evolve(
        summary,
        first=_replaced(summary.first, early, summary.barrier),
        last=_replaced(summary.last, late, summary.barrier),
    )


def _replaced(exposed: Exposed, others: Mapping[Touch, Touch], scopes: int) -> Exposed:
    """Accesses replaced by others, for the narrowest scopes."""
    return (*(tuple(others[touch] for touch in touches) for touches in exposed[:scopes]), *exposed[scopes:])


def _at(touch: Touch, var: Var, value: int) -> Touch:
    """An access at a value of a loop; the same object, with its tables, if it does not depend on that loop."""
    if not any(var in one.variables() for one in (touch.statement.active, *touch.access.expressions())):
        return touch
    statement = evolve(touch.statement, active=touch.statement.active.substitute({var: value}))
    return evolve(touch, statement=statement, access=touch.access.substitute({var: value}))


def _credited(hazards: Sequence[Hazard], barriers: Mapping[int, int], positions: int) -> dict[int, list[Hazard]]:
    """What each barrier orders: each hazard is credited to the first barrier after it."""
    credited: dict[int, list[Hazard]] = {position: [] for position in barriers}
    for hazard in hazards:
        hazard_arcs = [position for position, scope in barriers.items() if scope >= hazard.edge.scope and position in hazard.positions]
        if hazard_arcs:
            # Counted around the end, so that the back edge is credited to the first barrier on it.
            credited[min(hazard_arcs, key=lambda position: (position - hazard.first - 1) % positions)].append(hazard)
    return credited


def _different(dependences: Iterable[Dependence]) -> tuple[Dependence, ...]:
    """Each dependence once: statements conflict by several accesses and in several scopes."""
    return tuple({(one.buffer, id(one.before), id(one.after), one.writes, one.carried): one for one in dependences}.values())


def _reason(hazards: Sequence[Hazard]) -> str:
    """Buffers are complete if they were written before, and free again if they were read."""
    complete = dict.fromkeys(hazard.edge.before.access.buffer for hazard in hazards if not hazard.edge.is_reuse)
    free = dict.fromkeys(hazard.edge.before.access.buffer for hazard in hazards if hazard.edge.is_reuse)
    by_state = {
        "complete and free again": [name for name in complete if name in free],
        "complete": [name for name in complete if name not in free],
        "free again": [name for name in free if name not in complete],
    }
    return "; ".join(f"{', '.join(names)} {state}" for state, names in by_state.items() if names) or "requested by sync"
