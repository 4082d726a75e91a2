"""Programmatic dependent launch: the kernel starts before the preceding kernel of the stream ends."""

from __future__ import annotations

from fireiron.frozen import frozen
from fireiron.ir.effect import Effect


@frozen
class DependentLaunch(Effect):
    """If `enabled`, the kernel is launched with programmatic dependent launch and itself waits for the preceding kernel.

    It may read the parameters `no_wait` before the wait, because no preceding kernel writes them.
    """

    enabled: bool = False
    no_wait: tuple[str, ...] = ()

    def joined(self, inner: DependentLaunch) -> DependentLaunch:
        return DependentLaunch(inner.enabled or self.enabled, inner.no_wait or self.no_wait)


__all__ = ["DependentLaunch"]
