"""A counted completion mechanism with a deferred arrival: copies that no thread waits for, counted by the mbarrier of a ring's stage."""

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
    """Its writes are visible when an mbarrier has counted the arrival deferred by its thread; it has no groups."""

    name: ClassVar[str] = "deferred"
    order: ClassVar[Order] = Order.COUNTED
    writes_late: ClassVar[bool] = True
    rank: ClassVar[int] = 11
    what: ClassVar[str] = "deferred copies"
    instruction: ClassVar[str] = "deferred"
    done: ClassVar[str] = "come"
    in_flight: ClassVar[str] = "deferred copies to"
    arriving: ClassVar[Function] = ARRIVE


DEFERRED = DeferredCopies()
