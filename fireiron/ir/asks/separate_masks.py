"""Iterations without masks as a separate loop: `separate_masked_tiles` on a split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from fireiron.frozen import frozen
from fireiron.ir.ask import Ask
from fireiron.values.expr import Expr


@frozen
class SeparateMasks(Ask):
    """Run the iterations in which no mask applies in a loop without masks."""

    taker: ClassVar[str] = "separate_masks"
    options: ClassVar[tuple[str, ...]] = ("separate_masks",)
    separate: bool = False

    def written(self, text_of: Callable[[Expr], str]) -> Mapping[str, str]:
        return {"separate_masks": ""} if self.separate else {}

    @classmethod
    def read(cls, options: Mapping[str, str], expression_of: Callable[[str], Expr]) -> SeparateMasks:
        return SeparateMasks("separate_masks" in options)


__all__ = ["SeparateMasks"]
