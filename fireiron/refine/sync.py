"""A block barrier stands last in the body of the loop."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement


@attrs.frozen
class Sync(Refinement):
    """A block barrier stands last in the body of the loop.

    Legal where all threads of the block run the loop. rewrite: for k: S --> for k: { S; barrier }
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, sync="sync")

    def __str__(self) -> str:
        return "sync()"


__all__ = ["Sync"]
