"""Stores by a dedicated warp: `warp_specialize(store_stages=)` on a split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from fireiron.frozen import frozen
from fireiron.ir.ask import Ask, number_of
from fireiron.values.expr import Expr


@frozen
class Storing(Ask):
    """Tiles for TMA stores go through circular buffers of `stages` stages: threads write the stages, and a separate warp stores them."""

    taker: ClassVar[str] = "store_rings"
    options: ClassVar[tuple[str, ...]] = ("store_stages=2",)
    stages: int = 0

    def written(self, text_of: Callable[[Expr], str]) -> Mapping[str, str]:
        return {"store_stages": str(self.stages)} if self.stages else {}

    @classmethod
    def read(cls, options: Mapping[str, str], expression_of: Callable[[str], Expr]) -> Storing:
        return Storing(number_of(options, "store_stages", 0))


__all__ = ["Storing"]
