"""Programmatic dependent launch: the kernel starts before the preceding kernel of the stream ends."""

from __future__ import annotations

import attrs

from fireiron.ir.effect import Effect


@attrs.frozen
class Chaining(Effect):
    """If `chained`, the kernel is launched with programmatic dependent launch and waits for the preceding kernel itself. No preceding
    kernel writes the parameters `ready`.
    """

    chained: bool = False
    ready: tuple[str, ...] = ()

    def joined(self, inner: Chaining) -> Chaining:
        return Chaining(inner.chained or self.chained, inner.ready or self.ready)


__all__ = ["Chaining"]
