"""Find the MMAs whose results other statements access in the same loop iteration, so that threads wait for them in each iteration.

In other loops, the MMAs of successive iterations overlap, and the latency of address computations does not matter.
"""

from __future__ import annotations

from fireiron.ir import For, Kernel, Roles, execs
from fireiron.ir.rewrite import by_identity


@by_identity
def awaited(kernel: Kernel) -> frozenset[int]:
    """The ids of the MMAs whose accumulators another statement accesses in the same iteration; or whose operands in registers it writes, if
    the threads also copy operands.

    Iterations are those of the innermost loop around the MMA that is not unrolled.
    """
    innermost: dict[int, For] = {}
    for statement, loops in execs(kernel.body):
        running = [loop for loop in loops if not loop.unroll]
        innermost |= {id(statement): running[-1]} if running else {}
    result: set[int] = set()
    copies = not any(isinstance(stmt, Roles) for stmt in kernel.body)
    for statement, _ in execs(kernel.body):
        loop = innermost.get(id(statement))
        if not statement.mechanism.in_registers or loop is None:
            continue
        inside = (stmt for stmt, _ in execs(loop.body) if not stmt.mechanism.in_registers and innermost[id(stmt)] is loop)
        written = {access.buffer for access in statement.accesses if access.write}
        read = {access.buffer for access in statement.accesses if copies and kernel.buffer(access.buffer).memory.private} - written
        accesses = [access for stmt in inside for access in stmt.accesses]
        if any(access.buffer in written or (access.write and access.buffer in read) for access in accesses):
            result.add(id(statement))
    return frozenset(result)
