"""Loads by dedicated threads: `warp_specialize` on a split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from fireiron.frozen import frozen
from fireiron.ir.ask import Ask, number_of
from fireiron.values.expr import Expr


@frozen
class ProducerThreads(Ask):
    """The stages of the loop are a ring that `threads` producer threads fill.

    With `copies`, they also issue the loads that do not use TMA. The loads of each array in `separate` have a separate producer.
    """

    taker: ClassVar[str] = "specialize"
    options: ClassVar[tuple[str, ...]] = ("producer_threads=32", "copies", "separate=A:B")
    threads: int = 0
    copies: bool = False
    separate: tuple[str, ...] = ()

    def written(self, text_of: Callable[[Expr], str]) -> Mapping[str, str]:
        separate = {"separate": ":".join(self.separate)} if self.separate else {}
        return {"producer_threads": str(self.threads), **({"copies": ""} if self.copies else {}), **separate}

    @classmethod
    def read(cls, options: Mapping[str, str], expression_of: Callable[[str], Expr]) -> ProducerThreads:
        separate = tuple(name.strip() for name in options.get("separate", "").split(":") if name.strip())
        return ProducerThreads(number_of(options, "producer_threads", 0), "copies" in options, separate)


__all__ = ["ProducerThreads"]
