"""The part that the instructions of TMA loads have in common: memories, level, types, and the data of a load's statement."""

from __future__ import annotations

from typing import ClassVar

from fireiron.ir import Mechanism
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.language.tree import Executable, Mismatch
from fireiron.performing.by_lanes import level_mismatch, target_mismatch, type_mismatch
from fireiron.spec import Spec
from fireiron.values.machine import Architecture, Block

_NUMBERS = {1: "one dimension", 2: "two dimensions"}


class TmaTileLoad(Executable):
    """A `Move(GL -> SH)(Block)` by one thread of the producer; a subclass says which arrays and tiles it loads."""

    capability: ClassVar[int] = 90
    mechanism: ClassVar[Mechanism] = TMA_LOADS
    handles_edges: ClassVar[bool] = True
    tests_edges: ClassVar[bool] = True
    dimensions: ClassVar[int | None] = None
    """Number of dimensions of a tile; None for any."""

    def may_perform(self, spec: Spec) -> bool:
        return spec.copies and spec.level == Block and spec.src.memory.of_grid and spec.dst.memory.in_shared

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.copies:
            return (Mismatch("spec", "Move", spec.title),)
        mismatches = list(level_mismatch(spec, Block))
        if not (spec.src.memory.of_grid and spec.dst.memory.in_shared):
            mismatches.append(Mismatch("memories", "GL -> SH", " -> ".join(map(str, spec.memories))))
        if self.dimensions not in (None, len(spec.dims)):
            return (*mismatches, Mismatch("shape", _NUMBERS[self.dimensions], "x".join(map(str, spec.sizes))))
        mismatches += type_mismatch(spec, "dst", (spec.src.dtype,))
        mismatches += target_mismatch(architecture, self.capability)
        return (*mismatches, *self.array_mismatches(spec))

    def array_mismatches(self, spec: Spec) -> tuple[Mismatch, ...]:
        """Return why the array of `src`, or the buffer of `dst`, is none that the instruction takes."""
        raise NotImplementedError


__all__ = ["TmaTileLoad"]
