"""Decide which loops are printed with `#pragma unroll`: those that a strategy unrolls, and those whose variable is an index of registers.

The printer and the cost model share this decision, so that equal CUDA code has equal predictions.
"""

from __future__ import annotations

from typing import Final

from fireiron.ir import Exec, For, Kernel, execs, statements
from fireiron.ir.rewrite import by_identity
from fireiron.values.expr import Const, Var

MOST_REGISTERS: Final = 255
"""Registers of a thread; larger arrays are in local memory, with run-time indices."""


def indexes_registers(kernel: Kernel, loop: For) -> bool:
    """Whether the loop variable is an index of registers, so that the loop must be unrolled: registers have no run-time index."""
    return any(loop.var in _register_indices(kernel, statement) for statement, _ in execs((loop,)))


@by_identity
def loops_that_run(kernel: Kernel) -> frozenset[int]:
    """The ids of the loops that are printed as loops without `#pragma unroll`. A loop of one iteration is printed without a loop."""
    loops = {id(stmt): stmt for stmt in statements(kernel.body) if isinstance(stmt, For)}
    unrolled = {
        id(loop)
        for statement, around in execs(kernel.body)
        if any(not loop.unroll for loop in around)
        for loop in around
        if loop.var in _register_indices(kernel, statement)
    }
    return frozenset(key for key, loop in loops.items() if not (loop.unroll or single(loop) or key in unrolled))


def single(loop: For) -> bool:
    """Whether a loop has one iteration, and is printed without a loop."""
    return loop.extent == Const(1) and loop.step == 1


def _register_indices(kernel: Kernel, statement: Exec) -> frozenset[Var]:
    """The variables in the indices of a statement's operands in registers."""
    result: frozenset[Var] = frozenset()
    if statement.collective:
        return result
    for access in statement.accesses:
        buffer = kernel.buffer(access.buffer)
        if buffer.memory.private and buffer.elements.high <= MOST_REGISTERS:
            result |= buffer.address(access, access.elements()[0]).variables()
    return result
