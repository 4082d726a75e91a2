"""Launches before the last one of an exported program: what they take, and where temporaries are in the caller's scratch memory.

Source: CUDA C++ Programming Guide, "Device Memory Accesses" (what allocations are multiples of).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.ir.effects.chaining import Chaining
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.values.expr import Var

if TYPE_CHECKING:
    from fireiron.compiler import Launch, Program
    from fireiron.ir import Buffer, Kernel

SCRATCH_ALIGN: Final = 256
"""Alignment in bytes of scratch memory and of each array in it: that of `cudaMalloc`."""


@attrs.frozen(eq=False)
class Before:
    """A launch before the last one: its kernel, which array each operand is, why, and the name of the operand if it copies one."""

    kernel: Kernel
    arrays: Mapping[str, str]
    reason: str
    copied: str | None

    @staticmethod
    def of(launch: Launch, name: str, program: Program) -> Before:
        """The launch of an export called `name`; refused where its kernel needs more than pointers and sizes."""
        copied = launch.name if launch.spec.copies else None
        suffix = f"copy_{launch.name.lower()}" if copied is not None else f"before_{launch.program.name.removeprefix(f'{program.name}_')}"
        kernel = attrs.evolve(launch.kernel, name=f"{name}_{suffix}")
        if copied is not None and len([one for one in program.preceding if one.spec.copies and one.name == copied]) > 1:
            kernel = attrs.evolve(kernel, name=f"{name}_{launch.program.name.removeprefix(f'{program.name}_')}")
        if kernel.maps or kernel.effects[Zeroed].names or kernel.cluster is not None or kernel.effects[Chaining].chained or kernel.counter:
            what = f"the copy of {copied}" if copied is not None else f"the launch {launch.name}"
            raise ArgumentError(
                f"export: {what} takes tensor maps, is chained or a cluster",
                legal="loads and stores of threads",
                hint=f"repack({copied}) without a strategy of its own" if copied is not None else "a strategy without these",
            )
        return Before(kernel, launch.arrays, launch.reason, copied)

    def arguments(self, place: Callable[[str], str]) -> list[str]:
        """What its kernel is passed, in order; `place` names the address of an array."""
        return [
            one.name if isinstance(one, Var) else place(self.arrays[one.name]) if one.name in self.arrays else one.name
            for one in self.kernel.parameters
        ]


@attrs.frozen(eq=False)
class Temporary:
    """An array in scratch memory, as the launch that makes it stores it."""

    name: str
    buffer: Buffer


def temporaries(program: Program) -> tuple[Temporary, ...]:
    """The temporaries of a program, in the order in which launches make them."""
    made: dict[str, Temporary] = {}
    for launch in program.preceding:
        for operand in launch.spec.outputs:
            array = launch.arrays[operand]
            if array not in program.spec.operands:
                made.setdefault(array, Temporary(array, launch.kernel.buffer(operand)))
    return tuple(made.values())


__all__ = ["SCRATCH_ALIGN", "Before", "Temporary", "temporaries"]
