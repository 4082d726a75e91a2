"""The refinement that states `MaxRegisters`."""

from typing import ClassVar

import attrs

from fireiron import Refinement
from toys.max_registers import MaxRegisters


@attrs.frozen
class AtMostRegisters(Refinement):
    """`tile(..).to(Block)` of a kernel with a limit of registers per thread."""

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    count: int = 32

    def plan(self, plan):
        return plan.with_effect(MaxRegisters(self.count))
