"""An upper bound of a block's shared memory, within which arrays share bytes: `within` on a tile dealt to Block."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement
from fireiron.language.tunable import chosen, integral

MOST = 1 << 20
"""The largest bound, in bytes: more than any multiprocessor has."""


def _bytes(value: Any) -> Any:
    return integral(value, "within")


@attrs.frozen
class Within(Refinement):
    """A block takes at most `bytes` of shared memory; arrays that are never in use together share bytes, as few of them as that needs.

    Legal on a tile that is dealt to Block, for 16 bytes to 1 MiB; a tunable may stand for the number. Refused where the arrays that are in
    use together are too large.
    rewrite: two arrays --> one array, and a barrier between their uses, until all fit
    """

    verb: ClassVar[str] = "within"
    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    bytes: Any = attrs.field(converter=_bytes)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, within=chosen(self.bytes, "within", 16, MOST))


__all__ = ["Within"]
