"""How many groups of products run on while the next ones are issued: `in_flight` on a specialized split."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement
from fireiron.language.tunable import chosen, integral

MOST = 7
"""The most groups: more turns than a ring usually has."""


def _groups(value: Any) -> Any:
    return integral(value, "in_flight")


@attrs.frozen
class InFlight(Refinement):
    """So many groups of products may still run while the next ones are issued, and their stages are released that much later.

    Products that nothing separates are one group, so a turn has one or several. Legal on a split with `specialize`, from 0 to one less than
    its stages. Left out, products that other statements of the loop wait for run until there; where there are none it is 1 for one
    consumer warpgroup, and 0 for several, of which each fills the gaps of the others.
    rewrite: products(k); wait all; say empty(k) --> products(k); wait all but `groups`; say empty(k - groups)
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)
    groups: Any = attrs.field(converter=_groups)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, in_flight=chosen(self.groups, "in_flight", 0, MOST))

    def __str__(self) -> str:
        return f"in_flight({self.groups})"


__all__ = ["InFlight"]
