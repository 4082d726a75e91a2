"""Represent the preceding launches of an exported program: their arguments, and the temporaries in the caller's scratch memory.

Source: CUDA C++ Programming Guide, "Device Memory Accesses" (alignment of allocations).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.values.expr import Var

if TYPE_CHECKING:
    from fireiron.compiler import Launch, Program
    from fireiron.ir import Buffer, Kernel

SCRATCH_ALIGN: Final = 256
"""Alignment in bytes of scratch memory and of each array in it: that of `cudaMalloc`."""


@attrs.frozen(eq=False)
class PrecedingLaunch:
    """A launch before the last launch: its kernel, the array of each operand, the reason, and the operand that it copies, if any."""

    kernel: Kernel
    arrays: Mapping[str, str]
    reason: str
    copied: str | None

    @staticmethod
    def of(launch: Launch, name: str, program: Program) -> PrecedingLaunch:
        """Return the launch for the export `name`.

        Raises: an `ArgumentError` if its kernel takes arguments other than pointers and sizes.
        """
        copied = launch.name if launch.spec.copies else None
        suffix = f"copy_{launch.name.lower()}" if copied is not None else f"before_{launch.program.name.removeprefix(f'{program.name}_')}"
        kernel = attrs.evolve(launch.kernel, name=f"{name}_{suffix}")
        if copied is not None and len([other for other in program.preceding if other.spec.copies and other.name == copied]) > 1:
            kernel = attrs.evolve(kernel, name=f"{name}_{launch.program.name.removeprefix(f'{program.name}_')}")
        if (
            kernel.maps
            or kernel.effects[Zeroed].names
            or kernel.cluster is not None
            or kernel.effects[DependentLaunch].enabled
            or kernel.counter
            or kernel.workspace
        ):
            what = f"the copy of {copied}" if copied is not None else f"the launch {launch.name}"
            raise ArgumentError(
                f"export: {what} uses tensor maps, programmatic launch, a cluster, a tile counter, a workspace or zeroed outputs",
                legal="loads and stores by threads",
                hint=f"repack({copied}) without a separate strategy" if copied is not None else "use a strategy without these",
            )
        return PrecedingLaunch(kernel, launch.arrays, launch.reason, copied)

    def arguments(self, address: Callable[[str], str]) -> list[str]:
        """Return the arguments of its kernel, in order. The function `address` returns the name of an array's address."""
        return [
            parameter.name
            if isinstance(parameter, Var)
            else address(self.arrays[parameter.name])
            if parameter.name in self.arrays
            else parameter.name
            for parameter in self.kernel.parameters
        ]


@attrs.frozen(eq=False)
class Temporary:
    """An array in scratch memory, with the buffer of the launch that writes it."""

    name: str
    buffer: Buffer


def temporaries(program: Program) -> tuple[Temporary, ...]:
    """Return the temporaries of a program, in the order of the launches that write them."""
    temporaries_by_name: dict[str, Temporary] = {}
    for launch in program.preceding:
        for operand in launch.spec.outputs:
            array = launch.arrays[operand]
            if array not in program.spec.operands:
                temporaries_by_name.setdefault(array, Temporary(array, launch.kernel.buffer(operand)))
    return tuple(temporaries_by_name.values())


__all__ = ["SCRATCH_ALIGN", "PrecedingLaunch", "Temporary", "temporaries"]
