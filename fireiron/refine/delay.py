"""The end of a turn of a loop is done in the next one, behind a step that does not need it: `delay` on the split of a fused definition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, call_site
from fireiron.ir.asks.delayed import Delayed
from fireiron.language.tree import Context, Decomposition, Refinement, verb
from fireiron.spec import Spec
from fireiron.specs.fused import fused


@attrs.frozen
class Delay(Refinement):
    """A step, and all behind it in a turn of the loop, is done in the next turn, behind the step `behind` of that one.

    So `behind` of a turn is there before the end of the turn before begins, and engines are busy with both while threads do the rest. Loads
    move with the step that reads them.
    Legal on the split of a fused definition whose steps stand directly in the loop, where what is delayed and what comes in front of it, of
    the turn behind, do not write what the other one touches: a stage of a pipeline of at least two where both read it.
    rewrite: for i: F(i) R(i) D(i) --> F(0) R(0); for i in all but the last: F(i+1) D(i) R(i+1); D(last)

    Source: Cypress, section 5.3; decision 41.

    >>> from fireiron import *
    >>> from fireiron.strategies import hopper_attention
    >>> [str(one) for one in hopper_attention.in_turns.at(Split).step.refinements if isinstance(one, Delay)]
    ['delay("pv", behind="s")']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)
    step: str
    behind: str

    def __attrs_post_init__(self) -> None:
        for name in (self.step, self.behind):
            if not isinstance(name, str) or not name:
                raise ArgumentError(
                    "delay: the names of two steps of the definition", got=name, legal='delay("pv", behind="s")', at=call_site()
                )

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[Delay]:
        made = fused(spec)
        names = () if made is None else made.names
        yield from (Delay(later, first) for first, later in itertools.combinations(names, 2))

    def plan(self, plan: Any) -> Any:
        return plan.asking(Delayed(self.step, self.behind))

    def __str__(self) -> str:
        return f'delay("{self.step}", behind="{self.behind}")'


@verb()
def delay(step: str, behind: str) -> Delay:
    """Do a step, and all behind it in a turn of the loop, in the next turn, behind the step `behind` of that one.

    `delay("pv", behind="s")`: the scores of the next keys are on their way before the values of these are multiplied. Loads move with
    the step that reads them. Legal on the split of a fused definition whose steps stand directly in the loop, where the two parts, of
    one turn and the next, do not write what the other touches; stages of a pipeline, at least two, are apart.
    rewrite: for i: F(i) R(i) D(i) --> F(0) R(0); for i in all but the last: F(i+1) D(i) R(i+1); D(last)
    """
    return Delay(step, behind)


EXAMPLES = (Delay("pv", "s"),)
"""Any of the kind, which cannot be made without arguments."""

__all__ = ["Delay"]
