"""Loads ahead of their use: `pipeline` on a split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from fireiron.frozen import frozen
from fireiron.ir.ask import Ask, number_of
from fireiron.values.expr import Expr


@frozen
class Pipelined(Ask):
    """The loads of `stages` iterations are in flight; with `interleave`, loads are issued between the iterations of the inner loop."""

    taker: ClassVar[str] = "pipeline"
    options: ClassVar[tuple[str, ...]] = ("stages=2", "interleave")
    stages: int = 0
    interleave: bool = False

    def written(self, text_of: Callable[[Expr], str]) -> Mapping[str, str]:
        return ({"interleave": ""} if self.interleave else {}) | ({"stages": str(self.stages)} if self.stages else {})

    @classmethod
    def read(cls, options: Mapping[str, str], expression_of: Callable[[str], Expr]) -> Pipelined:
        return Pipelined(number_of(options, "stages", 0), "interleave" in options)


__all__ = ["Pipelined"]
