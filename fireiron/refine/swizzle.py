"""Addresses in the new buffer are XORed as the swizzle says, against bank conflicts: `swizzle` on a load."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError
from fireiron.layout import Swizzle
from fireiron.tree import Refinement, call_site


@attrs.frozen
class SwizzleStorage(Refinement):
    """Addresses in the new buffer are XORed as the swizzle says, against bank conflicts: `swizzle` on a load.

    Legal for every `Swizzle`; the buffer grows to a multiple of its period. rewrite: A_sh[i] --> A_sh[swizzle(i)]
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load",)
    swizzle: Swizzle

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.swizzle, Swizzle):
            raise DecompositionError(
                "swizzle of a load: not a Swizzle", got=self.swizzle, legal="Swizzle(bits, base, shift)", at=call_site()
            )

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, swizzle=self.swizzle)

    def __str__(self) -> str:
        return f"swizzle({self.swizzle!r})"
