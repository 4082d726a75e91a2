"""`cluster`: blocks of a cluster meet before the first of them reaches into another, and before the first of them ends.

Until a block has made its barriers nobody may arrive at them, or send loads there; and shared memory of a block that has ended is
nobody's. What orders blocks in between are the rings' barriers, at which they arrive for each other.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import Acquire, BlockCluster, ClusterBarrier, Exec, For, Kernel, Let, execs, lets, statements
from fireiron.values.expr import Expr, Var, tables_of

MADE = "the mbarriers of all blocks of the cluster are initialized"
LAST = "no block exits while others write to its shared memory or arrive at its mbarriers"


def cluster(kernel: Kernel) -> Kernel:
    """The kernel with its cluster's barriers; a `DecompositionError` where the blocks of a cluster have nothing to share."""
    if kernel.cluster is None:
        return kernel
    if all(one.multicast is None for one, _ in execs(kernel.body)):
        raise _nothing_shared(kernel)
    _require_turns_of_all(kernel, kernel.cluster)
    names = tuple(one for one in kernel.body if isinstance(one, Let))
    program = tuple(one for one in kernel.body if not isinstance(one, Let))
    return attrs.evolve(kernel, body=(*names, ClusterBarrier(MADE), *program, ClusterBarrier(LAST)))


def _require_turns_of_all(kernel: Kernel, cluster: BlockCluster) -> None:
    """Refuse loops over the turns of rings that data choose for each block of a cluster apart."""
    named = lets(kernel.body)
    for loop in statements(kernel.body):
        waits = isinstance(loop, For) and any(isinstance(one, Acquire) for one in statements(loop.body))
        if not isinstance(loop, For) or not waits or not _read(loop.extent, named) or cluster.alike(loop.extent, kernel.block, named):
            continue
        raise DecompositionError(
            f"a cluster of {cluster.blocks} blocks, which wait for each other, and data say for each which turns it takes: {loop.extent}",
            at=loop.origin,
            within=kernel.spec,
            legal="a cluster along dimensions that this does not name",
            hint="cluster(1, 2), or no cluster",
        )


def _read(value: Expr, named: Mapping[Var, Expr]) -> bool:
    """Whether a value is made of what the kernel reads from memory."""
    return bool(tables_of(value)) or any(_read(named[var], named) for var in value.variables() if var in named)


def _nothing_shared(kernel: Kernel) -> DecompositionError:
    assert kernel.cluster is not None
    loads = [one for one, _ in execs(kernel.body) if one.mechanism.counted]
    why = "none is done by TMA for a ring" if not loads else "; ".join(dict.fromkeys(map(_why, loads)))
    return DecompositionError(
        f"a cluster of {kernel.cluster.blocks} blocks, and no load is shared: {why}",
        within=kernel.spec,
        hint=".pipeline(4).warp_specialize() and loads by TMA, from tiles that neighbours have in common; or no cluster",
    )


def _why(load: Exec) -> str:
    return f"{load.spec} differs from block to block, or has no equal parts"
