"""Software pipelining of a loop: `defer` on the split of a definition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from fireiron.frozen import frozen
from fireiron.ir.ask import Ask, pair_of
from fireiron.values.expr import Expr


@frozen
class Deferred(Ask):
    """All steps of a definition from `step` on run in the next iteration, after its step `after`."""

    taker: ClassVar[str] = "defer"
    options: ClassVar[tuple[str, ...]] = ("defer=step:after",)
    step: str = ""
    after: str = ""

    def written(self, text_of: Callable[[Expr], str]) -> Mapping[str, str]:
        return {"defer": f"{self.step}:{self.after}"}

    @classmethod
    def read(cls, options: Mapping[str, str], expression_of: Callable[[str], Expr]) -> Deferred:
        return Deferred(*pair_of(options, "defer"))


__all__ = ["Deferred"]
