"""The number of stages of one buffer: `stages` on a load, or on a `set_memory`."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.language.tree import Refinement, verb
from fireiron.language.tunable import Integer, chosen, count, integral

MOST = 16
"""Maximum number of stages. Each stage holds one copy of the buffer."""


def _stages(value: Any) -> Any:
    return integral(value, "stages")


@frozen
class Stages(Refinement):
    """Give the circular buffer of this load `stages` stages, instead of the number that `pipeline` gives to all loads of the split.

    On a `set_memory`, give the temporary `stages` copies that the iterations of the loop around it use alternately.

    Legal from 1 to 16 on a load to SH by a producer (`warp_specialize`), which waits for each circular buffer separately; the number may be
    a tunable. A load outside of the split is executed once per tile: persistent blocks give it two stages, with which the loads of the next
    tile are in flight during the current one, and `stages(1)` leaves the memory to other buffers. Buffers that the same statements
    access form one circular buffer only if they have the same number of stages. If threads copy because TMA cannot do the loads, all
    buffers have the stages of `pipeline`. Also legal on a `set_memory` in SH, below a split, of a temporary that is not carried between
    iterations.
    rewrite: A_sh[k % pipeline] --> A_sh[k % stages]

    Source: decision 27.

    >>> from fireiron import *
    >>> types = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor}
    >>> blocks = MatMul(512, 512, 512, **types)(GL, GL, GL)(Kernel).tile(128, 64).to(Block)
    >>> steps = blocks.epilog(RF, float32).split(64).pipeline(3).warp_specialize()
    >>> loads = steps.load(A, SH, Move.done()).stages(2).load(B, SH, Move.done())
    >>> text = loads.tile(64, 64).to(Warpgroup).done().cuda()
    >>> for line in text.splitlines():
    ...     if " stages" in line:
    ...         print(line.strip())
    __half* const a_sh = reinterpret_cast<__half*>(smem);  // 128 x 64, 2 stages
    __half* const b_sh = reinterpret_cast<__half*>(smem + b_sh_offset);  // 64 x 64, 3 stages
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load", "set_memory")
    usual: ClassVar[tuple[tuple[Any, ...], ...]] = ((1,), (2,), (3,), (4,), (5,))
    stages: Any = attrs.field(converter=_stages)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, stages=chosen(self.stages, "stages", 1, MOST))

    def __str__(self) -> str:
        return f"stages({self.stages})"


@verb()
def stages(stages: Integer) -> Stages:
    """Give the circular buffer of this load `stages` stages, instead of the number that `pipeline` specifies.

    On a `set_memory`, give the temporary `stages` copies that iterations use alternately: threads write the values of the next iteration
    while MMAs still read those of this one.

    Legal on a load to SH by a producer (`warp_specialize`), from 1 to 16, for a number or a tunable. The producer waits for each circular
    buffer separately. Persistent blocks give loads outside of the split two stages; `stages(1)` leaves the memory to other buffers. Also
    legal on a `set_memory` in SH, below a split, of a temporary that is not carried between iterations.
    rewrite: A_sh[k % pipeline] --> A_sh[k % stages]
    """
    return Stages(count(stages, "stages"))


__all__ = ["Stages"]
