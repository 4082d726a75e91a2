"""The new buffer is stored row- or column-major, or as a hierarchical layout says."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.language.tree import Refinement
from fireiron.values.layout import Layout
from fireiron.values.tensor import MatrixLayout


@attrs.frozen
class StorageLayout(Refinement):
    """The new buffer is stored row- or column-major, or as a hierarchical layout says.

    Legal for a layout whose shape is the buffer's. rewrite: A_sh[k][m] --> A_sh[m][k]
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load",)
    layout: MatrixLayout | Layout

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.layout, (MatrixLayout, Layout)):
            raise DecompositionError(
                "storage_layout: not a layout", got=self.layout, legal="RowMajor ColMajor Layout(shape, stride)", at=call_site()
            )

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, layout=self.layout)

    def __str__(self) -> str:
        return f"storage_layout({self.layout!r})"


__all__ = ["StorageLayout"]
