"""MMAs whose results other statements of the same loop iteration access, so that a thread waits for them in each iteration.

In other loops MMAs follow each other, and the latency of address computations does not matter.
"""

from __future__ import annotations

from fireiron.ir import For, Kernel, execs
from fireiron.ir.rewrite import by_identity


@by_identity
def awaited(kernel: Kernel) -> frozenset[int]:
    """The MMAs, by identity, whose accumulators other statements of the same iteration of the innermost loop that is not unrolled
    access.
    """
    innermost: dict[int, For] = {}
    for statement, loops in execs(kernel.body):
        running = [loop for loop in loops if not loop.unroll]
        innermost |= {id(statement): running[-1]} if running else {}
    result: set[int] = set()
    for statement, _ in execs(kernel.body):
        loop = innermost.get(id(statement))
        if not statement.mechanism.in_registers or loop is None:
            continue
        inside = (stmt for stmt, _ in execs(loop.body) if not stmt.mechanism.in_registers and innermost[id(stmt)] is loop)
        written = {access.buffer for access in statement.accesses if access.write}
        if any(access.buffer in written for stmt in inside for access in stmt.accesses):
            result.add(id(statement))
    return frozenset(result)
