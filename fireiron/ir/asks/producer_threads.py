"""Loads by threads of their own: `warp_specialize` on a split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import attrs

from fireiron.ir.ask import Ask, number_of
from fireiron.values.expr import Expr


@attrs.frozen
class ProducerThreads(Ask):
    """The stages of the loop are a ring, which so many `threads` of their own fill; with `copies` they copy what engines do not load."""

    taker: ClassVar[str] = "specialize"
    options: ClassVar[tuple[str, ...]] = ("producer_threads=32", "copies")
    threads: int = 0
    copies: bool = False

    def written(self, text_of: Callable[[Expr], str]) -> Mapping[str, str]:
        return {"producer_threads": str(self.threads), **({"copies": ""} if self.copies else {})}

    @classmethod
    def read(cls, options: Mapping[str, str], expression_of: Callable[[str], Expr]) -> ProducerThreads:
        return ProducerThreads(number_of(options, "producer_threads", 0), "copies" in options)


__all__ = ["ProducerThreads"]
