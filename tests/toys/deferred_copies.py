"""A counted completion mechanism with a deferred arrival: copies that no thread waits for, and that a barrier of a ring's stage counts."""

from typing import ClassVar

from fireiron.ir.mechanism import Mechanism, Order
from fireiron.ir.text import Function

ARRIVE = Function(
    "deferred_arrive",
    ("unsigned barrier",),
    ('asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");',),
    "one arrival, when all that this thread has copied is there",
)


class DeferredCopies(Mechanism):
    """What it writes is there when a barrier has counted the arrival that its thread deferred; there are no groups of it."""

    name: ClassVar[str] = "deferred"
    order: ClassVar[Order] = Order.COUNTED
    writes_late: ClassVar[bool] = True
    rank: ClassVar[int] = 11
    what: ClassVar[str] = "deferred copies"
    instruction: ClassVar[str] = "deferred"
    done: ClassVar[str] = "come"
    under_way: ClassVar[str] = "deferred copies to"
    arriving: ClassVar[Function] = ARRIVE


DEFERRED = DeferredCopies()
