"""The order of tiles on the grid that keeps neighbours in time near each other: `bands` on a tile dealt to Block."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement
from fireiron.language.tunable import chosen, integral


def _rows(value: Any) -> Any:
    return integral(value, "bands")


@attrs.frozen
class Bands(Refinement):
    """Blocks walk down `rows` tile rows before they go one tile column on, so that blocks that run together share the L2 cache.

    Legal on a tile of two dimensions that is dealt to Block, for any number of tiles; a tunable may stand for the number.
    rewrite: block u: tile (u // columns, u % columns) --> block u: tile (band * rows + u % rows, u // rows) in each band
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    rows: Any = attrs.field(converter=_rows)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, bands=chosen(self.rows, "bands"))

    def __str__(self) -> str:
        return f"bands({self.rows})"


__all__ = ["Bands"]
