"""Outputs that are zeroed before a launch."""

from __future__ import annotations

import attrs

from fireiron.ir.effect import Effect


@attrs.frozen
class Zeroed(Effect):
    """The launcher sets the outputs `names` to zero before the launch, since blocks add to them."""

    names: tuple[str, ...] = ()

    def joined(self, inner: Zeroed) -> Zeroed:
        return Zeroed(tuple(dict.fromkeys((*self.names, *inner.names))))


__all__ = ["Zeroed"]
