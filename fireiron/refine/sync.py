"""A block barrier stands last in the body of the loop."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.tree import Refinement


@attrs.frozen
class Sync(Refinement):
    """A block barrier stands last in the body of the loop."""

    applies_to: ClassVar[tuple[str, ...]] = ("split",)


    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, sync="sync")

    def __str__(self) -> str:
        return "sync()"
