"""Tiles are dealt to the units of a level, in parallel (Fireiron, section 4.2)."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.machine import Level
from fireiron.tree import Refinement


@attrs.frozen
class To(Refinement):
    """Tiles are dealt to the units of a level, in parallel (Fireiron, section 4.2)."""

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    level: Level

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, level=self.level)

    def __str__(self) -> str:
        return f"to({self.level})"
