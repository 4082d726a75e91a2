"""Estimate the registers that a compiler assigns to the threads of a kernel."""

from __future__ import annotations

from typing import Final

import attrs

from fireiron.check.resources import Occupancy, array_limit, occupancy, register_limit
from fireiron.frozen import frozen
from fireiron.ir import For, Kernel, Roles
from fireiron.values.expr import constant
from fireiron.values.machine import Architecture

LOOPING: Final = 38
"""Number of registers of a thread in addition to its arrays if a loop remains: addresses, counters (median of the sweep, NVRTC 13)."""

UNROLLED: Final = 12
"""Number of registers of a thread in addition to its arrays if no loop remains."""

MIN_REGISTERS: Final = 8
"""Number of registers that any computation needs. Arrays spill if they leave fewer."""


@frozen
class Registers:
    """The 32-bit registers of a thread: `given` are assigned, its arrays need `arrays`, and `spilled` spill to local memory."""

    given: int
    arrays: int
    spilled: int


def register_prediction(kernel: Kernel) -> Registers:
    """Return the estimate. A block always fits, because the compiler assigns fewer registers and the rest spills.

    With `setmaxnreg`, each thread starts with the same number, and arrays have the registers of their role.
    """
    arrays = array_registers(kernel)
    limit = max(register_limit(kernel), 2 * MIN_REGISTERS)
    roles = [role for stmt in kernel.body if isinstance(stmt, Roles) for role in stmt.roles]
    top = [*kernel.body, *(stmt for role in roles for stmt in role.body)]
    looping = any(isinstance(stmt, For) and not stmt.unroll for stmt in top)
    wanted = arrays + (LOOPING if looping else UNROLLED)
    return Registers(min(-(-wanted // 8) * 8, limit), arrays, max(arrays + MIN_REGISTERS - max(array_limit(kernel), limit), 0))


def array_registers(kernel: Kernel) -> int:
    """Return the number of registers of a thread's arrays, including all stages of a pipeline."""
    return sum(-(-(constant(buffer.total) or 0) * buffer.dtype.bytes // 4) for buffer in kernel.buffers if buffer.memory.private)


def occupancy_on(kernel: Kernel, target: Architecture) -> tuple[Occupancy, Registers]:
    """Return the occupancy of a target with the estimated registers, and the registers. There is at least one block per SM."""
    retargeted = attrs.evolve(kernel, architecture=target)
    registers = register_prediction(retargeted)
    occupied = occupancy(retargeted, registers.given)
    return (occupied, registers) if occupied.blocks else (attrs.evolve(occupied, blocks=1, warps=-(-kernel.threads // 32)), registers)
