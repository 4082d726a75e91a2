"""Minimum number of resident blocks per SM."""

from __future__ import annotations

from fireiron.frozen import frozen
from fireiron.ir.effect import Effect


@frozen
class Residency(Effect):
    """The compiler limits registers so that `blocks` blocks fit on an SM; 0: no limit."""

    blocks: int = 0


__all__ = ["Residency"]
