"""Copies from global to shared memory that complete by groups (PTX ISA, "Data Movement: cp.async")."""

from __future__ import annotations

from typing import ClassVar

from fireiron.ir.mechanism import Mechanism, Order
from fireiron.ir.text import Function

COMMIT = Function(
    "cp_async_commit_group",
    (),
    ('asm volatile("cp.async.commit_group;" ::: "memory");',),
    "commit the cp.async operations of this thread as a group",
)

WAIT = Function(
    "cp_async_wait_group",
    (),
    ('asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");',),
    "wait until at most N cp.async groups of this thread are pending",
    "int N",
)

ARRIVE = Function(
    "cp_async_mbarrier_arrive",
    ("unsigned mbarrier",),
    ('asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(mbarrier) : "memory");',),
    "arrive when all prior cp.async operations of this thread complete (noinc: an expected arrival)",
)


class CpAsyncGroups(Mechanism):
    """A copy is visible to its thread after a wait for its group, or after an mbarrier has counted the thread's deferred arrival."""

    name: ClassVar[str] = "cp_async_group"
    order: ClassVar[Order] = Order.GROUPS
    writes_late: ClassVar[bool] = True
    rank: ClassVar[int] = 1
    what: ClassVar[str] = "copies"
    instruction: ClassVar[str] = "cp.async"
    done: ClassVar[str] = "arrived"
    in_flight: ClassVar[str] = "copies to"
    committing: ClassVar[Function] = COMMIT
    waiting: ClassVar[Function] = WAIT
    arriving: ClassVar[Function] = ARRIVE


MECHANISM = CP_ASYNC_GROUPS = CpAsyncGroups()
