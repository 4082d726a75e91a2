"""Blocks that begin while the kernel before ends: `chained` on a tile dealt to Block."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.language.tree import Refinement


@attrs.frozen
class Chained(Refinement):
    """The kernel is launched while the kernel before it in its stream still ends, and waits for it before it touches global memory.

    What comes before that, barriers and registers, takes no time then. Legal on a tile that is dealt to Block, from sm_90 on, for a kernel
    whose outputs need not be zero before. PTX ISA, "griddepcontrol"; CUDA C++ Programming Guide, "Programmatic Dependent Launch".
    rewrite: S --> let the next kernel begin; wait for the kernel before; S
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)

    def plan(self, plan: Any) -> Any:
        return attrs.evolve(plan, chained=True)

    def __str__(self) -> str:
        return "chained()"


__all__ = ["Chained"]
