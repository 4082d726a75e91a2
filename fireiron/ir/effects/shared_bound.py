"""How much shared memory a block may take."""

from __future__ import annotations

import attrs

from fireiron.ir.effect import Effect


@attrs.frozen
class SharedBound(Effect):
    """A block takes at most `bytes` of shared memory; 0: what the target has."""

    bytes: int = 0


__all__ = ["SharedBound"]
