"""Kernels that begin while the one before them in a stream ends (programmatic dependent launch)."""

from __future__ import annotations

import attrs

from fireiron.ir.effect import Effect


@attrs.frozen
class Chaining(Effect):
    """The kernel begins while the one before ends, and waits for it by itself, if it is `chained`; `ready` are the parameters that no
    kernel before writes.
    """

    chained: bool = False
    ready: tuple[str, ...] = ()

    def joined(self, inner: Chaining) -> Chaining:
        return Chaining(inner.chained or self.chained, inner.ready or self.ready)


__all__ = ["Chaining"]
