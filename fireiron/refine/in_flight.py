"""How many groups of products run on while the next ones are issued: `in_flight` on a specialized split."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.ir.asks.running import Running
from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, integral

MOST = 7
"""Most wgmma groups in flight: more than the fills of a usual ring."""


def _groups(value: Any) -> Any:
    return integral(value, "in_flight")


@attrs.frozen
class InFlight(Refinement):
    """So many groups of products may still run while the next ones are issued, and their stages are released that much later.

    Products that nothing separates are one group, so a turn has one or several. Legal on a split with `specialize`, from 0 to one less than
    its stages. Left out, products that other statements of the loop wait for run until there; where there are none it is 1 for one
    consumer warpgroup, and 0 for several, of which each fills the gaps of the others.
    rewrite: products(k); wait all; say empty(k) --> products(k); wait all but `groups`; say empty(k - groups)

    Source: decision 26.

    >>> from fireiron import *
    >>> halves = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    >>> blocks = MatMul(512, 512, 512, **halves)(GL, GL, GL)(Kernel).tile(128, 64).to(Block)
    >>> turns = blocks.epilog(RF, float32).split(64).pipeline(3).specialize().in_flight(1)
    >>> loads = turns.load(A, SH, Move.done()).load(B, SH, Move.done())
    >>> text = loads.tile(64, 64).to(Warpgroup).done().cuda()
    >>> for line in text.splitlines():
    ...     if "wgmma_wait<" in line:
    ...         print(line.strip())
    wgmma_wait<1>();  // a_sh, b_sh of the turn before have been read
    wgmma_wait<0>();  // a_sh, b_sh of the last turn have been read
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((0,), (1,), (2,), (3,))
    groups: Any = attrs.field(converter=_groups)

    def plan(self, plan: Any) -> Any:
        return plan.asking(Running(chosen(self.groups, "in_flight", 0, MOST)))

    def __str__(self) -> str:
        return f"in_flight({self.groups})"


@verb()
def in_flight(groups: Integer) -> InFlight:
    """Let so many groups of products run on while the next ones are issued; of one a turn 1 is best for one warpgroup, 0 for several.

    Legal on a split with `specialize`, from 0 to one less than its stages, for a number or a tunable.
    rewrite: products(k); wait all; say empty(k) --> products(k); wait all but `groups`; say empty(k - groups)
    """
    return InFlight(groups)


__all__ = ["InFlight"]
