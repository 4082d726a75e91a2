"""Two loads fill one circular buffer: `share_stages` on a load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.frozen import frozen
from fireiron.language.tree import Context, Decomposition, Refinement, verb
from fireiron.spec import Spec
from fireiron.specs.operand import Operand, operand_name


@frozen
class ShareStages(Refinement):
    """Store this load in the circular buffer of another load, `operand`: the two fill its stages alternately.

    In each iteration, the load of `operand` has the first fill; the loads that share its buffer have the next fills. They share all `s`
    stages of the buffer, for any `s`. Legal on a load to SH under the same split with `warp_specialize` as the load of `operand`, which
    precedes it, for tiles of one shape, element type and layout. All loads that use the same circular buffer must share: if X and W have
    one buffer, H shares the stages of X, and R those of W.
    rewrite: X_sh[k % s], H_sh[k % s] --> X_sh[2k % s], X_sh[(2k + 1) % s]

    Source: decision 39.

    >>> from fireiron import *
    >>> from fireiron.strategies import lstm
    >>> blocks = lstm.definition.tile(m=128, n=128).to(Block).load("bias", SH, Move.done()).split(k=64).pipeline(3).warp_specialize()
    >>> loads = blocks.load("X", SH, Move.done()).load("W", SH, Move.done()).load("H", SH, Move.done()).share_stages("X")
    >>> [step.label() for step in loads.load("R", SH, Move.done()).share_stages("W").steps[-2:]]
    ["load('H', SH, Move.done()).share_stages('X')", "load('R', SH, Move.done()).share_stages('W')"]
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load",)
    operand: Any = attrs.field(converter=operand_name)

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[ShareStages]:
        view = spec.operands.get(getattr(step, "operand", ""))
        for name, other in spec.operands.items():
            if view is not None and other is not view and other.memory.of_block and (other.shape, other.dtype) == (view.shape, view.dtype):
                yield ShareStages(name)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, shares=self.operand)

    def __str__(self) -> str:
        return f"share_stages({self.operand!r})"


@verb()
def share_stages(operand: Operand | str) -> ShareStages:
    """Store this load in the circular buffer of another load, `operand`: the two fill its stages alternately.

    Legal on a load to SH under the same split with `warp_specialize` as the other load, which precedes it, for tiles of one shape, type
    and layout. All loads of that buffer must share it.
    rewrite: X_sh[k % s], H_sh[k % s] --> X_sh[2k % s], X_sh[(2k + 1) % s]
    """
    return ShareStages(operand)


__all__ = ["ShareStages"]
