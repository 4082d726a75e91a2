"""Reuse of the storage of dead buffers: `reuse_buffer` on a load."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.language.tree import Refinement, verb


@frozen
class ReuseBuffer(Refinement):
    """Let the new buffer share storage with earlier buffers of the same memory that are dead.

    Legal if such a buffer exists. rewrite: two arrays --> one array, and a barrier between their uses

    Source: Fireiron, section 4.2; decision 33.

    >>> from fireiron import *
    >>> from_registers = Move.tile(4, 4).to(Thread).done()
    >>> store = Move.load(SRC, SH, from_registers).reuse_buffer().coalesced_copy(4).done()
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
    >>> sums = blocks.epilog(RF, Init.tile(4, 4).to(Thread).done(), store)
    >>> kernel = sums.split(16).load(A, SH).load(B, SH).tile(4, 4).to(Thread).tile(1, 1).split(1).done().program().ir
    >>> kernel.shared_bytes
    4096
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load",)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, reuse=True)


@verb()
def reuse_buffer() -> ReuseBuffer:
    """Let the new buffer share storage with earlier buffers that are dead.

    Legal if such a buffer exists. rewrite: two arrays --> one array, and a barrier between their uses
    """
    return ReuseBuffer()


__all__ = ["ReuseBuffer"]
