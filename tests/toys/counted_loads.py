"""A counted completion mechanism: loads whose bytes the full mbarrier of a ring's stage counts."""

from typing import ClassVar

from fireiron.ir.mechanism import Mechanism, Order


class CountedLoads(Mechanism):
    """Its writes are visible when the full mbarrier of the stage has counted its bytes."""

    name: ClassVar[str] = "counted"
    order: ClassVar[Order] = Order.COUNTED
    writes_late: ClassVar[bool] = True
    by_engine: ClassVar[bool] = True
    rank: ClassVar[int] = 10
    what: ClassVar[str] = "counted loads"
    unit: ClassVar[str] = "the issuer"
    instruction: ClassVar[str] = "counted"
    done: ClassVar[str] = "come"
    in_flight: ClassVar[str] = "counted loads to"


COUNTED = CountedLoads()
