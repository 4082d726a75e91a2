"""Completion mechanisms: how the completion of an asynchronous statement is observed, and the PTX for it.

A mechanism is a class with one instance, in a separate file in `fireiron.ir.mechanisms`. An instruction names its mechanism. Passes, checks
and the simulator read its facts and never test which mechanism it is, so a new mechanism is a new file.
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
    """How completion is observed.

    - AT_ONCE: the statement is synchronous.
    - GROUPS: a thread commits issued operations as a group and waits until at most N of its last groups are pending. Groups complete in
      commit order.
    - COUNTED: the mbarrier of a ring's stage counts the bytes that arrive, or deferred arrivals.
    """

    AT_ONCE = "at once"
    GROUPS = "groups"
    COUNTED = "counted"


@attrs.frozen(eq=False, repr=False, slots=False)
class Mechanism:
    """How and when a statement completes.

    Facts, about shared memory unless stated otherwise:

    - `reads_late`, `writes_late`: it may still read or write when its thread continues.
    - `by_engine`: it accesses memory through the async proxy (PTX ISA, "Proxies"), not by loads and stores of the threads.
    - `in_registers`: its results are registers that must not be accessed before it completes.
    - `outlives`: the kernel waits for it at its end, because it reads memory that is released there.
    - `shared_wait`: the lanes of a warp issue it together, and all of them wait.

    Texts: `what` names the operations, `unit` the threads that issue them and wait for them, `instruction` the instruction. `done` is the
    participle of completion, and `in_flight` begins a description of pending operations on a buffer. Waits at one position are ordered by
    `rank`.

    Functions of the printed CUDA: `committing` commits a group. `waiting` waits for groups, and the number of groups that may stay pending
    is its template argument. `arriving` arrives at an mbarrier when all earlier operations of the thread by the mechanism have completed;
    None: arrivals cannot be deferred.
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
    in_flight: ClassVar[str] = ""
    committing: ClassVar[Function | None] = None
    waiting: ClassVar[Function | None] = None
    arriving: ClassVar[Function | None] = None

    def __new__(cls) -> Mechanism:
        """The only instance of the class. It can be compared by identity, even when read from a file."""
        instance: Mechanism | None = cls.__dict__.get("_only")
        if instance is None:
            instance = super().__new__(cls)
            cls._only = instance
        return instance

    def __repr__(self) -> str:
        return self.name.upper()

    @property
    def in_groups(self) -> bool:
        """Whether threads wait for groups of its operations."""
        return self.order is Order.GROUPS

    @property
    def counted(self) -> bool:
        """Whether the mbarriers of a ring count its bytes."""
        return self.order is Order.COUNTED and self.arriving is None

    @property
    def arrives(self) -> bool:
        """Whether its writes to shared memory are visible after a wait of the issuer, or after a deferred arrival."""
        return self.writes_late and not self.counted

    @property
    def arrives_in_groups(self) -> bool:
        """Whether its writes to shared memory are visible after a wait for its group."""
        return self.in_groups and self.writes_late

    @property
    def reads_in_groups(self) -> bool:
        """Whether its reads of shared memory have completed after a wait for its group, and it writes no registers."""
        return self.in_groups and self.reads_late and not self.in_registers

    def is_late(self, write: bool) -> bool:
        """Whether its writes, or reads, of shared memory may still be in flight when its thread continues."""
        return self.writes_late if write else self.reads_late

    def commit(self, printer: Printer) -> Sequence[Item]:
        """The CUDA that commits issued operations as a group."""
        if self.committing is None:
            self._lacks("commit")
        return [f"{printer.function(self.committing)}();"]

    def wait(self, printer: Printer, groups: int, reason: str, pinned_registers: Sequence[str], of: Exec) -> Sequence[Item]:
        """The CUDA of a wait until at most `groups` groups are pending.

        `pinned_registers` are the registers that may be read only after it. `of` is one of the statements that it waits for.
        """
        if self.waiting is None:
            self._lacks("wait")
        line = f"{printer.function(self.waiting)}<{groups}>();"
        return [Noted(line, reason) if reason else line]

    @property
    def defers(self) -> bool:
        """Whether an arrival by it is deferred."""
        return self.arriving is not None and self.order is not Order.AT_ONCE

    def arrive(self, printer: Printer, barrier: str) -> Sequence[Item]:
        """The CUDA of an mbarrier arrival that is deferred until all earlier operations of the thread by the mechanism have completed."""
        if self.arriving is None:
            self._lacks("arrive")
        return [f"{printer.function(self.arriving)}({barrier});"]

    def fence(self, printer: Printer, pinned_registers: Sequence[str], of: Exec) -> Sequence[Item]:
        """The CUDA of a fence of registers before statements such as `of`; `pinned_registers` must have their values before it."""
        self._lacks("fence")

    def pin(self, printer: Printer, pinned_registers: Sequence[str], of: Exec) -> Sequence[Item]:
        """The CUDA, placed before a loop, that pins the registers that statements such as `of` write in the loop."""
        self._lacks("pin")

    def _lacks(self, text: str) -> NoReturn:
        raise VerificationError(f"{self.name}: this completion mechanism has no text {text!r}")


ARRIVE = Function(
    "mbarrier_arrive",
    ("unsigned mbarrier",),
    ('asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(mbarrier) : "memory");',),
    "arrive once",
)


class AtOnce(Mechanism):
    """Synchronous: it completes before the next statement of the thread begins."""

    name: ClassVar[str] = "none"
    arriving: ClassVar[Function] = ARRIVE


AT_ONCE = AtOnce()

__all__ = ["ARRIVE", "AT_ONCE", "AtOnce", "Mechanism", "Order"]
