"""Stores by TMA that their issuer waits for by groups (PTX ISA, "Data Movement: cp.async.bulk.commit_group")."""

from __future__ import annotations

from typing import ClassVar

from fireiron.ir.mechanism import Mechanism, Order
from fireiron.ir.text import Function

COMMIT = Function(
    "tma_store_commit",
    (),
    ('asm volatile("cp.async.bulk.commit_group;" ::: "memory");',),
    "the stores of this thread since its last commit become a group",
)

WAIT = Function(
    "tma_store_wait",
    (),
    ('asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(groups) : "memory");',),
    "all but the last so many groups of this thread's stores have read what they store",
    "int groups",
)


class TmaStores(Mechanism):
    """A store has read what it stores at a wait of its issuer for its group."""

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
    under_way: ClassVar[str] = "stores of"
    committing: ClassVar[Function] = COMMIT
    waiting: ClassVar[Function] = WAIT


MECHANISM = TMA_STORES = TmaStores()
