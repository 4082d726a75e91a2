"""The ring that a load fills has a number of stages of its own: `stages` on a load."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement
from fireiron.language.tunable import chosen, integral

MOST = 16
"""The most stages; a stage is a whole buffer."""


def _stages(value: Any) -> Any:
    return integral(value, "stages")


@attrs.frozen
class OwnStages(Refinement):
    """The load runs ahead by a number of stages of its own, in place of those that `pipeline` gives to all loads of the split.

    Legal from 1 to 16 on a load to SH directly under a split with `specialize`, whose producer waits for each ring by itself; a tunable
    may stand for the number. Buffers that the same statements use share a ring only where they have as many stages. Where threads do the
    loads, as no engine can, all have the stages of `pipeline`.
    rewrite: A_sh[k % pipeline] --> A_sh[k % stages]
    """

    applies_to: ClassVar[tuple[str, ...]] = ("load",)
    stages: Any = attrs.field(converter=_stages)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, stages=chosen(self.stages, "stages", 1, MOST))

    def __str__(self) -> str:
        return f"stages({self.stages})"


__all__ = ["OwnStages"]
