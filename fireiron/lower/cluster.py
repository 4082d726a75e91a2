"""`cluster`: blocks of a cluster meet before the first of them reaches into another, and before the first of them ends.

Until a block has made its barriers nobody may arrive at them, or send loads there; and shared memory of a block that has ended is
nobody's. What orders blocks in between are the rings' barriers, at which they arrive for each other.
"""

from __future__ import annotations

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import ClusterBarrier, Completion, Exec, Kernel, Let, execs

MADE = "the barriers of all blocks of the cluster are made"
LAST = "no block ends while others send to it, or arrive at its barriers"


def cluster(kernel: Kernel) -> Kernel:
    """The kernel with its cluster's barriers; a `DecompositionError` where the blocks of a cluster have nothing to share."""
    if kernel.cluster is None:
        return kernel
    if all(one.multicast is None for one, _ in execs(kernel.body)):
        raise _nothing_shared(kernel)
    names = tuple(one for one in kernel.body if isinstance(one, Let))
    program = tuple(one for one in kernel.body if not isinstance(one, Let))
    return attrs.evolve(kernel, body=(*names, ClusterBarrier(MADE), *program, ClusterBarrier(LAST)))


def _nothing_shared(kernel: Kernel) -> DecompositionError:
    assert kernel.cluster is not None
    loads = [one for one, _ in execs(kernel.body) if one.completion is Completion.RING]
    why = "none is done by TMA for a ring" if not loads else "; ".join(dict.fromkeys(map(_why, loads)))
    return DecompositionError(
        f"a cluster of {kernel.cluster.blocks} blocks, and no load is shared: {why}",
        within=kernel.spec,
        hint=".pipeline(4).specialize() and loads by TMA, from tiles that neighbours have in common; or no cluster",
    )


def _why(load: Exec) -> str:
    return f"{load.spec} differs from block to block, or has no equal parts"
