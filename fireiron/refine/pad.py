"""`elements` extra elements in the leading dimension of the new buffer, against bank conflicts."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.tree import Refinement


@attrs.frozen
class Pad(Refinement):
    """`elements` extra elements in the leading dimension of the new buffer, against bank conflicts."""

    applies_to: ClassVar[tuple[str, ...]] = ("load",)
    elements: int

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, pad=self.elements)

    def __str__(self) -> str:
        return f"pad({self.elements})"
