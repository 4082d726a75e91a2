"""The vectors of an epilogue are fetched in front of the product: `ahead` on an epilog."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, call_site
from fireiron.language.tree import Refinement


@attrs.frozen
class Ahead(Refinement):
    """Vectors that an epilogue reads, such as `bias[n]` or `scale[m]`, are copied to shared memory in front of the product.

    Nobody waits for them behind it: they are on their way while the products run.
    In a kernel with `specialize` the producer fetches it by TMA, for a persistent block while the tile before is computed; else all threads
    copy it. Legal on an epilog; where nothing of the kind is read it changes nothing. `MatMul.epilogue` takes it by itself for a strategy
    with `specialize`, unless the strategy says `ahead(fetched=False)`.
    rewrite: acc = sum(A B); C = f(acc, bias) --> bias_sh = bias; acc = sum(A B); C = f(acc, bias_sh)
    """

    verb: ClassVar[str] = "ahead"
    applies_to: ClassVar[tuple[str, ...]] = ("epilog",)
    fetched: bool = attrs.field(default=True)

    @fetched.validator
    def _is_bool(self, _field: Any, value: Any) -> None:
        if not isinstance(value, bool):
            raise ArgumentError("ahead: True or False", got=value, at=call_site())

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, ahead=self.fetched)


__all__ = ["Ahead"]
