"""`wait`: before which barriers a thread waits for its asynchronous copies, and how many groups may still be under way.

The barriers stand where `synchronize` put them; a copy that is under way needs a wait at one of them, before its data is
touched. The program is followed with actual iteration numbers (the first ones, and the last), groups counted as they are
committed: a touch of a group's data asks the last barrier behind its commit to wait for it, and each barrier takes the
smallest number asked of it. Groups complete in order, so a wait for one is a wait for all before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from fireiron.errors import SynchronizationError
from fireiron.ir import BLOCK_SCOPE, Access, Barrier, Commit, Exec, For, Kernel, Stmt, Wait, execs, statements
from fireiron.lower.footprint import Array, active_mask, evaluate, grid_of, needed_variables
from fireiron.values.expr import constant
from fireiron.values.machine import SH

Fixed = Mapping[str, int]


def wait(kernel: Kernel) -> Kernel:
    """The kernel with the waits that its asynchronous copies need."""
    if not any(statement.asynchronous for statement, _ in execs(kernel.body)):
        return kernel
    replay = _Replay(kernel)
    replay.run(kernel.body, (), {})
    return attrs.evolve(kernel, body=_with_waits(kernel.body, replay.needed))


def _with_waits(body: tuple[Stmt, ...], needed: Mapping[int, tuple[int, str]]) -> tuple[Stmt, ...]:
    result: list[Stmt] = []
    for statement in body:
        if id(statement) in needed:
            groups, name = needed[id(statement)]
            result.append(Wait(groups, f"{name} has arrived"))
        if isinstance(statement, For):
            statement = attrs.evolve(statement, body=_with_waits(statement.body, needed))
        result.append(statement)
    return tuple(result)


@attrs.frozen(eq=False)
class _Copy:
    """An asynchronous copy of some iteration."""

    statement: Exec
    access: Access
    keys: Array


class _Replay:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.granule = min(buffer.dtype.bytes for buffer in kernel.buffers if buffer.memory == SH)
        self.open: list[_Copy] = []
        self.groups: list[list[_Copy]] = []
        self.complete = 0
        self.of_warps: set[tuple[int, str]] = set()
        self.passed: list[tuple[Barrier, int]] = []
        self.needed: dict[int, tuple[int, str]] = {}
        self.memo: dict[Any, Array] = {}

    def run(self, body: tuple[Stmt, ...], loops: tuple[For, ...], fixed: Fixed) -> None:
        """Follow a list; `fixed` are the values of loops that are followed one iteration after the other."""
        for statement in body:
            if isinstance(statement, Exec):
                self._exec(statement, loops, fixed)
            elif isinstance(statement, Commit):
                self.groups.append(self.open)
                self.open = []
            elif isinstance(statement, Barrier):
                self.passed.append((statement, len(self.groups)))
            elif isinstance(statement, For) and _is_followed(statement):
                for value in _followed_values(statement):
                    self.run(statement.body, (*loops, statement), {**fixed, statement.var.name: value})
            elif isinstance(statement, For):
                self.run(statement.body, (*loops, statement), fixed)

    def _exec(self, statement: Exec, loops: tuple[For, ...], fixed: Fixed) -> None:
        for access in statement.accesses:
            if self.kernel.buffer(access.buffer).memory != SH:
                continue
            keys = self._keys(statement, loops, access, fixed)
            self._meet(access, keys)
            if statement.asynchronous and access.write:
                self.open.append(_Copy(statement, access, keys))

    def _meet(self, access: Access, keys: Array) -> None:
        for number in range(len(self.groups) - 1, self.complete - 1, -1):
            if (number, access.buffer) not in self.of_warps and any(_overlap(copy.keys, keys) for copy in self.groups[number]):
                self._ask(number, access)
                return

    def _ask(self, number: int, access: Access) -> None:
        """Group `number` must be complete at the last barrier behind its commit."""
        behind = [(barrier, count) for barrier, count in self.passed if count > number]
        behind = [one for one in behind if one[0].scope == BLOCK_SCOPE] or behind
        if not behind:
            if self.kernel.unchecked:
                return
            raise SynchronizationError(
                f"{access.buffer} is touched while copies to it are under way, and no barrier stands between", at=access.origin
            )
        barrier, count = behind[-1]
        groups = count - 1 - number
        known = self.needed.get(id(barrier), (groups, access.buffer))
        self.needed[id(barrier)] = min(known, (groups, access.buffer))
        if barrier.scope == BLOCK_SCOPE:
            self.complete = number + 1
        else:  # what other warps copied has arrived for them, and is not yet visible here
            self.of_warps |= {(one, access.buffer) for one in range(self.complete, number + 1)}

    def _keys(self, statement: Exec, loops: tuple[For, ...], access: Access, fixed: Fixed) -> Array:
        """The bytes, in units of the smallest element, that a statement touches in one iteration."""
        needed = needed_variables(self.kernel, statement, access)
        near = {var.name for var in needed}
        fixed = {name: value for name, value in fixed.items() if name in near}
        values = {var: fixed[var.name] for var in needed if var.name in fixed}
        memo = (id(statement), id(access), *(part.substitute(values) for part in (*access.base, access.copy, statement.active)))
        if memo not in self.memo:
            grid = grid_of(self.kernel, loops, needed, fixed)
            mask = active_mask(statement, grid)
            buffer = self.kernel.buffer(access.buffer)
            parts = [evaluate(buffer.address(access, offset), grid)[mask] for offset in access.elements()]
            starts = np.unique(np.concatenate(parts)) * buffer.dtype.bytes + buffer.offset
            self.memo[memo] = (starts[:, None] // self.granule + np.arange(buffer.dtype.bytes // self.granule)).ravel()
        return self.memo[memo]


def _overlap(one: Array, other: Array) -> bool:
    if not one.size or not other.size or one[0] > other[-1] or other[0] > one[-1]:
        return False
    return bool(np.intersect1d(one, other, assume_unique=True).size)


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
