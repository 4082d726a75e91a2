"""`wait`: before which barriers a thread waits for its asynchronous copies, and how many groups may still be under way.

The barriers stand where `synchronize` put them; a copy that is under way needs a wait at one of them, before its data is
touched. The program is followed with actual iteration numbers (the first ones, and the last), groups counted as they are
committed: a touch of a group's data asks the last barrier behind its commit to wait for it, and each barrier takes the
smallest number asked of it. Groups complete in order, so a wait for one is a wait for all before it, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

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
    Scope,
    Stmt,
    Wait,
    execs,
    rewritten,
    statements,
    unknown,
)
from fireiron.lower.touches import Touch, Touches
from fireiron.values.expr import Expr, Var, compiled, conjuncts, constant
from fireiron.values.machine import SH

Fixed = Mapping[str, int]
Places = int
"""A set of places in shared memory, as the bits of an integer."""


def wait(kernel: Kernel) -> Kernel:
    """The kernel with the waits that its asynchronous copies need."""
    if not any(statement.asynchronous for statement, _ in execs(kernel.body)):
        return kernel
    replay = _Replay(kernel)
    replay.run(kernel.body, (), {})

    def waited(statement: Stmt) -> tuple[Stmt, ...]:
        asked = replay.asked.get(id(statement))  # by identity: equal barriers at two places wait for different copies
        return (statement,) if asked is None else (asked.wait(), statement)

    return attrs.evolve(kernel, body=rewritten(kernel.body, waited))


@attrs.frozen(eq=False)
class _Copy:
    """An asynchronous copy of some iteration: the buffer it writes, and where."""

    buffer: str
    places: Places


@attrs.define(eq=False)
class _Asked:
    """What is asked of a barrier: how many groups may be under way behind it, and the buffers that arrive with the others."""

    groups: int
    arriving: dict[str, None] = attrs.field(factory=dict)

    def wait(self) -> Wait:
        names = list(self.arriving)
        return Wait(self.groups, f"{', '.join(names)} {'has' if len(names) == 1 else 'have'} arrived")


class _Replay:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.touches = Touches(kernel)
        self.open: list[_Copy] = []
        self.groups: list[list[_Copy]] = []
        self.complete = 0
        self.near: dict[Scope, set[tuple[int, str]]] = {}
        self.passed: list[tuple[Barrier, int]] = []
        self.asked: dict[int, _Asked] = {}
        self._touches: dict[int, tuple[Touch, ...]] = {}
        self._places: dict[Any, Places] = {}
        self._tests: dict[int, tuple[tuple[Expr, ...], frozenset[str]]] = {}

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
                case Let() | Comment():
                    pass
                case _:
                    raise unknown(statement, "wait")

    def _exec(self, statement: Exec, loops: tuple[For, ...], fixed: Fixed) -> None:
        if id(statement) not in self._touches:
            found = self.touches.of(statement, loops)
            self._touches[id(statement)] = tuple(one for one in found if self.kernel.buffer(one.access.buffer).memory == SH)
        for touch in self._touches[id(statement)]:
            places = self._touched(touch, fixed)
            self._meet(touch, places)
            if touch.under_way:
                self.open.append(_Copy(touch.access.buffer, places))

    def _meet(self, touch: Touch, places: Places) -> None:
        """The newest group that writes where the touch is, and that is not known to be complete, is asked for."""
        arrived = set().union(*self.near.values()) if self.near else set()
        for number in range(len(self.groups) - 1, self.complete - 1, -1):
            if (number, touch.access.buffer) not in arrived and any(copy.places & places for copy in self.groups[number]):
                self._ask(number, touch)
                return

    def _ask(self, number: int, touch: Touch) -> None:
        """Group `number` must be complete at the last barrier behind its commit, a barrier of the block if there is one."""
        behind = [(barrier, count) for barrier, count in self.passed if count > number]
        behind = [one for one in behind if one[0].scope == BLOCK_SCOPE] or behind
        if not behind:
            if self.kernel.unchecked:
                return
            raise SynchronizationError(
                f"{touch.access.buffer} is touched while copies to it are under way, and no barrier stands between", at=touch.access.origin
            )
        barrier, count = behind[-1]
        groups = count - 1 - number
        asked = self.asked.setdefault(id(barrier), _Asked(groups))
        asked.groups = min(asked.groups, groups)
        asked.arriving |= dict.fromkeys(copy.buffer for group in self.groups[self.complete : number + 1] for copy in group)
        if barrier.scope == BLOCK_SCOPE:
            self.complete = number + 1
        else:  # what others than this group of threads copied has arrived for them, and is not yet visible here
            known = self.near.setdefault(barrier.scope, set())
            known |= {(one, touch.access.buffer) for one in range(self.complete, number + 1)}

    # ------------------------------------------------------------------------------------------ places

    def _touched(self, touch: Touch, fixed: Fixed) -> Places:
        """Where a statement touches shared memory in one iteration of the loops that are followed."""
        tests, needed = self._needed(touch)
        values = {name: value for name, value in fixed.items() if name in needed}
        turns = {loop.var.name: loop.period for loop in touch.loops if loop.period}
        if not all(compiled(test)(values) for test in tests):
            return 0
        free = needed - {var.name for test in self._other_tests(touch, tests) for var in test.variables()}
        memo = (
            id(touch),
            tuple((name, value % turns[name] if name in turns and name in free else value) for name, value in values.items()),
        )
        if memo not in self._places:
            _, places, mask = self.touches.places(touch, values)
            self._places[memo] = _bits(places[mask] if not mask.all() else places)
        return self._places[memo]

    def _needed(self, touch: Touch) -> tuple[tuple[Expr, ...], frozenset[str]]:
        """The conditions that depend on followed loops alone, and the names of all loops that matter to the touch."""
        if id(touch) not in self._tests:
            loops = {loop.var.name for loop in touch.loops if _is_followed(loop)}
            tests = tuple(one for one in conjuncts(touch.statement.active) if one.variables() and _names(one.variables()) <= loops)
            self._tests[id(touch)] = tests, _names(self.touches.needed(touch)) & frozenset(loops)
        return self._tests[id(touch)]

    def _other_tests(self, touch: Touch, tests: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(one for one in conjuncts(touch.statement.active) if one not in tests)


def _names(variables: frozenset[Var]) -> frozenset[str]:
    return frozenset(var.name for var in variables)


def _bits(places: np.ndarray[Any, Any]) -> Places:
    """The set of some numbers."""
    if not places.size:
        return 0
    table = np.zeros(int(places.max()) + 1, dtype=np.uint8)
    table[places.ravel()] = 1
    return int.from_bytes(np.packbits(table, bitorder="little").tobytes(), "little")


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
