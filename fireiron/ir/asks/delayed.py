"""The end of a turn done in the next one: `defer` on the split of a definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import attrs

from fireiron.ir.ask import Ask, pair_of
from fireiron.values.expr import Expr


@attrs.frozen
class Delayed(Ask):
    """All steps of a definition from `step` on are done behind the step `behind` of the next iteration."""

    taker: ClassVar[str] = "rotate"
    options: ClassVar[tuple[str, ...]] = ("delay=step:behind",)
    step: str = ""
    behind: str = ""

    def written(self, text_of: Callable[[Expr], str]) -> Mapping[str, str]:
        return {"delay": f"{self.step}:{self.behind}"}

    @classmethod
    def read(cls, options: Mapping[str, str], expression_of: Callable[[str], Expr]) -> Delayed:
        return Delayed(*pair_of(options, "delay"))


__all__ = ["Delayed"]
