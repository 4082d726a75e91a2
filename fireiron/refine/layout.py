"""The order in which tiles are dealt to units: `ColMajor` deals rows first (Fireiron, section 4.2)."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.language.tree import Refinement
from fireiron.values.tensor import MatrixLayout


@attrs.frozen
class DealOrder(Refinement):
    """The order in which tiles are dealt to units: `ColMajor` deals rows first (Fireiron, section 4.2).

    Legal on a tile that is dealt with `to`. rewrite: tile (u // columns, u % columns) --> tile (u % rows, u // rows)
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    order: MatrixLayout

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.order, MatrixLayout) or self.order.leading is not None:
            raise DecompositionError("layout: an order of tiles", got=self.order, legal="RowMajor ColMajor", at=call_site())

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, order=self.order)

    def __str__(self) -> str:
        return f"layout({self.order})"


__all__ = ["DealOrder"]
