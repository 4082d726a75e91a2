"""Distribution of tiles over the units of a level: `to` on a tile (Fireiron, section 4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.language.tree import Context, Decomposition, Refinement, verb
from fireiron.spec import Spec
from fireiron.values.machine import LEVELS, Level


@frozen
class To(Refinement):
    """Distribute tiles over the units of a level, in parallel (Fireiron, section 4.2).

    Legal if the level is below the spec's.
    rewrite: for m: for n: S --> unit u: S at level, tile number u

    >>> from fireiron import *
    >>> problem = MatMul(64, 64, 8)(GL, GL, GL)(Kernel)
    >>> print(problem.tile(16, 16).to(Block).tile(4, 4).to(Thread).result)
    MatMul(4,4,8)(GL,GL,GL)(Thread)
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    level: Level

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.level, Level):
            raise DecompositionError("to: the argument is not a level", got=self.level, legal=LEVELS[1:], at=call_site())

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[To]:
        yield from (To(level) for level in LEVELS if level.is_below(spec.level))

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, level=self.level)

    def __str__(self) -> str:
        return f"to({self.level})"


@verb()
def to(level: Level) -> To:
    """Distribute the tiles over the units of a level, in parallel. Surplus units are idle; surplus tiles need more iterations.

    Legal if the level is below the spec's. Several tiles in sequence may be distributed over blocks:
    `MatMul.tile(b=1).to(Block).then(strategy)` assigns one b to each group of blocks, and the strategy distributes the tiles of that b over
    the group.
    rewrite: for m: for n: S --> unit u: S at level, tile number u
    """
    return To(level)


__all__ = ["To"]
