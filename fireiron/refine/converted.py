"""The new buffer has the element type of the copy's destination, so that less is staged: `converted` on a load."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement


@attrs.frozen
class Converted(Refinement):
    """The new buffer has the element type of the copy's destination: what is converted anyway is converted on the way in.

    Legal on the load of a Move's source. rewrite: Move(float32); Move(float32 -> float16) --> Move(float32 -> float16); Move(float16)
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load",)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, converted=True)

    def __str__(self) -> str:
        return "converted()"


__all__ = ["Converted"]
