"""Run a step of a loop one iteration later (software pipelining): `defer` on the split of a fused definition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

from fireiron.errors import ArgumentError, call_site
from fireiron.frozen import frozen
from fireiron.ir.asks.deferred import Deferred
from fireiron.language.tree import Context, Decomposition, Refinement, verb
from fireiron.spec import Spec
from fireiron.specs.fused import fused


@frozen
class Defer(Refinement):
    """Run a step, and all steps after it, one iteration later: after the step `after` of the next iteration.

    The result of `after` is then ready before the end of the previous iteration. So tensor cores and copies work on two iterations while
    threads execute the other steps. Loads move with the step that reads them.
    Legal on the split of a fused definition whose steps are directly in the loop. The deferred steps must not write data that the preceding
    steps of the next iteration access, and conversely. If both access a pipelined buffer, it needs at least two stages.
    rewrite: for i: F(i) R(i) D(i) --> F(0) R(0); for i in all but the last: F(i+1) D(i) R(i+1); D(last)

    Source: Cypress, section 5.3; decision 41.

    >>> from fireiron import *
    >>> from fireiron.strategies import hopper_attention
    >>> [str(refinement) for refinement in hopper_attention.order_mma.at(Split).step.refinements if isinstance(refinement, Defer)]
    ['defer("pv", after="s")']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)
    step: str
    after: str

    def __attrs_post_init__(self) -> None:
        for name in (self.step, self.after):
            if not isinstance(name, str) or not name:
                raise ArgumentError(
                    "defer needs the names of two steps of the definition", got=name, legal='defer("pv", after="s")', at=call_site()
                )

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[Defer]:
        definition = fused(spec)
        names = () if definition is None else definition.names
        yield from (Defer(later, first) for first, later in itertools.combinations(names, 2))

    def plan(self, plan: Any) -> Any:
        return plan.with_asks(Deferred(self.step, self.after))

    def __str__(self) -> str:
        return f'defer("{self.step}", after="{self.after}")'


@verb()
def defer(step: str, after: str) -> Defer:
    """Run a step, and all steps after it, one iteration later: after the step `after` of the next iteration (software pipelining).

    With `defer("pv", after="s")`, the MMAs of the next scores are in flight before the current values are multiplied. Loads move with the
    step that reads them. Legal on the split of a fused definition whose steps are directly in the loop. The deferred steps must not write
    data that the preceding steps of the next iteration access, and conversely. A buffer that both access needs at least two stages.
    rewrite: for i: F(i) R(i) D(i) --> F(0) R(0); for i in all but the last: F(i+1) D(i) R(i+1); D(last)
    """
    return Defer(step, after)


EXAMPLES = (Defer("pv", "s"),)
"""Examples of the class, which has no default arguments."""

__all__ = ["Defer"]
