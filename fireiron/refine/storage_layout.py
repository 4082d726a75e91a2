"""The new buffer is stored row- or column-major, or as a hierarchical layout says."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.layout import Layout
from fireiron.tensor import MatrixLayout
from fireiron.tree import Refinement


@attrs.frozen
class StorageLayout(Refinement):
    """The new buffer is stored row- or column-major, or as a hierarchical layout says."""

    applies_to: ClassVar[tuple[str, ...]] = ("load",)
    layout: MatrixLayout | Layout

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, layout=self.layout)

    def __str__(self) -> str:
        return f"storage_layout({self.layout})"
