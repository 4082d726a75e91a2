"""An upper bound of a block's shared memory, within which arrays share bytes: `within` on a tile dealt to Block."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.ir.effects.shared_bound import SharedBound
from fireiron.language.tree import Refinement
from fireiron.language.tunable import Integer, chosen, integral

MOST = 1 << 20
"""Largest bound, in bytes: more than any SM has."""


def _bytes(value: Any) -> Any:
    return integral(value, "within")


@attrs.frozen
class Within(Refinement):
    """A block takes at most `bytes` of shared memory; arrays that are never in use together share bytes, as few of them as that needs.

    Legal on a tile that is dealt to Block, for 16 bytes to 1 MiB; a tunable may stand for the number. Refused where the arrays that are in
    use together are too large.
    rewrite: two arrays --> one array, and a barrier between their uses, until all fit

    Source: decision 33; Cypress, section 4.2.4.

    >>> from fireiron import *
    >>> held = Move.tile(4, 4).to(Thread).done()
    >>> store = Move.load(SRC, SH, held).coalesced(4).done()
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block).within(4096)
    >>> sums = blocks.epilog(RF, Init.tile(4, 4).to(Thread).done(), store)
    >>> kernel = sums.split(16).load(A, SH).load(B, SH).tile(4, 4).to(Thread).tile(1, 1).split(1).done().program().ir
    >>> kernel.shared_bytes
    4096
    """

    verb: ClassVar[str] = "within"
    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((1 << 12,), (1 << 14,), (49152,), (227 << 10,))
    bytes: Integer = attrs.field(converter=_bytes)

    def plan(self, plan: Any) -> Any:
        return plan.saying(SharedBound(chosen(self.bytes, "within", 16, MOST)))


__all__ = ["Within"]
