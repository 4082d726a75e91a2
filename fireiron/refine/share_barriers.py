"""Two loads complete on the same mbarriers: `share_barriers` on a load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.language.tree import Context, Decomposition, Refinement, verb
from fireiron.spec import Spec
from fireiron.specs.operand import Operand, operand_name


@frozen
class ShareBarriers(Refinement):
    """Fill and release the stages of this load together with those of another load, `operand`, on the same mbarriers.

    By default, loads that the same steps read use the same mbarriers. Others have separate ones, so that each step waits only for what it
    reads. A small load is better joined with a large one that is read at about the same time: each wait and each release cost a few
    instructions per warp. Legal on a load to SH under the same split with `warp_specialize` as the load of `operand`, which precedes it
    and has as many stages.
    rewrite: wait for Q; wait for L --> wait for Q and L

    Source: decision 129.

    >>> from fireiron import *
    >>> from fireiron.strategies import lstm
    >>> blocks = lstm.definition.tile(m=128, n=128).to(Block).load("bias", SH, Move.done()).split(k=64).pipeline(3).warp_specialize()
    >>> loads = blocks.load("X", SH, Move.done()).load("H", SH, Move.done()).share_barriers("X")
    >>> loads.steps[-1].label()
    "load('H', SH, Move.done()).share_barriers('X')"
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load",)
    operand: Any = attrs.field(converter=operand_name)

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[ShareBarriers]:
        view = spec.operands.get(getattr(step, "operand", ""))
        for name, other in spec.operands.items():
            if view is not None and other is not view and other.memory.of_block:
                yield ShareBarriers(name)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, joins=self.operand)

    def __str__(self) -> str:
        return f"share_barriers({self.operand!r})"


@verb()
def share_barriers(operand: Operand | str) -> ShareBarriers:
    """Fill and release the stages of this load together with those of another load, `operand`, on the same mbarriers.

    Legal on a load to SH under the same split with `warp_specialize` as the other load, which precedes it and has as many stages.
    rewrite: wait for Q; wait for L --> wait for Q and L
    """
    return ShareBarriers(operand)


__all__ = ["ShareBarriers", "share_barriers"]
