"""`rasterize`: blocks compute groups of tile rows, so that concurrent blocks share operands in L2."""

from __future__ import annotations

from typing import ClassVar

from fireiron.derive.facts import Facts
from fireiron.derive.rule import Rule, Trick
from fireiron.derive.sketch import Decision, Sketch, call
from fireiron.frozen import frozen

RANK = 50


@frozen
class RasterizeTiles(Trick):
    """Number tiles in groups of rows."""

    name: ClassVar[str] = "rasterize"

    def refusal(self, facts: Facts, sketch: Sketch) -> str:
        if not sketch.family or not sketch.has("blocks"):
            return "the strategy multiplies no matrices"
        has_tiles = any(decision.name == "tile" for decision in sketch.decisions)
        return "" if has_tiles else "blocks have tiles along one dimension only"

    def amend(self, facts: Facts, sketch: Sketch) -> Sketch:
        group = Decision.of("group_m", (8, 4, 16), "{group_m} tile rows per group")
        named = sketch.refined("blocks", call("rasterize", group_m=group["group_m"])).deciding(group)
        return named.by(self.name, "concurrent blocks read the same rows and columns from L2; matters if the operands exceed L2")


RULES: tuple[Rule, ...] = (RasterizeTiles(),)
