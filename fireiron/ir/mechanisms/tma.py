"""TMA loads that complete on the full mbarrier of a ring's stage (PTX ISA, "Data Movement: cp.async.bulk.tensor", "mbarrier")."""

from __future__ import annotations

from typing import ClassVar

from fireiron.ir.mechanism import Mechanism, Order


class TmaLoads(Mechanism):
    """A load is visible when the full mbarrier of the stage that it fills has counted its bytes."""

    name: ClassVar[str] = "mbarrier"
    order: ClassVar[Order] = Order.COUNTED
    writes_late: ClassVar[bool] = True
    by_engine: ClassVar[bool] = True
    rank: ClassVar[int] = 3
    what: ClassVar[str] = "loads"
    unit: ClassVar[str] = "the issuer"
    instruction: ClassVar[str] = "TMA"
    done: ClassVar[str] = "arrived"
    in_flight: ClassVar[str] = "loads to"


MECHANISM = TMA_LOADS = TmaLoads()
