"""Order blocks that produce one result together: semaphores in global memory, one per result.

A semaphore counts the blocks that have finished their part of a result. It is 0 before and after a launch.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs

from fireiron.frozen import frozen
from fireiron.ir.overlap import Exchange, Regions
from fireiron.ir.statement import Barrier
from fireiron.values.expr import ONE, TRUE, ZERO, Expr, Var

MOST_SEMAPHORES: Final = 1 << 16
"""Maximum number of semaphores. Partial results start after that many, so that no kernel overwrites the semaphores of another."""

SEMAPHORE_BYTES: Final = 4
"""Bytes of a semaphore."""

HEADER_WORDS: Final = 8
"""Words at the end of the semaphores of an exchange: the time limit of waits in nanoseconds, and the address of a report, each 64 bits."""


@frozen
class Workspace:
    """A kernel parameter: global memory with `MOST_SEMAPHORES` unsigned ints, of which it uses `semaphores`, then partial results.

    All semaphores are 0 before and after a launch. Concurrent launches need separate workspaces.

    If the blocks of a scan exchange totals (`looks_back`), all of the workspace are `semaphores`: the number of blocks that have started,
    by which blocks are numbered, and then words (`ir.look_back`).
    With `regions`, they count copies of regions of an array (`lower.overlap`), or tiles of sums (`lower.exchange`). With `exchange`, the
    workspaces of all GPUs of a node are at equal distances, and no launch resets a semaphore.
    """

    name: str
    semaphores: Expr
    looks_back: bool = False
    regions: Regions | None = None
    exchange: Exchange | None = None


class SemaphoreAction(enum.Enum):
    """The effect of a semaphore on a block.

    - LAST: count this block; only the block that is counted last continues, all others exit.
    - FIND_LAST: count this block; the variable `last` is 1 in the block that is counted last, and 0 in the others. A block that shares the
      result with no other block uses no semaphore, and is the last one.
    - WAIT: wait until `position` blocks have been counted.
    - COUNT: count this block.

    If the GPUs of a node copy parts of each other, or exchange sums, in a launch (`lower.overlap`, `lower.exchange`), semaphores only grow,
    and positions depend on the launch's number:

    - BEGIN: a warp, or a thread, reads the number of this launch from the semaphore `index`; it becomes the value of `last`.
    - SIGNAL: a warp counts the copy that it has completed, or a warpgroup the tile that it has stored, at the semaphore `index`; of the
      GPU `gpu`, if it is given.
    - AWAIT: a warp, or a thread, waits until `position` have been counted in each launch up to the number `launch`, at each of `blocks`
      semaphores from `index` on.
    - END: a warp, or a thread, sets the semaphore `index` to the number of the next launch, `launch` + 1.
    """

    LAST = "last"
    FIND_LAST = "find_last"
    WAIT = "wait"
    COUNT = "count"
    SIGNAL = "signal"
    AWAIT = "await"
    BEGIN = "begin"
    END = "end"

    __hash__ = object.__hash__

    @property
    def counts_copies(self) -> bool:
        """Whether it is an action of threads that copy or add, or that wait for copies or sums."""
        return self in _OF_COPIES

    @property
    def defines(self) -> bool:
        """Whether it defines the variable `last`."""
        return self in (SemaphoreAction.FIND_LAST, SemaphoreAction.BEGIN)


_OF_COPIES: Final = frozenset({SemaphoreAction.SIGNAL, SemaphoreAction.AWAIT, SemaphoreAction.BEGIN, SemaphoreAction.END})


@frozen
class SemaphoreBarrier(Barrier):
    """A barrier of the block, at which one thread also uses semaphore `index` of the workspace, which `blocks` blocks share.

    In a block with roles, it is a barrier of the consumers. LAST, FIND_LAST and COUNT increment the semaphore after all threads have
    arrived. If `fenced`, everything that the block wrote before is then visible to blocks that observe the increment, and what those blocks
    wrote before theirs is visible after it. The increment number `blocks` sets the semaphore to 0 if `resets`. FIND_LAST defines `last`.

    `group` names the results of these semaphores, of which there are `count`. The walker adds the offset of the group to `index`.

    An AWAIT is performed if `active` is true. If it is `proxied`, it also orders the copies before later accesses by the async proxy.

    In an exchange between GPUs, `launch` is the number of the launch. A SIGNAL is performed if `active` is true, at the GPU `gpu`. If it is
    `arrived`, its thread first waits until its TMA stores have written global memory; otherwise they may only have read shared memory. The
    scope of fences and semaphores is then the system. If it `follows` another SIGNAL, the wait and the fence of that one order it, too.
    """

    action: SemaphoreAction = attrs.field(kw_only=True)
    group: str = attrs.field(kw_only=True)
    index: Expr = attrs.field(kw_only=True)
    blocks: Expr = attrs.field(kw_only=True)
    count: Expr = attrs.field(kw_only=True, default=ONE)
    position: Expr = attrs.field(kw_only=True, default=ZERO)
    last: Var | None = attrs.field(kw_only=True, default=None)
    fenced: bool = attrs.field(kw_only=True, default=True)
    resets: bool = attrs.field(kw_only=True, default=True)
    active: Expr = attrs.field(kw_only=True, default=TRUE)
    proxied: bool = attrs.field(kw_only=True, default=False)
    gpu: Expr | None = attrs.field(kw_only=True, default=None)
    launch: Expr | None = attrs.field(kw_only=True, default=None)
    arrived: bool = attrs.field(kw_only=True, default=False)
    follows: bool = attrs.field(kw_only=True, default=False)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The index, the number of blocks, the position, and the condition; in an exchange also the GPU and the launch."""
        exchanged = (value for value in (self.gpu, self.launch) if value is not None)
        return (self.index, self.blocks, self.position, self.active, *exchanged)

    def substitute(self, values: Mapping[Var, Expr | int]) -> SemaphoreBarrier:
        """The statement with variables replaced."""
        index, blocks, position, active = (value.substitute(values) for value in (self.index, self.blocks, self.position, self.active))
        gpu, launch = (None if value is None else value.substitute(values) for value in (self.gpu, self.launch))
        return attrs.evolve(self, index=index, blocks=blocks, position=position, active=active, gpu=gpu, launch=launch)


__all__ = ["HEADER_WORDS", "MOST_SEMAPHORES", "SEMAPHORE_BYTES", "SemaphoreAction", "SemaphoreBarrier", "Workspace"]
