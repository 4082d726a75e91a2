"""Copies in front of an exported kernel: where they lie in the caller's scratch memory, and how they are launched.

Source: CUDA C++ Programming Guide, "Device Memory Accesses" (what allocations are multiples of).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.ir.effects.chaining import Chaining
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.values.expr import Var

if TYPE_CHECKING:
    from fireiron.compiler import Launch
    from fireiron.ir import Buffer, Kernel

SCRATCH_ALIGN: Final = 256
"""Alignment in bytes of scratch memory and of each copy in it: that of `cudaMalloc`."""


@attrs.frozen(eq=False)
class Copy:
    """A launch in front: `kernel` copies the `operand` to a place in scratch memory, as `reason` says."""

    operand: str
    kernel: Kernel
    reason: str

    @staticmethod
    def of(launch: Launch, name: str) -> Copy:
        """The copy of an export called `name`; refused where its kernel needs more than pointers and sizes."""
        kernel = attrs.evolve(launch.program.ir, name=f"{name}_copy_{launch.name.lower()}")
        if kernel.maps or kernel.effects[Zeroed].names or kernel.cluster is not None or kernel.effects[Chaining].chained:
            raise ArgumentError(
                f"export: the copy of {launch.name} takes tensor maps, is chained or a cluster",
                legal="loads and stores of threads",
                hint=f"repack({launch.name}) without a strategy of its own",
            )
        return Copy(launch.name, kernel, launch.reason)

    @property
    def source(self) -> Buffer:
        """The operand as the caller stores it."""
        buffer = self.kernel.buffer("src")
        return attrs.evolve(buffer, tensor=attrs.evolve(buffer.tensor, name=self.operand))

    @property
    def made(self) -> Buffer:
        """The copy."""
        return self.kernel.buffer("dst")

    def arguments(self, place: str) -> list[str]:
        """What its kernel is passed, in order; `place` is the name of the copy's address."""
        names = {"src": self.operand, "dst": place}
        return [one.name if isinstance(one, Var) else names.get(one.name, one.name) for one in self.kernel.parameters]


__all__ = ["SCRATCH_ALIGN", "Copy"]
