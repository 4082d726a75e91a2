"""The number of wgmma groups in flight while the next ones are issued: `mma_in_flight` on a warp-specialized split."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.ir.asks.pending_mmas import PendingMmas
from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, integral

MOST = 7
"""Maximum number of groups in flight. A circular buffer rarely has that many stages."""


def _groups(value: Any) -> Any:
    return integral(value, "mma_in_flight")


@frozen
class MmaInFlight(Refinement):
    """Keep up to `groups` wgmma groups in flight while the next ones are issued; their stages are released that much later.

    Adjacent MMAs form one group, so an iteration has one group or several. Legal on a split with `warp_specialize`, from 0 to one less than
    its stages. Without this refinement, an MMA stays in flight until the statement of the loop that reads its result. If no statement
    of the loop reads it, the default is 1 for one consumer warpgroup. For several it is 0, because they hide each other's waits.
    rewrite: mma(k); wait all; release(k) --> mma(k); wait all but `groups`; release(k - groups)

    Source: PTX ISA, "wgmma.wait_group"; decision 26.

    >>> from fireiron import *
    >>> types = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    >>> blocks = MatMul(512, 512, 512, **types)(GL, GL, GL)(Kernel).tile(128, 64).to(Block)
    >>> steps = blocks.epilog(RF, float32).split(64).pipeline(3).warp_specialize().mma_in_flight(1)
    >>> loads = steps.load(A, SH, Move.done()).load(B, SH, Move.done())
    >>> text = loads.tile(64, 64).to(Warpgroup).done().cuda()
    >>> for line in text.splitlines():
    ...     if "wgmma_wait_group<" in line:
    ...         print(line.strip())
    wgmma_wait_group<1>();  // a_sh, b_sh of the previous iteration have been read
    wgmma_wait_group<0>();  // a_sh, b_sh of the last iteration have been read
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((0,), (1,), (2,), (3,))
    groups: Any = attrs.field(converter=_groups)

    def plan(self, plan: Any) -> Any:
        return plan.with_asks(PendingMmas(chosen(self.groups, "mma_in_flight", 0, MOST)))

    def __str__(self) -> str:
        return f"mma_in_flight({self.groups})"


@verb()
def mma_in_flight(groups: Integer) -> MmaInFlight:
    """Keep up to `groups` wgmma groups in flight while the next ones are issued: 1 is best for one consumer warpgroup, 0 for several.

    Legal on a split with `warp_specialize`, from 0 to one less than its stages, for a number or a tunable.
    rewrite: mma(k); wait all; release(k) --> mma(k); wait all but `groups`; release(k - groups)
    """
    return MmaInFlight(groups)


__all__ = ["MmaInFlight"]
