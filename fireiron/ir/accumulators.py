"""Find the accumulators of wgmma in registers, and the uses of them for which ptxas serializes wgmma.

ptxas serializes all wgmmas of a kernel (warnings C7514 to C7517) if it assumes that other code accesses the accumulators between the first
wgmma of a group and its wait. ptxas itself moves some instructions there: conversions of accumulators after the wait, conversions that fill
accumulators before a loop, and, up to CUDA 12.6, the initialization of uninitialized registers.
"""

from __future__ import annotations

from collections.abc import Sequence

from fireiron.ir import Comment, Exec, For, Kernel, Let, execs, statements
from fireiron.ir.rewrite import by_identity
from fireiron.values.expr import TRUE, Var


@by_identity
def accumulators(kernel: Kernel) -> frozenset[str]:
    """The buffers in which MMAs accumulate."""
    products = (stmt for stmt, _ in execs(kernel.body) if stmt.mechanism.in_registers)
    return frozenset(access.buffer for stmt in products for access in stmt.accesses if access.write)


@by_identity
def begun_in_loops(kernel: Kernel) -> frozenset[str]:
    """The accumulators that no statement initializes: the MMA of a loop's first iteration overwrites them, and later ones accumulate."""
    begun: set[str] = set()
    for stmt, loops in execs(kernel.body):
        if stmt.mechanism.in_registers and _running(loops) & stmt.accumulate.variables():
            begun |= {access.buffer for access in stmt.accesses if access.write}
    return frozenset(begun)


def is_carried(stmt: Exec, loops: Sequence[For]) -> bool:
    """Whether the accumulator of an MMA keeps its value from one iteration of a loop to the next."""
    running = _running(loops)
    return bool(running) and (stmt.accumulate == TRUE or bool(running & stmt.accumulate.variables()))


def _running(loops: Sequence[For]) -> set[Var]:
    """The variables of the loops that contain more than MMAs."""
    return {loop.var for loop in loops if not _multiplies_only(loop)}


@by_identity
def copied_in(kernel: Kernel) -> frozenset[str]:
    """The accumulators that threads initialize by copies, for example from global memory."""
    copies = (stmt for stmt, _ in execs(kernel.body) if stmt.spec.moves)
    return frozenset(access.buffer for stmt in copies for access in stmt.accesses if access.write) & accumulators(kernel)


def _multiplies_only(loop: For) -> bool:
    """Whether a loop contains only MMAs; then it is unrolled."""
    inside = [stmt for stmt in statements(loop.body) if not isinstance(stmt, (For, Let, Comment))]
    return all(isinstance(stmt, Exec) and stmt.mechanism.in_registers for stmt in inside)
