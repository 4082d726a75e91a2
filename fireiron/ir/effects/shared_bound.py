"""Upper bound of shared memory per block."""

from __future__ import annotations

from fireiron.frozen import frozen
from fireiron.ir.effect import Effect


@frozen
class SharedBound(Effect):
    """A block uses at most `bytes` bytes of shared memory; 0: the limit of the target."""

    bytes: int = 0


__all__ = ["SharedBound"]
