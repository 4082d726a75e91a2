"""An upper bound of the shared memory of a block: `max_shared_bytes` on a tile distributed over blocks."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.ir.effects.shared_bound import SharedBound
from fireiron.language.tree import Refinement
from fireiron.language.tunable import Integer, chosen, integral

MOST = 1 << 20
"""The largest bound, in bytes: more than any SM has."""


def _bytes(value: Any) -> Any:
    return integral(value, "max_shared_bytes")


@frozen
class MaxSharedBytes(Refinement):
    """Use at most `bytes` bytes of shared memory per block: arrays that are never live at the same time share storage if necessary.

    Legal on a tile distributed over blocks, for 16 bytes to 1 MiB; the number may be a tunable. It is refused if arrays that are live at
    the same time need more bytes.
    rewrite: two arrays --> one array, and a barrier between their uses, until all fit

    Source: decision 33; Cypress, section 4.2.4.

    >>> from fireiron import *
    >>> from_registers = Move.tile(4, 4).to(Thread).done()
    >>> store = Move.load(SRC, SH, from_registers).coalesced_copy(4).done()
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block).max_shared_bytes(4096)
    >>> sums = blocks.epilog(RF, Init.tile(4, 4).to(Thread).done(), store)
    >>> kernel = sums.split(16).load(A, SH).load(B, SH).tile(4, 4).to(Thread).tile(1, 1).split(1).done().program().ir
    >>> kernel.shared_bytes
    4096
    """

    verb: ClassVar[str] = "max_shared_bytes"
    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((1 << 12,), (1 << 14,), (49152,), (227 << 10,))
    bytes: Integer = attrs.field(converter=_bytes)

    def plan(self, plan: Any) -> Any:
        return plan.with_effect(SharedBound(chosen(self.bytes, "max_shared_bytes", 16, MOST)))


__all__ = ["MaxSharedBytes"]
