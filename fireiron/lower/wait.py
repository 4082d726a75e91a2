"""`wait`: determine before which barriers a thread waits for its asynchronous operations, and how many groups may stay in flight.

`synchronize` has placed the barriers. An asynchronous copy must be waited for at one of them before its data is accessed, and an MMA before
its operands are overwritten. The program is executed with actual iteration numbers (the first ones and the last ones), counting groups as
they are committed. An access to the data of a group requires a wait for it at the last barrier after its commit, and each barrier uses the
smallest number that is required of it. Groups complete in order, so a wait for one is a wait for all before it. A loop of unknown length is
executed with each of its shortest lengths: no iteration, and every position in the period at which it may end.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

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
    Roles,
    Scope,
    Stmt,
    Wait,
    execs,
    rewritten,
    statements,
    unknown,
)
from fireiron.ir.effects.unchecked import Unchecked
from fireiron.lower.access_map import Located, Touch
from fireiron.lower.dependences import Dependences
from fireiron.values.expr import Expr, Var, all_of, compiled, conjuncts, constant

Fixed = Mapping[str, int]
Places = int
"""A set of places in shared memory, as the bits of an integer."""


def wait(kernel: Kernel) -> Kernel:
    """The kernel with the waits that its asynchronous operations need."""
    if not any(statement.asynchronous for statement, _ in execs(kernel.body)):
        return kernel
    replay = _Replay(kernel)
    for counts in _all_counts(kernel):
        replay.begin(counts)
        replay.run(replay.program, {})

    def waited(statement: Stmt) -> tuple[Stmt, ...]:
        required = replay.required.get(id(statement), {})  # by identity: equal barriers at different positions wait for different copies
        if not required:
            return (statement,)
        assert isinstance(statement, Barrier)
        return (*(required[kind].wait(kind, statement) for kind in sorted(required, key=_rank)), statement)

    return evolve(kernel, body=_ended(rewritten(kernel.body, waited)))


def _ended(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A program that waits for all TMA stores at its end: until then they read the block's shared memory."""
    if body and isinstance(body[-1], Roles):
        return (*body[:-1], body[-1].rebuilt(tuple(_ended(child) for child in body[-1].children)))
    stores = [statement for statement, _ in execs(body) if statement.mechanism.outlives]
    if not stores:
        return body
    read = tuple(Dependence(one.accesses[0].buffer, one, None, (False, False)) for one in stores)
    kinds = dict.fromkeys(one.mechanism for one in stores)
    waits = (Wait(0, "all stores have read shared memory", kind, orders=_of_kind(read, kind)) for kind in sorted(kinds, key=_rank))
    return (*body, *waits)


def _of_kind(dependences: Iterable[Dependence], mechanism: Mechanism) -> tuple[Dependence, ...]:
    return tuple(dependence for dependence in dependences if dependence.before.mechanism is mechanism)


def _rank(mechanism: Mechanism) -> tuple[int, str]:
    return mechanism.rank, mechanism.name


@attrs.define(eq=False)
class _Group:
    """Copies or MMAs that are waited for together: the buffers that they write or read, and all their places."""

    parts: list[tuple[Touch, Places]] = attrs.field(factory=list)
    places: Places = 0

    def add(self, touch: Touch, places: Places) -> None:
        """Add a copy, or an operand of an MMA."""
        self.parts.append((touch, places))
        self.places |= places

    @property
    def buffers(self) -> dict[str, None]:
        """The names of the buffers."""
        return {touch.access.buffer: None for touch, _ in self.parts}


@attrs.define(eq=False)
class _Queue:
    """The groups of one mechanism in commit order. The first `complete` ones are known to be complete to every thread, the first `waited`
    ones to the threads that committed them.
    """

    open: _Group = attrs.field(factory=_Group)
    groups: list[_Group] = attrs.field(factory=list)
    complete: int = 0
    waited: int = 0

    def commit(self) -> None:
        """The issued operations become a group."""
        self.groups.append(self.open)
        self.open = _Group()


@attrs.define(eq=False)
class _Required:
    """The wait that a barrier requires: how many groups may be in flight after it, and the buffers of the groups that must be complete."""

    groups: int
    buffers: dict[str, None] = attrs.field(factory=dict)
    orders: dict[tuple[int, int], Dependence] = attrs.field(factory=dict)

    def note(self, group: _Group, touch: Touch, places: Places) -> None:
        """Record the conflicts between a group and an access, for readers."""
        for part, filled in group.parts:
            pair = (id(part), id(touch))
            if pair not in self.orders and filled & places:
                writes = (part.access.write, touch.access.write)
                self.orders[pair] = Dependence(part.access.buffer, part.statement, touch.statement, writes)

    def wait(self, mechanism: Mechanism, barrier: Barrier) -> Wait:
        """The wait before a barrier. It covers everything in flight among the operations that the barrier orders."""
        names = list(self.buffers)
        orders = tuple(dependence for dependence in barrier.orders if _lasts(dependence, mechanism))
        reason = f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} {mechanism.done}"
        return Wait(self.groups, reason, mechanism, orders=orders or tuple(self.orders.values()))


def _lasts(dependence: Dependence, mechanism: Mechanism) -> bool:
    """Whether the first of two statements completes only at a wait of that mechanism."""
    return dependence.before.mechanism is mechanism and dependence.writes[0] == mechanism.writes_late


@frozen(eq=False)
class _Site:
    """An access; `untested` is the same without the conditions `tests`, which depend only on executed loops.

    `needed` are the executed loops that it depends on. `iterations` maps those on which no other condition depends to the number of
    iterations after which addresses repeat.
    """

    touch: Touch
    untested: Touch
    tests: tuple[Expr, ...]
    needed: frozenset[str]
    periods: Mapping[str, int]


@frozen(eq=False)
class _Access:
    """An access that conflicts with copies of some mechanisms, or is a copy; `issues` is the mechanism of a copy."""

    site: _Site
    conflicts: tuple[Mechanism, ...]
    issues: Mechanism | None


@frozen(eq=False)
class _Loop:
    """A loop that is executed iteration by iteration."""

    loop: For
    body: _Steps


_Step: TypeAlias = "_Access | Commit | Wait | Barrier | _Loop | tuple[_Steps, ...]"
"""The relevant parts of a program; a tuple contains those of roles."""
_Steps: TypeAlias = "tuple[_Step, ...]"


class _Replay:
    """Executes a program with actual iteration numbers, and records which waits its barriers require."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.graph = Dependences(kernel)
        touches = {(id(stmt), *map(id, loops)): self._of_block(stmt, loops) for stmt, loops in execs(kernel.body)}
        copies = [one for found in touches.values() for one in found if one.completes_at_wait]
        # Copies cover whole granules, so a shorter access conflicts with a copy if its granule does.
        self.granule = self.graph.touches.granule(*copies)
        issued = (stmt for stmt in statements(kernel.body) if isinstance(stmt, (Exec, Commit, Wait)) and stmt.mechanism.in_groups)
        self.kinds = sorted({one.mechanism for one in issued}, key=_rank)
        self.required: dict[int, dict[Mechanism, _Required]] = {}
        self._places: dict[Any, Places] = {}
        self._tables: dict[Any, Located] = {}
        self._replayed: dict[int, bool] = {}
        self.program = self._prepared(kernel.body, (), touches, copies)
        self.begin({})

    def begin(self, counts: Mapping[Expr, int]) -> None:
        """Start an execution in which loops of unknown extent have these numbers of iterations."""
        self.counts = counts
        self.queues = {kind: _Queue() for kind in self.kinds}
        self.passed: list[tuple[Barrier, Mapping[Mechanism, tuple[int, int]]]] = []

    # ------------------------------------------------------------------------------------------ the program

    def _of_block(self, statement: Exec, loops: tuple[For, ...]) -> tuple[Touch, ...]:
        # Copies write shared memory (`pipeline` marks no others), so nothing else conflicts with them.
        return tuple(touch for touch in self.graph.of(statement, loops) if self.kernel.buffer(touch.access.buffer).memory.of_block)

    def _prepared(
        self, body: tuple[Stmt, ...], loops: tuple[For, ...], touches: Mapping[tuple[int, ...], Sequence[Touch]], copies: Sequence[Touch]
    ) -> _Steps:
        """The relevant parts of a list."""
        steps: list[_Step] = []
        for statement in body:
            match statement:
                case Exec():
                    steps += self._accesses(touches[id(statement), *map(id, loops)], copies)
                case Commit() | Wait() | Barrier():
                    steps.append(statement)
                case For():
                    inside = self._prepared(statement.body, (*loops, statement), touches, copies)
                    # all iterations of other loops count as one
                    steps += (_Loop(statement, inside),) if self._is_replayed(statement) else inside
                case Roles():
                    steps.append(tuple(self._prepared(child, loops, touches, copies) for child in statement.children))
                case Let() | Comment() | Fence() | Acquire() | Release() | ClaimTile() | ExitIfDone() | IfAnyLane():
                    pass
                case _:
                    raise unknown(statement, "wait")
        return tuple(steps)

    def _accesses(self, touches: Iterable[Touch], copies: Iterable[Touch]) -> Iterator[_Access]:
        """The accesses that depend on copies, or are copies."""
        for touch in touches:
            mechanisms = {one.statement.mechanism for one in copies if self.graph.may_conflict(one, touch)}
            if mechanisms or touch.completes_at_wait:
                issues = touch.statement.mechanism if touch.completes_at_wait else None
                yield _Access(self._site(touch), tuple(kind for kind in self.kinds if kind in mechanisms), issues)

    def run(self, steps: _Steps, fixed: Fixed) -> None:
        """Execute a list; `fixed` are the values of the loops that are executed iteration by iteration."""
        for step in steps:
            if isinstance(step, _Access):
                self._access(step, fixed)
            elif isinstance(step, Commit):
                self.queues[step.mechanism].commit()
            elif isinstance(step, _Loop):
                for value in _replayed_values(step.loop, self.counts):
                    self.run(step.body, {**fixed, step.loop.var.name: value})
            elif isinstance(step, Barrier):
                self.passed.append((step, {kind: (len(one.groups), one.waited) for kind, one in self.queues.items()}))
            elif isinstance(step, Wait):
                queue = self.queues[step.mechanism]
                queue.waited = max(queue.waited, len(queue.groups) - step.groups)
            else:
                for child in step:
                    self.begin(self.counts)
                    self.run(child, fixed)

    def _access(self, access: _Access, fixed: Fixed) -> None:
        """For each mechanism, require a wait for the newest group that the access conflicts with, unless it is known to be complete."""
        touch, places = access.site.touch, self._touched(access.site, fixed)
        for mechanism in access.conflicts:
            queue = self.queues[mechanism]
            # Newest first: groups complete in order, and the wait for one is a wait for all before it.
            for number in range(len(queue.groups) - 1, queue.complete - 1, -1):
                if queue.groups[number].places & places:
                    self._require(mechanism, number, touch, places)
                    break
        if access.issues is not None:
            self.queues[access.issues].open.add(touch, places)

    def _require(self, mechanism: Mechanism, number: int, touch: Touch, places: Places) -> None:
        """Require that group `number` is complete at the last barrier of the widest scope after its commit.

        Only that barrier certainly orders the access: a barrier of a narrower scope does not cover copies by other threads.
        """
        queue = self.queues[mechanism]
        counts = [(barrier, *passed[mechanism]) for barrier, passed in self.passed]
        after = [(barrier, count - 1 - number, waited > number) for barrier, count, waited in counts if count > number]
        if not after:
            if self.kernel.effects[Unchecked].reasons:
                return
            what = mechanism.in_flight
            raise SynchronizationError(
                f"{touch.access.buffer} is accessed while {what} it are in flight, without a barrier in between",
                at=touch.access.origin,
            )
        widest = max((barrier.scope for barrier, *_ in after), key=_threads)
        after = [one for one in after if one[0].scope == widest]
        if not any(waited or self._is_required(barrier, mechanism, groups) for barrier, groups, waited in after):
            barrier, groups, _ = after[-1]
            required = self.required.setdefault(id(barrier), {}).setdefault(mechanism, _Required(groups))
            required.groups = min(required.groups, groups)
            for group in queue.groups[queue.complete : number + 1]:
                required.buffers |= group.buffers
        for barrier, *_ in after[-1:]:
            if mechanism in self.required.get(id(barrier), {}):
                self.required[id(barrier)][mechanism].note(queue.groups[number], touch, places)
        # After a narrower barrier only its own threads know that the group is complete; other threads that access the data require their
        # own wait.
        if widest.threads is None or widest.threads >= self.kernel.workers:
            queue.complete = number + 1

    def _is_required(self, barrier: Barrier, mechanism: Mechanism, groups: int) -> bool:
        """Whether a barrier already waits for at least as many groups."""
        required = self.required.get(id(barrier), {}).get(mechanism)
        return required is not None and required.groups <= groups

    # ------------------------------------------------------------------------------------------ places

    def _touched(self, site: _Site, fixed: Fixed) -> Places:
        """The places in shared memory that a statement accesses in one iteration of the executed loops."""
        values = {name: value for name, value in fixed.items() if name in site.needed}
        if not all(compiled(test)(values) for test in site.tests):
            return 0
        # Iterations with the same addresses share an entry: one table per stage, not per iteration.
        at = tuple((name, value % site.periods[name] if name in site.periods else value) for name, value in values.items())
        memo = (id(site), at)
        if memo not in self._places:
            self._places[memo] = self._at(site, dict(at))
        return self._places[memo]

    def _at(self, site: _Site, values: Fixed) -> Places:
        """The places accessed at given loop values: a part of a table over the loops that determine only addresses."""
        fixed = {name: value for name, value in values.items() if name not in site.periods}
        memo = (id(site), tuple(fixed.items()))
        if memo not in self._tables:
            self._tables[memo] = self.graph.touches.places(site.untested, self.granule, fixed)
        grid, places, mask = self._tables[memo]
        part = tuple(values[name] if name in site.periods and name in values else slice(None) for name in grid.axes)
        return _bits(places[part] if mask is None else places[part][mask[part]])

    def _site(self, touch: Touch) -> _Site:
        replayed = {loop.var.name: loop for loop in touch.loops if self._is_replayed(loop)}
        conditions = conjuncts(touch.statement.active)
        tests = tuple(condition for condition in conditions if condition.variables() and _names(condition.variables()) <= replayed.keys())
        others = tuple(condition for condition in conditions if condition not in tests)
        tested = {var.name for test in others for var in test.variables()}
        untested = evolve(touch, statement=evolve(touch.statement, active=all_of(others)))
        periods = {
            name: period for name, loop in replayed.items() if name not in tested and (period := loop.period or constant(loop.extent))
        }
        return _Site(touch, untested, tests, _names(self.graph.touches.needed(touch)) & replayed.keys(), periods)

    def _is_replayed(self, loop: For) -> bool:
        """Whether its iterations matter: it contains copies, commits or barriers."""
        if id(loop) not in self._replayed:
            self._replayed[id(loop)] = _is_replayed(loop)
        return self._replayed[id(loop)]


def _names(variables: frozenset[Var]) -> frozenset[str]:
    return frozenset(var.name for var in variables)


def _bits(places: np.ndarray[Any, Any]) -> Places:
    """The set of some numbers, one bit for each, the same in all sets."""
    if not places.size:
        return 0
    table = np.zeros(int(places.max()) + 1, dtype=np.uint8)
    table[places.ravel()] = 1
    return int.from_bytes(np.packbits(table).tobytes(), "little")


def _is_replayed(loop: For) -> bool:
    """Whether its iterations matter: it contains copies, commits or barriers."""
    return any(
        isinstance(stmt, (Commit, Barrier, Wait)) or (isinstance(stmt, Exec) and stmt.asynchronous) for stmt in statements(loop.body)
    )


def _threads(scope: Scope) -> float:
    """The number of threads of a scope."""
    return math.inf if scope.threads is None else scope.threads


def _all_counts(kernel: Kernel) -> Iterator[Mapping[Expr, int]]:
    """For the executed loops of unknown extent, all combinations of few iterations; loops with equal extents have equal counts."""
    longest: dict[Expr, int] = {}
    for loop in statements(kernel.body):
        if isinstance(loop, For) and constant(loop.extent) is None and _is_replayed(loop):
            longest[loop.extent] = max(longest.get(loop.extent, 0), _steady(loop))
    ranges = [range(max(extent.low, 0), min(max(extent.low, 0) + most, extent.high) + 1) for extent, most in longest.items()]
    for counts in itertools.product(*ranges):
        yield dict(zip(longest, counts, strict=True))


def _steady(loop: For) -> int:
    """The number of iterations after which a loop is periodic."""
    return 2 * _period(loop) + 2


def _period(loop: For) -> int:
    """The number of iterations after which addresses and groups repeat."""
    return math.lcm(loop.period or 1, loop.step)


def _replayed_values(loop: For, counts: Mapping[Expr, int]) -> list[int]:
    """The first iterations, and the last ones at the same position of the period."""
    count, period, length = counts.get(loop.extent, constant(loop.extent)), _period(loop), _steady(loop)
    assert count is not None
    if count <= length + 2 * period:
        return list(loop.values(count))
    skipped = (count - length - period) // period * period
    return [one for one in (*range(length), *range(length + skipped, count)) if one % loop.step == loop.first]
