"""Warpgroups that issue their MMAs in a fixed order: `order_mma` on the split of a definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from fireiron.frozen import frozen
from fireiron.ir.ask import Ask, pair_of
from fireiron.values.expr import Expr


@frozen
class OrderedMma(Ask):
    """Warpgroups issue the MMAs from step `first` to step `last` one warpgroup after the other.

    After the pass `walk`, `first` and `last` are the registers that the MMAs of these steps write.
    """

    taker: ClassVar[str] = "order_mma"
    options: ClassVar[tuple[str, ...]] = ("ordered_mma=first:last",)
    first: str = ""
    last: str = ""

    def written(self, text_of: Callable[[Expr], str]) -> Mapping[str, str]:
        return {"ordered_mma": f"{self.first}:{self.last}"}

    @classmethod
    def read(cls, options: Mapping[str, str], expression_of: Callable[[str], Expr]) -> OrderedMma:
        return OrderedMma(*pair_of(options, "ordered_mma"))


__all__ = ["OrderedMma"]
