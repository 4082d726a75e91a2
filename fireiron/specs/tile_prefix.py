"""`TilePrefix`, `StatePrefix`: the part of a scan or of a recurrence before a tile, which a block obtains from the blocks before it.

>>> from fireiron import *
>>> print(TilePrefix(2, 1)(SH, GL, SH)(Block))
TilePrefix(2,1)(SH,GL,SH)(Block)
"""

from __future__ import annotations

from typing import Final

from fireiron.spec import Kind, Parameter
from fireiron.specs.formula import RECURRENCE, SCANS

TilePrefix: Final = Kind(
    "TilePrefix", "words[...,t] = {by}(t, src[...,t]); dst[...,t] = {by}(t, src[...,t])",
    (Parameter("by", "cumsum", text=True, legal=tuple(SCANS)),),
).starter  # fmt: skip
"""`TilePrefix(M, 1, by="cumsum")`: publish the totals `src` of a tile in `words`; `dst` combines the totals of all tiles before it.

`words` is a view of one tile of an array in a workspace with an element for each row and each tile. Source: decision 102.
"""

StatePrefix: Final = Kind(
    "StatePrefix",
    f"words[...,t] = {RECURRENCE}(t, factor[...,t], src[...,t]); factors[...,t] = cumprod(t, factor[...,t]); "
    f"dst[...,t] = {RECURRENCE}(t, factor[...,t], src[...,t])",
).starter
"""`StatePrefix(M, 1)`: publish the factor and the value of a tile of a linear recurrence; `dst` is the state after all tiles before it.

Source: decision 102.
"""

__all__ = ["StatePrefix", "TilePrefix"]
