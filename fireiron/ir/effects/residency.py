"""How many blocks a multiprocessor shall hold at once."""

from __future__ import annotations

import attrs

from fireiron.ir.effect import Effect


@attrs.frozen
class Residency(Effect):
    """A multiprocessor holds `blocks` blocks at once, so the compiler keeps to fewer registers; 0: as it comes."""

    blocks: int = 0


__all__ = ["Residency"]
