"""Registers that products of a warpgroup accumulate in, and what a compiler has to be told of them.

ptxas lets no product of a kernel run on (C7514 to C7517) where it believes that something else touches the accumulators between the
first product of a group and the wait for it. It moves some statements there by itself: conversions of accumulators that follow the
wait, conversions that fill accumulators before a loop, and, up to CUDA 12.6, a first value for registers that have none.
"""

from __future__ import annotations

from collections.abc import Sequence

from fireiron.ir import Comment, Exec, For, Kernel, Let, execs, statements
from fireiron.ir.rewrite import by_identity
from fireiron.values.expr import TRUE, Var


@by_identity
def accumulators(kernel: Kernel) -> frozenset[str]:
    """The buffers in which products accumulate."""
    products = (stmt for stmt, _ in execs(kernel.body) if stmt.mechanism.in_registers)
    return frozenset(access.buffer for stmt in products for access in stmt.accesses if access.write)


@by_identity
def begun_in_loops(kernel: Kernel) -> frozenset[str]:
    """The accumulators without a first value: in the first iteration of a loop a product overwrites them, in others it adds."""
    begun: set[str] = set()
    for stmt, loops in execs(kernel.body):
        if stmt.mechanism.in_registers and _running(loops) & stmt.accumulate.variables():
            begun |= {access.buffer for access in stmt.accesses if access.write}
    return frozenset(begun)


def is_carried(stmt: Exec, loops: Sequence[For]) -> bool:
    """Whether the accumulator of a product keeps its value from one iteration of a loop to the next."""
    running = _running(loops)
    return bool(running) and (stmt.accumulate == TRUE or bool(running & stmt.accumulate.variables()))


def _running(loops: Sequence[For]) -> set[Var]:
    """The variables of the loops in which more than products happens."""
    return {loop.var for loop in loops if not _multiplies_only(loop)}


@by_identity
def copied_in(kernel: Kernel) -> frozenset[str]:
    """The accumulators that threads fill by copies, from global memory say."""
    copies = (stmt for stmt, _ in execs(kernel.body) if stmt.spec.moves)
    return frozenset(access.buffer for stmt in copies for access in stmt.accesses if access.write) & accumulators(kernel)


def _multiplies_only(loop: For) -> bool:
    """Whether nothing but products happens in a loop, which is unrolled then."""
    inside = [stmt for stmt in statements(loop.body) if not isinstance(stmt, (For, Let, Comment))]
    return all(isinstance(stmt, Exec) and stmt.mechanism.in_registers for stmt in inside)
