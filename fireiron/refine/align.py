"""The new buffer starts at a multiple of `bytes`."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.tree import Refinement


@attrs.frozen
class Align(Refinement):
    """The new buffer starts at a multiple of `bytes`."""

    applies_to: ClassVar[tuple[str, ...]] = ("load",)
    bytes: int

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, align=self.bytes)

    def __str__(self) -> str:
        return f"align({self.bytes})"
