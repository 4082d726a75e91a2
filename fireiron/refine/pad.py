"""Padding against bank conflicts: `pad` on a load or a `split_k`."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, count, integral

MOST = 4096
"""The largest padding, in elements."""


def _elements(value: Any) -> Any:
    return integral(value, "pad")


@frozen
class Pad(Refinement):
    """Pad the leading dimension of the new buffer by `elements` elements, against bank conflicts.

    Legal from 0 to 4096; the number may be a tunable. rewrite: A_sh[8][128] --> A_sh[8][128 + elements]

    Source: Fireiron, section 4.2.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
    >>> loads = blocks.split(8).load(A, SH).pad(4).load(B, SH)
    >>> text = loads.tile(4, 4).to(Thread).tile(1, 1).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "float a_sh" in line]
    ['__shared__ __align__(16) float a_sh[288];  // 32 x 8']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load", "split_k")
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((1,), (2,), (4,), (8,), (16,))
    elements: Any = attrs.field(converter=_elements)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, pad=chosen(self.elements, "pad", 0, MOST))

    def __str__(self) -> str:
        return f"pad({self.elements})"


@verb("split_k", name="pad")
def pad_parts(elements: Integer) -> Pad:
    """Pad the leading dimension of the partial results by `elements` elements, instead of the default swizzle.

    Legal from 0 to 4096. Use 0 for instructions that support neither padding nor swizzles, such as WMMA.
    rewrite: P_sh[p][16][16] --> P_sh[p][16][16 + elements]
    """
    return Pad(count(elements, "pad", 0, MOST))


@verb("load")
def pad(elements: Integer) -> Pad:
    """Pad the leading dimension of the new buffer by `elements` elements, against bank conflicts.

    Legal from 0 to 4096. rewrite: A_sh[8][128] --> A_sh[8][128 + elements]
    """
    return Pad(count(elements, "pad", 0, MOST))


__all__ = ["Pad"]
