"""Registers of products under way: before they are waited for nothing but products touches those that they write, and nothing writes
those that they read; and a fence stands in front of products.

A warpgroup's products run beside its threads (wgmma, PTX ISA 9.7.15.5). The program of one thread is followed; loops run often enough
that every group that an iteration leaves behind is met by the next ones, as all iterations commit and wait alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fireiron.check.finding import Finding
from fireiron.check.scene import Scene
from fireiron.ir import (
    Acquire,
    Barrier,
    Chain,
    ClusterBarrier,
    Comment,
    Commit,
    Completion,
    Exec,
    Fence,
    For,
    Leave,
    Let,
    NextTile,
    Reach,
    Release,
    Roles,
    Skip,
    Stmt,
    Wait,
    statements,
    unknown,
)
from fireiron.values.expr import constant

PRODUCT = Completion.PRODUCT


def check_products(scene: Scene) -> tuple[Finding, ...]:
    """Every touch of registers that races with a product; an error each."""
    body = scene.kernel.body
    if not any(isinstance(one, Exec) and one.completion is PRODUCT for one in statements(body)):
        return ()
    run = _Run(scene)
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


class _Run:
    """A thread on its way; `groups` are the registers of each group under way, oldest first, `open` those not committed yet."""

    def __init__(self, scene: Scene) -> None:
        self.private = {buffer.name for buffer in scene.kernel.buffers if buffer.memory.private}
        waits = [one.groups for one in statements(scene.kernel.body) if isinstance(one, Wait) and one.completion is PRODUCT]
        self.turns = max(waits, default=0) + 2
        self.open = _Registers()
        self.groups: list[_Registers] = []
        self.touched: set[str] = set()
        self.findings: dict[tuple[int, str], Finding] = {}

    def follow(self, body: Sequence[Stmt]) -> None:
        """Follow a list."""
        for statement in body:
            match statement:
                case For():
                    count = constant(statement.extent)
                    for _ in range(self.turns if count is None else min(count, self.turns)):
                        self.follow(statement.body)
                case Exec(completion=Completion.PRODUCT):
                    written, read = self._registers(statement)
                    self._refuse(statement, (written | read) & self.touched, "was touched since the last fence of registers")
                    for one in (self.open, *self.groups):
                        # Products add to the same registers one behind the other; a factor is another matter.
                        self._refuse(statement, one.written & read | one.read & written, "is used by a product under way")
                    self.open.add(written, read)
                case Exec():
                    written, read = self._registers(statement)
                    for one in (self.open, *self.groups):
                        self._refuse(statement, one.written & (written | read) | one.read & written, "is used by a product under way")
                    self.touched |= written | read
                case Fence(reach=Reach.REGISTERS):
                    self.touched.clear()
                case Commit(completion=Completion.PRODUCT):
                    self.groups.append(self.open)
                    self.open = _Registers()
                case Wait(completion=Completion.PRODUCT, groups=groups):
                    del self.groups[: max(len(self.groups) - groups, 0)]
                case Roles():
                    for child in statement.children:
                        self.open, self.groups, self.touched = _Registers(), [], set()
                        self.follow(child)
                case Skip():
                    self.follow(statement.body)
                case Let() | Comment() | Barrier() | ClusterBarrier() | Fence() | Commit() | Wait() | Acquire() | Release() | Chain():
                    pass
                case NextTile() | Leave():
                    pass
                case _:
                    raise unknown(statement, "the check of products")

    def end(self) -> None:
        """A product that no commit makes a group cannot be waited for."""
        for name in sorted(self.open.written | self.open.read):
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
