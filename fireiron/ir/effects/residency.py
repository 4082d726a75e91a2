"""Minimum number of resident blocks per SM."""

from __future__ import annotations

import attrs

from fireiron.ir.effect import Effect


@attrs.frozen
class Residency(Effect):
    """The compiler limits registers so that `blocks` blocks fit on an SM; 0: no limit."""

    blocks: int = 0


__all__ = ["Residency"]
