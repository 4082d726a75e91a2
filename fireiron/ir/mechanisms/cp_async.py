"""Copies from global to shared memory that a thread waits for by groups (PTX ISA, "Data Movement: cp.async")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from fireiron.ir.mechanism import Mechanism, Order
from fireiron.ir.text import Function, Item, Noted, Printer

if TYPE_CHECKING:
    from fireiron.ir.statement import Exec

COMMIT = Function(
    "cp_async_commit",
    (),
    ('asm volatile("cp.async.commit_group;" ::: "memory");',),
    "what this thread copied since its last commit becomes a group",
)

WAIT = Function(
    "cp_async_wait",
    (),
    ('asm volatile("cp.async.wait_group %0;" :: "n"(groups) : "memory");',),
    "all but the last so many groups of this thread's copies have arrived",
    "int groups",
)


class CpAsyncGroups(Mechanism):
    """A copy is there at a wait of the thread that issued it, for the group in which that thread committed it."""

    name: ClassVar[str] = "group"
    order: ClassVar[Order] = Order.GROUPS
    writes_late: ClassVar[bool] = True
    rank: ClassVar[int] = 1
    what: ClassVar[str] = "copies"
    instruction: ClassVar[str] = "cp.async"
    done: ClassVar[str] = "arrived"
    under_way: ClassVar[str] = "copies to"

    def commit(self, printer: Printer) -> Sequence[Item]:
        return [f"{printer.function(COMMIT)}();"]

    def wait(self, printer: Printer, groups: int, reason: str, holds: Sequence[str], of: Exec) -> Sequence[Item]:
        line = f"{printer.function(WAIT)}<{groups}>();"
        return [Noted(line, reason) if reason else line]


MECHANISM = CP_ASYNC_GROUPS = CpAsyncGroups()
