"""A different first iteration in each block, for a loop over a reduction dimension: `stagger_blocks` on a split."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.language.tree import Refinement
from fireiron.language.tunable import Integer, chosen, integral

MOST = 1 << 10
"""Maximum offset between consecutive blocks, in iterations."""


def _offset(value: Any) -> Any:
    return integral(value, "stagger_blocks")


@frozen
class StaggerBlocks(Refinement):
    """Begin the loop of block `b` at iteration `b * offset` and wrap around, so that blocks do not read the same columns at the same time.

    If rows are long, the elements of a column map to few memory channels (Tensile: "StaggerU"). The order of accumulation changes. Legal
    after a tile distributed over blocks, on a split of one dimension into contiguous parts, of operands in global memory: of a matmul, of a
    reduction, or of a definition whose iterations only add to values that they share. The blocks of a cluster begin at the same iteration.
    The number may be a tunable; 0 has no effect.
    rewrite: for k: S(k) --> for k: S((k + block * offset) % iterations)

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(32, 32).to(Block)
    >>> loads = blocks.split(8).stagger_blocks(1).load(A, SH).load(B, SH)
    >>> text = loads.tile(4, 4).to(Thread).tile(1, 1).split(1).done().cuda()
    >>> [line.strip() for line in text.splitlines() if "int k_shifted" in line]
    ['const int k_shifted = (k + block) % 8;']

    Source: docs/pipeline.md.
    """

    applies_to: ClassVar[tuple[str, ...]] = ("split",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((0,), (1,), (2,), (5,))
    verb: ClassVar[str] = "stagger_blocks"
    offset: Integer = attrs.field(default=1, converter=_offset)

    @property
    def idle(self) -> bool:
        return bool(self.offset == 0)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, stagger=chosen(self.offset, "stagger_blocks", 0, MOST))


__all__ = ["StaggerBlocks"]
