"""A counted completion mechanism that reads: stores that an empty barrier of a ring's stage counts when they have read the stage."""

from typing import ClassVar

from fireiron.ir.mechanism import Mechanism, Order
from fireiron.ir.text import Function

ARRIVE = Function(
    "counted_store_arrive",
    ("unsigned barrier",),
    ('asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");',),
    "one arrival, when all that this thread stores has been read",
)


class CountedStores(Mechanism):
    """What it reads is read when a barrier has counted the arrival that its thread deferred, as by `tcgen05.commit`."""

    name: ClassVar[str] = "counted_store"
    order: ClassVar[Order] = Order.COUNTED
    reads_late: ClassVar[bool] = True
    by_engine: ClassVar[bool] = True
    shared_wait: ClassVar[bool] = True
    rank: ClassVar[int] = 12
    what: ClassVar[str] = "counted stores"
    instruction: ClassVar[str] = "counted store"
    done: ClassVar[str] = "been read"
    in_flight: ClassVar[str] = "counted stores of"
    arriving: ClassVar[Function] = ARRIVE


COUNTED_STORES = CountedStores()
