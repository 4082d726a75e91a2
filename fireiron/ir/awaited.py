"""Products that a thread waits for in each turn of a loop, as other statements of the turn touch their accumulators.

In other loops products follow each other, and it does not matter how long an address takes.
"""

from __future__ import annotations

from fireiron.ir import For, Kernel, execs
from fireiron.ir.rewrite import by_identity


@by_identity
def awaited(kernel: Kernel) -> frozenset[int]:
    """The products, by identity, whose accumulators are touched by other statements of the same turn of the innermost loop that runs."""
    innermost: dict[int, For] = {}
    for statement, loops in execs(kernel.body):
        running = [loop for loop in loops if not loop.unroll]
        innermost |= {id(statement): running[-1]} if running else {}
    found: set[int] = set()
    for statement, _ in execs(kernel.body):
        loop = innermost.get(id(statement))
        if not statement.mechanism.in_registers or loop is None:
            continue
        inside = (one for one, _ in execs(loop.body) if not one.mechanism.in_registers and innermost[id(one)] is loop)
        written = {access.buffer for access in statement.accesses if access.write}
        if any(access.buffer in written for one in inside for access in one.accesses):
            found.add(id(statement))
    return frozenset(found)
