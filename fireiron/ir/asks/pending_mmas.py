"""MMAs in flight: `mma_in_flight` on a split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from fireiron.frozen import frozen
from fireiron.ir.ask import Ask, number_of
from fireiron.values.expr import Expr


@frozen
class PendingMmas(Ask):
    """At most `groups` wgmma groups stay in flight when the next iteration begins; None: the compiler chooses."""

    taker: ClassVar[str] = "wgmma_waits"
    options: ClassVar[tuple[str, ...]] = ("mma_in_flight=1",)
    groups: int | None = None

    def written(self, text_of: Callable[[Expr], str]) -> Mapping[str, str]:
        return {"mma_in_flight": str(self.groups)}

    @classmethod
    def read(cls, options: Mapping[str, str], expression_of: Callable[[str], Expr]) -> PendingMmas:
        return PendingMmas(number_of(options, "mma_in_flight", 0))


__all__ = ["PendingMmas"]
