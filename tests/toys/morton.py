"""A user-defined tile order, Morton's curve, and the refinement that states it: tiles adjacent in time are near each other in the grid.

The bits of a tile's number are the interleaved bits of its indices (Morton 1966). This reaches all tiles if each dimension has one or the
same power of two of them.
"""

from typing import ClassVar

import attrs

from fireiron import Refinement
from fireiron.language.tile_assignment import Pair, Place
from fireiron.values.expr import as_expr, mod


@attrs.frozen
class OnMortonCurve(Place):
    """Tile number u has the bits of u as the bits of its indices, those of the fastest digit first."""

    name: ClassVar[str] = "morton"
    illegal: ClassVar = (Pair("morton", ("rasterize",), "{0} walks through the whole grid, without {1}", "{0}, or {1}"),)

    def tile(self, spec, digits, unit, names):
        bits = max((digit.size.high - 1 for digit in digits), default=0).bit_length()
        places = [[(bit, bit * len(digits) + position) for bit in range(bits)] for position in range(len(digits))]
        return [
            (digit, sum((mod(unit // 2**source, as_expr(2)) * 2**bit for bit, source in place), as_expr(0)))
            for digit, place in zip(digits, places, strict=True)
        ]


@attrs.frozen
class Morton(Refinement):
    """`tile(..).to(Block)` of blocks that follow Morton's curve."""

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)

    def plan(self, plan):
        return plan.with_order(OnMortonCurve())
