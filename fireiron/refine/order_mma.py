"""A fixed order in which warpgroups issue their MMAs: `order_mma` on the split of a fused definition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

from fireiron.errors import ArgumentError, call_site
from fireiron.frozen import frozen
from fireiron.ir.asks.ordered_mma import OrderedMma
from fireiron.language.tree import Context, Decomposition, Refinement, verb
from fireiron.spec import Spec
from fireiron.specs.fused import fused


@frozen
class OrderMma(Refinement):
    """Let the warpgroups issue the MMAs from the step `first` to the step `last` of an iteration in a fixed order, one after the other.

    While a warpgroup executes its other steps, the tensor cores execute the MMAs of the other warpgroups. In the first iteration of a loop
    with `defer` the MMAs of `first` are issued alone.
    Legal on the split of a fused definition with `warp_specialize`, if both steps are wgmma MMAs. It has no effect for one warpgroup, or if
    TMA does none of the loads.
    rewrite: for i: P(i) R(i) --> warpgroup w: for i: wait for i * warpgroups + w - 1; P(i); arrive for i * warpgroups + w; R(i)

    Source: Cypress, section 5.3; decision 41.

    >>> from fireiron import *
    >>> from fireiron.strategies import hopper_attention
    >>> [str(refinement) for refinement in hopper_attention.order_mma.at(Split).step.refinements if isinstance(refinement, OrderMma)]
    ['order_mma("s", "pv")']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)
    first: str
    last: str

    def __attrs_post_init__(self) -> None:
        for name in (self.first, self.last):
            if not isinstance(name, str) or not name:
                raise ArgumentError(
                    "order_mma needs the names of two steps of the definition", got=name, legal='order_mma("s", "pv")', at=call_site()
                )

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[OrderMma]:
        definition = fused(spec)
        names = () if definition is None else definition.names
        yield from (OrderMma(*pair) for pair in itertools.combinations_with_replacement(names, 2))

    def plan(self, plan: Any) -> Any:
        return plan.with_asks(OrderedMma(self.first, self.last))

    def __str__(self) -> str:
        return f'order_mma("{self.first}", "{self.last}")'


@verb()
def order_mma(first: str, last: str) -> OrderMma:
    """Let the warpgroups issue the MMAs from the step `first` to the step `last` of an iteration in a fixed order, one after the other.

    The MMAs of one warpgroup then run while others execute their other steps. Combine `order_mma("s", "pv")` with `defer("pv", after="s")`,
    which places both MMAs next to each other. Legal on the split of a fused definition with `warp_specialize`, if both steps are wgmma
    MMAs. It has no effect for one warpgroup, or if TMA does none of the loads.
    rewrite: for i: P(i) R(i) --> warpgroup w: for i: wait for i * warpgroups + w - 1; P(i); arrive for i * warpgroups + w; R(i)
    """
    return OrderMma(first, last)


EXAMPLES = (OrderMma("s", "pv"),)
"""Examples of the class, which has no default arguments."""

__all__ = ["OrderMma"]
