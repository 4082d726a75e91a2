"""Copies from global to shared memory that a thread waits for by groups (PTX ISA, "Data Movement: cp.async")."""

from __future__ import annotations

from typing import ClassVar

from fireiron.ir.mechanism import Mechanism, Order
from fireiron.ir.text import Function

COMMIT = Function(
    "cp_async_commit",
    (),
    ('asm volatile("cp.async.commit_group;" ::: "memory");',),
    "what this thread copied since its last commit becomes a group",
)

WAIT = Function(
    "cp_async_wait",
    (),
    ('asm volatile("cp.async.wait_group %0;" :: "n"(groups) : "memory");',),
    "all but the last so many groups of this thread's copies have arrived",
    "int groups",
)

ARRIVE = Function(
    "cp_async_arrive",
    ("unsigned barrier",),
    ('asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(barrier) : "memory");',),
    "one arrival, when all that this thread has copied is there; the barrier counts it among its arrivals (noinc)",
)


class CpAsyncGroups(Mechanism):
    """A copy is there at a wait of the thread that issued it, for the group in which that thread committed it; or when a barrier in memory
    has counted the thread's arrival by it.
    """

    name: ClassVar[str] = "cp_async_group"
    order: ClassVar[Order] = Order.GROUPS
    writes_late: ClassVar[bool] = True
    rank: ClassVar[int] = 1
    what: ClassVar[str] = "copies"
    instruction: ClassVar[str] = "cp.async"
    done: ClassVar[str] = "arrived"
    under_way: ClassVar[str] = "copies to"
    committing: ClassVar[Function] = COMMIT
    waiting: ClassVar[Function] = WAIT
    arriving: ClassVar[Function] = ARRIVE


MECHANISM = CP_ASYNC_GROUPS = CpAsyncGroups()
