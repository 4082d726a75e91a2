"""An in-order completion mechanism: copies to shared memory that a thread waits for in separate groups."""

from typing import ClassVar

from fireiron.ir.mechanism import Mechanism, Order
from fireiron.ir.text import Function

COMMIT = Function("late_commit", (), ('asm volatile("// the late copies become a group" ::: "memory");',))
WAIT = Function("late_wait", (), ('asm volatile("// all but the last %0 groups are there" :: "n"(groups) : "memory");',), "", "int groups")


class LateCopies(Mechanism):
    """Its writes are visible after a wait for its group."""

    name: ClassVar[str] = "late"
    order: ClassVar[Order] = Order.GROUPS
    writes_late: ClassVar[bool] = True
    rank: ClassVar[int] = 9
    what: ClassVar[str] = "late copies"
    instruction: ClassVar[str] = "late"
    done: ClassVar[str] = "come late"
    in_flight: ClassVar[str] = "late copies to"
    committing: ClassVar[Function] = COMMIT
    waiting: ClassVar[Function] = WAIT


LATE = LateCopies()
