"""The ring that a load fills has a number of stages of its own: `stages` on a load."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, count, integral

MOST = 16
"""Most stages; a stage is a whole buffer."""


def _stages(value: Any) -> Any:
    return integral(value, "stages")


@attrs.frozen
class OwnStages(Refinement):
    """The load runs ahead by a number of stages of its own, in place of those that `pipeline` gives to all loads of the split.

    Legal from 1 to 16 on a load to SH directly under a split with `specialize`, whose producer waits for each ring by itself; a tunable
    may stand for the number. Buffers that the same statements use share a ring only where they have as many stages. Where threads do the
    loads, as no engine can, all have the stages of `pipeline`.
    rewrite: A_sh[k % pipeline] --> A_sh[k % stages]

    Source: decision 27.

    >>> from fireiron import *
    >>> halves = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    >>> blocks = MatMul(512, 512, 512, **halves)(GL, GL, GL)(Kernel).tile(128, 64).to(Block)
    >>> turns = blocks.epilog(RF, float32).split(64).pipeline(3).specialize()
    >>> loads = turns.load(A, SH, Move.done()).stages(2).load(B, SH, Move.done())
    >>> text = loads.tile(64, 64).to(Warpgroup).done().cuda()
    >>> for line in text.splitlines():
    ...     if " copies" in line:
    ...         print(line.strip())
    __half* const a_sh = reinterpret_cast<__half*>(smem);  // 128 x 64, 2 copies
    __half* const b_sh = reinterpret_cast<__half*>(smem + 32768);  // 64 x 64, 3 copies
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load",)
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((1,), (2,), (3,), (4,), (5,))
    stages: Any = attrs.field(converter=_stages)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, stages=chosen(self.stages, "stages", 1, MOST))

    def __str__(self) -> str:
        return f"stages({self.stages})"


@verb()
def stages(stages: Integer) -> OwnStages:
    """The ring that the load fills has `stages` of its own, not as many as `pipeline` says.

    Legal on a load to SH directly under a split with `specialize`, from 1 to 16, for a number or a tunable. Each ring is waited for
    by itself. rewrite: A_sh[k % pipeline] --> A_sh[k % stages]
    """
    return OwnStages(count(stages, "stages"))


__all__ = ["OwnStages"]
