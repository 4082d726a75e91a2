"""Order blocks that produce one result together: semaphores in global memory, one per result.

A semaphore counts the blocks that have finished their part of a result. It is 0 before and after a launch.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import attrs

from fireiron.frozen import frozen
from fireiron.ir.statement import Barrier
from fireiron.values.expr import ONE, ZERO, Expr, Var

MOST_SEMAPHORES: Final = 1 << 16
"""Maximum number of semaphores. Partial results start after that many, so that no kernel overwrites the semaphores of another."""

SEMAPHORE_BYTES: Final = 4
"""Bytes of a semaphore."""


@frozen
class Workspace:
    """A kernel parameter: global memory with `MOST_SEMAPHORES` unsigned ints, of which it uses `semaphores`, then partial results.

    All semaphores are 0 before and after a launch. Concurrent launches need separate workspaces.

    If the blocks of a scan exchange totals (`looks_back`), all of the workspace are `semaphores`: the number of blocks that have started,
    by which blocks are numbered, and then words (`ir.look_back`).
    """

    name: str
    semaphores: Expr
    looks_back: bool = False


class SemaphoreAction(enum.Enum):
    """The effect of a semaphore on a block.

    - LAST: count this block; only the block that is counted last continues, all others exit.
    - FIND_LAST: count this block; the variable `last` is 1 in the block that is counted last, and 0 in the others. A block that shares the
      result with no other block uses no semaphore, and is the last one.
    - WAIT: wait until `position` blocks have been counted.
    - COUNT: count this block.
    """

    LAST = "last"
    FIND_LAST = "find_last"
    WAIT = "wait"
    COUNT = "count"

    __hash__ = object.__hash__


@frozen
class SemaphoreBarrier(Barrier):
    """A barrier of the block, at which one thread also uses semaphore `index` of the workspace, which `blocks` blocks share.

    In a block with roles, it is a barrier of the consumers. LAST, FIND_LAST and COUNT increment the semaphore after all threads have
    arrived. If `fenced`, everything that the block wrote before is then visible to blocks that observe the increment, and what those blocks
    wrote before theirs is visible after it. The increment number `blocks` sets the semaphore to 0 if `resets`. FIND_LAST defines `last`.

    `group` names the results of these semaphores, of which there are `count`. The walker adds the offset of the group to `index`.
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

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """The index, the number of blocks, and the position."""
        return (self.index, self.blocks, self.position)

    def substitute(self, values: Mapping[Var, Expr | int]) -> SemaphoreBarrier:
        """The statement with variables replaced."""
        index, blocks, position = (value.substitute(values) for value in self.expressions)
        return attrs.evolve(self, index=index, blocks=blocks, position=position)


__all__ = ["MOST_SEMAPHORES", "SEMAPHORE_BYTES", "SemaphoreAction", "SemaphoreBarrier", "Workspace"]
