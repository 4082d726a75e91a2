"""Warpgroups issue their products one after the other: `turns` with the names of steps, on the split of a fused definition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, call_site
from fireiron.ir.asks.ordered import Ordered
from fireiron.language.tree import Context, Decomposition, Refinement, verb
from fireiron.spec import Spec
from fireiron.specs.fused import fused


@attrs.frozen
class InTurns(Refinement):
    """The products from the step `first` to the step `last` of a turn of the loop are issued by one warpgroup after the other.

    While a warpgroup does the steps between, matrix units work on what the others issued. In the first turn of a delayed loop those of
    `first` are issued alone.
    Legal on the split of a fused definition with a producer, where both steps are products that run by themselves (wgmma). Of one
    warpgroup, and where TMA takes none of the loads, it changes nothing.
    rewrite: for i: P(i) R(i) --> warpgroup w: for i: wait for turn i * warpgroups + w - 1; P(i); give on turn i * warpgroups + w; R(i)

    Source: Cypress, section 5.3; decision 41.

    >>> from fireiron import *
    >>> from fireiron.strategies import hopper_attention
    >>> [str(one) for one in hopper_attention.in_turns.at(Split).step.refinements if isinstance(one, InTurns)]
    ['turns("s", "pv")']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)
    first: str
    last: str

    def __attrs_post_init__(self) -> None:
        for name in (self.first, self.last):
            if not isinstance(name, str) or not name:
                raise ArgumentError("turns: the names of two steps of the definition", got=name, legal='turns("s", "pv")', at=call_site())

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[InTurns]:
        made = fused(spec)
        names = () if made is None else made.names
        yield from (InTurns(*pair) for pair in itertools.combinations_with_replacement(names, 2))

    def plan(self, plan: Any) -> Any:
        return plan.asking(Ordered(self.first, self.last))

    def __str__(self) -> str:
        return f'turns("{self.first}", "{self.last}")'


@verb()
def turns(first: str, last: str) -> InTurns:
    """Let warpgroups issue the products from the step `first` to the step `last` of a turn of the loop one after the other.

    So one's products run while others do the steps between. `turns("s", "pv")` goes with `delay("pv", behind="s")`, by which both
    products are issued together. Legal on the split of a fused definition with `specialize`, where both steps are products by wgmma; of
    one warpgroup, and where TMA takes none of the loads, it changes nothing.
    rewrite: for i: P(i) R(i) --> warpgroup w: for i: wait for turn i * warpgroups + w - 1; P(i); give on turn i * warpgroups + w; R(i)
    """
    return InTurns(first, last)


EXAMPLES = (InTurns("s", "pv"),)
"""Any of the kind, which cannot be made without arguments."""

__all__ = ["InTurns"]
