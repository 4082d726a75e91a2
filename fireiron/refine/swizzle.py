"""Addresses in the new buffer are XORed as the swizzle says, against bank conflicts: `swizzle` on a load."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.layout import Swizzle
from fireiron.tree import Refinement


@attrs.frozen
class SwizzleStorage(Refinement):
    """Addresses in the new buffer are XORed as the swizzle says, against bank conflicts: `swizzle` on a load."""

    applies_to: ClassVar[tuple[str, ...]] = ("load",)
    swizzle: Swizzle

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, swizzle=self.swizzle)

    def __str__(self) -> str:
        return f"swizzle({self.swizzle})"
