"""Races that the user accepts."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from fireiron.frozen import frozen
from fireiron.ir.effect import Effect


def _once(reasons: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reasons))


@frozen
class Unchecked(Effect):
    """Races are reported as warnings; the user states the `reasons`."""

    reasons: tuple[str, ...] = attrs.field(default=(), converter=_once)

    def joined(self, inner: Unchecked) -> Unchecked:
        return Unchecked((*self.reasons, *inner.reasons))


__all__ = ["Unchecked"]
