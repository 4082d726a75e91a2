"""Completion mechanisms: when what a statement does is done, who waits for it, and by which text.

A mechanism is a class with one instance, in a file of its own in `fireiron.ir.mechanisms`; an instruction names its own. Passes, checks and
the simulator ask its facts, never which one it is, so a new mechanism is a new file.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NoReturn

import attrs

from fireiron.errors import VerificationError
from fireiron.ir.text import Function, Item, Noted, Printer

if TYPE_CHECKING:
    from fireiron.ir.statement import Exec


class Order(enum.Enum):
    """How what is under way is told to be done: AT_ONCE: it never is under way. GROUPS: a thread commits what it issued as a group, and
    waits until at most so many of its last groups are under way; they are done in the order of their commits. COUNTED: a barrier of a
    ring's stage counts it: the bytes of what fills the stage, or, of a mechanism with deferred arrivals, these.
    """

    AT_ONCE = "at once"
    GROUPS = "groups"
    COUNTED = "counted"


@attrs.frozen(eq=False, repr=False, slots=False)
class Mechanism:
    """When what a statement does is done.

    Facts, of shared memory unless said otherwise: `reads_late`, `writes_late`: it may still read, write, when its thread goes on;
    `by_engine`: it reaches memory by the asynchronous proxy (PTX ISA, "Proxies"), not by loads and stores of the threads; `in_registers`:
    its result is in registers, which are not to be touched before it is done; `outlives`: the kernel waits for it at its end, as it reads
    memory that is given back there; `shared_wait`: the lanes of a warp issue it together, and all of them wait.

    Words: `what` it does, for whom it is under way (`unit`), the `instruction`, what it has done when it is over (`done`), and what is
    under way of a buffer (`under_way`). Waits at one place stand in the order of `rank`. `committing` and `waiting` are the functions that
    commit a group and wait for groups; `waiting` takes their number as its template argument. `arriving` is the function of a barrier in
    memory at which the thread arrives when all is done that it issued by the mechanism before; None: its arrivals cannot be deferred.
    """

    name: ClassVar[str] = ""
    order: ClassVar[Order] = Order.AT_ONCE
    reads_late: ClassVar[bool] = False
    writes_late: ClassVar[bool] = False
    by_engine: ClassVar[bool] = False
    in_registers: ClassVar[bool] = False
    outlives: ClassVar[bool] = False
    rank: ClassVar[int] = 0
    what: ClassVar[str] = ""
    shared_wait: ClassVar[bool] = False
    unit: ClassVar[str] = "each thread"
    instruction: ClassVar[str] = ""
    done: ClassVar[str] = ""
    under_way: ClassVar[str] = ""
    committing: ClassVar[Function | None] = None
    waiting: ClassVar[Function | None] = None
    arriving: ClassVar[Function | None] = None

    def __new__(cls) -> Mechanism:
        """The instance of a class: there is one, so that it can be compared by identity, when it is read from a file too."""
        found: Mechanism | None = cls.__dict__.get("_only")
        if found is None:
            found = super().__new__(cls)
            cls._only = found
        return found

    def __repr__(self) -> str:
        return self.name.upper()

    @property
    def in_groups(self) -> bool:
        """Whether a thread waits for it by groups."""
        return self.order is Order.GROUPS

    @property
    def counted(self) -> bool:
        """Whether the barriers of a ring count its bytes."""
        return self.order is Order.COUNTED and self.arriving is None

    @property
    def arrives(self) -> bool:
        """Whether what it writes to shared memory is there when its issuer has waited for it, or when a deferred arrival has happened."""
        return self.writes_late and not self.counted

    @property
    def arrives_in_groups(self) -> bool:
        """Whether what it writes to shared memory is there at a wait for its group."""
        return self.in_groups and self.writes_late

    @property
    def reads_in_groups(self) -> bool:
        """Whether it has read shared memory at a wait for its group, and writes no registers."""
        return self.in_groups and self.reads_late and not self.in_registers

    def is_late(self, write: bool) -> bool:
        """Whether what it writes, or reads, of shared memory may still be under way when its thread goes on."""
        return self.writes_late if write else self.reads_late

    def commit(self, printer: Printer) -> Sequence[Item]:
        """The text by which what was issued becomes a group."""
        if self.committing is None:
            self._lacks("commit")
        return [f"{printer.function(self.committing)}();"]

    def wait(self, printer: Printer, groups: int, reason: str, holds: Sequence[str], of: Exec) -> Sequence[Item]:
        """The text of a wait until at most `groups` groups are under way; `holds` are registers whose values are those behind it; `of` is
        one of the statements that are waited for.
        """
        if self.waiting is None:
            self._lacks("wait")
        line = f"{printer.function(self.waiting)}<{groups}>();"
        return [Noted(line, reason) if reason else line]

    @property
    def defers(self) -> bool:
        """Whether an arrival by it comes later than its statement."""
        return self.arriving is not None and self.order is not Order.AT_ONCE

    def arrive(self, printer: Printer, barrier: str) -> Sequence[Item]:
        """The text of an arrival at a barrier in memory, which happens when all is done that the thread issued by the mechanism before."""
        if self.arriving is None:
            self._lacks("arrive")
        return [f"{printer.function(self.arriving)}({barrier});"]

    def fence(self, printer: Printer, holds: Sequence[str], of: Exec) -> Sequence[Item]:
        """The text of a fence of registers in front of statements such as `of`; `holds` are registers that have their values there."""
        self._lacks("fence")

    def held(self, printer: Printer, holds: Sequence[str], of: Exec) -> Sequence[Item]:
        """The text in front of a loop for registers that statements such as `of` fill in it."""
        self._lacks("held")

    def _lacks(self, text: str) -> NoReturn:
        raise VerificationError(f"{self.name}: this completion mechanism has no text {text!r}")


ARRIVE = Function(
    "mbarrier_arrive",
    ("unsigned mbarrier",),
    ('asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(mbarrier) : "memory");',),
    "arrive once",
)


class AtOnce(Mechanism):
    """It is done when the next statement of the thread begins."""

    name: ClassVar[str] = "none"
    arriving: ClassVar[Function] = ARRIVE


AT_ONCE = AtOnce()

__all__ = ["ARRIVE", "AT_ONCE", "AtOnce", "Mechanism", "Order"]
