"""Outputs that are set to zero, or to another number, before a launch."""

from __future__ import annotations

from typing import Any

from fireiron.frozen import frozen
from fireiron.ir.effect import Effect


@frozen
class Zeroed(Effect):
    """The launcher sets the outputs `names` before the launch, since blocks combine values in them: to zero, or to a number of `values`.

    >>> effect = Zeroed(("total",)).joined(Zeroed(("top",), (("top", -float("inf")),)))
    >>> effect.names, effect.value("total"), effect.value("top")
    (('total', 'top'), 0, -inf)
    """

    names: tuple[str, ...] = ()
    values: tuple[tuple[str, int | float], ...] = ()

    def joined(self, inner: Zeroed) -> Zeroed:
        return Zeroed(tuple(dict.fromkeys((*self.names, *inner.names))), tuple(dict((*self.values, *inner.values)).items()))

    def value(self, name: str) -> int | float:
        """The number to which an output is set."""
        return dict(self.values).get(name, 0)

    def bits(self, name: str, dtype: Any) -> int:
        """The 32 bits of that number in an element type of 32 bits; 0 for zero in any type."""
        import numpy

        value = self.value(name)
        return 0 if value == 0 else int(numpy.asarray(value, dtype.to_numpy()).view(numpy.uint32))


__all__ = ["Zeroed"]
