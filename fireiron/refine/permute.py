"""Unit `uid` takes the tile that the expression names: `swizzle` on a tile (Fireiron, section 4.2)."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.expr import Expr
from fireiron.tree import Refinement


@attrs.frozen
class Permute(Refinement):
    """Unit `uid` takes the tile that the expression names: `swizzle` on a tile (Fireiron, section 4.2)."""

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    permutation: Expr

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, permutation=self.permutation)

    def __str__(self) -> str:
        return f"swizzle({str(self.permutation)!r})"
