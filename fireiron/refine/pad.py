"""`elements` extra elements in the leading dimension of the new buffer, against bank conflicts."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement
from fireiron.language.tunable import chosen, integral

MOST = 4096
"""The largest pad, in elements."""


def _elements(value: Any) -> Any:
    return integral(value, "pad")


@attrs.frozen
class Pad(Refinement):
    """`elements` extra elements in the leading dimension of the new buffer, against bank conflicts.

    Legal from 0 to 4096; a tunable may stand for the number. rewrite: A_sh[8][128] --> A_sh[8][128 + elements]
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load", "split_k")
    elements: Any = attrs.field(converter=_elements)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, pad=chosen(self.elements, "pad", 0, MOST))

    def __str__(self) -> str:
        return f"pad({self.elements})"


__all__ = ["Pad"]
