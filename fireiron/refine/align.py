"""Alignment of a buffer: `align` on a load."""

from __future__ import annotations

from typing import Any, ClassVar, SupportsIndex

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.language.tree import Refinement, verb
from fireiron.values.machine import as_integer


def _alignment(value: Any) -> int:
    number = as_integer(value)
    if number is None or not 1 <= number <= 1024 or number & (number - 1):
        raise DecompositionError("align: bytes must be a power of two up to 1024", got=value, legal="1 2 4 ... 1024", at=call_site())
    return number


@frozen
class Align(Refinement):
    """Align the new buffer to a multiple of `bytes`.

    Legal for a power of two up to 1024. rewrite: load(A, SH) --> the same load, its buffer with __align__(bytes)

    Source: Fireiron, section 4.2.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
    >>> loads = blocks.split(8).load(A, SH).align(128).load(B, SH)
    >>> text = loads.tile(4, 4).to(Thread).tile(1, 1).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "float a_sh" in line]
    ['__shared__ __align__(128) float a_sh[256];  // 32 x 8']
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = tuple((1 << power,) for power in range(11))
    bytes: int = attrs.field(converter=_alignment)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, align=self.bytes)

    def __str__(self) -> str:
        return f"align({self.bytes})"


@verb()
def align(number: SupportsIndex) -> Align:
    """Align the new buffer to a multiple of `number` bytes.

    Legal for a power of two up to 1024. rewrite: load(A, SH) --> the same load, its buffer with __align__(number)
    """
    return Align(number)


__all__ = ["Align"]
