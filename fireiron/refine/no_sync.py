"""No barrier directly after a copy: `no_sync` on a load."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.language.tree import Refinement, verb


@frozen
class NoSync(Refinement):
    """Forbid a barrier directly after the copy; refused if the kernel would then have a data race.

    Legal if another barrier orders the copy and its readers. rewrite: copy; barrier; copy --> copy; copy

    Source: Fireiron, section 4.2.

    >>> from fireiron import *
    >>> loads = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block).split(8).load(A, SH).no_sync().load(B, SH)
    >>> strategy = loads.tile(4, 4).to(Thread).tile(1, 1).split(1).done()
    >>> strategy.cuda().count("__syncthreads")  # after both loads, and before the next ones
    2
    >>> try:
    ...     strategy.at(Load, B).refine(NoSync()).cuda()
    ... except SynchronizationError as error:
    ...     print(error.headline.partition(":")[0])
    race on a_sh
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load",)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, no_sync="no_sync")


@verb()
def no_sync() -> NoSync:
    """Forbid a barrier directly after the copy.

    Legal if another barrier orders the copy and its readers; otherwise a `SynchronizationError` shows the race.
    rewrite: copy; barrier; copy --> copy; copy
    """
    return NoSync()


__all__ = ["NoSync"]
