"""The order in which tiles are dealt to units: `ColMajor` deals rows first (Fireiron, section 4.2)."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.tensor import MatrixLayout
from fireiron.tree import Refinement


@attrs.frozen
class Layout(Refinement):
    """The order in which tiles are dealt to units: `ColMajor` deals rows first (Fireiron, section 4.2)."""

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    order: MatrixLayout

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, order=self.order)

    def __str__(self) -> str:
        return f"layout({self.order})"
