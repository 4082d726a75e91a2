"""The new buffer may share storage with earlier buffers of the same memory that are dead."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement


@attrs.frozen
class ReuseBuffer(Refinement):
    """The new buffer may share storage with earlier buffers of the same memory that are dead.

    Legal when such a buffer exists. rewrite: two arrays --> one array, and a barrier between their uses
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load",)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, reuse=True)

    def __str__(self) -> str:
        return "reuse_buffer()"


__all__ = ["ReuseBuffer"]
