"""TMA stores that complete by bulk groups (PTX ISA, "Data Movement: cp.async.bulk.commit_group")."""

from __future__ import annotations

from typing import ClassVar

from fireiron.ir.mechanism import Mechanism, Order
from fireiron.ir.text import Function

COMMIT = Function(
    "tma_store_commit_group",
    (),
    ('asm volatile("cp.async.bulk.commit_group;" ::: "memory");',),
    "commit the TMA stores of this thread as a bulk group",
)

WAIT = Function(
    "tma_store_wait_group",
    (),
    ('asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory");',),
    "wait until at most N bulk groups of this thread have not yet read shared memory",
    "int N",
)

ARRIVAL = Function(
    "tma_store_wait_arrival",
    (),
    ('asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");',),
    "wait until the TMA stores of all bulk groups of this thread have written global memory",
)


class TmaStores(Mechanism):
    """A store has read shared memory after a wait of its issuer for its group."""

    name: ClassVar[str] = "bulk_group"
    order: ClassVar[Order] = Order.GROUPS
    reads_late: ClassVar[bool] = True
    by_engine: ClassVar[bool] = True
    outlives: ClassVar[bool] = True
    shared_wait: ClassVar[bool] = True
    rank: ClassVar[int] = 4
    what: ClassVar[str] = "stores"
    unit: ClassVar[str] = "the issuer"
    instruction: ClassVar[str] = "TMA"
    done: ClassVar[str] = "been stored"
    in_flight: ClassVar[str] = "stores of"
    committing: ClassVar[Function] = COMMIT
    waiting: ClassVar[Function] = WAIT


MECHANISM = TMA_STORES = TmaStores()
