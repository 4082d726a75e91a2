"""Consumer groups that process tiles alternately: `pingpong` on a persistent tile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from fireiron.frozen import frozen
from fireiron.ir.ask import Ask, number_of
from fireiron.values.expr import Expr


@frozen
class ConsumerGroups(Ask):
    """`groups` consumer groups alternate the iterations of the loop."""

    taker: ClassVar[str] = "specialize"
    options: ClassVar[tuple[str, ...]] = ("consumer_groups=2",)
    groups: int = 1

    def written(self, text_of: Callable[[Expr], str]) -> Mapping[str, str]:
        return {"consumer_groups": str(self.groups)}

    @classmethod
    def read(cls, options: Mapping[str, str], expression_of: Callable[[str], Expr]) -> ConsumerGroups:
        return ConsumerGroups(number_of(options, "consumer_groups", 1))


__all__ = ["ConsumerGroups"]
