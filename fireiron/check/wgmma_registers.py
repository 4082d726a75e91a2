"""Registers of products under way: before they are waited for nothing but products touches those that they write, and nothing writes
those that they read; and a fence stands in front of products.

A warpgroup's products run beside its threads (wgmma, PTX ISA 9.7.15.5). The program of one thread is followed; loops run often enough
that every group that an iteration leaves behind is met by the next ones, as all iterations commit and wait alike. Behind a loop that may
have no turn, and behind roles, all is under way, and unfenced, that is so on any of the ways there.

A fence stands in front of the first product of a warpgroup too, whether or not anything touched its registers before
(`wgmma.fence`, PTX ISA 9.7.15.7.1): those that a kernel begins with count as touched.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import attrs

from fireiron.check.access_trace import AccessTrace
from fireiron.check.finding import Finding
from fireiron.ir import (
    Acquire,
    Barrier,
    ClaimTile,
    ClusterBarrier,
    Comment,
    Commit,
    Exec,
    ExitIfDone,
    Fence,
    FenceKind,
    For,
    GridDepControl,
    IfAnyLane,
    Let,
    Release,
    Roles,
    Stmt,
    Wait,
    statements,
    unknown,
)
from fireiron.values.expr import constant


def check_wgmma_registers(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """Every touch of registers that races with a product; an error each."""
    body = access_trace.kernel.body
    if not any(isinstance(one, Exec) and one.mechanism.in_registers for one in statements(body)):
        return ()
    run = _Run(access_trace)
    run.follow(body)
    run.end()
    return tuple(run.findings.values())


@attrs.define
class _Registers:
    """The registers of products: those that they write, and those that they only read."""

    written: set[str] = attrs.field(factory=set)
    read: set[str] = attrs.field(factory=set)

    def add(self, written: set[str], read: set[str]) -> None:
        """Those of a further product."""
        self.written |= written
        self.read |= read

    def joined(self, other: _Registers) -> _Registers:
        """Those of both."""
        return _Registers(self.written | other.written, self.read | other.read)


@attrs.define
class _State:
    """Where a thread is: `groups` are the registers of each group under way, oldest first, `open` those not committed yet, `touched` those
    that other work has touched since the last fence; `fenced` says whether there was one.
    """

    open: _Registers = attrs.field(factory=_Registers)
    groups: list[_Registers] = attrs.field(factory=list)
    touched: set[str] = attrs.field(factory=set)
    fenced: bool = False

    def copy(self) -> _State:
        """The same, to go on from."""
        return _State(self.open.joined(_Registers()), [one.joined(_Registers()) for one in self.groups], set(self.touched), self.fenced)

    def joined(self, other: _State) -> _State:
        """What holds on one of two ways: groups as young as on either, and no fence that one of them lacks."""
        pairs = itertools.zip_longest(reversed(self.groups), reversed(other.groups), fillvalue=_Registers())
        groups = [one.joined(another) for one, another in pairs][::-1]
        return _State(self.open.joined(other.open), groups, self.touched | other.touched, self.fenced and other.fenced)


class _Run:
    """A thread on its way."""

    def __init__(self, access_trace: AccessTrace) -> None:
        self.private = {buffer.name for buffer in access_trace.kernel.buffers if buffer.memory.private}
        waits = [one.groups for one in statements(access_trace.kernel.body) if isinstance(one, Wait) and one.mechanism.in_registers]
        self.turns = max(waits, default=0) + 2
        self.state = _State()
        self.findings: dict[tuple[int, str], Finding] = {}

    def follow(self, body: Sequence[Stmt]) -> None:
        """Follow a list."""
        for statement in body:
            match statement:
                case For():
                    self._loop(statement)
                case Exec() if statement.mechanism.in_registers:
                    self._product(statement)
                case Exec():
                    written, read = self._registers(statement)
                    for one in (self.state.open, *self.state.groups):
                        self._refuse(statement, one.written & (written | read) | one.read & written, "is used by a product under way")
                    self.state.touched |= written | read
                case Fence(kind=FenceKind.WGMMA_REGISTERS):
                    self.state.touched.clear()
                    self.state.fenced = True
                case Commit() if statement.mechanism.in_registers:
                    self.state.groups.append(self.state.open)
                    self.state.open = _Registers()
                case Wait(groups=groups) if statement.mechanism.in_registers:
                    del self.state.groups[: max(len(self.state.groups) - groups, 0)]
                case Roles():
                    self._roles(statement)
                case IfAnyLane():
                    self.follow(statement.body)
                case (
                    Let()
                    | Comment()
                    | Barrier()
                    | ClusterBarrier()
                    | Fence()
                    | Commit()
                    | Wait()
                    | Acquire()
                    | Release()
                    | GridDepControl()
                ):
                    pass
                case ClaimTile() | ExitIfDone():
                    pass
                case _:
                    raise unknown(statement, "the check of products")

    def _loop(self, loop: For) -> None:
        count = constant(loop.extent)
        before = self.state.copy() if count is None and loop.extent.low < 1 else None
        for _ in range(self.turns if count is None else min(count, self.turns)):
            self.follow(loop.body)
        if before is not None:
            self.state = self.state.joined(before)

    def _roles(self, roles: Roles) -> None:
        before, ends = self.state, []
        for child in roles.children:
            self.state = before.copy()
            self.follow(child)
            ends.append(self.state)
        self.state = functools.reduce(_State.joined, ends)

    def _product(self, statement: Exec) -> None:
        written, read = self._registers(statement)
        self._refuse(statement, (written | read) & self.state.touched, "was touched since the last fence of registers")
        if not self.state.fenced:
            self._refuse(statement, written, "is of a first product, with no fence of registers (wgmma.fence) before it")
        for one in (self.state.open, *self.state.groups):
            # Products add to the same registers one behind the other; a factor is another matter.
            self._refuse(statement, one.written & read | one.read & written, "is used by a product under way")
        self.state.open.add(written, read)

    def end(self) -> None:
        """A product that no commit makes a group cannot be waited for."""
        for name in sorted(self.state.open.written | self.state.open.read):
            self._add(name, None, f"{name}: a product is never committed, so nothing can wait for it")

    def _registers(self, statement: Exec) -> tuple[set[str], set[str]]:
        """The registers that a statement writes, and those that it only reads."""
        mine = [access for access in statement.accesses if access.buffer in self.private]
        written = {access.buffer for access in mine if access.write}
        return written, {access.buffer for access in mine} - written

    def _refuse(self, statement: Exec, names: set[str], why: str) -> None:
        for name in sorted(names):
            self._add(name, statement, f"{name}: {statement.instruction.name} {statement.spec} touches it, and it {why}")

    def _add(self, name: str, statement: Exec | None, message: str) -> None:
        key = (id(statement), name)
        self.findings.setdefault(key, Finding("race", "error", name, message, None if statement is None else statement.origin))
