"""`chain`: a kernel that begins while the one before it ends waits for it in front of its first access to global memory.

All threads wait, the producer's and those that have nothing to do too: a kernel is over when its threads are, and one that had not waited
could be over before the kernel in front of it, for which the next one would not wait any more. Before the wait stands only what no other
kernel sees: registers, shared memory, barriers. The next kernel may begin at once: it waits likewise, and its blocks get what these leave.
"""

from __future__ import annotations

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import Chain, Comment, Kernel, Link, Stmt, execs


def chain(kernel: Kernel) -> Kernel:
    """The kernel with its links to the kernels before and behind it; a `DecompositionError` for outputs that are set to zero first."""
    if not kernel.chained:
        return kernel
    if kernel.zeroed:
        names = ", ".join(kernel.zeroed)
        raise DecompositionError(
            f"chained: {names} is set to zero before the launch, so that the kernel before is no neighbour of this one",
            hint="leave chained() out, or split k inside a block",
        )
    place = _first_access(kernel)
    return attrs.evolve(kernel, body=(Chain(Link.LAUNCH), *kernel.body[:place], Chain(Link.WAIT), *kernel.body[place:]))


def _first_access(kernel: Kernel) -> int:
    """The position of the first statement in which some thread touches global memory, with the notes about it."""
    place = next((place for place, one in enumerate(kernel.body) if _touches(kernel, one)), len(kernel.body))
    while place and isinstance(kernel.body[place - 1], Comment):
        place -= 1
    return place


def _touches(kernel: Kernel, statement: Stmt) -> bool:
    inside = (access for one, _ in execs((statement,)) for access in one.accesses)
    return any(kernel.buffer(access.buffer).memory.of_grid for access in inside)
