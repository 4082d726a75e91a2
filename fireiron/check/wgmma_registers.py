"""Check accesses to the registers of wgmma instructions in flight. Until the wait, only wgmma may access the registers that they write, no
statement may write the registers that they read, and a wgmma.fence must precede them.

Warpgroup MMAs run asynchronously to their threads (wgmma, PTX ISA 9.7.15.5). The check follows the program of one thread. All iterations of
a loop commit and wait in the same way. So a loop is followed for as many iterations as a group may stay in flight, and two more. After a
loop that may have no iteration, and after roles, an MMA counts as in flight, or unfenced, if it is so on any path.

The first MMA of a warpgroup needs a fence too, whether or not its registers were accessed before (`wgmma.fence`, PTX ISA 9.7.15.7.1): the
initial registers count as accessed.
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
    """An error for each register access that races with an MMA in flight."""
    body = access_trace.kernel.body
    if not any(isinstance(one, Exec) and one.mechanism.in_registers for one in statements(body)):
        return ()
    run = _Execution(access_trace)
    run.follow(body)
    run.end()
    return tuple(run.findings.values())


@attrs.define
class _MmaRegisters:
    """The registers of MMAs: those that they write, and those that they only read."""

    written: set[str] = attrs.field(factory=set)
    read: set[str] = attrs.field(factory=set)

    def add(self, written: set[str], read: set[str]) -> None:
        """Add the registers of another MMA."""
        self.written |= written
        self.read |= read

    def joined(self, other: _MmaRegisters) -> _MmaRegisters:
        """The registers of both."""
        return _MmaRegisters(self.written | other.written, self.read | other.read)


@attrs.define
class _State:
    """The state of a thread: `groups` are the registers of each group in flight, oldest first, `uncommitted` those not committed yet,
    `accessed` those that other statements accessed since the last fence; `fenced` records whether there was a fence.
    """

    uncommitted: _MmaRegisters = attrs.field(factory=_MmaRegisters)
    groups: list[_MmaRegisters] = attrs.field(factory=list)
    accessed: set[str] = attrs.field(factory=set)
    fenced: bool = False

    def copy(self) -> _State:
        """A copy, to continue from."""
        return _State(
            self.uncommitted.joined(_MmaRegisters()), [one.joined(_MmaRegisters()) for one in self.groups], set(self.accessed), self.fenced
        )

    def joined(self, other: _State) -> _State:
        """The state after either of two paths: groups as young as on either path, and a fence only if both have one."""
        pairs = itertools.zip_longest(reversed(self.groups), reversed(other.groups), fillvalue=_MmaRegisters())
        groups = [one.joined(another) for one, another in pairs][::-1]
        return _State(self.uncommitted.joined(other.uncommitted), groups, self.accessed | other.accessed, self.fenced and other.fenced)


class _Execution:
    """The execution of a thread."""

    def __init__(self, access_trace: AccessTrace) -> None:
        self.private = {buffer.name for buffer in access_trace.kernel.buffers if buffer.memory.private}
        waits = [one.groups for one in statements(access_trace.kernel.body) if isinstance(one, Wait) and one.mechanism.in_registers]
        self.max_iterations = max(waits, default=0) + 2
        self.state = _State()
        self.findings: dict[tuple[int, str], Finding] = {}

    def follow(self, body: Sequence[Stmt]) -> None:
        """Execute a list."""
        for statement in body:
            match statement:
                case For():
                    self._loop(statement)
                case Exec() if statement.mechanism.in_registers:
                    self._mma(statement)
                case Exec():
                    written, read = self._registers(statement)
                    for group in (self.state.uncommitted, *self.state.groups):
                        self._refuse(statement, group.written & (written | read) | group.read & written, "is used by an MMA in flight")
                    self.state.accessed |= written | read
                case Fence(kind=FenceKind.WGMMA_REGISTERS):
                    self._pin(statement.pinned_registers, "a fence")
                    self.state.accessed.clear()
                    self.state.fenced = True
                case Commit() if statement.mechanism.in_registers:
                    self.state.groups.append(self.state.uncommitted)
                    self.state.uncommitted = _MmaRegisters()
                case Wait(groups=groups) if statement.mechanism.in_registers:
                    del self.state.groups[: max(len(self.state.groups) - groups, 0)]
                    self._pin(statement.pinned_registers, "a wait")
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
                    raise unknown(statement, "the check of wgmma registers")

    def _loop(self, loop: For) -> None:
        self._pin(loop.pinned_registers, f"the loop {loop.var.name}")
        count = constant(loop.extent)
        before = self.state.copy() if count is None and loop.extent.low < 1 else None
        for _ in range(self.max_iterations if count is None else min(count, self.max_iterations)):
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

    def _mma(self, statement: Exec) -> None:
        written, read = self._registers(statement)
        self._refuse(statement, (written | read) & self.state.accessed, "was accessed since the last wgmma.fence")
        if not self.state.fenced:
            self._refuse(statement, written, "belongs to the first MMA, which no wgmma.fence precedes")
        for group in (self.state.uncommitted, *self.state.groups):
            # MMAs accumulate into the same registers in order. Between accumulators and A operands in registers there is no order.
            self._refuse(statement, group.written & read | group.read & written, "is used by an MMA in flight")
        self.state.uncommitted.add(written, read)

    def end(self) -> None:
        """Report MMAs that no commit adds to a group, so that no wait can cover them."""
        for name in sorted(self.state.uncommitted.written | self.state.uncommitted.read):
            self._add(name, None, f"{name}: an MMA is never committed, so no wait covers it")

    def _pin(self, names: Sequence[str], what: str) -> None:
        """Pinning registers accesses them."""
        for name in names:
            if any(name in group.written for group in (self.state.uncommitted, *self.state.groups)):
                self._add(name, None, f"{name}: {what} pins it, but it is used by an MMA in flight")

    def _registers(self, statement: Exec) -> tuple[set[str], set[str]]:
        """The registers that a statement writes, and those that it only reads."""
        own = [access for access in statement.accesses if access.buffer in self.private]
        written = {access.buffer for access in own if access.write}
        return written, {access.buffer for access in own} - written

    def _refuse(self, statement: Exec, names: set[str], why: str) -> None:
        for name in sorted(names):
            self._add(name, statement, f"{name}: {statement.instruction.name} {statement.spec} accesses it, but it {why}")

    def _add(self, name: str, statement: Exec | None, message: str) -> None:
        key = (id(statement), name)
        self.findings.setdefault(key, Finding("race", "error", name, message, None if statement is None else statement.origin))
