"""No barrier may stand right behind the copy; refused where a race would need one there."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement


@attrs.frozen
class NoSync(Refinement):
    """No barrier may stand right behind the copy; refused where a race would need one there.

    Legal where another barrier orders the copy and its readers. rewrite: copy; barrier; copy --> copy; copy
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load",)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, no_sync="no_sync")

    def __str__(self) -> str:
        return "no_sync()"


__all__ = ["NoSync"]
