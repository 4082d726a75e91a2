"""The load takes turns with another one in the slots of its ring: `share` on a load."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Context, Decomposition, Refinement, verb
from fireiron.spec import Spec
from fireiron.specs.operand import Operand, operand_name


@attrs.frozen
class Share(Refinement):
    """The load fills slots of the ring that the load of `operand` has, in turns with it: no buffer of its own.

    Of an iteration the first load's turn comes first, then that of each who shares, so a ring of `s` stages is `s` slots for all of them
    together, of any number. Legal on a load to SH under the same split with `specialize` as that of `operand`, which stands above it, for
    tiles of one shape, element type and layout; and all who share a ring do: where X and W are one, H shares X's and R shares W's.
    rewrite: X_sh[k % s], H_sh[k % s] --> X_sh[2k % s], X_sh[(2k + 1) % s]

    Source: decision 39.

    >>> from fireiron import *
    >>> from fireiron.strategies import lstm
    >>> blocks = lstm.definition.tile(m=128, n=128).to(Block).load("bias", SH, Move.done()).split(k=64).pipeline(3).specialize()
    >>> loads = blocks.load("X", SH, Move.done()).load("W", SH, Move.done()).load("H", SH, Move.done()).share("X")
    >>> [step.label() for step in loads.load("R", SH, Move.done()).share("W").steps[-2:]]
    ["load('H', SH, Move.done()).share('X')", "load('R', SH, Move.done()).share('W')"]
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load",)
    operand: Any = attrs.field(converter=operand_name)

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[Share]:
        view = spec.operands.get(getattr(step, "operand", ""))
        for name, other in spec.operands.items():
            if view is not None and other is not view and other.memory.of_block and (other.shape, other.dtype) == (view.shape, view.dtype):
                yield Share(name)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, shares=self.operand)

    def __str__(self) -> str:
        return f"share({self.operand!r})"


@verb()
def share(operand: Operand | str) -> Share:
    """Fill slots of the ring of another load, `operand`, in turns with it, and have no buffer of its own.

    Legal on a load to SH under the same split with `specialize` as the other load, which stands above it, for tiles of one shape, type
    and layout; all who are in that ring are shared with. rewrite: X_sh[k % s], H_sh[k % s] --> X_sh[2k % s], X_sh[(2k + 1) % s]
    """
    return Share(operand)


__all__ = ["Share"]
