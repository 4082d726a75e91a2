"""`wait`: before which barriers a thread waits for its asynchronous copies, and how many groups may still be under way.

The barriers stand where `synchronize` put them; a copy that is under way needs a wait at one of them, before its data is
touched. The program is followed with actual iteration numbers (the first ones, and the last), groups counted as they are
committed: a touch of a group's data asks the last barrier behind its commit to wait for it, and each barrier takes the
smallest number asked of it. Groups complete in order, so a wait for one is a wait for all before it.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from fireiron.errors import SynchronizationError
from fireiron.ir import (
    BLOCK_SCOPE,
    Barrier,
    Comment,
    Commit,
    Exec,
    For,
    Kernel,
    Let,
    Stmt,
    Wait,
    execs,
    rewritten,
    statements,
    unknown,
)
from fireiron.lower.footprint import named
from fireiron.lower.touches import Touch, Touches
from fireiron.values.expr import Expr, compiled, conjuncts, constant
from fireiron.values.machine import SH

Fixed = Mapping[str, int]


def wait(kernel: Kernel) -> Kernel:
    """The kernel with the waits that its asynchronous copies need.

    Raises:
        SynchronizationError: data of a copy is touched, and no barrier stands between.
        VerificationError: a statement of unknown kind.
    """
    if not any(statement.asynchronous for statement, _ in execs(kernel.body)):
        return kernel
    replay = _Replay(kernel)
    replay.run(kernel.body, (), {})

    def before_barriers(statement: Stmt) -> tuple[Stmt, ...]:
        asked = replay.asked.get(id(statement))
        return (statement,) if asked is None else (Wait(asked.groups, asked.reason), statement)

    return attrs.evolve(kernel, body=rewritten(kernel.body, before_barriers))


@attrs.frozen(eq=False)
class _Copy:
    """An asynchronous copy of some iteration, with the places that it fills."""

    buffer: str
    region: int
    places: int


@attrs.define
class _Asked:
    """What is asked of a barrier: how many groups may be under way behind it, and the buffers that its wait brings."""

    groups: int
    buffers: dict[str, None] = attrs.field(factory=dict)

    @property
    def reason(self) -> str:
        """For the reader of the code."""
        return f"{', '.join(self.buffers)} {'has' if len(self.buffers) == 1 else 'have'} arrived"


class _Places:
    """The places of touches at iterations, each enumerated once: the same where guards hold and the place in the period is the same."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.touches = Touches(kernel, (BLOCK_SCOPE,))
        self.known: dict[tuple[int, tuple[tuple[str, int], ...]], int] = {}
        self.of_statement: dict[int, tuple[Touch, ...]] = {}
        self.guards: dict[int, tuple[tuple[Expr, ...], frozenset[str]]] = {}

    def of(self, statement: Exec, loops: tuple[For, ...]) -> tuple[Touch, ...]:
        """The touches of shared memory of a statement; the same objects each time."""
        if id(statement) not in self.of_statement:
            touches = self.touches.of(statement, loops)
            self.of_statement[id(statement)] = tuple(one for one in touches if self.kernel.buffer(one.access.buffer).memory == SH)
        return self.of_statement[id(statement)]

    def at(self, touch: Touch, fixed: Fixed) -> int:
        """The places that a touch covers at an iteration of the `fixed` loops."""
        alone, mixed = self._guards(touch, fixed)
        if not all(bool(compiled(condition)(fixed)) for condition in alone):
            return 0
        needed = {var.name for var in self.touches.needs(touch)}
        near = {name: value for name, value in fixed.items() if name in needed}
        periods = {loop.var.name: loop.period for loop in touch.loops if loop.period and loop.var.name not in mixed}
        key = (id(touch), tuple((name, value % periods[name] if name in periods else value) for name, value in near.items()))
        if key not in self.known:
            self.known[key] = self.touches.places(touch, near)
        return self.known[key]

    def _guards(self, touch: Touch, fixed: Fixed) -> tuple[tuple[Expr, ...], frozenset[str]]:
        """The conditions that the fixed loops decide alone, and the fixed loops that occur in others."""
        if id(touch) not in self.guards:
            table = named(self.kernel)
            conditions = conjuncts(touch.statement.active)
            alone = tuple(one for one in conditions if one.variables() and {var.name for var in one.variables()} <= set(fixed))
            others = (table.roots(one) for one in conditions if one not in alone)
            self.guards[id(touch)] = alone, frozenset(fixed) & frozenset().union(*others)
        return self.guards[id(touch)]


class _Replay:
    """The state of following a program: copies since the last commit, the groups, those complete, and the barriers passed."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.places = _Places(kernel)
        self.open: list[_Copy] = []
        self.groups: list[list[_Copy]] = []
        self.complete = 0
        self.of_warps: set[tuple[int, str]] = set()
        self.passed: list[tuple[Barrier, int]] = []
        self.asked: dict[int, _Asked] = {}

    def run(self, body: tuple[Stmt, ...], loops: tuple[For, ...], fixed: Fixed) -> None:
        """Follow a list; `fixed` are the values of loops that are followed one iteration after the other."""
        for statement in body:
            match statement:
                case Exec():
                    self._exec(statement, loops, fixed)
                case Commit():
                    self.groups.append(self.open)
                    self.open = []
                case Barrier():
                    self.passed.append((statement, len(self.groups)))
                case For() if _is_followed(statement):
                    for value in _followed_values(statement):
                        self.run(statement.body, (*loops, statement), {**fixed, statement.var.name: value})
                case For():
                    self.run(statement.body, (*loops, statement), fixed)
                case Comment() | Let():
                    pass
                case _:
                    raise unknown(statement, "wait")

    def _exec(self, statement: Exec, loops: tuple[For, ...], fixed: Fixed) -> None:
        for touch in self.places.of(statement, loops):
            region = self.places.touches.regions[touch.access.buffer][0]
            places = self.places.at(touch, fixed)
            self._meet(touch, region, places)
            if touch.under_way:
                self.open.append(_Copy(touch.access.buffer, region, places))

    def _meet(self, touch: Touch, region: int, places: int) -> None:
        for number in range(len(self.groups) - 1, self.complete - 1, -1):
            met = any(copy.region == region and copy.places & places for copy in self.groups[number])
            if met and (number, touch.access.buffer) not in self.of_warps:
                self._ask(number, touch)
                return

    def _ask(self, number: int, touch: Touch) -> None:
        """Group `number` must be complete at the last barrier behind its commit."""
        behind = [(barrier, count) for barrier, count in self.passed if count > number]
        behind = [one for one in behind if one[0].scope == BLOCK_SCOPE] or behind
        if not behind:
            if self.kernel.unchecked:
                return
            raise SynchronizationError(
                f"{touch.access.buffer} is touched while copies to it are under way, and no barrier stands between", at=touch.access.origin
            )
        barrier, count = behind[-1]
        asked = self.asked.setdefault(id(barrier), _Asked(count - 1 - number))
        asked.groups = min(asked.groups, count - 1 - number)
        asked.buffers |= {copy.buffer: None for group in self.groups[self.complete : number + 1] for copy in group if copy.places}
        if barrier.scope == BLOCK_SCOPE:
            self.complete = number + 1
        else:  # what other warps copied has arrived for them, and is not yet visible here
            self.of_warps |= {(one, touch.access.buffer) for one in range(self.complete, number + 1)}


def _is_followed(loop: For) -> bool:
    """Whether iterations matter: copies are issued, groups committed, or barriers passed in it."""
    return any(isinstance(one, (Commit, Barrier)) or (isinstance(one, Exec) and one.asynchronous) for one in statements(loop.body))


def _followed_values(loop: For) -> list[int]:
    """The first iterations, and, at the same place in the period, the last."""
    count, period = constant(loop.extent), loop.period or 1
    length = 2 * period + 2
    if count is None or count <= length + 2 * period:
        return list(range(length if count is None else count))
    skipped = (count - length - period) // period * period
    return [*range(length), *range(length + skipped, count)]
